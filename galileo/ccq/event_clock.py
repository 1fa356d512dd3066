"""The event clock of a dataset: the start of the newest time bucket that was committed.

Nodes tell, beside their commit sequences, up to which commit they hold which newest bucket. Each
such step is a fact about the log, whichever node reports it and however late: it holds for every
cursor that has come so far. So the clock at a cursor is never ahead of what the log holds up to
there; until the steps are known it may be behind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from galileo.cursor import Cursor
from galileo.model.windows import ClockStep

STEPS_MAX = 256
"""Kept for each partition; cursors that lie before the oldest one are far behind."""


class EventClock:
    """The steps of one dataset, as far as they were heard."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def observe(self, steps: Iterable[ClockStep]) -> bool:
        """Applies steps; returns whether one was new. A step that arrives out of order is not
        needed.
        """
        is_news = False
        for one in steps:
            known = self._steps.setdefault(one.partition, [])
            if known and (one.sequence <= known[-1][0] or one.bucket_us <= known[-1][1]):
                continue
            known.append((one.sequence, one.bucket_us))
            del known[:-STEPS_MAX]
            is_news = True
        return is_news

    def at(self, cursor: Cursor) -> int | None:
        """The clock of what is committed up to `cursor`, microseconds; None while none is known."""
        found = (self._of(partition, sequence) for partition, sequence in cursor.items())
        return max((bucket_us for bucket_us in found if bucket_us is not None), default=None)

    def check(self) -> None:
        for known in self._steps.values():
            for (sequence, bucket_us), (later, newer) in pairwise(known):
                assert sequence < later, "steps out of order"
                assert bucket_us < newer, "a step that is none"

    def _of(self, partition: int, sequence: int) -> int | None:
        known = self._steps.get(partition, [])
        place = bisect_right(known, sequence, key=lambda step: step[0])
        return known[place - 1][1] if place else None
