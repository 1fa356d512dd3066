"""Partitions with one copy, whose leaders are alone in their sets, and what ends that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from replica_nodes import (
    NAMES,
    OPTIONS,
    PARTITIONS,
    ROWS,
    TOPOLOGY,
    World,
    await_condition,
    await_whole,
    count,
    hurt,
    play_history,
    until,
)

from galileo.cursor import Cursor
from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM, Move, Topology
from galileo.model.forks import first_of, history_of
from galileo.node.log_regression import LogRegression
from galileo.node.replication.replicas import load_states
from galileo.replication.values import ORDINALS
from galileo.storage.disk import REAL_DISK
from galileo.storage.metadata_files import MetadataFiles
from galileo.storage.store import HISTORY

LONE = replace(TOPOLOGY, replicas=1)
FAULTS = ("crash", "cut", "full", "all", "move", "move", "copies", "copies")
STEPS = 12


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world that has just begun, and in which nothing fails by itself."""
    world = World(tmp_path, 0, topology=LONE)
    await world.begin()
    world.is_calm = True
    yield world
    await world.close()


def leaders(world: World) -> dict[int, str]:
    """The leaders of the partitions of data; the system partition has three copies."""
    return {p: name for name, host in world.hosts.items() for p in host.replicas.led - {SYSTEM}}


def move(world: World, partition: int, to: str) -> None:
    world.change(partial(topology_changes.pin_partitions, partitions=[partition], to=to))


def machine_of(world: World, partition: int):
    host = world.hosts[leaders(world)[partition]]
    return host.replicas._hosted[partition].machine


async def test_node_alone_serves_its_partitions_as_soon_as_it_has_started(world: World) -> None:
    owners = placement.owners(world.topology)
    assert leaders(world) == owners
    assert {p: machine_of(world, p).is_alone for p in owners} == dict.fromkeys(owners, True)
    for name in NAMES:
        await world.crash(name, is_lost=False)
        world.start(name)
        assert leaders(world) == owners, "it waits for no other node and no timer"


async def test_writer_that_is_alone_tells_its_machine_when_another_member_is_to_join(
    world: World,
) -> None:
    for number in range(5):
        await world.send(number)
    before = leaders(world)
    assert all(not machine_of(world, p).logs for p in before), "the machines were not asked"
    world.change(partial(topology_changes.set_replicas, count=3))
    await await_whole(world)
    for partition in before:
        log = machine_of(world, partition).logs["nam"]
        assert (log.end, log.committed) == (5, 5)
    for number in range(5, 10):
        await world.send(number)
    await await_condition(world, World.is_settled)
    world.judge()


@pytest.mark.slow
async def test_copies_that_are_given_up_are_deleted_and_leaders_are_alone_again(
    world: World,
) -> None:
    owners = leaders(world)
    works = [asyncio.create_task(world.produce(n)) for n in range(3)]
    for copies in (3, 1, 2, 1):
        world.change(partial(topology_changes.set_replicas, count=copies))
        await await_condition(world, World.is_settled)
    world.is_over = True
    await asyncio.gather(*works)
    assert leaders(world) == owners
    await until(world, lambda: all(machine_of(world, p).is_alone for p in owners))
    for name, host in world.hosts.items():
        own = {p for p, owner in owners.items() if owner == name}
        assert host.replicas.lone - {SYSTEM} == own
        journals = host.node.catalog.shards["nam"]
        await until(world, lambda one=journals, own=own: one.journals.keys() == own)
        assert host.replicas.held().voting - {SYSTEM} == own
    world.judge()
    for name in NAMES:
        await world.crash(name, is_lost=False)
    for name in NAMES:
        world.start(name)  # Alone: a set of one waits for no other node.
        own = {p: owner for p, owner in owners.items() if owner == name}
        await until(world, lambda own=own: leaders(world) == own)
        await world.crash(name, is_lost=False)


