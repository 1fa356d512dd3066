"""Files are synced, named and deleted in an order that a power cut cannot turn into a loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from journals import SCHEMA, make_commit
from lone_nodes import commit_alone
from recording_disk import RecordingDisk, Violation

from galileo.node.dataset_shard import DatasetShard
from galileo.storage import backup as backups
from galileo.storage import commit_log
from galileo.storage.compaction import CompactionOptions
from galileo.storage.disk import RealDisk
from galileo.storage.metadata_log import MetadataLog
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

Act = Callable[["Node"], None]

SMALL = JournalOptions(segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=9_000)
BATCHES = 9
PARTITIONS = (3, 12)


class Node:
    """A store on a recording disk, with a dataset and, if wanted, some commits."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        # What is set aside to be deleted may come back: the next start deletes it.
        self.disk = RecordingDisk(
            directory,
            logged=(".segment",),
            logs=(commit_log.DIRECTORY,),
            passing=("lock", "*removed"),
        )
        with self.disk:
            self.open()

    def open(self) -> None:
        self.store = Store.open(self.directory, SMALL, wall=lambda: 1.5e9)
        self.store.create_dataset(SCHEMA)
        self.shard = DatasetShard(SCHEMA, log=self.store.log)
        self.store.recover(lambda _, partition, replayed: self.shard.replay(partition, replayed))
        for partition in PARTITIONS:
            self.shard.attach(partition, self.store.journal("nam", partition))

    def append(self) -> None:
        for partition in PARTITIONS:
            for batch in range(BATCHES):
                self.store.journal("nam", partition).append([make_commit(batch, rows=20)])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def commit_directly(node: Node) -> None:
    node.append()
    node.disk.check(logged=False)


def commit_by_the_log(node: Node) -> None:
    for batch in range(BATCHES):
        commit_alone(node.shard, {p: [make_commit(batch, rows=20)] for p in PARTITIONS})
        node.disk.check()
    assert list((node.directory / commit_log.DIRECTORY).iterdir())
    assert node.store.log.checkpoint()
    node.disk.check(logged=False)


def recover_from_the_log(node: Node) -> None:
    commit_alone(node.shard, {p: [make_commit(0, rows=20)] for p in PARTITIONS})
    [log] = (node.directory / commit_log.DIRECTORY).iterdir()
    node.store.log._files.clear()  # as a killed process leaves it
    node.store.close()
    for segment in node.directory.rglob("*.segment"):
        with segment.open("r+b") as file:
            file.truncate()
            os.fsync(file.fileno())  # Nothing that was there before counts.
    node.open()
    assert not log.exists()
    node.disk.check(logged=False)


def merge(node: Node) -> None:
    node.append()
    assert node.store.journal("nam", 3).merge(EVERYTHING, lambda _: True)
    assert list(node.directory.rglob("*.merged"))
    node.disk.check(logged=False)


def drop(node: Node) -> None:
    node.append()
    assert node.store.journal("nam", 3).drop(BATCHES).commits
    node.disk.check(logged=False)


def set_aside(node: Node) -> None:
    node.append()
    node.store.set_aside("nam", 3)
    node.disk.check(logged=False)


def restart(node: Node) -> None:
    node.append()
    journal = node.store.journal("nam", 3)
    journal.drop(BATCHES)
    node.store.restart_journal("nam", 3, journal.log_start_record)
    node.disk.check(logged=False)


def delete_partition(node: Node) -> None:
    node.append()
    node.store.delete_partition(3)
    assert not node.store.partition_directory("nam", 3).exists()
    node.disk.check(logged=False)


def drop_dataset(node: Node) -> None:
    node.append()
    assert node.store.drop_dataset("nam", 1) == ["nam"]
    node.disk.check(logged=False)
    node.store.delete_dropped()
    assert not list(node.directory.glob("journals/*"))


def save_records(node: Node) -> None:
    for number in range(3):
        node.store.save_record("ccq", "one", str(number).encode())
        node.disk.check()
    node.store.delete_record("ccq", "one")
    node.disk.check()


def save_batches(node: Node) -> None:
    log = MetadataLog(node.directory / "batches", SMALL.disk, batches_max=2)
    for number in range(12):
        log.save({f"name-{number % 4}": str(number).encode()})
        node.disk.check()
    assert len(list((node.directory / "batches").iterdir())) < 12


def finish(node: Node, act: Act) -> None:
    act(node)
    node.store.close()


ACTS = [
    commit_directly,
    commit_by_the_log,
    recover_from_the_log,
    merge,
    drop,
    set_aside,
    restart,
    delete_partition,
    drop_dataset,
    save_records,
    save_batches,
]


@pytest.mark.parametrize("act", ACTS)
def test_store_syncs_what_a_power_cut_must_leave(node: Node, act: Act) -> None:
    node.disk.check()
    with node.disk:
        finish(node, act)
    node.disk.check(logged=False)


@pytest.mark.parametrize("link", [False, True])
def test_backup_and_restore_are_durable_when_they_return(
    node: Node, tmp_path: Path, link: bool
) -> None:
    node.append()
    node.store.close()
    with RecordingDisk(tmp_path) as disk:
        backups.backup(node.directory, tmp_path / "backup", now=1.6e9, link=link)
        disk.check()
        backups.restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
        disk.check()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("operation", ["fdatasync", "sync_directory"])
def test_recording_disk_convicts_a_store_that_does_not_sync(
    node: Node, monkeypatch: pytest.MonkeyPatch, act: Act, operation: str
) -> None:
    monkeypatch.setattr(RealDisk, operation, lambda *_: None)
    with pytest.raises(Violation), node.disk:
        finish(node, act)
