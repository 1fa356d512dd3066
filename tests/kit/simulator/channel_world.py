"""A channel on real nodes, disks and messages in this process, judged from outside.

Producers, subscribers and followers work all the time, each node executes the channel and cleans
the table of its subscriptions, and nodes fail. In the end `ChannelAudit` judges all logs.
`run_channels(seed)` plays a world in simulated time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
from channel_audit import (
    BROKERS,
    LEVELS,
    LOOKED_UP,
    START_US,
    TEMPLATES,
    Changes,
    ChannelAudit,
    Reader,
    air,
    batch_of,
    numbers_of,
    rows_of,
    versions_of,
)
from patches import patched
from replica_nodes import (
    OPTIONS,
    SETTLED_S,
    TOPOLOGY,
    Host,
    World,
    expect_crash,
    hurt,
)

from galileo.cursor import Cursor
from galileo.dht import placement, topology_changes
from galileo.dht.topology import Topology
from galileo.errors import GalileoError
from galileo.model import keyed, paths
from galileo.model.channel import Channel, New
from galileo.model.observations import normalise
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Schema
from galileo.model.table import Table, index_versions
from galileo.model.times import MICROS
from galileo.node.catalog import Catalog
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.reader_positions import ReaderPositions
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.node.storage_node import StorageNode
from galileo.query.subscriptions import ParameterQuery
from galileo.storage.commits import Commit, Committed
from simulator.virtual_time import (
    WALL_S,
    BlockingThread,
    ImmediateThreads,
    SimulatedClock,
    SimulatedLoop,
    SimulatedThreads,
    run_simulated,
)

AIR, KEYED_AIR = air("nam"), air("nam", is_keyed=True)
KEYED_FROM = 10_000
"""The dataset is keyed in worlds from this seed on."""
CHANNEL = "hot"
LIMITS: tuple[dict[str, int], ...] = (
    {},
    {"galileo.node.channel_observations.ROWS_MAX": 12},
    {"galileo.node.channel_executor.BYTES_MAX": 8_000},
)
"""Limits of executions with other values."""
OF_QUERIES = {
    "galileo.node.query_limits.STEP_S": 60.0,
    "galileo.node.query_limits.INLINE_S": 60.0,
    "galileo.node.query_limits.MOVED_RETRY_S": 0.5,
    "galileo.node.query_limits.FAILOVER_RETRY_S": 2.0,
}
"""Limits of queries: steps do not depend on the processor, and leaders are soon given up."""
MODES: tuple[tuple[New, bool], ...] = (
    ("observations", False),
    ("either", True),
    ("observations", False),
    ("both", False),
    ("observations", False),
    ("either", False),
    ("none", False),
)
PERIOD_S = 0.5
"""Of a repetitive channel."""
AGE_MAX_S = WALL_S - START_US / MICROS + 2.0
"""Two seconds after the world has begun, the first observations are too old."""
IDS = 6
"""Of each subscriber, so that the versions of a subscription have one order."""
AHEAD_S = 1e7
"""For retention it is later, so that all executions are old."""
KEEP_S = AHEAD_S / 2
"""Of executions, and of observations that are not matched yet."""
AGE_S = WALL_S - START_US / MICROS + AHEAD_S - KEEP_S / 2
"""All observations are older, and none of them is older by `KEEP_S`."""
Drops: TypeAlias = Literal["nothing", "matched", "all"]
"""The observations that retention drops, where they are old."""
PRODUCERS = SUBSCRIBERS = 2
FOR_GOOD = 1 << 30
"""Calls of a user who ends with the faults."""
REPLICATED_EVERY = 10
"""One world in so many has copies."""
LOOKUPS_EVERY = 3
"""And in so many worlds of each mode, subscriptions have rows of a table."""
SINGLE_FAULTS = ("crash", "all", "away", "move", "cut move", "full")
REPLICA_FAULTS = ("crash", "disk", "rot", "all", "cut", "full")
CHANNEL_FAULTS = tuple(dict.fromkeys([*SINGLE_FAULTS, *REPLICA_FAULTS, "clean", "retention"]))
S = TypeVar("S")
T = TypeVar("T")
Parts = Mapping[int, tuple[pa.Table, pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a world has.

    Attributes:
        new, leave, template, age_max_s: of the channel.
        is_keyed: whether observations are replaced and deleted, and the dataset is cleaned.
        looks_up: whether its subscriptions have rows of `LEVELS`.
        limits: of executions.
        is_kept: whether neither tables are cleaned nor executions dropped.
        drops: observations; perhaps before they are matched.
        replicas: of each partition.
        sending_s, subscribing_s, executing_s: the longest pauses between two calls of a user, and
            between two executions of a node.
        settled_s: the age of commits that may be cleaned.
        batches, changes: calls of each producer, and of each user who stores rows of tables.
        faults: of nodes, one after the other.
    """

    new: New = "observations"
    leave: bool = False
    template: str = TEMPLATES[0]
    age_max_s: float | None = None
    is_keyed: bool = False
    looks_up: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    is_kept: bool = False
    drops: Drops = "nothing"
    replicas: int = 3
    sending_s: float = 0.15
    subscribing_s: float = 0.4
    executing_s: float = 0.1
    settled_s: float = 0.2
    batches: int = FOR_GOOD
    changes: int = FOR_GOOD
    faults: int = 2

    @property
    def topology(self) -> Topology:
        return replace(TOPOLOGY, replicas=self.replicas)

    @property
    def dataset(self) -> Schema:
        return KEYED_AIR if self.is_keyed else AIR

    @property
    def channel(self) -> Channel:
        made = Channel(
            CHANNEL,
            "nam",
            LOOKED_UP if self.looks_up else self.template,
            period=PERIOD_S,
            keep=KEEP_S,
            new=self.new,
            leave=self.leave,
            age_max=self.age_max_s,
            lookup={LEVELS.name: ":level"} if self.looks_up else None,
        )
        query = ParameterQuery(made.template, self.dataset, made.lookup, {LEVELS.name: LEVELS})
        partitions = len(self.topology.partitions)
        tables = [LEVELS.spread(partitions)] if self.looks_up else []
        parameters = query.parameters
        return made.bound(
            self.dataset, parameters, start={}, partitions=partitions, references=tables
        )


