"""A snapshot of the metadata graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.columns import Commits
from galileo.graph.deletion_vectors import DeletionFilter
from galileo.graph.row_ranges import Positions, Rows, count_rows, select_rows
from galileo.graph.run_scan import CommitWindow, Coverage
from galileo.graph.sorted_runs import SortedRun
from galileo.graph.versions import NEVER, CurrentPaths, VersionArrays, VersionFilter
from galileo.query.columns import Mask, take_rows

DROPPED_MAX = 0.25
"""Share of a run's paths that may be dropped before it is rewritten without them."""

CURRENT_GROWTH = 2
"""Readers look at most at so many times the paths of a run that are not superseded."""


@dataclass(frozen=True, slots=True, eq=False)
class LivePart:
    """A run or the memtable, and which of its paths live.

    Attributes:
        run: with all of its paths.
        commits: a mask of its live commits; None: all.
        versions: passes those that count; None: all.
    """

    run: SortedRun
    commits: Mask | None
    versions: VersionFilter | DeletionFilter | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the same paths of the run live in each snapshot that has it."""
        is_fixed = self.run.commits.first is None
        return is_fixed and (self.commits is None or bool(self.commits.all()))

    def masks(self, rows: Rows) -> list[Mask]:
        """Masks that live paths among some rows of the run all pass."""
        paths = self.run.paths
        masks = [] if self.commits is None else [self.commits.take(take_rows(paths.commit, rows))]
        if self.versions is not None:
            masks.append(self.versions.mask(paths, rows))
        return masks


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A snapshot of the graph.

    Attributes:
        runs: sealed, oldest first.
        memtable: a view of it.
        dropped: commits up to here are deleted, though their paths may still be stored.
        erased: what deletions up to here have removed is not there, though its paths may be.
        versions: of the paths of a keyed dataset; None of others.
        reached: the last commit of each partition of a keyed dataset. Later ones may already have
            marked what they supersede.
    """

    runs: tuple[SortedRun, ...]
    memtable: SortedRun
    dropped: Cursor = EMPTY_CURSOR
    erased: Cursor = EMPTY_CURSOR
    versions: VersionArrays | None = None
    reached: Cursor = EMPTY_CURSOR

    @property
    def parts(self) -> tuple[SortedRun, ...]:
        """Runs and memtable, without an empty memtable."""
        return (*self.runs, self.memtable) if len(self.memtable) else self.runs

    def parts_of(self, partitions: frozenset[int] | None) -> list[LivePart]:
        """Runs and memtable, with what lives of them in the partitions; None: in all."""
        window = CommitWindow(EMPTY_CURSOR, None, partitions)
        return [
            LivePart(run, self.live_commits(run))
            if partitions is None and not self.has_versions(run)
            else LivePart(run, *self.in_window(run, window))
            for run in self.parts
        ]

    def has_versions(self, run: SortedRun) -> bool:
        """Whether paths of live commits of a run may not count."""
        return self.versions is not None or run.deletions is not None

    def in_window(
        self, run: SortedRun, window: CommitWindow
    ) -> tuple[Mask, VersionFilter | DeletionFilter | None]:
        """The live commits of a run in a window, and what passes those of its paths that count.

        The latter is None where all do.
        """
        if self.versions is not None:
            if window.until is None:
                window = replace(window, until=self.reached)
            return window.versions_of(run, self.versions, dropped=self.dropped)
        return window.deletions_of(run, dropped=self.dropped, erased=self.erased)

    def since(self, after: Cursor) -> Cursor:
        """The cursor, moved past deleted commits."""
        return after.join(self.dropped) if self.dropped else after

    def sources(self, run: SortedRun, rows: Rows) -> Commits:
        """The partition of each row, and the commit since which the row counts."""
        numbers, commits = take_rows(run.paths.commit, rows), run.commits
        partition, sequence = commits.partition.take(numbers), commits.sequence.take(numbers)
        if self.versions is not None and commits.first is not None:
            sequence = self.versions.since.take(_places(run, rows))
        return Commits(partition, sequence)

    def live_commits(self, run: SortedRun) -> Mask | None:
        """Mask of the commits of a run that were not deleted; None: all."""
        window = CommitWindow(self.dropped)
        if not self.dropped or window.coverage(run) is Coverage.ALL:
            return None
        return window.holds(run.commits)

    def current_of(self, run: SortedRun) -> CurrentPaths | None:
        """The paths of a run that are not superseded, if readers look at too many others now."""
        assert self.versions is not None, "a keyed dataset"
        _, superseded_count = self.versions.of_commits(run.commits)
        count = len(run) - int(superseded_count.sum())
        rows = slice(0, len(run)) if run.current is None else run.current.position
        if CURRENT_GROWTH * count > count_rows(rows) or not count_rows(rows):
            return None
        superseded = self.versions.superseded.take(_places(run, rows))
        reached = self.reached.of(run.commits.partition).take(take_rows(run.paths.commit, rows))
        return CurrentPaths(select_rows(rows, superseded > reached), self.reached)

    def is_erased(self, run: SortedRun, which: str) -> Mask:
        """Where the commits of a run's deletions, `since` or `superseded`, are erased."""
        assert run.deletions is not None, "a run with deletions"
        commit = run.paths.commit.take(run.deletions.position)
        mask: Mask = getattr(run.deletions, which) <= self.erased.of(run.commits.partition[commit])
        return mask

    def erased_rows(self, run: SortedRun) -> Positions:
        """The paths of a run whose rows are all erased, or that shorter ones replace."""
        if run.deletions is None or not self.erased:
            return np.zeros(0, dtype=np.int64)
        return run.deletions.position[self.is_erased(run, "superseded")]

    def without_erased(self, run: SortedRun) -> SortedRun:
        """The run with paths that erased deletions have left as if there had been none."""
        if run.deletions is None or not self.erased:
            return run
        is_plain = (run.deletions.superseded == NEVER) & self.is_erased(run, "since")
        left = run.deletions.take(~is_plain)
        return replace(run, deletions=left if len(left) else None)

    def needs_rewrite(self, run: SortedRun) -> bool:
        """Whether at least `DROPPED_MAX` of its paths are deleted."""
        live, erased = self.live_commits(run), len(self.erased_rows(run))
        if live is None and not erased:
            return False
        left = len(run) if live is None else count_live(run, live)
        return left - erased <= len(run) * (1 - DROPPED_MAX)

    def count(self) -> int:
        """Number of paths that are not deleted."""
        parts = [(run, self.live_commits(run)) for run in self.parts]
        return sum(len(run) if live is None else count_live(run, live) for run, live in parts)


def _places(run: SortedRun, rows: Rows) -> npt.NDArray[np.int64]:
    """The places of the versions that rows of a run are."""
    assert run.commits.first is not None, "a run with versions"
    places: npt.NDArray[np.int64] = run.commits.first.take(take_rows(run.paths.commit, rows))
    places += take_rows(run.paths.row, rows)
    return places


def count_live(run: SortedRun, live: Mask) -> int:
    """Number of paths of a run whose commit is live."""
    return int(np.count_nonzero(live.take(run.paths.commit)))
