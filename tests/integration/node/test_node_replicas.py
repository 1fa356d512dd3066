"""Random histories of replicated partitions on real nodes, disks and messages in this process.

Messages are lost, repeated and late; nodes crash, lose their directories, find single bytes of
their files changed, and have full disks.
Producers repeat each batch until it is acknowledged. At the end every replica has each batch once,
and all replicas are equal; before, no complete answer lacks what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import random
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fault_injection.damage import flip, frames

from galileo.dht import placement, topology_changes
from galileo.dht.topology import BOUNDED, Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    CorruptData,
    GalileoError,
    IncompleteAnswer,
    PartitionMoved,
    Unavailable,
)
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import CommitAnswer, CommitTask, ReadTask, ScanAnswer, ScanTask
from galileo.node.replication.protocol import CommitRange, Envelope, RangeDigest
from galileo.node.replication.replicas import Replicas, ReplicasOptions, load_states
from galileo.node.scrub_runner import ScrubOptions
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.query import parse
from galileo.replication.values import Member, ReplicationOptions
from galileo.rpc.replication import envelopes_from_pb, envelopes_to_pb
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer, encode_header
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions
from galileo.wire.internal.v1.peers_pb2 import SynopsisVersion

SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=2, time_bucket="6h")
START_US = 1_330_560_000_000_000
NAMES = ("a", "b", "c")
PARTITIONS = 2
SCRUB = ScrubOptions(bytes_per_s_min=1e12, bytes_per_s_max=1e12, calm_s=0.0)
STEPS = 12
ROWS = 6
SEVERAL_FRAMES_BYTES = 5_000
SETTLED_S = 90.0
OPTIONS = ReplicasOptions(
    machine=ReplicationOptions(
        dead_after_s=0.6,
        lease_s=0.4,
        stagger_s=0.1,
        campaign_s=0.4,
        beat_s=0.1,
        resend_s=0.1,
    ),
    tick_s=0.02,
    members_s=0.1,
    restart_s=0.1,
    discard_s=0.5,
    return_after_s=1.0,
    compare_s=0.2,
)


TOPOLOGY = Topology(
    "test",
    (Group("one", tuple(NodeInfo(n, f"127.0.0.1:{p}") for p, n in enumerate(NAMES, start=1))),),
    even_ranges(1),
    PARTITIONS,
    placement=BOUNDED,
    replicas=3,
)
RACKS = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "z", "f": "z"}
RACKED = replace(
    TOPOLOGY,
    groups=(
        Group(
            "one",
            tuple(
                NodeInfo(name, f"127.0.0.1:{p}", rack=rack)
                for p, (name, rack) in enumerate(RACKS.items(), start=1)
            ),
        ),
    ),
    partitions_per_group=5,
)


class Disk(RealDisk):
    """A disk that can be full, and that ends with its node at one moment; it is not waited for."""

    def __init__(self) -> None:
        self.is_full = self.is_dead = False
        self.gate = threading.Lock()

    def crash(self, directory: Path, copy: Path) -> None:
        """Copies what there is at this moment; nothing is written afterwards."""
        with self.gate:
            self.is_dead = True
            shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("lock"))

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        with self.gate:
            if self.is_dead:
                raise OSError(errno.EIO, "the node has crashed")
            yield

    def create(self, path: Path) -> int:
        with self._working():
            return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        with self._working():
            if self.is_full:
                raise OSError(errno.ENOSPC, "the disk is full")
            return super().write(descriptor, buffers, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        with self._working():
            super().truncate(descriptor, length)

    def rename(self, old: Path, new: Path) -> None:
        with self._working():
            super().rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._working():
            super().unlink(path)

    def fdatasync(self, descriptor: int) -> None:
        with self._working():
            pass

    def sync_directory(self, directory: Path) -> None:
        with self._working():
            pass


class Network:
    """Calls of other nodes that are not about replication."""

    def __init__(self) -> None:
        self.nodes: dict[str, StorageNode] = {}

    def _reach(self, node: str) -> StorageNode:
        if node not in self.nodes:
            raise Unavailable(f"node {node} is away", node=node)
        return self.nodes[node]

    async def commit(self, node: str, task: CommitTask) -> CommitAnswer:
        return await self._reach(node).ingest.commit(task)

    async def scan_small(self, node: str, task: ScanTask) -> list[ScanAnswer] | None:
        return await self._reach(node).local_scans.scan_small(task)

    async def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncIterator[ScanAnswer]:
        async for answer in self._reach(node).local_scans.scan(tasks):
            yield answer

    async def read(self, node: str, task: ReadTask, schema: Schema) -> AsyncIterator[pa.Table]:
        async for table in self._reach(node).reading.read_local(task):
            yield table

    async def datasets(self, node: str) -> list[Schema]:
        return [shard.schema for shard in self._reach(node).catalog.shards.values()]


class Host:
    """A running node."""

    def __init__(self, world: World, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.disk = Disk()
        journals = JournalOptions(
            durability="none", disk=self.disk, retry_after_s=0.1, segment_bytes_max=20_000
        )
        self.store = Store.open(directory, journals, wall=lambda: START_US / 1e6)
        self.live = TopologyState(world.topology)
        self.node = StorageNode(
            name,
            self.live,
            store=self.store,
            peers=world.network,
            options=NodeOptions(replication=world.options),
        )
        self.node.moves.on_moved = world.spread_leaders
        replicas = self.node.connect_replicas(
            Line(world), identity_of=world.identity_of, is_alive=lambda other: other in world.hosts
        )
        assert replicas is not None
        self.replicas: Replicas = replicas
        self.running = asyncio.create_task(replicas.run())

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.node.close()


class Line:
    """Sends the messages of a node: they may be lost, twice there, late, and in any order."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> None:
        world, sender = self._world, envelopes[0].sender.node
        chance = world.random.random()
        if node not in world.hosts or {node, sender} & world.cut:
            raise Unavailable(f"node {node} is away", node=node)
        if not world.is_calm and chance < 0.03:
            raise Unavailable(f"the line to node {node} broke", node=node)
        copies = 2 if not world.is_calm and chance > 0.97 else 1
        for request in envelopes_to_pb(envelopes):
            data = request.SerializeToString()
            for _ in range(copies):
                late_s = 0.0 if world.is_calm else world.random.choice((0.0, 0.0, 0.005, 0.05))
                world.later(self._deliver(node, type(request).FromString(data), late_s))

    async def digests(
        self, member: Member, ranges: Sequence[CommitRange]
    ) -> list[RangeDigest | None]:
        host = self._world.hosts.get(member.node)
        if host is None or host.replicas.me != member:
            raise Unavailable(f"node {member.node} is away", node=member.node)
        return host.replicas.comparison.digests(ranges)

    async def _deliver(self, node: str, request: Any, late_s: float) -> None:
        await asyncio.sleep(late_s)
        host = self._world.hosts.get(node)
        if host is not None:
            await host.replicas.receive(envelopes_from_pb(request, to=node))


