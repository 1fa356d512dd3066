from __future__ import annotations

from running_clock import RunningClock
from stopped_clock import StoppedClock


def test_running_clock_stands_still_while_the_main_thread_waits_for_a_processor() -> None:
    now, waited = StoppedClock(), StoppedClock()
    clock = RunningClock(now, waited)
    now.now = 10.0
    assert clock.monotonic() == 10.0
    now.now, waited.now = 15.0, 4.0
    assert clock.monotonic() == 11.0


def test_running_clock_never_decreases_when_a_wait_is_counted_late() -> None:
    now, waited = StoppedClock(), StoppedClock()
    clock = RunningClock(now, waited)
    now.now = 10.0
    assert clock.monotonic() == 10.0
    now.now, waited.now = 11.0, 5.0
    assert clock.monotonic() == 10.0
