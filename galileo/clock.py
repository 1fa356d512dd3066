"""Wall and monotonic clock, passed to components so that tests and the simulator control time.

`run_queue_wait_s` measures waits for a processor, which limits of processor time must not count.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases. Used for timeouts."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump. Used for expirations and display."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def run_queue_wait_s(process: int | str = "self") -> float:
    """Seconds that the main thread of a process has waited for a processor; 0 if unknown.

    Source: /proc/PID/schedstat of Linux: nanoseconds run, nanoseconds waited, number of slices.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    return 0.0