class World:
    """The nodes of a topology, and producers and readers of one dataset."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        topology: Topology = TOPOLOGY,
        options: ReplicasOptions = OPTIONS,
    ) -> None:
        self.random = random.Random(seed)
        self.topology, self.options = topology, options
        self.directory = directory
        self.network = Network()
        self.hosts: dict[str, Host] = {}
        self.places: dict[str, Path] = {}
        self.cut: set[str] = set()
        self.is_calm = False
        self.is_over = False
        self.acknowledged: set[int] = set()
        self.complete = self.incomplete = self.places_made = 0
        self._late: set[asyncio.Task[None]] = set()

    def identity_of(self, node: str) -> str:
        return self.hosts[node].store.identity if node in self.hosts else ""

    def spread_leaders(self) -> None:
        """As gossip does; a node that is cut off does not hear of leaders."""
        linked = [host for name, host in self.hosts.items() if name not in self.cut]
        moves = {move for host in linked for move in host.live.current.moved}
        for host in linked:
            host.live.adopt(moves)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def new_place(self, name: str) -> Path:
        self.places_made += 1
        self.places[name] = self.directory / f"{name}-{self.places_made}"
        return self.places[name]

    async def begin(self, *, datasets: bool = True) -> None:
        for name in self.topology.by_name:
            store = Store.open(self.new_place(name), wall=lambda: START_US / 1e6)
            self.topology = topology_changes.identify(
                self.topology,
                name,
                store.identity,
                placement.partitions_by_node(self.topology)[name],
            )
            store.close()
        for name in self.topology.by_name:
            self.start(name)
        for host in self.hosts.values() if datasets else ():
            host.node.catalog.adopt(SCHEMA)

    def start(self, name: str) -> None:
        host = self.hosts[name] = Host(self, name, self.places[name])
        self.network.nodes[name] = host.node
        self.spread_leaders()

    async def crash(self, name: str, *, is_lost: bool) -> None:
        """Ends a node; what it had written last may be half there."""
        host = self.hosts.pop(name)
        self.network.nodes.pop(name)
        before, after = self.places[name], self.new_place(name)
        if is_lost:
            host.disk.is_dead = True
        else:
            await asyncio.to_thread(host.disk.crash, before, after)
        await host.stop()

    # --- who works ---------------------------------------------------------------------------

    async def produce(self, producer: int) -> None:
        """Sends batches one after the other, each until it is acknowledged."""
        number = producer
        while not self.is_over:
            await self.send(number)
            number += 10

    async def send(self, number: int) -> None:
        table = batch(number)
        while True:
            hosts = list(self.hosts.values())
            if hosts:
                node = self.random.choice(hosts).node
                try:
                    async with asyncio.timeout(5.0):
                        await node.ingest.ingest("nam", table, producer="p", batch=number)
                    self.acknowledged.add(number)
                    return
                except (GalileoError, TimeoutError):
                    pass
                except RuntimeError as error:
                    _expect_crash(error)
            await asyncio.sleep(0.02)

    async def read(self) -> None:
        while not self.is_over:
            due = len(self.acknowledged) * ROWS
            hosts = list(self.hosts.values())
            if hosts:
                await self.ask(self.random.choice(hosts).node, due)
            await asyncio.sleep(0.05)

    async def ask(self, node: StorageNode, due: int) -> None:
        """A complete answer has all that was acknowledged before, however it is asked for."""
        way = self.random.choice((labels, count, select))
        try:
            rows = await way(node)
        except IncompleteAnswer:
            self.incomplete += 1
            return
        except GalileoError:
            return
        except RuntimeError as error:
            _expect_crash(error)
            return
        self.complete += 1
        assert rows >= due, f"{way.__name__} has {rows} rows, {due} were acknowledged"

    # --- the end -----------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything works again; returns when all replicas are equal."""
        self.is_calm, self.is_over = True, True
        self.cut.clear()
        for host in self.hosts.values():
            host.disk.is_full = False
        for name in NAMES:
            if name not in self.hosts:
                self.start(name)
        try:
            async with asyncio.timeout(SETTLED_S):
                while not self.is_settled():
                    self.spread_leaders()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"not settled: {self.describe()}")

    def describe(self) -> str:
        """The machines, for the message of a failure."""
        return "\n".join(
            f"{name}/{partition} {hosted.machine.state} failed {hosted.failed_at} "
            f"leads {hosted.machine.is_open} {hosted.machine.logs}"
            for name, host in self.hosts.items()
            for partition, hosted in sorted(host.replicas._hosted.items())
        )

    def is_settled(self) -> bool:
        led = [p for host in self.hosts.values() for p in host.replicas.led]
        is_whole = not under_replicated(self)
        return sorted(led) == list(range(PARTITIONS)) and is_whole and self.is_equal()

    def is_equal(self) -> bool:
        states = {
            tuple(
                (journal.end_sequence, journal.last_sequence, shard.published_sequence(p))
                for p in range(PARTITIONS)
                if (journal := shard.journals.get(p)) is not None
            )
            for host in self.hosts.values()
            for shard in host.node.catalog.shards.values()
        }
        return len(states) == 1 and all(end == last == seen for end, last, seen in states.pop())

    def judge(self) -> None:
        for partition in range(PARTITIONS):
            logs = [self.batches(host, partition) for host in self.hosts.values()]
            assert all(one == logs[0] for one in logs), "replicas differ"
            assert len(logs[0]) == len(set(logs[0])), "a batch is there twice"
        for host in self.hosts.values():
            parts = [self.batches(host, partition) for partition in range(PARTITIONS)]
            stored = {number for part in parts for number in part}
            assert self.acknowledged <= stored, "an acknowledged batch is lost"
            assert host.replicas.comparison.diverged == {}
        for partition in range(PARTITIONS):
            assert len({self.digest(host, partition) for host in self.hosts.values()}) == 1

    def digest(self, host: Host, partition: int) -> int:
        journal = host.node.catalog.shard("nam").journals[partition]
        digest = journal.history.digest(0, journal.last_sequence)
        assert digest is not None
        return digest

    def batches(self, host: Host, partition: int) -> list[int]:
        journal = host.node.catalog.shard("nam").journals[partition]
        return [journal.header(n).batch for n in range(1, journal.last_sequence + 1)]

    async def close(self) -> None:
        for host in list(self.hosts.values()):
            await host.stop()
        self.hosts.clear()
        await asyncio.gather(*self._late, return_exceptions=True)


