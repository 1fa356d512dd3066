"""Scans: which paths of a run match a query within a window of commits.

A run is ruled out by its spans, its blocks by their zones and commits, and narrowed by binary
search on the cell; what is left is evaluated vectorised. Pruning only ever saves work: every
path that counts has passed the commit mask and `Query.match_paths`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.cursor import ORIGIN, Cursor
from galileo.geo.ranges import Ranges
from galileo.graph.columns import Commits, Paths, Texts
from galileo.graph.runs import Run, Spans, ZoneMap, seal
from galileo.query.columns import Columns, Mask
from galileo.query.query import Query

Rows: TypeAlias = slice | npt.NDArray[np.intp]
Positions: TypeAlias = npt.NDArray[np.intp]

_NOTHING: Positions = np.empty(0, dtype=np.intp)


class Coverage(Enum):
    """How much of a run's commits lies in a window."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Window:
    """The commits after one cursor, up to and including another.

    Attributes:
        after: what is already done.
        until: the end; a partition that it does not name is left out. None: no end.
        partitions: the only ones looked at. None: all.
    """

    after: Cursor = ORIGIN
    until: Cursor | None = None
    partitions: frozenset[int] | None = None

    def holds(self, commits: Commits) -> Mask:
        """Which commits lie in the window."""
        inside = self._named(commits.partition) & self.after.past(
            commits.partition, commits.sequence
        )
        if self.until is not None:
            inside &= ~self.until.past(commits.partition, commits.sequence)
        return inside

    def coverage(self, run: Run) -> Coverage:
        """Costs one look per partition for a sealed run; SOME may be said of NONE."""
        if run.spans is None:
            held = self.holds(run.commits)
            return _coverage(possible=held, certain=held)
        first = Commits(run.spans.partition, run.spans.lo)
        last = Commits(run.spans.partition, run.spans.hi)
        certain = self.holds(first) & self.holds(last)
        return _coverage(possible=self._may_hold(run.spans), certain=certain)

    def _may_hold(self, spans: Spans) -> Mask:
        possible = self._named(spans.partition) & self.after.past(spans.partition, spans.hi)
        if self.until is not None:
            possible &= ~self.until.past(spans.partition, spans.lo)
        return possible

    def _named(self, partitions: npt.NDArray[np.int32]) -> Mask:
        if self.partitions is None:
            return np.ones(len(partitions), dtype=np.bool_)
        return np.isin(partitions, np.fromiter(self.partitions, dtype=np.int32))


def _coverage(*, possible: Mask, certain: Mask) -> Coverage:
    if not possible.any():
        return Coverage.NONE
    return Coverage.ALL if certain.all() else Coverage.SOME


@dataclass(frozen=True, slots=True)
class Search:
    """A query, with what of it is the same for all runs.

    Attributes:
        query: of the dataset.
        cells: ranges of cells outside of which nothing matches; None is no limit.
    """

    query: Query
    cells: Ranges | None

    @classmethod
    def of(cls, query: Query) -> Search:
        return cls(query, query.cell_ranges())

    def reads(self, columns: Columns) -> Columns:
        """Those of the columns that the query looks at."""
        named = {name: columns.features[name] for name in self.query.features}
        return Columns(columns.cell, columns.bucket, named)


def matches(run: Run, search: Search, *, commits: Mask | None, texts: Texts) -> Positions:
    """Positions of the paths of `run` that match, ascending.

    Args:
        run: sealed or head.
        search: of the run's dataset.
        commits: which of the run's commits count; None: all.
        texts: of the run's graph.
    """
    rows = _candidates(run, search, commits)
    if commits is not None:
        rows = _kept(rows, commits[run.paths.commit[rows]])
    columns = search.reads(run.paths.columns).take(rows)
    if len(columns) == 0:
        return _NOTHING
    return _kept(rows, search.query.match_paths(texts.bind(columns)))


def delta(run: Run, commits: Mask) -> Run | None:
    """The paths of the commits that are true in the mask as a sorted run; None without paths."""
    rows = np.flatnonzero(commits[run.paths.commit])
    if len(rows) == 0:
        return None
    paths = run.paths.take(rows)
    numbers = np.cumsum(commits, dtype=np.int32) - np.int32(1)
    renumbered = Paths(paths.columns, paths.row, paths.rows, numbers[paths.commit])
    kept = Commits(run.commits.partition[commits], run.commits.sequence[commits])
    return seal(renumbered, kept)


def _kept(rows: Rows, mask: Mask) -> Positions:
    kept: Positions = np.flatnonzero(mask) + rows.start if isinstance(rows, slice) else rows[mask]
    return kept


def _candidates(run: Run, search: Search, commits: Mask | None) -> Rows:
    if run.zone_map is None:
        return slice(0, len(run))
    stretches = _blocks(run.zone_map, search.query, commits).clipped(len(run))
    if search.cells is not None:
        stretches = stretches.intersection(_rows_of_cells(run.paths.columns, search.cells))
    return stretches.rows()


def _blocks(zone_map: ZoneMap, query: Query, commits: Mask | None) -> _Stretches:
    possible = query.might_match(zone_map.zones)
    if commits is not None:
        possible = possible & zone_map.may_hold(commits)
    edges = np.diff(possible.astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return _Stretches(starts * zone_map.block_paths, stops * zone_map.block_paths)


def _rows_of_cells(columns: Columns, ranges: Ranges) -> _Stretches:
    starts, stops = (np.searchsorted(columns.cell, edges) for edges in ranges)
    some = starts < stops
    return _Stretches(starts[some], stops[some])


@dataclass(frozen=True, slots=True, eq=False)
class _Stretches:
    """Half-open stretches of rows, sorted and disjoint."""

    start: Positions
    stop: Positions

    def clipped(self, length: int) -> _Stretches:
        return _Stretches(self.start, np.minimum(self.stop, length))

    def intersection(self, other: _Stretches) -> _Stretches:
        """What lies in both: each stretch against the ones of `other` that it meets."""
        first = np.searchsorted(other.stop, self.start, side="right")
        last = np.searchsorted(other.start, self.stop, side="left")
        counts = np.maximum(last - first, 0)
        mine, theirs = np.repeat(np.arange(len(counts)), counts), _ranges(first, counts)
        return _Stretches(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.stop[mine], other.stop[theirs]),
        )

    def rows(self) -> Rows:
        """Their rows; a slice with some more where that saves gathering most of them."""
        if len(self.start) == 0:
            return slice(0, 0)
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
