"""Half-open, sorted ranges of rows of a run, and positions in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.query.columns import Mask

Positions: TypeAlias = npt.NDArray[np.intp]
Rows: TypeAlias = slice | Positions
"""Rows of a run, ascending; a slice has no step."""

NO_ROWS = slice(0, 0)


def count_rows(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def slice_rows(rows: Rows, start: int, stop: int) -> Rows:
    """The rows from the `start`-th up to the `stop`-th."""
    if isinstance(rows, slice):
        return slice(rows.start + start, min(rows.start + stop, rows.stop))
    return rows[start:stop]


def select_rows(rows: Rows, mask: Mask) -> Positions:
    """The rows for which the mask is true."""
    if not isinstance(rows, slice):
        return rows.take(np.flatnonzero(mask))
    places = np.flatnonzero(mask)
    places += rows.start
    return places


def to_positions(rows: Rows) -> Positions:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def concat_small(pieces: Iterable[Rows], *, least: int) -> Iterator[Rows]:
    """The same rows in pieces of at least so many, except the last; none is empty."""
    small: list[Rows] = []
    count = 0
    for piece in pieces:
        if count_rows(piece):
            small.append(piece)
            count += count_rows(piece)
        if count >= least:
            yield concat_rows(small)
            small, count = [], 0
    if count:
        yield concat_rows(small)


def concat_rows(pieces: list[Rows]) -> Rows:
    """All rows of some pieces, at least one; a slice, if they are slices without gaps."""
    ends = [(one.start, one.stop) for one in pieces if isinstance(one, slice)]
    if len(ends) == len(pieces) and all(a[1] == b[0] for a, b in itertools.pairwise(ends)):
        return slice(ends[0][0], ends[-1][1])
    return pieces[0] if len(pieces) == 1 else np.concatenate([to_positions(p) for p in pieces])


@dataclass(frozen=True, slots=True, eq=False)
class RowRanges:
    """Half-open ranges of rows, sorted and disjoint."""

    start: Positions
    stop: Positions

    def clip(self, length: int) -> RowRanges:
        return RowRanges(self.start, np.minimum(self.stop, length))

    def intersection(self, other: RowRanges) -> RowRanges:
        """The rows in both."""
        first = np.searchsorted(other.stop, self.start, side="right")
        last = np.searchsorted(other.start, self.stop, side="left")
        counts = np.maximum(last - first, 0)
        mine, theirs = np.repeat(np.arange(len(counts)), counts), _ranges(first, counts)
        return RowRanges(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.stop[mine], other.stop[theirs]),
        )

    def rows(self) -> Rows:
        """The rows; a slice with a few more if that saves gathering most of them."""
        if len(self.start) == 0:
            return NO_ROWS
        hull = slice(int(self.start[0]), int(self.stop[-1]))
        sizes = self.stop - self.start
        return (
            hull if 2 * int(sizes.sum()) >= hull.stop - hull.start else _ranges(self.start, sizes)
        )


def _ranges(first: Positions, counts: Positions) -> Positions:
    """The concatenation of `arange(first, first + count)`."""
    ends = np.cumsum(counts)
    shifts = np.repeat(first - (ends - counts), counts)
    ranges: Positions = shifts + np.arange(len(shifts))
    return ranges
