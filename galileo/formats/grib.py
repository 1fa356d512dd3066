"""GRIB files, editions 1 and 2, through ecCodes.

The file is scanned once for its fields, and then read step by step: a step has all fields of one
grid, reference time, valid time and ensemble member, and its points are rows. Each field is decoded
once, and one step at a time is in memory. No index file is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.grib_fields import POINTS_MAX, Field, Step, open_fields, scan
from galileo.formats.grib_split import read_fields
from galileo.formats.mapping import Mapping
from galileo.formats.reader import library_errors, table_of
from galileo.formats.variables import VariableInfo, format_names
from galileo.model.times import TIME_TYPE, micros
from galileo.optional_imports import library

MEMBER = "member"

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


def open_grib(path: Path, mapping: Mapping) -> GribReader:
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
    return GribReader(path, fields, others, constant, eccodes)


@dataclass(frozen=True, slots=True)
class GribReader:
    """A `Reader` of the fields of one file; `constant_us` is the time of all rows, if any."""

    path: Path
    fields: Sequence[Field]
    others: Sequence[str]
    constant_us: int | None
    eccodes: Any

    @property
    def rows(self) -> int:
        """Points of all steps, for any variables."""
        return sum({field.step: field.points for field in self.fields}.values())

    def variables(self) -> list[VariableInfo]:
        """All variables; those on the grid with the most values are the default."""
        grids = Counter[str]()
        by_name: dict[str, list[Field]] = defaultdict(list)
        for field in self.fields:
            grids[field.step.grid] += field.points
            by_name[field.variable.name].append(field)
        largest = grids.most_common(1)[0][0]
        infos = [_info(name, fields, largest=largest) for name, fields in by_name.items()]
        member = VariableInfo(MEMBER, description="ensemble member", type="int")
        members = {field.step.member for field in self.fields}
        return [*infos, member] if len(members) > 1 else infos

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        return []

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        steps: dict[Step, dict[str, Field]] = defaultdict(dict)
        for field in self.fields:
            if field.variable.name in names:
                steps[field.step][field.variable.name] = field
        points: dict[str, tuple[Floats, Floats]] = {}
        with self.path.open("rb") as file, library_errors(self.path, format="GRIB"):
            for step in sorted(steps):
                yield self._table(file, step, fields=steps[step], names=names, points=points)

    def _table(
        self,
        file: BinaryIO,
        step: Step,
        *,
        fields: AbstractMapping[str, Field],
        names: Sequence[str],
        points: dict[str, tuple[Floats, Floats]],
    ) -> pa.Table:
        decoded: dict[str, Floats] = {}
        for place in dict.fromkeys(field.place for field in fields.values()):
            messages = read_fields(file, place)
            for name in (name for name, field in fields.items() if field.place == place):
                with open_fields(self.eccodes, messages[fields[name].number]) as handle:
                    if step.grid not in points:
                        points[step.grid] = _points(self.eccodes, handle, self.path)
                    decoded[name] = _values(self.eccodes, handle, self.path)
        latitude, longitude = points[step.grid]
        for name, values in decoded.items():
            if not len(values) == len(latitude) == len(longitude):
                raise InputError(
                    f"expected a value of {name!r} for each of {len(latitude)} points in "
                    f"{self.path}, got {len(values)}; check or replace it"
                )
        time_us = step.valid_us if self.constant_us is None else self.constant_us
        coordinates = [
            pa.array(latitude),
            pa.array(longitude),
            pa.repeat(pa.scalar(time_us, TIME_TYPE), len(latitude)),
        ]
        columns = [_column(name, decoded, step=step, points=len(latitude)) for name in names]
        return table_of(coordinates, columns, names=names)


def _column(
    name: str, decoded: AbstractMapping[str, Floats], *, step: Step, points: int
) -> pa.Array:
    if name in decoded:
        return pa.array(decoded[name], from_pandas=True)
    if name == MEMBER:
        return pa.repeat(pa.scalar(step.member, pa.int64()), points)
    return pa.nulls(points, pa.float64())


def _info(name: str, fields: Sequence[Field], *, largest: str) -> VariableInfo:
    steps = len({field.step for field in fields})
    first = fields[0]
    return VariableInfo(
        name,
        units=first.units,
        dims=(f"step:{steps}", f"point:{first.points}"),
        description=first.description,
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
