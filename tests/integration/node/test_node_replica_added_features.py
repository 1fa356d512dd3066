"""Replicated partitions whose dataset gets features while nodes crash and lose their disks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from replica_nodes import SCHEMA, World, await_whole, batch, hurt, scrub_all, until

from galileo.errors import GalileoError
from galileo.model.schema import Feature, Schema
from galileo.node.storage_node import StorageNode
from galileo.query import parse

STEPS = 8
WIDEST = 1_000_000
"""The number of the last batch."""
FEATURES = [Feature("gust", "m/s"), Feature("site", type="text"), Feature("wet", type="bool")]


def wider(schema: Schema, count: int) -> Schema:
    return schema.with_features(FEATURES[:count]) if count else schema


def batch_of(number: int, added: int) -> pa.Table:
    """The observations of a batch; those of more features have the same ones besides."""
    table, rows = batch(number), range(batch(number).num_rows)
    columns = [
        pa.array([float(number)] * len(rows)),
        pa.array([f"site-{number}"] * len(rows)),
        pa.array([number % 2 == 0] * len(rows)),
    ]
    for feature, column in zip(FEATURES[:added], columns, strict=False):
        table = table.append_column(feature.name, column)
    return table


class GrowingWorld(World):
    """Producers send what the node that they reach knows, or what was known before.

    Attributes:
        sent: the number of features in each acknowledged batch.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.added = 0
        self.sent: dict[int, int] = {}

    async def add(self) -> None:
        """One node learns of a feature, as from a register; others by what it sends."""
        self.added = min(self.added + 1, len(FEATURES))
        hosts = list(self.hosts.values())
        if hosts:
            catalog = self.random.choice(hosts).node.catalog
            try:
                await asyncio.to_thread(catalog.adopt, wider(SCHEMA, self.added))
            except GalileoError:  # Its disk is full, or it has crashed.
                self.added -= 1

    async def tell_all(self) -> None:
        """All nodes learn of the features that batches were sent with, as from a register.

        The one node that has learnt of a feature may have lost that when its disk was full.
        """
        known = max([self.added, *self.sent.values()])
        for host in self.hosts.values():
            await asyncio.to_thread(host.node.catalog.adopt, wider(SCHEMA, known))

    def table_of(self, number: int, node: StorageNode) -> pa.Table:
        """The observations of a batch, always with the features that it was first sent with."""
        known = node.catalog.schema("nam").added if node.catalog.knows("nam") else 0
        return batch_of(number, self.sent.setdefault(number, self.random.randint(0, known)))

    async def send_widest(self) -> None:
        """One more batch, with all features; others may have been sent before any was known."""
        node = self.random.choice(list(self.hosts.values())).node
        await asyncio.to_thread(node.catalog.adopt, wider(SCHEMA, len(FEATURES)))
        self.sent[WIDEST] = len(FEATURES)
        await self.send(WIDEST)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
async def test_replicas_of_a_growing_dataset_keep_each_batch_with_its_features(
    tmp_path: Path, seed: int
) -> None:
    world = GrowingWorld(tmp_path, seed)
    await world.begin()
    works = [asyncio.create_task(world.produce(n)) for n in range(3)]
    try:
        for _ in range(STEPS):
            await asyncio.sleep(world.random.uniform(0.1, 0.6))
            await hurt(world)
            await world.add()
            world.spread_leaders()
        await world.tell_all()
        await world.settle()
        await asyncio.gather(*works)
        await world.send_widest()
        await scrub_all(world)
        await world.settle()
        world.judge()
        for host in world.hosts.values():
            await asyncio.to_thread(host.node.catalog.adopt, wider(SCHEMA, len(FEATURES)))
            check_rows(world, host.node.catalog.shard("nam").journals)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await world.close()


def check_rows(world: GrowingWorld, journals) -> None:
    """Every stored row has the features that it was sent with."""
    stored = 0
    for journal in journals.values():
        for sequence in range(1, journal.last_sequence + 1):
            header = journal.header(sequence)
            if header.producer != "p":
                continue
            added = world.sent[header.batch]
            assert header.added == added
            table, sent = journal.read(sequence), batch_of(header.batch, added)
            for number, feature in enumerate(FEATURES):
                values = set(table.column(feature.name).to_pylist())
                expected = {sent.column(feature.name)[0].as_py()} if number < added else {None}
                assert values == expected
            stored += table.num_rows
    assert stored >= len(world.acknowledged)


async def test_a_follower_learns_features_before_it_takes_frames_with_them(tmp_path: Path) -> None:
    world = GrowingWorld(tmp_path, 0)
    await world.begin()
    world.is_calm = True
    try:
        await await_whole(world)
        leaders = [host for host in world.hosts.values() if host.node.partitions]
        for leader in leaders:
            leader.node.catalog.adopt(wider(SCHEMA, 1))
        schemas = [host.node.catalog.schema("nam").added for host in world.hosts.values()]
        assert min(schemas) == 0
        for number in range(4):
            node, table = leaders[0].node, batch_of(number, 1)
            await node.ingest.ingest("nam", table, producer="p", batch=number)
        await until(world, world.is_equal)
        for host in world.hosts.values():
            shard = host.node.catalog.shard("nam")
            assert shard.schema == wider(SCHEMA, 1)
            labels = shard.graph.scan(parse("gust >= 0", shard.schema))
            assert sum(labels.column("rows").to_pylist()) == 4 * batch(0).num_rows
        assert all(one.failed_at is None for h in world.hosts.values() for one in _hosted(h))
    finally:
        await world.close()


def _hosted(host):
    return host.replicas._hosted.values()
