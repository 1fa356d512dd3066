"""Files that are tables already: rows with columns for place, time and features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from galileo.errors import InputError, UnknownProperty
from galileo.formats.expressions import Columns, Expression, Name, parse
from galileo.formats.expressions import names as expression_names
from galileo.formats.mapping import Mapping
from galileo.formats.reader import table_of
from galileo.formats.type_conversion import (
    TIME_PARTS,
    feature_type,
    is_text,
    one_array,
    time_columns,
    times,
    without,
)
from galileo.formats.variables import VariableInfo, listed
from galileo.model.observations import text_bytes
from galileo.model.schema import COORDINATES, nearest_name
from galileo.model.times import TIME_TYPE, micros

USUAL_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "latitude": (("latitude",), ("lat",), ("y",)),
    "longitude": (("longitude",), ("lon", "long", "lng"), ("x",)),
    "time": (
        ("time",),
        ("datetime", "timestamp", "date_time"),
        ("valid_time",),
        ("valid",),
        ("date",),
    ),
}
"""Names of coordinates, in any case of letters; those of an earlier group come first."""
COLUMNS_MAX = 4096
"""Of a file. A dataset has at most 256 features, and every column of a file costs time."""
DECODED_BYTES_MAX = 256 << 20
"""Of the texts of one column and piece, where the file stores equal texts once."""
IDENTIFIER_ROWS_MIN = 20
IDENTIFIER_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where columns say where and when; `time` as in `Mapping`, empty if it is constant."""

    latitude: Expression
    longitude: Expression
    time: str
    constant_us: int | None

    @property
    def roles(self) -> dict[str, str]:
        """The columns, and the coordinate that each of them is for."""
        moments = time_columns(self.time) if self.time else ()
        return (
            dict.fromkeys(moments, "time")
            | dict.fromkeys(expression_names(self.longitude), "longitude")
            | dict.fromkeys(expression_names(self.latitude), "latitude")
        )


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """A `Reader` over anything that can be scanned by column names."""

    coordinates: Coordinates
    infos: tuple[VariableInfo, ...]
    rows: int | None
    scan: Callable[[Sequence[str]], Iterable[pa.Table]]
    mapping: Mapping

    def variables(self) -> Sequence[VariableInfo]:
        return [info for info in self.infos if info.name not in self.coordinates.roles]

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        roles = self.coordinates.roles
        return [replace(info, role=roles[info.name]) for info in self.infos if info.name in roles]

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        wanted = tuple(dict.fromkeys((*self.coordinates.roles, *names)))
        first_row = 0
        for table in self.scan(wanted):
            columns = {
                name: without(one_array(table.column(name)), self.mapping.sentinels(name))
                for name in wanted
            }
            rows = Columns(columns, rows=table.num_rows, first_row=first_row)
            place = _place(self.coordinates, rows)
            yield table_of(place, [columns[name] for name in names], names=names)
            first_row += table.num_rows


def _place(where: Coordinates, columns: Columns) -> list[pa.Array]:
    degrees = [columns.evaluate(one, "float") for one in (where.latitude, where.longitude)]
    if where.constant_us is not None:
        return [*degrees, pa.repeat(pa.scalar(where.constant_us, TIME_TYPE), columns.rows)]
    parts = [columns.arrays[name] for name in time_columns(where.time)]
    return [*degrees, times(parts, where.time, first_row=columns.first_row)]


def coordinates_of(mapping: Mapping, names: Sequence[str]) -> Coordinates:
    """The coordinate columns among `names`: those that are mapped, else the usual ones.

    Raises:
        InputError: one is missing, or several could be it; says how to map it.
    """
    constant = None if mapping.constant_time is None else micros(mapping.constant_time)
    return Coordinates(
        _degrees("latitude", mapping.latitude, names=names),
        _degrees("longitude", mapping.longitude, names=names),
        "" if constant is not None else _time(mapping.time, names),
        constant,
    )


