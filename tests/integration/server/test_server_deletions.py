"""Readers of continuous queries over a dataset without a key, from which observations are deleted.

A whole node runs in this process. Its cycles scan the graph, as Spark would; all else is real.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from scanning_node import scanning_node, without_spark
from waiting import until

import galileo
from galileo import AsyncClient
from galileo.errors import HistoryChanged
from galileo.storage.backup import backup, restore

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
WINDOW = galileo.Window.tumbling("6h")
DELETED = ("station = 'a' AND level = 4", "level > 4", "station = 'b'")
Place: TypeAlias = tuple[int, int, int]
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


async def test_an_estimate_bounds_paths_that_deletions_cut(client: AsyncClient) -> None:
    minutes = [f"2024-01-01T00:{minute:02d}:00Z" for minute in range(60)]
    same = {"latitude": [40.0] * 60, "longitude": [-100.0] * 60, "station": ["a"] * 60}
    await client.ingest("gauges", {**same, "time": minutes, "level": [5] * 60})
    estimate = await client.estimate("gauges", HIGH)
    assert estimate.high == len(await client.query("gauges", HIGH)) == 1
    for minute in range(5, 60, 7):
        instant = f"T_EQUALS(datetime, TIMESTAMP('{minutes[minute]}'))"
        assert (await client.delete("gauges", instant)).rows == 1
    paths, estimate = await client.query("gauges", HIGH), await client.estimate("gauges", HIGH)
    assert len(paths) == 9
    assert estimate.low <= len(paths) <= estimate.high <= 10
    assert (await client.estimate("gauges", "level < 3")).high == 0


# --- lost commits --------------------------------------------------------------------------------


def places_of(labels: galileo.Labels) -> dict[Place, int]:
    """The rows of each label by its place."""
    columns = (labels.table[name].to_pylist() for name in ("partition", "sequence", "row", "rows"))
    held = {(p, sequence, row): rows for p, sequence, row, rows in zip(*columns, strict=True)}
    assert len(held) == len(labels), "a label is there twice"
    return held


class Reader:
    """Folds updates as the documentation tells; goes on when commits were lost.

    Attributes:
        held: what matches.
        windows: how many labels each one has.
        resets, losses: how many there were.
    """

    def __init__(self, ccq: galileo.Ccq, *, labels_max: int = 0) -> None:
        self.ccq_id, self.token, self.labels_max = ccq.id, ccq.token, labels_max
        self.held = places_of(ccq.initial)
        self.windows = Counter({one.start: one.labels for one in ccq.windows})
        self.resets = self.losses = 0

    async def fetch(self, client: AsyncClient) -> galileo.Update | None:
        try:
            update = await client.fetch(self.ccq_id, token=self.token, labels_max=self.labels_max)
        except HistoryChanged as error:
            self.token, self.losses = error.details["token"], self.losses + 1
            return None
        if update.reset:
            self.held, self.resets = {}, self.resets + 1
            self.windows.clear()
        for place in places_of(update.withdrawn) if update.withdrawn else ():
            self.held.pop(place, None)
        self.held |= places_of(update.labels)
        self.windows.update({one.start: one.labels for one in update.windows})
        self.token = update.token
        return update

    async def catch_up(self, client: AsyncClient) -> None:
        until = (await client.version("gauges")).cursor
        async with asyncio.timeout(30):
            while True:
                update = await self.fetch(client)
                if update and not update.more and update.labels.frontier.covers(until):
                    return
                if not (update and update.is_news):
                    await asyncio.sleep(0.02)


DELETED = ("station = 'a' AND level = 4", "level > 4", "station = 'b'")


@pytest.mark.parametrize("deletes", [True, False])
async def test_readers_begin_anew_where_a_deletion_was_lost(tmp_path: Path, deletes: bool) -> None:
    """What lost deletions had withdrawn counts again, and nothing else tells which labels."""
    place, copy, chance = tmp_path / "node", tmp_path / "backup", random.Random(1)
    async with scanning_node(place, **SECTIONS) as (process, client):
        await client.create_dataset(GAUGES)
        await client.ingest("gauges", reports(chance, 60))
        await client.delete("gauges", DELETED[0])
        plain, windowed = await submit(client), await submit(client, window=WINDOW)
        readers = [Reader(plain), Reader(plain, labels_max=3), Reader(windowed)]
        for reader in readers:
            await reader.catch_up(client)
        saved = (await client.version("gauges")).cursor
        await asyncio.to_thread(backup, place, copy, now=1.5e9)
        await client.ingest("gauges", reports(chance, 30))
        for condition in DELETED[1:] if deletes else ():
            await client.delete("gauges", condition)
        cursor, view = (await client.version("gauges")).cursor, process.node.view
        if not deletes:  # Until then, later commits may be deletions.
            await until(lambda: not view.with_deletions("gauges", saved, cursor))
        for reader in readers:
            await reader.catch_up(client)
            assert reader.held == places_of(await client.query("gauges", HIGH))
        held = [dict(reader.held) for reader in readers]
    shutil.rmtree(place)
    restore(copy, place, now=1.5e9)
    async with scanning_node(place, **SECTIONS) as (_, client):
        await client.ingest("gauges", reports(chance, 40))
        await client.delete("gauges", DELETED[2])
        matching = places_of(await client.query("gauges", HIGH))
        for reader, before in zip(readers, held, strict=True):
            await reader.catch_up(client)
            assert reader.losses == 1
            assert reader.resets == deletes
            if deletes:
                assert reader.held == matching
            else:
                assert reader.held.items() >= matching.items()
                assert set(reader.held) - set(matching) <= set(before)
        if deletes:
            fresh = Reader(await submit(client, window=WINDOW))
            await fresh.catch_up(client)
            assert readers[2].windows == fresh.windows


async def test_a_spool_begins_anew_where_a_deletion_was_lost(tmp_path: Path) -> None:
    place, copy, chance = tmp_path / "node", tmp_path / "backup", random.Random(2)
    spool = galileo.Spool(tmp_path / "updates.spool")
    async with scanning_node(place, **SECTIONS) as (_, client):
        await client.create_dataset(GAUGES)
        await client.ingest("gauges", reports(chance, 60))
        ccq = await submit(client)
        spool.store(ccq.id, galileo.Update(ccq.initial, ccq.token))
        await asyncio.to_thread(backup, place, copy, now=1.5e9)
        await client.delete("gauges", DELETED[1])
        async with aclosing(client.watch(ccq, spool=spool)) as updates:
            assert (await anext(updates)).withdrawn
    shutil.rmtree(place)
    restore(copy, place, now=1.5e9)
    async with scanning_node(place, **SECTIONS) as (_, client):
        watched = client.watch(ccq, spool=spool)
        with pytest.raises(HistoryChanged):
            await anext(watched)
        async with asyncio.timeout(30):
            assert (await anext(watched)).reset
        await watched.aclose()
        assert places_of(spool.labels()) == places_of(await client.query("gauges", HIGH))
    spool.close()
