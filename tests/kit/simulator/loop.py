"""Simulated time, the random generator, the trace and the counters of a run."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Callable
from random import Random

STRAGGLE_MAX_S = 1.5


class Violation(AssertionError):
    """A guarantee was broken."""


def demand(holds: bool, otherwise: str) -> None:
    """Raise a Violation unless the guarantee `holds`."""
    if not holds:
        raise Violation(otherwise)


class Loop:
    """Events in order of time, then of scheduling.

    Attributes:
        now: simulated seconds.
        random: the random generator of the world.
        counters: numbers of notable events.
        stragglers: share of the delays that are much longer than the others.
    """

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.counters: Counter[str] = Counter()
        self.stragglers = 0.03
        self.trace_hash = 0
        self._trace = trace
        self._count = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, action))

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    def note(self, text: str) -> None:
        """Add a line to the trace, whose hash identifies the run."""
        line = f"{self.now:.6f} {text}"
        self.trace_hash = zlib.crc32(line.encode(), self.trace_hash)
        if self._trace is not None:
            self._trace(line)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def delay(self, mean_s: float) -> float:
        """A latency: exponential, sometimes much longer."""
        slow = self.random.uniform(0.0, STRAGGLE_MAX_S) if self.chance(self.stragglers) else 0.0
        return self.random.expovariate(1.0 / mean_s) + slow
