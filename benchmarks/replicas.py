"""What three copies of each partition cost, and what they save when a node or its disk is lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import clusters, etcd, jobs, postgis, tick
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn, seconds
from benchmarks.ingest_postgis import SCHEMA, copying
from benchmarks.processes import processor_seconds
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.local_node import LocalNode
from galileo.model.times import micros, times_from_micros
from galileo.spark.launcher import EvaluatorClient
from galileo.storage.segment import SUFFIX

NODES = REPLICAS = 3
PARTITIONS = 6
WHOLE_S = 300.0
LOOK_S = 0.02
AT_US = micros("2014-03-01T00:00:00Z")
LEADER_ROWS = 100


def measure_ingest(bench: Bench) -> Iterator[Figure]:
    """Ingest with three copies, with one, and by COPY with two synchronous standbys.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    rows, count = bench.sizes.copied
    table = clusters.forecast(rows * count, stride=bench.sizes.stride)
    with ExitStack() as stack:
        session = stack.enter_context(postgis.running(standbys=REPLICAS - 1))
        one, three = (stack.enter_context(_cluster(bench, copies)) for copies in (1, REPLICAS))
        copy, table = stack.enter_context(copying(session, table, rows=rows))
        ways = []
        for running in (three, one):
            client = stack.enter_context(running.client(timeout=clusters.PATIENCE))
            client.create_dataset(SCHEMA)
            ways.append(clusters.ingesting(client, table, dataset=SCHEMA.name, rows=rows))
        bench.say(f"{count} batches of {rows:,} observations")
        copied, single, standby = in_turn(*ways, copy, runs=bench.sizes.runs, warm_up=True)
        memory = [_memory(running) for running in (three, one)]
    server = postgis.versions()["PostgreSQL"]
    total = table.num_rows
    yield Figure(
        f"through gRPC, durable, {NODES} nodes, {REPLICAS} copies: {count} batches of {rows:,}",
        "observations/s",
        copied.per_second(total),
        (Peer("one copy", single.per_second(total)),),
        (Goal("at least", 0.45, of_peer=True),),
    )
    yield Figure(
        "the same, compared with COPY into an indexed table with two synchronous standbys",
        "observations/s",
        copied.per_second(total),
        (Peer(f"PostgreSQL {server}, ANY 1", standby.per_second(total)),),
        (Goal("at least", 3.0, of_peer=True),),
    )
    yield Figure(
        "memory of the nodes after it",
        "B",
        Spread.of(memory[:1]),
        (Peer("one copy", Spread.of(memory[1:])),),
        (Goal("at most", 3.0, of_peer=True),),
    )


def measure_leader(bench: Bench) -> Iterator[Figure]:
    """From SIGKILL of a partition's leader to the next acknowledged batch.

    Raises:
        NotInstalled: etcd is not installed.
    """
    name = f"etcd {etcd.version()}, {etcd.MEMBERS} members"
    kills = bench.sizes.kills
    with _cluster(bench, REPLICAS) as running, etcd.running() as other:
        client = running.client(timeout=clusters.PATIENCE)
        client.create_dataset(SCHEMA)
        place = _Place(running, client)
        place.ingest()
        bench.say(f"killing a leader {kills} times")
        ours, answers, theirs = [], [], []
        for number in range(kills):
            gap_s, answer_s = _kill_leader(running, place)
            ours.append(gap_s)
            answers.append(answer_s)
            theirs.append(_kill_etcd_leader(other, number))
        place.check()
    peer = Peer(name, Spread.of(theirs))
    yield Figure(
        "SIGKILL of a leader to the next acknowledged batch of its partition",
        "s",
        Spread.of(ours),
        (peer,),
        (Goal("at most", 2.0, of_peer=True),),
    )
    yield Figure(
        f"the same, 99th percentile of {kills} kills",
        "s",
        Spread.of([float(np.quantile(ours, 0.99))]),
        (Peer(name, Spread.of([float(np.quantile(theirs, 0.99))])),),
        (Goal("at most", 3.0),),
    )
    yield Figure(
        f"SIGKILL of a leader to a complete answer, 99th percentile of {kills} kills",
        "s",
        Spread.of([float(np.quantile(answers, 0.99))]),
        (),
        (Goal("at most", 3.0),),
    )


