"""Configures malloc, Arrow pools and garbage collection, and returns free memory in idle times.

The allocators of C and Arrow keep the memory that batches, scans and cycles have freed, in many
arenas and in one heap for each thread; this can exceed the memory of the stored data. Therefore
nodes run with the settings of `config.NODE_ENVIRONMENT`: one arena, from which the C library
returns free pages, and Arrow's pool in it. Batches and messages of some megabytes are in that heap,
too, and it keeps some free memory at its end: otherwise each of them is mapped and returned, and to
fault its pages in takes several times as long as to fill them. The process that starts a node sets
them, because Arrow reads its setting when it is loaded; missing settings are applied as far as
possible. An idle node or gateway returns all free memory, which takes some milliseconds; a busy one
does not, since it would allocate it again.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time

import pyarrow as pa

from galileo.config import NODE_ENVIRONMENT

LOOK_S = 1.0
QUIET_SHARE = 0.1
"""Share of one core below which a node is idle; without work it uses a few percent."""
WORTH_S = 0.1
"""Processor time after which there may be free memory to return."""
APART_S = 5.0
"""Shortest interval between two trims."""
BUSY_MAX_S = 60.0
"""Interval of trims of a node that is never idle."""


_MALLOPT = {
    "MALLOC_ARENA_MAX": -8,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_TRIM_THRESHOLD_": -1,
}
"""Parameters of glibc's mallopt(3) by the variable that sets them."""


def freeze_modules() -> None:
    """Excludes what is loaded from garbage collection, which stopped event loops for 60 ms."""
    gc.collect()
    gc.freeze()


def configure_malloc() -> None:
    """Applies the settings of `config.NODE_ENVIRONMENT` that the environment lacks.

    Call it before there are threads. Child processes inherit the settings. Arrow's C++ code keeps
    the pool that it chose when it was loaded: about 5 % of a node's memory.
    """
    missing = {name: value for name, value in NODE_ENVIRONMENT.items() if name not in os.environ}
    if "ARROW_DEFAULT_MEMORY_POOL" in missing:
        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name in missing.keys() & _MALLOPT.keys():
            mallopt(_MALLOPT[name], int(missing[name]))
    os.environ.update(missing)


class IdleDetector:
    """Detects that a process has become idle after work.

    Args:
        now: monotonic time in seconds.
        used_s: processor time of the process until `now`.
    """

    def __init__(self, *, now: float, used_s: float) -> None:
        self._looked_at = self._given_at = now
        self._used_s = self._given_used_s = used_s

    def look(self, *, now: float, used_s: float) -> bool:
        """Whether to trim now."""
        share = (used_s - self._used_s) / max(now - self._looked_at, 1e-9)
        self._looked_at, self._used_s = now, used_s
        since_s = now - self._given_at
        is_time = since_s >= (APART_S if share < QUIET_SHARE else BUSY_MAX_S)
        is_due = is_time and used_s - self._given_used_s >= WORTH_S
        if is_due:
            self._given_at, self._given_used_s = now, used_s
        return is_due


async def trim_when_idle() -> None:
    """Returns free memory whenever the process becomes idle; runs until cancelled."""
    repose = IdleDetector(now=time.monotonic(), used_s=time.process_time())
    while True:
        await asyncio.sleep(LOOK_S)
        if repose.look(now=time.monotonic(), used_s=time.process_time()):
            await asyncio.to_thread(give_back)


def give_back() -> None:
    """Returns free memory to the system.

    Arrow's system pool does so for all of the C heap.
    """
    pools = [pa.default_memory_pool(), pa.system_memory_pool()]
    if "mimalloc" in pa.supported_memory_backends():
        pools.append(pa.mimalloc_memory_pool())
    for pool in pools:
        pool.release_unused()
