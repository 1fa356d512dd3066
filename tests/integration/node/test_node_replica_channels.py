"""Channels of replicated partitions while nodes crash and lose their disks, judged from outside."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pyarrow as pa
import pytest
from channel_audit import (
    BROKERS,
    TEMPLATES,
    Changes,
    ChannelAudit,
    Reader,
    air,
    batch_of,
    numbers_of,
    rows_of,
)
from replica_nodes import (
    PARTITIONS,
    SETTLED_S,
    Host,
    World,
    _expect_crash,
    hurt,
)

from galileo.cursor import Cursor
from galileo.errors import GalileoError
from galileo.model.channel import Channel
from galileo.node.channel_executor import ExecutorOptions
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.query.subscriptions import ParameterQuery

AIR = air("nam")
LIMITS = (ExecutorOptions(), ExecutorOptions(rows_max=8), ExecutorOptions(bytes_max=3_000))
STEPS = 8
PRODUCERS = SUBSCRIBERS = 3
IDS = 6
"""Of each subscriber, so that the versions of a subscription have one order."""
CHANNEL = "hot"
AHEAD_S = 1e7
"""All executions are old for retention."""


def channel_of(template: str) -> Channel:
    query = ParameterQuery(template, AIR)
    made = Channel(CHANNEL, "nam", template, keep="1s")
    return made.bound(AIR, query.parameters, start={}, partitions=PARTITIONS)


class ChannelWorld(World):
    """Producers, subscribers, readers, and nodes that execute the channel all the time.

    Attributes:
        is_kept: whether neither tables are cleaned nor executions dropped.
        failures: the last error of an execution at each node.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        channel = channel_of(TEMPLATES[seed % 2])
        super().__init__(
            directory,
            seed,
            schema=AIR,
            further=(channel, channel.subscriptions),
            node_options=NodeOptions(channels=LIMITS[seed % 3]),
        )
        self.audit = ChannelAudit(channel)
        self.is_kept = seed % 4 == 3
        self.readers = [Reader(CHANNEL, broker) for broker in BROKERS]
        self.runners: dict[str, RetentionRunner] = {}
        self.executing: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[str, str] = {}

    # --- nodes -------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        super().start(name)
        host = self.hosts[name]
        options = RetentionRunnerOptions(
            check_s=3600.0, min_age_s=0.2, table_age_s=0.2, wall=lambda: time.time() + AHEAD_S
        )
        self.runners[name] = RetentionRunner(host.node.catalog, options, readers=lambda _: ())
        self.executing[name] = asyncio.create_task(self.execute(host))

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
                    self.audit.remember(host.node.catalog)
            except GalileoError as error:
                self.failures[host.name] = repr(error)
            except RuntimeError as error:
                _expect_crash(error)
            await asyncio.sleep(self.random.uniform(0.01, 0.1))

    async def gossip(self) -> None:
        """Sends to nodes what others have published, sometimes late, until it is cancelled."""
        while True:
            for host in list(self.hosts.values()):
                for key, shard in host.node.catalog.shards.items():
                    self.tell(host.name, key, shard.own_published().sequences)
            await asyncio.sleep(0.03)

    def tell(self, teller: str, key: str, sequences: Cursor) -> None:
        for name in self.hosts:
            is_late = name != teller and not self.is_calm and self.random.random() < 0.2
            if name == teller or not {name, teller} & self.cut:
                late_s = self.random.uniform(0.0, 0.6) if is_late else 0.0
                self.later(self.hear(name, key, sequences, late_s))

    async def hear(self, name: str, key: str, sequences: Cursor, late_s: float) -> None:
        await asyncio.sleep(late_s)
        if name in self.hosts:
            self.hosts[name].node.view.update_sequences(key, sequences)

    async def maintain(self) -> None:
        """Cleans the table and drops executions where they are old."""
        for host in [] if self.is_kept else list(self.hosts.values()):
            await self.maintain_host(host)

    async def maintain_host(self, host: Host) -> None:
        runner, catalog = self.runners[host.name], host.node.catalog

        def work() -> None:
            self.audit.remember(catalog)
            runner.clean(catalog.table_shard(self.audit.table))
            runner.drop_executions(catalog.channel_shard(CHANNEL))

        try:
            await asyncio.to_thread(work)
        except GalileoError:
            pass
        except RuntimeError as error:
            _expect_crash(error)

    # --- who works ---------------------------------------------------------------------------

    def table_of(self, number: int, node: StorageNode) -> pa.Table:
        self.audit.observe(numbers_of(number))
        return batch_of(number)

    async def send(self, number: int) -> None:
        await super().send(number)
        await asyncio.sleep(self.random.uniform(0.0, 0.15))

    async def subscribe(self, subscriber: int) -> None:
        ids = [f"{subscriber}-{number}" for number in range(IDS)]
        for batch in itertools.count():
            if self.is_over:
                return
            names = self.random.sample(ids, k=2)
            changes = {name: self.audit.random_change(name, self.random) for name in names}
            versions = self.audit.change(changes)
            await self.store(changes, producer=f"s{subscriber}", batch=batch)
            self.audit.settle(versions)
            await asyncio.sleep(self.random.uniform(0.0, 0.4))

    async def store(self, changes: Changes, *, producer: str, batch: int) -> None:
        table = rows_of(self.audit.channel.subscriptions, changes)
        while True:
            hosts = list(self.hosts.values())
            if hosts:
                ingest = self.random.choice(hosts).node.ingest
                try:
                    async with asyncio.timeout(5.0):
                        await ingest.ingest(self.audit.table, table, producer=producer, batch=batch)
                    return
                except (GalileoError, TimeoutError):
                    pass
                except RuntimeError as error:
                    _expect_crash(error)
            await asyncio.sleep(0.02)

    async def follow(self, reader: Reader) -> None:
        while not self.is_over:
            await self.read_once(reader, parts_max=self.random.choice((None, 1, 2, 3)))
            await asyncio.sleep(self.random.uniform(0.01, 0.2))

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
            _expect_crash(error)

    # --- the end -----------------------------------------------------------------------------

    def published(self, key: str) -> Cursor:
        """The last commits that some node shows."""
        shards = [host.node.catalog.shards[key] for host in self.hosts.values()]
        return Cursor.joined(shard.published() for shard in shards)

    def is_caught_up(self) -> bool:
        for host in self.hosts.values():
            self.audit.remember(host.node.catalog)
        air, log = self.published("nam"), self.published(CHANNEL)
        return all(
            log[p] and Cursor(self.audit.log[p][log[p]].until) == air for p in range(PARTITIONS)
        )

    async def catch_up(self) -> None:
        """Returns when everything is executed, all replicas are equal and readers at the end."""
        try:
            async with asyncio.timeout(SETTLED_S):
                while not self.is_caught_up() or not self.is_settled():
                    self.spread_leaders()
                    await asyncio.sleep(0.05)
                for reader in self.readers:
                    while not reader.cursor.covers(self.published(CHANNEL)):
                        await self.read_once(reader)
        except TimeoutError:
            progress = {n: host.node.channels.progress(CHANNEL) for n, host in self.hosts.items()}
            pytest.fail(
                f"not caught up with {self.published('nam')}: {progress}, {self.failures}\n"
                f"{self.describe()}"
            )

    def judge(self) -> None:
        keys = [schema.key for schema in self.schemas]
        self.audit.check_complete({key: self.published(key) for key in keys})
        self.audit.judge()
        for reader in self.readers:
            self.audit.check_reader(reader)
        assert self.audit.certain, "nothing was promised"
        for key, partition in itertools.product(keys, range(PARTITIONS)):
            journals = [
                host.node.catalog.shards[key].journals[partition] for host in self.hosts.values()
            ]
            first = 1 + max(journal.dropped for journal in journals)
            logs = [
                [journal.read(n) for n in range(first, journal.last_sequence + 1)]
                for journal in journals
            ]
            assert all(log == logs[0] for log in logs), "replicas differ"


