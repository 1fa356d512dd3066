"""What the caches of continuous queries add to the memory of a cluster, node by node.

Two clusters of three nodes take the same blocks, one row each, since observations are on the disk
and only paths in memory. In one of them continuous queries stand that each find the same part of
the blocks; nobody fetches, so their caches hold every label. As the paper's Fig. 7 does, memory
is compared of the nodes with and without queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters, ingest_blocks
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.cursor import Cursor
from galileo.model.schema import Schema
from galileo.model.times import times_from_micros

NODES = 3
DATASET = "blocks"
INTERVAL, EXPIRATION = "1s", "1h"
BATCH_ROWS = 10_000
LOOKS, LOOK_S = 5, 1.0
MORE_AT_MOST = 1.03


def measure(bench: Bench) -> Iterator[Figure]:
    alone = _run(bench, ccqs=0)
    with_ccqs = _run(bench, ccqs=bench.sizes.memory_ccqs)
    sizes = bench.sizes
    stored = f"{sizes.memory_blocks:,} blocks on {NODES} nodes"
    what = f"{sizes.memory_ccqs} continuous queries of {sizes.memory_results:,} cached labels"
    yield Figure(
        f"memory of all nodes, {stored}, {what}",
        "B",
        Spread.of([sum(one) for one in zip(*with_ccqs, strict=True)]),
        (Peer("without", Spread.of([sum(one) for one in zip(*alone, strict=True)])),),
        (Goal("at most", MORE_AT_MOST, of_peer=True),),
    )
    for number, (more, less) in enumerate(zip(with_ccqs, alone, strict=True), start=1):
        yield Figure(
            f"of node {number} of them", "B", Spread.of(more), (Peer("without", Spread.of(less)),)
        )


def _run(bench: Bench, *, ccqs: int) -> list[list[float]]:
    """Memory of each node, looked at several times."""
    sizes = bench.sizes
    bench.say(f"{sizes.memory_blocks:,} blocks with {ccqs} continuous queries")
    with (
        clusters.cluster(bench.directory, nodes=NODES) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(patience=clusters.PATIENCE)
        schema = ingest_blocks.schema(DATASET)
        client.create_dataset(schema)
        queries = [f"temperature > {200 + number}" for number in range(ccqs)]
        made = [
            client.submit(DATASET, query, interval=INTERVAL, expiration=EXPIRATION)
            for query in queries
        ]
        reached = _ingest(client, schema, sizes.memory_blocks, found=sizes.memory_results)
        for ccq in made:
            clusters.wait_cached(client, ccq.id, token=ccq.token, reached=reached)
        _check(client, made, wanted=ccqs * sizes.memory_results)
        time.sleep(LOOK_S)
        return _looked(running)


def _ingest(client: Client, schema: Schema, blocks: int, *, found: int) -> Cursor:
    """Blocks of one row, evenly mixed: those that are found are warm, the others icy."""
    generator = np.random.default_rng(11)
    is_found = np.zeros(blocks, dtype=np.bool_)
    is_found[:: max(1, blocks // found)][:found] = True
    is_found[np.flatnonzero(is_found)[found:]] = False
    levels = np.where(is_found, generator.uniform(280, 300, blocks), 100.0)
    rest = [np.round(generator.uniform(0, 100, blocks), 1) for _ in range(4)]
    hours = ingest_blocks.START_US + generator.integers(0, 720, blocks) * ingest_blocks.HOUR_US
    columns = [
        pa.array(generator.uniform(*ingest_blocks.LATITUDES, blocks)),
        pa.array(generator.uniform(*ingest_blocks.LONGITUDES, blocks)),
        times_from_micros(hours),
        pa.array(np.round(levels, 1)),
        *map(pa.array, rest),
    ]
    table = pa.table(columns, schema=schema.observation_schema)
    return client.ingest(DATASET, table, batch_rows=BATCH_ROWS).reached


def _check(client: Client, made: list[galileo.Ccq], *, wanted: int) -> None:
    """The first query's answer says how many labels are cached, and that nothing was dropped."""
    if not made:
        return
    found = len(client.query(DATASET, "temperature > 200"))
    if found * len(made) != wanted:
        raise AssertionError(f"expected {wanted:,} labels in all caches, got {found:,} in each")
    if not sum(node.cache_bytes for node in client.status().nodes):
        raise AssertionError("expected caches that hold something")


def _looked(running: galileo.LocalCluster) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in running.nodes]
    for _ in range(LOOKS):
        time.sleep(LOOK_S)
        for values, node in zip(taken, running.nodes, strict=True):
            values.append(float(psutil.Process(node.pid).memory_full_info().uss))
    return taken
