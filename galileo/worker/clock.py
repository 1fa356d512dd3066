"""The clock of a worker."""

from __future__ import annotations

import asyncio


def now() -> float:
    """Seconds on the clock of the event loop, which never goes back."""
    return asyncio.get_running_loop().time()