class ChannelWorld(World):
    """Producers, subscribers, readers, and nodes that execute the channel all the time.

    Attributes:
        failures: the last error of an execution at each node.
        counters: of what happened.
        settled_us: the last time that executions were due before everything worked again.
    """

    reader_type = Reader

    def __init__(self, directory: Path, seed: int, plan: Plan, *, options: Any = OPTIONS) -> None:
        channel = plan.channel
        super().__init__(
            directory,
            seed,
            topology=plan.topology,
            schema=plan.dataset,
            further=(*channel.references, channel, channel.subscriptions),
            options=options,
        )
        self.plan, self.counters = plan, Counter[str]()
        self.audit = ChannelAudit(channel)
        self.readers = [self.reader_type(CHANNEL, broker) for broker in BROKERS]
        self.runners: dict[str, RetentionRunner] = {}
        self.executing: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[str, str] = {}
        self.settled_us = 0

    # --- nodes -------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> StorageNode:
        """As what moves partitions expects it."""
        return self.hosts[name].node

    def start(self, name: str) -> None:
        super().start(name)
        host = self.hosts[name]
        options = RetentionRunnerOptions(
            check_s=3600.0,
            min_age_s=self.plan.settled_s,
            table_age_s=self.plan.settled_s,
            wall=lambda: self.clock.wall() + AHEAD_S,
            monotonic=self.clock.monotonic,
        )
        if not self.plan.is_keyed:
            host.node.catalog.adopt_retention("nam", VersionedRetention(1, Retention(AGE_S)))
        loop = asyncio.get_running_loop()
        cuts = ChannelCuts(host.node.catalog, host.node.channel_reader, loop=loop)
        positions = ReaderPositions(host.node.tables, cuts, loop=loop)
        self.runners[name] = RetentionRunner(
            self.catalog_of(host),
            options,
            readers=lambda _: (),
            holds=self.in_thread_of(host, positions.read, positions.read_from_thread),
            compared=self.in_thread_of(host, cuts.compared, cuts.compared_from_thread),
        )
        self.executing[name] = asyncio.create_task(self.execute(host))

    def catalog_of(self, host: Host) -> Catalog:
        """As it is maintained."""
        return host.node.catalog

    def in_thread_of(
        self, host: Host, read: Callable[[S], Coroutine[Any, Any, T]], call: Callable[[S], T]
    ) -> Callable[[S], T]:
        """What a node asks before it drops or cleans, for its thread.

        Args:
            host: the node.
            read: it, in the event loop.
            call: it, from another thread.
        """
        return call

    @property
    def cleaned_tables(self) -> list[str]:
        """The keys of the tables of the channel, and of those that it reads, and of the dataset."""
        tables = [self.audit.table, *(table.key for table in self.audit.channel.references)]
        return [*tables, "nam"] if self.plan.is_keyed else tables

    async def crash(self, name: str, *, is_lost: bool) -> None:
        self.runners.pop(name).stop()
        await super().crash(name, is_lost=is_lost)
        await self.end(name)

    async def end(self, name: str) -> None:
        executing = self.executing.pop(name)
        executing.cancel()
        [outcome] = await asyncio.gather(executing, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def close(self) -> None:
        for name in list(self.executing):
            await self.end(name)
        for runner in self.runners.values():
            runner.stop()
        await super().close()

    def is_gone(self, host: Host) -> bool:
        return self.hosts.get(host.name) is not host

    async def execute(self, host: Host) -> None:
        while not self.is_gone(host):
            try:
                await host.node.channels.execute(CHANNEL)
                if not self.is_gone(host):
                    self.audit.remember(host.node.catalog, executions_only=True)
            except GalileoError as error:
                self.failures[host.name] = repr(error)
            except RuntimeError as error:
                expect_crash(error)
            await asyncio.sleep(self.random.uniform(0.3, 1.0) * self.plan.executing_s)

    async def gossip(self) -> None:
        """Sends to nodes what others have published, sometimes late, until it is cancelled."""
        while True:
            for host in list(self.hosts.values()):
                for key, shard in host.node.catalog.shards.items():
                    self.tell(host.name, key, shard.own_published().sequences)
            await asyncio.sleep(0.4 * self.plan.executing_s)

    def tell(self, teller: str, key: str, sequences: Cursor) -> None:
        for name in self.hosts:
            is_late = name != teller and not self.is_calm and self.random.random() < 0.2
            if name == teller or not {name, teller} & (self.cut | self.network.away):
                late_s = self.random.uniform(0.0, 0.6) if is_late else 0.0
                if late_s:
                    self.later(self.hear(name, key, sequences, late_s))
                else:
                    self.hosts[name].node.view.update_sequences(key, sequences)

    async def hear(self, name: str, key: str, sequences: Cursor, late_s: float) -> None:
        await asyncio.sleep(late_s)
        if name in self.hosts:
            self.hosts[name].node.view.update_sequences(key, sequences)

    async def maintain(self) -> None:
        """Cleans the table and drops executions where they are old."""
        for host in [] if self.plan.is_kept else list(self.hosts.values()):
            await self.maintain_host(host)

    async def maintain_host(self, host: Host) -> None:
        runner, catalog = self.runners[host.name], host.node.catalog

        def work() -> None:
            self.audit.remember(catalog)
            for key in self.cleaned_tables:
                runner.clean(catalog.versioned_shard(key))
            runner.drop_executions(catalog.channel_shard(CHANNEL))
            # More may have been published while the tables were cleaned.
            self.audit.remember(catalog)
            if self.plan.drops == "matched":
                dropped = runner.apply("nam").commits
                self.counters["matched observations dropped"] += dropped
            elif self.plan.drops == "all":
                self.drop_observations(catalog)

        try:
            await self.in_thread(host, work)
        except (GalileoError, OSError):
            pass
        except RuntimeError as error:
            expect_crash(error)

    async def in_thread(self, host: Host, work: Callable[[], None]) -> None:
        await asyncio.to_thread(work)

    def drop_observations(self, catalog: Catalog) -> None:
        """Drops the oldest file of each own partition of the dataset."""
        shard = catalog.shard("nam")
        for partition, journal in shard.own.items():
            files = journal.log_files()
            if len(files) > 1:
                dropped = shard.drop(partition, files[0].last).commits
                self.counters["observations dropped"] += dropped

    # --- who works ---------------------------------------------------------------------------

    def table_of(self, number: int, node: StorageNode) -> pa.Table:
        self.audit.observe(numbers_of(number))
        return versions_of(number) if self.plan.is_keyed else batch_of(number)

    async def send(self, number: int) -> None:
        await super().send(number)
        await asyncio.sleep(self.random.uniform(0.0, self.plan.sending_s))

    async def subscribe(self, subscriber: int) -> None:
        ids = [f"{subscriber}-{number}" for number in range(IDS)]
        for batch in range(self.plan.changes):
            if self.is_over and self.plan.changes == FOR_GOOD:
                return
            names = self.random.sample(ids, k=2)
            changes = {name: self.audit.random_change(name, self.random) for name in names}
            versions = self.audit.change(changes)
            await self.store(changes, producer=f"s{subscriber}", batch=batch)
            self.audit.settle(versions)
            if self.random.random() < 0.1:  # The answer was lost.
                self.counters["calls repeated"] += 1
                await self.store(changes, producer=f"s{subscriber}", batch=batch)
            await asyncio.sleep(self.random.uniform(0.0, self.plan.subscribing_s))

    async def upsert(self) -> None:
        """Stores rows of `LEVELS`, which subscriptions have."""
        batches = range(self.plan.changes) if self.plan.looks_up else ()
        for batch in batches:
            if self.is_over and self.plan.changes == FOR_GOOD:
                return
            levels = {
                float(level): None
                if self.random.random() < 0.3
                else float(self.random.randrange(40))
                for level in self.random.sample(self.audit.values, k=2)
            }
            versions = self.audit.change_levels(levels)
            await self.store_levels(levels, batch=batch)
            self.audit.settle(versions)
            await asyncio.sleep(self.random.uniform(0.0, self.plan.subscribing_s))

    async def store_levels(self, levels: Mapping[float, float | None], *, batch: int) -> None:
        table = levels_of(levels)
        await self.send_until_stored(LEVELS.key, lambda _: table, producer="l", batch=batch)

    async def store(self, changes: Changes, *, producer: str, batch: int) -> None:
        table = rows_of(self.audit.channel.subscriptions, changes)
        await self.send_until_stored(
            self.audit.table, lambda _: table, producer=producer, batch=batch
        )

    async def follow(self, reader: Reader) -> None:
        while not self.is_over:
            await self.read_once(reader, parts_max=self.random.choice((None, 1, 2, 3)))
            await asyncio.sleep(self.random.uniform(0.3, 2.0) * self.plan.executing_s)

    async def read_once(self, reader: Reader, *, parts_max: int | None = None) -> None:
        hosts = list(self.hosts.values())
        if not hosts:
            return
        try:
            async with asyncio.timeout(5.0):
                await reader.read(self.random.choice(hosts).node, parts_max=parts_max)
        except (GalileoError, TimeoutError):
            pass
        except RuntimeError as error:
            expect_crash(error)

    # --- the end -----------------------------------------------------------------------------

    def is_settled(self) -> bool:
        if self.topology.is_replicated:
            return super().is_settled()
        owned = [p for host in self.hosts.values() for p in host.node.partitions]
        return sorted(owned) == [*self.topology.partitions]

    def published(self, key: str) -> Cursor:
        """The last commits that some node shows."""
        shards = [host.node.catalog.shards[key] for host in self.hosts.values()]
        return Cursor.joined(shard.own_published().sequences for shard in shards)

    def is_caught_up(self) -> bool:
        for host in self.hosts.values():
            self.audit.remember(host.node.catalog)
        air, log = self.published("nam"), self.published(CHANNEL)
        table, channel = self.published(self.audit.table), self.audit.channel
        for partition in self.topology.partitions:
            if not log[partition]:
                return False
            last = self.audit.log[partition][log[partition]]
            if Cursor(last.until) != air:
                return False
            if channel.compares and not all(
                Cursor(last.references[one.name]).covers(self.published(one.key))
                for one in channel.references
            ):
                return False
            if self.audit.needs_changes(partition) and (
                last.subscriptions < table[partition]
                or (channel.is_repetitive and last.due_us <= self.settled_us)
            ):
                return False
        return True

    def is_at_rest(self) -> bool:
        return self.is_caught_up() and self.is_settled()

    def is_read(self) -> bool:
        """Whether nothing is left to do; leaders that return to their nodes show nothing."""
        end = self.published(CHANNEL)
        return self.is_at_rest() and all(reader.cursor.covers(end) for reader in self.readers)

    async def catch_up(self) -> None:
        """Returns when everything is executed, all replicas are equal and readers at the end."""
        self.settled_us = self.audit.channel.due_us(self.clock.wall())
        deadline = self.clock.monotonic() + SETTLED_S
        self.readers += [self.reader_type(CHANNEL, broker) for broker in BROKERS]
        while not self.is_read():
            if self.clock.monotonic() > deadline:
                raise AssertionError(self.describe_progress())
            if self.is_at_rest():
                for reader in self.readers:
                    await self.read_once(reader)
            else:
                self.spread_leaders()
                await asyncio.sleep(0.05)

    def describe_progress(self) -> str:
        """What each node has executed, for the message of a failure."""
        reached = [
            (name, host.node.channels.progress(CHANNEL)) for name, host in self.hosts.items()
        ]
        state = self.describe() if self.topology.is_replicated else ""
        return f"not caught up with {self.published('nam')}: {reached}, {self.failures}\n{state}"

    def judge(self) -> None:
        keys = [schema.key for schema in self.schemas]
        self.audit.check_complete({key: self.published(key) for key in keys})
        self.audit.judge(may_skip=self.plan.drops == "all")
        for reader in self.readers:
            self.audit.check_reader(reader)
        if self.topology.is_replicated:
            self.check_replicas(keys)

    def check_replicas(self, keys: Collection[str]) -> None:
        for key, partition in itertools.product(keys, self.topology.partitions):
            journals = [
                host.node.catalog.shards[key].journals[partition]
                for host in self.group_of(partition)
            ]
            first = 1 + max(journal.dropped for journal in journals)
            logs = [
                [journal.read(n) for n in range(first, journal.last_sequence + 1)]
                for journal in journals
            ]
            assert all(log == logs[0] for log in logs), "replicas differ"

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Of all users."""
        return [
            *map(self.produce, range(PRODUCERS)),
            *map(self.subscribe, range(SUBSCRIBERS)),
            self.upsert(),
            *map(self.follow, self.readers),
        ]

    async def hurt(self) -> None:
        await hurt(self)

    async def play(self) -> None:
        """All faults, then everything works again, and is judged."""
        with patched({**OF_QUERIES, **self.plan.limits}):
            await self._play()

    async def _play(self) -> None:
        await self.begin()
        works = [asyncio.create_task(work) for work in self.works()]
        gossip = asyncio.create_task(self.gossip())
        try:
            for _ in range(self.plan.faults):
                await asyncio.sleep(self.random.uniform(1.0, 4.0) * self.plan.executing_s)
                await self.maintain()
                await self.hurt()
                await self.maintain()
            await self.settle()
            await asyncio.gather(*works)
            await self.catch_up()
            self.judge()
        finally:
            ended = [work for work in (*works, gossip) if work.done()]
            for work in (*works, gossip):
                work.cancel()
            await asyncio.gather(*works, gossip, return_exceptions=True)
            await self.close()
            await asyncio.gather(*ended)  # Raises their error in place of what comes of it.


# --- simulated time ------------------------------------------------------------------------------


class _WaitingCatalog:
    """A catalog whose commits the cleaner waits for without stopping the simulated clock."""

    def __init__(self, catalog: Catalog, wait: Callable[[Future[Any]], Future[Any]]) -> None:
        self._catalog, self._wait = catalog, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit(self, *args: Any, **options: Any) -> Future[Any]:
        return self._wait(self._catalog.commit(*args, **options))


class SimulatedWorld(ChannelWorld):
    """Runs in simulated time; users commit at the owners what they have computed once.

    Args:
        without: kinds of faults that do not happen.
        trace: called with each event as a line.

    Attributes:
        stamps: when each batch was received, in seconds by the wall clock.
    """

    segment_bytes_max = 3_000

    def __init__(
        self,
        directory: Path,
        seed: int,
        plan: Plan,
        *,
        loop: SimulatedLoop,
        without: Collection[str] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.loop, self.clock = loop, SimulatedClock(loop)
        super().__init__(directory, seed, plan, options=SLOW)
        kinds = REPLICA_FAULTS if self.topology.is_replicated else SINGLE_FAULTS
        self.kinds = [kind for kind in kinds if kind not in without]
        self.is_cleaned = "clean" not in without and not plan.is_kept
        self.threads: dict[str, BlockingThread] = {}
        self.stamps: dict[int, float] = {}
        self.trace_hash = 0
        self._trace = trace

    def make_executor(self, _: int, thread_name_prefix: str) -> Executor:
        is_waited_for = thread_name_prefix == "sync"
        return ImmediateThreads() if is_waited_for else SimulatedThreads(self.loop)

    def note(self, text: str) -> None:
        line = f"{self.loop.time():.6f} {text}"
        self.trace_hash = zlib.crc32(line.encode(), self.trace_hash)
        if self._trace is not None:
            self._trace(line)

    # --- nodes -------------------------------------------------------------------------------

    def catalog_of(self, host: Host) -> Any:
        def wait(future: Future[Any]) -> Future[Any]:
            return self.threads[host.name].wait(future)

        return _WaitingCatalog(host.node.catalog, wait)

    def in_thread_of(
        self, host: Host, read: Callable[[S], Coroutine[Any, Any, T]], call: Callable[[S], T]
    ) -> Callable[[S], T]:
        def wait(asked: S) -> T:
            reading = asyncio.run_coroutine_threadsafe(read(asked), self.loop)
            return self.threads[host.name].wait(reading).result()

        return wait

    async def maintain(self) -> None:
        """`keep_maintaining` does it."""

    async def keep_maintaining(self) -> None:
        while not self.is_over and self.is_cleaned:
            hosts = [host for host in self.hosts.values() if host.name not in self.threads]
            if hosts:
                await self.maintain_host(self.random.choice(hosts))
            await asyncio.sleep(self.random.uniform(0.05, 0.5))

    def works(self) -> list[Coroutine[Any, Any, None]]:
        return [*super().works(), self.keep_maintaining()]

    async def in_thread(self, host: Host, work: Callable[[], None]) -> None:
        if self.is_gone(host) or host.name in self.threads:
            return
        before = self.changes_dropped(host, self.cleaned_tables)
        thread = self.threads[host.name] = BlockingThread(self.loop, work)
        try:
            await thread.done
        finally:
            del self.threads[host.name]
        after = self.changes_dropped(host, self.cleaned_tables)
        self.counters["tables cleaned"] += after[0] > before[0]
        count = 1 + len(self.audit.channel.references)
        self.counters["looked-up tables cleaned"] += after[1:count] > before[1:count]
        self.counters["observations cleaned"] += after[count:] > before[count:]

    def changes_dropped(self, host: Host, keys: Sequence[str]) -> list[int]:
        """Up to which commits tables are cleaned at a node, in all."""
        tables = map(host.node.catalog.versioned_shard, keys)
        return [sum(table.dropped().values()) for table in tables]

    async def crash(self, name: str, *, is_lost: bool) -> None:
        self.note(f"{name} crashes{' and loses its disk' if is_lost else ''}")
        if name in self.threads:
            self.threads[name].stop()
        await super().crash(name, is_lost=is_lost)

    def start(self, name: str) -> None:
        self.note(f"{name} starts")
        super().start(name)

    # --- who works ---------------------------------------------------------------------------

    async def produce(self, producer: int) -> None:
        for batch in range(self.plan.batches):
            await self.send(producer + PRODUCERS * batch)

    async def send(self, number: int) -> None:
        self.audit.observe(numbers_of(number))
        self.stamps[number] = round(self.clock.wall(), 3)
        parts = _observation_parts(number, self.plan.topology, self.plan.dataset)
        await self.commit("nam", parts, producer="p", batch=number)
        self.acknowledged.add(number)
        self.note(f"batch {number} is stored")
        await asyncio.sleep(self.random.uniform(0.0, self.plan.sending_s))

    async def store(self, changes: Changes, *, producer: str, batch: int) -> None:
        parts = dict[int, tuple[pa.Table, pa.RecordBatch]]()
        table = self.audit.channel.subscriptions
        for name, (broker, least) in changes.items():
            for partition, (rows, keys) in _version_parts(table, name, broker, least).items():
                if partition in parts:
                    more, others = parts[partition]
                    rows = pa.concat_tables([more, rows])
                    keys = pa.concat_batches([others, keys])
                parts[partition] = rows, keys
        await self.commit(self.audit.table, parts, producer=producer, batch=batch)
        self.note(f"{producer} stores {changes}")

    async def store_levels(self, levels: Mapping[float, float | None], *, batch: int) -> None:
        [table] = self.audit.channel.references
        parts = index_versions(table, levels_of(levels))
        await self.commit(table.key, parts, producer="l", batch=batch)
        self.note(f"l stores {levels}")

    async def commit(self, key: str, parts: Parts, *, producer: str, batch: int) -> None:
        """Sends each part to the owner of its partition until it is acknowledged."""
        left = dict(parts)
        while True:
            for partition in list(left):
                commit = Commit(producer, batch, *left[partition])
                if await self.try_commit(key, partition, commit):
                    del left[partition]
            if not left:
                return
            await asyncio.sleep(self.random.uniform(0.02, 0.2))

    async def try_commit(self, key: str, partition: int, commit: Commit) -> bool:
        for name, host in list(self.hosts.items()):
            if partition in host.node.partitions and name not in self.network.away:
                try:
                    async with asyncio.timeout(5.0):
                        committing = host.node.catalog.commit(key, {partition: commit})
                        results = await asyncio.wrap_future(committing)
                except (GalileoError, TimeoutError):
                    return False
                except RuntimeError as error:
                    expect_crash(error)
                    return False
                result = results[partition]
                if isinstance(result, Committed) and result.duplicate:
                    self.counters["commits repeated"] += 1
                return isinstance(result, Committed)
        return False

    # --- faults ------------------------------------------------------------------------------

    async def hurt(self) -> None:
        if not self.kinds:
            return
        if self.topology.is_replicated:
            kind = await hurt(self, kinds=self.kinds)
        else:
            kind = self.random.choice(self.kinds)
            self.note(f"fault: {kind}")
            await self.hurt_single(kind, self.random.choice(self.names))
        self.counters[f"fault {kind}"] += 1

    async def hurt_single(self, kind: str, name: str) -> None:
        """One fault of a cluster with one copy, for some time."""
        pause_s = self.random.uniform(0.05, 1.0)
        if kind == "crash":
            await self.crash(name, is_lost=False)
            await asyncio.sleep(pause_s)
            self.start(name)
        elif kind == "all":
            for each in self.names:
                await self.crash(each, is_lost=False)
            for each in self.names:
                self.start(each)
        elif kind == "away":
            self.network.away.add(name)
            await asyncio.sleep(pause_s)
            self.network.away.clear()
        elif kind == "full":
            self.hosts[name].disk.is_full = True
            await asyncio.sleep(pause_s)
            self.hosts[name].disk.is_full = False
        else:
            await self.move(name, is_cut=kind == "cut move")

    async def move(self, name: str, *, is_cut: bool) -> None:
        """A node is to lead a partition, perhaps while it is cut off, and to give it back."""
        partition = self.random.choice(self.topology.partitions)
        [owner] = [n for n, host in self.hosts.items() if partition in host.node.partitions] or [
            name
        ]
        for to in (name, owner) if owner != name else ():
            self.topology = topology_changes.pin_partitions(self.topology, [partition], to)
            for host in self.hosts.values():
                host.live.replace_nodes(replace(host.live.current, pins=self.topology.pins))
            if is_cut:
                await asyncio.sleep(self.random.uniform(0.0, 0.5))
                self.cut.add(name)
            await asyncio.sleep(self.random.uniform(0.0, 2.0))
            self.cut.discard(name)
            self.counters["partitions moved"] += partition in self.hosts[to].node.partitions
            if self.random.random() < 0.3:
                return

    async def settle(self) -> None:
        self.note("everything works again")
        self.network.away.clear()
        await super().settle()


SLOW = replace(OPTIONS, tick_s=0.05, restart_s=0.2)
"""Ticks that are rare enough for thousands of worlds."""


@lru_cache(maxsize=4096)
def _observation_parts(number: int, topology: Topology, schema: Schema) -> Parts:
    """A batch as it is stored."""
    place = partial(placement.partitions_from_cells, topology, schema)
    if schema.is_keyed:
        return keyed.index_versions(schema, normalise(schema, versions_of(number)), place=place)
    return paths.index_parts(schema, normalise(schema, batch_of(number)), place=place)


@lru_cache(maxsize=4096)
def _version_parts(table: Table, name: str, broker: str, least: float | None) -> Parts:
    """A version of a subscription as it is stored."""
    return index_versions(table, rows_of(table, {name: (broker, least)}))


def levels_of(levels: Mapping[float, float | None]) -> pa.Table:
    """Rows of `LEVELS`; None deletes one."""
    rows = [
        {"level": int(level), "least": least, "deleted": least is None}
        for level, least in levels.items()
    ]
    return pa.Table.from_pylist(rows, schema=LEVELS.observation_schema)


def plan_of(seed: int) -> Plan:
    """What a seed has; each kind of channel comes often."""
    new, leave = MODES[seed % len(MODES)]
    chance = Random(seed)
    size, is_repetitive = 1 + (seed // len(MODES)) % 2, new == "none"
    return Plan(
        new=new,
        leave=leave,
        template=chance.choice(TEMPLATES),
        age_max_s=chance.choice((None, AGE_MAX_S, AGE_MAX_S)) if is_repetitive else None,
        looks_up=(seed // len(MODES)) % LOOKUPS_EVERY == 1,
        limits=LIMITS[0] if is_repetitive else chance.choice(LIMITS),
        is_kept=chance.random() < 0.2,
        drops="nothing" if seed >= KEYED_FROM else _drops(new, chance.random()),
        is_keyed=seed >= KEYED_FROM,
        replicas=3 if seed % REPLICATED_EVERY == REPLICATED_EVERY - 1 else 1,
        sending_s=0.6,
        subscribing_s=0.8,
        executing_s=0.5,
        settled_s=0.05,
        batches=4 * size,
        changes=7 * size,
        faults=2 * size,
    )


def _drops(new: New, chance: float) -> Drops:
    """A channel that matches observations again cannot be judged without them."""
    if new not in ("observations", "both") or chance >= 0.6:
        return "nothing"
    return "all" if new == "observations" and chance < 0.3 else "matched"


def run_channels(
    seed: int,
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
    world_type: type[SimulatedWorld] = SimulatedWorld,
    mutate: Callable[[SimulatedWorld], dict[str, Any]] | dict[str, Any] | None = None,
) -> Counter[str]:
    """Plays the world of this seed.

    Args:
        seed: of the random generators.
        without: faults that do not happen.
        trace: called with each event as a line.
        world_type: with or without mistakes of users.
        mutate: mistakes of nodes: what replaces parts of the production code, by dotted name.

    Returns:
        How often what happened.

    Raises:
        AssertionError: the judge finds the logs wrong, or nothing goes on.
    """
    plan = plan_of(seed)
    if "retention" in without:
        plan = replace(plan, drops="nothing")
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))

    async def play(loop: SimulatedLoop) -> SimulatedWorld:
        world = world_type(directory, seed, plan, loop=loop, without=without, trace=trace)
        mistakes = mutate(world) if callable(mutate) else mutate or {}
        identities = Random(seed)  # Sets of disks have an order by them.
        token_hex = {"secrets.token_hex": lambda n: identities.randbytes(n).hex()}
        with patched({**token_hex, **mistakes}):
            await world.play()
        return world

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # Worlds fail by the thousand, as they should.
    try:
        world = run_simulated(seed, play)
    finally:
        logging.disable(disabled)
        shutil.rmtree(directory, ignore_errors=True)
    if trace is not None:
        trace(f"hash {world.trace_hash}")
    counters = world.counters
    counters["executions"] += sum(map(len, world.audit.log.values()))
    commits = [one for log in world.audit.commits.values() for one in log.values()]
    counters["observations"] += sum(map(len, commits))
    counters["notifications due for certain"] += world.audit.certain
    counters["gone for readers"] += sum(len(reader.gone) for reader in world.readers)
    return counters
