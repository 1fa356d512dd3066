"""Nodes killed at random moments, or at the nth call of an ingest, a merge or a drop."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from fault_injection import strace
from fault_injection.damage import Commits, data_of, read_all
from fault_injection.ledger import Ledger
from fault_injection.nodes import (
    DATASET,
    MERGING,
    PATIENCE,
    SMALL_FILES,
    one_node,
    producing,
    send,
    wait_acknowledged,
)
from fault_injection.requirements import ATTACHING
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.errors import GalileoError
from galileo.local_node import LocalNode
from galileo.model.retention import Retention
from galileo.storage.verify import verify

LIFE_S = (0.0, 1.0)
"""How long a node that acknowledges is left alone before it is killed."""


@pytest.mark.slow
@pytest.mark.fault(
    "kill",
    "crash",
    rounds=10,
    quick=1,
    holds="SIGKILL at random moments of ingest and merging: everything acknowledged is there, once",
)
def test_kill(trial: Trial) -> None:
    place = trial.directory / "cluster"
    with one_node(place, storage=MERGING) as (cluster, ledger):
        client = cluster.client(timeout=PATIENCE)
        with producing(cluster, ledger):
            for number in trial.each_round():
                wait_acknowledged(ledger)
                time.sleep(trial.random.uniform(*LIFE_S))
                cluster.nodes[0].kill()
                cluster.nodes[0].restart()
                trial.judge(ledger.audit(client), f"kill {number}")
        trial.judge(ledger.audit(client), "the last kill")
    trial.judge_at_rest(place / "node-1", ledger)


BATCHES = 12
SEGMENTS_TO_MERGE = 3
MERGE_LATER_S = 2.0
"""From the start of a node to its first look for what is to be merged: time to attach strace."""
MERGE_TIMEOUT_S = 20.0

Work: TypeAlias = Callable[[], None]


@pytest.mark.fault(
    "kill-at-call",
    "kill at the nth system call",
    needs=(ATTACHING,),
    rounds=20,
    holds="SIGKILL at the nth write, fdatasync and directory sync of an ingest: nothing "
    "acknowledged is lost",
)
def test_kill_at_call(trial: Trial) -> None:
    """Every call of an ingest: the first of each kind, the second, … until none kills any more."""
    with one_node(trial.directory / "cluster", storage=SMALL_FILES) as (cluster, ledger):
        client = cluster.client(timeout=PATIENCE)
        impatient = cluster.client(timeout="1s")

        def ingest() -> None:
            for _ in range(BATCHES):
                if cluster.nodes[0].running:
                    _sent(ledger, impatient)

        for name in ("pwritev", "fdatasync", "fsync"):
            for nth in range(1, trial.rounds + 1):
                died = killed(trial, cluster.nodes[0], (name, nth), ingest)
                trial.judge(ledger.audit(client), f"a kill at {name} number {nth}")
                if trial.complaints or not died:
                    break
        send(ledger, client, batches=3)
        trial.judge(ledger.audit(client), "all kills")
    trial.judge_at_rest(trial.directory / "cluster" / "node-1", ledger)


@pytest.mark.fault(
    "kill-merge",
    "kill at the nth system call",
    needs=(ATTACHING,),
    rounds=20,
    holds="SIGKILL at the nth write, sync, rename and unlink of a merge: each commit is there, "
    "once",
)
def test_kill_merge(trial: Trial) -> None:
    """Every call of a merge, which writes, renames and deletes files in the background."""
    place, kept = trial.directory / "cluster", trial.directory / "kept"
    with one_node(place, storage={**MERGING, "compaction_interval_s": MERGE_LATER_S}) as (
        cluster,
        ledger,
    ):
        _fill_segments(cluster, ledger)
        shutil.copytree(place / "node-1", kept)
        for name in ("pwritev", "fdatasync", "rename", "fsync", "unlink"):
            for nth in range(1, trial.rounds + 1):
                put_back(kept, place / "node-1")
                cluster.nodes[0].restart()
                died = killed(
                    trial, cluster.nodes[0], (name, nth), lambda: _wait_merged(cluster.nodes[0])
                )
                client = cluster.client(timeout=PATIENCE)
                trial.judge(ledger.audit(client), f"a kill at {name} number {nth} of a merge")
                cluster.nodes[0].kill()
                trial.judge_at_rest(place / "node-1", ledger)
                if trial.complaints or not died:
                    break


@pytest.mark.slow
@pytest.mark.fault(
    "sync-error",
    "fsync error",
    needs=(ATTACHING,),
    rounds=3,
    quick=1,
    holds="fdatasync fails with EIO: the partition stops and says so, nothing is acknowledged "
    "falsely, reads go on, a restart recovers",
)
def test_sync_error(trial: Trial) -> None:
    """The nth fdatasync fails: no false acknowledgement, no write after it, reads go on."""
    with one_node(trial.directory / "cluster", storage=SMALL_FILES) as (cluster, ledger):
        (node,) = cluster.nodes
        client, impatient = cluster.client(timeout=PATIENCE), cluster.client(timeout="1s")
        for number in trial.each_round():
            fault = strace.fault(strace.SYNC, "error=EIO", when=f"{number}+")
            with _injecting(trial, node, fault):
                refused = _refusals(ledger, impatient)
            trial.counts["refused"] += len(refused)
            trial.expect(bool(refused), f"EIO at fdatasync {number} and later refused nothing")
            trial.expect(
                {error.kind for error in refused} <= {"partition_read_only"},
                f"expected partition_read_only, got {refused[:3]}",
            )
            stopped = client.status().nodes[0].stopped
            trial.counts["stopped partitions"] += len(stopped)
            trial.expect(any("durable" in why for why in stopped), f"status says {stopped}")
            trial.judge(ledger.audit(client), f"EIO at fdatasync {number}, still running")
            again = _refusals(ledger, impatient, batches=3)
            trial.expect(bool(again), "a stopped partition took writes once the disk synced again")
            trial.counts["refused"] += len(again)
            node.kill()
            node.restart()
            trial.judge(ledger.audit(client), f"EIO at fdatasync {number} and a restart")
            send(ledger, client, batches=2)
            trial.expect(not client.status().nodes[0].stopped, "still stopped after a restart")
    trial.judge_at_rest(trial.directory / "cluster" / "node-1", ledger)


def killed(trial: Trial, node: LocalNode, call: tuple[str, int], work: Work) -> bool:
    """Kills a node at a call of its work, and starts it again; whether it came to that."""
    name, nth = call
    what = f"signal={signal.SIGKILL.name}"
    with _injecting(trial, node, strace.fault(strace.CALLS[name], what, when=str(nth))):
        work()
        died = not node.running
    trial.counts[f"kills at {name}" if died else f"beyond {name}"] += 1
    trial.counts["rounds"] += 1
    if died:
        node.kill()
        node.restart()
    return died


def _injecting(
    trial: Trial, node: LocalNode, fault: list[str]
) -> contextlib.AbstractContextManager[None]:
    assert node.pid is not None, "the node runs"
    return strace.injecting(node.pid, fault, trace=trial.directory / "trace")


def _sent(ledger: Ledger, client: Client) -> GalileoError | None:
    try:
        ledger.send(client)
    except GalileoError as error:
        return error
    return None


def _refusals(ledger: Ledger, client: Client, *, batches: int = BATCHES) -> list[GalileoError]:
    errors = (_sent(ledger, client) for _ in range(batches))
    return [error for error in errors if error is not None]


def _fill_segments(cluster: LocalCluster, ledger: Ledger) -> None:
    """Sends until each partition of data can be merged, and kills the node before it is."""
    (node,) = cluster.nodes
    place = cluster.directory / "node-1"
    client = cluster.client(timeout=PATIENCE)
    while min(_segments(place).values(), default=0) <= SEGMENTS_TO_MERGE:
        ledger.send(client)
    node.kill()
    if list(place.rglob("*.merg*")):
        raise TimeoutError("the node merged before there was something to look at; try again")


def _segments(place: Path) -> dict[str, int]:
    return {
        str(partition): len(list(partition.glob("*.segment")))
        for partition in place.glob(f"journals/{DATASET}/*")
    }


def put_back(kept: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(kept, place)


def _wait_merged(node: LocalNode) -> None:
    """Returns when all is merged, or the node is dead."""
    place = node.log.parent / node.name
    wait_until(
        lambda: not node.running or max(_segments(place).values()) == 1,
        what="a merge",
        timeout_s=MERGE_TIMEOUT_S,
    )
    time.sleep(0.2)


DROPPED_BATCHES = 60
OUTDATED = Retention("1d", past_readers=True)
"""The numbered observations are years old, so all of them are to go."""


@pytest.mark.fault(
    "kill-drop",
    "kill at the nth system call",
    needs=(ATTACHING,),
    rounds=20,
    holds="SIGKILL at the nth write, sync, rename and unlink while retention drops files: of each "
    "log a beginning is gone, the rest is there",
)
def test_kill_drop(trial: Trial) -> None:
    place, kept = trial.directory / "cluster", trial.directory / "kept"
    settings = {**SMALL_FILES, "retention_check_s": 3_600.0}
    with one_node(place, storage=settings) as (cluster, ledger):
        whole = _filled(cluster, ledger)
        shutil.copytree(place / "node-1", kept)
        for name in ("pwritev", "fdatasync", "rename", "fsync", "unlink"):
            for nth in range(1, trial.rounds + 1):
                put_back(kept, place / "node-1")
                cluster.nodes[0].restart()
                died = killed(trial, cluster.nodes[0], (name, nth), lambda: _drop(cluster))
                _judge_drop(trial, cluster, whole, after=f"a kill at {name} number {nth}")
                if trial.complaints or not died:
                    break
        _judge_after_drops(trial, cluster, ledger)


def _filled(cluster: LocalCluster, ledger: Ledger) -> Commits:
    client = cluster.client(timeout=PATIENCE)
    send(ledger, client, batches=DROPPED_BATCHES)
    client.set_retention(DATASET, OUTDATED)
    cluster.nodes[0].kill()
    return data_of(read_all(cluster.directory / "node-1").commits)


def _drop(cluster: LocalCluster) -> None:
    """Drops everything; fails where the node dies of it."""
    with contextlib.suppress(GalileoError):
        cluster.client(timeout="1s").apply_retention(DATASET)


def _judge_drop(trial: Trial, cluster: LocalCluster, whole: Commits, *, after: str) -> None:
    """Of each log a beginning may be gone; the rest is as it was, in the node and on its disk."""
    client = cluster.client(timeout=PATIENCE)
    served = client.read(client.query(DATASET)).num_rows
    cluster.nodes[0].kill()
    directory = cluster.directory / "node-1"
    report, reading = verify(directory), read_all(directory)
    trial.expect(report.ok, f"{after}: verify found {report.damages[:3]}")
    trial.expect(not reading.refusals, f"{after}: {reading.refusals[:3]}")
    commits = data_of(reading.commits)
    trial.counts["commits kept"] += len(commits)
    trial.counts["commits dropped"] += len(whole) - len(commits)
    for partition in {place[:2] for place in whole}:
        last = max(place[2] for place in whole if place[:2] == partition)
        left = [place[2] for place in commits if place[:2] == partition]
        first = min(left, default=last + 1)
        right = sorted(left) == list(range(first, last + 1))
        trial.expect(right, f"{after}: {partition} has {sorted(left)} of commits 1 to {last}")
    trial.expect_same(whole, commits, after=after)
    stored = sum(table.num_rows for table, _ in commits.values())
    trial.expect(served == stored, f"{after}: {served} observations served, {stored} stored")


def _judge_after_drops(trial: Trial, cluster: LocalCluster, ledger: Ledger) -> None:
    """The log goes on behind what was dropped, and new observations are there, once."""
    cluster.nodes[0].restart()
    client = cluster.client(timeout=PATIENCE)
    _drop(cluster)
    before = len(client.query(DATASET))
    trial.expect(before == 0, f"expected nothing after a drop, got {before} labels")
    fresh = Ledger(DATASET)
    send(fresh, client, batches=3)
    trial.judge(fresh.audit(client), "all kills")
