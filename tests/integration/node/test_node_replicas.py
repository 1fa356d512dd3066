"""Random histories of replicated partitions on real nodes, disks and messages in this process.

Producers repeat each batch until it is acknowledged. At the end every replica has each batch once,
and all replicas are equal; before, no complete answer lacks what was acknowledged.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_injection.damage import flip, frames
from parameters import keep_quick
from replica_nodes import (
    NAMES,
    OPTIONS,
    RACKED,
    ROWS,
    SCHEMA,
    World,
    await_condition,
    await_whole,
    batch,
    count,
    damaged,
    hurt,
    is_in_three_racks,
    labels,
    play_history,
    rot,
    segments,
    select,
    under_replicated,
    until,
)

from galileo.dht import topology_changes
from galileo.dht.topology import SYSTEM
from galileo.errors import (
    CorruptData,
    PartitionMoved,
)
from galileo.hashing import text64
from galileo.node.replication.protocol import Envelope
from galileo.node.replication.replicas import load_states
from galileo.node.scrub_runner import ScrubOptions
from galileo.node.storage_node import StorageNode
from galileo.replication.machine import Replica
from galileo.replication.messages import Append, Beat, NewerSet, StartTerm, Support
from galileo.replication.values import ORDINALS, Epochs
from galileo.storage.frame import encode_header

SCRUB = ScrubOptions(bytes_per_s_min=1e12, bytes_per_s_max=1e12, calm_s=0.0)
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
    assert under_replicated(world) == [*world.partitions]
    await await_whole(world)
    gauges = [host.replicas.gauges() for host in world.hosts.values()]
    assert sum(one.leading for one in gauges) == len(world.partitions)
    assert sum(one.following for one in gauges) == len(world.partitions) * (len(NAMES) - 1)
    assert not any(one.learning or one.lag for one in gauges)


@pytest.mark.slow
async def test_node_replicas_are_in_different_racks_when_racks_change_and_a_node_is_lost(
    tmp_path: Path,
) -> None:
    options = replace(OPTIONS, heal_after_s=2.0)
    world = World(tmp_path, 0, topology=RACKED, options=options)
    await world.begin()
    world.is_calm = True
    try:
        await await_condition(world, is_in_three_racks)
        for node, rack in (("b", "y"), ("d", "z"), ("f", "x")):
            world.topology = topology_changes.set_rack(world.topology, node, rack)
        for host in world.hosts.values():
            host.live.replace_nodes(world.topology)
        await await_condition(world, is_in_three_racks)
        await world.crash("c", is_lost=True)
        await await_condition(world, is_in_three_racks)
    finally:
        await world.close()


@pytest.mark.parametrize("is_deleting", [True, False])
async def test_node_replicas_state_on_disk_never_falls_when_the_disk_refuses_a_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch, is_deleting: bool
) -> None:
    """A node has left a set, its disk is full, and a later term names it again.

    The term comes while the deletion of the files waits for the disk, or before it was begun.
    """
    await await_whole(world)
    await world.send(1)
    host, [partition, *_] = world.hosts["c"], world.topology.partitions
    others = {name: world.hosts[name].replicas.me for name in "ab"}
    for name in others:
        await world.crash(name, is_lost=False)
    written: list[tuple[int, int]] = []
    save_batch = host.store.save_batch

    def record(kind: str, values: Any) -> None:
        save_batch(kind, values)
        if str(partition) in values:
            state = load_states(host.store)[partition]
            written.append((state.promised, state.joined))

    monkeypatch.setattr(host.store, "save_batch", record)
    machine = host.replicas._hosted[partition].machine
    promised, current = machine.state.promised, machine.state.set
    assert current is not None
    assert machine.state.joined
    left = replace(current, number=current.number + 1, voters=frozenset(others.values()))
    later = 2 * ORDINALS + max(promised, max(host.replicas.terms.values(), default=0))

    async def receive(message: Any) -> None:
        await host.replicas.receive([Envelope(partition, others["a"], host.replicas.me, message)])

    await receive(NewerSet(left))
    await await_condition(world, lambda _: machine.saved.set == left)
    logs = {} if is_deleting else {name: log.epochs for name, log in machine.logs.items()}
    host.disk.is_full = True
    if is_deleting:
        await asyncio.sleep(2 * world.options.discard_s)
    again = replace(left, term=later, number=left.number + 1, voters=current.voters)
    await receive(StartTerm(later, again, {}, logs))
    await asyncio.sleep(2 * world.options.discard_s)
    host.disk.is_full = False
    if is_deleting:
        await await_condition(world, lambda _: not machine_of(host, partition).logs)
    for _ in range(20):
        await receive(StartTerm(later, again, {}, logs))
        await asyncio.sleep(world.options.tick_s)
    await await_condition(world, lambda _: machine_of(host, partition).saved.promised == later)
    assert [one for one, _ in written] == sorted(one for one, _ in written)
    assert load_states(host.store)[partition].promised == later


@pytest.mark.parametrize("has_joined", [True, False])
async def test_node_replicas_files_of_a_member_that_was_dropped_are_deleted(
    world: World, has_joined: bool
) -> None:
    """A learner has frames before it joins the term of its leader."""
    await await_whole(world)
    for number in range(4):
        await world.send(number)
    host, partition = world.hosts["c"], world.topology.partitions[0]
    me, other = host.replicas.me, world.hosts["a"].replicas.me
    for name in "ab":
        await world.crash(name, is_lost=False)
    state = machine_of(host, partition).saved
    assert state.set is not None
    if not has_joined:
        host.replicas._host(partition, replace(state, joined=0))
    assert machine_of(host, partition).logs["nam"].end
    left = replace(state.set, number=state.set.number + 1, voters=state.set.voters - {me})
    await host.replicas.receive([Envelope(partition, other, me, NewerSet(left))])
    await await_condition(world, lambda _: not machine_of(host, partition).logs)
    assert not host.store.partition_directory("nam", partition).exists()


async def test_node_replicas_answer_beats_of_their_leaders_at_once(world: World) -> None:
    await await_whole(world)
    partition = world.topology.partitions[0]
    machines = {name: machine_of(host, partition) for name, host in world.hosts.items()}
    [leader] = [name for name, machine in machines.items() if machine.leadership is not None]
    follower = next(host for name, host in world.hosts.items() if name != leader)
    sender, term = world.hosts[leader].replicas.me, machines[leader].state.promised
    beat = Envelope(partition, sender, follower.replicas.me, Beat(term, 1.5))
    refused = Envelope(partition, sender, follower.replicas.me, Beat(term - ORDINALS, 1.5))
    answers = await follower.replicas.receive([beat, refused])
    assert [(one.to, one.message) for one in answers] == [(sender, Support(term, 1.5))]


async def test_node_replicas_take_no_message_that_came_without_its_frames(world: World) -> None:
    await await_whole(world)
    await world.send(1)
    partition = world.topology.partitions[0]
    for host in world.hosts.values():
        machine = machine_of(host, partition)
        log, term = machine.logs["nam"], machine.state.promised
        if machine.leadership is None:
            end = log.end
            append = Append(
                term, "nam", end, log.epochs.at(end), Epochs(((end + 1, term),), end + 1), end, end
            )
            envelope = Envelope(partition, host.replicas.me, host.replicas.me, append)
            await host.replicas.receive([envelope])
            assert machine.logs["nam"].end == end


def machine_of(host: Any, partition: int) -> Replica:
    machine: Replica = host.replicas._hosted[partition].machine
    return machine


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
            assert synopses.keys() == host.replicas.led - {SYSTEM}
            for partition, synopsis in synopses.items():
                term = host.replicas.terms[partition]
                assert synopsis.version.epoch == text64("synopsis", term, 0)
                assert 0 <= synopsis.version.epoch < 2**64, "it fits into what peers exchange"
    finally:
        await world.close()


async def test_node_replicas_drop_of_a_dataset_counts_each_row_once(world: World) -> None:
    await await_whole(world)
    for number in range(4):
        await world.send(number)
    await world.settle()
    dropped = [await host.node.drop("nam", 1) for host in world.hosts.values()]
    assert sum(one.rows for one in dropped) == 4 * ROWS
    assert all(one.bytes for one in dropped)
    for host in world.hosts.values():
        for partition in world.topology.partitions:
            assert "nam" not in machine_of(host, partition).logs


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


@pytest.mark.parametrize("role", keep_quick(["leader", "follower"], "leader"))
async def test_node_replicas_scrub_finds_damage_that_no_reader_meets(
    world: World, role: str
) -> None:
    await await_whole(world)
    for number in range(8):
        await world.send(number)
    await world.settle()
    name, host = next(
        (n, h) for n, h in world.hosts.items() if (0 in h.replicas.led) == (role == "leader")
    )
    segment = next(file for file in segments(world, name) if file.parent.name == "0")
    offset, header = next(iter(frames(segment)))
    flip(segment, offset + header.observations_offset)
    for one in world.hosts.values():
        one.node.begin_scrub(SCRUB)
    await until(world, lambda: bool(damaged(world, name)))
    await world.settle()
    world.judge()
    assert [len(damaged(world, other)) for other in NAMES] == [int(n == name) for n in NAMES]
    scrub = host.node.scrub
    assert scrub is not None
    await until(world, lambda: scrub.state.is_over)
    assert host.node.damaged() == []


async def test_node_replicas_scrub_of_the_only_copy_reports_damage(world: World) -> None:
    """The other nodes have lost their directories, and this one has all: nothing stops."""
    await await_whole(world)
    for number in range(8):
        await world.send(number)
    await world.settle()
    name, host = next((n, h) for n, h in world.hosts.items() if 0 in h.replicas.led)
    for other in set(NAMES) - {name}:
        await world.crash(other, is_lost=True)
    segment = next(file for file in segments(world, name) if file.parent.name == "0")
    offset, header = next(iter(frames(segment)))
    flip(segment, offset + header.observations_offset)
    host.node.begin_scrub(SCRUB)
    await until(world, lambda: bool(host.node.damaged()))
    assert str(segment) in host.node.damaged()[0]
    assert damaged(world, name) == []


def change_history(segment: Path) -> None:
    """Gives the first frame another batch number, with right checksums."""
    offset, header = next(iter(frames(segment)))
    changed = encode_header(dataclasses.replace(header, batch=999))
    with segment.open("r+b") as file:
        file.seek(offset)
        file.write(changed)


@pytest.mark.parametrize("whose", keep_quick(["leader", "follower"], "follower"))
async def test_node_replicas_copies_that_differ_without_damage_are_named_and_kept(
    world: World, whose: str
) -> None:
    await await_whole(world)
    for number in range(8):
        await world.send(number)
    await world.settle()
    (leader,) = [host for host in world.hosts.values() if 0 in host.replicas.led]
    for other in set(NAMES) - {leader.name}:
        leader.replicas.comparison.diverged["nam", 0, other] = "it differed until now"
    # The second time, the logs are as they were, and are compared to their ends.
    for _ in range(2):
        for host in world.hosts.values():
            await host.replicas.comparison.compare()
    world.judge()
    name = next(n for n, h in world.hosts.items() if (0 in h.replicas.led) == (whose == "leader"))
    await world.crash(name, is_lost=False)
    segment = next(file for file in segments(world, name) if file.parent.name == "0")
    change_history(segment)
    world.start(name)
    await await_whole(world)
    diverged: dict[tuple[str, int, str], str] = {}
    while not diverged:
        await asyncio.sleep(OPTIONS.compare_s)
        (leader,) = [host for host in world.hosts.values() if 0 in host.replicas.led]
        diverged = leader.replicas.comparison.diverged
    others = set(NAMES) - {leader.name}
    last = leader.node.catalog.shard("nam").journals[0].last_sequence
    assert {node for _, _, node in diverged} == (others if leader.name == name else {name})
    assert {partition for _, partition, _ in diverged} == {0}
    assert f"differs in commits 1 to {last}" in next(iter(diverged.values()))
    leader.node.begin_scrub(SCRUB)
    await world.send(20)
    assert [damaged(world, other) for other in NAMES] == [[], [], []]

    # The operator has the node get its copies anew; a damaged log is copied anew by itself.
    if whose == "leader":
        await world.crash(name, is_lost=True)
        world.start(name)
        await await_whole(world)
    else:
        world.hosts[name].replicas.on_damage("nam", 0, CorruptData("it is damaged now"))
        await until(world, lambda: len(damaged(world, name)) == 1)
    hosts = world.hosts.values()
    await until(world, lambda: not any(one.replicas.comparison.diverged for one in hosts))


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


@pytest.mark.parametrize("way", keep_quick([labels, count, select], select))
async def test_node_replicas_leader_that_is_cut_off_answers_nothing_old(
    world: World, way: Callable[[StorageNode], Coroutine[Any, Any, int]]
) -> None:
    await await_whole(world)
    (old,) = [host for host in world.hosts.values() if 0 in host.replicas.led]
    others = [host for host in world.hosts.values() if host is not old]
    world.cut.add(old.name)
    led = frozenset[int]()
    while led != frozenset(world.partitions):
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
    ("seed", "steps"),
    [(0, 2), *(pytest.param(seed, STEPS, marks=pytest.mark.slow) for seed in range(40))],
)
async def test_node_replicas_random_history_keeps_each_batch_once(
    tmp_path: Path, seed: int, steps: int
) -> None:
    world = World(tmp_path, seed)
    await world.begin()
    try:
        works = [*(world.produce(n) for n in range(3)), world.read(), world.read_ranges()]
        await play_history(world, steps, partial(hurt, world), works)
        assert world.acknowledged
        assert world.complete
        assert world.ranges_followed
    finally:
        await world.close()
