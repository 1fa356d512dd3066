"""When a command that serves ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

PARENT_POLL_S = 0.5


async def await_stop(parent: int) -> None:
    """Waits for SIGINT or SIGTERM, or for the end of the parent process; 0: only for a signal."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    while not parent or os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PARENT_POLL_S if parent else None):
                await stop.wait()
                return
