"""Readers of tables: rows with columns for place, time and features."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import plain_type
from galileo.errors import InputError, InvalidObservations
from galileo.formats.bad_rows import BadRows
from galileo.formats.csv_options import CsvOptions
from galileo.formats.expressions import Columns, Expression, Literal, Name, parse
from galileo.formats.expressions import names as expression_names
from galileo.formats.mapping import Mapping
from galileo.formats.reader import table_of
from galileo.formats.type_conversion import (
    TIME_PARTS,
    feature_type,
    null_sentinels,
    one_array,
    time_columns,
    times,
)
from galileo.formats.variables import VariableInfo, format_names, unknown_name
from galileo.model.observations import is_text, text_bytes
from galileo.model.schema import COORDINATES
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
"""Column names of coordinates, in any case; earlier groups have priority."""
COLUMNS_MAX = 4096
"""Columns of a file. A dataset has at most 256 features."""
DECODED_BYTES_MAX = 256 << 20
"""Decoded texts of one column of a batch, in files with dictionaries."""
IDENTIFIER_ROWS_MIN = 20
IDENTIFIER_SHARE = 0.5

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The sources of coordinates; `time` as in `Mapping`, empty if it is constant.

    Attributes:
        error: says which of them is missing; None if none is.
    """

    latitude: Expression
    longitude: Expression
    time: str
    constant_us: int | None
    error: InputError | None = None

    @property
    def roles(self) -> dict[str, str]:
        """The coordinate of each column."""
        times = time_columns(self.time) if self.time else ()
        return (
            dict.fromkeys(times, "time")
            | dict.fromkeys(expression_names(self.longitude), "longitude")
            | dict.fromkeys(expression_names(self.latitude), "latitude")
        )


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """A `Reader` of a table that can be scanned by column names.

    Attributes:
        others: columns that cannot be features, such as lists.
        csv: how a CSV file is written; None for others.
        names: of all columns, where `infos` are costly.
        line_of: the line of a row, where rows have lines.
        bad_rows: collects rows with a mistake; None where a mistake is an error.
    """

    coordinates: Coordinates
    infos: Collection[VariableInfo]
    rows: int | None
    scan: Callable[[Sequence[str]], Iterable[pa.Table]]
    mapping: Mapping
    others: tuple[str, ...] = ()
    csv: CsvOptions | None = None
    names: tuple[str, ...] = ()
    line_of: Callable[[int], int] | None = None
    bad_rows: BadRows | None = None

    def named_variables(self) -> Sequence[VariableInfo]:
        """The variables, perhaps without their types: quick, and enough where types are known."""
        if not self.names:
            return self.variables()
        roles = self.coordinates.roles
        return [VariableInfo(name) for name in self.names if name not in roles]

    def variables(self) -> Sequence[VariableInfo]:
        return [info for info in self.infos if info.name not in self.coordinates.roles]

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        roles = self.coordinates.roles
        return [replace(info, role=roles[info.name]) for info in self.infos if info.name in roles]

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        if self.coordinates.error is not None:
            raise self.coordinates.error
        sources = tuple(dict.fromkeys((*self.coordinates.roles, *names)))
        first_row = 0
        if self.bad_rows is not None:
            self.bad_rows.mistakes.clear()
        for table in self.scan(sources):
            columns = {
                name: null_sentinels(one_array(table.column(name)), self.mapping.sentinels(name))
                for name in sources
            }
            rows = Columns(columns, table.num_rows, first_row, self.csv)
            coordinates = evaluate_rows(
                rows, partial(_evaluate_coordinates, self.coordinates), self.bad_rows
            )
            yield table_of(coordinates, [columns[name] for name in names], names=names)
            first_row += table.num_rows


def _evaluate_coordinates(where: Coordinates, columns: Columns) -> list[pa.Array]:
    degrees = [columns.evaluate(e, "float") for e in (where.latitude, where.longitude)]
    if where.constant_us is not None:
        return [*degrees, pa.repeat(pa.scalar(where.constant_us, TIME_TYPE), columns.rows)]
    parts = [columns.arrays[name] for name in time_columns(where.time)]
    return [*degrees, times(parts, where.time, first_row=columns.first_row, csv=columns.csv)]


def evaluate_rows(
    columns: Columns, evaluate: Callable[[Columns], Result], bad_rows: BadRows | None
) -> Result:
    """What `evaluate` makes of some rows; bad rows are noted, and null in all columns."""
    while True:
        try:
            return evaluate(columns)
        except InvalidObservations as error:
            row = error.details.get("row", -1) - columns.first_row
            if bad_rows is None or not 0 <= row < columns.rows:
                raise
            words = error.message.replace(f" in row {row + columns.first_row}", "")
            bad_rows.add(row + columns.first_row, words.partition("; ")[0])
            is_bad = np.arange(columns.rows) == row
            arrays = {
                name: pc.if_else(is_bad, pa.scalar(None, array.type), array)
                for name, array in columns.arrays.items()
            }
            columns = replace(columns, arrays=arrays)


def located(
    error: InvalidObservations, line_of: Callable[[int], int] | None
) -> InvalidObservations:
    """The error with the number of the line, if the rows of the file have lines."""
    row = error.details.get("row")
    if line_of is None or row is None or "line" in error.details:
        return error
    line = line_of(row)
    if not line:
        return error
    words = error.message.replace(f" in row {row}", f" in line {line}")
    details = {**error.details, "line": line}
    if re.search(r"'[-+]?[0-9.]*,[0-9]+'", words):
        remedy = "csv_decimal"
    else:
        remedy = "csv_units" if row == 0 else ""
    details["remedy"] = f"{details.get('remedy', '')} {remedy}".strip()
    return type(error)(words, **details)


