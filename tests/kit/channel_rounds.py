"""Rounds of a channel on nodes: what users store, what is delivered, and what loops find due."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR
from galileo.labels import from_ipc
from galileo.model.channel import MATCHES_SCHEMA, Channel
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
    """

    def __init__(self, cluster: Any, channel: Channel, seed: int) -> None:
        self.cluster, self.channel, self.chance = cluster, channel, random.Random(seed)
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
        await self._store("nam", pa.table(columns, schema=self.cluster.schema.observation_schema))
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
        delivered = Counter[Delivered]()
        for broker in BROKERS:
            task = ExecutionsTask("alerts", broker, self.cursors[broker])
            async for part in self.any_node().channel_reader.read(task):
                self.cursors[broker] = self.cursors[broker].join(part.reached)
                if part.execution is None:
                    continue
                schema = self.channel.bound(
                    self.cluster.schema, [], start={}, partitions=4
                ).delivered_schema
                names = from_ipc(part.execution.observations, schema)["station"].to_pylist()
                for match in from_ipc(part.execution.matches, MATCHES_SCHEMA).to_pylist():
                    delivered.update(
                        (broker, name, names[row], match["left"])
                        for name in match["subscriptions"]
                        for row in match["rows"]
                    )
        return delivered

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


def matches(subscription: Subscription, value: float) -> bool:
    return subscription[1] <= value <= subscription[2]
