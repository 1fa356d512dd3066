"""Fences of partitions that are given away, while the disk holds up a commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.dht.topology import Move
from galileo.errors import Unavailable
from galileo.model import paths
from galileo.node.migration import moves
from galileo.node.migration.protocol import File, Handoff, MigrationOptions
from galileo.storage.disk import RealDisk
from galileo.storage.journal import Commit
from galileo.storage.writer import JournalOptions

FROM, TO = "a", "c"
DEADLINE_S = 60.0


class GatedDisk(RealDisk):
    """A sync waits while the gate is shut."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def fdatasync(self, descriptor: int) -> None:
        self.entered.set()
        assert self.gate.wait(DEADLINE_S), "the gate was not opened"


@pytest.fixture
async def held(
    cluster: Any, make_observations: Callable[..., pa.Table]
) -> AsyncIterator[tuple[Any, int, asyncio.Future[Any], GatedDisk]]:
    """A commit that is at the disk of the partition's node and stays there, and the gate."""
    await cluster.reconfigure(migration=MigrationOptions(fence_s=DEADLINE_S))
    await cluster.ingest(make_observations(200))
    own = cluster[FROM].catalog.shard("nam").own
    partition = min(p for p, journal in own.items() if journal.last_sequence)
    disk = GatedDisk()
    relaxed, cluster.journals = cluster.journals, JournalOptions(disk=disk)
    await cluster.restart(FROM)
    cluster.journals = relaxed
    labels = await cluster.ask()
    rows = await cluster.read(labels.where(labels.partitions == partition), exact=False)
    disk.entered.clear()
    disk.gate.clear()
    indexed = paths.index(cluster.schema, rows)
    commits = {partition: Commit("radar", 1, *indexed)}
    commit = asyncio.wrap_future(cluster[FROM].catalog.commit("nam", commits))
    assert await asyncio.to_thread(disk.entered.wait, DEADLINE_S)
    yield cluster, partition, commit, disk
    disk.gate.set()
    await asyncio.gather(commit, return_exceptions=True)


async def test_hand_over_waits_for_a_commit_under_way(
    held: tuple[Any, int, asyncio.Future[Any], GatedDisk],
) -> None:
    """The owner may report further commits to producers after that."""
    cluster, partition, commit, disk = held
    node = cluster[FROM].giving
    first = asyncio.create_task(node.fence(partition, to=TO))
    await asyncio.sleep(0)
    again = asyncio.create_task(node.fence(partition, to=TO))
    await asyncio.sleep(0)
    contents = moves.dataset_manifest(cluster[FROM].catalog, partition)
    with raises(Unavailable, expected="fence"):
        await node.hand_over(Handoff(Move(partition, 1, TO), contents))
    disk.gate.set()
    done = (await commit)[partition]
    for asked in (first, again):
        (listed,) = (await asked).contents
        assert listed.last_sequence == done.sequence
    await node.hand_over(Handoff(Move(partition, 1, TO), (await again).contents))


async def test_move_expired_fence_keeps_the_order_of_commits(
    held: tuple[Any, int, asyncio.Future[Any], GatedDisk],
    make_observations: Callable[..., pa.Table],
) -> None:
    """A second writer could publish its commits before those of the first."""
    cluster, partition, commit, disk = held
    node = cluster[FROM]
    fencing = asyncio.create_task(node.giving.fence(partition, to=TO))
    await asyncio.sleep(0)
    await node.giving.release(partition, to=TO)
    rows = paths.index(cluster.schema, make_observations(20))
    later = asyncio.wrap_future(node.catalog.commit("nam", {partition: Commit("radar", 2, *rows)}))
    disk.gate.set()
    await fencing
    sequences = [(await each)[partition].sequence for each in (commit, later)]
    assert sequences == [sequences[0], sequences[0] + 1]


async def test_move_slow_disk_does_not_stop_other_partitions(
    held: tuple[Any, int, asyncio.Future[Any], GatedDisk],
) -> None:
    cluster, partition, _, disk = held
    (path,) = cluster[FROM].store.partition_directory("nam", partition).glob("*.segment")
    file = File("nam", path.name, 16)
    opened = threading.Timer(
        DEADLINE_S / 2, disk.gate.set
    )  # Lest the event loop stand still for ever.
    opened.start()
    calls = [
        asyncio.create_task(cluster[FROM].giving.piece(partition, file, offset=0, size=8)),
        asyncio.create_task(cluster[FROM].giving.checksum(partition, file)),
    ]
    await asyncio.sleep(0)
    assert not disk.gate.is_set()
    opened.cancel()
    disk.gate.set()
    assert await calls[0] == path.read_bytes()[:8]
    await calls[1]
