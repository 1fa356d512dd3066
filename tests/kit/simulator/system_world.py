"""Nodes whose clients create, extend and drop datasets and set their policies, judged from outside.

The nodes are real: `StorageNode` with its journals, replicas, system tables and the codec of their
calls, in simulated time. Nodes crash in the middle of a write, are paused, lose their directories,
leave and come back; disks stand still; messages and answers are lost, late, and there twice.

The judge looks for one order of all calls about a name, within their times, that gives the results
which the clients got. It reads the system table at each node: rows never go back, no change is
there twice, and in the end all nodes know what the leader knows.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, TypeAlias, TypeVar

from patches import patched
from replica_nodes import OPTIONS, START_US, Disk, Host, World, topology_of

from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM
from galileo.dht.topology_state import TopologyState
from galileo.election.ranking import UsageStatistics
from galileo.errors import (
    DatasetExists,
    DeadlineExceeded,
    GalileoError,
    InvalidSchema,
    TransientError,
    Unavailable,
    UnknownDataset,
)
from galileo.model.retention import UNLIMITED, Retention, VersionedRetention
from galileo.model.schema import Feature, Schema, StoredSchema, dataset_key, split_key
from galileo.model.system import DATASETS
from galileo.node.definitions import NOTHING, Definition, decode, merged
from galileo.node.replication import replicas
from galileo.node.replication.log_writer import LogWriter
from galileo.node.replication.protocol import Envelope, LogRange, RangeDigest
from galileo.node.storage_node import StorageNode
from galileo.replication.values import Member
from galileo.rpc.internal import SERVICE, Internal
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.replication import REPLICATE, encoded
from galileo.server import recovery
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer
from galileo.storage.store import Store
from simulator.linearizability import Call, first_unexplained
from simulator.virtual_time import (
    ImmediateThreads,
    PausingLoop,
    Process,
    SimulatedClock,
    SimulatedThreads,
    run_simulated,
)

NAMES = ("x", "y", "z")
FEATURES = ("depth", "speed")
ADDED = ("gust", "site")
CLIENTS = 4
FAULTS_S = 8.0
SETTLED_S = 40.0
PATIENCE_S, COMMIT_WAIT_S, CALL_S = 3.0, 1.0, 1.0
"""Of the nodes: shorter than by default, as all times of `OPTIONS` are."""
PAGE_BYTES_MAX = 600
"""Of two names."""
LATENCY_MEAN_S, LATE_MAX_S = 0.004, 1.5
FAULTS = (
    *("crash", "crash", "all", "cut", "isolate", "loss", "heal", "heal"),
    *("pause", "pause", "stall", "member", "disk"),
)
SIZES = (2, 3, 3, 3, 4, 5)
"""Numbers of nodes; of two, one or both have the system table, and of four, three."""
T = TypeVar("T")


# --- the dumb rules ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class State:
    """What a name is."""

    generation: int = 0
    schema: StoredSchema | None = None
    retention: VersionedRetention = UNLIMITED


@dataclass(frozen=True, slots=True)
class Create:
    schema: Schema

    @property
    def name(self) -> str:
        return self.schema.name

    async def ask(self, node: StorageNode) -> object:
        return await node.create_dataset(self.schema)

    def effects(self, outcome: object, state: State) -> list[State]:
        wanted = self.schema.of_generation(state.generation)
        created = [] if state.schema else [State(state.generation, wanted)]
        if isinstance(outcome, StoredSchema):
            return [one for one in created if outcome.extends(wanted)]
        if isinstance(outcome, DatasetExists):
            present = state.schema
            is_same = present is not None and outcome.details["same"] == present.is_wanted(wanted)
            return [state] if is_same else []
        assert outcome is None or isinstance(outcome, UnknownDataset), outcome
        return [state, *created]  # Another call may have dropped it before this one was answered.


@dataclass(frozen=True, slots=True)
class Extend:
    key: str
    feature: Feature

    @property
    def name(self) -> str:
        return split_key(self.key)[0]

    async def ask(self, node: StorageNode) -> object:
        return await node.add_features(self.key, [self.feature])

    def effects(self, outcome: object, state: State) -> list[State]:
        if state.schema is None or state.schema.key != self.key:
            return [state] if isinstance(outcome, UnknownDataset) else []
        assert isinstance(state.schema, Schema)
        if state.schema.feature(self.feature.name) is not None:
            # Another call that added the same feature at the same time counts as this one.
            is_there = isinstance(outcome, InvalidSchema) or (
                isinstance(outcome, Schema) and outcome.extends(state.schema)
            )
            return [state] if is_there else []
        wider = state.schema.with_features([self.feature])
        is_wrong = isinstance(outcome, InvalidSchema) or (
            isinstance(outcome, Schema) and not outcome.extends(wider)
        )
        # Another call may have dropped it before this one was answered.
        return [] if is_wrong else [replace(state, schema=wider)]


@dataclass(frozen=True, slots=True)
class Drop:
    key: str

    @property
    def name(self) -> str:
        return split_key(self.key)[0]

    async def ask(self, node: StorageNode) -> object:
        return await node.drop_dataset(self.key)

    def effects(self, outcome: object, state: State) -> list[State]:
        is_present = state.schema is not None and state.schema.key == self.key
        dropped = State(state.generation + 1)
        if isinstance(outcome, UnknownDataset):
            return [] if is_present else [state]
        if is_present:
            return [dropped]
        is_gone = split_key(self.key)[1] < state.generation
        return [state] if is_gone and outcome is not None else []


@dataclass(frozen=True, slots=True)
class Retain:
    key: str
    retention: Retention

    @property
    def name(self) -> str:
        return split_key(self.key)[0]

    async def ask(self, node: StorageNode) -> object:
        return await node.set_retention(self.key, self.retention)

    def effects(self, outcome: object, state: State) -> list[State]:
        is_key = state.schema is not None and state.schema.key == self.key
        is_unknown = not is_key and isinstance(outcome, UnknownDataset)
        # The key of a first generation is a name, too, and means the present one where it is known.
        if state.schema is None or not (is_key or self.key == self.name):
            return [state] if is_unknown else []
        numbered = VersionedRetention(state.retention.version + 1, self.retention)
        changed = replace(state, retention=numbered)
        if is_unknown:  # Its first attempt may have been made, and the dataset dropped since.
            return [state, changed]
        if isinstance(outcome, VersionedRetention):
            if outcome.version > numbered.version:
                return [changed]  # Another call came after it.
            # Of two calls for one version, the one that is not stored came first.
            return (
                [changed] if outcome == numbered else [state] if outcome == state.retention else []
            )
        return [changed]  # Another call may have dropped it before this one was answered.


@dataclass(frozen=True, slots=True)
class LookUp:
    name: str

    async def ask(self, node: StorageNode) -> object:
        return await node.system.look_up(self.name)

    def effects(self, outcome: object, state: State) -> list[State]:
        assert outcome is None or isinstance(outcome, Definition), outcome
        return [state] if outcome is not None and state_of(outcome) == state else []


Asked: TypeAlias = Create | Extend | Drop | Retain | LookUp


def state_of(definition: Definition) -> State:
    return State(definition.generations, definition.schema, definition.retention)


def states_of(definitions: Mapping[str, Definition]) -> dict[str, State]:
    return {name: state_of(one) for name, one in definitions.items()}


# --- nodes ---------------------------------------------------------------------------------------


class TearingDisk(Disk):
    """A disk whose node ends within a write, of which a random part is there."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.tears = False
        self._random = random

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.tears and not self.is_dead:
            whole = b"".join(bytes(buffer) for buffer in buffers)
            RealDisk.write(self, descriptor, [whole[: self._random.randint(0, len(whole))]], offset)
            self.is_dead = True
        return super().write(descriptor, buffers, offset)


