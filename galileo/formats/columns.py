"""Files that are tables already: rows with columns for place, time and features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from galileo.errors import InputError, UnknownProperty
from galileo.formats.conversion import (
    TIME_PARTS,
    converted,
    feature_type,
    is_text,
    one_array,
    time_columns,
    times,
)
from galileo.formats.mapping import Mapping
from galileo.formats.reader import table_of
from galileo.formats.selection import VariableInfo
from galileo.model.observations import text_bytes
from galileo.model.schema import nearest_name
from galileo.model.times import TIME_TYPE, micros

LATITUDES = ("latitude", "lat", "y")
LONGITUDES = ("longitude", "lon", "long", "lng", "x")
TIMES = ("time", "datetime", "timestamp", "valid_time", "valid", "date_time", "date")
COLUMNS_MAX = 4096
"""Of a file. A dataset has at most 256 features, and every column of a file costs time."""
DECODED_BYTES_MAX = 256 << 20
"""Of the texts of one column and piece, where the file stores equal texts once."""
IDENTIFIER_ROWS_MIN = 20
IDENTIFIER_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The columns that say where and when; `time` as in `Mapping`, empty if it is constant."""

    latitude: str
    longitude: str
    time: str
    constant_us: int | None

    @property
    def columns(self) -> tuple[str, ...]:
        moments = time_columns(self.time) if self.time else ()
        return tuple(dict.fromkeys((self.latitude, self.longitude, *moments)))


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """A `Reader` over anything that can be scanned by column names."""

    coordinates: Coordinates
    infos: tuple[VariableInfo, ...]
    rows: int | None
    scan: Callable[[Sequence[str]], Iterable[pa.Table]]

    def variables(self) -> Sequence[VariableInfo]:
        return [info for info in self.infos if info.name not in self.coordinates.columns]

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        wanted = tuple(dict.fromkeys((*self.coordinates.columns, *names)))
        first_row = 0
        for table in self.scan(wanted):
            columns = {name: one_array(table.column(name)) for name in wanted}
            place = _place(self.coordinates, columns, rows=table.num_rows, first_row=first_row)
            yield table_of(place, [columns[name] for name in names], names=names)
            first_row += table.num_rows


def _place(
    where: Coordinates, columns: dict[str, pa.Array], *, rows: int, first_row: int
) -> list[pa.Array]:
    degrees = [
        converted(columns[name], "float", name=name, first_row=first_row)
        for name in (where.latitude, where.longitude)
    ]
    if where.constant_us is not None:
        return [*degrees, pa.repeat(pa.scalar(where.constant_us, TIME_TYPE), rows)]
    parts = [columns[name] for name in time_columns(where.time)]
    return [*degrees, times(parts, where.time, first_row=first_row)]


def coordinates_of(mapping: Mapping, names: Sequence[str]) -> Coordinates:
    """The coordinate columns among `names`: those that are mapped, else the usual ones.

    Raises:
        InputError: one is missing; says how to map it.
    """
    constant = None if mapping.constant_time is None else micros(mapping.constant_time)
    return Coordinates(
        _mapped(mapping.latitude, names) or _usual("latitude", LATITUDES, names=names),
        _mapped(mapping.longitude, names) or _usual("longitude", LONGITUDES, names=names),
        "" if constant is not None else _time(mapping.time, names),
        constant,
    )


def _mapped(name: str | None, names: Sequence[str]) -> str:
    if name is not None and name not in names:
        close = nearest_name(name, names)
        hint = f"; did you mean {close!r}?" if close else ""
        raise UnknownProperty(
            f"expected a column of {', '.join(names)}, got {name!r}{hint}", nearest=close
        )
    return name or ""


def _usual(coordinate: str, usual: Sequence[str], *, names: Sequence[str]) -> str:
    by_lower = {name.lower(): name for name in reversed(names)}
    found = next((by_lower[name] for name in usual if name in by_lower), None)
    if found is None:
        raise InputError(
            f"expected a column for the {coordinate}, such as {', '.join(usual)}, among "
            f"{', '.join(names)}; name it: {coordinate}=COLUMN"
        )
    return found


def _time(source: str | None, names: Sequence[str]) -> str:
    if source is not None:
        for name in time_columns(source):
            _mapped(name, names)
        return source
    lower = {name.lower() for name in names}
    if "year" in lower and not lower & set(TIMES):
        parts = [name for name in names if name.lower() in TIME_PARTS]
        return ",".join(sorted(parts, key=lambda name: TIME_PARTS.index(name.lower())))
    return _usual("time", TIMES, names=names)


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