async def labels(node: StorageNode) -> int:
    rows = 0
    async for part in node.scans.run(parse("", SCHEMA)):
        if not isinstance(part, ScanEnd):
            rows += sum(part.column("rows").to_pylist())
        elif part.missing:
            raise IncompleteAnswer("partitions are missing", missing=sorted(part.missing))
    return rows


async def count(node: StorageNode) -> int:
    return await node.selection.count(parse("temperature > 0", SCHEMA))


async def select(node: StorageNode) -> int:
    query = parse("temperature > 0", SCHEMA)
    return sum([table.num_rows async for table in node.selection.select(query)])


def _expect_crash(error: RuntimeError) -> None:
    """Raises an error that is not that of a node whose threads have ended."""
    if "shutdown" not in str(error):
        raise error


def batch(number: int) -> pa.Table:
    """Observations all over the world, other ones in each batch."""
    made = random.Random(number)
    return pa.table(
        [
            pa.array([made.uniform(-80, 80) for _ in range(ROWS)]),
            pa.array([made.uniform(-170, 170) for _ in range(ROWS)]),
            pa.array([START_US + number] * ROWS, pa.int64()).cast(TIME_TYPE),
            pa.array([250.0 + number] * ROWS),
        ],
        schema=SCHEMA.observation_schema,
    )


