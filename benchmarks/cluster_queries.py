"""What queries, and submissions of continuous ones, cost the nodes of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import psutil

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.processes import processor_seconds
from benchmarks.sizes import Bench
from galileo.client import Client

DATASET = "nam"
PARTITIONS = 32
SETTLE_S, IDLE_S = 3.0, 4.0
RUNS = 8
SELECTIVE = "S_INTERSECTS(geometry, POLYGON((-105 39, -104 39, -104 40, -105 40, -105 39)))"
QUERIES = {
    "polygon of 1 x 1 degree": (SELECTIVE, 20),
    "nothing can match": ("temperature > 400", 20),
    "everything": ("", 3),
}
"""Name, query, and how often it is asked in one run."""
AT_ONCE = 64
SUBMITTED_PER_S = 200.0
TIMES_MEAN = 1.3


def measure(bench: Bench) -> Iterator[Figure]:
    for count in bench.sizes.query_nodes:
        with (
            clusters.cluster(
                bench.directory, nodes=count, groups=1, partitions=PARTITIONS
            ) as running,
            running.client(timeout=clusters.PATIENCE) as client,
        ):
            bench.say(f"asking {count} nodes")
            clusters.create_dataset(running, client, DATASET)
            client.ingest(DATASET, clusters.forecast(bench.sizes.preload_rows, stride=1))
            time.sleep(SETTLE_S)
            yield from _figures(running, client, count)


def _figures(running: galileo.LocalCluster, client: Client, count: int) -> Iterator[Figure]:
    idle = _idle()
    for name, (query, times) in QUERIES.items():
        client.query(DATASET, query)
        spent = [_spent(client, query, times=times, idle=idle) for _ in range(RUNS)]
        goals = (Goal("at most", 1e-3 * count),) if times > 3 else ()
        yield Figure(f"{name}, {count} nodes", "s", Spread.of(spent), goals=goals)


def _spent(client: Client, query: str, *, times: int, idle: float) -> float:
    """Processor seconds of all nodes for one query, without what they use when idle."""
    before, started = _used(), time.perf_counter()
    for _ in range(times):
        if not client.query(DATASET, query).complete:
            raise AssertionError("expected a complete answer, a node is away")
    return (_used() - before - idle * (time.perf_counter() - started)) / times


def measure_submissions(bench: Bench) -> Iterator[Figure]:
    nodes, count = bench.sizes.submissions
    with (
        clusters.cluster(bench.directory, nodes=nodes, groups=1) as running,
        clusters.warm_evaluator(running),
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        clusters.create_dataset(running, client, DATASET)
        client.ingest(DATASET, clusters.forecast(bench.sizes.preload_rows, stride=1))
        time.sleep(SETTLE_S)
        idle = _idle()
        per_s, spent = list[float](), list[float]()
        for _ in range(bench.sizes.runs):
            before = _used()
            took_s = asyncio.run(_submit(running, count))
            per_s.append(count / took_s)
            spent.append((_used() - before - idle * took_s) / count)
        loads = Counter(one.coordinator for one in client.list_ccqs())
    yield Figure(
        f"busiest coordinator of {nodes} nodes, {loads.total():,} continuous queries",
        "times the mean",
        Spread.of([max(loads.values()) * nodes / loads.total()]),
        goals=(Goal("at most", TIMES_MEAN),),
    )
    yield Figure(
        f"continuous queries submitted one by one, {AT_ONCE} at a time, {nodes} nodes",
        "CCQs/s",
        Spread.of(per_s),
        goals=(Goal("at least", SUBMITTED_PER_S),),
    )
    yield Figure("one of these submissions, all nodes", "s", Spread.of(spent))


async def _submit(running: galileo.LocalCluster, count: int) -> float:
    """Seconds that it takes one client to submit so many queries without matches."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def submit(number: int) -> None:
        async with gate:
            query = f"temperature > {400 + number}"
            await client.submit(DATASET, query, interval="1h", expiration="2h")

    async with galileo.AsyncClient(*running.addresses, timeout=clusters.PATIENCE) as client:
        started = time.perf_counter()
        await asyncio.gather(*map(submit, range(count)))
        return time.perf_counter() - started


def _idle() -> float:
    """Processor seconds that the nodes use in a second in which no query is asked."""
    before, started = _used(), time.perf_counter()
    time.sleep(IDLE_S)
    return (_used() - before) / (time.perf_counter() - started)


def _used() -> float:
    """Processor seconds of the nodes so far."""
    processes = psutil.Process().children(recursive=True)
    nodes = [one.pid for one in processes if "galileo.server" in one.cmdline()]
    return sum(map(processor_seconds, nodes))
