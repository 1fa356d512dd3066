"""GRIB files, editions 1 and 2, through ecCodes.

The file is scanned once for its fields, and then read step by step: a step has all fields of one
grid, reference time, valid time and ensemble member, and its points are rows. Each field is decoded
once, and one step at a time is in memory. No index file is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AbstractMapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.expressions import Name
from galileo.formats.grib_fields import POINTS_MAX, Field, FieldStep, open_fields, scan
from galileo.formats.grib_split import read_fields
from galileo.formats.grid_options import LEAD_TIME, REFERENCE_TIME, RUN_ATTRIBUTES
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Coordinates, Reader, library_errors
from galileo.formats.variables import VariableInfo, format_names
from galileo.model.feature_metadata import FeatureMetadata, from_attributes
from galileo.model.times import HOUR_US, MICROS, TIME_TYPE, micros
from galileo.optional_imports import library

MEMBER = "member"
_RUN = [
    VariableInfo(
        name,
        from_attributes(attributes),
        type="int" if name == REFERENCE_TIME else "float",
        auxiliary=True,
    )
    for name, attributes in RUN_ATTRIBUTES.items()
]

# The value that ecCodes returns for a missing one; no measurement is near it.
MISSING_VALUE = -1.0e300
# Grids whose values have the order of ecCodes' latitudes and longitudes in any scanning mode. For
# projected grids this holds for the usual mode only; in others the point iterator pairs them.
_UNPROJECTED = ("regular_ll", "reduced_ll", "regular_gg", "reduced_gg", "rotated_ll")
_USUAL_SCAN = {
    "iScansNegatively": 0,
    "jScansPositively": 1,
    "jPointsAreConsecutive": 0,
    "alternativeRowScanning": 0,
}

Floats = npt.NDArray[np.float64]


def open_grib(path: Path, mapping: Mapping) -> Reader:
    """A reader of a GRIB file.

    Raises:
        InputError: it is damaged, or the mapping names coordinates, which GRIB defines itself.
        MissingExtra: ecCodes is not installed.
    """
    if mapping.latitude or mapping.longitude or mapping.time:
        raise InputError(
            "GRIB defines its coordinates itself; map no coordinates", expected="no_coordinates"
        )
    eccodes = library("eccodes", purpose="reading GRIB")
    constant = None if mapping.constant_time is None else micros(mapping.constant_time)
    with path.open("rb") as file, library_errors(path, format="GRIB"):
        fields, others = scan(eccodes, file, needs_time=constant is None)
    if others and not fields:
        raise InputError(
            f"expected values at points in {path}, got {format_names(others)}; transform them to "
            "a grid of latitudes and longitudes first",
            expected="places",
        )
    if not fields:
        raise InputError(f"{path} has no GRIB messages", expected="messages")
    return Reader(
        Coordinates(
            Name("latitude"), Name("longitude"), "time" if constant is None else "", constant
        ),
        [*_infos(fields), *(_RUN if mapping.grid.reference_time else ())],
        sum({field.step: field.points for field in fields}.values()),
        lambda names: _scan(path, fields, names, eccodes=eccodes),
        others,
    )


def _infos(fields: Sequence[Field]) -> list[VariableInfo]:
    """All variables; those on the grid with the most values are the default."""
    grids = Counter[str]()
    by_name: dict[str, list[Field]] = defaultdict(list)
    for field in fields:
        grids[field.step.grid] += field.points
        by_name[field.name].append(field)
    largest = grids.most_common(1)[0][0]
    infos = [_info(name, named, largest=largest) for name, named in by_name.items()]
    about = FeatureMetadata(description="ensemble member")
    member = VariableInfo(MEMBER, about, type="int", auxiliary=True)
    return [*infos, member] if len({field.step.member for field in fields}) > 1 else infos


def _scan(
    path: Path, fields: Sequence[Field], names: Sequence[str], *, eccodes: Any
) -> Iterator[pa.Table]:
    """The rows of each step that has a field of one of the names."""
    steps: dict[FieldStep, dict[str, Field]] = defaultdict(dict)
    for field in fields:
        if field.name in names:
            steps[field.step][field.name] = field
    points: dict[str, tuple[Floats, Floats]] = {}
    with path.open("rb") as file, library_errors(path, format="GRIB"):
        for step in sorted(steps):
            columns = _columns(file, step, steps[step], points=points, eccodes=eccodes)
            rows = len(columns["latitude"])
            yield pa.table({n: columns.get(n, pa.nulls(rows, pa.float64())) for n in names})


def _columns(
    file: BinaryIO,
    step: FieldStep,
    fields: AbstractMapping[str, Field],
    *,
    points: dict[str, tuple[Floats, Floats]],
    eccodes: Any,
) -> dict[str, pa.Array]:
    """The coordinates and fields of a step; `points` has those of the grids that were read."""
    path = Path(file.name)
    decoded: dict[str, Floats] = {}
    for place in dict.fromkeys(field.place for field in fields.values()):
        messages = read_fields(file, place)
        for name in (name for name, field in fields.items() if field.place == place):
            with open_fields(eccodes, messages[fields[name].number]) as handle:
                if step.grid not in points:
                    points[step.grid] = _points(eccodes, handle, path)
                decoded[name] = _values(eccodes, handle, path)
    latitude, longitude = points[step.grid]
    for name, values in decoded.items():
        if not len(values) == len(latitude) == len(longitude):
            raise InputError(
                f"expected a value of {name!r} for each of {len(latitude)} points in "
                f"{path}, got {len(values)}; check or replace it"
            )
    return {
        "latitude": pa.array(latitude),
        "longitude": pa.array(longitude),
        "time": pa.repeat(pa.scalar(step.valid_us, TIME_TYPE), len(latitude)),
        MEMBER: pa.repeat(pa.scalar(step.member, pa.int64()), len(latitude)),
        REFERENCE_TIME: pa.repeat(step.reference_us // MICROS, len(latitude)),
        LEAD_TIME: pa.repeat((step.valid_us - step.reference_us) / HOUR_US, len(latitude)),
        **{name: pa.array(values, from_pandas=True) for name, values in decoded.items()},
    }


def _info(name: str, fields: Sequence[Field], *, largest: str) -> VariableInfo:
    steps = len({field.step for field in fields})
    first = fields[0]
    return VariableInfo(
        name,
        first.about,
        type="float32",  # Fields are packed in at most 24 bits, or are 32-bit floats.
        dims=(f"step:{steps}", f"point:{first.points}"),
        aliases=first.aliases,
        default=any(field.step.grid == largest for field in fields),
    )


# --- decoding --------------------------------------------------------------------------------


def _points(eccodes: Any, handle: Any, path: Path) -> tuple[Floats, Floats]:
    """Latitudes and longitudes in degrees, in the order of ecCodes' point iterator."""
    try:
        return (
            _array(eccodes, handle, "latitudes", path),
            _array(eccodes, handle, "longitudes", path),
        )
    except eccodes.KeyValueNotFoundError as error:
        raise InputError(
            f"expected a grid whose places ecCodes knows in {path}, got one of type "
            f"{eccodes.codes_get(handle, 'gridType')}; interpolate it to another grid",
            expected="places",
        ) from error


