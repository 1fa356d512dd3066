"""Rows of CSV files that do not fit, which are kept aside."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from galileo.errors import InputError, InvalidObservations
from galileo.formats.csv_options import CsvOptions
from galileo.formats.expressions import FileColumns

Result = TypeVar("Result")

HEADER = ["file", "line", "mistake", "row"]
BAD_ROWS_MAX = 1000
"""Rows with a wrong value in a file; with more, the options are wrong rather than the rows."""

DIVIDED_ROWS = 256
"""Rows that are divided to find bad ones among them; of fewer, the bad ones are taken singly."""


@dataclass(frozen=True, slots=True)
class CsvRecord:
    """A row of a CSV file as it is written.

    Attributes:
        line: its number, from 1.
        fields: its fields.
        text: its bytes as a text.
        width: fields that the header has.
    """

    line: int
    fields: tuple[str, ...]
    text: str
    width: int

    @property
    def mistake(self) -> str:
        """What makes the row unreadable, whatever its columns mean; "" for nothing."""
        if len(self.fields) != self.width:
            return f"expected {self.width} fields, got {len(self.fields)}"
        return "expected text in UTF-8, got other bytes" if self.column >= 0 else ""

    @property
    def column(self) -> int:
        """Number of the field that is no text; -1 if there is none."""
        damaged = ("\N{REPLACEMENT CHARACTER}" in field for field in self.fields)
        return next((number for number, is_so in enumerate(damaged) if is_so), -1)


@dataclass(slots=True)
class BadRows:
    """Collects the rows of a pass over a file that have a wrong value.

    Args:
        path: of the CSV file that gets them; several files can share it.
        source: path of the file.
        records: reads the rows of the file one by one.

    Attributes:
        mistakes: what is wrong, by the number of the row.
        notes: a message about the bad rows of the latest pass, if there are any.
    """

    path: Path
    source: Path
    records: Callable[[], Iterator[CsvRecord]]
    mistakes: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, options: CsvOptions, source: Path, records: Callable[[], Iterator[CsvRecord]]
    ) -> BadRows | None:
        """None if a bad row is an error."""
        if options.bad_rows is None:
            return None
        collector = cls(Path(options.bad_rows), source, records)
        collector._of_other_files()  # So that it fails before anything is stored.
        return collector

    def add(self, row: int, words: str) -> None:
        """Notes what is wrong with a row, whose fields are as many as in the header."""
        self.mistakes[row] = words
        if len(self.mistakes) > BAD_ROWS_MAX:
            raise InputError(
                f"expected at most {BAD_ROWS_MAX:,} rows with a wrong value, got more; the latest: "
                f"{words}",
                bound=BAD_ROWS_MAX,
            )

    def evaluate(
        self, columns: FileColumns, evaluate: Callable[[FileColumns], Result], *, first_row: int
    ) -> Result:
        """What a function makes of the good ones of some rows; the bad ones are noted.

        Raises:
            InvalidObservations: every row is wrong, for example because a column has another type.
        """
        good = np.ones(columns.rows, dtype=bool)
        pending = [np.arange(columns.rows)]
        while pending:
            rows = pending.pop()
            try:
                result = evaluate(columns.take(rows))
            except InvalidObservations as error:
                row = error.details.get("row")
                if row is None:
                    raise
                if len(rows) > DIVIDED_ROWS:
                    pending += np.array_split(rows, 2)[::-1]
                else:
                    words = error.message.replace(f" in row {row}", "").partition("; ")[0]
                    self.add(first_row + int(rows[row]), words)
                    good[rows[row]] = False
                    pending.append(np.delete(rows, row))
        return result if len(rows) == columns.rows else evaluate(columns.take(np.flatnonzero(good)))

    def write(self) -> None:
        """Writes all bad rows of the file, and removes what an earlier pass wrote about it."""
        row, rows = 0, self._of_other_files()
        others = len(rows)
        for record in self.records():
            words = record.mistake or self.mistakes.get(row, "")
            row += not record.mistake
            if words:
                rows.append([str(self.source), str(record.line), words, record.text.rstrip("\r\n")])
        with self.path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([HEADER, *rows])
        count = len(rows) - others
        noun = "row was" if count == 1 else "rows were"
        words = f"{count:,} bad {noun} left out and written to {self.path}"
        self.notes = [words] * bool(count)

    def _of_other_files(self) -> list[list[str]]:
        """The bad rows of other files, which the file has already.

        Raises:
            InputError: it is no file of bad rows, and would be overwritten.
        """
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            header, *rows = [*csv.reader(file)] or [HEADER]
        if header != HEADER:
            raise InputError(
                f"expected no file, or one of bad rows, at {self.path}, got another; name another",
                option="bad_rows",
            )
        return [row for row in rows if row[0] != str(self.source)]
