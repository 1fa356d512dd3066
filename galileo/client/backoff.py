"""The waits between two attempts of a call: exponential backoff with jitter."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from galileo.errors import TransientError

PAUSE_S = 0.1
PAUSE_MAX_S = 1.0
"""First and longest wait if the node names none; each wait is twice the last."""
PAUSE_MIN_S = 0.05
"""Shortest wait if the node names one."""
SPREAD = 0.25
"""Jitter: a wait is longer by up to this share, or also shorter if the node named none, so that
clients that failed together do not retry together."""


@dataclass(frozen=True, slots=True)
class BackoffClock:
    """Clock, sleep and random numbers of the waits.

    Attributes:
        monotonic: seconds, of a clock that never jumps.
        sleep: waits for some seconds.
        random: a number in [0, 1), not of the global generator, which programs seed.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.Random().random


class Backoff:
    """The waits between the attempts of one call, up to a deadline.

    Args:
        timing: clock and sleep.
        patience_s: time to the deadline, from now.
    """

    def __init__(self, timing: BackoffClock, *, patience_s: float) -> None:
        self._timing = timing
        self._deadline = timing.monotonic() + patience_s
        self._next_s = PAUSE_S

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self._deadline - self._timing.monotonic())

    async def after(self, error: TransientError) -> None:
        """Waits as long as the error advises, or else by the backoff.

        Raises:
            TransientError: the error, if the wait would pass the deadline.
        """
        wait_s = self._wait_s(error)
        if self._timing.monotonic() + wait_s > self._deadline:
            raise error
        await self._timing.sleep(wait_s)

    def _wait_s(self, error: TransientError) -> float:
        advised, chance = error.details.get("after_s"), self._timing.random()
        if advised is not None:
            return max(float(advised), PAUSE_MIN_S) * (1 + SPREAD * chance)
        wait_s = self._next_s * (1 + SPREAD * (2 * chance - 1))
        self._next_s = min(2 * self._next_s, PAUSE_MAX_S)
        return wait_s
