"""What a tick takes: from the moment at which cycles are due to the labels in a reader's hands.

Cycles are due at whole multiples of the update interval on the monotonic clock, which all processes
of a machine share. So the observations are ingested some time before such a multiple, and an update
is timed from the multiple to its arrival at a reader who waits for it: the Spark job, the cache,
and the answer. After each of the things that let Spark fall asleep or die the first tick is timed
again. While nothing is new the evaluator's own count of its jobs must stand still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters, jobs
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.processes import processor_seconds
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.spark.launcher import EvaluatorClient, JobCounts

NODES = 3
DATASET = jobs.DATASET
INTERVAL_S, EXPIRATION = 1.0, "1h"
BEFORE_S = 0.5
"""How long before a tick the observations are sent; nodes hear of them within a quarter second."""
COPIED_S = 0.1
"""How long before it they are stored, so that they are copied."""
TRIES = 20
UNTIMED = 5
TIMEOUT_S = 180.0
P50_S, P95_S = 0.120, 0.250
QUIET_S = 5.0
"""After a tick, until all that it started is over."""
NOTHING_NEW_S = 10.0


_Find: TypeAlias = Callable[[psutil.Process], psutil.Process]


@dataclass(frozen=True, slots=True)
class Ticks:
    client: Client
    watcher: clusters.Watcher
    news: pa.Table

    def one(self, before: Callable[[], None] = lambda: None) -> float:
        """Seconds from a tick to the update that it brought.

        Args:
            before: called when the observations are stored and copied, before the tick.
        """
        for _ in range(TRIES):
            due = _next_tick(after=time.monotonic() + BEFORE_S)
            time.sleep(due - BEFORE_S - time.monotonic())
            reached = self.client.ingest(DATASET, self.news).reached
            was_in_time = time.monotonic() < due - COPIED_S
            time.sleep(max(0.0, due - COPIED_S - time.monotonic()))
            before()
            taken = self.watcher.wait(reached) - due
            if was_in_time:
                return taken
        raise AssertionError(f"expected an ingest to take less than {BEFORE_S:g} s")


def _next_tick(*, after: float) -> float:
    return (after // INTERVAL_S + 1) * INTERVAL_S


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    table = clusters.forecast(sizes.preload_rows, stride=sizes.stride)
    with clusters.cluster(bench.directory, nodes=NODES) as running, clusters.ending_children():
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        client.ingest(DATASET, table)
        ccq = client.submit(DATASET, interval=INTERVAL_S, expiration=EXPIRATION)
        watcher = clusters.Watcher(running.client(timeout=clusters.PATIENCE), ccq)
        ticks = Ticks(client, watcher, table.slice(0, sizes.tick_paths))
        bench.say("the first tick, which starts Spark")
        yield Figure(
            "the first tick of a cluster, which starts Spark", "s", Spread.of([ticks.one()])
        )
        yield from _warm(bench, running, ticks)
        yield from _nothing_new(bench, running)
        yield from _after(bench, running, ticks)
        client.cancel(ccq.id)


def _warm(bench: Bench, running: galileo.LocalCluster, ticks: Ticks) -> Iterator[Figure]:
    count = bench.sizes.updates
    bench.say(f"{count} warm ticks")
    taken = [ticks.one() for _ in range(UNTIMED + count)][UNTIMED:]
    what = f"{ticks.news.num_rows:,} new paths, {NODES} nodes"
    job = jobs.of_labels(running, ticks.client, bench, news=ticks.news)
    floor = (Peer("the Spark job in it, by itself", job.spread),)
    name = f"a warm tick: from when it is due to its labels at a reader, {what}"
    yield Figure(name, "s", Spread.of(taken), floor, (Goal("at most", P50_S),))
    p95 = Spread.of([float(np.quantile(taken, 0.95))])
    name = f"the same, 95th percentile of {count} ticks"
    yield Figure(name, "s", p95, floor, (Goal("at most", P95_S),))


def _nothing_new(bench: Bench, running: galileo.LocalCluster) -> Iterator[Figure]:
    """Jobs, and processor time of Spark's Python side, while ticks pass that have no news."""
    bench.say("ticks without news")
    evaluator = _evaluator(running)
    family = [evaluator, *evaluator.children(recursive=True)]
    workers = [one for one in family if one.name().startswith("python")]
    time.sleep(QUIET_S)
    seconds, before = sum(processor_seconds(one.pid) for one in workers), _jobs(running)
    time.sleep(NOTHING_NEW_S)
    used_s = sum(processor_seconds(one.pid) for one in workers) - seconds
    now, ticks = _jobs(running), NOTHING_NEW_S / INTERVAL_S
    if not evaluator.is_running():
        raise AssertionError("expected one evaluator, another one has taken its place")
    name = f"Spark jobs in {NOTHING_NEW_S:g} s of ticks without news"
    none = (Goal("at most", 0.0),)
    yield Figure(name, "jobs", Spread.of([now.evaluations - before.evaluations]), goals=none)
    name = "empty jobs in the same time, which keep Spark's Python processes"
    yield Figure(name, "jobs", Spread.of([now.empty_jobs - before.empty_jobs]))
    name = "processor time of the evaluator and Spark's Python processes for a tick without news"
    yield Figure(name, "s", Spread.of([used_s / ticks]))


def _jobs(running: galileo.LocalCluster) -> JobCounts:
    async def ask() -> JobCounts:
        async with EvaluatorClient(clusters.evaluator_options(running)) as handle:
            return await handle.ping()

    return asyncio.run(ask())


def _after(bench: Bench, running: galileo.LocalCluster, ticks: Ticks) -> Iterator[Figure]:
    idle_s = bench.sizes.idle_tick_s
    bench.say(f"{idle_s:g} s of idleness")
    time.sleep(idle_s)
    name = f"the first tick after {idle_s:g} s of idleness"
    yield Figure(name, "s", Spread.of([ticks.one()]))
    for name, find in _VICTIMS.items():
        bench.say(f"killing {name}, {bench.sizes.cold_starts} times")
        taken = [_killed(running, ticks, find) for _ in range(bench.sizes.cold_starts)]
        yield Figure(f"the first tick after {name} was killed", "s", Spread.of(taken))


def _killed(running: galileo.LocalCluster, ticks: Ticks, find: _Find) -> float:
    find(_evaluator(running)).kill()
    taken_s = ticks.one()
    ticks.one()  # It is warm again before the next kill.
    return taken_s


def _worker(evaluator: psutil.Process) -> psutil.Process:
    """One that was forked from Spark's Python daemon."""
    family = evaluator.children(recursive=True)
    pythons = {one.pid for one in family if one.name().startswith("python")}
    return [one for one in family if one.pid in pythons and one.ppid() in pythons][-1]


_VICTIMS: dict[str, _Find] = {"a worker of Spark": _worker, "the evaluator": lambda one: one}


def _evaluator(running: galileo.LocalCluster) -> psutil.Process:
    found = clusters.evaluator_process(running)
    if found is None:
        raise AssertionError("expected an evaluator that runs")
    return found
