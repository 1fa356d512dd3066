"""Refuses gRPC in a process that was forked while gRPC ran, and keeps every other fork safe.

The threads of gRPC do not exist in a forked process, but their locks stay locked there. A channel
that is opened, used or released in it hangs or crashes the process, and gRPC's own support for
forks does not prevent that with several threads. Therefore gRPC is not touched there. It works if
it was not running at the fork, because it was never used or all channels were closed.

`galileo/__init__.py` turns off gRPC's handlers of forks, which crash now and then before the child
has run any code of its own, such as that of `subprocess.Popen(preexec_fn=...)`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from galileo.errors import InputError

FORKED = (
    "this process was forked while a client had connections, and gRPC does not work in such a "
    "process; connect only after the fork, close all clients before it, or start processes with "
    'multiprocessing.get_context("spawn") or "forkserver"'
)
THREADS = frozenset({"event_engine", "grpc_global_tim", "grpc_shutdown", "lifeguard"})
"""Names of threads that run while gRPC does, and until it has ended."""
SHUTDOWN_S = 0.5
"""Longest time until they end after the last channel was closed."""
_TASKS = Path("/proc/self/task")

Channel = TypeVar("Channel")


class _Process:
    """The fork state of this process."""

    def __init__(self) -> None:
        # Held during a fork, so that no other thread opens a channel meanwhile.
        self.lock = threading.RLock()
        self.channels: weakref.WeakSet[Any] = weakref.WeakSet()
        self.has_connected = False
        self.runs_grpc = False
        self.is_cut_off = False

    def before_fork(self) -> None:
        self.lock.acquire()
        self.runs_grpc = self._runs_grpc()

    def _runs_grpc(self) -> bool:
        if not _TASKS.is_dir():
            return self.has_connected
        deadline = time.monotonic() + SHUTDOWN_S
        while _has_threads():
            if self.channels or time.monotonic() > deadline:
                return True
            time.sleep(0.001)
        return False

    def after_in_child(self) -> None:
        self.is_cut_off = self.is_cut_off or self.runs_grpc
        if self.is_cut_off:
            for channel in self.channels:
                # Never released: that would wait for a thread that does not exist.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
        self.lock.release()


_PROCESS = _Process()
os.register_at_fork(
    before=_PROCESS.before_fork,
    after_in_parent=_PROCESS.lock.release,
    after_in_child=_PROCESS.after_in_child,
)


def is_cut_off() -> bool:
    """Whether this process was forked while gRPC ran."""
    return _PROCESS.is_cut_off


def check() -> None:
    """Raises InputError if gRPC cannot be used in this process."""
    if _PROCESS.is_cut_off:
        raise InputError(FORKED)


def opened(make: Callable[[], Channel]) -> Channel:
    """Opens a channel by `make`. Raises InputError as `check`."""
    with _PROCESS.lock:
        check()
        channel = make()
        _PROCESS.has_connected = True
        _PROCESS.channels.add(channel)
        return channel


def _has_threads() -> bool:
    for task in _TASKS.iterdir():
        try:
            name = (task / "comm").read_text()
        except OSError:
            continue  # The thread has ended.
        if name.strip() in THREADS:
            return True
    return False
