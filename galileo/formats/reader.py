"""What a file format makes of a file for `Source`: rows that are read by the names of columns."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as AbstractMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import pyarrow as pa

from galileo.errors import GalileoError, InputError, InvalidObservations
from galileo.formats.bad_rows import BadRows
from galileo.formats.csv_options import CsvOptions
from galileo.formats.expressions import Expression, FileColumns, Literal, names
from galileo.formats.mapping import Mapping
from galileo.formats.type_conversion import null_sentinels, one_array, time_columns, times
from galileo.formats.variables import VariableInfo
from galileo.model.feature_metadata import FeatureMetadata
from galileo.model.schema import COORDINATES
from galileo.model.times import TIME_TYPE

Result = TypeVar("Result")
Scan: TypeAlias = Callable[[Sequence[str]], Iterable[pa.Table]]
"""Tables of the columns of some names, in their order."""


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
            | dict.fromkeys(names(self.longitude), "longitude")
            | dict.fromkeys(names(self.latitude), "latitude")
        )

    def evaluate(self, columns: FileColumns) -> list[pa.Array]:
        """Latitude and longitude as doubles and time as `TIME_TYPE`, null where rows have none."""
        degrees = [columns.evaluate(e, "float") for e in (self.latitude, self.longitude)]
        if self.constant_us is not None:
            return [*degrees, pa.repeat(pa.scalar(self.constant_us, TIME_TYPE), columns.rows)]
        parts = [columns.arrays[name] for name in time_columns(self.time)]
        return [*degrees, times(parts, self.time, csv=columns.csv)]


NOWHERE = Coordinates(Literal(0.0), Literal(0.0), "", 0)
"""Coordinates of a file without rows, or without coordinates that are known."""


@dataclass(frozen=True, slots=True)
class Reader:
    """An open file. A pass reads each variable at most once, and rows in the same order.

    Attributes:
        coordinates: from which columns the coordinates of rows are made.
        infos: the variables, of coordinates too, in the order of the file; costly in CSV files.
        rows: their number, exact or estimated; None if unknown before reading.
        scan: tables of the columns of some names, in the types of the file.
        others: what of the file cannot be features, such as columns of lists, by name.
        csv: how a CSV file is written; None for others.
        names: of all columns, where `infos` are costly.
        units: of the columns, where `infos` are costly.
        missing: the values that mean a missing one in such a file, as in `Mapping`.
        partition: values of columns that are not in the file, but in the names of its directories.
        line_of: the line of a row, where rows have lines.
        bad_rows: collects rows with a mistake; None where a mistake is an error.
    """

    coordinates: Coordinates
    infos: Collection[VariableInfo]
    rows: int | None
    scan: Scan
    others: Sequence[str] = ()
    csv: CsvOptions | None = None
    names: tuple[str, ...] = ()
    units: AbstractMapping[str, str] = field(default_factory=dict)
    missing: tuple[tuple[str, str], ...] = ()
    partition: AbstractMapping[str, int | str | None] = field(default_factory=dict)
    line_of: Callable[[int], int] | None = None
    bad_rows: BadRows | None = None

    def named_variables(self) -> Sequence[VariableInfo]:
        """The variables, perhaps without their types: quick, and enough where types are known."""
        if not self.names:
            return self.variables()
        roles = self.coordinates.roles
        return [
            VariableInfo(name, FeatureMetadata(unit=self.units.get(name, "")))
            for name in self.names
            if name not in roles
        ]

    def variables(self) -> Sequence[VariableInfo]:
        """The variables of the file without coordinates, in the order of the file."""
        roles = self.coordinates.roles
        return [info for info in self.infos if info.name not in roles]

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        """The variables of the coordinates; none if the format defines coordinates itself."""
        roles = self.coordinates.roles
        return [replace(info, role=roles[info.name]) for info in self.infos if info.name in roles]

    def evaluate(
        self,
        names: Iterable[str],
        evaluate: Callable[[FileColumns], Result],
        missing: Mapping | None = None,
    ) -> Iterator[Result]:
        """What a function makes of the rows, a piece at a time.

        Bad rows are left out where `bad_rows` collects them.

        Args:
            names: of the columns that the function gets, beside those of the coordinates.
            evaluate: its errors have the `row` of the piece.
            missing: the sentinels, by the names of columns.

        Raises:
            InvalidObservations: the function raised it; names the row of the file, and its line.
        """
        wanted, first_row = tuple(dict.fromkeys((*self.coordinates.roles, *names))), 0
        known = Mapping(missing=self.missing + (missing.missing if missing else ()))
        sentinels = {name: known.sentinels(name) for name in wanted}
        if self.bad_rows is not None:
            self.bad_rows.mistakes.clear()
        for table in self.scan(wanted):
            arrays = {
                name: null_sentinels(one_array(table.column(name)), sentinels[name])
                for name in wanted
            }
            columns = FileColumns(arrays, table.num_rows, self.csv)
            try:
                if self.bad_rows is None:
                    result = evaluate(columns)
                else:
                    result = self.bad_rows.evaluate(columns, evaluate, first_row=first_row)
            except InvalidObservations as error:
                raise self._located(error, first_row) from error
            yield result
            first_row += table.num_rows
        if self.bad_rows is not None:
            self.bad_rows.write()

    def _located(self, error: InvalidObservations, first_row: int) -> InvalidObservations:
        """The error of a row of a piece, with the number of the row in the file or of its line."""
        place = error.details.get("row")
        if place is None:
            return error
        row = first_row + place
        line = self.line_of(row) if self.line_of is not None else 0
        shown = f"line {line}" if line else f"row {row}"
        words = error.message.replace(f" in row {place}", f" in {shown}")
        details = {**error.details, "row": row}
        if line:
            details["line"] = line
            if re.search(r"'[-+]?[0-9.]*,[0-9]+'", words):
                remedy = "csv_decimal"
            else:
                remedy = "csv_units" if row == 0 else ""
            details["remedy"] = f"{details.get('remedy', '')} {remedy}".strip()
        return type(error)(words, **details)


@contextmanager
def library_errors(name: object, *, format: str) -> Iterator[None]:
    """Turns what the libraries of a format raise about a file or Dataset into an InputError.

    An exception is a library's if the innermost frame of its traceback is not in this package.
    Others are mistakes of this package, and pass.
    """
    try:
        yield
    except (GalileoError, MemoryError):
        raise
    except Exception as error:
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if str(innermost.f_globals.get("__name__")).startswith("galileo."):
            raise
        notes = [note.partition("\n")[0] for note in getattr(error, "__notes__", ())]
        raise InputError(
            f"expected {name} to be readable {format}, got {type(error).__name__} of its library: "
            f"{'; '.join([str(error), *notes])}; correct or replace it",
            expected="whole_file",
            format=format,
        ) from error


def table_of(
    coordinates: Sequence[pa.Array], columns: Sequence[pa.Array], *, names: Sequence[str]
) -> pa.Table:
    """A table of coordinates and other columns."""
    return pa.table([*coordinates, *columns], names=[*COORDINATES, *names])
