"""How long a sampler may take, whatever else the host has to do.

A wall clock runs on while a worker is stopped or waits for a processor, so a limit by it would
fail samplers that did nothing wrong. What counts is the processor's time that the process used.
For a sampler that waits and uses none there is a second, wider limit, on the time in which the
process could have run: a timer rings in short steps, and a ring counts for no more than one step
however late it comes, since those that a stopped process missed become one; and where the kernel
says so, what the process waited for a processor does not count.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from galileo.clock import run_queue_wait_s

WAITING_FACTOR = 5.0
"""How many times its processor time a sampler may be under way."""
_STEP_S = 0.1
_STEPS_MIN = 4


class TookTooLong(BaseException):
    """Not an Exception: a sampler that catches those must not catch this."""


class Allowance:
    """Time that is used up step by step, over several calls.

    Args:
        seconds: of the processor, for all threads of this process together.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step_s = min(_STEP_S, seconds / _STEPS_MIN)
        self._used_s = 0.0
        self._awake_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises `TookTooLong` in the block; only a main thread can be interrupted so.

        It is raised again at each further step, in case that someone catches it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = _Clocks.read()

        def ring(number: int, frame: FrameType | None) -> None:
            nonlocal before
            now = _Clocks.read()
            self._charge(before, now)
            before = now
            self._demand_some_left()

        with _ringing(ring, every_s=self._step_s):
            yield
        self._charge(before, _Clocks.read())

    def _charge(self, before: _Clocks, now: _Clocks) -> None:
        able_s = (now.monotonic_s - before.monotonic_s) - (
            now.run_queue_wait_s - before.run_queue_wait_s
        )
        self._awake_s += min(max(able_s, 0.0), self._step_s)
        self._used_s += now.used_s - before.used_s

    def _demand_some_left(self) -> None:
        waiting_s = WAITING_FACTOR * self._seconds
        if self._used_s > self._seconds:
            raise TookTooLong(f"it used more than {self._seconds:g} s of the processor")
        if self._awake_s > waiting_s:
            raise TookTooLong(f"it has not ended within {waiting_s:g} s")


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Times, in seconds.

    Attributes:
        monotonic_s: the clock.
        used_s: of the processor, by this process.
        run_queue_wait_s: that its main thread has waited for a processor; 0 where nobody says.
    """

    monotonic_s: float
    used_s: float
    run_queue_wait_s: float

    @staticmethod
    def read() -> _Clocks:
        return _Clocks(time.monotonic(), time.process_time(), run_queue_wait_s())


@contextmanager
def _ringing(ring: signal._HANDLER, *, every_s: float) -> Iterator[None]:
    """Calls the handler so often in the block; other alarms are put off until its end."""
    handler = signal.signal(signal.SIGALRM, ring)
    # What a library waits for in a system call goes on; only Python looks up.
    signal.siginterrupt(signal.SIGALRM, False)
    timer = signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        # Again, for the first one can be interrupted just before it takes effect.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
