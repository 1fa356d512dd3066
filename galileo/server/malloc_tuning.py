"""Configures malloc and Arrow pools, and returns free memory when the node is idle.

What batches, scans and cycles needed while they ran, the allocators of C and Arrow keep: free, in
many arenas and in a heap for each thread, and never given back. It adds up to more than what a
node stores. So nodes run with the settings of `config.NODE_ENVIRONMENT`: one arena, since of others
the C library gives back what lies free between pieces, and not what lies free at the end; and
Arrow's memory in it. Who starts a node sets them, since Arrow looks at its own when it is loaded;
what was not set is made up for as far as can be. And a node that has come to rest gives back
whatever is free, which takes some milliseconds; it is not done in between, since what is in use now
will be used again.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

import pyarrow as pa

from galileo.config import NODE_ENVIRONMENT

LOOK_S = 1.0
QUIET_SHARE = 0.1
"""Of one core: a node that uses less is at rest; one that has nothing to do uses a few percent."""
WORTH_S = 0.1
"""Processor time after which there may be something to give back."""
APART_S = 5.0
"""It is given back no more often than this,"""
BUSY_MAX_S = 60.0
"""and as often as this by a node that never rests."""


_M_ARENA_MAX = -8
"""Of glibc's mallopt(3)."""


def configure_malloc() -> None:
    """Has the allocators of this process work as a node's do, where nobody told them.

    To be called before there are threads. What the environment says already is left as it is;
    processes that this one starts inherit the rest. Arrow's own C++ code goes on with the pool that
    it chose when it was loaded: a twentieth of a node's memory.
    """
    missing = {name: value for name, value in NODE_ENVIRONMENT.items() if name not in os.environ}
    if "ARROW_DEFAULT_MEMORY_POOL" in missing:
        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if "MALLOC_ARENA_MAX" in missing and mallopt is not None:
        mallopt(_M_ARENA_MAX, int(missing["MALLOC_ARENA_MAX"]))
    os.environ.update(missing)


class IdleDetector:
    """When a process has come to rest after it was at work.

    Args:
        now: seconds, at the beginning.
        used_s: processor time until then.
    """

    def __init__(self, *, now: float, used_s: float) -> None:
        self._looked_at = self._given_at = now
        self._used_s = self._given_used_s = used_s

    def look(self, *, now: float, used_s: float) -> bool:
        """Whether memory is to be given back now."""
        share = (used_s - self._used_s) / max(now - self._looked_at, 1e-9)
        self._looked_at, self._used_s = now, used_s
        since_s = now - self._given_at
        is_time = since_s >= (APART_S if share < QUIET_SHARE else BUSY_MAX_S)
        is_due = is_time and used_s - self._given_used_s >= WORTH_S
        if is_due:
            self._given_at, self._given_used_s = now, used_s
        return is_due


async def give_back_at_rest(
    *,
    monotonic: Callable[[], float] = time.monotonic,
    used_s: Callable[[], float] = time.process_time,
) -> None:
    """Gives free memory back whenever the process has come to rest; until cancelled."""
    repose = IdleDetector(now=monotonic(), used_s=used_s())
    while True:
        await asyncio.sleep(LOOK_S)
        if repose.look(now=monotonic(), used_s=used_s()):
            await asyncio.to_thread(give_back)


def give_back() -> None:
    """Gives back to the system what is free.

    Arrow's system pool does so for all of the C heap.
    """
    pools = [pa.default_memory_pool(), pa.system_memory_pool()]
    if "mimalloc" in pa.supported_memory_backends():
        pools.append(pa.mimalloc_memory_pool())
    for pool in pools:
        pool.release_unused()
