"""A node process: serves until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from typing import Any

from galileo.clock import SystemClock
from galileo.config import Config
from galileo.server.joining import resolve_topology
from galileo.server.malloc_tuning import freeze_modules
from galileo.server.node_options import open_store
from galileo.server.node_process import NodeProcess

PARENT_CHECK_S = 1.0
GARBAGE_THRESHOLDS = (10_000, 20, 50)
"""Of Python's collector. Cycles of very many CCQs make objects by the hundred
thousand, none of which is garbage that it would find: it would look through all that lives, some
hundred milliseconds each time, several times in each cycle. By these it does so once in ten million
objects."""


def serve(config: Config, *, parent: int = 0) -> None:
    """Runs a node until SIGTERM or SIGINT, or until the process `parent` has ended."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    freeze_modules()
    asyncio.run(_serve(config, parent=parent))


async def _serve(config: Config, *, parent: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watching = loop.create_task(_watch_parent(parent, stop)) if parent else None
    clock = SystemClock()
    store = open_store(config, clock)
    try:
        resolved = await _unless_stopped(resolve_topology(config, store), stop)
        if resolved is None:
            store.close()
        else:
            await NodeProcess(resolved, store=store, clock=clock).run(stop)
    finally:
        if watching is not None:
            watching.cancel()


async def _unless_stopped(
    resolving: Coroutine[Any, Any, Config], stop: asyncio.Event
) -> Config | None:
    """The result, or None if the node is stopped before it is there."""
    task, stopped = asyncio.create_task(resolving), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def _watch_parent(parent: int, stop: asyncio.Event) -> None:
    """A node of a local cluster does not outlive the process that started it."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(PARENT_CHECK_S)
    stop.set()