def find_columns(names: Sequence[str], among: Sequence[str] = COORDINATES) -> dict[str, str]:
    """The columns that have a usual name of a coordinate, by coordinate.

    Raises:
        InputError: several could be the same one.
    """
    found = {coordinate: _usual(coordinate, names) for coordinate in among}
    return {coordinate: name for coordinate, name in found.items() if name is not None}


def _degrees(coordinate: str, source: str | None, *, names: Sequence[str]) -> Expression:
    if source is None:
        return Name(_usual(coordinate, names) or _absent(coordinate, names))
    if source in names:
        return Name(source)
    expression = parse(source)
    for name in expression_names(expression):
        _check_known(name, names)
    return expression


def _check_known(name: str, names: Sequence[str]) -> None:
    if name not in names:
        close = nearest_name(name, names)
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownProperty(
            f"there is no column {name!r}{hint} The columns are {listed(names)}",
            nearest=close,
        )


def _usual(coordinate: str, names: Sequence[str]) -> str | None:
    """The column with the best of the usual names; None where there is none."""
    for group in USUAL_NAMES[coordinate]:
        fitting = [name for name in names if name.lower() in group]
        exact = [name for name in fitting if name == coordinate]
        if len(fitting) > 1 and len(exact) != 1:
            raise InputError(
                f"several columns could be the {coordinate}: {listed(fitting)}; choose one with "
                f"{advice(coordinate, fitting[0])}"
            )
        if fitting:
            return (exact or fitting)[0]
    return None


def _absent(coordinate: str, names: Sequence[str]) -> NoReturn:
    usual = [name for group in USUAL_NAMES[coordinate] for name in group]
    constant = "@2012-03-01T06:00Z" if coordinate == "time" else "39.1"
    raise InputError(
        f"found no column for the {coordinate}, such as {', '.join(usual)}; name it with "
        f"{advice(coordinate, 'COLUMN')}, or give that of every row: {coordinate}={constant}. "
        f"The columns are {listed(names)}"
    )


def advice(coordinate: str, column: str) -> str:
    """How to say which column it is, on the command line and in Python."""
    return f"--map {coordinate}={column} (in Python mapping={{{coordinate!r}: {column!r}}})"


def _time(source: str | None, names: Sequence[str]) -> str:
    if source is not None:
        for name in time_columns(source):
            _check_known(name, names)
        return source
    found = _usual("time", names)
    parts = [name for name in names if name.lower() in TIME_PARTS]
    if found is None and "year" in {name.lower() for name in parts}:
        return ",".join(sorted(parts, key=lambda name: TIME_PARTS.index(name.lower())))
    return found or _absent("time", names)


def check_width(path: Path, columns: int) -> None:
    """Refuses a file of too many columns."""
    if columns > COLUMNS_MAX:
        raise InputError(
            f"expected at most {COLUMNS_MAX:,} columns in {path}, got {columns:,}; write those "
            "that you need to a file of their own, or make rows of the others"
        )


def check_decoded(path: Path, table: pa.Table) -> None:
    """Refuses dictionaries that a small file makes many bytes of, before they are decoded."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        size = sum(text_bytes(chunk) for chunk in column.chunks)
        if size > DECODED_BYTES_MAX:
            raise InputError(
                f"expected at most {DECODED_BYTES_MAX:,} bytes of texts in {table.num_rows:,} rows "
                f"of column {name!r} of {path}, got {size:,}; shorten the texts or leave them out"
            )


def typed_variables(schema: pa.Schema) -> tuple[VariableInfo, ...]:
    """The columns of a typed file that can be features or coordinates; lists cannot."""
    kinds = [(field.name, feature_type(field.type), field.type) for field in schema]
    return tuple(
        VariableInfo(name, type=kind, description=str(arrow_type))
        for name, kind, arrow_type in kinds
        if kind is not None
    )


def is_identifier(column: pa.Array) -> bool:
    """Whether nearly every row of a sample of texts has a value of its own."""
    if not is_text(column.type) or len(column) < IDENTIFIER_ROWS_MIN:
        return False
    present = len(column) - column.null_count
    return bool(present and len(column.drop_null().unique()) > IDENTIFIER_SHARE * present)
