"""A limit on the processor time of a sampler, which does not depend on the load of the host.

A limit on wall time would fail samplers while a worker is stopped or waits for a processor. So the
limit is on the processor time of the process. A sampler that waits and uses none has a second,
wider limit on the time in which the process could have run: a timer fires in short steps, and each
step counts as at most one step, however late it fires, since the steps that a stopped process
missed become one. Where the kernel reports it, the wait for a processor does not count.
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
"""The wider limit, as a multiple of the limit on processor time."""
_STEP_S = 0.1
_STEPS_MIN = 4


class TimeLimitExceeded(BaseException):
    """Not an Exception, so that a sampler that catches exceptions does not catch it."""


class CpuTimeLimit:
    """A limit for several calls together.

    Args:
        seconds: of the processor, for all threads of this process together.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step_s = min(_STEP_S, seconds / _STEPS_MIN)
        self._used_s = 0.0
        self._runnable_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises `TimeLimitExceeded` in the block, at each step beyond the limit.

        Works in the main thread only, since signals interrupt no other.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = _Clocks.read()
        is_charging = False

        def on_timer(number: int, frame: FrameType | None) -> None:
            nonlocal before, is_charging
            if is_charging:  # On a busy host the timer fires again meanwhile.
                return
            is_charging = True
            now = _Clocks.read()
            self._charge(before, now)
            before = now
            is_charging = False
            self._check()

        with _alarm_timer(on_timer, interval_s=self._step_s):
            yield
        self._charge(before, _Clocks.read())

    def _charge(self, before: _Clocks, now: _Clocks) -> None:
        able_s = (now.monotonic_s - before.monotonic_s) - (
            now.run_queue_wait_s - before.run_queue_wait_s
        )
        self._runnable_s += min(max(able_s, 0.0), self._step_s)
        self._used_s += now.used_s - before.used_s

    def _check(self) -> None:
        waiting_s = WAITING_FACTOR * self._seconds
        if self._used_s > self._seconds:
            raise TimeLimitExceeded(f"it used more than {self._seconds:g} s of the processor")
        if self._runnable_s > waiting_s:
            raise TimeLimitExceeded(f"it has not ended within {waiting_s:g} s")


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Times, in seconds.

    Attributes:
        monotonic_s: monotonic clock.
        used_s: processor time of this process.
        run_queue_wait_s: wait of the main thread for a processor; 0 if it is unknown.
    """

    monotonic_s: float
    used_s: float
    run_queue_wait_s: float

    @staticmethod
    def read() -> _Clocks:
        return _Clocks(time.monotonic(), time.process_time(), run_queue_wait_s())


@contextmanager
def _alarm_timer(handler: signal._HANDLER, *, interval_s: float) -> Iterator[None]:
    """Calls the handler at this interval in the block; restores the previous timer at its end."""
    previous_handler = signal.signal(signal.SIGALRM, handler)
    # System calls of libraries continue after the signal.
    signal.siginterrupt(signal.SIGALRM, False)
    previous_timer = signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        # Again, since the first call can be interrupted before it takes effect.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        signal.setitimer(signal.ITIMER_REAL, *previous_timer)
