"""Random histories of replicated partitions on real nodes, disks and messages in this process.

Producers repeat each batch until it is acknowledged. At the end every replica has each batch once,
and all replicas are equal; before, no complete answer lacks what was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fault_injection.damage import flip, frames
from replica_nodes import (
    NAMES,
    OPTIONS,
    PARTITIONS,
    ROWS,
    SCHEMA,
    World,
    await_whole,
    batch,
    count,
    damaged,
    hurt,
    labels,
    rot,
    segments,
    select,
    under_replicated,
)

from galileo.errors import (
    CorruptData,
    PartitionMoved,
)
from galileo.node.replication.replicas import load_states
from galileo.node.storage_node import StorageNode
from galileo.wire.internal.v1.peers_pb2 import SynopsisVersion

STEPS = 12


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world that has just begun, and in which nothing fails by itself."""
    world = World(tmp_path, 0)
    await world.begin()
    world.is_calm = True
    yield world
    await world.close()


async def test_node_replicas_new_cluster_is_under_replicated_until_all_copies_are_there(
    world: World,
) -> None:
    assert under_replicated(world) == list(range(PARTITIONS))
    await await_whole(world)
    gauges = [host.replicas.gauges() for host in world.hosts.values()]
    assert sum(one.leading for one in gauges) == PARTITIONS
    assert sum(one.following for one in gauges) == PARTITIONS * (len(NAMES) - 1)
    assert not any(one.learning or one.lag for one in gauges)


async def test_node_replicas_dataset_created_under_leaders_has_synopses_of_their_terms(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 0)
    await world.begin(datasets=False)
    world.is_calm = True
    try:
        await await_whole(world)
        for host in world.hosts.values():
            host.node.catalog.adopt(SCHEMA)
        await world.send(1)
        await world.settle()
        for host in world.hosts.values():
            synopses = host.node.catalog.shard("nam").synopses()
            assert synopses.keys() == host.replicas.led
            for partition, synopsis in synopses.items():
                term = host.replicas.terms[partition]
                assert synopsis.version.epoch >> 16 == term
                SynopsisVersion(epoch=synopsis.version.epoch)  # It fits into what peers exchange.
    finally:
        await world.close()


async def test_node_replicas_damaged_log_is_set_aside_and_copied_again(world: World) -> None:
    await await_whole(world)
    for number in range(8):
        await world.send(number)
    await world.crash("b", is_lost=False)
    rot(world.random.choice(segments(world, "b")), world.random)
    world.start("b")
    states = load_states(world.hosts["b"].store)
    assert len(damaged(world, "b")) == 1
    assert [bool(state.suspect) for state in states.values()].count(True) == 1
    await world.send(8)
    await world.settle()
    world.judge()
    states = load_states(world.hosts["b"].store)
    assert not any(state.suspect for state in states.values())


async def test_node_replicas_damage_found_by_a_reader_is_copied_again(world: World) -> None:
    await await_whole(world)
    for number in range(8):
        await world.send(number)
    await world.settle()
    ((name, host),) = [(n, h) for n, h in world.hosts.items() if 0 in h.replicas.led]
    journal = host.node.catalog.shard("nam").journals[0]
    segment = next(file for file in segments(world, name) if file.parent.name == "0")
    for offset, header in frames(segment):
        flip(segment, offset + header.observations_offset)
    sequences = range(1, journal.last_sequence + 1)
    with pytest.raises(PartitionMoved):  # A batch that was sent twice has been read already.
        _ = [journal.read(sequence) for sequence in sequences]
    while not damaged(world, name):
        world.spread_leaders()
        await asyncio.sleep(0.05)
    await world.settle()
    world.judge()
    assert host.node.catalog.shard("nam").journals[0].read(1).num_rows


async def test_node_replicas_damage_of_a_dropped_dataset_harms_no_partition(world: World) -> None:
    """A reader may find it when the dataset has just been dropped."""
    await await_whole(world)
    for host in world.hosts.values():
        await host.node.drop("nam", 1)
    follower = next(host for host in world.hosts.values() if 0 not in host.replicas.led)
    follower.replicas.on_damage("nam", 0, CorruptData("the checksum of frame 1 is wrong"))
    for _ in range(10):  # Longer than a failed machine waits until it begins again.
        world.spread_leaders()
        await asyncio.sleep(OPTIONS.members_s)
    await await_whole(world)


@pytest.mark.parametrize("way", [labels, count, select])
async def test_node_replicas_leader_that_is_cut_off_answers_nothing_old(
    world: World, way: Callable[[StorageNode], Coroutine[Any, Any, int]]
) -> None:
    await await_whole(world)
    (old,) = [host for host in world.hosts.values() if 0 in host.replicas.led]
    others = [host for host in world.hosts.values() if host is not old]
    world.cut.add(old.name)
    led = frozenset[int]()
    while led != frozenset(range(PARTITIONS)):
        await asyncio.sleep(0.02)
        led = frozenset(p for host in others for p in host.replicas.led)
    await others[0].node.ingest.ingest("nam", batch(1), producer="p", batch=1)
    answer = asyncio.create_task(way(old.node))
    await asyncio.wait({answer}, timeout=OPTIONS.machine.dead_after_s)
    world.cut.clear()
    world.spread_leaders()
    assert await answer == ROWS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]
)
async def test_node_replicas_random_history_keeps_each_batch_once(
    tmp_path: Path, seed: int
) -> None:
    world = World(tmp_path, seed)
    await world.begin()
    works = [asyncio.create_task(world.produce(n)) for n in range(3)]
    works.append(asyncio.create_task(world.read()))
    try:
        for _ in range(STEPS):
            await asyncio.sleep(world.random.uniform(0.1, 0.8))
            await hurt(world)
            world.spread_leaders()
        await world.settle()
        await asyncio.gather(*works)
        await world.settle()
        world.judge()
        assert world.acknowledged
        assert world.complete
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await world.close()
