"""Partitions that move between real nodes in this process, while disks fill up or fail."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from partition_moves import (
    FROM,
    TO,
    Line,
    check_whole,
    identities,
    owners_of,
    partition_of,
    take,
    tell_all,
)

from galileo.dht import placement
from galileo.dht.topology import Move
from galileo.errors import CorruptData, PartitionMoved, PartitionReadOnly, Unavailable
from galileo.node.migration import moves
from galileo.node.migration.protocol import Handoff, MigrationOptions
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer
from galileo.storage.writer import JournalOptions, SegmentWriter


async def test_move_partition_that_opens_late_is_adopted_once(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that gave it has said so, and the disk refuses when all but the last is done."""
    cluster, sent = loaded
    await cluster.reconfigure(migration=MigrationOptions(question_pause_s=0.0))
    partition, before = partition_of(cluster), identities(await cluster.ask())

    class Broken(Line):
        """Ends with the hand-over, of which only the owner knows."""

        async def hand_over(self, node: str, asked: Handoff) -> Move:
            self.cut_at = len(self.calls), True
            return await super().hand_over(node, asked)

    with pytest.raises(Unavailable):
        await take(cluster, partition, Broken(cluster))
    assert owners_of(cluster, partition) == []

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(SegmentWriter, "resume", refuse)
        await tell_all(cluster)
        assert owners_of(cluster, partition) == []
    await tell_all(cluster)
    assert owners_of(cluster, partition) == [TO]
    assert identities(await cluster.ask()) == before
    await check_whole(cluster, sent)


class UnsyncedDisk(RealDisk):
    """The real disk without waiting for it."""

    def fdatasync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass


class FailingDisk(RealDisk):
    """Refuses one operation, and all that follow.

    Attributes:
        left: operations before that.
    """

    def __init__(self) -> None:
        self.left = 10**9

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "the disk has failed")

    def create(self, path: Path) -> int:
        self._count()
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._count()
        return super().write(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        self._count()

    def sync_directory(self, directory: Path) -> None:
        self._count()

    def rename(self, path: Path, name: Path) -> None:
        self._count()
        super().rename(path, name)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)


class SmallDisk(UnsyncedDisk):
    """Has room for so many bytes of commits, however little at a time."""

    def __init__(self) -> None:
        self.left = 10**9

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.left == 0:
            raise OSError(errno.ENOSPC, "no room")
        data = b"".join(map(bytes, buffers))[: self.left]
        written = super().write(descriptor, [data], offset)
        self.left -= written
        return written


async def test_move_full_disk_deletes_the_copy(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    cluster, sent = loaded
    partition, disk = partition_of(cluster), SmallDisk()
    cluster.journals = JournalOptions(durability="none", disk=disk)
    await cluster.restart(TO)
    disk.left = 3_000
    with raises(PartitionReadOnly, node=TO, partition=partition):
        await take(cluster, partition)
    store = cluster[TO].store
    assert not store.partition_directory("nam", partition).exists()
    assert not store.load_records("incoming")
    disk.left = 10**9
    await take(cluster, partition)
    await tell_all(cluster)
    await check_whole(cluster, sent)


@pytest.mark.parametrize("restarted", [False, True])
async def test_move_unfinished_copy_is_deleted_when_the_partition_is_elsewhere(
    loaded: tuple[Any, list[pa.Table]], restarted: bool
) -> None:
    cluster, _ = loaded
    await cluster.reconfigure(migration=MigrationOptions(grace_s=0.0))
    partition, line = partition_of(cluster), Line(cluster)
    line.cut_at = 5, True
    with pytest.raises(Unavailable):
        await take(cluster, partition, line)
    place, elsewhere = (
        cluster[TO].store.partition_directory("nam", partition),
        Move(partition, 2, FROM),  # It went to a third node, and came back.
    )
    assert any(place.iterdir())
    if restarted:
        cluster[TO].moves.receive("b", [elsewhere])
        await cluster[TO].moves.settled()
        await cluster.restart(TO)
    cluster[TO].moves.receive(FROM, [elsewhere])
    await cluster[TO].moves.settled()
    assert not place.exists()
    assert not cluster[TO].store.load_records("incoming")


class FullDisk(UnsyncedDisk):
    """Takes no record of moves: not at all, or without saying that it is durable."""

    def __init__(self, *, is_late: bool) -> None:
        self.is_full = False
        self._is_late = is_late

    def create(self, path: Path) -> int:
        if self.is_full and not self._is_late and path.parent.name == moves.TOPOLOGY_KIND:
            raise OSError(errno.ENOSPC, "no room")
        return super().create(path)

    def sync_directory(self, directory: Path) -> None:
        if self.is_full and self._is_late and directory.name == moves.TOPOLOGY_KIND:
            raise OSError(errno.EIO, "the disk has failed")


@pytest.mark.parametrize("is_late", [False, True])
async def test_hand_over_refused_by_the_disk_takes_commits_again(
    loaded: tuple[Any, list[pa.Table]], is_late: bool
) -> None:
    cluster, sent = loaded
    await cluster.reconfigure(migration=MigrationOptions(question_pause_s=0.0))
    partition, disk = partition_of(cluster), FullDisk(is_late=is_late)
    cluster.journals = JournalOptions(durability="none", disk=disk)
    await cluster.restart(FROM)
    disk.is_full = True
    with raises(Unavailable, partition=partition):
        await take(cluster, partition)
    assert owners_of(cluster, partition) == [FROM]
    if is_late:  # The next start may find that the partition was given away.
        with pytest.raises(PartitionMoved):
            await cluster.ingest(sent[0], batch=2)
    else:
        await cluster.ingest(sent[0], batch=2)
        sent.append(sent[0])
    disk.is_full = False
    await take(cluster, partition)
    assert owners_of(cluster, partition) == [TO]
    await tell_all(cluster)
    await cluster.ingest(sent[0], batch=2)
    await check_whole(cluster, sent if not is_late else [*sent, sent[0]])


@pytest.mark.parametrize("victim", [TO, pytest.param(FROM, marks=pytest.mark.slow)])
async def test_move_any_failed_write_leaves_one_owner_and_resumes(
    loaded: tuple[Any, list[pa.Table]], victim: str
) -> None:
    """Both nodes start again behind each failure, with a disk that works; what counts is on it."""
    cluster, sent = loaded
    await cluster.reconfigure(migration=MigrationOptions(question_pause_s=0.0))
    partition, relaxed, allowed = partition_of(cluster), cluster.journals, 0
    while True:
        disk = FailingDisk()
        cluster.journals = JournalOptions(disk=disk)
        await cluster.restart(victim)
        cluster.journals = relaxed
        disk.left = allowed
        with contextlib.suppress(PartitionReadOnly, Unavailable, CorruptData):
            await take(cluster, partition)
        failed = disk.left < 0
        disk.left = 10**9
        for name in (FROM, TO):
            await cluster.restart(name)
        assert len(owners_of(cluster, partition)) <= 1
        await tell_all(cluster)
        (owner,) = owners_of(cluster, partition)
        await check_whole(cluster, sent)
        if owner == TO:
            break
        assert failed
        allowed += 1
    assert allowed > 2
    assert placement.owner(cluster["b"].topology, partition) == TO
