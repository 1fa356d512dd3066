"""Rows of CSV files that do not fit, which are kept aside."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.csv_options import CsvOptions

BAD_ROWS_MAX = 1000
"""Rows with a wrong value in a file; with more, the options are wrong rather than the rows."""


@dataclass(frozen=True, slots=True)
class Record:
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
        path: of the CSV file that gets them.
        records: reads the rows of the file one by one.
    """

    path: Path
    records: Callable[[], Iterator[Record]]
    mistakes: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: CsvOptions, records: Callable[[], Iterator[Record]]) -> BadRows | None:
        return None if options.bad_rows is None else cls(Path(options.bad_rows), records)

    def add(self, row: int, words: str) -> None:
        """Notes what is wrong with a row, whose fields are as many as in the header."""
        self.mistakes[row] = words
        if len(self.mistakes) > BAD_ROWS_MAX:
            raise InputError(
                f"expected at most {BAD_ROWS_MAX:,} rows with a wrong value, got more; the latest: "
                f"{words}",
                bound=BAD_ROWS_MAX,
            )

    def are_good(self, first_row: int, rows: int) -> pa.Array:
        """Which of some rows have no mistake."""
        good = np.ones(rows, dtype=bool)
        bad = [row - first_row for row in self.mistakes if first_row <= row < first_row + rows]
        good[bad] = False
        return pa.array(good)

    def write(self) -> list[str]:
        """Writes all bad rows of the file: line number, mistake and the row.

        Returns:
            A message about them, if there are any.
        """
        row = count = 0
        with self.path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("line", "mistake", "row"))
            for record in self.records():
                words = record.mistake or self.mistakes.get(row, "")
                row += not record.mistake
                if words:
                    count += 1
                    writer.writerow((record.line, words, record.text.rstrip("\r\n")))
        noun = "row was" if count == 1 else "rows were"
        return [f"{count:,} bad {noun} left out and written to {self.path}"] if count else []