def _values(eccodes: Any, handle: Any, path: Path) -> Floats:
    """Values in the order of `_points`, NaN where missing."""
    eccodes.codes_set(handle, "missingValue", MISSING_VALUE)
    if _in_point_order(eccodes, handle):
        values = _array(eccodes, handle, "values", path)
    else:
        values = _array(eccodes, handle, "latLonValues", path)[2::3]
    return np.where(values == MISSING_VALUE, np.nan, values)


def _array(eccodes: Any, handle: Any, key: str, path: Path) -> Floats:
    """The array of a key; refuses more values than a message can have."""
    values_max = POINTS_MAX * (3 if key == "latLonValues" else 1)
    size = eccodes.codes_get_size(handle, key)
    if size > values_max:
        raise InputError(
            f"expected at most {values_max:,} {key} in a GRIB message of {path}, got {size:,}; "
            "check or replace it",
            expected=key,
            bound=values_max,
        )
    values: Floats = eccodes.codes_get_array(handle, key)
    return values


def _in_point_order(eccodes: Any, handle: Any) -> bool:
    if eccodes.codes_get(handle, "gridType") in _UNPROJECTED:
        return True
    return all(
        not eccodes.codes_is_defined(handle, key) or eccodes.codes_get(handle, key) == usual
        for key, usual in _USUAL_SCAN.items()
    )