async def test_partition_moves_to_the_node_it_is_pinned_to_and_its_files_are_deleted(
    world: World,
) -> None:
    for number in range(5):
        await world.send(number)
    before = leaders(world)
    to = next(name for name in NAMES if name != before[0])
    move(world, 0, to)
    await until(world, lambda: leaders(world) == before | {0: to})
    await world.send(5)
    assert await count(world.hosts[to].node) == 6 * ROWS
    old = world.hosts[before[0]]
    await until(world, lambda: 0 not in old.node.catalog.shards["nam"].journals)
    await until(world, lambda: machine_of(world, 0).is_alone)
    state = load_states(world.hosts[to].store)[0]
    assert state.set is not None
    assert [member.node for member in state.set.members] == [to]


@pytest.mark.slow
async def test_move_while_batches_are_stored_loses_and_repeats_none(world: World) -> None:
    works = [asyncio.create_task(world.produce(n)) for n in range(3)]
    for number in range(6):
        partition = number % PARTITIONS
        to = NAMES[number % len(NAMES)]
        move(world, partition, to)
        await until(world, lambda p=partition, to=to: leaders(world).get(p) == to)
    await world.settle()
    await asyncio.gather(*works)
    await world.settle()
    world.judge()
    assert len(world.acknowledged) > 10


async def test_leader_that_is_alone_stops_when_another_node_leads_in_a_later_term(
    world: World,
) -> None:
    """As where its directory is an old copy, from before the partition moved."""
    await world.send(0)
    host = world.hosts[leaders(world)[0]]
    other = next(name for name in NAMES if name != host.name)
    host.live.adopt([Move(0, host.replicas.terms[0] + 1, other)])
    await until(world, lambda: 0 not in host.replicas.led)
    assert 0 not in host.node.partitions
    assert not host.replicas.terms.keys() & {0}
    await asyncio.sleep(3 * OPTIONS.restart_s)
    assert 0 not in host.replicas.led, "it does not begin again"


async def test_directory_whose_partition_was_founded_anew_does_not_serve_it(world: World) -> None:
    await world.send(0)
    host = world.hosts[leaders(world)[0]]
    lost = host.node.topology.by_name[host.name].identity

    def found_anew(topology: Topology) -> Topology:
        begun = topology_changes.found_anew(topology, host.name, {0}, lost=lost, now=1.8e9)
        return topology_changes.identify(begun, host.name, "a later directory", {0})

    world.change(found_anew)
    await until(world, lambda: 0 not in host.replicas.led)
    assert host.replicas.given_up == {0}
    assert host.replicas.is_lost(0)
    assert any("begun anew" in line for line in host.node.pending)
    await asyncio.sleep(3 * OPTIONS.restart_s)
    assert 0 not in host.replicas.led, "it does not begin again"


async def restored(world: World, name: str, history: int) -> None:
    """Starts a node again with its directory as `galileo restore` would make it of a backup."""
    await world.crash(name, is_lost=False)
    MetadataFiles(world.places[name] / "node", REAL_DISK).save(HISTORY, str(history).encode())
    world.start(name)


async def test_restored_directory_leads_in_a_later_history_when_others_were_heard(
    world: World,
) -> None:
    await world.send(0)
    name, known = leaders(world)[0], {}
    for history in (70, 71):
        await restored(world, name, history)
        host = world.hosts[name]
        assert 0 in host.replicas.restored
        await asyncio.sleep(3 * OPTIONS.restart_s)
        assert not host.replicas.led & host.replicas.restored, "it may be an old copy"
        host.replicas.lead_restored()
        await until(world, lambda: 0 in world.hosts[name].replicas.led)
        shard = world.hosts[name].node.catalog.shard("nam")
        last = shard.published_sequence(0)
        known[last] = first_of(history)
        assert shard.forks(0).pairs == tuple(known.items()), "the history has no commit yet"
        await world.send(history)
        assert shard.published_sequence(0) == first_of(history)
        assert shard.forks(0).pairs == tuple(known.items())
    await world.crash(name, is_lost=False)
    world.start(name)
    assert not world.hosts[name].replicas.restored, "it has begun its history"
    await until(world, lambda: 0 in world.hosts[name].replicas.led)
    assert world.hosts[name].node.catalog.shard("nam").forks(0).pairs == tuple(known.items())
    assert await count(world.hosts[name].node) == 3 * ROWS


