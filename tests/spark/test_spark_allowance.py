"""What counts as time that a sampler took, and what does not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from galileo.spark.allowance import WAITING_FACTOR, Allowance, TookTooLong, _Clocks

CHILD = """
import sys, time
from galileo.spark.allowance import Allowance
print("ready", flush=True)
with Allowance(0.2).running():
    time.sleep(0.4)  # Uses no processor, and is within the wider limit.
print("done", flush=True)
"""


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_a_process_that_was_stopped_is_not_charged_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        one.send_signal(signal.SIGSTOP)
        time.sleep(2 * WAITING_FACTOR * 0.2)
        one.send_signal(signal.SIGCONT)
        assert one.stdout.readline() == "done\n"
    assert one.returncode == 0


def test_what_computes_for_ever_is_ended_by_the_processors_time() -> None:
    started = time.process_time()
    told = pytest.raises(TookTooLong, match=r"more than 0\.2 s of the processor")
    with told, Allowance(0.2).running():
        burn(60.0)
    assert 0.2 < time.process_time() - started < 2.0


def test_what_waits_for_ever_is_ended_too() -> None:
    with pytest.raises(TookTooLong, match=r"not ended within 0\.5 s"), Allowance(0.1).running():
        time.sleep(60.0)


def test_what_hides_from_errors_is_told_again() -> None:
    told = []

    def hide() -> None:
        while len(told) < 2:
            try:
                burn(60.0)
            except TookTooLong as error:
                told.append(error)
        burn(60.0)

    with pytest.raises(TookTooLong), Allowance(0.04).running():
        hide()
    assert len(told) == 2


def test_several_calls_share_one_allowance() -> None:
    allowance = Allowance(0.3)
    for _ in range(2):
        with allowance.running():
            burn(0.12)
    with pytest.raises(TookTooLong), allowance.running():
        burn(0.25)


def test_other_alarms_stay_and_are_only_put_off() -> None:
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with Allowance(1.0).running():
        assert signal.getsignal(signal.SIGALRM) is not handler
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx(timer, abs=5)


def test_outside_the_main_thread_nothing_can_be_interrupted() -> None:
    done = []

    def wait() -> None:
        with Allowance(0.001).running():
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert done == [True]


def test_waiting_for_a_processor_does_not_count() -> None:
    """A host with a load of twenty would else fail what only computes."""
    allowance = Allowance(0.1)
    before = _Clocks(monotonic_s=0.0, used_s=0.0, run_queue_wait_s=0.0)
    for tenth in range(1, 100):
        now = _Clocks(monotonic_s=tenth / 10, used_s=tenth / 2_000, run_queue_wait_s=0.0995 * tenth)
        allowance._charge(before, now)
        before = now
    allowance._demand_some_left()
    allowance._charge(before, _Clocks(monotonic_s=200.0, used_s=0.2, run_queue_wait_s=10.0))
    with pytest.raises(TookTooLong, match="of the processor"):
        allowance._demand_some_left()
