"""Observations found and read in one call, against labels and an exact read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.errors import UnknownProperty
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros

Fresh = Callable[[str], str]


def schema(name: str) -> Schema:
    features = [
        Feature("temperature", "K"),
        Feature("station", type="text"),
        Feature("wet", type="bool"),
        Feature("note", type="text", indexed=False),
    ]
    return Schema(name, features, geohash_precision=3, time_bucket="1h")


def observations(name: str, rows: int) -> pa.Table:
    """Over North America and two days, a tenth of each feature missing; `note` is unique."""
    random = np.random.default_rng(3)

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=random.random(rows) < 0.1)

    columns = [
        pa.array(np.round(random.uniform(25, 50, rows), 3)),
        pa.array(np.round(random.uniform(-125, -65, rows), 3)),
        times_from_micros(micros("2014-03-01") + random.integers(0, 48 * 60, rows) * 60_000_000),
        some(np.round(random.uniform(250, 310, rows))),
        some(random.choice(np.array(["alpha", "beta", "gamma"], dtype=object), rows)),
        some(random.random(rows) < 0.5),
        pa.array([str(number) for number in range(rows)]),
    ]
    return pa.table(columns, schema=schema(name).observation_schema)


@pytest.fixture(scope="module")
def stored(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("selected")
    client.create_dataset(schema(name))
    client.ingest(name, observations(name, 4000), batch_rows=1000)
    return name


def notes(table: pa.Table) -> list[str]:
    return sorted(table.column("note").to_pylist())


@pytest.mark.parametrize(
    "query",
    [
        "",
        "temperature > 280 AND S_INTERSECTS(geometry, POLYGON((-110 30, -90 28, -95 45, -110 30)))",
        "DWITHIN(geometry, POINT(-100 40), 500000) AND datetime < TIMESTAMP('2014-03-01T12:30Z')",
        "NOT DWITHIN(geometry, POINT(-100 40), 500000) AND station IS NULL",
        "temperature > 1000",
    ],
)
def test_select_equals_an_exact_read(client: galileo.Client, stored: str, query: str) -> None:
    read = client.read(client.query(stored, query))
    selected = client.select(stored, query)
    assert selected.schema.equals(read.schema)
    assert selected.sort_by("note").equals(read.sort_by("note"))
    assert client.count(stored, query) == read.num_rows
    some = client.select(stored, query, columns=["note", "wet"])
    assert some.column_names == ["note", "wet"]
    assert notes(some) == notes(read)


@pytest.mark.parametrize("query", ["", "temperature > 280", "temperature > 1000"])
def test_select_batches_equal_select(client: galileo.Client, stored: str, query: str) -> None:
    selected = client.select(stored, query)
    pieces = list(client.select_batches(stored, query))
    whole = pa.concat_tables([selected.schema.empty_table(), *pieces])
    assert whole.schema.equals(selected.schema)
    assert notes(whole) == notes(selected)


def test_select_batches_with_columns_and_limit(client: galileo.Client, stored: str) -> None:
    pieces = list(client.select_batches(stored, columns=["note"], limit=17))
    assert sum(piece.num_rows for piece in pieces) == 17
    assert {name for piece in pieces for name in piece.column_names} == {"note"}


def test_select_batches_of_a_wrong_query_raise_before_a_piece(
    client: galileo.Client, stored: str
) -> None:
    with raises(UnknownProperty, property="temp"):
        next(iter(client.select_batches(stored, "temp > 1")))


async def test_select_batches_closed_early_cancel_the_call(
    cluster: galileo.LocalCluster, stored: str
) -> None:
    async with galileo.AsyncClient(*cluster.addresses) as client:
        pieces = client.select_batches(stored)
        assert (await anext(pieces)).num_rows > 0
        await pieces.aclose()  # type: ignore[attr-defined]
        assert await client.count(stored) == 4000