async def test_restored_directory_begins_a_later_history_than_others_know(world: World) -> None:
    """The clock was set back, or the directory was restored before within the same second."""
    await world.send(0)
    name = leaders(world)[0]
    await restored(world, name, 70)
    host = world.hosts[name]
    host.live.adopt([Move(0, first_of(70) + 5 * ORDINALS, name)])
    host.replicas.lead_restored()
    await until(world, lambda: 0 in host.replicas.led)
    await world.send(1)
    assert host.node.catalog.shard("nam").published_sequence(0) == first_of(71)


async def test_restored_directory_of_a_partition_that_has_moved_does_not_serve_it(
    world: World,
) -> None:
    await world.send(0)
    name = leaders(world)[0]
    await restored(world, name, 70)
    [other] = [one for one in NAMES if one != name][:1]
    host = world.hosts[name]
    host.live.adopt([Move(0, 5 * ORDINALS, other)])
    host.replicas.lead_restored()
    await asyncio.sleep(3 * OPTIONS.restart_s)
    assert 0 not in host.replicas.led


async def test_restored_members_of_larger_sets_elect_leaders_of_a_later_history(
    world: World,
) -> None:
    world.change(partial(topology_changes.set_replicas, count=3))
    await world.send(0)
    await await_whole(world)
    name = leaders(world)[0]
    await restored(world, name, 70)
    await world.send(1)
    await until(world, lambda: history_of(machine_of(world, 0).state.promised) == 70)
    await world.send(2)
    host = world.hosts[leaders(world)[0]]
    assert history_of(host.node.catalog.shard("nam").published_sequence(0)) == 70
    await await_condition(world, World.is_settled)


async def test_partition_that_has_lost_commits_begins_a_later_history_once(world: World) -> None:
    """A directory that was replaced by an older copy, as others know by what readers have read."""
    await world.send(0)
    host = world.hosts[leaders(world)[0]]
    shard = host.node.catalog.shard("nam")
    for other in world.hosts.values():
        losses = other.node.view.losses
        losses.expect("nam", Cursor({0: 5}))
        losses.check_own(host.name, [0], reported={"nam": shard.own_published().sequences})
        assert len(losses.known) == 1
    await until(world, lambda: history_of(host.replicas.terms.get(0, 0)) > 0)
    await until(world, lambda: 0 in host.replicas.led)
    await world.send(1)
    [(last, first)] = shard.forks(0).pairs
    assert (last, first) == (1, shard.published_sequence(0))
    assert shard.forks(0).last_common(5) == 1
    host.node.view.losses.on_loss(LogRegression(host.name, "nam", 0, had=5, has=1))
    await asyncio.sleep(3 * OPTIONS.restart_s)
    assert shard.forks(0).pairs == ((last, first),)


async def test_node_hands_its_leads_over_before_it_stops(world: World) -> None:
    world.change(partial(topology_changes.set_replicas, count=3))
    await await_whole(world)
    name = leaders(world)[0]
    await world.hosts[name].replicas.hand_over(60.0)
    assert name not in leaders(world).values()
    await until(world, lambda: leaders(world).keys() == {*world.topology.partitions})


async def test_node_that_is_alone_keeps_its_leads_when_it_stops(world: World) -> None:
    before = leaders(world)
    await asyncio.wait_for(world.hosts[before[0]].replicas.hand_over(600.0), 60)
    assert leaders(world) == before


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 4), *(pytest.param(seed, STEPS, marks=pytest.mark.slow) for seed in range(40))],
)
async def test_random_history_of_lone_sets_keeps_each_batch_once(
    tmp_path: Path, seed: int, steps: int
) -> None:
    """Partitions move, get copies, and nodes crash, while batches are stored and read."""
    world = World(tmp_path, seed, topology=LONE)
    await world.begin()

    async def disturb() -> None:
        kind = world.random.choice(FAULTS)
        if kind == "move":
            partition = world.random.randrange(PARTITIONS)
            move(world, partition, world.random.choice(NAMES))
        elif kind == "copies":
            copies = world.random.choice((1, 1, 2, 3))
            world.change(partial(topology_changes.set_replicas, count=copies))
        else:
            await hurt(world, [kind])

    try:
        works = [*(world.produce(n) for n in range(3)), world.read()]
        await play_history(world, steps, disturb, works)
        assert world.acknowledged
        assert world.complete
    finally:
        await world.close()
