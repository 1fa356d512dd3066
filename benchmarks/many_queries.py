"""What a tick of very many queries costs a node: one pass over what is new, all queries in columns.

The node is a process of its own, called over gRPC as evaluators call it; its work is the time that
its processor took. The peer matches the queries one by one in one call,
for as many as it is fit for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters, jobs
from benchmarks.figures import Figure, Goal, Peer, Spread, seconds
from benchmarks.query_world import World, schema
from benchmarks.sizes import Bench
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.topology import Topology
from galileo.query import parse
from galileo.spark.owners import NodeScanner
from galileo.wire.channel import open_channel
from galileo.wire.codec import cursor_to_pb
from galileo.wire.services import STORAGE, stub_of
from galileo.wire.v1 import storage_pb2

DATASET = "boxes"
TIMEOUT_S = 600.0
FEW = 1_000
NODE_WORK_S = 1.0
LEAST_S = 1.0
"""Of a run: the kernel counts work in hundredths of a second."""


def measure_boxes(bench: Bench) -> Iterator[Figure]:
    world, sizes = World(1), bench.sizes
    texts = world.boxes(sizes.many_boxes)
    with clusters.cluster(bench.directory, nodes=1) as running, running.client() as client:
        client.create_dataset(schema(DATASET))
        # Something is stored before, which a tick must not look at.
        after = client.ingest(DATASET, world.observations(sizes.many_rows)).reached
        client.ingest(DATASET, world.observations(sizes.many_rows))
        queries = [parse(text, schema(DATASET)).to_json() for text in texts]
        topology = Topology.from_json(client.topology_json())
        node = _Node(running, topology, psutil.Process(running.nodes[0].pid))
        bench.say(f"indexing {len(queries):,} queries")
        indexing = node.work(lambda: asyncio.run(jobs.stood(topology, DATASET, queries)))
        yield Figure(
            f"indexing one of {len(queries):,} queries of box, day and range, once",
            "s",
            Spread.of([indexing.work_s / len(queries)]),
        )
        yield _of_all(bench, node, queries, after=after)
        yield _of_few(bench, node, queries[:FEW], after=after)


@dataclass(frozen=True, slots=True)
class _Took:
    """Seconds that the processor worked for the node, and that passed."""

    work_s: float
    passed_s: float


@dataclass(frozen=True, slots=True)
class _Node:
    running: galileo.LocalCluster
    topology: Topology
    process: psutil.Process

    def work(self, subject: Callable[[], object], *, least_s: float = 0.0) -> _Took:
        """Of one call, as the mean of so many that they take `least_s`."""
        before, started, calls = self.process.cpu_times(), time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - started < least_s:
            subject()
            calls += 1
        passed_s, after = time.perf_counter() - started, self.process.cpu_times()
        work_s = after.user + after.system - before.user - before.system
        return _Took(work_s / calls, passed_s / calls)

    def match(self, queries: Sequence[str], *, after: Cursor) -> dict[int, int]:
        """Number of labels of each query that has some."""
        request = jobs.request_of(self.topology, schema(DATASET), queries, after=after)
        scanner = NodeScanner()
        try:
            (matches,) = scanner.fetch(jobs.parts_of(request), timeout_s=TIMEOUT_S)
        finally:
            scanner.close()
        if matches.failures or len(matches.unknown):
            raise AssertionError("expected an answer to every query, some failed")
        counts = np.zeros(len(queries), dtype=np.int64)
        for part in matches.parts:
            counts += part.matches.counts(len(queries))
        return {item: int(counts[item]) for item in np.flatnonzero(counts).tolist()}

    async def scan(self, queries: Sequence[str], *, after: Cursor) -> dict[int, int]:
        """The same by looking at the queries one after the other."""
        items = [
            storage_pb2.ScanItem(
                item=number,
                dataset=DATASET,
                query_json=query,
                after=cursor_to_pb(after),
                until=cursor_to_pb(EMPTY_CURSOR),
                partitions=sorted(self.topology.partitions),
            )
            for number, query in enumerate(queries)
        ]
        channel = open_channel(self.topology.nodes[0].address)
        call = stub_of(STORAGE, channel).Scan(
            storage_pb2.ScanRequest(items=items), timeout=TIMEOUT_S
        )
        found: dict[int, int] = {}
        async for reply in call:
            for part in reply.parts:
                if part.labels:
                    rows = pa.ipc.open_stream(part.labels).read_all().num_rows
                    found[part.item] = found.get(part.item, 0) + rows
        await channel.close()
        return found


def _of_all(bench: Bench, node: _Node, queries: Sequence[str], *, after: Cursor) -> Figure:
    found: list[int] = []

    def match() -> None:
        found.append(sum(node.match(queries, after=after).values()))

    match()
    taken = [node.work(match, least_s=LEAST_S) for _ in range(bench.sizes.runs)]
    if len(set(found)) != 1 or not found[0]:
        raise AssertionError(f"expected the same matches in each run, got {found}")
    rows = bench.sizes.many_rows
    return Figure(
        f"work of a node for a tick of {len(queries):,} queries: "
        f"{rows:,} new paths, {found[0]:,} matches",
        "s",
        Spread.of([one.work_s for one in taken]),
        (Peer("time until the answer was there", Spread.of([one.passed_s for one in taken])),),
        (Goal("at most", NODE_WORK_S),),
    )


def _of_few(bench: Bench, node: _Node, queries: Sequence[str], *, after: Cursor) -> Figure:
    """Both ways find the same."""
    together, alone = [], []
    if node.match(queries, after=after) != asyncio.run(node.scan(queries, after=after)):
        raise AssertionError("expected a pass to find what scans of its queries find")
    for _ in range(bench.sizes.runs):
        together.append(seconds(lambda: node.match(queries, after=after)))
        alone.append(seconds(lambda: asyncio.run(node.scan(queries, after=after))))
    return Figure(
        f"a tick of {len(queries):,} of them",
        "s",
        Spread.of(together),
        (Peer("the same, one query after the other", Spread.of(alone)),),
    )
