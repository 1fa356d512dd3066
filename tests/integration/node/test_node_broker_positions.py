"""Results of a channel that brokers hold beyond `keep`, at real nodes, against a dumb rule.

And observations that wait for the channel.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from channel_audit import START_US, Reader, air, batch_of, rows_of
from parameters import keep_quick
from retaining import DAY_S, Checked, Days, retention_of

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import SYSTEM
from galileo.model.broker import BROKERS, HOLD_MAX_S, Broker
from galileo.model.channel import Channel
from galileo.model.reader import POSITIONS, reader_of
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import DELETED
from galileo.model.table import Table
from galileo.model.times import MICROS
from galileo.node import reader_positions, retention_runner
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.reader_positions import ReaderPositions
from galileo.node.retention_plan import Hold, ReaderProgress, held_until
from galileo.node.storage_node import StorageNode
from galileo.wire import token as tokens
from galileo.wire.reader_rows import position_of

CHANNEL, DATASET = "hot", "air"
KEEP = "4d"
NAMES = ("east", "north", "west")
HOLDS = (None, "5d", "20d", "40d")
KINDS = ("read", "read", "read", "read", "define", "replay", "drop")


class World:
    """A channel, its brokers, and what the nodes may delete by what was promised.

    Attributes:
        made_at: when each execution was made, by partition and commit.
        brokers: that there are, by name.
        acknowledged: by broker; absent without a position.
        unreadable: keys of tables.
        counts: what happened.
    """

    def __init__(self, cluster: Any, seed: int) -> None:
        self.cluster, self.random, self.clock = cluster, random.Random(seed), Days()
        self.numbers = itertools.count()
        self.made_at: dict[tuple[int, int], float] = {}
        self.brokers: dict[str, Broker] = {}
        self.acknowledged: dict[str, Cursor] = {}
        self.unreadable = set[str]()
        self.counts = Counter[str]()
        self.readers = {name: Reader(CHANNEL, name) for name in NAMES}

    async def begin(self) -> None:
        self.cluster.journals = dataclasses.replace(self.cluster.journals, segment_bytes_max=4_000)
        for name in "abc":
            await self.cluster.restart(name)
        node = self.cluster["a"]
        await node.create_dataset(air(DATASET))
        created = await node.create_dataset(
            Channel(CHANNEL, DATASET, "temperature > :least", keep=KEEP)
        )
        assert isinstance(created, Channel)
        self.channel = created
        await self.upsert(BROKERS, name="damaged", definition="{not json")
        self.brokers["damaged"] = Broker("damaged", hold=HOLD_MAX_S)
        changes = {f"s{number}": (NAMES[number % 3], -1.0) for number in range(6)}
        await self.store(self.channel.subscriptions, rows_of(self.channel.subscriptions, changes))
        for name in NAMES:
            await self.change_broker(name, self.random_broker(name))

    async def store(self, table: Table, rows: pa.Table) -> None:
        number = next(self.numbers)
        await self.cluster["a"].ingest.ingest(table.name, rows, producer="w", batch=number)

    async def upsert(self, table: Table, **values: Any) -> None:
        row = values | {DELETED: False}
        await self.store(table, pa.Table.from_pylist([row], schema=table.observation_schema))

    # --- what happens --------------------------------------------------------------------------

    async def observe(self) -> None:
        number = next(self.numbers)
        rows = batch_of(number)
        await self.cluster["b"].ingest.ingest(DATASET, rows, producer="p", batch=number)

    async def execute(self) -> None:
        """New observations, which match all subscriptions."""
        await self.observe()
        for teller, node in itertools.product(self.cluster.nodes, self.cluster.nodes):
            for key in (DATASET, self.channel.subscriptions.key):
                sequences = teller.catalog.shards[key].own_published().sequences
                node.view.update_sequences(key, sequences)
        for node in self.cluster.nodes:
            node.channels._clock = self.clock
        await asyncio.gather(*(node.channels.execute(CHANNEL) for node in self.cluster.nodes))
        for node in self.cluster.nodes:
            shard = node.catalog.channel_shard(CHANNEL)
            for partition, last in shard.own_published().sequences.items():
                for sequence in range(1, last + 1):
                    self.made_at.setdefault((partition, sequence), self.clock.now_s)

    async def change_broker(self, name: str, broker: Broker | None) -> None:
        """Creates, replaces or drops one."""
        definition = "" if broker is None else json.dumps(broker.to_dict())
        await self.upsert(BROKERS, name=name, definition=definition)
        self.brokers.pop(name, None)
        if broker is not None:
            self.brokers[name] = broker

    def random_broker(self, name: str) -> Broker:
        channels = self.random.choice(([], [CHANNEL], [CHANNEL], ["other"]))
        return Broker(name, channels=channels, hold=self.random.choice(HOLDS))

    async def acknowledge(self, name: str, cursor: Cursor) -> None:
        token = tokens.encode(reader_of(self.channel, name), cursor) if cursor else ""
        await self.upsert(POSITIONS, reader=reader_of(self.channel, name), token=token)
        self.acknowledged[name] = cursor

    async def read(self, name: str) -> None:
        """A broker takes some of what is new, and acknowledges it."""
        reader = self.readers[name]
        await reader.read(self.cluster["c"], parts_max=self.random.choice((1, 9, 30)))
        await self.acknowledge(name, reader.cursor)

    async def happen(self) -> None:
        kind, name = self.random.choice(KINDS), self.random.choice(NAMES)
        if kind == "read":
            await self.read(name)
        elif kind == "define":
            await self.change_broker(name, self.random_broker(name))
        elif kind == "replay":
            await self.acknowledge(name, EMPTY_CURSOR)
        elif self.random.random() < 0.3:
            await self.change_broker(name, None)

    # --- what nodes delete ---------------------------------------------------------------------

    async def retain(self, name: str) -> list[Checked]:
        """Drops executions at a node."""
        node: StorageNode = self.cluster[name]
        shard = node.catalog.channel_shard(CHANNEL)
        files = {p: journal.log_files() for p, journal in shard.own.items()}
        before = shard.dropped()
        runner = retention_of(node, self.clock, self.unreadable)
        try:
            await asyncio.to_thread(runner.drop_executions, shard)
            self.held = runner.held(CHANNEL)
        finally:
            await asyncio.to_thread(runner.stop)
        after = shard.dropped()
        return [Checked(p, of_p, before[p], after[p]) for p, of_p in files.items()]

    def is_wanted(self, partition: int, sequence: int) -> bool:
        """Whether an execution has to be kept."""
        age_s = self.clock.now_s - self.made_at[partition, sequence]
        keep_s = self.channel.keep_us / 1e6
        if age_s < keep_s:
            return True
        if self.unreadable:
            self.counts["unknown"] += 1
            return age_s < keep_s + HOLD_MAX_S
        for name, broker in self.brokers.items():
            names = broker.channels or ([CHANNEL] if name in self.acknowledged else [])
            is_meant = CHANNEL in names
            position = self.acknowledged.get(name, EMPTY_CURSOR)
            is_behind = position[partition] < sequence
            if is_meant and is_behind and age_s < keep_s + broker.hold_us / 1e6:
                self.counts["held"] += 1
                return True
        return False

    def judge(self, checked: Checked) -> None:
        """All files are gone of which no execution is wanted, behind which there are others."""
        expected = checked.before
        for file in checked.files:
            sequences = range(file.first, file.last + 1)
            is_last = file.last == checked.files[-1].last
            if is_last or any(self.is_wanted(checked.partition, n) for n in sequences):
                break
            expected = file.last
        self.counts["dropped"] += checked.after - checked.before
        assert checked.after == expected, f"p{checked.partition} is dropped to {checked.after}"


async def history(cluster: Any, seed: int, steps: int = 16) -> World:
    """Everything that users and nodes do, in any order; each deletion is judged."""
    world = World(cluster, seed)
    await world.begin()
    for step in range(steps):
        await world.execute()
        world.clock.now_s += world.random.uniform(0.5, 4.0) * DAY_S
        await world.happen()
        if step % 8 in (3, 7):
            table = BROKERS if step % 8 == 3 else POSITIONS
            world.unreadable = {table.key}
            world.clock.now_s += world.random.choice((1.0, 30.0)) * DAY_S
        for checked in await world.retain(world.random.choice("abc")):
            world.judge(checked)
        world.unreadable.clear()
    world.clock.now_s += 2 * HOLD_MAX_S
    for name in "abc":
        for checked in await world.retain(name):
            world.judge(checked)
    return world


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 16), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(1, 12))],
)
async def test_results_are_deleted_when_no_broker_holds_them(
    cluster: Any, seed: int, steps: int
) -> None:
    world = await history(cluster, seed, steps)
    assert world.counts["held"]
    assert world.counts["unknown"]
    assert world.counts["dropped"] > 50


def _newest(pieces: Any, policy: Any, holds: Any, *, now_us: int) -> list[ReaderProgress]:
    """Executions go when one of the brokers has acknowledged them."""
    readers = held_until(pieces, policy, holds, now_us=now_us)
    return [ReaderProgress("", Cursor.joined(one.retrieved for one in readers))] if readers else []


def _without_bound(pieces: Any, policy: Any, holds: Any, *, now_us: int) -> list[ReaderProgress]:
    """A forgotten broker holds executions for ever."""
    return [ReaderProgress(hold.reader, hold.position) for hold in holds]


def _anywhere(self: Broker, channel: str, *, has_position: bool) -> bool:
    """A broker holds the channels that it does not name."""
    return self.hold_us > 0


def _without_position(reader: str, token: str | None, hold_us: int) -> Hold:
    """A broker without a position holds nothing."""
    name = reader.rpartition("/")[2]
    return Hold(name, position_of(reader, token), hold_us / MICROS * bool(token))


MUTANTS: dict[str, tuple[Any, str, Any, int]] = {
    "held by the newest position": (retention_runner, "held_until", _newest, 5),
    "held without a bound": (retention_runner, "held_until", _without_bound, 3),
    "held in other channels": (Broker, "holds", _anywhere, 0),
    "nothing held without a position": (reader_positions, "_hold", _without_position, 3),
    "nothing held without brokers": (reader_positions, "UNKNOWN", Hold("", EMPTY_CURSOR, 0.0), 3),
}
"""What is replaced, and the seed of a history that shows it early."""


@pytest.mark.parametrize(
    "name",
    keep_quick(MUTANTS, "held by the newest position", "nothing held without a position"),
)
async def test_the_rule_convicts(cluster: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    *mutant, seed = MUTANTS[name]
    monkeypatch.setattr(*mutant)
    with pytest.raises(AssertionError, match="is dropped to"):
        await history(cluster, seed)


async def test_a_broker_may_hold_all_while_no_node_leads_the_system_partition(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_positions, "READ_TIMEOUT_S", 1.0)
    world = World(cluster, 0)
    await world.begin()
    for name in NAMES:
        await world.change_broker(name, None)
    await world.change_broker("mail", Broker("mail", channels=[CHANNEL], hold="5d"))
    cursor = Cursor({0: 3, 5: 7})
    await world.acknowledge("mail", cursor)
    loop = asyncio.get_running_loop()
    leader = placement.owner(cluster["b"].topology, SYSTEM)
    b, other = (node for node in cluster.nodes if node.name != leader)
    cuts = ChannelCuts(b.catalog, b.channel_reader, loop=loop)
    of_b = ReaderPositions(b.tables, cuts, loop=loop)
    expected = [Hold("mail", cursor, 5 * DAY_S)]
    assert await of_b.read(world.channel) == expected
    assert await asyncio.to_thread(of_b.read_from_thread, world.channel) == expected
    await world.upsert(POSITIONS, reader=reader_of(world.channel, "mail"), token="nonsense")
    assert await of_b.read(world.channel) == [Hold("mail", EMPTY_CURSOR, 5 * DAY_S)]
    cluster.network.away |= {leader, other.name}
    assert await of_b.read(world.channel) == [Hold("", EMPTY_CURSOR, HOLD_MAX_S)]


@pytest.mark.slow
async def test_observations_wait_for_a_channel_for_as_long_as_it_keeps_results(
    cluster: Any,
) -> None:
    world = World(cluster, 0)
    await world.begin()
    for node in cluster.nodes:
        node.catalog.adopt_retention(DATASET, VersionedRetention(1, Retention("1d")))

    async def retain(age_s: float, names: str = "abc") -> tuple[int, set[tuple[str, ...]]]:
        """Commits that are dropped so long after they were observed, and who holds others."""
        world.clock.now_s = START_US / MICROS + age_s
        commits, holders = 0, set[tuple[str, ...]]()
        for name in names:
            runner = retention_of(cluster[name], world.clock, set())
            try:
                report = await asyncio.to_thread(runner.apply, DATASET)
            finally:
                await asyncio.to_thread(runner.stop)
            commits += report.commits
            holders |= {held.readers for held in report.held}
        return commits, holders

    by_channel = {(f"channel {CHANNEL}",)}
    await world.observe()
    assert await retain(2 * DAY_S) == (0, by_channel)
    await world.execute()
    cluster.network.away.add("a")
    assert await retain(2 * DAY_S, "bc") == (0, by_channel)
    cluster.network.away.clear()
    commits, holders = await retain(2 * DAY_S)
    assert commits > 1
    assert not holders
    await world.observe()
    assert await retain(4 * DAY_S) == (0, by_channel)
    commits, holders = await retain(6 * DAY_S)
    assert commits
    assert not holders