def typed_reader(
    schema: pa.Schema,
    scan: Callable[[Sequence[str]], Iterable[pa.Table]],
    mapping: Mapping,
    *,
    rows: int | None = None,
) -> ColumnReader:
    """A reader of a table whose columns have types."""
    where, others = coordinates_of(mapping, schema.names), other_columns(schema)
    return ColumnReader(where, typed_variables(schema), rows, scan, mapping, others)


def empty_reader(mapping: Mapping) -> ColumnReader:
    """A reader of a file without rows, which therefore has no names of columns."""
    nowhere = Coordinates(Literal(0.0), Literal(0.0), "", 0)
    return ColumnReader(nowhere, (), 0, lambda columns: (), mapping)


def coordinates_of(mapping: Mapping, names: Sequence[str]) -> Coordinates:
    """The coordinate columns among `names`: those of the mapping, else those with usual names.

    If one is missing or ambiguous, the `error` says how to map it.
    """
    try:
        constant = None if mapping.constant_time is None else micros(mapping.constant_time)
        return Coordinates(
            _degrees("latitude", mapping.latitude, names=names),
            _degrees("longitude", mapping.longitude, names=names),
            "" if constant is not None else _time(mapping.time, names),
            constant,
        )
    except InputError as error:
        return Coordinates(Literal(0.0), Literal(0.0), "", 0, error)


def find_columns(names: Sequence[str], among: Sequence[str] = COORDINATES) -> dict[str, str]:
    """The columns with usual names of coordinates, by coordinate.

    Raises:
        InputError: several have a usual name of one coordinate.
    """
    columns = {coordinate: _usual(coordinate, names) for coordinate in among}
    return {coordinate: name for coordinate, name in columns.items() if name is not None}


def _degrees(coordinate: str, source: str | None, *, names: Sequence[str]) -> Expression:
    if source is None:
        return Name(_usual(coordinate, names) or _absent(coordinate, names))
    expression = Name(source) if source in names else parse(source)
    for name in expression_names(expression):
        _check_known(name, names)
    return expression


def _check_known(name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise unknown_name("column", name, names)
    if names.count(name) > 1:
        raise InputError(
            f"expected column {name!r} once, got it {names.count(name)} times; rename the others",
            expected="unique",
            column=name,
        )


def _usual(coordinate: str, names: Sequence[str]) -> str | None:
    """The column with a usual name of the first group; None if there is none."""
    for group in USUAL_NAMES[coordinate]:
        matching = [name for name in names if name.lower() in group]
        exact = [name for name in matching if name == coordinate]
        if len(matching) > 1 and len(exact) != 1:
            raise InputError(
                f"several columns could be the {coordinate}: {format_names(matching)}",
                remedy="one_column",
                expected="one_column",
                candidates=matching,
                column=coordinate,
            )
        if matching:
            return (exact or matching)[0]
    return None


def _absent(coordinate: str, names: Sequence[str]) -> NoReturn:
    usual = [name for group in USUAL_NAMES[coordinate] for name in group]
    raise InputError(
        f"found no column for the {coordinate}, such as {', '.join(usual)}, among the columns "
        f"{format_names(names)}",
        remedy="time" if coordinate == "time" else "degrees",
        expected="coordinate",
        column=coordinate,
    )


def _time(source: str | None, names: Sequence[str]) -> str:
    if source is not None:
        for name in time_columns(source):
            _check_known(name, names)
        return source
    column = _usual("time", names)
    parts = [name for name in names if name.lower() in TIME_PARTS]
    if column is None and "year" in {name.lower() for name in parts}:
        return ",".join(sorted(parts, key=lambda name: TIME_PARTS.index(name.lower())))
    return column or _absent("time", names)


def check_width(path: Path, columns: int) -> None:
    """Raises InputError if a file has too many columns."""
    if columns > COLUMNS_MAX:
        raise InputError(
            f"expected at most {COLUMNS_MAX:,} columns in {path}, got {columns:,}; write those "
            "that you need to another file, or turn columns into rows",
            expected="columns",
            bound=COLUMNS_MAX,
        )


def check_decoded(path: Path, table: pa.Table) -> None:
    """Raises InputError if decoding the dictionaries of a table needs too many bytes."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        size = sum(text_bytes(chunk) for chunk in column.chunks)
        if size > DECODED_BYTES_MAX:
            raise InputError(
                f"expected at most {DECODED_BYTES_MAX:,} bytes of texts in {table.num_rows:,} rows "
                f"of column {name!r} of {path}, got {size:,}; shorten the texts or leave them out",
                column=name,
                bound=DECODED_BYTES_MAX,
            )


def typed_variables(schema: pa.Schema) -> tuple[VariableInfo, ...]:
    """The columns of a typed table that can be features or coordinates, such as no lists."""
    others = other_columns(schema)
    return tuple(
        VariableInfo(
            field.name,
            type=feature_type(field.type),
            description=str(field.type),
            default=not pa.types.is_null(plain_type(field.type)),
        )
        for field in schema
        if field.name not in others
    )


def other_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The columns of a typed table that can be neither features nor empty ones."""
    return tuple(
        field.name
        for field in schema
        if feature_type(field.type) is None and not pa.types.is_null(plain_type(field.type))
    )


def is_identifier(column: pa.Array) -> bool:
    """Whether nearly all values of a sample of texts are distinct."""
    if not is_text(column.type) or len(column) < IDENTIFIER_ROWS_MIN:
        return False
    present = len(column) - column.null_count
    return bool(present and len(column.drop_null().unique()) > IDENTIFIER_SHARE * present)
