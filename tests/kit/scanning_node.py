"""A whole node in this process, whose cycles scan the graph, as Spark would; all else is real."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from galileo import AsyncClient
from galileo.ccq import events, machine, state
from galileo.clock import SystemClock
from galileo.config import from_dict
from galileo.packing import Compression
from galileo.packs import pack_labels
from galileo.server.effect_executor import EffectExecutor
from galileo.server.joining import resolve_topology
from galileo.server.node_options import open_store
from galileo.server.node_process import NodeProcess
from galileo.spark.launcher import EvaluatorClient


async def scan_cycle(work: EffectExecutor, effect: events.StartCycle) -> events.CycleFinished:
    """A cycle without Spark."""
    results = []
    for item in effect.items:
        query = work._parsed(item.ccq.query, await work._schema(item.ccq))
        until = work._node.view.sequences(item.ccq.dataset)
        wanted = frozenset(item.partitions)
        possible = wanted & work._node.scans.candidates(query)
        labels, tail = await work.scan(
            query, partitions=possible, after=item.after, until=until, labels_max=0
        )
        reached = tail.frontier.join({p: until[p] for p in wanted - possible})
        packed = pack_labels(labels, Compression.NONE)
        results.append(events.CycleResult(item.ccq.id, item.term, item.after, packed, reached))
    return events.CycleFinished(effect.cycle_id, tuple(results))


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has nodes evaluate by scans, and save the progress of readers at once."""

    async def keep(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(EffectExecutor, "_cycle", scan_cycle)
    monkeypatch.setattr(EvaluatorClient, "warm", lambda _: None)
    monkeypatch.setattr(EvaluatorClient, "keep", keep)
    monkeypatch.setattr(state, "SAVE_AFTER_S", 0.05)
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 0.05)


@contextlib.asynccontextmanager
async def scanning_node(
    directory: Path, **sections: Any
) -> AsyncIterator[tuple[NodeProcess, AsyncClient]]:
    """A node with sections of its configuration, and a client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {
        "partitions_per_group": 4,
        "groups": [{"name": "g", "nodes": [{"name": "n", "address": address}]}],
    }
    config = from_dict(
        {"node": {"name": "n", "directory": str(directory)}, "cluster": cluster, **sections}
    )
    stop, clock = asyncio.Event(), SystemClock()
    store = open_store(config, clock)
    process = NodeProcess(await resolve_topology(config, store), store=store, clock=clock)
    serving = asyncio.create_task(process.run(stop))
    try:
        async with AsyncClient(address, timeout="60s") as client:
            yield process, client
    finally:
        stop.set()
        await serving
