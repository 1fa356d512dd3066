"""What a cluster costs that has nothing to do: processor time of all its processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.processes import processor_seconds
from benchmarks.sizes import Bench
from galileo.client import Client

DATASET = "nam"
INTERVAL, EXPIRATION = "1s", "1h"
SETTLE_S = 5.0
"""After submissions, until their processing has died away."""
PARTS = 5
GOAL_COUNT, PERCENT_MAX = 100, 5.0


def measure(bench: Bench) -> Iterator[Figure]:
    with (
        clusters.cluster(bench.directory, nodes=3) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        client.ingest(DATASET, clusters.forecast(bench.sizes.preload_rows, stride=1))
        submitted = 0
        for count in bench.sizes.idle_ccqs:
            bench.say(f"submitting up to {count:,} continuous queries")
            _submit(client, range(submitted, count))
            submitted = count
            time.sleep(SETTLE_S)
            yield from _figures(running, count, seconds=bench.sizes.idle_s)


def _submit(client: Client, numbers: range) -> None:
    """Different queries that match nothing of what is stored."""
    for number in numbers:
        query = f"temperature > {1_000 + number}"
        client.submit(DATASET, query, interval=INTERVAL, expiration=EXPIRATION)


def _figures(running: galileo.LocalCluster, count: int, *, seconds: float) -> Iterator[Figure]:
    everything, nodes = [], []
    for _ in range(PARTS):
        before, started = _used(), time.perf_counter()
        time.sleep(seconds / PARTS)
        after, elapsed = _used(), time.perf_counter() - started
        used = {one: after[one] - before.get(one, 0.0) for one in after}
        everything.append(100 * sum(used.values()) / elapsed)
        nodes.append(100 * sum(used[one] for one in used if one.is_node) / elapsed)
    what = f"with {count:,} continuous queries that have nothing to do"
    goals = (Goal("at most", PERCENT_MAX),) if count == GOAL_COUNT else ()
    name = f"all processes of three nodes {what}"
    yield Figure(name, "% of a core", Spread.of(everything), goals=goals)
    yield Figure(f"the nodes alone {what}", "% of a core", Spread.of(nodes))


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    is_node: bool


def _used() -> dict[_Process, float]:
    """Processor seconds of every process that this one has started, so far."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            one = _Process(process.pid, "galileo.server" in process.cmdline())
            used[one] = processor_seconds(process.pid)
    return used
