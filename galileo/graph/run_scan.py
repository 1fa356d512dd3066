"""Scans: the paths of a run that match a query within a window of commits.

A run is pruned by its sequence bounds, its blocks by their zones and commits, and the rest by
binary search on the cell; what remains goes through the filter pipeline. Pruning only saves work:
every path in the result has passed the commit mask and every condition of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.geo.geohash import Cells
from galileo.geo.ranges import Ranges
from galileo.graph.columns import Commits, StringDictionary
from galileo.graph.deletion_vectors import DeletionFilter
from galileo.graph.filter_pipeline import (
    CHUNK_PATHS,
    PORTION_PATHS,
    SAMPLE_PATHS,
    CommitFilter,
    FilterPipeline,
    FilterStats,
    LeafEvaluator,
    PredicateFilter,
    chunks,
    row_filters,
    sample,
)
from galileo.graph.row_ranges import (
    NO_ROWS,
    Positions,
    RowRanges,
    Rows,
    concat_rows,
    concat_small,
    count_rows,
    to_positions,
)
from galileo.graph.sorted_runs import SortedRun
from galileo.graph.versions import NEVER, Choice, Sequences, VersionArrays, VersionFilter
from galileo.query.columns import Columns, Mask
from galileo.query.query import Query
from galileo.query.spatial_predicates import SpatialLeaf

Check: TypeAlias = Callable[[], None]
"""Called between portions of work; raises to cancel it."""


NEAR_SHARE = 4
"""Rows of a memtable are gathered by their cells if they are fewer than one in so many."""


class Coverage(Enum):
    """Which part of a run's commits lies in a window."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CommitWindow:
    """The commits after one cursor, up to and including another.

    Attributes:
        after: exclusive start.
        until: inclusive end; absent partitions are excluded. None: no end.
        partitions: the only ones included. None: all.
        choice: of the versions of a keyed dataset, or of what deletions have changed.
        at: for the choice.
    """

    after: Cursor = EMPTY_CURSOR
    until: Cursor | None = None
    partitions: frozenset[int] | None = None
    choice: Choice = Choice.CURRENT
    at: Cursor | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the choice has, of a dataset without a key, what commits of the window store."""
        return self.choice in (Choice.CURRENT, Choice.STORED)

    def holds(self, commits: Commits) -> Mask:
        """Which commits lie in the window."""
        return self._between(commits.partition, first=commits.sequence, last=commits.sequence)

    def coverage(self, run: SortedRun) -> Coverage:
        """Coverage of a run, by its sequence bounds; SOME may be returned for NONE."""
        if run.spans is None:
            held = self.holds(run.commits)
            return _coverage(possible=held, certain=held)
        partition, lo, hi = run.spans.partition, run.spans.lo, run.spans.hi
        return _coverage(
            possible=self._between(partition, first=hi, last=lo),
            certain=self._between(partition, first=lo, last=hi),
        )

    def versions_of(
        self, run: SortedRun, versions: VersionArrays, *, dropped: Cursor
    ) -> tuple[Mask, VersionFilter | None]:
        """The commits of a run that may have versions of this window, and what selects these.

        The latter is None where all versions of these commits are of this window.

        Args:
            run: of a keyed dataset.
            versions: of the run's graph.
            dropped: commits up to here are deleted.
        """
        commits, partition = run.commits, run.commits.partition
        assert commits.first is not None, "a run with versions"
        assert commits.copied is not None, "a run with versions"
        nothing = np.zeros(len(commits), dtype=np.int64)
        gone, after = dropped.of(partition), self.after.of(partition)
        assert self.until is not None, "the end of a snapshot, if no other"
        until = self.until.of(partition)
        at = until if self.at is None else self.at.of(partition)
        inside = commits.sequence > gone
        superseded: tuple[Sequences, Sequences | None]
        match self.choice:
            case Choice.STORED:
                inside &= (commits.sequence > after) & (commits.sequence <= until)
                since, superseded = (nothing, at), (at, None)
            case Choice.WITHDRAWN:
                since, superseded = (nothing, at), (at, until)
            case Choice.REPLACED:
                since, superseded = (after, until), (nothing, until)
            case Choice.CURRENT:
                since, superseded = (after, until), (at, None)
        inside &= commits.sequence > since[0]
        inside &= (commits.sequence <= since[1]) | commits.copied
        if self.partitions is not None:
            inside &= self._named(partition, self.partitions)
        current = None
        if superseded[1] is None:
            origin_max, superseded_count = versions.of_commits(commits)
            is_whole = (superseded_count == 0) & (commits.sequence <= since[1])
            is_whole &= ~commits.copied | ((since[0] == 0) & (origin_max <= gone))
            if is_whole[inside].all():
                return inside, None
            if run.current and (run.current.reached.of(partition) <= at)[inside].all():
                current = run.current
        has_copies = bool((commits.copied & inside).any())
        return inside, VersionFilter(
            versions, commits.first, since, superseded, gone, has_copies, current
        )

    def deletions_of(
        self, run: SortedRun, *, dropped: Cursor, erased: Cursor
    ) -> tuple[Mask, DeletionFilter | None]:
        """As `versions_of`, of a dataset without a key; None passes all paths of the commits.

        What deletions up to `erased` have removed counts at no commit.
        """
        commits, vector = run.commits, run.deletions
        inside = np.zeros(len(commits), dtype=np.bool_)
        if self.is_stored:
            inside = replace(self, after=self.after.join(dropped)).holds(commits)
        if vector is None:
            return inside, None
        commit = run.paths.commit[vector.position]
        sequence, partition = commits.sequence.take(commit), commits.partition.take(commit)
        after = self.after.of(partition)
        until = np.full(len(vector), NEVER - 1) if self.until is None else self.until.of(partition)
        passed, chosen = vector.choose(
            self.choice,
            commit,
            sequence=sequence,
            after=after,
            until=until,
            at=np.maximum(
                until if self.at is None else self.at.of(partition), erased.of(partition)
            ),
        )
        if not self.is_stored:
            inside[chosen] = True
            inside &= CommitWindow(dropped, None, self.partitions).holds(commits)
        return inside, passed

    def _between(
        self,
        partitions: npt.NDArray[np.int32],
        *,
        first: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> Mask:
        """Where `first` is past the start and `last` not past the end of a partition's window."""
        inside = self.after.past(partitions, first)
        if self.until is not None:
            inside &= ~self.until.past(partitions, last)
        if self.partitions is not None:
            inside &= self._named(partitions, self.partitions)
        return inside

    @staticmethod
    def _named(partitions: npt.NDArray[np.int32], names: frozenset[int]) -> Mask:
        if not names:
            return np.zeros(len(partitions), dtype=np.bool_)
        # What `np.isin` finds, at a fifth of its cost where there are few.
        named = np.array(sorted(names), dtype=np.int32)
        mask: Mask = named.take(np.searchsorted(named, partitions), mode="clip") == partitions
        return mask


