"""How long a node needs after its start until it has its graph and serves again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

import galileo
from benchmarks import stores, weather
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.node.catalog import Catalog
from galileo.storage.store import Store

START_TIMEOUT_S = 600.0
SERVES_MAX_S = 10.0


def measure(bench: Bench) -> Iterator[Figure]:
    for rows, commits, merged in bench.sizes.recovery:
        place = bench.directory / f"recovery-{rows}-{merged}"
        cluster = galileo.LocalCluster(
            1,
            1,
            place,
            partitions_per_group=weather.PARTITIONS,
            settings={"storage": {"compaction": False}},
        )
        directory = place / cluster.nodes[0].name
        bench.say(f"writing {commits:,} commits of {rows:,} paths{', merged' if merged else ''}")
        stores.filled(directory, rows=rows, commits=commits, merged=merged)
        size = stores.size(directory)
        kind = "merged" if merged else "not merged"
        what = (
            f"{rows * commits:,} paths in {commits:,} commits, {kind}, {size / 1e6:,.0f} MB, from "
            "the disk"
        )
        yield _recovered(bench, directory, paths=rows * commits, what=what)
        yield from _served(bench, cluster, paths=rows * commits, what=what)
        shutil.rmtree(place)


def _recovered(bench: Bench, directory: Path, *, paths: int, what: str) -> Figure:
    """The store and the graph alone, beside a plain read of all files."""
    floor, taken = [], []
    for _ in range(bench.sizes.runs):
        stores.forget(directory)
        floor.append(_read_s(directory))
        stores.forget(directory)
        taken.append(_recovery_s(directory, paths))
    peer = Peer("a plain read of all files", Spread.of(floor))
    return Figure(
        f"opening the store and filling the graph: {what}", "s", Spread.of(taken), (peer,)
    )


def _read_s(directory: Path) -> float:
    started = time.perf_counter()
    stores.read_plainly(directory)
    return time.perf_counter() - started


def _recovery_s(directory: Path, paths: int) -> float:
    started = time.perf_counter()
    with Store.open(directory, wall=time.time) as store, ThreadPoolExecutor(1) as executor:
        catalog = Catalog(store, executor=executor, commit_queue_max=1)
        taken = time.perf_counter() - started
        found = catalog.shard(weather.SCHEMA.name).graph.count()
    if found != paths:
        raise AssertionError(f"expected {paths} paths after recovery, got {found}")
    return taken


def _served(
    bench: Bench, cluster: galileo.LocalCluster, *, paths: int, what: str
) -> Iterator[Figure]:
    """A node's process, from its start until it says that it serves."""
    (node,) = cluster.nodes
    taken, busy = [], []
    with cluster:
        status = cluster.client().status().nodes[0]
        found = sum(int(dataset["paths"]) for dataset in status.datasets)
        if found != paths:
            raise AssertionError(f"expected {paths} paths in the node, got {found}")
        for _ in range(bench.sizes.runs):
            node.kill()
            stores.forget(cluster.directory / node.name)
            started = time.perf_counter()
            node.start()
            node.wait(START_TIMEOUT_S)
            taken.append(time.perf_counter() - started)
            times = psutil.Process(node.pid).cpu_times()
            busy.append(times.user + times.system)
    name = f"a killed node's process until it serves: {what}"
    yield Figure(name, "s", Spread.of(taken), goals=(Goal("at most", SERVES_MAX_S),))
    yield Figure(f"processor time of that: {what}", "s", Spread.of(busy))
