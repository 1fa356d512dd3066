"""What is deleted is erased from a whole node: in its files, for readers, and after a start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scanning_node import scanning_node, without_spark

import galileo
from galileo import AsyncClient
from galileo.client.cleaning import CleaningReport
from galileo.errors import DataExpired, UnknownDataset
from galileo.node.dataset_shard import DatasetShard
from galileo.server.node_process import NodeProcess
from galileo.storage.compacted_segment import CompactedSegment

FEATURES = [
    galileo.Feature("station", type="text"),
    galileo.Feature("level", type="int"),
    galileo.Feature("remark", type="text", indexed=False),
]
PLAIN = galileo.Schema("plain", FEATURES, geohash_precision=2, time_bucket="6h")
KEYED = galileo.Schema("keyed", FEATURES, geohash_precision=2, time_bucket="6h", key="station")
TABLE = galileo.Table("people", {"id": "int", "name": "text"}, key="id")
SECTIONS: dict[str, Any] = {
    "storage": {"segment_bytes_max": 4_000, "compaction": False, "durability": "none"},
    "limits": {"interval_min_s": 0.05},
}
PLACES = ((40.0, -100.0), (40.0, 100.0), (-40.0, -100.0), (-40.0, 100.0))


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


def rows_of(first: int, count: int = 40) -> pd.DataFrame:
    """Observations at few places, of which each has a station and a remark of its own."""
    numbers = range(first, first + count)
    return pd.DataFrame(
        {
            "latitude": [PLACES[n % 4][0] for n in numbers],
            "longitude": [PLACES[n % 4][1] for n in numbers],
            "time": pd.to_datetime([1_700_000_000 + n for n in numbers], unit="s", utc=True),
            "station": [f"station-{n:05d}." if n % 3 else "shared" for n in numbers],
            "level": [n % 10 for n in numbers],
            "remark": [f"remark-{n:05d}." for n in numbers],
        }
    )


def stored_bytes(process: NodeProcess, directory: Path) -> bytes:
    """All bytes of all files of the node, and what is compressed in them."""
    parts = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    for shard in process.node.catalog.shards.values():
        for journal in shard.journals.values():
            for segment in journal._segments:
                if isinstance(segment, CompactedSegment):
                    for _, paths, rows in segment.commits():
                        parts += [
                            bytes(buffer)
                            for batch in (paths, rows)
                            for column in batch
                            for buffer in column.buffers()
                            if buffer is not None
                        ]
    return b"\n".join(parts)


def remarks_in(data: bytes, numbers: range) -> set[int]:
    return {n for n in numbers if f"remark-{n:05d}.".encode() in data}


async def cleaned(client: AsyncClient, name: str) -> CleaningReport:
    reports = [report async for report in client.clean_dataset(name)]
    assert not reports[-1].failures
    assert reports[-1].is_over
    assert reports[-1].partitions == reports[-1].partitions_total
    return reports[-1]


async def remarks(client: AsyncClient, name: str, condition: str = "") -> list[str]:
    return sorted((await client.select(name, condition))["remark"].to_pylist())


async def test_bytes_of_deleted_observations_are_gone(tmp_path: Path) -> None:
    directory = tmp_path / "n"
    async with scanning_node(directory, **SECTIONS) as (process, client):
        await client.create_dataset(PLAIN)
        for batch in range(8):
            await client.ingest("plain", rows_of(40 * batch), producer="p", first_batch=batch)
        old = await client.query("plain", "level < 5")
        kept = await client.query("plain", "level >= 5 AND station <> 'shared'")
        every = await remarks(client, "plain")
        await client.delete("plain", "level < 5")
        left = await remarks(client, "plain")
        assert remarks_in(stored_bytes(process, directory), range(320)) == {*range(320)}
        report = await cleaned(client, "plain")
        assert report.rows == len(every) - len(left) == 160
        gone = {n for n in range(320) if n % 10 < 5}
        data = stored_bytes(process, directory)
        assert remarks_in(data, range(320)) == {*range(320)} - gone
        assert b"station-00010." not in data, "nor is an indexed value"
        assert b"station-00008." in data
        assert await remarks(client, "plain") == left
        assert (await client.read(kept)).num_rows == await client.count("plain", kept.query)
        with pytest.raises(DataExpired):
            await client.read(old)
        assert (await cleaned(client, "plain")).files == 0
        receipt = await client.ingest("plain", rows_of(0), producer="p", first_batch=0)
        assert receipt.duplicate_rows == 40
        assert await client.count("plain") == 160
        counts = await client.aggregate("plain", by="station")
        assert counts.to_pandas()["observations"].sum() == 160
    async with scanning_node(directory, **SECTIONS) as (_, client):
        assert await remarks(client, "plain") == left
        assert (await client.describe("plain")).observations == 160
        with pytest.raises(DataExpired):
            await client.read(old)
        await client.delete("plain", "level < 8")
        assert (await cleaned(client, "plain")).rows == 96
        assert await client.count("plain") == 64


async def test_bytes_of_replaced_observations_and_rows_are_gone(tmp_path: Path) -> None:
    directory = tmp_path / "n"
    async with scanning_node(directory, **SECTIONS) as (process, client):
        await client.create_dataset(KEYED)
        await client.create_table(TABLE)
        first = rows_of(0)
        await client.ingest("keyed", first)
        before = (await client.version("keyed")).cursor
        labels = await client.query("keyed", "level < 5")
        await client.ingest("keyed", first.assign(remark=first["remark"] + "second"))
        await client.delete("keyed", "level = 9")
        names = pd.DataFrame({"id": range(9), "name": [f"person-{n}." for n in range(9)]})
        await client.upsert("people", names)
        await client.upsert("people", names.assign(name=names["name"] + "second"))
        await client.delete("people", pd.DataFrame({"id": [3]}))
        left = await remarks(client, "keyed")
        assert (await cleaned(client, "keyed")).rows > 0
        assert (await cleaned(client, "people")).rows > 0
        data = stored_bytes(process, directory)
        assert not any(f"person-{n}.\n".encode() in data for n in range(9))
        assert data.count(b"person-3.") == 0
        assert data.count(b"person-4.second") > 0
        stored = {n for n in range(40) if f"remark-{n:05d}.second".encode() in data}
        assert stored == {int(one[7:12]) for one in left}
        for n in range(40):
            count = data.count(f"remark-{n:05d}.".encode())
            assert count == data.count(f"remark-{n:05d}.second".encode())
        assert await remarks(client, "keyed") == left
        with pytest.raises(DataExpired):
            await client.select("keyed", at=before)
        with pytest.raises(DataExpired):
            await client.read(labels)
        with pytest.raises(DataExpired):
            await client.changes("keyed", before)
        assert (await cleaned(client, "keyed")).files == 0
    async with scanning_node(directory, **SECTIONS) as (_, client):
        assert await remarks(client, "keyed") == left
        with pytest.raises(DataExpired):
            await client.select("keyed", at=before)
        now = (await client.version("keyed")).cursor
        await client.ingest("keyed", first.iloc[:5])
        changed = (await client.changes("keyed", now)).rows
        assert changed.num_rows == 5


def label_keys(labels: galileo.Labels) -> set[str]:
    return {row["label"] for row in labels.to_arrow().to_pylist()}


async def test_reader_before_an_erased_deletion_begins_anew(tmp_path: Path) -> None:
    async with scanning_node(tmp_path / "n", **SECTIONS) as (_, client):
        await client.create_dataset(PLAIN)
        await client.ingest("plain", rows_of(0, 200))
        ccq = await client.submit("plain", "level > 2", interval="50ms", expiration="1h")
        held, token = label_keys(ccq.initial), ccq.token
        await client.delete("plain", "level > 6")
        await cleaned(client, "plain")
        await client.ingest("plain", rows_of(200, 10))
        resets = 0
        async with asyncio.timeout(60):
            while True:
                update = await client.fetch(ccq, token=token, wait="1s")
                if update.reset:
                    held, resets = set(), resets + 1
                held -= label_keys(update.withdrawn)
                held |= label_keys(update.labels)
                token = update.token
                now = label_keys(await client.query("plain", "level > 2"))
                if held == now and not update.more:
                    break
        assert resets == 1
        again = await client.fetch(ccq, token=token)
        assert not again.reset


async def test_pages_begun_before_an_erasing_raise_data_expired(tmp_path: Path) -> None:
    async with scanning_node(tmp_path / "n", **SECTIONS) as (_, client):
        await client.create_dataset(PLAIN)
        await client.ingest("plain", rows_of(0, 100))
        first = await client.select_page("plain", limit=10)
        await client.delete("plain", "level > 6")
        again = await client.select_page("plain", limit=10, after=first.next)
        assert again.table.num_rows == 10
        await cleaned(client, "plain")
        with pytest.raises(DataExpired):
            await client.select_page("plain", limit=10, after=first.next)
        assert (await client.select_page("plain", limit=10)).table.num_rows == 10


async def test_bad_input_and_cancelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scanning_node(tmp_path / "n", **SECTIONS) as (_, client):
        with pytest.raises(UnknownDataset):
            await cleaned(client, "nowhere")
        await client.create_dataset(PLAIN)
        await client.ingest("plain", rows_of(0, 100))
        await client.delete("plain", "level > 6")
        begun, ended, erase = asyncio.Event(), asyncio.Event(), DatasetShard.erase
        loop = asyncio.get_running_loop()

        def slow(self: Any, partition: int, until: int, pace: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            while pace(1):
                pass
            loop.call_soon_threadsafe(ended.set)
            return erase(self, partition, until, pace, **options)

        monkeypatch.setattr(DatasetShard, "erase", slow)
        reports = client.clean_dataset("plain")
        await anext(reports)
        await begun.wait()
        await reports.aclose()
        async with asyncio.timeout(30):
            await ended.wait()
        monkeypatch.undo()
        without_spark(monkeypatch)
        assert (await cleaned(client, "plain")).rows == 30
