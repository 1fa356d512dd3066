"""The two clocks, handed in wherever time matters so that tests and the simulator own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back. Decides every timeout."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump. Only for expirations and for people."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
