"""How a task's rows become numbered batches, and who takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import BatchConflict, InputError
from galileo.model.table import DELETED
from galileo.model.times import times_from_micros
from galileo.spark.source import writing
from galileo.spark.source.writing import BatchNumbers, WriteSpec, Written, send

ROWS = 1_000
SCHEMA = galileo.Schema("air", [galileo.Feature("number", "1", type="int", indexed=False)])
COLUMNS = SCHEMA.observation_schema.names
SENDING = WriteSpec(("127.0.0.1:1",), SCHEMA.to_json(), "sorted", 70)


def made(rows: int = ROWS) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "number": pa.array(numbers),
            "time": times_from_micros(1_330_560_000_000_000 + numbers // 3),
            "longitude": numbers % 360 - 180.0,
            "latitude": numbers % 160 - 80.0,
        }
    )


def shuffled(table: pa.Table, seed: int) -> pa.Table:
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))


@given(
    st.integers(0, 5),
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.integers(1, 300),
    st.sampled_from(["sorted", "as_given"]),
)
def test_send_batches_depend_on_rows_only(
    seed: int, sizes: list[int], batch_rows: int, order: str
) -> None:
    sending = dataclasses.replace(SENDING, order=order, batch_rows=batch_rows)
    whole = made(sum(sizes))
    given_rows = shuffled(whole, seed) if order == "sorted" else whole
    starts = np.cumsum([0, *sizes])
    pieces = [
        batch
        for start, size in zip(starts, sizes, strict=False)
        for batch in given_rows.slice(start, size).combine_chunks().to_batches()
    ]
    tables = list(writing._tables(pieces, sending, columns=COLUMNS))
    assert [table.num_rows for table in tables[:-1]] == [batch_rows] * (len(tables) - 1)
    assert 0 < tables[-1].num_rows <= batch_rows
    keys = [(name, "ascending") for name in ("time", "latitude", "longitude", "number")]
    ordered = whole.sort_by(keys) if order == "sorted" else whole
    assert pa.concat_tables(tables).equals(ordered.select(COLUMNS))


def test_send_too_many_rows_to_sort_are_refused() -> None:
    with pytest.raises(InputError, match="expected fewer than 500 rows in one task"):
        list(writing._tables(made().to_batches(100), SENDING, columns=COLUMNS, rows_sorted_max=500))


def test_send_repeated_task_stores_rows_once(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("sent")
    schema = galileo.Schema(name, SCHEMA.features)
    client.create_dataset(schema)
    sending = dataclasses.replace(
        SENDING, addresses=tuple(cluster.addresses), schema_json=schema.to_json()
    )
    for turn, duplicates in enumerate((0, ROWS)):
        rows = shuffled(made(), turn).to_batches(300)
        assert send(rows, sending, BatchNumbers("job-1", 1, 5)) == Written(ROWS, duplicates)
    assert client.count(name) == ROWS
    with pytest.raises(BatchConflict):
        send(made().slice(1).to_batches(), sending, BatchNumbers("job-1", 1, 5))
    assert send([], sending, BatchNumbers("job-2", 2, 0)) == Written(0, 0)


def test_send_stores_the_rows_of_a_table_and_deletes_others(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("kept")
    columns = {"id": "text", "day": "time", "number": "int"}
    client.create_table(galileo.Table(name, columns, key=["id", "day"]))
    [table] = [one for one in client.tables() if one.name == name]
    sending = WriteSpec(tuple(cluster.addresses), table.to_json(), "sorted", 70, is_table=True)
    ids, days = pa.array([f"s{n % 7}" for n in range(ROWS)]), times_from_micros(np.arange(ROWS))
    rows = pa.table({"id": ids, "day": days, "number": np.arange(ROWS)})
    for turn, duplicates in enumerate((0, ROWS)):
        given_rows = shuffled(rows, turn).to_batches(300)
        assert send(given_rows, sending, BatchNumbers("job-1", 1, 5)) == Written(ROWS, duplicates)
    found = client.table(name).rows.sort_by("number").select(["id", "number"])
    assert found.to_pydict() == rows.select(["id", "number"]).to_pydict()
    with pytest.raises(InputError, match=r"each key \(id, day\) in one row of a write"):
        send([*rows.to_batches(), *rows.slice(3, 1).to_batches()], sending, BatchNumbers("x", 0, 0))

    # As given: the last row of a key counts, also over batches that follow each other closely.
    versions = pa.concat_tables([rows.slice(0, 10)] * 200)
    versions = versions.set_column(2, "number", pa.array(np.arange(2_000)))
    versions = versions.append_column(DELETED, pa.array(np.arange(2_000) % 10 == 9))
    sending = dataclasses.replace(sending, order="as_given", batch_rows=15)
    assert send(versions.to_batches(64), sending, BatchNumbers("job-2", 0, 0)).rows == 2_000
    found = client.table(name).rows
    assert found.num_rows == ROWS - 1
    assert sorted(found["number"].to_pylist()) == [*range(10, ROWS), *range(1_990, 1_999)]
