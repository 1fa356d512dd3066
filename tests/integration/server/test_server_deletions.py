"""Readers of continuous queries over a dataset without a key, from which observations are deleted.

A whole node runs in this process. Its cycles scan the graph, as Spark would; all else is real.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scanning_node import scanning_node, without_spark

import galileo
from galileo import AsyncClient

GAUGES = galileo.Schema(
    "gauges",
    [galileo.Feature("station", type="text"), galileo.Feature("level", type="int")],
    geohash_precision=2,
    time_bucket="6h",
)
HIGH = "level > 2"
SECTIONS: dict[str, Any] = {
    "storage": {"compaction": False, "durability": "none"},
    "limits": {"interval_min_s": 0.05},
}
PLACES = ((40.0, -100.0), (40.0, 100.0), (-40.0, -100.0), (-40.0, 100.0))


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with scanning_node(tmp_path, **SECTIONS) as (_, client):
        await client.create_dataset(GAUGES)
        yield client


def reports(chance: random.Random, count: int) -> dict[str, list[Any]]:
    places = [chance.choice(PLACES) for _ in range(count)]
    minutes = [chance.randrange(720) for _ in range(count)]
    return {
        "latitude": [latitude for latitude, _ in places],
        "longitude": [longitude for _, longitude in places],
        "time": [f"2024-01-01T{at // 60:02d}:{at % 60:02d}:00Z" for at in minutes],
        "station": [chance.choice("abc") for _ in range(count)],
        "level": [chance.randrange(6) for _ in range(count)],
    }


async def submit(client: AsyncClient, **options: Any) -> galileo.Ccq:
    return await client.submit("gauges", HIGH, interval="50ms", expiration="1h", **options)


async def test_a_fetch_that_waits_ends_at_the_first_deletion(client: AsyncClient) -> None:
    await client.ingest("gauges", reports(random.Random(1), 60))
    ccq = await submit(client)
    waiting = asyncio.create_task(client.fetch(ccq, token=ccq.token, wait="10s"))
    await asyncio.sleep(0.3)
    begun = time.monotonic()
    await client.delete("gauges", "station = 'a' AND level = 4")
    update = await waiting
    assert update.withdrawn is not None
    assert len(update.withdrawn) > 0
    assert time.monotonic() - begun < 8.0


async def test_a_fetch_waits_on_where_a_deletion_does_not_concern_it(client: AsyncClient) -> None:
    await client.ingest("gauges", reports(random.Random(1), 60))
    ccq = await submit(client)
    waiting = asyncio.create_task(client.fetch(ccq, token=ccq.token, wait="1500ms"))
    await client.delete("gauges", "level = 1")
    begun = time.monotonic()
    update = await waiting
    assert not update.is_news
    assert update.token != ccq.token
    assert time.monotonic() - begun > 1.0
