"""How old what a reader has is, while blocks come in steadily.

Blocks of 8 KB are ingested at a fixed rate into three nodes, by one client that sends the next
batch on a schedule whether or not the one before has been answered; a reader watches a continuous
query with an interval of a second that finds every one of them. The lag of a batch is the time
from the acknowledgement of its last commit to the update that brought it; that of a batch whose
update came before the acknowledgement is 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters, ingest
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.cursor import Cursor

NODES = 3
DATASET = "fresh"
INTERVAL_S, EXPIRATION = 1.0, "1h"
BATCHES_PER_S = 10
AT_ONCE = 4
P99_S = 1.5
TIMEOUT_S = 120.0
TABLES = 20
"""Different batches, sent in turn."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What became of a stream.

    Attributes:
        lags_s: of each batch, from its acknowledgement to its update.
        blocks_per_s: that were really taken.
    """

    lags_s: tuple[float, ...]
    blocks_per_s: float


def measure(bench: Bench) -> Iterator[Figure]:
    with (
        clusters.cluster(bench.directory, nodes=NODES) as running,
        clusters.warm_evaluator(running),
    ):
        stream = streamed(bench, running, dataset=DATASET, interval_s=INTERVAL_S)
    yield from _figures(bench, stream)


def streamed(
    bench: Bench, running: galileo.LocalCluster, *, dataset: str, interval_s: float
) -> Stream:
    """Ingests into a new dataset, while a reader watches; the evaluator is warm."""
    sizes = bench.sizes
    client = running.client(timeout=clusters.PATIENCE)
    schema = ingest.block_schema(dataset)
    client.create_dataset(schema)
    ccq = client.submit(dataset, "", interval=interval_s, expiration=EXPIRATION)
    watcher = clusters.Watcher(running.client(timeout=clusters.PATIENCE), ccq)
    per_batch = sizes.fresh_blocks_per_s // BATCHES_PER_S
    whole = ingest.blocks(schema, TABLES * per_batch, one_path=True)
    bench.say(f"ingesting {sizes.fresh_blocks_per_s:,} blocks/s for {sizes.fresh_s:g} s")
    sent, took_s = _ingest(client, whole, dataset=dataset, seconds=sizes.fresh_s)
    lags = [max(0.0, watcher.wait(reached) - at) for at, reached in sent]
    stored = len(client.query(dataset))
    client.cancel(ccq.id)
    watcher.join()
    if watcher.labels != stored:
        raise AssertionError(f"expected {stored:,} labels, got {watcher.labels:,}")
    return Stream(tuple(lags), per_batch * len(sent) / took_s)


def _ingest(
    client: Client, whole: pa.Table, *, dataset: str, seconds: float
) -> tuple[list[tuple[float, Cursor]], float]:
    """When each batch was acknowledged and how far it reached; and how long all took."""
    rows = whole.num_rows // TABLES
    tables = [whole.slice(number * rows, rows) for number in range(TABLES)]
    started = time.monotonic()

    def send(number: int) -> tuple[float, Cursor]:
        time.sleep(max(0.0, started + number / BATCHES_PER_S - time.monotonic()))
        receipt = client.ingest(dataset, tables[number % TABLES], batch_rows=rows)
        return time.monotonic(), receipt.reached

    with ThreadPoolExecutor(AT_ONCE) as pool:
        sent = list(pool.map(send, range(round(seconds * BATCHES_PER_S))))
    return sent, time.monotonic() - started


def _figures(bench: Bench, stream: Stream) -> Iterator[Figure]:
    sizes, lags = bench.sizes, stream.lags_s
    what = f"{sizes.fresh_blocks_per_s:,} blocks/s meant, {NODES} nodes, interval {INTERVAL_S:g} s"
    yield Figure("blocks that were ingested", "blocks/s", Spread.of([stream.blocks_per_s]))
    interval = Peer("the update interval", Spread.of([INTERVAL_S]))
    yield Figure(
        f"from a batch acknowledged to its update: {what}", "s", Spread.of(lags), (interval,)
    )
    yield Figure(
        f"the same, 99th percentile of {len(lags):,} batches",
        "s",
        Spread.of([float(np.quantile(lags, 0.99))]),
        (interval,),
        (Goal("at most", P99_S),),
    )
