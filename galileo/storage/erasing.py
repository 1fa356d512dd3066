"""Erasing: rows that later commits have removed lose their values, and their places stay.

A *blank* row keeps its number, so that sequences, ids and labels of all others stay. Its latitude
is NaN, which no observation has. A path of blank rows has no features and no place; in a dataset
without a key it has no rows either, and its bucket is before all times. So what removed the rows is
replayed over blank ones without effect, and no reader needs a second format. The header of a commit
says up to which commit its removed rows are blank, wherever it is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.model.schema import VERSION_SCHEMA
from galileo.model.sort_keys import differs
from galileo.model.times import TIME_MIN_US

LATITUDE, BUCKET = "latitude", "bucket"
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RemovedRows:
    """Rows of one partition that commits have removed; arrays of one length, by `sequence`.

    Attributes:
        until: no later commit has removed any of them.
        sequence: of the commit that stores them.
        row, rows: the first one, and how many; stretches may overlap.
        by: the commit that has removed them.
    """

    until: int
    sequence: Numbers
    row: Numbers
    rows: Numbers
    by: Numbers

    @classmethod
    def of(
        cls, until: int, *, sequence: Numbers, row: Numbers, rows: Numbers, by: Numbers
    ) -> RemovedRows:
        """Stretches in any order."""
        arrays = (sequence, row, rows, by)
        order = np.argsort(sequence, kind="stable")
        return cls(until, *(array[order].astype(np.int64) for array in arrays))

    def __len__(self) -> int:
        return len(self.sequence)

    def between(self, first: int, next_sequence: int) -> RemovedRows:
        """Those of some consecutive commits."""
        return self.take(slice(*np.searchsorted(self.sequence, [first, next_sequence]).tolist()))

    def take(self, rows: slice | Mask) -> RemovedRows:
        arrays = (self.sequence, self.row, self.rows, self.by)
        return RemovedRows(self.until, *(array[rows] for array in arrays))

    def count(self) -> int:
        """How many rows they are, each once."""
        start = (np.cumsum(differs(self.sequence)) << 32) + self.row
        order = np.argsort(start)
        start, stop = start[order], (start + self.rows)[order]
        before = np.append(0, np.maximum.accumulate(stop))[:-1]
        return int(np.maximum(stop - np.maximum(start, before), 0).sum())

    def mask(self, sequence: int, rows: int) -> Mask:
        """Which rows of a commit, which has so many, are removed."""
        part = self.between(sequence, sequence + 1)
        depth = np.zeros(rows + 1, dtype=np.int64)
        np.add.at(depth, np.minimum(part.row, rows), 1)
        np.add.at(depth, np.minimum(part.row + part.rows, rows), -1)
        mask: Mask = np.cumsum(depth[:-1]) > 0
        return mask


_NO_NUMBERS = np.zeros(0, dtype=np.int64)
NOTHING_REMOVED = RemovedRows(0, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What was erased.

    Attributes:
        files: that were rewritten.
        rows: that became blank.
        bytes: that are free now.
        is_over: whether nothing has ended it before its end.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0
    is_over: bool = True


def blank_observations(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """The observations of a commit, of which some become blank.

    `take` makes each column anew: what lies where a null is stays nowhere.
    """
    return _replaced(batch, mask, frozenset())


def blank_paths(paths: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """The paths of a commit, whose rows in the mask become blank."""
    if BUCKET not in paths.schema.names:  # Those of a table have no values.
        return paths
    row, rows = (paths.column(name).to_numpy() for name in ("row", "rows"))
    before = np.append(0, np.cumsum(mask))
    is_blank = (rows > 0) & (before[row + rows] - before[row] == rows)
    is_keyed = VERSION_SCHEMA.names[0] in paths.schema.names
    # What a key is looked for by stays, until its version is cleaned.
    kept = {"row", *VERSION_SCHEMA.names, *(["rows", BUCKET] if is_keyed else [])}
    return _replaced(paths, is_blank, frozenset(kept))


def _replaced(batch: pa.RecordBatch, mask: Mask, kept: frozenset[str]) -> pa.RecordBatch:
    if not mask.any():
        return batch
    places = pa.array(np.arange(len(batch)), mask=mask)
    columns = [
        column if field.name in kept else _blanked(column.take(places), field)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _blanked(column: pa.Array, field: pa.Field) -> pa.Array:
    if field.nullable:
        return column
    return pc.fill_null(column, pa.scalar(_blank_value(field), field.type))


def _blank_value(field: pa.Field) -> Any:
    if pa.types.is_floating(field.type):
        return float("nan")
    if pa.types.is_timestamp(field.type):
        return TIME_MIN_US if field.name == BUCKET else 0
    if pa.types.is_boolean(field.type):
        return False
    return "" if pa.types.is_string(field.type) else 0


def blank_rows(observations: pa.Table | pa.RecordBatch) -> Mask | None:
    """Which observations are blank; None if none is, or they are rows of a table."""
    at = observations.schema.get_field_index(LATITUDE)
    if at < 0 or observations.schema.field(at).nullable:
        return None
    is_blank: Mask = np.isnan(observations.column(at).to_numpy())
    return is_blank if is_blank.any() else None
