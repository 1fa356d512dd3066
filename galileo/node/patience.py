"""Waiting for the news of a move: who has a partition now is known everywhere within moments."""

from __future__ import annotations

import asyncio
import time

from galileo.errors import PartitionMoved

MOVED_PATIENCE_S = 5.0
MOVED_PAUSE_S = 0.05


class Patience:
    """For one call that was told that a partition is not where it asked."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + MOVED_PATIENCE_S

    async def after(self, error: PartitionMoved) -> None:
        """Waits a moment.

        Raises:
            PartitionMoved: the error, when that has lasted too long.
        """
        if time.monotonic() > self._deadline:
            raise error
        await asyncio.sleep(MOVED_PAUSE_S)