class StallingThreads(SimulatedThreads):
    """Threads of which those that write logs wait for a disk which stands still for some time."""

    def __init__(self, loop: PausingLoop) -> None:
        super().__init__(loop)
        self.stalled_until = 0.0
        self._writing = set[Future[Any]]()

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        future = super().submit(call, *args, **options)
        if getattr(call, "__func__", None) is LogWriter._work:
            self._writing.add(future)
        return future

    def _do(self, future: Future[Any]) -> None:
        is_stalled = future in self._writing and self._loop.time() < self.stalled_until
        if is_stalled and not self._is_shut:
            self._loop.call_at(self.stalled_until, self._do, future)
        else:
            self._writing.discard(future)
            super()._do(future)


class SystemHost(Host):
    """A running node that follows the system table."""

    disk: TearingDisk

    def __init__(self, world: SystemWorld, name: str, directory: Path) -> None:
        process = Process.of(contextvars.copy_context())
        assert process is not None, "a node begins in its process"
        self.world, self.process = world, process
        self.calls: dict[asyncio.Task[Any], None] = {}
        super().__init__(world, name, directory)
        self.following = asyncio.create_task(self.node.system.run())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins a task that ends with the node."""
        task = self.process.spawn(work)
        self.calls[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self.calls[task]
        if task.cancelled() or (error := task.exception()) is None:
            return
        is_of_crash = isinstance(error, RuntimeError | OSError) and self.disk.is_dead
        if not is_of_crash and not isinstance(error, GalileoError):
            self.world.failures.append(error)

    async def stop(self) -> None:
        works = [self.following, *self.calls]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await super().stop()


class Connection:
    """A node's line to another one, as `GrpcPeers` uses it."""

    def __init__(self, world: SystemWorld, sender: str, to: str) -> None:
        self._world, self._sender, self._to = world, sender, to

    async def exchange(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        """The answer of the other node; the call may arrive there twice, or not at all.

        Raises:
            Unavailable: no process listens there.
            DeadlineExceeded: there is no answer.
            GalileoError: of the call.
        """
        world, loop = self._world, self._world.loop
        answer: asyncio.Future[bytes] = loop.create_future()

        def settle(task: asyncio.Task[bytes]) -> None:
            if answer.done() or task.cancelled():
                return
            if (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def reply(task: asyncio.Task[bytes]) -> None:
            world.transmit(self._to, self._sender, partial(settle, task))

        def arrive() -> None:
            host = world.hosts.get(self._to)
            if host is None:
                error = Unavailable(f"node {self._to} refuses connections", node=self._to)
                if not answer.done():
                    answer.set_exception(error)
            else:
                host.spawn(world.serve(host, path, request)).add_done_callback(
                    reply, context=contextvars.Context()
                )

        world.transmit(self._sender, self._to, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"node {self._to} did not answer in time") from None


class Peers(GrpcPeers):
    """The calls of a node, whose messages are simulated."""

    def __init__(self, world: SystemWorld, name: str, live: TopologyState) -> None:
        super().__init__(live, is_dead=lambda other: not world.is_alive(name, other))
        self._world, self._name = world, name

    def _connection(self, node: str) -> Any:
        return Connection(self._world, self._name, node)


class Line:
    """Sends the messages of a node's replicas."""

    def __init__(self, world: SystemWorld, name: str) -> None:
        self._world, self._name = world, name

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        self._transmit(self._name, node, envelopes)
        return ()  # The answers arrive by themselves, or are lost.

    def _transmit(self, sender: str, node: str, envelopes: Sequence[Envelope]) -> None:
        for request in encoded(envelopes) if envelopes else ():
            self._world.transmit(sender, node, partial(self._arrive, sender, node, request))

    def _arrive(self, sender: str, node: str, request: bytes) -> None:
        host = self._world.hosts.get(node)
        if host is not None:
            host.spawn(self._receive(host, sender, request))

    async def _receive(self, host: Host, sender: str, request: bytes) -> None:
        answers = await host.replicas.receive(*REPLICATE.decode(request))
        self._transmit(host.name, sender, answers)

    async def digests(self, member: Member, ranges: Sequence[LogRange]) -> list[RangeDigest | None]:
        host = self._world.hosts.get(member.node)
        if host is None or host.replicas.me != member:
            raise Unavailable(f"node {member.node} is away", node=member.node)
        return host.replicas.comparison.digests(ranges)


# --- the world -----------------------------------------------------------------------------------


class SystemWorld(World):
    """Two to five nodes, whose clients change the definitions of few names all the time.

    Args:
        without: kinds of faults that do not happen.
        trace: called with each event as a line.

    Attributes:
        calls: of all clients.
        cuts: pairs of a sender and a receiver between which nothing passes.
        loss, repetition, lateness: shares of the messages.
        failures: errors that nodes must not have.
        is_held: whether clients wait.
    """

    hosts: dict[str, SystemHost]  # type: ignore[assignment]
    segment_bytes_max = 3_000

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        loop: PausingLoop,
        without: Collection[str] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.without = without
        self.loop, self.clock = loop, SimulatedClock(loop)
        size = SIZES[seed % len(SIZES)]
        topology = replace(topology_of(["abcde"[:size]]), partitions_per_group=1, replicas=1)
        super().__init__(directory, seed, topology=topology, options=FEW_TICKS)
        self.counters = Counter[str]()
        self.calls: list[Call[Asked]] = []
        self.cuts: set[tuple[str, str]] = set()
        self.loss = self.repetition = 0.0
        self.lateness = self.random.choice((0.02, 0.1, 0.3))
        self.failures: list[BaseException] = []
        self.is_held = False
        self.threads = dict[str, list[StallingThreads]]()
        self._policies = 0
        self._trace = trace
        self._commits: dict[int, dict[str, Definition]] = {}
        self._known: dict[str, dict[str, Definition]] = {}
        self._rows: dict[str, list[Definition]] = defaultdict(list)

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.loop.time():.6f} {text}")

    # --- nodes -------------------------------------------------------------------------------

    def make_executor(self, _: int, thread_name_prefix: str) -> Executor:
        if thread_name_prefix == "sync":
            return ImmediateThreads()
        process = Process.of(contextvars.copy_context())
        assert process is not None, "a node begins in its process"
        threads = StallingThreads(self.loop)
        self.threads[process.name].append(threads)
        return threads

    def make_disk(self) -> Disk:
        return TearingDisk(self.random)

    def peers_of(self, name: str, live: TopologyState) -> Peers:
        return Peers(self, name, live)

    def line_of(self, name: str) -> Line:
        return Line(self, name)

    def is_alive(self, asker: str, other: str) -> bool:
        return other in self.hosts and self.connects(asker, other)

    def connects(self, one: str, other: str) -> bool:
        return not {(one, other), (other, one)} & self.cuts

    def start(self, name: str) -> None:
        self.note(f"{name} starts")
        self.threads[name] = []
        process = Process(name, self.loop)
        host = process.context.run(SystemHost, self, name, self.places[name])
        self.hosts[name], self.network.nodes[name] = host, host.node

    async def crash(self, name: str, *, is_lost: bool) -> None:
        self.note(f"{name} crashes{' and loses its directory' if is_lost else ''}")
        host = self.hosts[name]
        if self.random.random() < 0.5:
            host.disk.tears = True
            await asyncio.sleep(self.random.uniform(0.0, 0.1))
        host.disk.is_dead = True
        host.process.resume()
        self._known.pop(name, None)
        await super().crash(name, is_lost=is_lost)

    def transmit(self, sender: str, to: str, arrive: Callable[[], None]) -> None:
        """Has something arrive at a node, or not, or twice."""
        if (sender, to) in self.cuts or self.random.random() < self.loss:
            return
        copies = 2 if self.random.random() < self.repetition else 1
        for _ in range(copies):
            late_s = self.random.expovariate(1.0 / LATENCY_MEAN_S)
            if not self.is_calm and self.random.random() < self.lateness:
                late_s += self.random.uniform(0.0, LATE_MAX_S)
            self.loop.call_later(late_s, arrive, context=contextvars.Context())

    async def serve(self, host: SystemHost, path: str, request: bytes) -> bytes:
        """Answers a call, as the internal service of the node does."""
        call = SERVICE.calls[path.rpartition("/")[2]]
        try:
            answer = await getattr(Internal(host.node, UsageStatistics), call.name)(
                *call.decode(request)
            )
        except (RuntimeError, OSError) as error:
            if not host.disk.is_dead:
                raise
            raise Unavailable(f"node {host.name} has crashed", node=host.name) from error
        return call.encode_answer(answer)

    # --- gossip ------------------------------------------------------------------------------

    async def gossip(self) -> None:
        """Tells nodes what others know of leaders and commits, until it is cancelled."""
        while True:
            for name in list(self.hosts):
                self._tell(name, self.random.choice(self.names))
            await asyncio.sleep(0.1)

    def on_led(self, name: str) -> None:
        for other in self.names:
            self._tell(name, other)

    def _tell(self, teller: str, name: str) -> None:
        host = self.hosts.get(teller)
        if host is None or host.process.is_paused:
            return
        own = host.node.catalog.shards[DATASETS.key].own_published().sequences
        host.node.view.update_sequences(DATASETS.key, own)
        moves, sequences = host.live.current.moved, host.node.view.sequences(DATASETS.key)

        def hear() -> None:
            there = self.hosts.get(name)
            if there is None:
                return
            there.live.adopt(moves)
            there.node.view.update_sequences(DATASETS.key, sequences)
            there.node.system.wake()

        def arrive() -> None:
            there = self.hosts.get(name)
            if there is not None:
                self.loop.call_soon(hear, context=there.process.context)

        if name == teller:
            host.node.system.wake()
        else:
            self.transmit(teller, name, arrive)

    # --- clients -----------------------------------------------------------------------------

    async def client(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.random.expovariate(3.0))
            if self.is_held or self.is_over or not self.hosts:
                continue
            host = self.random.choice(list(self.hosts.values()))
            # Several calls at once, so that commits have several names.
            names = self.random.sample(NAMES, self.random.choice((1, 1, 3)))
            await asyncio.gather(*(self.call(host, self._random_ask(host, name)) for name in names))

    def _random_ask(self, host: SystemHost, name: str) -> Asked:
        random = self.random
        present = host.node.catalog.definition(name)
        is_stale = random.random() < 0.1
        key = dataset_key(name, max(0, present.generations - is_stale))
        kind = random.choice(("create", "create", "extend", "drop", "retain", "retain", "look up"))
        if kind == "create":
            return Create(Schema(name, [Feature(random.choice(FEATURES))]))
        if kind == "extend":
            return Extend(key, Feature(random.choice(ADDED)))
        if kind == "drop":
            return Drop(key)
        if kind == "retain":
            self._policies += 1  # Each policy is another one.
            return Retain(key, Retention(1000.0 + self._policies))
        return LookUp(name)

    async def call(self, host: SystemHost, asked: Asked) -> Call[Asked]:
        call = Call[Asked](asked, self.loop.time())
        self.calls.append(call)
        task = host.spawn(asked.ask(host.node))
        timeout_s = self.random.choice((0.5, 2 * PATIENCE_S, 2 * PATIENCE_S))
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            if self.random.random() < 0.5:
                task.cancel()  # As a node does when the deadline of its client has passed.
        elif not task.cancelled():
            self._answer(host, call, task)
        self.note(f"{host.name} {asked} since {call.start:.3f}: {call.outcome}")
        self.counters[f"{type(asked).__name__} {type(call.outcome).__name__}"] += 1
        return call

    def _answer(self, host: SystemHost, call: Call[Asked], task: asyncio.Task[object]) -> None:
        error = task.exception()
        if isinstance(error, TransientError):
            took_s = self.loop.time() - call.start
            assert took_s >= PATIENCE_S or host.disk.is_dead, f"gave up after {took_s}: {error!r}"
        elif error is None or isinstance(error, GalileoError):
            call.end, call.outcome = self.loop.time(), error or task.result()

    # --- faults ------------------------------------------------------------------------------

    async def hurt(self) -> None:
        """One fault, which may last longer than this call."""
        random, name = self.random, self.random.choice(self.names)
        kind = random.choice(FAULTS)
        if kind in self.without:
            return
        leader = self._leader
        if leader is not None and random.random() < 0.5:
            name = leader
        self.counters[kind] += 1
        self.note(f"fault: {kind} {name}")
        if kind == "crash":
            await self.restart(name, random.uniform(0.1, 2.0))
        elif kind == "all":
            await asyncio.gather(*(self.restart(each, 0.0) for each in self.names))
        elif kind == "cut":
            for _ in range(random.randint(1, 3)):
                one, other = random.sample(self.names, 2)
                self.cuts.add((one, other))
        elif kind == "isolate":
            self.isolate(name)
        elif kind == "loss":
            self.loss, self.repetition = random.choice((0.1, 0.3)), 0.2
        elif kind == "heal":
            self.heal()
        elif kind == "pause":
            await self.pause(name, random.uniform(0.3, 2.5))
        elif kind == "stall":
            self.stall(name, random.uniform(0.3, 2.5))
        elif kind == "member":
            self.change_members(name)
        elif self._survives(name):
            await self.restart(name, random.uniform(0.1, 1.0), is_lost=True)

    async def hurt_for(self, for_s: float) -> None:
        end = self.loop.time() + for_s
        while self.loop.time() < end:
            await asyncio.sleep(self.random.expovariate(1.5))
            await self.hurt()

    @property
    def _leader(self) -> str | None:
        led = [name for name, host in self.hosts.items() if SYSTEM in host.replicas.led]
        return led[0] if led else None

    def heal(self) -> None:
        self.cuts.clear()
        self.loss = self.repetition = 0.0

    def isolate(self, name: str) -> None:
        self.cuts |= {pair for other in self.names for pair in ((name, other), (other, name))}

    async def restart(self, name: str, after_s: float, *, is_lost: bool = False) -> None:
        if name in self.hosts:
            await self.crash(name, is_lost=is_lost)
            await asyncio.sleep(after_s)
            self.start(name)

    async def pause(self, name: str, for_s: float) -> None:
        host = self.hosts.get(name)
        if host is not None:
            host.process.is_paused = True
            await asyncio.sleep(for_s)
            host.process.resume()

    def stall(self, name: str, for_s: float) -> None:
        """The disk stands still."""
        for threads in self.threads[name]:
            threads.stalled_until = self.loop.time() + for_s

    def change_members(self, name: str) -> None:
        """A node is to leave, or to stay after all; of two nodes, one or both have the copies."""
        if len(self.names) == 2:
            self.change_copies(3 - self.topology.replicas)
            return
        is_leaving = not self.topology.by_name[name].leaving
        staying = [node for node in self.topology.nodes if not node.leaving]
        if is_leaving and len(staying) <= 3:
            return
        self.change(partial(topology_changes.set_leaving, name=name, is_leaving=is_leaving))

    def change_copies(self, count: int) -> None:
        self.counters[f"copies changed to {count}"] += self.topology.replicas != count
        self.change(partial(topology_changes.set_replicas, count=count))

    def _survives(self, name: str) -> bool:
        """Whether all commits are left when a node loses its directory."""
        leader = self._leader
        if len(self.hosts) < len(self.names) or leader in (None, name):
            return False
        machine = self.hosts[leader].replicas._hosted[SYSTEM].machine
        assert machine.state.set is not None
        voters = machine.state.set.voters
        # The leader may not have heard yet that a voter came back with an empty directory.
        are_there = all(self.hosts[one.node].store.identity == one.disk for one in voters)
        return machine.is_whole and are_there and len(voters) >= 3

    # --- recovery ----------------------------------------------------------------------------

    async def lose_for_good(self) -> None:
        """Commits are lost with all their copies; the other nodes know the definitions still.

        Of two nodes, the one with the only copy loses its directory, and founds the partition anew.
        Of four, the two copies are lost that had the last commits.
        """
        self.is_held = True
        if len(self.names) == 2:
            self.change_copies(1)
        await asyncio.sleep(2 * PATIENCE_S)
        await self.settle()
        before = self._rows_of_leader()
        if len(self.names) == 2:
            await self._found_anew(self._voters[0])
        else:
            before = await self._recover(self._voters)
        await self.settle()
        after = self._rows_of_leader()
        left = {name: after.get(name) for name in before}
        assert left == before, f"definitions are lost: {before} were there, {left} are left"
        self.counters["recovered"] += 1
        self.is_calm = self.is_held = False

    def _rows_of_leader(self) -> dict[str, State]:
        return states_of(self.rows_of(self.hosts[self._voters[0]]))

    @property
    def _length(self) -> int:
        """Of the log of the leader, which is there."""
        return len(self.log_of(self.hosts[self._voters[0]]))

    @property
    def _voters(self) -> list[str]:
        """The leader first, which is there."""
        leader = self._leader
        assert leader is not None
        current = self.hosts[leader].replicas._hosted[SYSTEM].machine.state.set
        assert current is not None
        names = (one.node for one in current.voters)
        return sorted(names, key=lambda name: (name != leader, name))

    async def _found_anew(self, name: str) -> None:
        """As `galileo node forget`, which is refused while another node votes in its set."""
        [follower] = set(self.names) - {name}
        async with asyncio.timeout(SETTLED_S):
            while SYSTEM in self.hosts[follower].replicas.held().voting:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        owned = placement.partitions_by_node(self.topology)[name] | {SYSTEM}
        lost, until = self.topology.by_name[name].identity, self._length
        await self.restart(name, 1.0, is_lost=True)
        await asyncio.sleep(1.0)  # It hears in which term it has led.
        self.change(lambda now: topology_changes.found_anew(now, name, owned, lost=lost, now=1.8e9))
        identity = self.hosts[name].store.identity
        self.change(lambda now: topology_changes.identify(now, name, identity, owned))
        await self._go_on_without(follower, name, until=until)

    async def _recover(self, voters: Sequence[str]) -> dict[str, State]:
        """As `galileo recover` in the directory of a voter that has missed some changes.

        Returns:
            What the node without a copy knows, which has followed all changes.
        """
        survivor, lost = voters[-1], voters[:-1]
        await self.crash(survivor, is_lost=False)
        [follower] = [host for name, host in self.hosts.items() if name not in voters]
        for name in NAMES:
            await self.call(follower, self._random_ask(follower, name))
        async with asyncio.timeout(SETTLED_S):
            while True:  # A leader that cannot reach the other voter for a moment steps down.
                before = self._rows_of_leader() if self._leader else None
                if states_of(follower.node.catalog.definitions()) == before:
                    break
                await asyncio.sleep(0.1)
        assert before is not None, "the follower knows what the leader has"
        is_replaced, until = survivor not in self._voters, self._length
        for name in () if is_replaced else lost:
            await self.crash(name, is_lost=True)
        store = Store.open(self.places[survivor], wall=lambda: START_US / 1e6)
        if not is_replaced:
            survived = dict(
                recovery._survivors(store, replicas.load_states(store), lost, now=START_US / 1e6)
            )
            recovery.carry_out(store, recovery.Recovery(survived, None, ()))
        store.close()
        for name in self.names:
            if name not in self.hosts:
                self.start(name)
        if not is_replaced:
            await self._go_on_without(follower.name, survivor, until=until)
        return before

    async def _go_on_without(self, follower: str, leader: str, *, until: int) -> None:
        """Makes changes until the log is longer than the one that a node has followed."""
        self.isolate(follower)
        for name in ("once", "later"):
            create = Create(Schema(name, [Feature("depth")]))
            while (await self.call(self.hosts[leader], create)).outcome is None:
                pass
        while len(self.log_of(self.hosts[leader])) <= until:
            self._policies += 1
            retain = Retain("later", Retention(1000.0 + self._policies))
            await self.call(self.hosts[leader], retain)
        self.heal()

    # --- the end -----------------------------------------------------------------------------

    def observe(self) -> None:
        """What each node knows only grows."""
        for name, host in self.hosts.items():
            known = host.node.catalog.definitions()
            before = self._known.get(name, {})
            for one, earlier in before.items():
                now = known.get(one, NOTHING)
                assert merged(earlier, now) == now, f"{name} went back: {earlier} to {now}"
            self._known[name] = known

    async def observing(self) -> None:
        while True:
            self.observe()
            await asyncio.sleep(0.25)

    def log_of(self, host: SystemHost) -> list[tuple[int, dict[str, Definition]]]:
        """The commits of the system table that a node shows."""
        shard = host.node.catalog.shards[DATASETS.key]
        journal = shard.journals.get(SYSTEM)
        last = shard.published_sequence(SYSTEM)
        if journal is None:
            return []
        there = [(one.first_sequence, one.next_sequence) for one in journal._segments]
        commits = [n for first, end in there for n in range(first, end)]
        jumps = zip([0, *commits], commits, strict=False)
        forks = tuple((before, n) for before, n in jumps if n != before + 1)
        assert journal.forks.pairs == forks, f"{host.name} has another log than its forks say"
        rows = [(n, journal.read(n).to_pydict()) for n in commits if n <= last]
        log = [
            (n, dict(zip(one["name"], map(decode, one["definition"]), strict=True)))
            for n, one in rows
        ]
        for n, changed in log:
            before = self._commits.setdefault(n, changed)
            assert before == changed, f"commit {n} was {before}, and is {changed}"
        return log

    def is_settled(self) -> bool:
        leader = self._leader
        if leader is None or len(self.hosts) < len(self.names):
            return False
        host = self.hosts[leader]
        machine = host.replicas._hosted[SYSTEM].machine
        members = machine.state.set.voters if machine.state.set else ()
        copies = topology_changes.system_copies(self.topology)
        rows = states_of(self.rows_of(host))
        return (
            machine.is_whole
            and len(members) == copies
            and all(
                states_of(one.node.catalog.definitions()) == rows for one in self.hosts.values()
            )
        )

    def rows_of(self, host: SystemHost) -> dict[str, Definition]:
        """The definitions that a node shows."""
        rows: dict[str, Definition] = {}
        for _, changed in self.log_of(host):
            rows |= changed
        return rows

    async def settle(self) -> None:
        self.note("everything works again")
        self.is_calm = True
        self.heal()
        for host in self.hosts.values():
            host.process.resume()
            self.stall(host.name, 0.0)
        for name in self.names:
            if name not in self.hosts:
                self.start(name)
        try:
            async with asyncio.timeout(SETTLED_S):
                while not self.is_settled():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            leader = self._leader
            rows = {} if leader is None else states_of(self.rows_of(self.hosts[leader]))
            known = {n: states_of(one.node.catalog.definitions()) for n, one in self.hosts.items()}
            wrong = [
                f"{node} knows {name} as {of_node.get(name)}, not {rows.get(name)}"
                for node, of_node in known.items()
                for name in sorted(rows.keys() | of_node.keys())
                if rows.get(name) != of_node.get(name)
            ]
            raise AssertionError(
                "\n".join([f"not settled, {leader} leads:", *wrong, self.describe()])
            ) from None

    def judge(self) -> None:
        if self.failures:
            raise self.failures[0]
        [leader] = [host for host in self.hosts.values() if SYSTEM in host.replicas.led]
        log = self.log_of(leader)
        given_up = [host for host in self.hosts.values() if self._is_given_up(host, leader)]
        logs = [self.log_of(host) for host in self.hosts.values() if host not in given_up]
        for one in logs:
            assert one == log[: len(one)], "copies of the system table differ"
        self._judge_log(log)
        for name in sorted({call.asked.name for call in self.calls}):
            calls = [call for call in self.calls if call.asked.name == name]
            end = first_unexplained(State(), calls, _effects)
            if end is not None:
                shown = _shown(call for call in calls if call.start <= end)
                raise AssertionError(f"no order explains what {name} was at {end:.3f}:\n{shown}")

    def _judge_log(self, log: Sequence[tuple[int, Mapping[str, Definition]]]) -> None:
        """Rows only grow, and nothing is created or set twice."""
        rows: dict[str, Definition] = {}
        creations = dict[str, tuple[str, int]]()
        policies = dict[Retention, tuple[str, int, int]]()
        for _, changed in log:
            for name, row in changed.items():
                before = rows.get(name, NOTHING)
                assert merged(before, row) == row, f"{name} went back: {before} to {row}"
                rows[name], there = row, (name, row.generations)
                if row.creation:
                    assert creations.setdefault(row.creation, there) == there, f"{row} is twice"
                if (policy := row.retention.retention) is not None:
                    key = *there, row.retention.version
                    assert policies.setdefault(policy, key) == key, f"{row} was set twice"
        self.counters["commits"] += len(log)
        self.counters["commits of several names"] += sum(len(changed) > 1 for _, changed in log)

    def _is_given_up(self, host: SystemHost, leader: SystemHost) -> bool:
        """Whether a node still has files of an earlier founding, which it must not serve."""
        newest = leader.replicas._hosted[SYSTEM].machine.state.set
        hosted = host.replicas._hosted.get(SYSTEM)
        current = None if hosted is None else hosted.machine.state.set
        if hosted is None or current is None or newest is None:
            return False
        is_earlier = current.history < newest.history and host.replicas.me in current.members
        assert not is_earlier or hosted.failed_at == inf, f"{host.name} serves an earlier history"
        return is_earlier

    async def play(self) -> None:
        """All faults, then everything works again, and is judged."""
        await self.begin(datasets=False)
        clients = [asyncio.create_task(self.client()) for _ in range(CLIENTS)]
        others = [asyncio.create_task(self.gossip()), asyncio.create_task(self.observing())]
        try:
            await self.hurt_for(FAULTS_S / 2)
            if len(self.names) in (2, 4) and "recovery" not in self.without:
                await self.lose_for_good()
            await self.hurt_for(FAULTS_S / 2)
            self.is_over = True
            await self.settle()
            await asyncio.gather(*clients)
            await asyncio.gather(
                *(self.call(host, LookUp(name)) for host in self.hosts.values() for name in NAMES)
            )
            await self.settle()
            self.judge()
        finally:
            ended = [work for work in (*clients, *others) if work.done()]
            for work in (*clients, *others):
                work.cancel()
            await asyncio.gather(*clients, *others, return_exceptions=True)
            await self.close()
            await asyncio.gather(*ended)


FEW_TICKS = replace(OPTIONS, tick_s=0.05, restart_s=0.2, heal_after_s=2.0)


def _effects(call: Call[Asked], state: State) -> list[State]:
    return call.asked.effects(call.outcome, state)


def _shown(calls: Iterable[Call[Asked]]) -> str:
    return "\n".join(
        f"{call.start:.3f}-{call.end:.3f} {call.asked} -> {call.outcome!r}" for call in calls
    )


def run_system(
    seed: int,
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
    mutate: Mapping[str, Any] | None = None,
) -> Counter[str]:
    """Plays the world of this seed.

    Args:
        seed: of the random generators.
        without: kinds of faults that do not happen.
        trace: called with each event as a line.
        mutate: mistakes: what replaces parts of the production code, by dotted name.

    Returns:
        How often what happened.

    Raises:
        AssertionError: a promise was broken, or nothing goes on.
    """
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    of_nodes = {
        "galileo.rpc.peers.CALL_S": CALL_S,
        "galileo.node.system_tables.PATIENCE_S": PATIENCE_S,
        "galileo.node.system_tables.COMMIT_WAIT_S": COMMIT_WAIT_S,
        "galileo.model.system_rows.PAGE_BYTES_MAX": PAGE_BYTES_MAX,
    }

    async def play(loop: PausingLoop) -> SystemWorld:
        identities = Random(seed)  # Sets of disks have an order by them.
        token_hex = {"secrets.token_hex": lambda n: identities.randbytes(n).hex()}
        with patched({**token_hex, **of_nodes, **(mutate or {})}):
            world = SystemWorld(directory, seed, loop=loop, without=without, trace=trace)
            await world.play()
        return world

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # Worlds fail by the hundred, as they should.
    try:
        return run_simulated(seed, play, loop_type=PausingLoop).counters
    finally:
        logging.disable(disabled)
        shutil.rmtree(directory, ignore_errors=True)
