"""A snapshot of the metadata graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.run_scan import CommitWindow, Coverage
from galileo.graph.sorted_runs import SortedRun
from galileo.query.columns import Mask

DROPPED_MAX = 0.25
"""Share of a run's paths that may be dropped before it is rewritten without them."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A snapshot of the graph.

    Attributes:
        runs: sealed, oldest first.
        memtable: a view of it.
        dropped: commits up to here are deleted, though their paths may still be stored.
    """

    runs: tuple[SortedRun, ...]
    memtable: SortedRun
    dropped: Cursor = EMPTY_CURSOR

    @property
    def parts(self) -> tuple[SortedRun, ...]:
        """Runs and memtable, without an empty memtable."""
        return (*self.runs, self.memtable) if len(self.memtable) else self.runs

    def parts_of(self, partitions: frozenset[int] | None) -> list[tuple[SortedRun, Mask | None]]:
        """Runs and memtable, each with a mask of its live commits in the partitions; None: all."""
        if partitions is None:
            return [(run, self.live_commits(run)) for run in self.parts]
        window = CommitWindow(self.dropped, None, partitions)
        return [(run, window.holds(run.commits)) for run in self.parts]

    def since(self, after: Cursor) -> Cursor:
        """The cursor, moved past deleted commits."""
        return after.join(self.dropped) if self.dropped else after

    def live_commits(self, run: SortedRun) -> Mask | None:
        """Mask of the commits of a run that were not deleted; None: all."""
        window = CommitWindow(self.dropped)
        if not self.dropped or window.coverage(run) is Coverage.ALL:
            return None
        return window.holds(run.commits)

    def needs_rewrite(self, run: SortedRun) -> bool:
        """Whether at least `DROPPED_MAX` of its paths are deleted."""
        live = self.live_commits(run)
        return live is not None and count_live(run, live) <= len(run) * (1 - DROPPED_MAX)

    def count(self) -> int:
        """Number of paths that are not deleted."""
        parts = [(run, self.live_commits(run)) for run in self.parts]
        return sum(len(run) if live is None else count_live(run, live) for run, live in parts)


def count_live(run: SortedRun, live: Mask) -> int:
    """Number of paths of a run whose commit is live."""
    return int(np.count_nonzero(live.take(run.paths.commit)))