def _coverage(*, possible: Mask, certain: Mask) -> Coverage:
    if not possible.any():
        return Coverage.NONE
    return Coverage.ALL if certain.all() else Coverage.SOME


@dataclass(frozen=True, slots=True, eq=False)
class BoundQuery:
    """A query, with what is common to all runs of one graph.

    Attributes:
        query: of the dataset.
        cells: ranges of cells outside of which nothing matches; None: no limit.
        filters: that a path must all pass.
        uses_zones: whether zones can exclude more than the ranges of cells.
    """

    query: Query
    cells: Ranges | None
    filters: tuple[PredicateFilter, ...]
    uses_zones: bool

    @classmethod
    def of(cls, query: Query, texts: StringDictionary) -> BoundQuery:
        filters = row_filters(query.tree, LeafEvaluator(texts))
        uses_zones = not isinstance(query.tree, SpatialLeaf)
        return cls(query, query.cell_ranges(), filters, uses_zones)


@dataclass(frozen=True, slots=True, eq=False)
class RunScan:
    """The remaining work in one run after pruning.

    Attributes:
        run: sealed or memtable.
        rows: rows that were not pruned.
        pipeline: for them.
        zones: entries of the run's zone map.
        zones_scanned: zones that may hold a match.
    """

    run: SortedRun
    rows: Rows
    pipeline: FilterPipeline
    zones: int
    zones_scanned: int

    @classmethod
    def of(
        cls,
        run: SortedRun,
        search: BoundQuery,
        *,
        commits: Mask | None,
        versions: VersionFilter | DeletionFilter | None = None,
    ) -> RunScan:
        """Prune the run.

        Args:
            run: sealed or memtable.
            search: of the run's graph.
            commits: mask of live commits of the run; None: all.
            versions: passes those that count; None: all.
        """
        blocks = _possible_blocks(run, search, commits)
        rows = _candidates(run, search, blocks)
        if isinstance(versions, VersionFilter) and versions.current is not None:
            rows = versions.current.among(rows)
        held = () if commits is None else (CommitFilter(commits),)
        counting = () if versions is None else (versions,)
        filters = (*held, *counting, *search.filters)
        pipeline = FilterPipeline.of(run.paths, filters, rows=rows)
        return cls(run, rows, pipeline, len(blocks), int(np.count_nonzero(blocks)))

    def portions(self, *, tally: FilterStats | None = None) -> Iterator[Rows]:
        """Matching rows, ascending, in portions that suit gathering; none is empty."""
        if not self.pipeline.filters:
            sifted: Iterator[Rows] = iter([self.rows])
        else:
            pieces = chunks(self.rows, CHUNK_PATHS)
            sifted = (self.pipeline.apply(chunk, tally=tally) for chunk in pieces)
        return concat_small(sifted, least=PORTION_PATHS)

    def pieces(self, most: int) -> Iterator[Rows | None]:
        """Matching rows, ascending, at most `most` at a time; None after each chunk in between.

        The caller gets control back after each chunk, however few rows match.
        """
        pending: list[Rows] = []
        count = 0
        for chunk in chunks(self.rows, CHUNK_PATHS):
            rows = self.pipeline.apply(chunk) if self.pipeline.filters else chunk
            for piece in chunks(rows, most):
                if count + count_rows(piece) > most:
                    yield concat_rows(pending)
                    pending, count = [], 0
                pending.append(piece)
                count += count_rows(piece)
            yield None
        if pending:
            yield concat_rows(pending)

    def estimate(self) -> int:
        """About how many rows match, by a sample; at most all that were not pruned."""
        count = count_rows(self.rows)
        if not self.pipeline.filters or count <= SAMPLE_PATHS:
            return count
        passed = self.pipeline.apply(sample(self.rows, SAMPLE_PATHS))
        return count * count_rows(passed) // SAMPLE_PATHS

    def matches(self) -> Positions:
        """All matching rows, ascending."""
        return np.concatenate([to_positions(NO_ROWS), *map(to_positions, self.portions())])