def measure_healing(bench: Bench) -> Iterator[Figure]:
    """How fast a node that comes back with an empty directory gets all copies again."""
    rows, count = bench.sizes.copied
    table = clusters.forecast(rows * count, stride=bench.sizes.stride)
    with _cluster(bench, REPLICAS) as running:
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, clusters.DATASET)
        for _ in range(bench.sizes.runs):
            client.ingest(clusters.DATASET, table, batch_rows=rows)
        rates = []
        for number in range(bench.sizes.runs):
            _wait_copies(client)
            lost = running.nodes[number % NODES]
            directory = running.directory / lost.name
            size = sum(file.stat().st_size for file in directory.rglob(f"*{SUFFIX}"))
            lost.kill()
            shutil.rmtree(directory)
            lost.start()
            lost.wait()
            rates.append(size / seconds(lambda: _wait_copies(client)))
            bench.say(f"{size:,} B back")
    yield Figure(
        "a node that starts with an empty directory gets its copies: bytes of segments",
        "B/s",
        Spread.of(rates),
        (),
        (Goal("at least", 100e6),),
    )


def measure_ticks(bench: Bench) -> Iterator[Figure]:
    """Updates of a continuous query over three copies, also while a node is stopped."""
    sizes = bench.sizes
    table = clusters.forecast(sizes.preload_rows, stride=sizes.stride)
    with _cluster(bench, REPLICAS) as running, clusters.ending_children():
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, clusters.DATASET)
        _wait_copies(client)
        client.ingest(clusters.DATASET, table)
        ccq = client.submit(clusters.DATASET, interval=tick.INTERVAL_S, expiration=tick.EXPIRATION)
        with galileo.connect(ccq.info.coordinator_address, timeout=clusters.PATIENCE) as near:
            watcher = clusters.Watcher(near, ccq)
            ticks = tick.Ticks(near, watcher, table.slice(0, sizes.tick_paths))
            yield from _warm_ticks(bench, running, ticks)
            yield from _jobs_at_replicas(bench, running, client, ticks.news)
            others = [node for node in running.nodes if node.name != ccq.coordinator]
            bench.say(f"stopping a node amid {sizes.paused_ticks} ticks")
            stopped = [
                _tick_amid_stop(client, ticks, node)
                for node in others
                for _ in range(sizes.paused_ticks)
            ]
    yield Figure(
        "a warm tick while another node than the coordinator is stopped (SIGSTOP)",
        "s",
        Spread.of(stopped),
    )


def _warm_ticks(bench: Bench, running: galileo.LocalCluster, ticks: tick.Ticks) -> Iterator[Figure]:
    count = bench.sizes.updates
    bench.say(f"{count} warm ticks")
    for _ in range(tick.UNTIMED):
        ticks.one()
    used_s = _processor_seconds(running)
    taken = [ticks.one() for _ in range(count)]
    used_s = _processor_seconds(running) - used_s
    name = f"a warm tick: {ticks.news.num_rows:,} new paths, {NODES} nodes, {REPLICAS} copies"
    yield Figure(name, "s", Spread.of(taken))
    name = "processor time of nodes, evaluator and Spark for it, with the ingest"
    yield Figure(name, "s", Spread.of([used_s / count]))


def _jobs_at_replicas(
    bench: Bench, running: galileo.LocalCluster, client: Client, news: pa.Table
) -> Iterator[Figure]:
    """The Spark job of a tick: with all calls at one node, and with calls at three leaders."""
    after = client.query(clusters.DATASET).frontier
    client.ingest(clusters.DATASET, news)
    committed = client.query(clusters.DATASET).frontier
    _wait_copies(client)
    leaders = jobs.delta_request(client, [""], after=after)
    near = replace(
        leaders,
        owners=np.zeros_like(leaders.owners),
        committed=np.array([committed[p] for p in leaders.partitions.tolist()], dtype=np.int64),
    )
    taken: dict[str, list[tuple[float, float]]] = {"near": [], "leaders": []}
    with asyncio.Runner() as runner:
        handle = EvaluatorClient(clusters.evaluator_options(running))
        for number in range(jobs.JOBS_PER_RUN * bench.sizes.runs + jobs.JOBS_UNTIMED):
            for name, request in (("near", near), ("leaders", leaders)):
                used_s = _processor_seconds(running)
                job_s = runner.run(jobs.call(handle, request, labels=news.num_rows))
                used_s = _processor_seconds(running) - used_s
                if number >= jobs.JOBS_UNTIMED:
                    taken[name].append((job_s, used_s))
        runner.run(handle.close())
    for what, column in (("seconds", 0), ("processor time of nodes, evaluator and Spark", 1)):
        near_s, leaders_s = (Spread.of([one[column] for one in taken[n]]) for n in taken)
        name = f"the job of a tick, one call at the own replica: {what}"
        yield Figure(name, "s", near_s, (Peer("three calls at leaders", leaders_s),))


