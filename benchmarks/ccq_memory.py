"""What the caches of continuous queries add to the memory of a cluster, node by node.

Clusters of three nodes take the same blocks, one row each, since observations are on the disk and
only paths in memory. In every other one continuous queries run, and nothing is fetched, so their
caches hold every label. As the paper's Fig. 7 does, memory is compared of the nodes with and
without queries; the evaluator, which is a process of its own and warm in both, is next to it.

There are two kinds of blocks: a generated forecast, of which each query finds another tenth by its
temperature; and places, hours and features at random, which pack worst, where all find the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters, ingest
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.model.schema import Schema
from galileo.model.times import times_from_micros

NODES = 3
DATASET = "blocks"
INTERVAL, EXPIRATION = "1s", "1h"
BATCH_ROWS = 10_000
LOOKS, LOOK_S = 5, 1.0
SETTLE_S = 10.0
"""Until nodes have come to rest, and given back what they needed only meanwhile."""
FOUND_TOLERANCE = 0.1
MORE_AT_MOST = 1.03


@dataclass(frozen=True, slots=True)
class Blocks:
    """What is stored, and what the queries ask.

    Attributes:
        name: in words.
        table: a row for each block.
        queries: one behind the other, from those that are asked.
    """

    name: str
    schema: Schema
    table: pa.Table
    queries: list[str]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each node, of the evaluator's processes, and of labels in all caches.

    Attributes:
        proportional: pages that processes share count in part (PSS).
        anonymous: what is a process's own, files that it has mapped apart.
        coordinators: names of the nodes that run the continuous queries, one for each query.
    """

    proportional: list[float]
    anonymous: list[float]
    evaluator: float
    cached: float
    coordinators: tuple[str, ...] = ()


def _of_node(number: int, memory: Memory) -> float:
    return memory.proportional[number]


def measure(bench: Bench) -> Iterator[Figure]:
    for made in (forecast, _random):
        blocks = made(bench)
        runs = bench.sizes.memory_runs
        without, beside = [], []
        for _ in range(runs):
            without.append(run(bench, blocks, ccqs=0))
            beside.append(run(bench, blocks, ccqs=bench.sizes.memory_ccqs))
        yield from _figures(bench, blocks, without, beside, is_aim=made is forecast)


def _figures(
    bench: Bench, blocks: Blocks, without: list[Memory], beside: list[Memory], *, is_aim: bool
) -> Iterator[Figure]:
    sizes = bench.sizes
    goals = (Goal("at most", MORE_AT_MOST, of_peer=True),) if is_aim else ()

    def figure(name: str, value: Callable[[Memory], float], *goals: Goal) -> Figure:
        peer = Peer("without them", Spread.of([value(one) for one in without]))
        return Figure(name, "B", Spread.of([value(one) for one in beside]), (peer,), goals)

    yield figure(
        f"{blocks.name}: memory of {NODES} nodes, {sizes.memory_blocks:,} blocks, with "
        f"{sizes.memory_ccqs} continuous queries of {sizes.memory_results:,} cached labels",
        lambda one: sum(one.proportional),
        *goals,
    )
    yield figure("the same, anonymous memory alone", lambda one: sum(one.anonymous), *goals)
    for number in range(NODES):
        yield figure(f"of node {number + 1} of them", partial(_of_node, number))
    yield figure("of their evaluator's processes, the JVM included", lambda one: one.evaluator)
    cached = Spread.of([one.cached for one in beside])
    yield Figure("labels in all caches, as the nodes count them", "B", cached)


