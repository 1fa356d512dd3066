"""Nodes that die while retention drops the beginning of their logs."""

from __future__ import annotations

import contextlib
import shutil

from fault_injection.damage import Commits, read_all
from fault_injection.ledger import Ledger
from fault_injection.nodes import DATASET, PATIENCE, SMALL_FILES, one_node, send
from fault_injection.requirements import ATTACHING

from faults.registry import Scenario, Trial
from faults.storage_calls import killed, put_back
from galileo.cluster import LocalCluster
from galileo.errors import GalileoError
from galileo.model.retention import Retention
from galileo.storage.verify import verify

BATCHES = 60
OUTDATED = Retention("1d", past_readers=True)
"""The numbered observations are years old, so all of them are to go."""


def kill_drop(trial: Trial) -> None:
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
                _judge(trial, cluster, whole, after=f"a kill at {name} number {nth}")
                if trial.complaints or not died:
                    break
        _judge_going_on(trial, cluster, ledger)


def _filled(cluster: LocalCluster, ledger: Ledger) -> Commits:
    client = cluster.client(timeout=PATIENCE)
    send(ledger, client, batches=BATCHES)
    client.set_retention(DATASET, OUTDATED)
    cluster.nodes[0].kill()
    return read_all(cluster.directory / "node-1").commits


def _drop(cluster: LocalCluster) -> None:
    """Drops everything; fails where the node dies of it."""
    with contextlib.suppress(GalileoError):
        cluster.client(timeout="1s").apply_retention(DATASET)


def _judge(trial: Trial, cluster: LocalCluster, whole: Commits, *, after: str) -> None:
    """Of each log a beginning may be gone; the rest is as it was, in the node and on its disk."""
    client = cluster.client(timeout=PATIENCE)
    served = client.read(client.query(DATASET)).num_rows
    cluster.nodes[0].kill()
    directory = cluster.directory / "node-1"
    report, reading = verify(directory), read_all(directory)
    trial.expect(report.ok, f"{after}: verify found {report.damages[:3]}")
    trial.expect(not reading.refusals, f"{after}: {reading.refusals[:3]}")
    trial.counts["commits kept"] += len(reading.commits)
    trial.counts["commits dropped"] += len(whole) - len(reading.commits)
    for partition in {place[:2] for place in whole}:
        last = max(place[2] for place in whole if place[:2] == partition)
        left = [place[2] for place in reading.commits if place[:2] == partition]
        first = min(left, default=last + 1)
        right = sorted(left) == list(range(first, last + 1))
        trial.expect(right, f"{after}: {partition} has {sorted(left)} of commits 1 to {last}")
    _expect_same(trial, whole, reading.commits, after=after)
    stored = sum(table.num_rows for table, _ in reading.commits.values())
    trial.expect(served == stored, f"{after}: {served} observations served, {stored} stored")


def _expect_same(trial: Trial, whole: Commits, left: Commits, *, after: str) -> None:
    wrong = [
        place
        for place, (table, paths) in left.items()
        if place not in whole
        or not (table.equals(whole[place][0]) and paths.equals(whole[place][1]))
    ]
    trial.counts["served wrongly"] += len(wrong)
    trial.expect(not wrong, f"{after}: other than stored: {wrong[:5]}")


def _judge_going_on(trial: Trial, cluster: LocalCluster, ledger: Ledger) -> None:
    """The log goes on behind what was dropped, and new observations are there, once."""
    cluster.nodes[0].restart()
    client = cluster.client(timeout=PATIENCE)
    _drop(cluster)
    before = len(client.query(DATASET))
    trial.expect(before == 0, f"expected nothing after a drop, got {before} labels")
    fresh = Ledger(DATASET)
    send(fresh, client, batches=3)
    trial.judge(fresh.audit(client), "all kills")


SCENARIOS = (
    Scenario(
        "kill-drop",
        "SIGKILL at the nth write, sync, rename and unlink while retention drops files: of each "
        "log a beginning is gone, the rest is there",
        (ATTACHING,),
        20,
        kill_drop,
        row="kill at the nth system call",
    ),
)
