"""Replicated partitions on real nodes, disks and messages in this process.

Messages are lost, repeated and late; nodes crash, lose their directories, find single bytes of
their files changed, and have full disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import shutil
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pytest
from fault_injection.damage import flip
from internal_network import InternalNetwork
from running_clock import RunningClock

from galileo.clock import Clock
from galileo.cursor import Cursor
from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM, Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    GalileoError,
    IncompleteAnswer,
    Unavailable,
)
from galileo.model.schema import Feature, Schema, StoredSchema
from galileo.model.system import DATASETS
from galileo.model.times import TIME_TYPE
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import (
    ScanDone,
    ScanLabels,
    ScanTask,
)
from galileo.node.replication.protocol import Envelope, LogRange, RangeDigest
from galileo.node.replication.replicas import ReplicasOptions
from galileo.node.shard import Shard
from galileo.node.storage_node import NodeCallbacks, NodeOptions, StorageNode
from galileo.query import parse
from galileo.replication.values import Member, ReplicationOptions
from galileo.rpc.replication import REPLICATE, encoded
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=2, time_bucket="6h")
START_US = 1_330_560_000_000_000
NAMES = ("a", "b", "c")
PARTITIONS = 2
ROWS = 6
SEVERAL_FRAMES_BYTES = 5_000
SETTLED_S = 90.0
SCRUBBED_S = 5.0
"""Commits that do not count by then may never do."""
Rows: TypeAlias = list[tuple[int, ...]]
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


def topology_of(groups: Sequence[Sequence[str]]) -> Topology:
    """Of groups with these nodes, the first of which have the whole world in even parts."""
    ports = {name: p for p, name in enumerate((n for names in groups for n in names), start=1)}
    made = tuple(
        Group(f"g{number}", tuple(NodeInfo(n, f"127.0.0.1:{ports[n]}") for n in names))
        for number, names in enumerate(groups)
    )
    return replace(TOPOLOGY, groups=made, ranges=even_ranges(len(made)))


PATIENT = replace(
    OPTIONS,
    machine=ReplicationOptions(
        dead_after_s=1.5,
        lease_s=1.0,
        stagger_s=0.3,
        campaign_s=1.2,
        beat_s=0.25,
        resend_s=0.25,
    ),
    members_s=0.2,
)
"""For many nodes in one process, on a machine that is busy."""


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


class Network(InternalNetwork):
    """Calls of other nodes that are not about replication."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        self.nodes: dict[str, StorageNode] = {}

    def reach(self, node: str, method: str) -> StorageNode:
        if node not in self.nodes or node in self.away:
            raise Unavailable(f"node {node} is away", node=node)
        return self.nodes[node]


