"""The evaluator by itself: how long it takes to start, and how long one job takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc.aio
import psutil

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client, Labels
from galileo.cursor import Cursor
from galileo.dht.placement import partitions_by_node
from galileo.dht.topology import Topology
from galileo.spark.launcher import EvaluatorHandle
from galileo.wire.channel import open_channel
from galileo.wire.codec import cursor_to_pb, table_of
from galileo.wire.pb import evaluator_pb2, storage_pb2, storage_pb2_grpc

TIMEOUT_S = 120.0
JOBS_UNTIMED = 3
JOBS_PER_RUN = 4
DATASET = "nam"


async def cold_start(running: galileo.LocalCluster, bench: Bench) -> Figure:
    """From nothing to warm, several times; the last evaluator stays."""
    taken: list[float] = []
    for number in range(bench.sizes.cold_starts):
        bench.say(f"starting the evaluator, {number + 1} of {bench.sizes.cold_starts}")
        if taken:
            process = await evaluator(running)
            await asyncio.to_thread(clusters.end, process)
        started = time.perf_counter()
        await evaluator(running)
        taken.append(time.perf_counter() - started)
    return Figure("cold start of the evaluator, until it is warm", "s", Spread.of(taken))


async def evaluator(running: galileo.LocalCluster) -> psutil.Process:
    """The process of the cluster's evaluator, which is started where there is none."""
    async with EvaluatorHandle(clusters.evaluator_options(running)) as handle:
        await handle.ensure()
        return psutil.Process(handle.pid)


async def job_time(
    running: galileo.LocalCluster, client: Client, bench: Bench, *, labels: int
) -> Figure:
    """A warm job that finds so many labels, in Spark alone and against the bare scans."""
    everything = client.query(DATASET)
    after = _before_last(everything, labels)
    found = everything.after(after)
    request = _request(client, found, after=after)
    in_job, asked, scanned = [], [], []
    async with EvaluatorHandle(clusters.evaluator_options(running)) as handle:
        channels = [open_channel(node.address) for node in request.nodes]
        try:
            for number in range(JOBS_PER_RUN * bench.sizes.runs + JOBS_UNTIMED):
                started = time.perf_counter()
                reply = await handle.evaluate(request, timeout_s=TIMEOUT_S)
                elapsed = time.perf_counter() - started
                _expect(len(found), [chunk for r in reply.results for chunk in r.labels], everything)
                bare = await _scan(channels, request)
                if number >= JOBS_UNTIMED:
                    in_job.append(reply.job_s)
                    asked.append(elapsed)
                    scanned.append(bare)
        finally:
            for channel in channels:
                await channel.close()
    return Figure(
        f"a warm job that finds {len(found):,} labels on {len(request.nodes)} nodes",
        "s",
        Spread.of(in_job),
        (
            Peer("the same with its call", Spread.of(asked)),
            Peer("the same scans without Spark", Spread.of(scanned)),
        ),
    )
