"""From a commit to the client that watches: the evaluator, its jobs, whole cycles, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters, jobs
from benchmarks.figures import Figure, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client

NODES = 3
EXPIRATION = "1h"
UPDATES_UNTIMED = 2


def measure(bench: Bench) -> Iterator[Figure]:
    table = clusters.forecast(bench.sizes.preload_rows, stride=bench.sizes.stride)
    news = table.slice(0, bench.sizes.update_rows)
    with clusters.cluster(bench.directory, nodes=NODES) as running, clusters.ending_children():
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, jobs.DATASET)
        client.ingest(jobs.DATASET, table)
        yield jobs.cold_start(running, bench)
        for labels in bench.sizes.job_labels:
            yield jobs.of_labels(running, client, bench, news=table.slice(0, labels))
        yield jobs.of_queries(running, client, bench, news=news)
        for interval_s in bench.sizes.intervals_s:
            yield _latency(running, bench, news, interval_s=interval_s)
        yield from _memory(running, jobs.evaluator(running), client)


def _latency(
    running: galileo.LocalCluster, bench: Bench, news: pa.Table, *, interval_s: float
) -> Figure:
    client = running.client(timeout=clusters.PATIENCE)
    ccq = client.submit(jobs.DATASET, interval=interval_s, expiration=EXPIRATION)
    watcher = clusters.Watcher(running.client(timeout=clusters.PATIENCE), ccq)
    bench.say(f"timing {bench.sizes.updates} updates, one every {interval_s:g} s at most")
    phases = np.random.default_rng(5).uniform(0.0, interval_s, bench.sizes.updates)
    try:
        for _ in range(UPDATES_UNTIMED):
            watcher.wait(client.ingest(jobs.DATASET, news).reached)
        taken = [_one(client, watcher, news, pause_s=pause_s) for pause_s in phases.tolist()]
    finally:
        client.cancel(ccq.id)
    watcher.join()
    return Figure(
        f"from ingest acknowledged to update received: {news.num_rows:,} observations, "
        f"{NODES} nodes, interval {interval_s:g} s",
        "s",
        Spread.of(taken),
        (Peer("the update interval", Spread.of([interval_s])),),
    )


def _one(client: Client, watcher: clusters.Watcher, news: pa.Table, *, pause_s: float) -> float:
    """Seconds from the acknowledgement to the update; the pause makes the phase random."""
    time.sleep(pause_s)
    reached = client.ingest(jobs.DATASET, news).reached
    acknowledged = time.monotonic()
    return watcher.wait(reached) - acknowledged


def _memory(
    running: galileo.LocalCluster, evaluator: psutil.Process, client: Client
) -> Iterator[Figure]:
    children = evaluator.children(recursive=True)
    is_java = [process.name().startswith("java") for process in children]
    stored = sum(one["paths"] for node in client.status().nodes for one in node.datasets)
    families = {
        f"a storage node ({stored:,} paths on {NODES} nodes)": [
            psutil.Process(node.pid) for node in running.nodes
        ],
        "the evaluator": [evaluator],
        "Spark's JVM": [p for p, java in zip(children, is_java, strict=True) if java],
        "a Python process of Spark": [
            p for p, java in zip(children, is_java, strict=True) if not java
        ],
    }
    for name, processes in families.items():
        yield Figure(f"memory of {name}", "B", Spread.of(_unique_bytes(processes)))


def _unique_bytes(processes: Sequence[psutil.Process]) -> list[float]:
    """What ending each process would free; pages that it shares with others do not count."""
    return [float(process.memory_full_info().uss) for process in processes]
