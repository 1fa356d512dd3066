"""Statistics of the fetches of a CCQ: how frequent they are, and when the next is expected.

A reader comes, fetches once or many times in a row, and is away again. Only times are looked at:
the rhythm is a guess that decides what waits on disk, never what is answered.
"""

from __future__ import annotations

from math import exp

LATELY_S = 300.0
"""Fetches count for less as they are older; after so long for 1/e of one."""
VISIT_PAUSE_S = 1.0
"""Fetches with longer pauses between them are visits of their own."""
NEWEST_WEIGHT = 0.5
"""Of the pause before the last visit, in the mean pause."""


class FetchStats:
    """The fetches of one CCQ at its coordinator.

    Attributes:
        last_at: of the last fetch; before the first one, when the coordinator began.
        pause_s: mean time between visits; None until there have been two.
    """

    __slots__ = ("_lately", "_visits", "last_at", "pause_s")

    def __init__(self, now: float) -> None:
        self.last_at = now
        self.pause_s: float | None = None
        self._lately = 0.0
        self._visits = 0

    def record_fetch(self, now: float) -> None:
        """A fetch has come."""
        pause_s = now - self.last_at
        self._lately = self.recent_fetch_rate(now) + 1.0
        self.last_at = now
        if self._visits and pause_s <= VISIT_PAUSE_S:
            return
        self._visits += 1
        if self._visits > 1:
            before_s = pause_s if self.pause_s is None else self.pause_s
            self.pause_s = before_s + NEWEST_WEIGHT * (pause_s - before_s)

    def recent_fetch_rate(self, now: float) -> float:
        """How many there were, the old ones counted for less."""
        return self._lately * exp((self.last_at - now) / LATELY_S)

    def next_expected_at(self, interval_s: float) -> float:
        """When the next visit is to be expected; readers of whom nothing is known come at each
        update interval.
        """
        return self.last_at + (interval_s if self.pause_s is None else self.pause_s)
