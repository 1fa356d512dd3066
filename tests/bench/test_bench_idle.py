"""Processor time, as what an idle cluster costs is measured."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from benchmarks.idle import processor_seconds


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1_000))


def test_processor_time_of_ended_threads_still_counts():
    before = processor_seconds(os.getpid())
    for number in range(5):
        thread = threading.Thread(target=busy, args=(0.02,))
        thread.start()
        thread.join()
        assert processor_seconds(os.getpid()) - before >= 0.02 * (number + 1)
    assert processor_seconds(os.getpid()) <= time.process_time()


def test_a_process_that_has_ended_has_no_processor_time():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ProcessLookupError, match=str(ended.pid)):
        processor_seconds(ended.pid)
