"""The commit log: what it makes durable survives power cuts, whatever else fails."""

from __future__ import annotations

import errno
import functools
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from lone_nodes import commit_alone
from parameters import keep_quick
from power_cut import PowerCutDisk

from galileo.cursor import Cursor
from galileo.errors import ConfigError, CorruptData, GalileoError, PartitionReadOnly
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.node.dataset_shard import DatasetShard
from galileo.storage import commit_log
from galileo.storage.journal import Commit, Committed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions, SegmentWriter

PARTITIONS = range(6)
SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=4)

Results = dict[int, list[Committed | GalileoError]]


@functools.cache
def commit(batch: int, *, rows: int = 3) -> Commit:
    chance = np.random.default_rng(batch)
    table = pa.table(
        [
            chance.uniform(30, 50, rows),
            chance.uniform(-120, -80, rows),
            times_from_micros(chance.integers(0, 10**12, rows)),
            chance.uniform(250, 310, rows),
        ],
        schema=SCHEMA.observation_schema,
    )
    return Commit("radar", batch, *paths.index(SCHEMA, table))


@dataclass
class Node:
    """A store with a shard whose commits go through the commit log."""

    store: Store
    shard: DatasetShard

    def write(self, commits: Mapping[int, list[Commit]]) -> Results:
        return commit_alone(self.shard, commits)

    def batch(self, number: int, *, rows: int = 3) -> Results:
        return self.write({p: [commit(number, rows=rows)] for p in PARTITIONS})

    def batches(self, partition: int) -> list[int]:
        journal = self.shard.journals[partition]
        return [journal.header(n).batch for n in range(1, journal.last_sequence + 1)]


@contextmanager
def opened(
    directory: Path, disk: PowerCutDisk | None = None, *, options: JournalOptions | None = None
) -> Iterator[Node]:
    """A node; at the end it is killed, not closed."""
    options = options or JournalOptions(disk=disk or PowerCutDisk(directory, 1))
    store = Store.open(directory, options, wall=lambda: 0.0)
    store.create_dataset(SCHEMA)
    shard = DatasetShard(SCHEMA, log=store.log)
    store.recover(lambda _, partition, replayed: shard.replay(partition, replayed))
    for error in store.damaged.values():
        raise error
    for partition in PARTITIONS:
        shard.attach(partition, store.journal(SCHEMA.name, partition))
    try:
        yield Node(store, shard)
    finally:
        kill(store)


def kill(store: Store) -> None:
    """Ends the process: descriptors are closed, nothing is synced."""
    for journal in store.journals().values():
        journal._writer._is_unsynced = False
        journal.close()
    store.log._files, store.log._unsynced = [], {}
    store.close()


