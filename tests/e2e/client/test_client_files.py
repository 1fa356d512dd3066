"""Files and objects of other libraries, ingested by the client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pandas as pd
import pytest
from expected_errors import raises

import galileo
from galileo.client import ingestion
from galileo.errors import InvalidObservations, UnknownDataset, UnknownProperty
from galileo.model.schema import Feature, Schema

Fresh = Callable[[str], str]

ROWS = "lat,lon,time,temp,other\n1,2,2020-01-01,3,x\n4,5,2020-01-02,-9999,y\n7,8,2020-01-03,9,z\n"


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("files")
    client.create_dataset(Schema(name, [Feature("temp")]))
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


def test_ingest_of_a_repeated_file_is_a_duplicate(
    client: galileo.Client, dataset: str, path: Path, tmp_path: Path
) -> None:
    counted: list[int] = []
    first = client.ingest(dataset, path, missing=-9999, progress=counted.append)
    assert (first.rows, first.duplicate_rows, first.skipped) == (2, 0, 1)
    assert sum(counted) == 2
    moved = tmp_path / "moved.csv"
    moved.write_bytes(path.read_bytes())
    again = client.ingest_file(dataset, str(moved), missing={"temp": -9999})
    assert again.duplicate_rows == 0, "another way to read a file is another producer"
    again = client.ingest(dataset, [str(moved), path], missing=-9999)
    assert (again.rows, again.duplicate_rows, again.skipped) == (4, 4, 2)
    assert client.count(dataset) == 4


def test_ingest_of_memory_data_without_producer_stores_again(
    client: galileo.Client, dataset: str, path: Path
) -> None:
    data = pd.read_csv(path)[["lat", "lon", "time", "temp"]]
    for _ in range(2):
        client.ingest(dataset, data, producer="named")
    assert client.count(dataset) == 3
    client.ingest(dataset, iter([data, path]))
    assert client.count(dataset) == 9


def test_ingest_file_with_create_derives_the_schema(
    client: galileo.Client, fresh_name: Fresh, path: Path
) -> None:
    name = fresh_name("created")
    with pytest.raises(UnknownDataset):
        client.ingest_file(name, path)
    with raises(UnknownProperty, nearest="temp"):
        client.ingest_file(name, path, create=True, index=["tmp"])
    path.write_text(ROWS.replace("2020-01-01", "yesterday"))
    with raises(InvalidObservations):
        client.ingest_file(name, path, create=True)
    with pytest.raises(UnknownDataset):
        client.schema(name)
    path.write_text(ROWS)
    options = {"mapping": {"celsius": "temp - 273.15", "other": "other"}, "bucket": "1d"}
    receipt = client.ingest_file(name, path, create=True, index=["other"], **options)
    assert (receipt.created, receipt.rows) == (True, 3)
    schema = client.schema(name)
    assert [(one.name, one.indexed) for one in schema.features] == [
        ("celsius", False),
        ("other", True),
    ]
    again = client.ingest_file(name, path, create=True, **options)
    assert (again.created, again.duplicate_rows) == (False, 3)


async def test_async_ingest_takes_files_and_streams(
    cluster: galileo.LocalCluster, client: galileo.Client, dataset: str, path: Path
) -> None:
    async def paths() -> AsyncIterator[Path]:
        yield path

    async with galileo.AsyncClient(*cluster.addresses) as other:
        receipt = await other.ingest(dataset, paths())
        assert (receipt.rows, receipt.producer[:7]) == (3, "client-")
        assert (await other.ingest_file(dataset, path)).duplicate_rows == 3


def test_ingest_of_an_xarray_dataset_stores_its_values(
    client: galileo.Client, dataset: str
) -> None:
    xarray = pytest.importorskip("xarray")
    grid = xarray.Dataset(
        {"temp": (("lat", "lon"), [[1.0, float("nan")]])},
        {"lat": [1.0], "lon": [2.0, 3.0], "time": pd.Timestamp("2020-01-01")},
    )
    receipt = client.ingest(dataset, grid)
    assert (receipt.rows, receipt.skipped) == (1, 1)
    assert client.select(dataset).column("temp").to_pylist() == [1.0]


async def test_ingest_cancelled_does_not_wait_for_a_slow_file(tmp_path: Path) -> None:
    """A named pipe without a writer is read for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    task = asyncio.create_task(ingestion.in_thread(Path.read_bytes, pipe))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pipe.open("wb"):
        """Lets the thread end."""
