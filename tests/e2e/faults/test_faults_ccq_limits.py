"""Nodes with little memory, little of a processor, or a disk whose syncs fail."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from fault_injection import strace
from fault_injection.ccq_world import INTERVAL, ccq_world, three_nodes, wait_for_updates
from fault_injection.control_groups import ControlGroup, control_group
from fault_injection.delivery import Deliveries
from fault_injection.ledger import DAY_US, START_US
from fault_injection.nodes import PATIENCE
from fault_injection.requirements import ATTACHING, CPU_GROUP, MEMORY_GROUP
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Ccq, Client
from galileo.cluster import LocalCluster
from galileo.local_node import LocalNode
from galileo.model.schema import Feature, Schema
from galileo.spark.runtime_dir import RuntimeDir

MIB = 1 << 20
NOISE = Schema("noise", [Feature("value")], geohash_precision=12)
CCQS = 10
ROWS = 20_000
CACHED_BYTES = 80 * MIB
"""In memory, before it becomes scarce."""
KEPT_SHARE = 0.8
"""Of the caches, that may be left when the memory is gone."""
SPARE_BYTES, LEFT_BYTES, STEP_BYTES = 80 * MIB, 24 * MIB, 2 * MIB
"""What the group may take beyond what it has; its other process takes more as long as so much is
left, step by step. What is left is enough for the answer to a query of everything."""
PRESSURE_S = 0.5
SHED_WITHIN_S = 60.0
SETTLED_S = 3.0
FILL_WITHIN_S = 240.0
CPU_SHARES = (0.1, 0.25, 0.5)
SLOW_S = (4.0, 8.0)
SYNC_FAILS_S = 2.0
UPDATES_S = 300.0
_BALLAST = """
import sys
kept = []
for line in sys.stdin:
    taken = bytearray(int(line))
    for place in range(0, len(taken), 4096):
        taken[place] = 1
    kept.append(taken)
    print("taken", flush=True)
"""


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.fault(
    "little-memory",
    "memory, CPU",
    needs=(MEMORY_GROUP,),
    rounds=2,
    holds="another process takes what a node's control group has of memory: caches are shed first, "
    "queries are answered, and readers are handed every label once",
)
def test_little_memory(trial: Trial) -> None:
    """Full caches, and then another process takes what is left of the group's memory."""
    settings: dict[str, dict[str, Any]] = {"limits": {"cache_bytes_max": 1 << 30}}
    cluster = LocalCluster(1, 1, trial.directory / "cluster", settings=settings)
    (node,) = cluster.nodes
    with control_group("memory") as group:
        node.prefix = group.prefix
        with cluster:
            client = cluster.client(timeout=PATIENCE)
            client.create_dataset(NOISE)
            ccqs = [_submit(client, least=number) for number in range(CCQS)]
            stored = _fill(trial, client, cluster)
            _leave_evaluator(cluster, group)
            for _ in trial.each_round():
                _squeeze(trial, node, client, group)
            _judge(trial, client, ccqs, stored=stored)


def _submit(client: Client, *, least: int) -> Ccq:
    """Of everything, but not by the same query as another, since equal ones share their caches."""
    query = f"value > -{least}"
    return client.submit(NOISE.name, query, interval=INTERVAL, expiration="1h")


def _noise(first: int) -> pa.Table:
    """Observations of which nothing can be packed: a cache keeps every bit of them."""
    random = np.random.default_rng(first)
    times = START_US + random.integers(0, DAY_US, ROWS)
    return pa.table(
        {
            "latitude": random.uniform(-80.0, 80.0, ROWS),
            "longitude": random.uniform(-180.0, 180.0, ROWS),
            "time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "value": random.uniform(0.0, 1.0, ROWS),
        }
    )


def _cached(client: Client) -> int:
    return client.status().nodes[0].cache_bytes


def _fill(trial: Trial, client: Client, cluster: LocalCluster) -> int:
    """Ingests until the caches, which nothing reads, are large; how many observations."""
    stored, deadline = 0, time.monotonic() + FILL_WITHIN_S
    while (cached := _cached(client)) < CACHED_BYTES:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stored} observations fill the caches with {cached} bytes only")
        if cached > stored * CCQS or not stored:
            client.ingest(NOISE.name, _noise(stored))
            stored += ROWS
        time.sleep(0.5)
    _settle(client)
    trial.say(f"{stored} observations, {_cached(client) // MIB} MiB cached")
    return stored


def _settle(client: Client) -> None:
    """Wait until cycles add nothing: the memory that they work with would be scarce, too."""
    cached, since = _cached(client), time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        time.sleep(PRESSURE_S)
        if (now := _cached(client)) != cached:
            cached, since = now, time.monotonic()


def _leave_evaluator(cluster: LocalCluster, group: ControlGroup) -> None:
    """It is the node's child, and its JVM would take all of the memory by itself."""
    for process in psutil.Process(cluster.nodes[0].pid).children(recursive=True):
        group.leave(process.pid)
    holder = RuntimeDir(cluster.evaluator_directory).holder()
    if holder is not None:
        for process in (holder, *holder.children(recursive=True)):
            group.leave(process.pid)


