"""Rounds of a channel on nodes: what users store, what is delivered, and what loops find due."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR
from galileo.labels import from_ipc
from galileo.model.channel import MATCHES_SCHEMA, Channel
from galileo.model.schema import DELETED, Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.node.peers import ExecutionsTask
from galileo.node.storage_node import StorageNode

TEMPLATE = "temperature >= :least AND temperature <= :most"
BROKERS = ("east", "west")
START_US = 1_330_560_000_000_000
Subscription = tuple[str, float, float]
Delivered = tuple[str, str, str, bool]
"""Broker, subscription, observation, and whether it has left."""


class Rounds:
    """A channel, its subscriptions and observations, and what is due.

    Attributes:
        subscriptions, observations: as they are stored.
        seen: the subscriptions and observations that the last round saw.
        sent_us: times of the observations that were sent last.
        schema: of the dataset.
    """

    def __init__(self, cluster: Any, channel: Channel, seed: int) -> None:
        self.cluster, self.channel, self.chance = cluster, channel, random.Random(seed)
        self.schema: Schema = cluster.schema
        self.subscriptions: dict[str, Subscription] = {}
        self.changed: set[str] = set()
        self.observations: dict[str, float] = {}
        self.seen: tuple[dict[str, Subscription], dict[str, float]] = {}, {}
        self.sent_us: list[int] = []
        self.batches = 0
        self.cursors = dict.fromkeys(BROKERS, EMPTY_CURSOR)

    def any_node(self) -> StorageNode:
        return self.chance.choice(self.cluster.nodes)

    async def begin(self) -> None:
        await self.any_node().create_dataset(self.channel)

    def set_clock(self) -> None:
        """The nodes have the clock of the test; again after restarts."""
        for node in self.cluster.nodes:
            node.channels._clock = node.channels._observations._clock = self.cluster.clock

    async def subscribe(self, count: int) -> None:
        names = self.chance.sample([f"s{number}" for number in range(20)], k=count)
        rows = [
            {
                "id": name,
                "broker": self.chance.choice(BROKERS),
                "least": (least := self.chance.choice([250.0, 270.0, 290.0])),
                "most": least + self.chance.choice([10.0, 30.0]),
                "deleted": self.chance.random() < 0.3,
            }
            for name in names
        ]
        table = pa.Table.from_pylist(rows)
        await self._store(self.channel.subscription_table, table)
        for row in rows:
            self.changed.add(row["id"])
            self.subscriptions.pop(row["id"], None)
            if not row["deleted"]:
                self.subscriptions[row["id"]] = row["broker"], row["least"], row["most"]

    async def observe(self, count: int) -> None:
        names = [f"o{len(self.observations) + number}" for number in range(count)]
        values = [self.chance.uniform(245, 325) for _ in names]
        places = [[self.chance.uniform(-80, 80) for _ in names] for _ in range(2)]
        self.sent_us = [self.any_time() for _ in names]
        times = pa.array(self.sent_us, pa.int64()).cast(TIME_TYPE)
        columns = [*map(pa.array, places), times, pa.array(values), pa.array(names)]
        await self._store("nam", pa.table(columns, schema=self.schema.observation_schema))
        self.observations |= dict(zip(names, values, strict=True))

    def any_time(self) -> int:
        """Of an observation, microseconds since 1970."""
        return START_US

    async def _store(self, name: str, table: pa.Table) -> None:
        self.batches += 1
        ingest = self.any_node().ingest
        await ingest.ingest(name, table, producer="p", batch=self.batches)

    def hear(self) -> None:
        """Every node hears of all commits."""
        for node in self.cluster.nodes:
            for other in self.cluster.nodes:
                for key, shard in other.catalog.shards.items():
                    node.view.update_sequences(key, shard.own_published().sequences)

    async def execute(self) -> None:
        """All nodes execute until there is nothing left."""
        self.hear()
        for node in self.cluster.nodes:
            while await node.channels.execute("alerts"):
                pass
            failures = [p.failure for p in node.channels.progress("alerts").values() if p.failure]
            assert not failures
        self.hear()

    async def delivered(self) -> Counter[Delivered]:
        """What is new for the brokers."""
        return Counter(await self.notifications())

    async def notifications(self) -> list[Delivered]:
        """What is new for the brokers; those of one partition in the order of executions."""
        found = list[tuple[int, int, Delivered]]()
        for broker in BROKERS:
            task = ExecutionsTask("alerts", broker, self.cursors[broker])
            async for part in self.any_node().channel_reader.read(task):
                self.cursors[broker] = self.cursors[broker].join(part.reached)
                if part.execution is None:
                    continue
                schema = self.channel.bound(
                    self.schema, [], start={}, partitions=4
                ).delivered_schema
                names = from_ipc(part.execution.observations, schema)["station"].to_pylist()
                for match in from_ipc(part.execution.matches, MATCHES_SCHEMA).to_pylist():
                    found += [
                        (
                            part.execution.partition,
                            part.execution.number,
                            (broker, name, names[row], match["left"]),
                        )
                        for name in match["subscriptions"]
                        for row in match["rows"]
                    ]
        return [one for *_, one in sorted(found)]

    def due(self) -> Counter[Delivered]:
        """What a round has to deliver, by loops over all pairs."""
        before, past = self.seen
        now, present = self.subscriptions, self.observations
        due = Counter[Delivered]()
        for name in {*before, *now}:
            for one, value in present.items():
                held = name in before and one in past and matches(before[name], value)
                holds = name in now and matches(now[name], value)
                is_new, is_changed = one not in past, name in self.changed
                if self.channel.new == "observations":
                    enters = holds and is_new
                elif self.channel.new == "both":
                    enters = holds and is_new and is_changed
                else:
                    enters = holds and not held and (is_new or is_changed)
                if enters:
                    due[now[name][0], name, one, False] += 1
                if self.channel.leave and held and not holds:
                    due[before[name][0], name, one, True] += 1
        self.seen, self.changed = (dict(now), dict(present)), set()
        return due


BUOYS = Schema(
    "buoys",
    [
        Feature("buoy", type="text"),
        Feature("temperature", "K"),
        Feature("station", type="text", indexed=False),
    ],
    geohash_precision=2,
    time_bucket="6h",
    key="buoy",
)
PLACES = ((40.0, -100.0), (40.0, 100.0), (-40.0, -100.0), (-40.0, 100.0))
Key = tuple[int, str | None]


class KeyedRounds(Rounds):
    """A channel over a keyed dataset, whose observations are replaced and deleted.

    Each version has a name of its own, the station.

    Attributes:
        current: the name and the value of what counts, by key.
        held: for each subscription and key the name, by folding what was delivered.
    """

    def __init__(self, cluster: Any, channel: Channel, seed: int) -> None:
        super().__init__(cluster, channel, seed)
        self.schema = BUOYS
        self.current: dict[Key, tuple[str, float]] = {}
        self.before: dict[Key, tuple[str, float]] = {}
        self.keys: dict[str, Key] = {}
        self.held: dict[tuple[str, Key], str] = {}

    async def begin(self) -> None:
        await self.any_node().create_dataset(BUOYS)
        await super().begin()

    async def observe(self, count: int) -> None:
        """Versions of few keys, of which one may be there several times."""
        rows = []
        for _ in range(count):
            key = self.chance.randrange(len(PLACES)), self.chance.choice([None, "a", "b", "c"])
            name, value = f"o{len(self.keys)}", self.chance.uniform(245, 325)
            self.keys[name] = key
            is_deleted = self.chance.random() < 0.25
            latitude, longitude = PLACES[key[0]]
            row = {"latitude": latitude + self.chance.random() / 2, "longitude": longitude}
            row |= {"time": START_US + self.chance.randrange(10**9), "buoy": key[1]}
            rows.append(row | {"temperature": value, "station": name, DELETED: is_deleted})
            self.current.pop(key, None)
            if not is_deleted:
                self.current[key] = name, value
        table = pa.Table.from_pylist(rows)
        place = table.schema.get_field_index("time")
        times = pa.array(table.column("time").to_pylist(), pa.int64()).cast(TIME_TYPE)
        await self._store("buoys", table.set_column(place, "time", times))

    async def delivered(self) -> Counter[Delivered]:
        notifications = await self.notifications()
        for _, name, one, left in notifications:
            pair = name, self.keys[one]
            if left:
                assert self.held.pop(pair) == one, "what has left was another version"
            elif self.channel.new == "either":
                self.held[pair] = one
        return Counter(notifications)

    def matching(self) -> dict[tuple[str, Key], str]:
        """What counts and matches, by subscription and key."""
        return {
            (name, key): one
            for name, subscription in self.subscriptions.items()
            for key, (one, value) in self.current.items()
            if matches(subscription, value)
        }

    def due(self) -> Counter[Delivered]:
        subscribed, past = self.seen[0], self.before
        due = Counter[Delivered]()
        for name, key in itertools.product(
            {*subscribed, *self.subscriptions}, {*past, *self.current}
        ):
            one, other = past.get(key), self.current.get(key)
            earlier, now = subscribed.get(name), self.subscriptions.get(name)
            held = earlier is not None and one is not None and matches(earlier, one[1])
            holds = now is not None and other is not None and matches(now, other[1])
            is_new, is_changed = other != one, name in self.changed
            enters = {
                "observations": is_new,
                "both": is_new and is_changed,
                "either": is_new or (is_changed and not held),
                "none": True,
            }[self.channel.new]
            if holds and enters and now and other:
                due[now[0], name, other[0], False] += 1
            if self.channel.leave and held and not holds and earlier and one:
                due[earlier[0], name, one[0], True] += 1
        self.seen, self.changed = (dict(self.subscriptions), {}), set()
        self.before = dict(self.current)
        return due


def matches(subscription: Subscription, value: float) -> bool:
    return subscription[1] <= value <= subscription[2]
