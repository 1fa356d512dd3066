"""Waiting for conditions that nothing announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_S = 300.0
PAUSE_S, PAUSE_MAX_S = 0.01, 0.25


def wait_until(
    condition: Callable[[], T],
    what: str = "the condition",
    *,
    timeout_s: float = TIMEOUT_S,
    despite: tuple[type[Exception], ...] = (),
) -> T:
    """What the condition gives, once that is true.

    Looks ever less often: looks ask nodes, which are busy with what is awaited.

    Args:
        despite: errors of the condition after which it is looked at again.

    Raises:
        TimeoutError: it never was; says `what`.
    """
    deadline, pause_s = time.monotonic() + timeout_s, PAUSE_S
    while True:
        try:
            if value := condition():
                return value
        except despite:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


async def until(
    condition: Callable[[], T],
    *,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = 0.005,
    between: Callable[[], object] = lambda: None,
) -> T:
    """What the condition gives, once that is true; calls `between` before each other look.

    Raises:
        TimeoutError: it never was.
    """
    async with asyncio.timeout(timeout_s):
        while not (value := condition()):
            between()
            await asyncio.sleep(pause_s)
        return value
