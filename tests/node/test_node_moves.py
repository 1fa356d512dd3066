"""Partitions that move between real nodes in this process; each call and each write may fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from galileo.dht import placement
from galileo.dht.topology import Move, Topology
from galileo.errors import (
    DataDamaged,
    GalileoError,
    InputError,
    PartitionMoved,
    PartitionStopped,
    Unavailable,
)
from galileo.labels import LabelSet
from galileo.node import giving, moves
from galileo.node.movers import File, HandOver, Listing
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer
from galileo.storage.writer import JournalOptions, SegmentWriter

T = TypeVar("T")
FROM, TO = "a", "c"
DEADLINE_S = 60.0


class Line:
    """Calls the other node's methods, until one is cut before or after it has an effect.

    Attributes:
        calls: names of those that were made.
        cut_at: number of the call that is cut, and whether its effect takes place.
    """

    def __init__(self, cluster: Any) -> None:
        self.calls: list[str] = []
        self.cut_at: tuple[int, bool] | None = None
        self._cluster = cluster

    async def _call(self, name: str, node: str, call: Callable[[Any], Awaitable[T]]) -> T:
        number, (at, is_late) = len(self.calls), self.cut_at or (10**9, False)
        self.calls.append(name)
        if number > at or (number == at and not is_late):
            raise Unavailable(f"node {node} is away", node=node)
        if node not in self._cluster.network.nodes:
            raise Unavailable(f"node {node} is away", node=node)
        result = await call(self._cluster[node])
        if number == at:
            raise Unavailable(f"the answer of {node} is lost", node=node)
        return result

    async def topology(self, node: str) -> Topology:
        async def told(there: Any) -> Topology:
            known: Topology = there.topology
            return known

        return await self._call("topology", node, told)

    async def listing(self, node: str, partition: int) -> Listing:
        return await self._call("listing", node, lambda n: n.giving.listing(partition))

    async def piece(
        self, node: str, partition: int, file: File, *, offset: int, size: int
    ) -> bytes:
        return await self._call(
            "piece", node, lambda n: n.giving.piece(partition, file, offset=offset, size=size)
        )

    async def checksum(self, node: str, partition: int, file: File) -> int:
        return await self._call("checksum", node, lambda n: n.giving.checksum(partition, file))

    async def fence(self, node: str, partition: int, *, to: str) -> Listing:
        return await self._call("fence", node, lambda n: n.giving.fence(partition, to=to))

    async def release(self, node: str, partition: int, *, to: str) -> None:
        await self._call("release", node, lambda n: n.giving.release(partition, to=to))

    async def hand_over(self, node: str, asked: HandOver) -> Move:
        return await self._call("hand_over", node, lambda n: n.giving.hand_over(asked))


async def take(cluster: Any, partition: int, line: Line | None = None, *, to: str = TO) -> Line:
    """Moves a partition; closes what it began however it ends."""
    line = line or Line(cluster)
    async with contextlib.aclosing(cluster[to].taking(line).take(partition)) as steps:
        async for _ in steps:
            pass
    return line


def partition_of(cluster: Any, node: str = FROM) -> int:
    """One that a node has, with commits."""
    own = cluster[node].catalog.shard("nam").own
    return int(min(p for p, journal in own.items() if journal.last_sequence))


async def tell_all(cluster: Any) -> None:
    """As heartbeats do."""
    for sender in cluster.nodes:
        for node in cluster.nodes:
            if node is not sender:
                node.moves.hear(sender.name, sender.moves.known)
    for node in cluster.nodes:
        await node.moves.settled()


def owners_of(cluster: Any, partition: int) -> list[str]:
    return [node.name for node in cluster.nodes if partition in node.partitions]


def identities(labels: LabelSet) -> list[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


async def check_whole(cluster: Any, sent: Sequence[pa.Table]) -> None:
    """Every node finds and reads each observation once."""
    wanted = sorted(name for table in sent for name in table.column("station").to_pylist())
    for at in ("a", "b", "c"):
        labels = await cluster.ask(at=at)
        assert labels.complete
        read = await cluster.read(labels, exact=False, at=at)
        assert sorted(read.column("station").to_pylist()) == wanted


@pytest.fixture
async def loaded(
    cluster: Any, make_observations: Callable[..., pa.Table]
) -> tuple[Any, list[pa.Table]]:
    """The cluster with two batches in it."""
    sent = [make_observations(200, seed) for seed in range(2)]
    for number, table in enumerate(sent):
        await cluster.ingest(table, batch=number)
    return cluster, sent


async def test_a_partition_moves_with_its_commits_and_its_producers(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    cluster, sent = loaded
    partition, before = partition_of(cluster), identities(await cluster.ask())
    last = int(cluster[FROM].catalog.shard("nam").own[partition].last_sequence)
    await take(cluster, partition)
    assert partition in cluster[TO].partitions
    assert partition not in cluster[FROM].partitions
    await tell_all(cluster)
    assert owners_of(cluster, partition) == [TO]
    assert identities(await cluster.ask()) == before
    again = await cluster.ingest(sent[0], batch=0)
    assert again.duplicate_rows == 200, "batches are recognised where their partition is now"
    more = make_observations(200, 2)
    reached = (await cluster.ingest(more, batch=2)).reached
    assert reached[partition] == last + 1, "sequences go on"
    await check_whole(cluster, [*sent, more])
    await cluster.restart(FROM)
    await cluster.restart(TO)
    assert owners_of(cluster, partition) == [TO]
    await check_whole(cluster, [*sent, more])


async def test_what_was_left_behind_is_deleted_once_the_new_owner_has_said_so(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, sent = loaded
    monkeypatch.setattr(moves, "GRACE_S", 0.0)
    partition = partition_of(cluster)
    place = cluster[FROM].store.partition_directory("nam", partition)
    await take(cluster, partition)
    cluster[FROM].moves.hear("b", cluster[TO].moves.known)
    await cluster[FROM].moves.settled()
    assert place.exists(), "the word of a third node is not enough"
    await tell_all(cluster)
    assert not place.exists()
    assert partition not in cluster[FROM].catalog.shard("nam").journals
    await check_whole(cluster, sent)
    await cluster.restart(FROM)
    await check_whole(cluster, sent)


async def test_a_partition_comes_back(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    """With commits that its first node has not seen, and its old files still there or not."""
    cluster, sent = loaded
    partition = partition_of(cluster)
    for number, to in enumerate((TO, FROM, TO, FROM), start=2):
        await take(cluster, partition, to=to)
        await tell_all(cluster)
        assert owners_of(cluster, partition) == [to]
        sent.append(make_observations(100, number))
        await cluster.ingest(sent[-1], batch=number)
        await check_whole(cluster, sent)


async def test_commits_wait_while_a_fence_is_up_and_no_longer(
    loaded: tuple[Any, list[pa.Table]],
    make_observations: Callable[..., pa.Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, sent = loaded
    monkeypatch.setattr(giving, "FENCE_S", 60.0)
    partition = partition_of(cluster)
    await cluster[FROM].giving.fence(partition, to=TO)
    with pytest.raises(Unavailable, match=f"is being moved to node '{TO}'"):
        await cluster[FROM].giving.fence(partition, to="b")
    more = make_observations(200, 2)
    with pytest.raises(PartitionMoved):
        await cluster.ingest(more, batch=2)
    assert len(await cluster.ask()) > 0
    monkeypatch.setattr(giving, "FENCE_S", 0.2)
    await cluster[FROM].giving.fence(partition, to=TO)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PartitionMoved):
                await cluster.ingest(more, batch=2)
                break
            await asyncio.sleep(0.02)
    await check_whole(cluster, [*sent, more])


async def test_what_is_given_up_while_it_is_opened_is_closed_again(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next attempt would take a closed journal for its copy."""
    cluster, _ = loaded
    partition, node = partition_of(cluster), cluster[TO]
    opening, gate = threading.Event(), threading.Event()
    open_partition = node.store.open_partition

    def opened_late(*args: Any) -> Any:
        opening.set()
        assert gate.wait(DEADLINE_S)
        return open_partition(*args)

    monkeypatch.setattr(node.store, "open_partition", opened_late)
    taking = asyncio.create_task(take(cluster, partition))
    assert await asyncio.to_thread(opening.wait, DEADLINE_S)
    taking.cancel()
    await asyncio.wait([taking], timeout=0.5)  # Whoever does not wait for the thread is done.
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with node.moves.lock:
        await asyncio.to_thread(node.catalog.let_go, -1)  # What is being opened is, by then.
    assert partition not in node.catalog.shard("nam").journals
    assert ("nam", partition) not in node.store.journals()


