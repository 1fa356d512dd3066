"""A dataset that is corrected and cleaned, at a node of this process."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from scanning_node import scanning_node

import galileo
from galileo import AsyncClient
from galileo.clock import SystemClock
from galileo.cursor import Cursor
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.server.node_process import NodeProcess

BUOYS = galileo.Schema(
    "buoys",
    [
        galileo.Feature("station", type="text"),
        galileo.Feature("level", type="int"),
        galileo.Feature("remark", type="text", indexed=False),
    ],
    geohash_precision=2,
    time_bucket="6h",
    key="station",
)
HIGH = "level > 2"
PLACES = ((40.0, -100.0), (40.0, 100.0), (-40.0, -100.0), (-40.0, 100.0))
DAY_S = 86_400.0
SECTIONS: dict[str, Any] = {
    "storage": {"segment_bytes_max": 4_000, "compaction": False, "durability": "none"},
    "limits": {"interval_min_s": 0.05},
}


class Sea:
    """The node, a client, and writers who are seeded.

    Attributes:
        late_s: so much later it is for the cleaner than for the node.
    """

    def __init__(self, process: NodeProcess, client: AsyncClient, seed: int) -> None:
        self.process, self.client, self.chance = process, client, random.Random(seed)
        [self.address] = [node.address for node in process.node.topology.nodes]
        self.late_s, clock = 0.0, SystemClock()
        self.runner = RetentionRunner(
            process.node.catalog,
            RetentionRunnerOptions(
                check_s=3_600.0,
                table_age_s=0.0,
                wall=lambda: clock.wall() + self.late_s,
                monotonic=lambda: clock.monotonic() + self.late_s,
            ),
            readers=process._readers,
            holds=lambda _: (),
            compared=lambda _: (),
        )

    @property
    def shard(self) -> Any:
        return self.process.node.catalog.versioned_shard("buoys")

    async def write(self, batches: int = 1) -> None:
        chance = self.chance
        for _ in range(batches):
            count = chance.randrange(1, 9)
            places = [chance.choice(PLACES) for _ in range(count)]
            rows = {
                "latitude": [latitude for latitude, _ in places],
                "longitude": [longitude for _, longitude in places],
                "time": [f"2024-01-01T{chance.randrange(12):02d}:15:00Z" for _ in range(count)],
                "station": [f"s{chance.randrange(9)}" for _ in range(count)],
                "level": [chance.randrange(9) for _ in range(count)],
                "remark": [f"{chance.random()} " + 100 * "x" for _ in range(count)],
            }
            if chance.random() < 0.25:
                await self.client.delete("buoys", rows)
            else:
                await self.client.ingest("buoys", rows)

    async def clean(self) -> Cursor:
        """Cleans what may be cleaned; up to where that was."""
        for journal in self.shard.own.values():
            await asyncio.to_thread(journal.seal)
        for _ in range(3):  # What is seen twice has settled.
            await asyncio.to_thread(self.runner.clean, self.shard)
        dropped: Cursor = self.shard.dropped()
        return dropped

    async def acknowledged(self, ccq_id: str, cursor: Cursor) -> None:
        """Waits until the leader knows what a reader has acknowledged."""
        async with asyncio.timeout(30):
            while True:
                [held] = [
                    hold
                    for hold in await self.process._records.holds(self.shard.schema.key) or ()
                    if hold.reader == ccq_id
                ]
                if held.position.covers(cursor):
                    return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def sea_of(
    directory: Path, seed: int, *, is_restored: bool = False, schema: galileo.Schema = BUOYS
) -> AsyncIterator[Sea]:
    """The node, with an empty dataset unless its files were restored."""
    async with scanning_node(directory, **SECTIONS) as (process, client):
        if not is_restored:
            await client.create_dataset(schema)
        sea = Sea(process, client, seed)
        try:
            yield sea
        finally:
            await asyncio.to_thread(sea.runner.stop)
