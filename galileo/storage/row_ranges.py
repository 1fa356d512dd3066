"""Rows of a commit by ranges, as labels name them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError

RowRanges: TypeAlias = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]
"""First rows and row counts, as the columns `row` and `rows` of labels have them."""


def take_rows(table: pa.Table, ranges: RowRanges) -> pa.Table:
    """The rows of all ranges, in their order; not copied where they are adjacent.

    Raises:
        InputError: a range is not within the table.
    """
    starts, counts = (np.asarray(numbers, dtype=np.int64) for numbers in ranges)
    outside = (starts < 0) | (counts < 0) | (starts + counts > table.num_rows)
    if starts.shape != counts.shape or outside.any():
        raise InputError(
            f"expected first rows and row counts, one for one, within {table.num_rows} rows, "
            f"got {starts.tolist()[:5]} … and {counts.tolist()[:5]} …"
        )
    starts, counts = _merge_adjacent(starts, counts)
    if len(starts) == 1:
        return table.slice(int(starts[0]), int(counts[0]))
    shifts = starts - np.append(0, np.cumsum(counts)[:-1])[: len(starts)]
    return table.take(pa.array(np.repeat(shifts, counts) + np.arange(counts.sum())))


def _merge_adjacent(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same rows in as few ranges as possible: adjacent ones become one."""
    if len(starts) == 0:
        return starts, counts
    ends = starts + counts
    first = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))
    last = np.append(first[1:] - 1, len(starts) - 1)
    return starts[first], ends[last] - starts[first]
