"""A clock for code that takes one as a function."""

from __future__ import annotations


class StoppedClock:
    """Seconds that stand still unless a test sets `now`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
