"""A fair queue of queries: one runs at a time, and hosts take turns.

A query has a place from its admission until its answer is complete. If all places are taken, a new
query replaces the latest waiting query of the host with the most places, if that host has more
than the new query's host will have. The next turn goes to the host whose last turn was the longest
ago, and within a host to its first query. So a host that sends many queries delays itself, and any
other host by at most one query.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from galileo.errors import Cancelled, DeadlineExceeded, Overloaded
from galileo.rdf.cancellation import Cancellation


@dataclass(slots=True, eq=False)
class _Waiter:
    host: str
    is_evicted: bool = False


class FairQueue:
    """A thread-safe queue.

    Args:
        places_max: queries that run or wait.
    """

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._changed = threading.Condition()
        self._waiting: list[_Waiter] = []
        """In order of arrival."""
        self._running: _Waiter | None = None
        self._count = 0
        self._last_turns: dict[str, int] = {}
        """The number of the last turn of each host that has a place."""

    def __len__(self) -> int:
        """Queries that run or wait."""
        return len(self._waiting) + (self._running is not None)

    @contextlib.contextmanager
    def acquire(self, host: str, *, until: float, cancel: Cancellation) -> Iterator[None]:
        """Waits for a turn and holds it for the block.

        Args:
            host: of the client.
            until: deadline for the turn, by the monotonic clock.
            cancel: ends the wait.

        Raises:
            Overloaded: there was no place, or another host got it.
            DeadlineExceeded: the turn did not come in time.
            Cancelled: by `cancel`.
        """
        place = self._admit(host)
        try:
            with cancel.calling(self._wake):
                self._wait(place, until=until, cancel=cancel)
            yield
        finally:
            self._leave(place)

    def wait_until_empty(self, timeout_s: float) -> None:
        """Waits until no query runs or waits, or the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not len(self), timeout_s)

    def _admit(self, host: str) -> _Waiter:
        with self._changed:
            place = _Waiter(host)
            if len(self) >= self._places_max:
                victim = self._select_victim(host)
                if victim is None:
                    raise _too_many(self._places_max)
                victim.is_evicted = True
                self._waiting.remove(victim)
                self._changed.notify_all()
            self._waiting.append(place)
            return place

    def _select_victim(self, host: str) -> _Waiter | None:
        """The latest query of the host with the most, if that has more than `host` will have."""
        counts = self._counts()
        candidates = [w for w in reversed(self._waiting) if counts[w.host] > counts[host] + 1]
        return max(candidates, key=lambda waiter: counts[waiter.host], default=None)

    def _counts(self) -> Counter[str]:
        running = [self._running] if self._running is not None else []
        return Counter(waiter.host for waiter in (*self._waiting, *running))

    def _wait(self, place: _Waiter, *, until: float, cancel: Cancellation) -> None:
        with self._changed:
            while not (self._running is None and self._next() is place):
                left_s = until - time.monotonic()
                if place.is_evicted:
                    raise _too_many(self._places_max)
                if cancel.cancelled:
                    raise Cancelled("the query was cancelled")
                if left_s <= 0:
                    raise DeadlineExceeded(
                        "the query waited for other queries longer than its time limit; try again"
                    )
                self._changed.wait(left_s)
            self._waiting.remove(place)
            self._running = place
            self._count += 1
            self._last_turns[place.host] = self._count

    def _next(self) -> _Waiter | None:
        return min(self._waiting, key=lambda w: self._last_turns.get(w.host, 0), default=None)

    def _leave(self, place: _Waiter) -> None:
        with self._changed:
            if self._running is place:
                self._running = None
            elif place in self._waiting:
                self._waiting.remove(place)
            if not self._counts()[place.host]:
                self._last_turns.pop(place.host, None)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _too_many(places_max: int) -> Overloaded:
    return Overloaded(
        f"{places_max} queries run or wait already; try again later", bound=places_max
    )
