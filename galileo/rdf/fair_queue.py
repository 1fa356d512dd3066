"""A fair queue of queries: one runs at a time, clients of many hosts take turns.

A place is had from when a query is admitted until its answer is made. Where all are taken, one of
the host that has the most of them gives way to a host that has fewer, the latest of those that
wait. The next turn is that of the host whose last one is the longest ago, and within a host that of
its first query. So a host that asks without end waits for itself, and another for one query of it
at most.
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
    has_given_way: bool = False


class FairQueue:
    """Safe to use by all threads.

    Args:
        places_max: queries that run or wait.
    """

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._changed = threading.Condition()
        self._waiting: list[_Waiter] = []
        """In the order in which they came."""
        self._running: _Waiter | None = None
        self._count = 0
        self._last_turns: dict[str, int] = {}
        """Of hosts with a place: the number of their last turn."""

    def __len__(self) -> int:
        """Queries that run or wait."""
        return len(self._waiting) + (self._running is not None)

    @contextlib.contextmanager
    def acquire(self, host: str, *, until: float, cancel: Cancellation) -> Iterator[None]:
        """A turn, for the block.

        Args:
            host: of the client.
            until: when it has to be had, by the monotonic clock.
            cancel: ends the waiting.

        Raises:
            Overloaded: there was no place, or it was given to another host.
            DeadlineExceeded: the turn did not come.
            Cancelled: it was not wanted any more.
        """
        place = self._admit(host)
        try:
            with cancel.calling(self._wake):
                self._wait(place, until=until, cancel=cancel)
            yield
        finally:
            self._leave(place)

    def wait_until_empty(self, timeout_s: float) -> None:
        """Returns after that time at the latest."""
        with self._changed:
            self._changed.wait_for(lambda: not len(self), timeout_s)

    def _admit(self, host: str) -> _Waiter:
        with self._changed:
            place = _Waiter(host)
            if len(self) >= self._places_max:
                gone = self._select_victim(host)
                if gone is None:
                    raise _too_many(self._places_max)
                gone.has_given_way = True
                self._waiting.remove(gone)
                self._changed.notify_all()
            self._waiting.append(place)
            return place

    def _select_victim(self, host: str) -> _Waiter | None:
        """The latest query of the host with the most, if that has more than `host` will have."""
        counts = self._counts()
        behind = [one for one in reversed(self._waiting) if counts[one.host] > counts[host] + 1]
        return max(behind, key=lambda one: counts[one.host], default=None)

    def _counts(self) -> Counter[str]:
        running = [self._running] if self._running is not None else []
        return Counter(one.host for one in (*self._waiting, *running))

    def _wait(self, place: _Waiter, *, until: float, cancel: Cancellation) -> None:
        with self._changed:
            while not (self._running is None and self._next() is place):
                left_s = until - time.monotonic()
                if place.has_given_way:
                    raise _too_many(self._places_max)
                if cancel.cancelled:
                    raise Cancelled("the query was cancelled")
                if left_s <= 0:
                    raise DeadlineExceeded(
                        "others asked before, and the query's time was over when its turn came"
                    )
                self._changed.wait(left_s)
            self._waiting.remove(place)
            self._running = place
            self._count += 1
            self._last_turns[place.host] = self._count

    def _next(self) -> _Waiter | None:
        return min(self._waiting, key=lambda one: self._last_turns.get(one.host, 0), default=None)

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
    return Overloaded(f"{places_max} queries run or wait already; come back")