def _squeeze(trial: Trial, node: LocalNode, client: Client, group: ControlGroup) -> None:
    before = _cached(client)
    with _ballast(group) as grow:
        grow(STEP_BYTES)  # Its interpreter is there, and counts as used.
        group.limit_memory(group.memory_used + SPARE_BYTES)
        taken = SPARE_BYTES - LEFT_BYTES
        grow(taken)
        deadline = time.monotonic() + SHED_WITHIN_S
        while (
            node.running and _cached(client) > before * KEPT_SHARE and time.monotonic() < deadline
        ):
            time.sleep(PRESSURE_S)
            taken += grow(STEP_BYTES) if group.memory_left > LEFT_BYTES else 0
        trial.expect(node.running, "the kernel ended the node, though it had caches to give")
        after = _cached(client)
        trial.expect(after <= before * KEPT_SHARE, f"the caches kept {after} of {before} bytes")
        trial.figures["cache before, MiB"] = round(before / MIB, 1)
        trial.figures["cache after, MiB"] = round(after / MIB, 1)
        trial.figures["taken by the other process, MiB"] = taken // MIB
        trial.counts["queries answered meanwhile"] += client.count(NOISE.name) > 0
    group.limit_memory(1 << 40)


@contextlib.contextmanager
def _ballast(group: ControlGroup) -> Iterator[Callable[[int], int]]:
    """A process in the group; the function given has it take more bytes, and returns them."""
    command = [*group.prefix, sys.executable, "-c", _BALLAST]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def grow(size: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            if not process.stdout.readline():
                raise RuntimeError("the kernel ended the other process, not the node")
            return size

        try:
            yield grow
        finally:
            process.kill()


def _judge(trial: Trial, client: Client, ccqs: list[Ccq], *, stored: int) -> None:
    """Each reader fetches what waited, from caches, files and the log."""
    wanted = client.query(NOISE.name, "value > -1")
    trial.expect(client.count(NOISE.name) == stored, f"expected {stored} observations")
    for ccq in ccqs:
        deliveries, token = Deliveries(), ccq.token
        deliveries.begin(ccq.initial)
        while len(deliveries) < len(wanted):
            update = client.fetch(ccq.id, token=token, wait=30.0)
            deliveries.take(update)
            token = update.token
        audit = deliveries.audit(wanted)
        trial.counts["labels"] += audit.labels
        trial.expect(not audit.wrong, f"a reader: {audit.wrong} of {audit}")


# --- processors --------------------------------------------------------------------------------


@pytest.mark.fault(
    "little-cpu",
    "memory, CPU",
    needs=(CPU_GROUP,),
    rounds=4,
    lasting=True,
    holds="nodes have a tenth to half of a processor for seconds: every reader is handed every "
    "label once, in order",
)
def test_little_cpu(trial: Trial) -> None:
    with contextlib.ExitStack() as stack:
        cluster = three_nodes(trial)
        groups = [stack.enter_context(control_group("cpu")) for _ in cluster.nodes]
        for node, group in zip(cluster.nodes, groups, strict=True):
            node.prefix = group.prefix
        with ccq_world(trial, cluster) as world:
            for _ in trial.each_round():
                group, share = trial.random.choice(groups), trial.random.choice(CPU_SHARES)
                trial.say(f"a node has {share:.0%} of a processor")
                group.limit_cpu(share)
                time.sleep(trial.random.uniform(*SLOW_S))
                group.limit_cpu(64.0)
                trial.counts["times slowed"] += 1
                wait_for_updates(world, timeout_s=UPDATES_S)


# --- disks -------------------------------------------------------------------------------------


@pytest.mark.fault(
    "ccq-sync-error",
    "fsync error",
    needs=(ATTACHING,),
    rounds=3,
    lasting=True,
    holds="fdatasync fails with EIO on a node of a cluster under a stream: its partitions stop and "
    "say so until it is started again, and every reader is handed every label once",
)
def test_ccq_sync_error(trial: Trial) -> None:
    """A node of a cluster, under a stream with readers; it is started again each time."""
    with ccq_world(trial) as world:
        for _ in trial.each_round():
            node = trial.random.choice(world.cluster.nodes)
            assert node.pid is not None, "all nodes run"
            fault = strace.fault(strace.SYNC, "error=EIO", when="1+")
            trace = trial.directory / "trace"
            with strace.injecting(node.pid, fault, trace=trace):
                _await_stop(world.client, node)
                time.sleep(SYNC_FAILS_S)
            trial.counts["stopped partitions"] += len(_stopped(world.client, node))
            trial.expect(bool(_stopped(world.client, node)), "it went on once the disk synced")
            node.kill()
            node.restart()
            trial.expect(not _stopped(world.client, node), "still stopped after a restart")
            wait_for_updates(world, timeout_s=UPDATES_S)


def _await_stop(client: Client, node: LocalNode) -> None:
    wait_until(
        lambda: bool(_stopped(client, node)),
        what=f"{node.name} to stop a partition",
    )


def _stopped(client: Client, node: LocalNode) -> list[str]:
    return [why for one in client.status().nodes if one.name == node.name for why in one.stopped]
