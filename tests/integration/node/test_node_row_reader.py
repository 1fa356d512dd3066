from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.dht import placement
from galileo.errors import (
    NAMED_MAX,
    CorruptData,
    InputError,
    PartitionMoved,
    Unavailable,
    UnknownDataset,
)
from galileo.model.rows import FirstRows, RowOptions
from galileo.node import query_limits
from galileo.node.peers import PARTS_SCHEMA, ReadTask
from galileo.node.row_reader import RowReader, first_rows

BOX = "S_INTERSECTS(geometry, BBOX(-100, 10, 40, 33))"


def parts(*rows: tuple[int, int, int, int]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    return pa.table([pa.array(column) for column in columns], names=PARTS_SCHEMA.names).cast(
        PARTS_SCHEMA
    )


async def read(cluster: Any, table: pa.Table, query: str = "", *, at: str = "a") -> pa.Table:
    task = ReadTask("nam", table, query)
    tables = [one async for one in cluster[at].reading.read(task)]
    return pa.concat_tables([cluster.schema.observation_schema.empty_table(), *tables])


def stations(table: pa.Table) -> list[str]:
    return sorted(table.column("station").to_pylist())


async def test_read_exact_returns_matching_observations_only(cluster: Any) -> None:
    table = make_observations(2000)
    await cluster.ingest(table)
    labels = await cluster.ask(f"temperature > 260 AND {BOX}")
    frame = table.to_pandas()
    inside = frame["longitude"].between(-100, 40) & frame["latitude"].between(10, 33)
    expected = frame["station"][inside & (frame["temperature"] > 260)]
    for node in "abc":
        assert stations(await cluster.read(labels, at=node)) == sorted(expected)
    whole = stations(await cluster.read(labels, exact=False))
    assert set(whole) > set(expected), "cells at the edge hold observations outside"
    assert len(whole) == labels.table.column("rows").to_numpy().sum()


async def test_read_returns_observations_as_ingested(cluster: Any) -> None:
    table = make_observations(500)
    await cluster.ingest(table)
    back = await cluster.read(await cluster.ask())
    assert back.sort_by("station").equals(table.sort_by("station"))


async def test_read_finds_partitions_that_moved_meanwhile(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago it began, and however often it happens."""
    monkeypatch.setattr(query_limits, "MOVED_RETRY_S", 0.0)
    table = make_observations(500)
    await cluster.ingest(table)
    labels, moved = await cluster.ask(), list[str]()
    for name in "abc":
        there = cluster[name].reading

        async def local(
            task: ReadTask, name: str = name, read: Any = there.read_local
        ) -> AsyncIterator[pa.Table]:
            if name not in moved:
                moved.append(name)
                raise PartitionMoved("it is on its way")
            async for one in read(task):
                yield one

        monkeypatch.setattr(there, "read_local", local)
    back = await cluster.read(labels)
    assert sorted(moved) == ["a", "b", "c"]
    assert back.sort_by("station").equals(table.sort_by("station"))


async def test_read_of_some_labels_returns_their_rows_only(cluster: Any) -> None:
    await cluster.ingest(make_observations(500))
    labels = await cluster.ask()
    picked = labels.where(np.arange(len(labels)) % 7 == 3)
    assert 0 < len(picked) < len(labels)
    found = await cluster.read(picked)
    assert found.num_rows == picked.table.column("rows").to_numpy().sum()
    whole = set(stations(await cluster.read(labels)))
    assert set(stations(found)) < whole


async def test_read_of_no_parts_is_empty(cluster: Any) -> None:
    await cluster.ingest(make_observations(50))
    assert (await read(cluster, parts())).num_rows == 0


async def test_read_from_an_unreachable_node_is_unavailable(cluster: Any) -> None:
    await cluster.ingest(make_observations(300))
    labels = await cluster.ask()
    cluster.network.away = {"b"}
    with raises(Unavailable, node="b"):
        await cluster.read(labels)
    theirs = placement.partitions_by_node(cluster.topology)["b"]
    ours = labels.where(~np.isin(labels.partitions, list(theirs)))
    assert (await cluster.read(ours)).num_rows > 0


# --- what is refused -----------------------------------------------------------------------------


MISSING_PARTS = {
    "partition": [(999, 1, 0, 1)],
    "commit": [(0, 2, 0, 1), (0, 0, 0, 1), (0, -5, 0, 1)],
    "rows": [(0, 1, -1, 1), (0, 1, 0, 100_000), (0, 1, 5, -1), (0, 1, 2**31 - 1, 2**31 - 1)],
}


@pytest.mark.parametrize("name", MISSING_PARTS)
async def test_read_of_missing_parts_is_an_input_error(cluster: Any, name: str) -> None:
    await cluster.ingest(make_observations(300))
    for part in MISSING_PARTS[name]:
        with raises(InputError):
            await read(cluster, parts(part))


@pytest.mark.parametrize("partition", [999, -1])
async def test_read_local_of_missing_parts_is_an_input_error(cluster: Any, partition: int) -> None:
    await cluster.ingest(make_observations(50))
    for sequence in (-1, 0, 1):
        task = ReadTask("nam", parts((partition, sequence, 0, 1)), "")
        with raises(InputError):
            _ = [table async for table in cluster["a"].reading.read_local(task)]


async def test_read_of_many_missing_partitions_names_some_and_finds_them_in_a_thread(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.ingest(make_observations(50))
    threads = list[threading.Thread]()
    look = RowReader._range_of

    def note(reader: RowReader, table: pa.Table) -> Any:
        threads.append(threading.current_thread())
        return look(reader, table)

    monkeypatch.setattr(RowReader, "_range_of", note)
    many = parts(*((partition, 1, 0, 1) for partition in range(2_000)))
    with pytest.raises(InputError) as caught:
        _ = [t async for t in cluster["a"].reading.read_local(ReadTask("nam", many, ""))]
    assert len(caught.value.details["partitions"]) == NAMED_MAX
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_read_of_an_unknown_dataset_is_an_error(cluster: Any) -> None:
    with pytest.raises(UnknownDataset):
        _ = [t async for t in cluster["a"].reading.read(ReadTask("nan", parts(), ""))]


# --- damage --------------------------------------------------------------------------------------


def flip_last_byte(directory: Path) -> Path:
    """Flips a bit of the observations, which are at the end of a frame."""
    (path,) = directory.glob("*.segment")
    data = bytearray(path.read_bytes())
    data[-100] ^= 0x40
    path.write_bytes(data)
    return path


async def test_read_of_a_damaged_block_is_corrupt_data(cluster: Any) -> None:
    await cluster.ingest(make_observations(600))
    labels = await cluster.ask()
    victim = min(placement.partitions_by_node(cluster.topology)["b"])
    path = flip_last_byte(cluster.directory / "b" / "journals" / "nam" / str(victim))
    for node in "abc":
        with raises(CorruptData, file=str(path)):
            await cluster.read(labels, at=node)
    others = labels.where(labels.partitions != victim)
    assert (await cluster.read(others)).num_rows == others.table.column("rows").to_numpy().sum()
    assert len(await cluster.ask()) == len(labels), "paths are still known"


@pytest.mark.parametrize("sequence", [0, 2, (1 << 32) - 1])
async def test_read_commit_that_is_not_there_raises(cluster: Any, sequence: int) -> None:
    await cluster.ingest(make_observations(500))
    [partition, *_] = (p for node in cluster.nodes for p in node.catalog.shard("nam").journals)
    with raises(InputError, partition=partition, sequence=sequence):
        await read(cluster, parts((partition, sequence, 0, 1)))


async def test_first_rows_close_their_tables_when_they_have_enough() -> None:
    taken = 0

    async def tables() -> AsyncIterator[pa.Table]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield pa.table({"value": range(10)})

    with ThreadPoolExecutor(1) as executor:
        first = first_rows(tables(), FirstRows(RowOptions(limit=15)), executor=executor)
        assert sum([table.num_rows async for table in first]) == 15
    assert taken == 2
