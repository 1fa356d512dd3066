"""Whether processes are over."""

from __future__ import annotations

import time

import psutil


def is_alive(pid: int) -> bool:
    """Whether a process runs; False also while its parent has not seen its end yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ended(*pids: int, within_s: float = 60.0) -> bool:
    """Whether none of them runs any more within a time."""
    deadline = time.monotonic() + within_s
    while any(map(is_alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
