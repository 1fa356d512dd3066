"""Retries a call while a partition move propagates to all nodes."""

from __future__ import annotations

import asyncio
import time

from galileo.errors import PartitionMoved

MOVED_RETRY_TIMEOUT_S = 5.0
MOVED_PAUSE_S = 0.05


class RetryWhileMoving:
    """For one call that is told that a partition is not where it asked; it begins with that."""

    def __init__(self) -> None:
        self._deadline: float | None = None

    async def after(self, error: PartitionMoved) -> None:
        """Waits a moment.

        Raises:
            PartitionMoved: the error, when that has lasted too long.
        """
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + MOVED_RETRY_TIMEOUT_S
        if now > self._deadline:
            raise error
        await asyncio.sleep(MOVED_PAUSE_S)
