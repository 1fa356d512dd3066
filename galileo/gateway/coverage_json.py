"""Observations as CoverageJSON: a time series for each place.

The text is made column by column: a place, its times and each of its ranges are elements of string
arrays, which Arrow joins. No value becomes a Python object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.client.json_lines import joined_texts, json_values
from galileo.errors import InputError
from galileo.gateway.crs import Crs
from galileo.model.schema import Feature
from galileo.model.times import column_micros
from galileo.rdf.terms import FEATURE, QUDT_UNIT, QUDT_UNITS, STANDARD_NAME

MEDIA_TYPE = "application/prs.coverage+json"
SERIES_MAX = 100_000
"""Time series of a document."""
DATA_TYPES = {
    "float": "float",
    "float32": "float",
    "int": "integer",
    "bool": "integer",
    "text": "string",
}
"""Of ranges, by the type of the feature; a bool is 0 or 1."""
PIECE_ROWS = 65_536
"""Observations that become text together, unless a series has more."""

_BEGIN = '{"type":"Coverage","domain":{"type":"Domain",'
_Ints = npt.NDArray[np.int64]


def encode(
    table: pa.Table, features: Sequence[Feature], *, crs: Crs, location: str = "", single: bool
) -> Iterator[bytes]:
    """The pieces of a document of point series, each of which takes a moment to make.

    Observations belong to one series if they have the same place, and the same value of the
    location feature. If several of these have the same time, the second of each time make a
    further series, and so on, so that the times of a series differ.

    Args:
        table: observations in degrees, with the columns of the features and the location.
        features: the parameters of the coverages.
        crs: of the positions.
        location: the feature that says which station an observation is of; "" for none.
        single: whether a single series is a coverage, rather than a collection of one.

    Raises:
        InputError: there are too many series, or places without a position in the system.
    """
    series = _Series(table, location, crs)
    common = {"domainType": "PointSeries", "referencing": _referencing(crs)}
    parameters = {"parameters": {feature.name: parameter(feature) for feature in features}}
    if single and len(series) == 1:
        head = json.dumps({"type": "Coverage", **parameters})
        domain = json.dumps({"type": "Domain", **common})
        yield f'{head[:-1]},"domain":{domain[:-1]},'.encode()
        yield memoryview(series.coverages(features, 0, 1)[0].as_buffer())[len(_BEGIN) :].tobytes()
        return
    head = json.dumps({"type": "CoverageCollection", **common, **parameters})
    begin = f'{head[:-1]},"coverages":[\n'
    for first, last in series.pieces():
        yield joined_texts(begin, series.coverages(features, first, last), "")
        begin = ",\n"
    yield f"{'' if len(series) else begin}\n]}}".encode()


def parameter(feature: Feature) -> dict[str, Any]:
    """The parameter of a feature; texts are by language."""
    document: dict[str, Any] = {
        "type": "Parameter",
        "id": feature.name,
        "description": {"en": feature.description or feature.name},
        "observedProperty": _observed_property(feature),
    }
    if feature.flags:  # A parameter with categories must not have a unit by the standard.
        document["categoryEncoding"] = {name: value for value, name in feature.flags.items()}
    elif feature.unit:
        known = QUDT_UNITS.get(feature.unit)
        identity = {"id": QUDT_UNIT + known} if known else {}
        label = {"label": {"en": feature.unit}, "symbol": feature.unit}
        document["unit"] = label | identity
    return document


def _observed_property(feature: Feature) -> dict[str, Any]:
    """What a feature is of: its standard name, if it has one; flags are categories."""
    name = feature.standard_name
    observed = {
        "id": STANDARD_NAME + name if name else FEATURE + feature.name,
        "label": {"en": name or feature.name},
    }
    categories = [{"id": meaning, "label": {"en": meaning}} for meaning in feature.flags.values()]
    return observed | ({"categories": categories} if categories else {})


class _Series:
    """Observations sorted by series and time.

    Args:
        table: the observations.
        location: a feature that tells series apart; "" for none.
        crs: of positions.
    """

    def __init__(self, table: pa.Table, location: str, crs: Crs) -> None:
        keys = [table.column(name).to_numpy() for name in ("latitude", "longitude")]
        keys += [_codes(table.column(location))] if location else []
        time = column_micros(table.column("time"))
        order = np.lexsort((time, *reversed(keys)))
        group = np.cumsum(_differs(*(key[order] for key in keys)))
        rank = _positions_in_runs(_differs(group, time[order]))
        if rank.any():
            again = np.lexsort((time[order], rank, group))
            order, group, rank = order[again], group[again], rank[again]
        starts = np.flatnonzero(_differs(group, rank))
        if len(starts) > SERIES_MAX:
            raise InputError(
                f"expected at most {SERIES_MAX:,} time series in an answer in CoverageJSON, got "
                f"{len(starts):,}; narrow the region or datetime, or ask for f=geojson or f=csv",
                parameter="f",
                bound=SERIES_MAX,
            )
        self._table = table
        self._order = order
        self._offsets = np.append(starts, table.num_rows)
        latitude, longitude = (key[order[starts]] for key in keys[:2])
        self._x, self._y = crs.from_degrees(longitude, latitude)
        if not np.isfinite(self._y).all():
            raise InputError(
                f"expected places off the poles, which have no position in {crs.uri}; use another "
                "crs",
                parameter="crs",
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Ranges of series with about `PIECE_ROWS` observations, and with one series at least."""
        first = 0
        while first < len(self):
            end = int(np.searchsorted(self._offsets, self._offsets[first] + PIECE_ROWS, "right"))
            last = max(first + 1, end - 1)
            yield first, last
            first = last

    def coverages(self, features: Sequence[Feature], first: int, last: int) -> pa.Array:
        """The text of the coverage of each series of a range."""
        offsets = self._offsets[first : last + 1]
        table = self._table.take(pa.array(self._order[offsets[0] : offsets[-1]]))
        lists = (offsets - offsets[0]).astype(np.int32)
        x, y = (_texts(axis[first:last]) for axis in (self._x, self._y))
        counts = _texts(np.diff(lists))
        parts: list[Any] = [f'{_BEGIN}"axes":{{"x":{{"values":[', x, ']},"y":{"values":[', y]
        parts += [']},"t":{"values":[', _joined(table.column("time"), lists), ']}}},"ranges":{']
        for number, feature in enumerate(features):
            kind, name = DATA_TYPES[feature.type], json.dumps(feature.name)
            parts.append(
                f'{"," if number else ""}{name}:{{"type":"NdArray","dataType":"{kind}",'
                '"axisNames":["t"],"shape":['
            )
            values = _joined(table.column(feature.name), lists)
            parts += [counts, '],"values":[', values, "]}"]
        return pc.binary_join_element_wise(*parts, "}}", "")


