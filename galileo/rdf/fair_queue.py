"""A fair queue of queries: one runs at a time, and hosts take turns.

A query has a place from its admission until its answer is complete. If all places are taken, a new
query replaces the latest waiting query of the host with the most places, if that host has more
than the new query's host will have. The next turn goes to the host whose last turn was the longest
ago, and within a host to its first query. So a host that sends many queries delays itself, and any
other host by at most one query.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from galileo.errors import Cancelled, DeadlineExceeded, GalileoError, Overloaded


@dataclass(slots=True, eq=False)
class _Waiter:
    host: str
    turn: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def fail(self, error: GalileoError) -> None:
        if not self.turn.done():
            self.turn.set_exception(error)


class FairQueue:
    """A queue of one event loop.

    Args:
        places_max: queries that run or wait.
    """

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._waiting: list[_Waiter] = []
        """In order of arrival."""
        self._running: _Waiter | None = None
        self._count = 0
        self._is_closed = False
        self._last_turns: dict[str, int] = {}
        """The number of the last turn of each host that has a place."""

    def __len__(self) -> int:
        """Queries that run or wait."""
        return len(self._waiting) + (self._running is not None)

    @contextlib.asynccontextmanager
    async def acquire(self, host: str, *, until: float) -> AsyncIterator[None]:
        """Waits for a turn and holds it for the block.

        Args:
            host: of the client.
            until: deadline for the turn, by the monotonic clock.

        Raises:
            Overloaded: there was no place, or another host got it.
            DeadlineExceeded: the turn did not come in time.
            Cancelled: the queue was closed.
        """
        place = self._admit(host)
        try:
            self._start_next()
            await _turn_of(place, until=until)
            yield
        finally:
            self._leave(place)

    def close(self) -> None:
        """Ends all waits, also later ones, with `Cancelled`."""
        self._is_closed = True
        for waiter in self._waiting:
            waiter.fail(_cancelled())

    def _admit(self, host: str) -> _Waiter:
        if self._is_closed:
            raise _cancelled()
        if len(self) >= self._places_max:
            victim = self._select_victim(host)
            if victim is None:
                raise _too_many(self._places_max)
            self._waiting.remove(victim)
            victim.fail(_too_many(self._places_max))
        place = _Waiter(host)
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

    def _start_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        place = min(self._waiting, key=lambda waiter: self._last_turns.get(waiter.host, 0))
        self._waiting.remove(place)
        self._running = place
        self._count += 1
        self._last_turns[place.host] = self._count
        if not place.turn.done():
            place.turn.set_result(None)

    def _leave(self, place: _Waiter) -> None:
        place.turn.cancel()
        if self._running is place:
            self._running = None
        elif place in self._waiting:
            self._waiting.remove(place)
        if not self._counts()[place.host]:
            self._last_turns.pop(place.host, None)
        self._start_next()


async def _turn_of(place: _Waiter, *, until: float) -> None:
    try:
        async with asyncio.timeout(until - time.monotonic()):
            await place.turn
    except TimeoutError as error:
        raise DeadlineExceeded(
            "the query waited for other queries longer than its time limit; try again"
        ) from error


def _cancelled() -> Cancelled:
    return Cancelled("the query was cancelled")


def _too_many(places_max: int) -> Overloaded:
    return Overloaded(
        f"{places_max} queries run or wait already; try again later", bound=places_max
    )