def is_log(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").resolve().suffix == ".log"


def logs(directory: Path) -> list[Path]:
    return sorted((directory / commit_log.DIRECTORY).glob("*.log"))


def test_commit_log_syncs_a_batch_of_many_partitions_once(tmp_path: Path) -> None:
    disk = PowerCutDisk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        for number in range(5):
            before = disk.syncs
            node.batch(number)
            assert disk.syncs == before + 1
        assert node.shard.published() == Cursor(dict.fromkeys(PARTITIONS, 5))
        assert node.store.log.syncs.count == 5


def test_commit_log_leaves_large_groups_and_single_partitions_to_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LOGGED_BYTES_MAX", 1)
    disk = PowerCutDisk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        before = disk.syncs
        node.batch(0)
        assert disk.syncs == before + len(PARTITIONS)
        node.write({2: [commit(1)]})
        assert disk.syncs == before + len(PARTITIONS) + 1
    assert not logs(tmp_path)


def test_commits_survive_a_power_cut_that_loses_the_segments(tmp_path: Path) -> None:
    disk = PowerCutDisk(tmp_path, 3)
    with opened(tmp_path, disk) as node:
        for number in range(8):
            node.batch(number)
    disk.cut()
    with opened(tmp_path, disk) as node:
        for partition in PARTITIONS:
            assert node.batches(partition) == list(range(8))
        assert {r[0].duplicate for r in node.batch(7).values() if isinstance(r[0], Committed)} == {
            True
        }
    assert not logs(tmp_path), "the start has emptied it"


def test_checkpoint_empties_the_log_and_keeps_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LOG_BYTES_MAX", 10_000)
    disk = PowerCutDisk(tmp_path, 3)
    with opened(tmp_path, disk) as node:
        number = 0
        while not node.shard.wants_maintenance:
            node.batch(number)
            number += 1
        node.shard.maintain()
        assert not logs(tmp_path)
        assert not node.store.log.is_full
    disk.cut()
    with opened(tmp_path, disk) as node:
        assert node.batches(0) == list(range(number))


def test_close_empties_the_log(tmp_path: Path) -> None:
    disk = PowerCutDisk(tmp_path, 3)
    with opened(tmp_path, disk) as node:
        node.batch(0)
        assert logs(tmp_path)
        node.store.close()
    assert not logs(tmp_path)
    disk.cut()
    with opened(tmp_path, disk) as node:
        assert node.batches(5) == [0]


def test_recovery_ignores_a_torn_record_at_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.batch(0)
    (log,) = logs(tmp_path)
    with log.open("r+b") as file:
        file.seek(0, 2)
        file.write(log.read_bytes()[:500])
    with opened(tmp_path) as node:
        assert node.batches(0) == [0]


def test_recovery_with_a_damaged_record_before_another_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.batch(0)
        node.batch(1)
    (log,) = logs(tmp_path)
    content = bytearray(log.read_bytes())
    content[700] ^= 1
    log.write_bytes(content)
    with raises(CorruptData, file=str(log), offset=0), opened(tmp_path):
        pass


def test_recovery_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.batch(0)
    (log,) = logs(tmp_path)
    content = log.read_bytes()
    header = bytearray(content[: commit_log._HEADER.size])
    header[8] += 1
    crc = commit_log._CRC.pack(commit_log.checksum([bytes(header)]))
    log.write_bytes(bytes(header) + crc + content[len(header) + len(crc) :])
    with raises(ConfigError, expected="format_version"), opened(tmp_path):
        pass


def test_recovery_passes_over_segments_that_are_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.batch(0)
        node.store.delete_partition(3)
    with opened(tmp_path) as node:
        assert node.batches(3) == []
        assert node.batches(2) == [0]


def test_log_that_cannot_be_written_leaves_commits_to_the_segments(tmp_path: Path) -> None:
    disk = PowerCutDisk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        (tmp_path / commit_log.DIRECTORY).write_text("a file in the way")
        before = disk.syncs
        results = node.batch(0)
        assert all(isinstance(result[0], Committed) for result in results.values())
        assert disk.syncs == before + len(PARTITIONS)
        (tmp_path / commit_log.DIRECTORY).unlink()


def test_failed_sync_of_the_log_leaves_commits_to_the_segments(tmp_path: Path) -> None:
    class Disk(PowerCutDisk):
        fails = False

        def fdatasync(self, descriptor: int) -> None:
            if self.fails and is_log(descriptor):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fdatasync(descriptor)

    disk = Disk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        node.batch(0)
        disk.fails = True
        before = disk.syncs
        for number in (1, 2):
            results = node.batch(number)
            assert all(isinstance(result[0], Committed) for result in results.values())
        assert disk.syncs == before + 2 * len(PARTITIONS)
        assert node.shard.wants_maintenance, "the log is not needed any more"
        node.shard.maintain()
        assert not logs(tmp_path)
    disk.cut()
    with opened(tmp_path, disk) as node:
        assert node.batches(4) == [0, 1, 2]


def test_checkpoint_with_a_failed_sync_keeps_the_log(tmp_path: Path) -> None:
    disk = PowerCutDisk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        node.batch(0)
        disk.failing = 1.0
        node.store.log.checkpoint()
        disk.failing = 0.0
        node.store.log.checkpoint()
        assert logs(tmp_path), "the second sync of a segment proves nothing"
        (refused,) = node.write({0: [commit(1)]})[0]
        assert isinstance(refused, PartitionReadOnly)
    disk.cut()
    with opened(tmp_path, disk) as node:
        assert [node.batches(partition) for partition in PARTITIONS] == [[0]] * len(PARTITIONS)


@pytest.mark.parametrize("act", ["set_aside", "restart_journal", "delete_partition"])
def test_partition_keeps_its_files_while_the_log_has_commits(tmp_path: Path, act: str) -> None:
    """The next start would write them into the files that come in their place."""
    disk = PowerCutDisk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        node.batch(0)
        disk.failing = 1.0
        assert not node.store.log.checkpoint()
        disk.failing = 0.0
        log_start = node.shard.journals[2].log_start_record
        arguments = {
            "set_aside": (SCHEMA.name, 2),
            "restart_journal": (SCHEMA.name, 2, log_start),
            "delete_partition": (2,),
        }
        with raises(PartitionReadOnly):
            getattr(node.store, act)(*arguments[act])
        assert logs(tmp_path)
        place = node.store.partition_directory(SCHEMA.name, 2)
        assert [path.stat().st_size > 0 for path in place.glob("*.segment")] == [True]


@pytest.mark.parametrize("is_refused", [False, True])
def test_truncated_frames_do_not_come_back_from_the_log(tmp_path: Path, is_refused: bool) -> None:
    """They were never committed; where the log still has them, nothing is truncated."""
    disk = PowerCutDisk(tmp_path, 1)
    with opened(tmp_path, disk) as node:
        commits = {p: [commit(0)] for p in PARTITIONS}
        node.shard.append(commits, terms=dict.fromkeys(PARTITIONS, 1), begin=lambda _: ())
        assert logs(tmp_path)
        if is_refused:
            disk.failing = 1.0
            with raises(PartitionReadOnly):
                node.shard.truncate(2, 0)
            disk.failing = 0.0
        else:
            node.shard.truncate(2, 0)
    disk.cut()
    with opened(tmp_path, disk) as node:
        ends = [node.shard.journals[partition].end_sequence for partition in PARTITIONS]
        assert ends == [1, 1, int(is_refused), 1, 1, 1]


# --- random histories ----------------------------------------------------------------------------


@dataclass
class History:
    """Batches that were sent, and what became of them in each partition."""

    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    refused: set[tuple[int, int]] = field(default_factory=set)

    def record(self, number: int, results: Results) -> None:
        for partition, (result,) in results.items():
            key = partition, number
            if isinstance(result, Committed):
                assert self.acknowledged.setdefault(key, result.sequence) == result.sequence
            else:
                self.refused.add(key)

    def check(self, node: Node) -> None:
        """Every acknowledged commit is there, where it was said to be, with its rows, once."""
        for partition in PARTITIONS:
            batches = node.batches(partition)
            assert len(set(batches)) == len(batches), "a batch is there twice"
            for number in (n for p, n in self.acknowledged if p == partition):
                sequence = self.acknowledged[partition, number]
                assert len(batches) >= sequence, "an acknowledged commit is lost"
                assert batches[sequence - 1] == number
            journal = node.shard.journals[partition]
            for sequence, number in enumerate(batches, start=1):
                expected = commit(number, rows=rows_of(number)).observations
                assert journal.read(sequence).equals(expected), "other rows"


def rows_of(number: int) -> int:
    return 1 + number * 7 % 50


@mock.patch.object(commit_log, "LOGGED_BYTES_MAX", 3_000)
def play(directory: Path, seed: int) -> int:
    """One random history of writes, failures, checkpoints and power cuts; how many commits."""
    chance = random.Random(seed)
    history, number, disk = History(), 0, PowerCutDisk(directory, seed)
    options = JournalOptions(disk=disk, segment_bytes_max=30_000, retry_after_s=0.0)
    for _ in range(4):
        with opened(directory, options=options) as node:
            history.check(node)
            disk.failing = chance.choice((0.0, 0.0, 0.02, 0.1))
            for _ in range(chance.randint(1, 25)):
                again = chance.random() < 0.2 and number > 0
                sent = chance.randrange(number) if again else number
                number += not again
                chosen = chance.sample(list(PARTITIONS), chance.randint(1, len(PARTITIONS)))
                if again:
                    chosen = [p for p in chosen if (p, sent) in history.acknowledged]
                commits = {p: [commit(sent, rows=rows_of(sent))] for p in chosen}
                history.record(sent, node.write(commits))
                if chance.random() < 0.1:
                    node.store.log.checkpoint()
            disk.failing = 0.0
        if chance.random() < 0.8:
            disk.cut()
    with opened(directory, options=options) as node:
        history.check(node)
    return len(history.acknowledged)


def test_random_histories_keep_every_acknowledged_commit(tmp_path: Path) -> None:
    assert sum(play(tmp_path / str(seed), seed) for seed in range(6)) > 400


@pytest.mark.slow
@pytest.mark.parametrize("first", range(6, 406, 100))
def test_random_histories_many_keep_every_acknowledged_commit(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 100):
        play(tmp_path / str(seed), seed)


def no_redo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_redo", lambda *_: None)


def no_sync_at_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentWriter, "sync", lambda _: True)


