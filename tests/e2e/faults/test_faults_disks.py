"""Disks that are full, become read-only, or lose power."""

from __future__ import annotations

import errno
import os
import shutil
import time

import pytest
from fault_injection.disks import FLAGS, LoopDisk, MemoryDisk
from fault_injection.ledger import Ledger
from fault_injection.nodes import (
    MERGING,
    PATIENCE,
    SMALL_FILES,
    one_node,
    producing,
    send,
    wait_acknowledged,
)
from fault_injection.requirements import LOOP_DISK, MEMORY_DISK
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.errors import GalileoError, PartitionReadOnly

DISK_BYTES = 3 << 20
BALLAST_BYTES = 2 << 20
BATCHES_MAX = 2_000
LIFE_S = (0.0, 0.8)


@pytest.mark.fault(
    "disk-full",
    "disk full, read-only",
    needs=(MEMORY_DISK,),
    rounds=2,
    holds="no room on the disk: ingest is refused with a reason, reads go on, all goes on with "
    "room",
)
def test_disk_full(trial: Trial) -> None:
    with (
        MemoryDisk(trial.directory / "disk", size_bytes=DISK_BYTES) as disk,
        one_node(
            trial.directory / "cluster", storage=SMALL_FILES, data=disk.directory / "node"
        ) as (cluster, ledger),
    ):
        client, impatient = cluster.client(timeout=PATIENCE), cluster.client(timeout="0.5s")
        for number in trial.each_round():
            ballast = disk.directory / "ballast"
            room = shutil.disk_usage(disk.directory).free
            ballast.write_bytes(bytes(max(0, room - (DISK_BYTES - BALLAST_BYTES) // 4)))
            refused = _until_refused(ledger, impatient)
            _judge_refusal(trial, client, refused, words=os.strerror(errno.ENOSPC))
            trial.judge(ledger.audit(client), f"disk full, round {number}")
            ballast.unlink()
            send(ledger, client, batches=3)  # patient: the pause after a full disk passes
            wait_until(lambda: not client.status().nodes[0].stopped, what="all partitions to go on")
            trial.judge(ledger.audit(client), f"room again, round {number}")
            cluster.nodes[0].kill()
            cluster.nodes[0].restart()
            trial.judge(ledger.audit(client), f"disk full and a restart, round {number}")


def _until_refused(ledger: Ledger, client: Client) -> GalileoError | None:
    for _ in range(BATCHES_MAX):
        try:
            ledger.send(client)
        except GalileoError as error:
            return error
    return None


def _judge_refusal(
    trial: Trial, client: Client, refused: GalileoError | None, *, words: str
) -> None:
    trial.counts["refused"] += refused is not None
    clear = isinstance(refused, PartitionReadOnly) and words in refused.message
    trial.expect(clear, f"expected partition_read_only with {words!r}, got {refused!r}")
    stopped = client.status().nodes[0].stopped
    trial.counts["stopped partitions"] += len(stopped)
    trial.expect(any(words in why for why in stopped), f"status says {stopped}")


@pytest.mark.fault(
    "read-only",
    "disk full, read-only",
    needs=(LOOP_DISK,),
    rounds=2,
    holds="a file system that the kernel made read-only: ingest is refused, reads go on, a restart "
    "after the repair recovers",
)
def test_read_only(trial: Trial) -> None:
    """The kernel finds an error in the file system, and makes it read-only."""
    with (
        LoopDisk(trial.directory / "loop") as disk,
        one_node(
            trial.directory / "cluster", storage=SMALL_FILES, data=disk.directory / "node"
        ) as (cluster, ledger),
    ):
        client, impatient = cluster.client(timeout=PATIENCE), cluster.client(timeout="0.5s")
        for number in trial.each_round():
            send(ledger, client, batches=5)
            disk.break_metadata()
            refused = _until_refused(ledger, impatient)
            _judge_refusal(trial, client, refused, words=os.strerror(errno.EROFS))
            trial.judge(ledger.audit(client), f"a read-only disk, round {number}")
            cluster.nodes[0].kill()
            disk.check_and_mount()
            cluster.nodes[0].restart()
            trial.judge(ledger.audit(client), f"a repaired disk, round {number}")
            send(ledger, client, batches=3)
            trial.judge(ledger.audit(client), f"writing again, round {number}")


@pytest.mark.slow
@pytest.mark.fault(
    "power-cut",
    "power cut",
    needs=(LOOP_DISK,),
    rounds=10,
    quick=1,
    holds="an ext4 that loses all it has not written while the node runs: everything acknowledged "
    "is there, once",
)
def test_power_cut(trial: Trial) -> None:
    """A stopped node, a file system that writes nothing any more, a new start."""
    with LoopDisk(trial.directory / "loop") as disk:
        data = disk.directory / "node"
        with one_node(trial.directory / "cluster", storage=MERGING, data=data) as (
            cluster,
            ledger,
        ):
            client = cluster.client(timeout=PATIENCE)
            (node,) = cluster.nodes
            with producing(cluster, ledger):
                for number in trial.each_round():
                    wait_acknowledged(ledger)
                    time.sleep(trial.random.uniform(*LIFE_S))
                    flag = trial.random.choice((1, 2, 2))
                    node.pause()
                    disk.cut_power(flag=flag)
                    node.kill()
                    disk.repair()
                    node.restart()
                    trial.counts[f"cuts, {FLAGS[flag]}"] += 1
                    trial.judge(ledger.audit(client), f"power cut {number} with flag {flag}")
            trial.judge(ledger.audit(client), "the last power cut")
        trial.judge_at_rest(data, ledger)
