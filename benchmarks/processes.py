"""Memory and processor time of processes."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psutil

LOOK_S = 0.02


class Growth:
    """Looks at a process from time to time inside a `with` block.

    Attributes:
        start: resident bytes when the block began.
        peak: the most that was seen.
    """

    def __init__(self, pid: int | None) -> None:
        if pid is None:
            raise RuntimeError("expected a process that runs, got one that has ended")
        self._process = psutil.Process(pid)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.start = self.peak = self.now()

    @property
    def bytes(self) -> int:
        """At least one, so that it can be compared."""
        return max(self.peak - self.start, 1)

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def __enter__(self) -> Growth:
        self.start = self.peak = self.now()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join()
        self.peak = max(self.peak, self.now())

    def _look(self) -> None:
        while not self._ending.wait(LOOK_S):
            self.peak = max(self.peak, self.now())


def processor_seconds(pid: int) -> float:
    """Processor time of a process, its ended threads' too; psutil's is too coarse for what is idle.

    Linux has a clock of each process: its number inverted, eight times, and 2 for what the
    scheduler counted (clock_getcpuclockid(3)).

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError as error:
        raise ProcessLookupError(f"expected a process, there is none with number {pid}") from error
