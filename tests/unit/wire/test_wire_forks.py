"""Whether gRPC runs, by the names of the threads of a process."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from galileo.wire import forks

PR_SET_NAME = 15


@contextmanager
def thread_named(name: str) -> Iterator[None]:
    """A thread that the system knows by a name."""
    is_named, is_over = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
        is_named.set()
        is_over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    is_named.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have names for others on Linux")
@pytest.mark.parametrize(
    ("name", "is_of_grpc"),
    [("event_engine", True), ("grpc_shutdown", True), ("of a program", False)],
)
def test_grpc_runs_until_its_last_thread_has_ended(name: str, is_of_grpc: bool) -> None:
    """The thread that shuts it down is the last one, and holds its locks."""
    before = forks._has_threads()
    with thread_named(name):
        assert forks._has_threads() == (is_of_grpc or before)