async def run(directory: Path, seed: int, steps: int) -> ChannelWorld:
    world = ChannelWorld(directory, seed)
    await world.begin()
    works = [asyncio.create_task(world.produce(n)) for n in range(PRODUCERS)]
    works += [asyncio.create_task(world.subscribe(n)) for n in range(SUBSCRIBERS)]
    works += [asyncio.create_task(world.follow(reader)) for reader in world.readers]
    gossip = asyncio.create_task(world.gossip())
    try:
        for _ in range(steps):
            await asyncio.sleep(world.random.uniform(0.1, 0.6))
            await world.maintain()
            await hurt(world)
            await world.maintain()
        await world.settle()
        await asyncio.gather(*works)
        await world.catch_up()
        world.judge()
    finally:
        ended = [work for work in (*works, gossip) if work.done()]
        for work in (*works, gossip):
            work.cancel()
        await asyncio.gather(*works, gossip, return_exceptions=True)
        await world.close()
        await asyncio.gather(*ended)  # Raises their error in place of what comes of it.
    return world


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 2), *(pytest.param(seed, STEPS, marks=pytest.mark.slow) for seed in range(1, 24))],
)
async def test_replicas_execute_a_channel_once_whatever_fails(
    tmp_path: Path, seed: int, steps: int
) -> None:
    await run(tmp_path, seed, steps)
