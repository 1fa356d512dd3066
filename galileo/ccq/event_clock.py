"""The event clock of a dataset: the start of the newest time bucket that was committed.

Nodes report with their commit sequences from which commit on they have which newest bucket. Such a
step is a fact about the log: it holds for every cursor at or past that commit, from any node and
however late. So the clock at a cursor is never ahead of the log; it is behind while steps are
unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from galileo.cursor import Cursor
from galileo.model.windows import ClockStep

STEPS_MAX = 256
"""Steps kept for each partition; cursors before the oldest one see no clock there."""


class EventClock:
    """The known steps of one dataset."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def observe(self, steps: Iterable[ClockStep]) -> bool:
        """Add steps; return whether one was new. Steps that come out of order are ignored."""
        is_new = False
        for step in steps:
            known = self._steps.setdefault(step.partition, [])
            if known and (step.sequence <= known[-1][0] or step.bucket_us <= known[-1][1]):
                continue
            known.append((step.sequence, step.bucket_us))
            del known[:-STEPS_MAX]
            is_new = True
        return is_new

    def at(self, cursor: Cursor) -> int | None:
        """The clock at `cursor` in microseconds; None while none is known."""
        buckets = (self._of(partition, sequence) for partition, sequence in cursor.items())
        return max((bucket_us for bucket_us in buckets if bucket_us is not None), default=None)

    def check(self) -> None:
        for known in self._steps.values():
            for (sequence, bucket_us), (later, newer) in pairwise(known):
                assert sequence < later, "steps out of order"
                assert bucket_us < newer, "a step without a newer bucket"

    def _of(self, partition: int, sequence: int) -> int | None:
        known = self._steps.get(partition, [])
        place = bisect_right(known, sequence, key=lambda step: step[0])
        return known[place - 1][1] if place else None
