"""What counts as time that a sampler took, and what does not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from galileo.spark.cpu_time_limit import WAITING_FACTOR, CpuTimeLimit, TimeLimitExceeded, _Clocks

CHILD = """
import sys, time
from galileo.spark.cpu_time_limit import CpuTimeLimit
print("ready", flush=True)
with CpuTimeLimit(0.2).running():
    time.sleep(0.4)  # Uses no processor, and is within the wider limit.
print("done", flush=True)
"""


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.mark.slow
def test_cpu_time_limit_stopped_process_is_not_charged() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        one.send_signal(signal.SIGSTOP)
        time.sleep(2 * WAITING_FACTOR * 0.2)
        one.send_signal(signal.SIGCONT)
        assert one.stdout.readline() == "done\n"
    assert one.returncode == 0


def test_cpu_time_limit_endless_computation_is_interrupted() -> None:
    started = time.process_time()
    interrupted = pytest.raises(TimeLimitExceeded, match=r"more than 0\.2 s of the processor")
    with interrupted, CpuTimeLimit(0.2).running():
        burn(60.0)
    assert 0.2 < time.process_time() - started < 2.0


def test_cpu_time_limit_endless_wait_is_interrupted() -> None:
    with (
        pytest.raises(TimeLimitExceeded, match=r"not ended within 0\.5 s"),
        CpuTimeLimit(0.1).running(),
    ):
        time.sleep(60.0)


def test_cpu_time_limit_raises_again_if_caught() -> None:
    errors = []

    def hide() -> None:
        while len(errors) < 2:
            try:
                burn(60.0)
            except TimeLimitExceeded as error:
                errors.append(error)
        burn(60.0)

    with pytest.raises(TimeLimitExceeded), CpuTimeLimit(0.04).running():
        hide()
    assert len(errors) == 2


def test_cpu_time_limit_charges_once_where_the_timer_fires_while_it_reads_the_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a busy host, where to read a clock can take longer than a step."""
    read, depths, depth = _Clocks.read, [], 0

    def slow() -> _Clocks:
        nonlocal depth
        depth += 1
        depths.append(depth)
        burn(0.02)
        depth -= 1
        return read()

    monkeypatch.setattr(_Clocks, "read", slow)
    with pytest.raises(TimeLimitExceeded), CpuTimeLimit(0.04).running():
        burn(60.0)
    assert max(depths) == 1


def test_cpu_time_limit_is_shared_by_several_calls() -> None:
    allowance = CpuTimeLimit(0.3)
    for _ in range(2):
        with allowance.running():
            burn(0.12)
    with pytest.raises(TimeLimitExceeded), allowance.running():
        burn(0.25)


def test_cpu_time_limit_restores_other_alarms() -> None:
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with CpuTimeLimit(1.0).running():
        assert signal.getsignal(signal.SIGALRM) is not handler
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx(timer, abs=5)


def test_cpu_time_limit_other_thread_is_not_interrupted() -> None:
    done = []

    def wait() -> None:
        with CpuTimeLimit(0.001).running():
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert done == [True]


def test_cpu_time_limit_run_queue_wait_does_not_count() -> None:
    """A host with a load of twenty would else fail what only computes."""
    allowance = CpuTimeLimit(0.1)
    before = _Clocks(monotonic_s=0.0, used_s=0.0, run_queue_wait_s=0.0)
    for tenth in range(1, 100):
        now = _Clocks(monotonic_s=tenth / 10, used_s=tenth / 2_000, run_queue_wait_s=0.0995 * tenth)
        allowance._charge(before, now)
        before = now
    allowance._check()
    allowance._charge(before, _Clocks(monotonic_s=200.0, used_s=0.2, run_queue_wait_s=10.0))
    with pytest.raises(TimeLimitExceeded, match="of the processor"):
        allowance._check()
