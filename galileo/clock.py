"""The two clocks, handed in wherever time matters so that tests and the simulator own it.

And how long a process only waited for its turn, which no limit of time shall count.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
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


def run_queue_wait_s(process: int | str = "self") -> float:
    """How long the main thread of a process has waited for a processor; 0 where nobody says.

    Linux says: nanoseconds run, nanoseconds waited, and how often it ran.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    return 0.0
