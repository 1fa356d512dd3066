"""A clock for nodes that run in the process of a test, however busy the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from galileo.clock import run_queue_wait_s


class RunningClock:
    """Monotonic seconds in which the main thread did not wait for a processor.

    Nodes that beat every few milliseconds would otherwise take one another for dead whenever other
    processes have the processors, and do nothing but elect leaders. The wall clock is that of the
    system.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] = run_queue_wait_s,
    ) -> None:
        self._monotonic, self._waited = monotonic, waited
        self._latest = -float("inf")
        self._reading = threading.Lock()

    def monotonic(self) -> float:
        # A thread may read the clock while the main thread waits, which counts when that ends.
        with self._reading:
            self._latest = max(self._latest, self._monotonic() - self._waited())
            return self._latest

    def wall(self) -> float:
        return time.time()