def run(bench: Bench, blocks: Blocks, *, ccqs: int, nodes: int = NODES) -> Memory:
    """The medians of several looks at a cluster of its own."""
    bench.say(f"{blocks.name}: {blocks.table.num_rows:,} blocks with {ccqs} continuous queries")
    with (
        clusters.cluster(bench.directory, nodes=nodes) as running,
        clusters.warm_evaluator(running) as evaluator,
    ):
        client = running.client(timeout=clusters.PATIENCE)
        client.create_dataset(blocks.schema)
        made = [
            client.submit(DATASET, query, interval=INTERVAL, expiration=EXPIRATION)
            for query in blocks.queries[:ccqs]
        ]
        reached = client.ingest(DATASET, blocks.table, batch_rows=BATCH_ROWS).reached
        for ccq in made:
            clusters.wait_cached(client, ccq.id, token=ccq.token, reached=reached)
        time.sleep(SETTLE_S)
        looks = [_look(running, client, evaluator) for _ in range(LOOKS)]
        coordinators = tuple(one.coordinator for one in client.list_ccqs())
        _check(bench, client, blocks.queries[:ccqs], made)
    return Memory(
        [float(np.median([one.proportional[n] for one in looks])) for n in range(nodes)],
        [float(np.median([one.anonymous[n] for one in looks])) for n in range(nodes)],
        float(np.median([one.evaluator for one in looks])),
        looks[-1].cached,
        coordinators,
    )


def forecast(bench: Bench) -> Blocks:
    """Each grid point of each hour is a block; temperature's tenths hold as many each, about."""
    count = bench.sizes.memory_ccqs
    table = clusters.forecast(bench.sizes.memory_blocks, stride=bench.sizes.stride)
    edges = np.quantile(table.column("temperature").to_numpy(), np.linspace(0.0, 1.0, count + 1))
    edges[-1] += 1.0
    queries = [
        f"temperature >= {low} AND temperature < {high}" for low, high in itertools.pairwise(edges)
    ]
    return Blocks("a forecast, another tenth each", clusters.schema(DATASET), table, queries)


def _random(bench: Bench) -> Blocks:
    """Evenly mixed: those that are found are warm, the others icy."""
    blocks, found = bench.sizes.memory_blocks, bench.sizes.memory_results
    generator = np.random.default_rng(11)
    is_found = np.zeros(blocks, dtype=np.bool_)
    is_found[:: max(1, blocks // found)][:found] = True
    is_found[np.flatnonzero(is_found)[found:]] = False
    levels = np.where(is_found, generator.uniform(280, 300, blocks), 100.0)
    rest = [np.round(generator.uniform(0, 100, blocks), 1) for _ in range(4)]
    hours = ingest.START_US + generator.integers(0, 720, blocks) * ingest.HOUR_US
    columns = [
        pa.array(generator.uniform(*ingest.LATITUDES, blocks)),
        pa.array(generator.uniform(*ingest.LONGITUDES, blocks)),
        times_from_micros(hours),
        pa.array(np.round(levels, 1)),
        *map(pa.array, rest),
    ]
    schema = ingest.block_schema(DATASET)
    table = pa.table(columns, schema=schema.observation_schema)
    queries = [f"temperature > {200 + number}" for number in range(bench.sizes.memory_ccqs)]
    return Blocks("places at random, the same each", schema, table, queries)


def _check(bench: Bench, client: Client, queries: list[str], made: list[galileo.Ccq]) -> None:
    """That the caches hold what the queries find, which is as many labels as is meant."""
    wanted = bench.sizes.memory_results
    for query, ccq in zip(queries, made, strict=True):
        found = len(client.query(DATASET, query))
        if abs(found - wanted) > FOUND_TOLERANCE * wanted:
            raise AssertionError(f"expected about {wanted:,} labels of {query}, got {found:,}")
        updates = clusters.drain(client, ccq.id, token=ccq.token)
        fetched = sum(len(update.labels) for update in updates)
        if fetched != found:
            raise AssertionError(f"expected {found:,} cached labels of {query}, got {fetched:,}")


def _look(running: galileo.LocalCluster, client: Client, evaluator: psutil.Process) -> Memory:
    time.sleep(LOOK_S)
    found = [_smaps(node.pid) for node in running.nodes]
    family = [evaluator, *evaluator.children(recursive=True)]
    return Memory(
        [one["Pss"] for one in found],
        [one["Anonymous"] for one in found],
        sum(_smaps(one.pid)["Pss"] for one in family),
        float(sum(node.cache_bytes for node in client.status().nodes)),
    )


def _smaps(pid: int | None) -> dict[str, float]:
    """Bytes of a process by kind, of all its mappings together."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    words = [line.split() for line in lines]
    return {name.rstrip(":"): 1024.0 * int(size) for name, size, *_ in words}