class Host:
    """A running node."""

    def __init__(self, world: World, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.disk = world.make_disk()
        journals = JournalOptions(
            durability="none",
            disk=self.disk,
            retry_after_s=0.1,
            segment_bytes_max=world.segment_bytes_max,
            monotonic=world.clock.monotonic,
        )
        self.store = Store.open(directory, journals, wall=lambda: START_US / 1e6)
        self.live = TopologyState(world.known.get(name, world.topology))
        self.node = StorageNode(
            name,
            self.live,
            store=self.store,
            peers=world.peers_of(name, self.live),
            options=NodeOptions(replication=world.options),
            callbacks=NodeCallbacks(on_led=partial(world.on_led, name)),
            clock=world.clock,
            make_executor=world.make_executor,
        )
        self.replicas = self.node.connect_replicas(
            world.line_of(name),
            identity_of=world.identity_of,
            is_alive=partial(world.is_alive, name),
        )
        self.running = asyncio.create_task(self.replicas.run())

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.node.close()


class Line:
    """Sends the messages of a node: they may be lost, twice there, late, and in any order."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        world, sender = self._world, envelopes[0].sender.node
        chance = world.random.random()
        if node not in world.hosts or {node, sender} & world.cut or sender in world.muted:
            raise Unavailable(f"node {node} is away", node=node)
        if not world.is_calm and chance < 0.03:
            raise Unavailable(f"the line to node {node} broke", node=node)
        copies = 2 if not world.is_calm and chance > 0.97 else 1
        for request in encoded(envelopes):
            for _ in range(copies):
                late_s = 0.0 if world.is_calm else world.random.choice((0.0, 0.0, 0.005, 0.05))
                world.later(self._deliver(node, request, late_s))
        return ()  # The answers come back in the same way.

    async def digests(self, member: Member, ranges: Sequence[LogRange]) -> list[RangeDigest | None]:
        host = self._world.hosts.get(member.node)
        if host is None or host.replicas.me != member:
            raise Unavailable(f"node {member.node} is away", node=member.node)
        return host.replicas.comparison.digests(ranges)

    async def _deliver(self, node: str, request: bytes, late_s: float) -> None:
        await asyncio.sleep(late_s)
        host = self._world.hosts.get(node)
        if host is not None:
            answers = await host.replicas.receive(*REPLICATE.decode(request))
            if answers:
                with contextlib.suppress(Unavailable):
                    await self.send(answers[0].to.node, answers)


class World:
    """The nodes of a topology, and producers and readers of one dataset.

    Attributes:
        schemas: of the dataset, and of further ones.
        known: the topology that each node has stored, without the leaders.
        cut: nodes whose replicas neither send nor get messages.
        muted: nodes whose replicas send none.
        clock, make_executor, segment_bytes_max: of each node.
    """

    clock: Clock = RunningClock()
    make_executor: Callable[..., Executor] = ThreadPoolExecutor
    segment_bytes_max = 20_000

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        topology: Topology = TOPOLOGY,
        schema: StoredSchema = SCHEMA,
        further: Sequence[StoredSchema] = (),
        options: ReplicasOptions = OPTIONS,
    ) -> None:
        self.random = random.Random(seed)
        self.topology, self.options = topology, options
        self.directory = directory
        self.network = Network()
        self.hosts: dict[str, Host] = {}
        self.places: dict[str, Path] = {}
        self.cut: set[str] = set()
        self.muted: set[str] = set()
        self.is_calm = False
        self.is_over = False
        self.acknowledged: set[int] = set()
        self.complete = self.incomplete = self.places_made = 0
        self.ranges: list[tuple[ScanTask, Rows]] = []
        self.ranges_followed = 0
        self._late: set[asyncio.Task[None]] = set()
        self.schemas = (schema, *further)
        self.names = tuple(topology.by_name)
        self.known: dict[str, Topology] = {}

    @property
    def schema(self) -> StoredSchema:
        """The schema of the dataset that all histories use."""
        return self.schemas[0]

    def make_disk(self) -> Disk:
        """Of a node."""
        return Disk()

    def peers_of(self, name: str, live: TopologyState) -> Any:
        """By which a node calls the others, but for replication."""
        return self.network

    def line_of(self, name: str) -> Any:
        """By which the replicas of a node send."""
        return Line(self)

    def is_alive(self, asker: str, other: str) -> bool:
        """Whether a node has heard another one lately."""
        return other in self.hosts

    def identity_of(self, node: str) -> str:
        return self.hosts[node].store.identity if node in self.hosts else ""

    def on_led(self, name: str) -> None:
        """A node has begun to lead a partition."""
        self.spread_leaders()

    def spread_leaders(self) -> None:
        """As gossip does; a node that is cut off does not hear of leaders."""
        linked = [host for name, host in self.hosts.items() if name not in self.cut]
        moves = {move for host in linked for move in host.live.current.moved}
        for host in linked:
            host.live.adopt(moves)

    def change(self, change: Callable[[Topology], Topology]) -> None:
        """Changes the topology, as the register does; nodes that are down learn of it too."""
        self.topology = change(self.topology)
        for host in self.hosts.values():
            host.live.replace_nodes(replace(self.topology, moved=()))
        self.known = dict.fromkeys(self.known, replace(self.topology, moved=()))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def new_place(self, name: str) -> Path:
        self.places_made += 1
        self.places[name] = self.directory / f"{name}-{self.places_made}"
        return self.places[name]

    async def begin(self, *, datasets: bool = True) -> None:
        for name in self.names:
            store = Store.open(self.new_place(name), wall=lambda: START_US / 1e6)
            self.topology = topology_changes.identify(
                self.topology,
                name,
                store.identity,
                placement.partitions_by_node(self.topology)[name] | {SYSTEM},
            )
            store.close()
        for name in self.names:
            self.start(name)
        for host in self.hosts.values() if datasets else ():
            for schema in self.schemas:
                host.node.catalog.adopt(schema)

    def start(self, name: str) -> None:
        host = self.hosts[name] = Host(self, name, self.places[name])
        self.network.nodes[name] = host.node
        self.spread_leaders()

    async def crash(self, name: str, *, is_lost: bool) -> None:
        """Ends a node; what it had written last may be half there."""
        host = self.hosts.pop(name)
        self.network.nodes.pop(name)
        self.known[name] = replace(host.live.current, moved=())
        before, after = self.places[name], self.new_place(name)
        if is_lost:
            del self.known[name]
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

    def table_of(self, number: int, node: StorageNode) -> pa.Table:
        """The observations of a batch; `node` is to take them."""
        return batch(number)

    async def send(self, number: int) -> None:
        await self.send_until_stored(
            "nam", partial(self.table_of, number), producer="p", batch=number
        )
        self.acknowledged.add(number)

    async def send_until_stored(
        self, key: str, rows_of: Callable[[StorageNode], pa.Table], *, producer: str, batch: int
    ) -> None:
        """Sends a batch to one node after the other until one has stored it."""
        while True:
            hosts = list(self.hosts.values())
            if hosts:
                node = self.random.choice(hosts).node
                table = rows_of(node)
                try:
                    async with asyncio.timeout(5.0):
                        await node.ingest.ingest(key, table, producer=producer, batch=batch)
                    return
                except (GalileoError, TimeoutError):
                    pass
                except RuntimeError as error:
                    expect_crash(error)
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
            expect_crash(error)
            return
        self.complete += 1
        assert rows >= due, f"{way.__name__} has {rows} rows, {due} were acknowledged"

    async def read_ranges(self) -> None:
        """Asks any node for a range of commits that some node shows to readers."""
        while not self.is_over:
            hosts, partition = list(self.hosts.values()), self.random.randrange(PARTITIONS)
            last = max((self.seen(host, partition) for host in hosts), default=0)
            if last:
                until = self.random.randint(1, last)
                task = range_task(partition, self.random.randrange(until), until)
                await self.ask_range(self.random.choice(hosts), task)
            await asyncio.sleep(0.02)

    async def ask_range(self, host: Host, task: ScanTask) -> None:
        """A node either refuses or answers with the whole range, which `judge` compares."""
        is_led = task.partitions <= host.replicas.led
        try:
            answers = [answer async for answer in host.node.local_scans.scan([task])]
        except RuntimeError as error:
            expect_crash(error)
            return
        if isinstance(end := answers.pop(), ScanDone):
            assert end == ScanDone(0, Cursor(task.until))
            tables = [answer.table for answer in answers if isinstance(answer, ScanLabels)]
            self.ranges.append((task, rows_of(tables)))
            self.ranges_followed += not is_led

    def seen(self, host: Host, partition: int) -> int:
        """The last commit of a partition that readers see at a node."""
        shard = host.node.catalog.shards.get("nam")
        return 0 if shard is None else shard.published_sequence(partition)

    # --- the end -----------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything works again; returns when all replicas are equal."""
        self.is_calm, self.is_over = True, True
        self.cut.clear()
        for host in self.hosts.values():
            host.disk.is_full = False
        for name in self.names:
            if name not in self.hosts:
                self.start(name)
        try:
            await until(self, self.is_settled)
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
        is_whole = _is_whole(self) and all(
            len(self.members_of(p)) == self.copies(p) for p in self.partitions
        )
        return is_whole and self.is_equal()

    @property
    def partitions(self) -> tuple[int, ...]:
        """All partitions, of which the system partition is the last."""
        return (*self.topology.partitions, SYSTEM)

    def copies(self, partition: int) -> int:
        """How many copies a partition should have."""
        if partition == SYSTEM:
            return topology_changes.system_copies(self.topology)
        return self.topology.replicas

    def is_equal(self) -> bool:
        ends = [
            self.ends(partition, schema.key)
            for partition in self.topology.partitions
            for schema in self.schemas
        ]
        ends.append(self.ends(SYSTEM, DATASETS.key))
        return all(len(of_each) == 1 and len({*of_each.pop()}) == 1 for of_each in ends)

    def ends(self, partition: int, dataset: str = "nam") -> set[tuple[int, int, int]]:
        """The ends of the replicas of a partition, and up to where they are committed and seen."""
        ends = set[tuple[int, int, int]]()
        for host in self.members_of(partition):
            shard = host.node.catalog.shards.get(dataset)
            journal = None if shard is None else shard.journals.get(partition)
            if shard is None or journal is None:
                ends.add((0, 0, 0))
            else:
                seen = shard.published_sequence(partition)
                ends.add((journal.end_sequence, journal.last_sequence, seen))
        return ends

    def group_of(self, partition: int) -> list[Host]:
        """The running nodes that may have replicas of a partition."""
        if partition == SYSTEM:
            return list(self.hosts.values())
        group = self.topology.groups[partition // PARTITIONS]
        return [self.hosts[node.name] for node in group.nodes if node.name in self.hosts]

    def members_of(self, partition: int) -> list[Host]:
        """The running nodes in the replica set of a partition, as its leader knows it; else all."""
        group, leader = self.group_of(partition), self.leader_of(partition)
        known = leader and leader.replicas._hosted[partition].machine.state.set
        names = {member.node for member in known.members} if known else self.names
        return [host for host in group if host.name in names]

    def leader_of(self, partition: int) -> Host | None:
        leaders = [host for host in self.group_of(partition) if partition in host.replicas.led]
        return leaders[0] if len(leaders) == 1 else None

    def judge(self) -> None:
        stored = set[int]()
        for partition in self.topology.partitions:
            members = self.members_of(partition)
            assert len(members) == self.topology.replicas
            logs = [self.batches(host, partition) for host in members]
            assert all(one == logs[0] for one in logs), "replicas differ"
            assert len(logs[0]) == len(set(logs[0])), "a batch is there twice"
            stored |= {number for _, number in logs[0]}
            assert len({self.digest(host, partition) for host in members}) == 1
        assert self.acknowledged <= stored, "an acknowledged batch is lost"
        assert all(host.replicas.comparison.diverged == {} for host in self.hosts.values())
        if not self.ranges:
            return
        graph = next(iter(self.hosts.values())).node.catalog.shard("nam").graph
        for task, rows in self.ranges:
            stored = graph.scan(
                parse("", SCHEMA),
                after=task.after,
                until=task.until,
                partitions=task.partitions,
            )
            assert rows == rows_of([stored]), f"{task} was answered otherwise than it is stored"

    def digest(self, host: Host, partition: int) -> int:
        """Of what a replica has; 0 if it has nothing."""
        shard = host.node.catalog.shards.get("nam")
        journal = None if shard is None else shard.journals.get(partition)
        digest = 0 if journal is None else journal.history.digest(0, journal.last_sequence)
        assert digest is not None
        return digest

    def batches(self, host: Host, partition: int) -> list[tuple[str, int]]:
        """Producer and number of each batch that a replica has."""
        shard = host.node.catalog.shards.get("nam")
        journal = None if shard is None else shard.journals.get(partition)
        last = 0 if journal is None else journal.last_sequence
        headers = [journal.header(n) for n in range(1, last + 1)] if journal is not None else []
        return [(header.producer, header.batch) for header in headers]

    async def close(self) -> None:
        for host in list(self.hosts.values()):
            await host.stop()
        self.hosts.clear()
        await asyncio.gather(*self._late, return_exceptions=True)


def range_task(partition: int, after: int, until: int) -> ScanTask:
    everything = parse("", SCHEMA).to_json()
    bounds = Cursor({partition: after}), Cursor({partition: until})
    return ScanTask(0, "nam", everything, *bounds, frozenset([partition]))


def rows_of(tables: Sequence[pa.Table]) -> Rows:
    """What the labels name, in order."""
    names = ("partition", "sequence", "row", "rows", "cell")
    return sorted(
        row
        for table in tables
        for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)
    )


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


def expect_crash(error: RuntimeError) -> None:
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


FAULTS = ("crash", "crash", "disk", "rot", "cut", "full", "all")


async def hurt(world: World, kinds: Sequence[str] = FAULTS) -> str:
    """One fault, for some time; a directory is lost only while the other nodes have everything.

    Returns:
        Its kind.
    """
    name = world.random.choice(world.names)
    fault = world.random.choice(kinds)
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
        if fault == "rot":
            await scrub(world, name)
    elif fault == "all":
        for each in world.names:
            await world.crash(each, is_lost=False)
        for each in world.names:
            world.start(each)
    elif fault == "cut":
        world.cut.add(name)
        await asyncio.sleep(pause_s)
        world.cut.clear()
    else:
        world.hosts[name].disk.is_full = True
        await asyncio.sleep(pause_s)
        world.hosts[name].disk.is_full = False
    return fault


async def play_history(
    world: World,
    steps: int,
    disturb: Callable[[], Awaitable[object]],
    works: Sequence[Coroutine[Any, Any, None]],
) -> None:
    """Disturbs a world again and again while its works go on, and judges what is there at the end.

    Args:
        world: has begun; it is open still.
        steps: how often it is disturbed.
        disturb: one disturbance.
        works: of producers and readers, which end when the world is over.
    """
    running = [asyncio.create_task(work) for work in works]
    try:
        for _ in range(steps):
            await asyncio.sleep(world.random.uniform(0.1, 0.8))
            await disturb()
            world.spread_leaders()
        await world.settle()
        await asyncio.gather(*running)
        await world.settle()
        world.judge()
    finally:
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class BusyWorld(World):
    """A world that is disturbed while producers make progress; its works raise what they find.

    Attributes:
        faults: kinds of them.
        steps: of progress between two faults, and at the end.
        works: of producers and readers.
    """

    faults: ClassVar[Sequence[str]]
    steps: ClassVar[int]

    def __init__(self, directory: Path, seed: int, **options: Any) -> None:
        super().__init__(directory, seed, **options)
        self.works: list[asyncio.Task[None]] = []

    @property
    def progress(self) -> int:
        """Grows with each write that is acknowledged."""
        raise NotImplementedError

    async def judge_answers(self) -> None:
        """Judges what nodes answer at the end, after `judge`."""

    async def disturb(self) -> None:
        """A fault or a move, and then some progress."""
        if self.random.random() < 0.3:
            partition, to = self.random.randrange(PARTITIONS), self.random.choice(self.names)
            await await_whole(self)
            self.change(partial(topology_changes.pin_partitions, partitions=[partition], to=to))
        else:
            await hurt(self, self.faults)
        await self.await_progress()

    async def await_progress(self) -> None:
        """Waits for some more; raises the error of a producer or reader that has one."""
        due = self.progress + self.steps
        await until(self, lambda: self.progress >= due or any(work.done() for work in self.works))
        for work in self.works:
            if work.done():
                work.result()

    async def play(self, works: Iterable[Coroutine[Any, Any, None]], *, faults: int) -> None:
        """Begins, goes on through some faults, and judges what is there at the end."""
        await self.begin()
        self.works += [asyncio.create_task(work) for work in works]
        try:
            await self.await_progress()
            for _ in range(faults):
                await self.disturb()
            await self.settle()
            await asyncio.gather(*self.works)
            await self.settle()  # The last batches may have come since.
            self.judge()
            await self.judge_answers()
        finally:
            for work in self.works:
                work.cancel()
            results = await asyncio.gather(*self.works, return_exceptions=True)
            await self.close()
            mistakes = [one for one in results if isinstance(one, AssertionError)]
            if mistakes:
                raise mistakes[0]


async def scrub(world: World, name: str) -> None:
    """Reads all observations of a node, so that damage is found before the next fault.

    Damage that waits is a fault of its own: with a lost directory there may be no sound copy.
    """
    for shard in world.hosts[name].node.catalog.shards.values():
        for partition in list(shard.journals):
            with contextlib.suppress(GalileoError):  # Damage: the log is copied again.
                await _read_all(shard, partition)


async def scrub_all(world: World) -> None:
    """Finds the damage that a node had found, too, but crashed before it was mended."""
    for name in world.names:
        await scrub(world, name)


async def _read_all(shard: Shard, partition: int) -> None:
    """Reads also the last commits, of which a node that starts learns later that they count."""
    journal = shard.journals[partition]
    sequence, loop = journal.dropped + 1, asyncio.get_running_loop()
    read_at = loop.time()
    while sequence <= journal.end_sequence and shard.journals.get(partition) is journal:
        if sequence <= journal.last_sequence:
            await asyncio.to_thread(journal.read, sequence)
            sequence, read_at = sequence + 1, loop.time()
        elif loop.time() < read_at + SCRUBBED_S:
            await asyncio.sleep(0.02)
        else:
            return


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
        await until(world, lambda: is_met(world))
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
    found.pop(SYSTEM, None)  # It has more copies.
    return len(found) == len(world.topology.partitions) and all(
        sorted(racks[name] for name in names if name in world.hosts) == ["x", "y", "z"]
        and len(names) == 3
        for names in found.values()
    )


async def until(world: World, condition: Callable[[], bool]) -> None:
    """Waits for a condition; raises TimeoutError after `SETTLED_S` by the clock of the world."""
    deadline = world.clock.monotonic() + SETTLED_S
    while not condition():
        if world.clock.monotonic() > deadline:
            raise TimeoutError(f"waited {SETTLED_S:g} s in vain")
        world.spread_leaders()
        await asyncio.sleep(0.05)


def under_replicated(world: World) -> list[int]:
    return sorted(p for host in world.hosts.values() for p in host.replicas.under_replicated)


def _is_whole(world: World) -> bool:
    """Whether each partition has a leader and enough voters that have what is committed."""
    led = sorted(p for host in world.hosts.values() for p in host.replicas.led)
    return led == [*world.partitions] and not under_replicated(world)


async def play(world: World, *, producers: int, faults: int, is_enough: Callable[[], bool]) -> None:
    """Has producers work while nodes crash and are cut off, until it is enough; then judges."""
    await world.begin()
    works = [asyncio.create_task(world.produce(n)) for n in range(producers)]
    try:
        for _ in range(faults):
            await asyncio.sleep(world.random.uniform(0.1, 0.6))
            await hurt(world, ["crash", "cut"])
        await until(world, is_enough)
        await world.settle()
        await asyncio.gather(*works)
        await world.settle()  # The last batches may have come since.
        world.judge()
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await world.close()