async def test_a_partition_moves_of_which_retention_left_nothing(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    cluster, sent = loaded
    partition, shard = partition_of(cluster), cluster[FROM].catalog.shard("nam")
    last = shard.own[partition].last_sequence
    shard.own[partition].seal()
    assert shard.drop(partition, last).until == last
    await take(cluster, partition)
    await tell_all(cluster)
    assert owners_of(cluster, partition) == [TO]
    assert (await cluster.ingest(sent[0], batch=0)).duplicate_rows == 200
    reached = (await cluster.ingest(make_observations(200, 2), batch=2)).reached
    assert reached[partition] == last + 1, "sequences go on"
    await cluster.restart(TO)
    journal = cluster[TO].catalog.shard("nam").own[partition]
    assert (journal.dropped, journal.last_sequence) == (last, last + 1)


async def test_what_could_not_be_opened_at_first_is_there_once(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that gave it has said so, and the disk refuses when all but the last is done."""
    monkeypatch.setattr("galileo.node.taking.ASK_PAUSE_S", 0.0)
    cluster, sent = loaded
    partition, before = partition_of(cluster), identities(await cluster.ask())

    class Broken(Line):
        """Ends with the hand-over, of which only the owner knows."""

        async def hand_over(self, node: str, asked: HandOver) -> Move:
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


async def test_a_copy_that_lacks_a_commit_is_not_taken_for_a_whole_one(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    """The fence was gone for a while, and somebody wrote."""
    cluster, sent = loaded
    partition = partition_of(cluster)
    listing = await cluster[FROM].giving.fence(partition, to=TO)
    await cluster[FROM].giving.release(partition, to=TO)
    sent.append(make_observations(200, 2))
    await cluster.ingest(sent[-1], batch=2)
    asked = HandOver(Move(partition, listing.number, TO), listing.contents)
    with pytest.raises(Unavailable, match="the fence of partition"):
        await cluster[FROM].giving.hand_over(asked)
    await cluster[FROM].giving.fence(partition, to=TO)
    with pytest.raises(Unavailable, match="expected a copy of partition"):
        await cluster[FROM].giving.hand_over(asked)
    assert owners_of(cluster, partition) == [FROM]


async def test_only_partitions_of_the_own_group_are_taken(
    loaded: tuple[Any, list[pa.Table]],
) -> None:
    cluster, _ = loaded
    partition = partition_of(cluster, "b")
    with pytest.raises(InputError, match="expected a partition of group 'west', that is 0 to 3"):
        await take(cluster, partition)


async def test_damage_at_the_owner_ends_a_move(loaded: tuple[Any, list[pa.Table]]) -> None:
    cluster, _ = loaded
    partition = partition_of(cluster)
    place = cluster[FROM].store.partition_directory("nam", partition)
    (path,) = place.glob("*.segment")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(DataDamaged, match="damaged before it was copied"):
        await take(cluster, partition)
    assert owners_of(cluster, partition) == [FROM]


async def test_a_node_that_others_do_not_know_takes_nothing(
    loaded: tuple[Any, list[pa.Table]],
) -> None:
    cluster, _ = loaded

    class Ignorant(Line):
        async def topology(self, node: str) -> Topology:
            known = await super().topology(node)
            west, east = known.groups
            fewer = type(west)("west", tuple(n for n in west.nodes if n.name != TO))
            return Topology("test", (fewer, east), known.ranges, 4)

    with pytest.raises(InputError, match="but a, b do not"):
        await take(cluster, partition_of(cluster), Ignorant(cluster))


@pytest.mark.parametrize("victims", ["taker", "owner", "both", "line"])
async def test_wherever_a_move_breaks_off_there_is_one_owner_and_it_goes_on(
    loaded: tuple[Any, list[pa.Table]],
    make_observations: Callable[..., pa.Table],
    monkeypatch: pytest.MonkeyPatch,
    victims: str,
) -> None:
    """Each call is cut before and after its effect, and those who break off start again."""
    monkeypatch.setattr("galileo.node.taking.ASK_PAUSE_S", 0.0)
    cluster, sent = loaded
    partition, settled, number, batch = partition_of(cluster), 0, 0, 1
    reached = (await cluster.ask()).frontier[partition]
    to, other = TO, FROM
    while True:
        for is_late in (False, True):
            line = Line(cluster)
            line.cut_at = number, is_late
            with contextlib.suppress(GalileoError):
                await take(cluster, partition, line, to=to)
            if len(line.calls) <= number:
                assert settled > 0, "some hand-over was carried out though nobody heard of it"
                return
            for name in {"taker": [to], "owner": [other], "both": [to, other]}.get(victims, []):
                await cluster.restart(name)
            await cluster[other].giving.release(partition, to=to)  # as when its time is over
            assert len(owners_of(cluster, partition)) <= 1
            await tell_all(cluster)
            (owner,) = owners_of(cluster, partition)
            settled += owner == to
            batch += 1
            sent.append(make_observations(40, batch))
            now = await _sent(cluster, sent[-1], batch)
            assert now >= reached, "sequences never go back"
            reached = max(reached, now)
            await check_whole(cluster, sent)
            if owner == to:
                to, other = other, to
        number += 1


async def _sent(cluster: Any, table: pa.Table, batch: int) -> int:
    """Sends a batch until it is taken; the highest sequence that it reached."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PartitionMoved):
                answer = await cluster.ingest(table, batch=batch)
                return int(max(answer.reached.values()))
            await asyncio.sleep(0.01)


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


async def test_a_copy_that_fills_the_disk_does_not_stay(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    cluster, sent = loaded
    partition, disk = partition_of(cluster), SmallDisk()
    cluster.journals = JournalOptions(durability="none", disk=disk)
    await cluster.restart(TO)
    disk.left = 3_000
    with pytest.raises(PartitionStopped, match="refuses a copy"):
        await take(cluster, partition)
    store = cluster[TO].store
    assert not store.partition_directory("nam", partition).exists()
    assert not store.load_records("incoming")
    disk.left = 10**9
    await take(cluster, partition)
    await tell_all(cluster)
    await check_whole(cluster, sent)


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_unfinished_copy_goes_when_the_partition_is_elsewhere(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    cluster, _ = loaded
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
        cluster[TO].moves.hear("b", [elsewhere])
        await cluster[TO].moves.settled()
        await cluster.restart(TO)
    monkeypatch.setattr(moves, "GRACE_S", 0.0)
    cluster[TO].moves.hear(FROM, [elsewhere])
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
async def test_a_partition_takes_commits_again_if_the_disk_has_certainly_not_taken_its_hand_over(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    monkeypatch.setattr("galileo.node.taking.ASK_PAUSE_S", 0.0)
    cluster, sent = loaded
    partition, disk = partition_of(cluster), FullDisk(is_late=is_late)
    cluster.journals = JournalOptions(durability="none", disk=disk)
    await cluster.restart(FROM)
    disk.is_full = True
    with pytest.raises(Unavailable, match="did not hand partition"):
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


@pytest.mark.parametrize("victim", [TO, FROM])
async def test_whichever_write_fails_there_is_one_owner_and_it_goes_on(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Both nodes start again behind each failure, with a disk that works; what counts is on it."""
    monkeypatch.setattr("galileo.node.taking.ASK_PAUSE_S", 0.0)
    cluster, sent = loaded
    partition, relaxed, allowed = partition_of(cluster), cluster.journals, 0
    while True:
        disk = FailingDisk()
        cluster.journals = JournalOptions(disk=disk)
        await cluster.restart(victim)
        cluster.journals = relaxed
        disk.left = allowed
        with contextlib.suppress(PartitionStopped, Unavailable, DataDamaged):
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