def _possible_blocks(run: SortedRun, search: BoundQuery, commits: Mask | None) -> Mask:
    """Mask of blocks that may hold a match; empty without a zone map."""
    zone_map = run.zone_map
    if zone_map is None:
        return np.zeros(0, dtype=np.bool_)
    if not search.uses_zones:
        possible = np.ones(len(zone_map.commit_lo), dtype=np.bool_)
    else:
        possible = search.query.may_match_zones(zone_map.zones)
    return possible if commits is None else possible & zone_map.may_hold(commits)


def _candidates(run: SortedRun, search: BoundQuery, blocks: Mask) -> Rows:
    if run.zone_map is None:
        return _rows_near(run.paths.columns.cell, search.cells)
    if blocks.all():
        if search.cells is None:
            return slice(0, len(run))
        return _ranges_of_cells(run.paths.columns, search.cells).rows()
    if not blocks.any():
        return NO_ROWS
    stretches = _ranges_of_blocks(blocks, run.zone_map.block_paths).clip(len(run))
    if search.cells is not None:
        stretches = stretches.intersection(_ranges_of_cells(run.paths.columns, search.cells))
    return stretches.rows()


def _rows_near(cells: Cells, ranges: Ranges | None) -> Rows:
    """The rows of unsorted cells between the first and the last range; all, unless they are few."""
    whole = slice(0, len(cells))
    if ranges is None:
        return whole
    starts, stops = ranges
    if len(starts) == 0:
        return NO_ROWS
    near = (cells >= starts[0]) & (cells < stops[-1])
    return np.flatnonzero(near) if NEAR_SHARE * np.count_nonzero(near) < len(cells) else whole


def _ranges_of_blocks(blocks: Mask, block_paths: int) -> RowRanges:
    edges = np.flatnonzero(blocks[1:] != blocks[:-1]) + 1
    starts, stops = [0] * int(blocks[0]), [len(blocks)] * int(blocks[-1])
    bounds = np.concatenate((starts, edges, stops), dtype=np.intp, casting="unsafe") * block_paths
    return RowRanges(bounds[::2], bounds[1::2])


def _ranges_of_cells(columns: Columns, ranges: Ranges) -> RowRanges:
    starts, stops = (np.searchsorted(columns.cell, edges) for edges in ranges)
    some = starts < stops
    return RowRanges(starts[some], stops[some])


def never_cancelled() -> None:
    """Never raise: the `Check` of work that is not cancelled."""


def scan_portions(
    tasks: Sequence[RunScan], *, check: Check = never_cancelled, tally: FilterStats | None = None
) -> Iterator[tuple[SortedRun, Rows]]:
    """Matching rows of scans, run by run, in portions that suit gathering."""
    for task in tasks:
        check()
        for rows in task.portions(tally=tally):
            check()
            yield task.run, rows
