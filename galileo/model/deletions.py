"""Deletions: commits after which some rows of earlier commits of their partition do not count.

Only datasets without a key have them; in a keyed dataset an observation deletes its key. A deletion
has no observations. It is written as paths, so that logs, copies, merges and backups have no second
format: `rows` is negative, `row` is the first row, and `cell` has the sequence of the commit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.hashing import rows_digest
from galileo.model.schema import Schema
from galileo.model.sort_keys import differs
from galileo.model.times import TIME_MIN_US, column_micros, times_from_micros

STRETCHES_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in [
            ("partition", pa.int32()),
            ("sequence", pa.int64()),
            ("row", pa.int32()),
            ("rows", pa.int32()),
        ]
    ]
)
"""What a deletion removes: `rows` rows of a commit from `row` on."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of rows of the commits of one partition; arrays of one length, as of the schema.

    They are disjoint, and in the order of `sequence` and `row`.
    """

    sequence: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, table: pa.Table) -> Stretches:
        """Stretches of one partition in any order, which may overlap; joined where they touch."""
        sequence, row, rows = (
            table.column(name).to_numpy().astype(np.int64) for name in STRETCHES_SCHEMA.names[1:]
        )
        if len(rows) and (int(rows.min()) < 1 or int(row.min()) < 0 or int(sequence.min()) < 1):
            raise InputError(
                "expected stretches of at least one row of a commit, got "
                f"{int(rows.min())} rows from row {int(row.min())} on",
                parameter="observations",
            )
        order = np.lexsort((row, sequence))
        sequence, row, stop = sequence[order], row[order], (row + rows)[order]
        is_first = differs(sequence)
        # Within a commit, the ends grow; commits are kept apart by an offset.
        offset = (np.cumsum(is_first) - 1) << 32
        stop = np.maximum.accumulate(stop + offset) - offset
        is_first[1:] |= row[1:] > stop[:-1]
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], len(row)) - 1
        return cls(sequence[first], row[first], (stop[last] - row[first])[: len(first)])

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: npt.NDArray[np.intp] | slice) -> Stretches:
        return Stretches(self.sequence[rows], self.row[rows], self.rows[rows])

    @property
    def count(self) -> int:
        """How many rows they have."""
        return int(self.rows.sum())

    def digest(self) -> int:
        """Of the stretches, by which a repeated deletion is recognised."""
        names = STRETCHES_SCHEMA.names[1:]
        return rows_digest(pa.table([self.sequence, self.row, self.rows], names=names))

    def to_paths(self, schema: Schema) -> pa.RecordBatch:
        """Paths of `schema.path_schema`, as they are stored."""
        known = {
            "cell": pa.array(self.sequence.astype(np.uint64)),
            "bucket": times_from_micros(np.full(len(self), TIME_MIN_US)),
            "row": pa.array(self.row.astype(np.int32)),
            "rows": pa.array(-self.rows.astype(np.int32)),
        }
        columns = [
            known[field.name] if field.name in known else pa.nulls(len(self), field.type)
            for field in schema.path_schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema.path_schema)

    @classmethod
    def from_paths(cls, paths: pa.RecordBatch) -> Stretches:
        """The inverse of `to_paths`."""
        sequence, row, rows = (
            paths.column(name).to_numpy().astype(np.int64) for name in ("cell", "row", "rows")
        )
        return cls(sequence, row, -rows)


def observed(paths: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Which of stored paths are of observations; None if all are.

    The others are of deletions, or their observations are erased (`galileo.storage.erasing`).
    """
    mask: npt.NDArray[np.bool_] = column_micros(paths.column("bucket")) > TIME_MIN_US
    return None if mask.all() else mask


def deletes(paths: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Which of stored paths are of a deletion; None if none is."""
    rows = paths.column("rows").to_numpy()
    return rows < 0 if len(rows) and rows.min() < 0 else None