def second_sync_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SegmentWriter.sync

    def forgetful(self: SegmentWriter) -> bool:
        self._has_failed = False
        return sync(self)

    monkeypatch.setattr(SegmentWriter, "sync", forgetful)


def failed_sync_only_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentWriter, "_stop_after_sync", SegmentWriter._stop_after_write)


def acknowledged_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    fdatasync = PowerCutDisk.fdatasync

    def lazy(self: PowerCutDisk, descriptor: int) -> None:
        if not is_log(descriptor):
            fdatasync(self, descriptor)

    monkeypatch.setattr(PowerCutDisk, "fdatasync", lazy)


@pytest.mark.parametrize(
    "mutant",
    keep_quick(
        [
            no_redo,
            no_sync_at_checkpoints,
            second_sync_is_trusted,
            failed_sync_only_pauses,
            acknowledged_before_the_sync,
        ],
        *(no_redo, no_sync_at_checkpoints, acknowledged_before_the_sync),
    ),
)
def test_random_histories_convict_a_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutant(monkeypatch)
    convicted = (AssertionError, CorruptData)
    assert any(raises_one_of(convicted, tmp_path / str(seed), seed) for seed in range(150))


def raises_one_of(errors: tuple[type[Exception], ...], directory: Path, seed: int) -> bool:
    try:
        play(directory, seed)
    except errors:
        return True
    return False
