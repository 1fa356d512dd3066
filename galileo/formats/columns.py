"""The columns of tables: those of place and time, and those that can be features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from galileo.arrays import plain_type
from galileo.errors import InputError
from galileo.formats.expressions import Expression, Name, parse
from galileo.formats.expressions import names as expression_names
from galileo.formats.mapping import Mapping
from galileo.formats.reader import NOWHERE, Coordinates, Reader, Scan
from galileo.formats.type_conversion import TIME_PARTS, feature_type, time_columns
from galileo.formats.variables import VariableInfo, format_names, unknown_name
from galileo.model.feature_metadata import from_field
from galileo.model.observations import is_text, text_bytes
from galileo.model.schema import COORDINATES
from galileo.model.times import micros

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
COORDINATE_UNITS = {
    "latitude": tuple(f"degree{s}{n}" for s in ("s_", "_", "s", "") for n in ("north", "n")),
    "longitude": tuple(f"degree{s}{e}" for s in ("s_", "_", "s", "") for e in ("east", "e")),
    "time": ("utc",),
}
"""Units that only a coordinate has, in lower case: of the CF conventions, and of ERDDAP."""
COLUMNS_MAX = 4096
"""Columns of a file. A dataset has at most 256 features."""
DECODED_BYTES_MAX = 256 << 20
"""Decoded texts of one column of a batch, in files with dictionaries."""
IDENTIFIER_ROWS_MIN = 20
IDENTIFIER_SHARE = 0.5


def typed_reader(
    schema: pa.Schema,
    scan: Scan,
    mapping: Mapping,
    *,
    rows: int | None = None,
) -> Reader:
    """A reader of a table whose columns have types."""
    where, others = coordinates_of(mapping, schema.names), other_columns(schema)
    return Reader(where, typed_variables(schema), rows, scan, others)


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
        return replace(NOWHERE, error=error)


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
            from_field(field),
            type=feature_type(field.type),
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
