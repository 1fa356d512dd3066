"""The evaluator by itself: how long it takes to start, and how long one job takes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Peer, Spread, seconds
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.cursor import Cursor
from galileo.cycle import Answers, CycleRequest
from galileo.dht.placement import partitions_by_node
from galileo.dht.topology import Topology
from galileo.hashing import digest
from galileo.model.schema import Schema
from galileo.query import parse
from galileo.rpc.internal_calls import REGISTER_QUERIES
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.owners import NodeScanner
from galileo.wire.caller import Caller

DATASET = "nam"
TIMEOUT_S = 120.0
JOBS_UNTIMED = 3
STOOD_TOGETHER = 2_000
JOBS_PER_RUN = 4
BARE = "the same scans without Spark"


def cold_start(running: galileo.LocalCluster, bench: Bench) -> Figure:
    """From nothing to warm, several times; the last evaluator stays."""
    taken: list[float] = []
    for number in range(bench.sizes.cold_starts):
        bench.say(f"starting the evaluator, {number + 1} of {bench.sizes.cold_starts}")
        if taken:
            clusters.end(evaluator(running))
        taken.append(seconds(lambda: evaluator(running)))
    return Figure("cold start of the evaluator, until it is warm", "s", Spread.of(taken))


def evaluator(running: galileo.LocalCluster) -> psutil.Process:
    """The process of the cluster's evaluator, which is started where there is none."""
    return asyncio.run(clusters.ensured(running))


def of_labels(
    running: galileo.LocalCluster, client: Client, bench: Bench, *, news: pa.Table
) -> Figure:
    """A warm job of one query that finds as many labels as `news` has rows."""
    return of_news(running, client, bench, news=news, after=client.query(DATASET).frontier)


def of_news(
    running: galileo.LocalCluster,
    client: Client,
    bench: Bench,
    *,
    news: pa.Table,
    after: Cursor,
    dataset: str = DATASET,
) -> Figure:
    """The same of any dataset, where `after` says what is stored."""
    if news.num_rows:
        client.ingest(dataset, news)
    request = delta_request(client, [""], after=after, dataset=dataset)
    name = f"a warm job: one query, {news.num_rows:,} new labels on {len(running.nodes)} nodes"
    return _timed(running, request, bench, name=name, labels=news.num_rows)


def of_queries(
    running: galileo.LocalCluster, client: Client, bench: Bench, *, news: pa.Table
) -> Figure:
    """A warm job of many narrow queries: bands of temperature that share the rows between them."""
    after = client.query(DATASET).frontier
    client.ingest(DATASET, news)
    count = bench.sizes.job_queries
    edges = [200.0 + 150.0 * number / count for number in range(count + 1)]
    texts = [
        f"temperature >= {low} AND temperature < {high}" for low, high in itertools.pairwise(edges)
    ]
    request = delta_request(client, texts, after=after)
    name = f"a warm job: {count:,} queries, {news.num_rows:,} new labels for all together"
    return _timed(running, request, bench, name=name, labels=news.num_rows)


def delta_request(
    client: Client, texts: Sequence[str], *, after: Cursor, dataset: str = DATASET
) -> CycleRequest:
    """As a coordinator asks, for all partitions; the nodes have the queries then."""
    schema, topology = client.schema(dataset), Topology.from_json(client.topology_json())
    queries = [parse(text, schema).to_json() for text in texts]
    asyncio.run(stood(topology, schema.name, queries))
    return request_of(topology, schema, queries, after=after)


async def stood(topology: Topology, dataset: str, queries: Sequence[str]) -> None:
    """Has all nodes index queries."""
    caller = Caller()
    for node in topology.nodes:
        for start in range(0, len(queries), STOOD_TOGETHER):
            request = REGISTER_QUERIES.encode(dataset, queries[start : start + STOOD_TOGETHER])
            connection = caller.connection(node.address)
            await connection.exchange(REGISTER_QUERIES.path, request, timeout_s=TIMEOUT_S)
    await caller.close()


def request_of(
    topology: Topology, schema: Schema, queries: Sequence[str], *, after: Cursor
) -> CycleRequest:
    """Asks for what all partitions have for each query after one cursor."""
    owned, partitions = partitions_by_node(topology), sorted(topology.partitions)
    owner = {p: number for number, node in enumerate(topology.nodes) for p in owned[node.name]}
    count = len(queries)
    return CycleRequest(
        dataset=schema.name,
        schema_json=schema.to_json(),
        partitions=np.array(partitions, dtype=np.int32),
        after=np.array([after[p] for p in partitions], dtype=np.int64),
        cursors=np.zeros(count, dtype=np.int32),
        digests=np.frombuffer(b"".join(map(digest, queries)), dtype=np.uint8),
        items=np.arange(count, dtype=np.uint32),
        samplers_json=(),
        samplers=np.zeros(count, dtype=np.uint32),
        is_compressed=np.zeros(count, dtype=np.bool_),
        addresses=tuple(node.address for node in topology.nodes),
        owners=np.array([owner[p] for p in partitions], dtype=np.int32),
        committed=np.zeros(0, dtype=np.int64),
    )


def _timed(
    running: galileo.LocalCluster,
    request: CycleRequest,
    bench: Bench,
    *,
    name: str,
    labels: int,
) -> Figure:
    """The job, and the same scans without Spark, in turn."""
    in_job, bare = [], []
    handle, scanner = EvaluatorClient(clusters.evaluator_options(running)), NodeScanner()
    work = parts_of(request)
    with asyncio.Runner() as runner:
        try:
            for number in range(JOBS_PER_RUN * bench.sizes.runs + JOBS_UNTIMED):
                job_s = runner.run(call(handle, request, labels=labels))
                scan_s = seconds(lambda: scan(scanner, work))
                if number >= JOBS_UNTIMED:
                    in_job.append(job_s)
                    bare.append(scan_s)
        finally:
            runner.run(handle.close())
            scanner.close()
    return Figure(name, "s", Spread.of(in_job), (Peer(BARE, Spread.of(bare)),))


async def call(handle: EvaluatorClient, request: CycleRequest, *, labels: int) -> float:
    """Seconds of a job, as its caller has them.

    The reply stays in here: Python's `asyncio.run` may print the result of a task into a text
    that nothing reads, which takes longer than all of this where the result is large.
    """
    started = time.perf_counter()
    answers = await handle.evaluate([request], timeout_s=TIMEOUT_S)
    elapsed = time.perf_counter() - started
    _check(answers, request.schema, labels=labels)
    return elapsed


def parts_of(request: CycleRequest) -> list[CycleRequest]:
    """What each node is asked."""
    parts = map(request.for_node, range(len(request.addresses)))
    return [part for part in parts if len(part)]


def scan(scanner: NodeScanner, work: Sequence[CycleRequest]) -> None:
    """The scans that the tasks of a job make, in this process."""
    scanner.fetch(work, timeout_s=TIMEOUT_S)


def _check(job: Answers, schema: Schema, *, labels: int) -> None:
    (answers,) = job
    found = sum(len(own) for answer in answers for own in answer.packs.labels(schema).values())
    reached = {str(part.reached) for answer in answers for part in answer.parts}
    errors = {failure.error.message for answer in answers for failure in answer.failures}
    if any(len(answer.unknown) for answer in answers):
        errors.add("some queries are not known to the nodes")
    if found != labels or errors:
        raise AssertionError(
            f"expected a job to find {labels:,} labels, it found {found:,}, "
            f"reached {reached or 'nothing'} and failed with {errors or 'nothing'}"
        )