def _joined(column: pa.ChunkedArray, offsets: npt.NDArray[np.int32]) -> pa.Array:
    """The values between two offsets as JSON, by comma."""
    values = column.combine_chunks()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), json_values(values)), ",")


def _codes(column: pa.ChunkedArray) -> _Ints:
    """A number for each distinct value; a missing value has one, too."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    codes: _Ints = encoded.indices.to_numpy().astype(np.int64)
    return codes


def _differs(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether a row differs from the one before; the first one does."""
    changed = np.ones(len(columns[0]), dtype=np.bool_)
    changed[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return changed


def _positions_in_runs(is_first: npt.NDArray[np.bool_]) -> _Ints:
    """The position of each row in its run."""
    at = np.arange(len(is_first))
    positions: _Ints = at - np.maximum.accumulate(np.where(is_first, at, 0))
    return positions


def _texts(numbers: npt.NDArray[Any]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _referencing(crs: Crs) -> list[dict[str, Any]]:
    """How the axes refer to the earth and to time."""
    axes = ["y", "x"] if crs.is_latitude_first else ["x", "y"]
    return [
        {"coordinates": axes, "system": {"type": crs.kind, "id": crs.uri}},
        {"coordinates": ["t"], "system": {"type": "TemporalRS", "calendar": "Gregorian"}},
    ]
