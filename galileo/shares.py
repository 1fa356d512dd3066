"""Pools that callers share: bytes of requests, calls, readers, whatever a process has a bound of.

A principal may hold as much of a pool as is free. Alone it gets half of the pool, two principals
get a third each and n of them 1/(n + 1) each, so that there is always room for another one. All
callers of a host may hold `HOST_PART` times what is free. A part of the pool is kept for the
processes of the cluster, which have no such threshold. (A. K. Choudhury, E. L. Hahne: "Dynamic
queue length thresholds for shared-memory packet switches", 1998.) Calls that may not have more
wait; each caller has a queue, and callers take turns.

The room of a request grows as it arrives. Requests that have begun come before new ones of their
caller. If their callers' shares are used up by incomplete requests, none could end; therefore one
request at a time may exceed the share. While callers wait, requests that arrive too slowly are
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from galileo.errors import GalileoError, Overloaded

HOST_PART = 3
KEPT_PART = 8
"""Divisor of a pool: the part that is kept for the processes of the cluster."""
SLOW_AFTER_S = 10.0
SLOW_BYTES_PER_S = 1_000
"""A request that sends less than this for `SLOW_AFTER_S` is ended if others wait."""
LOOK_S = 1.0
RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class ShareHolder:
    """Who takes room.

    Attributes:
        host: its address.
        name: of the principal; "" without one. Such callers of a host have one share together.
        is_kept: whether it is a process of the cluster.
    """

    host: str
    name: str = ""
    is_kept: bool = False


_NOBODY = ShareHolder("")
SHARE_HOLDER: ContextVar[ShareHolder] = ContextVar("galileo_share_holder", default=_NOBODY)
"""Who sent the request that this task answers; the process itself if there is none."""


@dataclass(slots=True, eq=False)
class _Waiter:
    amount: int
    request: ArrivingRequest | None
    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(slots=True)
class _Queue:
    """The waiting calls of a caller: those whose request has begun to arrive, and new ones."""

    begun: deque[_Waiter] = field(default_factory=deque)
    new: deque[_Waiter] = field(default_factory=deque)

    def head(self) -> _Waiter | None:
        for waiters in (self.begun, self.new):
            while waiters:
                if not waiters[0].granted.done():
                    return waiters[0]
                waiters.popleft()
        return None


class Pool:
    """A pool with shares; belongs to one event loop.

    Args:
        most: what there is.
        kept: the part for processes of the cluster; by default an eighth.
        look_s: interval of `relieve`.
        monotonic: clock in seconds.

    Attributes:
        held: what callers hold.
    """

    def __init__(
        self,
        most: int,
        *,
        kept: int | None = None,
        look_s: float = LOOK_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.held = 0
        self.monotonic = monotonic
        self.arriving: dict[ArrivingRequest, None] = {}
        self.favoured: ArrivingRequest | None = None
        self._most = most
        self._limit = most - (most // KEPT_PART if kept is None else kept)
        self._look_s = look_s
        self._looked_at = -look_s
        self._names: dict[str, int] = {}
        self._hosts: dict[str, int] = {}
        self._queues: dict[ShareHolder, _Queue] = {}
        """In order of the next turn."""

    def take_now(self, caller: ShareHolder, amount: int = 1) -> bool:
        """Takes an amount if the caller may have it and none of its calls waits."""
        if caller in self._queues or not self._fits(caller, amount):
            return False
        self._add(caller, amount)
        return True

    async def take(
        self,
        caller: ShareHolder,
        amount: int = 1,
        *,
        within_s: float,
        request: ArrivingRequest | None = None,
    ) -> bool:
        """Takes an amount as soon as the caller may have it; returns False on a timeout.

        Args:
            caller: who takes it.
            amount: at most what the pool has.
            within_s: longest wait.
            request: which has begun to arrive and needs room for more.
        """
        if request is not None and request is self.favoured:
            self._add(caller, amount)
            return True
        if self.take_now(caller, amount):
            return True
        waiter, queue = _Waiter(amount, request), self._queues.setdefault(caller, _Queue())
        (queue.begun if request is not None else queue.new).append(waiter)
        self._grant()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while not waiter.granted.done():
                        await asyncio.wait([waiter.granted], timeout=self._look_s)
                        self._look()
            # Grant and timeout may coincide: the grant counts.
            return waiter.granted.done()
        except asyncio.CancelledError:
            if waiter.granted.done():
                self.give_back(caller, amount)
            raise
        finally:
            waiter.granted.cancel()
            self._grant()

    def give_back(self, caller: ShareHolder, amount: int = 1) -> None:
        self._add(caller, -amount)
        if self._queues:
            self._grant()

    def relieve(self) -> None:
        """Called at intervals while callers wait: ends requests that arrive too slowly."""
        now = self.monotonic()
        for request in [request for request in self.arriving if request.is_slow(now)]:
            request.expel(
                f"expected at least {SLOW_BYTES_PER_S:,} bytes a second of a request while others "
                f"wait for room, got less for {SLOW_AFTER_S:g} s; try again"
            )

    def _look(self) -> None:
        now = self.monotonic()
        if self._queues and now >= self._looked_at + self._look_s:
            self._looked_at = now
            self.relieve()

    def _fits(self, caller: ShareHolder, amount: int) -> bool:
        if caller.is_kept:
            return self.held + amount <= self._most
        free, at_host = self._limit - self.held, self._hosts.get(caller.host, 0) + amount
        if not caller.name:
            return at_host <= free
        at_name = self._names.get(caller.name, 0) + amount
        return amount <= free and at_name <= free and at_host <= HOST_PART * free

    def _add(self, caller: ShareHolder, amount: int) -> None:
        self.held += amount
        if caller.is_kept:
            return
        for counts, key in ((self._names, caller.name), (self._hosts, caller.host)):
            if left := counts.get(key, 0) + amount:
                counts[key] = left
            else:
                counts.pop(key, None)

    def _grant(self) -> None:
        """Grants what waits and may be had, in turns."""
        is_granted = True
        while is_granted:
            granted = [self._grant_head(caller) for caller in list(self._queues)]
            is_granted = any(granted) or self._favour()

    def _grant_head(self, caller: ShareHolder) -> bool:
        waiter = self._queues[caller].head()
        if waiter is None:
            del self._queues[caller]
            return False
        if not self._fits(caller, waiter.amount):
            return False
        self._grant_waiter(caller, waiter)
        return True

    def _favour(self) -> bool:
        """Lets a request exceed the share of its caller, if none does so already."""
        if self.favoured is None:
            for caller, queue in self._queues.items():
                if (waiter := queue.head()) is not None and waiter.request is not None:
                    self.favoured = waiter.request
                    self._grant_waiter(caller, waiter)
                    return True
        return False

    def _grant_waiter(self, caller: ShareHolder, waiter: _Waiter) -> None:
        self._add(caller, waiter.amount)
        waiter.granted.set_result(None)
        self._queues[caller] = self._queues.pop(caller)  # The others have the next turns.


class ArrivingRequest:
    """The room of one request, which grows as the request arrives.

    Args:
        pool: from which it takes room.
        caller: who sends it.
        end: ends the request with an error if it arrives too slowly.

    Attributes:
        size: bytes that have arrived.
    """

    def __init__(
        self, pool: Pool, caller: ShareHolder, *, end: Callable[[GalileoError], object]
    ) -> None:
        self.size = 0
        self._pool = pool
        self._caller = caller
        self._end = end
        self._held = 0
        self._since = pool.monotonic()
        self._size_then = 0

    async def reserve(self, size: int, *, within_s: float) -> None:
        """Takes room for the next bytes, so many at most.

        Raises:
            Overloaded: there was none in time.
        """
        lacking, began = self.size + size - self._held, self._pool.monotonic()
        if lacking > 0:
            self._pool.arriving.pop(self, None)
            begun = self if self.size else None
            if not await self._pool.take(self._caller, lacking, within_s=within_s, request=begun):
                raise Overloaded(
                    "the requests that arrive at the moment leave no room for another one; try "
                    "again shortly",
                    after_s=RETRY_AFTER_S,
                )
            self._held += lacking
            self._since += self._pool.monotonic() - began
        self._pool.arriving[self] = None

    def arrived(self, size: int) -> None:
        """Counts bytes; room for them was reserved."""
        self.size += size

    def complete(self) -> None:
        """Ends the arrival; keeps the room for what has arrived."""
        self._leave()
        self._held, spare = self.size, self._held - self.size
        self._pool.give_back(self._caller, spare)

    def release(self) -> None:
        """Gives all room back."""
        self._leave()
        self._held, held = 0, self._held
        self._pool.give_back(self._caller, held)

    def is_slow(self, now: float) -> bool:
        """Whether fewer bytes than expected arrived since it was last asked, `SLOW_AFTER_S` ago."""
        if now - self._since < SLOW_AFTER_S:
            return False
        is_slow = self.size - self._size_then < SLOW_AFTER_S * SLOW_BYTES_PER_S
        self._since, self._size_then = now, self.size
        return is_slow

    def expel(self, why: str) -> None:
        """Ends the request with an error."""
        self._leave()
        self._end(Overloaded(why, after_s=RETRY_AFTER_S))

    def _leave(self) -> None:
        self._pool.arriving.pop(self, None)
        if self._pool.favoured is self:
            self._pool.favoured = None