async def hurt(world: World) -> None:
    """One fault, for some time; a directory is lost only while the other nodes have everything."""
    name = world.random.choice(NAMES)
    fault = world.random.choice(("crash", "crash", "disk", "rot", "cut", "full", "all"))
    pause_s = world.random.uniform(0.1, 1.2)
    if fault in ("disk", "rot"):
        world.is_calm = True
        await await_whole(world)
        world.is_calm = False
    if fault in ("crash", "disk", "rot"):
        await world.crash(name, is_lost=fault == "disk")
        await asyncio.sleep(pause_s)
        if fault == "rot" and (found := segments(world, name)):
            rot(world.random.choice(found), world.random)
        world.start(name)
    elif fault == "all":
        for each in NAMES:
            await world.crash(each, is_lost=False)
        for each in NAMES:
            world.start(each)
    elif fault == "cut":
        world.cut.add(name)
        await asyncio.sleep(pause_s)
        world.cut.clear()
    else:
        world.hosts[name].disk.is_full = True
        await asyncio.sleep(pause_s)
        world.hosts[name].disk.is_full = False


def segments(world: World, name: str) -> list[Path]:
    """The files of a node with several frames."""
    files = sorted(world.places[name].glob("journals/*/*/*.segment"))
    return [file for file in files if file.stat().st_size > SEVERAL_FRAMES_BYTES]


def damaged(world: World, name: str) -> list[Path]:
    """The logs that a node has set aside."""
    return sorted((world.places[name] / "damaged").glob("*"))


def rot(file: Path, chosen: random.Random) -> None:
    """Changes a byte in the first half: damage of the end is like an interrupted write."""
    flip(file, chosen.randrange(file.stat().st_size // 2))


async def await_whole(world: World) -> None:
    await await_condition(world, _is_whole)


async def await_condition(world: World, is_met: Callable[[World], bool]) -> None:
    try:
        async with asyncio.timeout(SETTLED_S):
            while not is_met(world):
                world.spread_leaders()
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not {is_met.__name__}: {world.describe()}")


def voters(world: World) -> dict[int, list[str]]:
    """The voters of each partition that has a leader, as that knows them."""
    states = {
        partition: host.replicas._hosted[partition].machine.state.set
        for host in world.hosts.values()
        for partition in host.replicas.led
    }
    return {p: [one.node for one in state.voters] for p, state in states.items() if state}


def is_in_three_racks(world: World) -> bool:
    """Whether each partition has three voters that run, each in another rack."""
    found, racks = voters(world), world.topology.fault_domains
    return len(found) == len(world.topology.partitions) and all(
        sorted(racks[name] for name in names if name in world.hosts) == ["x", "y", "z"]
        and len(names) == 3
        for names in found.values()
    )


async def until(world: World, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SETTLED_S):
        while not condition():
            world.spread_leaders()
            await asyncio.sleep(0.05)


def under_replicated(world: World) -> list[int]:
    return sorted(p for host in world.hosts.values() for p in host.replicas.under_replicated)


def _is_whole(world: World) -> bool:
    """Whether each partition has a leader and three voters that have what is committed."""
    led = sorted(p for host in world.hosts.values() for p in host.replicas.led)
    return led == list(range(PARTITIONS)) and not under_replicated(world)


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


@pytest.mark.parametrize("role", ["leader", "follower"])
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


@pytest.mark.parametrize("whose", ["leader", "follower"])
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
