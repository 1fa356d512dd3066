"""The metadata graph at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from galileo.cursor import ORIGIN, Cursor
from galileo.graph.runs import Run
from galileo.graph.scan import Coverage, Window
from galileo.query.columns import Mask

DROPPED_MAX = 0.25
"""Share of a run's paths that may be dropped before it is rewritten without them."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The graph at one moment.

    Attributes:
        runs: sealed, oldest first.
        head: a view of it.
        dropped: commits up to here do not count, though their paths may still be there.
    """

    runs: tuple[Run, ...]
    head: Run
    dropped: Cursor = ORIGIN

    @property
    def parts(self) -> tuple[Run, ...]:
        """Runs and head, without an empty head."""
        return (*self.runs, self.head) if len(self.head) else self.runs

    def parts_of(self, partitions: frozenset[int] | None) -> list[tuple[Run, Mask | None]]:
        """Runs and head, and which of their commits count; None: all of them."""
        if partitions is None:
            return [(run, self.held(run)) for run in self.parts]
        window = Window(self.dropped, None, partitions)
        return [(run, window.holds(run.commits)) for run in self.parts]

    def since(self, after: Cursor) -> Cursor:
        """The cursor, but not before what was dropped."""
        return after.join(self.dropped) if self.dropped else after

    def held(self, run: Run) -> Mask | None:
        """Which commits of a run were not dropped; None: all of them."""
        window = Window(self.dropped)
        if not self.dropped or window.coverage(run) is Coverage.ALL:
            return None
        return window.holds(run.commits)

    def wasteful(self, run: Run) -> bool:
        """Whether so much of it was dropped that it should be rewritten."""
        held = self.held(run)
        return held is not None and kept(run, held) <= len(run) * (1 - DROPPED_MAX)

    def count(self) -> int:
        """Number of paths that were not dropped."""
        parts = [(run, self.held(run)) for run in self.parts]
        return sum(len(run) if held is None else kept(run, held) for run, held in parts)


def kept(run: Run, held: Mask) -> int:
    """How many paths of a run are of commits that are held."""
    return int(np.count_nonzero(held.take(run.paths.commit)))
