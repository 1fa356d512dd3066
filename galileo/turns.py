"""Fair turns: callers share a bounded number of concurrent tasks, such as SPARQL queries.

A free turn goes to the caller that asks. Otherwise callers wait, and a turn that ends goes to the
waiting caller whose turns will have taken the least time after one that is as long as its last one
(fair queueing by finish times, Demers et al. 1989). So a caller with short turns does not wait for
all the callers with long ones. A caller that comes begins with the time of the one that had the
last turn if its own is less, so that no caller saves up turns by staying away. A caller that asks
for much, or for what takes long, delays itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field

from galileo.errors import Cancelled, GalileoError, Overloaded

REMEMBERED_MAX = 10_000
"""Callers without a request whose time and last turn are remembered."""


@dataclass(slots=True)
class _Caller:
    """The time that the turns of a caller took until `at`, the running ones and the waits.

    Attributes:
        turn_s: length of its last turn.
    """

    used_s: float
    turn_s: float
    at: float
    running: int = 0
    last_turn: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def used_at(self, now: float) -> float:
        self.used_s += self.running * (now - self.at)
        self.at = now
        return self.used_s


class FairTurns:
    """Turns of one event loop.

    Args:
        turns_max: turns at a time.
        what: needs a turn, in the words of errors, such as "queries".
        first_turn_s: expected length of the first turn of a caller.
        waiting_max: requests that wait; beyond it, the latest of the caller with the most is
            refused.
        monotonic: clock in seconds.

    Attributes:
        running: the number of turns at present.
        waiting: the number of requests that wait.
    """

    def __init__(
        self,
        turns_max: int,
        *,
        what: str,
        first_turn_s: float = 0.0,
        waiting_max: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = self.waiting = 0
        self._turns_max, self._waiting_max, self._what = turns_max, waiting_max, what
        self._first_turn_s, self._monotonic = first_turn_s, monotonic
        self._virtual_s, self._turn = 0.0, 0
        self._callers: dict[Hashable, _Caller] = {}
        self._remembered = OrderedDict[Hashable, tuple[float, float]]()
        self._is_closed = False

    @property
    def callers(self) -> int:
        """The number of callers that have or want a turn."""
        return len(self._callers)

    @contextlib.asynccontextmanager
    async def acquire(self, caller: Hashable, *, within_s: float) -> AsyncIterator[None]:
        """Waits for a turn and holds it for the block.

        Raises:
            Overloaded: too many wait, or the turn did not come in time.
            Cancelled: the turns were closed.
        """
        if self._is_closed:
            raise _cancelled()
        turn = asyncio.get_running_loop().create_future()
        entry = self._entry(caller)
        entry.waiting.append(turn)
        self.waiting += 1
        self._grant()
        try:
            if not turn.done():
                self._refuse_latest(entry)
                await asyncio.wait([turn], timeout=within_s)
            if not turn.done():
                raise Overloaded(
                    f"no turn for {self._what} came within {within_s:.3g} s; try again"
                )
            turn.result()
            since = self._monotonic()
            try:
                yield
            finally:
                entry.turn_s = self._monotonic() - since
        finally:
            self._leave(caller, turn)

    def close(self) -> None:
        """Ends all waits, also later ones, with `Cancelled`."""
        self._is_closed = True
        for entry in self._callers.values():
            for turn in entry.waiting:
                _fail(turn, _cancelled())

    def _entry(self, caller: Hashable) -> _Caller:
        if caller not in self._callers:
            used_s, turn_s = self._remembered.pop(caller, (0.0, self._first_turn_s))
            used_s = max(used_s, self._virtual_s)
            self._callers[caller] = _Caller(used_s, turn_s, self._monotonic())
        return self._callers[caller]

    def _grant(self) -> None:
        while self.running < self._turns_max:
            now = self._monotonic()
            waiting = [entry for entry in self._callers.values() if entry.waiting]
            if not waiting:
                return
            entry = min(waiting, key=lambda one: (one.used_at(now) + one.turn_s, one.last_turn))
            turn = entry.waiting.pop(0)
            self.waiting -= 1
            self._turn += 1
            entry.last_turn, self._virtual_s = self._turn, max(self._virtual_s, entry.used_s)
            entry.running += 1
            self.running += 1
            if not turn.done():
                turn.set_result(None)

    def _leave(self, caller: Hashable, turn: asyncio.Future[None]) -> None:
        """Ends a wait or a turn."""
        entry = self._callers[caller]
        entry.used_at(self._monotonic())
        if turn in entry.waiting:
            entry.waiting.remove(turn)
            self.waiting -= 1
        else:
            entry.running -= 1
            self.running -= 1
        if not (entry.running or entry.waiting):
            del self._callers[caller]
            self._remembered[caller] = entry.used_s, entry.turn_s
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        self._grant()

    def _refuse_latest(self, newest: _Caller) -> None:
        """Keeps the number of requests that wait within its bound."""
        if self._waiting_max is None or self.waiting <= self._waiting_max:
            return
        most = max(self._callers.values(), key=lambda entry: len(entry.waiting))
        refused = most if len(most.waiting) > len(newest.waiting) else newest
        error = Overloaded(
            f"{self._waiting_max} {self._what} wait already; try again later",
            bound=self._waiting_max,
        )
        _fail(refused.waiting[-1], error)


def _fail(turn: asyncio.Future[None], error: GalileoError) -> None:
    if not turn.done():
        turn.set_exception(error)
        turn.exception()  # It is no bug that a task which is cancelled never asks for it.


def _cancelled() -> Cancelled:
    return Cancelled("the wait for a turn was cancelled")