def _processor_seconds(running: galileo.LocalCluster) -> float:
    evaluator = clusters.evaluator_process(running)
    assert evaluator is not None, "expected an evaluator that runs"
    family = [evaluator, *evaluator.children(recursive=True)]
    pids = [node.pid for node in running.nodes if node.pid is not None]
    return sum(map(processor_seconds, [*pids, *(one.pid for one in family)]))


def _tick_amid_stop(client: Client, ticks: tick.Ticks, node: LocalNode) -> float:
    """A tick before which a node is stopped, when its news are stored; waits until all is whole."""
    assert node.pid is not None, "expected a node that runs"
    process = psutil.Process(node.pid)
    try:
        return ticks.one(before=process.suspend)
    finally:
        process.resume()
        _wait_copies(client)
        ticks.one()


def _cluster(bench: Bench, copies: int) -> galileo.LocalCluster:
    place = bench.directory / f"copies-{copies}-{time.monotonic_ns()}"
    return galileo.LocalCluster(NODES, 1, place, partitions_per_group=PARTITIONS, replicas=copies)


def _memory(running: galileo.LocalCluster) -> int:
    processes = [psutil.Process(node.pid) for node in running.nodes if node.pid is not None]
    return sum(process.memory_info().rss for process in processes)


def _wait_copies(client: Client) -> None:
    """Returns when every partition has a leader and all copies."""
    deadline = time.monotonic() + WHOLE_S
    while time.monotonic() < deadline:
        status = client.status()
        if status.complete and not status.under_replicated:
            return
        time.sleep(LOOK_S)
    raise TimeoutError(f"expected all copies within {WHOLE_S:.0f} s")


class _Place:
    """A place whose observations are all in one partition, and a producer of them."""

    def __init__(self, running: galileo.LocalCluster, client: Client) -> None:
        self._running, self.client = running, client
        self._sent = 0
        times = times_from_micros(np.full(LEADER_ROWS, AT_US, dtype=np.int64))
        value = pa.array(np.ones(LEADER_ROWS))
        features = [value for _ in SCHEMA.features]
        self._table = pa.table([value, value, times, *features], schema=SCHEMA.observation_schema)
        self._partition = -1

    def ingest(self) -> None:
        reached = self.client.ingest(SCHEMA.name, self._table).reached
        (self._partition,) = dict(reached)
        self._sent += LEADER_ROWS

    def leader(self) -> LocalNode:
        topology = Topology.from_json(self.client.topology_json())
        return self._running.node(placement.owners(topology)[self._partition])

    def answer(self) -> None:
        """Asks for all; the answer is complete, and has what was acknowledged."""
        expected = self._sent
        found = self.client.query(SCHEMA.name)
        rows = int(found.table.column("rows").to_numpy().sum())
        if not found.complete or rows < expected:
            raise AssertionError(f"expected {expected:,} rows in a complete answer, got {found}")

    def check(self) -> None:
        _wait_copies(self.client)
        found = self.client.query(SCHEMA.name)
        rows = int(found.table.column("rows").to_numpy().sum())
        if not found.complete or rows != self._sent:
            raise AssertionError(f"expected {self._sent:,} rows, got {found}")


def _kill_leader(running: galileo.LocalCluster, place: _Place) -> tuple[float, float]:
    """Seconds until a batch is acknowledged, and until an answer is complete."""
    client = place.client
    _wait_copies(client)
    leader = place.leader()
    answered: list[float] = []
    leader.kill()
    reader = threading.Thread(target=lambda: answered.append(seconds(place.answer)))
    reader.start()
    gap_s = seconds(place.ingest)
    reader.join()
    leader.start()
    leader.wait()
    (answer_s,) = answered
    return gap_s, answer_s


def _kill_etcd_leader(cluster: etcd.Cluster, number: int) -> float:
    leader = cluster.leader()
    leader.kill()
    gap_s = seconds(lambda: cluster.put(number))
    leader.start()
    cluster.wait()
    return gap_s
