"""The metadata graph at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from galileo.cursor import ORIGIN, Cursor
from galileo.graph.run_scan import Coverage, Window
from galileo.graph.sorted_runs import SortedRun
from galileo.query.columns import Mask

DROPPED_MAX = 0.25
"""Share of a run's paths that may be dropped before it is rewritten without them."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The graph at one moment.

    Attributes:
        runs: sealed, oldest first.
        memtable: a view of it.
        dropped: commits up to here do not count, though their paths may still be there.
    """

    runs: tuple[SortedRun, ...]
    memtable: SortedRun
    dropped: Cursor = ORIGIN

    @property
    def parts(self) -> tuple[SortedRun, ...]:
        """Runs and memtable, without an empty memtable."""
        return (*self.runs, self.memtable) if len(self.memtable) else self.runs

    def parts_of(self, partitions: frozenset[int] | None) -> list[tuple[SortedRun, Mask | None]]:
        """Runs and memtable, and which of their commits count; None: all of them."""
        if partitions is None:
            return [(run, self.live_commits(run)) for run in self.parts]
        window = Window(self.dropped, None, partitions)
        return [(run, window.holds(run.commits)) for run in self.parts]

    def since(self, after: Cursor) -> Cursor:
        """The cursor, but not before what was dropped."""
        return after.join(self.dropped) if self.dropped else after

    def live_commits(self, run: SortedRun) -> Mask | None:
        """Which commits of a run were not dropped; None: all of them."""
        window = Window(self.dropped)
        if not self.dropped or window.coverage(run) is Coverage.ALL:
            return None
        return window.holds(run.commits)

    def needs_rewrite(self, run: SortedRun) -> bool:
        """Whether so much of it was dropped that it should be rewritten."""
        held = self.live_commits(run)
        return held is not None and count_live(run, held) <= len(run) * (1 - DROPPED_MAX)

    def count(self) -> int:
        """Number of paths that were not dropped."""
        parts = [(run, self.live_commits(run)) for run in self.parts]
        return sum(len(run) if held is None else count_live(run, held) for run, held in parts)


def count_live(run: SortedRun, held: Mask) -> int:
    """How many paths of a run are of commits that are held."""
    return int(np.count_nonzero(held.take(run.paths.commit)))
