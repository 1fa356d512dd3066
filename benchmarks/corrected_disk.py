"""Disk of a keyed dataset that is corrected every day for two years, beside its current rows alone.

One node in this process, whose clock is moved. Each day new values replace one to five percent of
the rows, chosen at random; then the node cleans, and merges files, as it does in the background. It
has one partition. The files are as small as the number of rows demands: the current rows fill
`SEGMENTS` files, as 1 GiB of rows does with the file sizes that nodes have by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from lone_nodes import lone_node
from node_cluster import Network

from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.model.schema import Schema
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.storage.compaction import COMPACTION_BYTES_MAX, COMPACTION_BYTES_MIN, CompactionOptions
from galileo.storage.store import Store
from galileo.storage.writer import SEGMENT_BYTES_MAX, JournalOptions

DAYS, YEAR = 730, 365
SHARES = (0.01, 0.05)
SEGMENTS = 16
DISK_MAX = 2.5
DAY_S, LOOK_S = 86_400.0, 400.0
LOOKS = 3
"""How often a node looks for something to clean after a commit; a first look notes what is there,
and a second one finds it old enough."""
TOPOLOGY = Topology("disk", (Group("one", (NodeInfo("a", "127.0.0.1:1"),)),), even_ranges(1), 1)


def measure(bench: Bench, schema: Schema, rows: pa.Table) -> Iterator[Figure]:
    """Bytes on the disk on each day of the second year.

    Args:
        bench: with the directory.
        schema: of a keyed dataset.
        rows: of different keys, each with the feature `temperature`.
    """
    bench.say(f"{DAYS} days of corrections of {rows.num_rows:,} rows")
    least = asyncio.run(_stored_once(bench.directory / "once", schema, rows))
    used = asyncio.run(_corrected(bench, schema, rows, segment_bytes=least // SEGMENTS))
    yield Figure(
        f"bytes of {rows.num_rows:,} rows, 1 to 5 % replaced each day, in the second year",
        "B",
        Spread.of(used[YEAR:]),
        (Peer("the same rows, stored once", Spread.of([least])),),
        (Goal("at most", DISK_MAX, of_peer=True),),
    )


async def _stored_once(directory: Path, schema: Schema, rows: pa.Table) -> int:
    world = _World(directory, schema, segment_bytes=SEGMENT_BYTES_MAX)
    await world.ingest(rows)
    await asyncio.to_thread(world.merge_all)
    used = world.bytes
    await world.close()
    return used


async def _corrected(
    bench: Bench, schema: Schema, rows: pa.Table, *, segment_bytes: int
) -> list[int]:
    """Bytes at the end of each day."""
    chance, used = np.random.default_rng(7), list[int]()
    world = _World(bench.directory / "corrected", schema, segment_bytes=segment_bytes)
    await world.ingest(rows)
    place = rows.schema.get_field_index("temperature")
    for day in range(DAYS):
        count = round(rows.num_rows * chance.uniform(*SHARES))
        some = rows.take(pa.array(chance.permutation(rows.num_rows)[:count]))
        values = pa.array(chance.normal(283.0, 12.0, count))
        await world.ingest(some.set_column(place, "temperature", values))
        await asyncio.to_thread(world.pass_a_day)
        used.append(world.bytes)
        if not (day + 1) % YEAR:
            bench.say(f"day {day + 1}: {used[-1]:,} bytes")
    shard = world.node.catalog.shard(schema.name)
    found = shard.graph.describe(frozenset(shard.journals)).observations
    if found != rows.num_rows:
        raise AssertionError(f"expected {rows.num_rows} rows that count, got {found}")
    await world.close()
    return used


class _World:
    """A node with one dataset, and its clock."""

    def __init__(self, directory: Path, schema: Schema, *, segment_bytes: int) -> None:
        self.now_s, self._batches, self._name = 1.4e9, 0, schema.name
        scale = segment_bytes / SEGMENT_BYTES_MAX
        self._merging = CompactionOptions(
            bytes_min=round(scale * COMPACTION_BYTES_MIN),
            bytes_max=round(scale * COMPACTION_BYTES_MAX),
        )
        options = JournalOptions(durability="none", segment_bytes_max=segment_bytes)
        store = Store.open(directory, options, wall=self.wall)
        self.node: StorageNode = lone_node(
            "a", TOPOLOGY, store=store, peers=Network(), options=NodeOptions(merging=None)
        )
        self.node.catalog.adopt(schema.placed_by(TOPOLOGY.range_epoch))
        self._runner = RetentionRunner(
            self.node.catalog,
            RetentionRunnerOptions(check_s=DAY_S, wall=self.wall, monotonic=self.wall),
            readers=lambda _: (),
            holds=lambda _: (),
            compared=lambda _: (),
        )

    def wall(self) -> float:
        return self.now_s

    async def ingest(self, rows: pa.Table) -> None:
        self._batches += 1
        await self.node.ingest.ingest(self._name, rows, producer="p", batch=self._batches)

    def pass_a_day(self) -> None:
        """Blocks."""
        for _ in range(LOOKS):
            self.now_s += LOOK_S
            self._runner.clean(self.node.catalog.versioned_shard(self._name))
            self.merge()
        self.now_s += DAY_S - LOOKS * LOOK_S

    def merge(self, options: CompactionOptions | None = None) -> None:
        for journal in self.node.catalog.shard(self._name).journals.values():
            while journal.merge(options or self._merging, lambda _: True):
                pass

    def merge_all(self) -> None:
        for journal in self.node.catalog.shard(self._name).journals.values():
            journal.seal()
        self.merge(replace(self._merging, bytes_min=1))

    @property
    def bytes(self) -> int:
        """Bytes of all files of the dataset."""
        journals = self.node.catalog.shard(self._name).journals.values()
        return sum(journal.bytes_on_disk for journal in journals)

    async def close(self) -> None:
        await asyncio.to_thread(self._runner.stop)
        await self.node.close()
