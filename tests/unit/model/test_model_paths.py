"""Paths against a grouping in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.geo import geohash
from galileo.model import paths
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema

SCHEMA = Schema(
    "s",
    [
        Feature("t"),
        Feature("depth", indexed=False),
        Feature("station", type="text"),
        Feature("count", type="int"),
        Feature("wet", type="bool"),
    ],
    geohash_precision=3,
    time_bucket="1h",
)
HOUR_US = 3_600_000_000
INDEXED = ("t", "station", "count", "wet")

floats = st.sampled_from([None, 0.0, -0.0, 1.5, math.inf, -math.inf, 290.5])
texts = st.sampled_from([None, "", "a", "a\0", "b", "é", "~", "a/b"])
ints = st.sampled_from([None, 0, -1, 1, 2**63 - 1, -(2**63), 2**53, 2**53 + 1])
observations = st.fixed_dictionaries(
    {
        "latitude": st.sampled_from([-90.0, 40.0, 40.1, 90.0]),
        "longitude": st.sampled_from([-180.0, 0.0, 180.0]),
        "time": st.sampled_from([-HOUR_US - 1, -HOUR_US, -1, 0, 1, HOUR_US - 1, HOUR_US]),
        "t": floats,
        "depth": st.sampled_from([None, 1.0, 2.0]),
        "station": texts,
        "count": ints,
        "wet": st.sampled_from([None, True, False]),
    }
)
tables = st.lists(observations, min_size=1, max_size=40)


def normalised(rows: list[dict[str, Any]], *, chunks: int = 1) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema=SCHEMA.observation_schema)
    size = max(1, len(rows) // chunks)
    return normalise(SCHEMA, pa.Table.from_batches(table.to_batches(max_chunksize=size)))


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Python compares 0.0 and -0.0 as equal and None only with itself, as paths must."""
    cell = int(geohash.encode([row["latitude"]], [row["longitude"]], 3)[0])
    bucket = row["time"] // HOUR_US * HOUR_US
    return (cell, bucket, *(row[name] for name in INDEXED))


def grouped(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[key_of(row)].append(row)
    return groups


def plain(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python values, times as microseconds."""
    columns = {}
    for name in table.schema.names:
        column = table.column(name)
        columns[name] = (
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        ).to_pylist()
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def sortable(row: dict[str, Any]) -> list[str]:
    return [repr(row[name]) for name in sorted(row)]


@given(tables, st.integers(1, 3))
@example([{"latitude": 0, "longitude": 0, "time": 0} | dict.fromkeys(["depth", *INDEXED])] * 3, 2)
def test_index_random_rows_equals_grouping_in_python(
    rows: list[dict[str, Any]], chunks: int
) -> None:
    table, found = paths.index(SCHEMA, normalised(rows, chunks=chunks))
    assert found.schema.equals(SCHEMA.path_schema)
    found.validate(full=True)
    stored, groups = plain(table), grouped(rows)
    assert found.num_rows == len(groups)
    for path in plain(found):
        key = (path["cell"], path["bucket"], *(path[name] for name in INDEXED))
        below = stored[path["row"] : path["row"] + path["rows"]]
        assert sorted(below, key=sortable) == sorted(groups.pop(key), key=sortable)
    assert not groups


@given(tables)
def test_index_random_rows_paths_cover_rows_without_gaps(rows: list[dict[str, Any]]) -> None:
    table, found = paths.index(SCHEMA, normalised(rows))
    starts, counts = found.column("row").to_pylist(), found.column("rows").to_pylist()
    assert starts == [sum(counts[:i]) for i in range(len(counts))]
    assert sum(counts) == table.num_rows == len(rows)
    order = [(path["cell"], path["bucket"]) for path in plain(found)]
    assert order == sorted(order)


@given(tables)
def test_index_random_rows_orders_each_path_by_time(rows: list[dict[str, Any]]) -> None:
    table, found = paths.index(SCHEMA, normalised(rows))
    stored = plain(table)
    for path in plain(found):
        times = [row["time"] for row in stored[path["row"] : path["row"] + path["rows"]]]
        assert times == sorted(times)


@given(tables)
def test_index_indexed_table_is_unchanged(rows: list[dict[str, Any]]) -> None:
    table, found = paths.index(SCHEMA, normalised(rows))
    again, found_again = paths.index(SCHEMA, table)
    assert again.equals(table)
    assert found_again.equals(found)


@given(tables)
@example([dict.fromkeys(INDEXED) | {"station": text} for text in ("a\0", "a", "", "é", "z")])
def test_index_random_rows_orders_paths_by_level(rows: list[dict[str, Any]]) -> None:
    """Nulls are last among floats and first among the rest; what matters is that they agree."""
    place = {"latitude": 1.0, "longitude": 1.0, "time": 0, "depth": None}
    _, found = paths.index(SCHEMA, normalised([row | place for row in rows]))
    keys = [
        (
            path["t"] is None,
            path["t"],
            *((path[name] is not None, path[name]) for name in INDEXED[1:]),
        )
        for path in plain(found)
    ]
    assert keys == sorted(keys)


def test_index_no_indexed_feature_gives_one_path_per_block() -> None:
    schema = Schema("s", [Feature("t", indexed=False)], geohash_precision=3)
    table = pa.table(
        {"latitude": [1, 1], "longitude": [1, 1], "time": ["1970-01-01"] * 2, "t": [1.0, 2.0]}
    )
    _, found = paths.index(schema, normalise(schema, table))
    assert found.num_rows == 1
    assert found.column("rows").to_pylist() == [2]


@pytest.mark.parametrize(
    ("time_us", "bucket"), [(0, 0), (-1, -HOUR_US), (HOUR_US - 1, 0), (-HOUR_US, -HOUR_US)]
)
def test_buckets_from_table_any_time_gives_start_of_bucket(time_us: int, bucket: int) -> None:
    row = {"latitude": 0.0, "longitude": 0.0, "time": time_us} | dict.fromkeys(["depth", *INDEXED])
    assert paths.buckets_from_table(SCHEMA, normalised([row])).tolist() == [bucket]


def test_cells_from_table_known_place_gives_its_geohash() -> None:
    row = {"latitude": 57.64911, "longitude": 10.40744, "time": 0}
    cells = paths.cells_from_table(SCHEMA, normalised([row | dict.fromkeys(["depth", *INDEXED])]))
    assert cells.dtype == np.uint64
    assert geohash.to_text(cells, 3).to_pylist() == ["u4p"]


# --- against sorting all rows ---------------------------------------------------------------------


def order_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Nulls are last among floats and first among the rest; texts are in the order of bytes."""
    cell, bucket, t, station, count, wet = key_of(row)
    text = (station is not None, (station or "").encode())
    others = [(value is not None, value or 0) for value in (count, wet)]
    return (cell, bucket, (t is None, t or 0.0), text, *others, row["time"])


@st.composite
def stretches(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows as producers bring them: some of one tuple together, mostly in the order of time."""
    few = draw(st.lists(observations, min_size=1, max_size=4))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        row = draw(st.sampled_from(few))
        times = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
        if draw(st.booleans()):
            times.sort()
        rows += [row | {"time": row["time"] + time, "depth": float(len(rows))} for time in times]
    return rows


@given(st.one_of(stretches(), tables))
def test_index_random_rows_equals_stable_sort(rows: list[dict[str, Any]]) -> None:
    """A batch that is sent again is compared with what is stored, so the order is a promise."""
    table, _ = paths.index(SCHEMA, normalised(rows))
    expected = pa.Table.from_pylist(sorted(rows, key=order_key), schema=SCHEMA.observation_schema)
    assert plain(table) == plain(expected)


def places(cells: geohash.Cells, buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Three partitions, distinguished by cell and bucket."""
    numbers = cells.astype(np.int64) + buckets // HOUR_US
    return (numbers % 3).astype(np.int32)


@given(st.one_of(stretches(), tables))
def test_index_parts_random_rows_equals_index_of_each_partition(rows: list[dict[str, Any]]) -> None:
    table = normalised(rows)
    mine = places(paths.cells_from_table(SCHEMA, table), paths.buckets_from_table(SCHEMA, table))
    found = paths.index_parts(SCHEMA, table, place=places)
    assert sorted(found) == sorted(set(mine.tolist()))
    for partition, (part, batch) in found.items():
        expected, derived = paths.index(SCHEMA, table.filter(pa.array(mine == partition)))
        assert plain(part) == plain(expected)
        assert plain(batch) == plain(derived)
        part.validate(full=True)
        batch.validate(full=True)


def test_index_no_rows_gives_no_paths() -> None:
    table, found = paths.index(SCHEMA, SCHEMA.observation_schema.empty_table())
    assert (table.num_rows, found.num_rows) == (0, 0)
    assert found.schema.equals(SCHEMA.path_schema)


def test_index_parts_no_rows_gives_no_parts() -> None:
    assert paths.index_parts(SCHEMA, SCHEMA.observation_schema.empty_table(), place=places) == {}


def test_index_sorted_rows_keeps_buffers() -> None:
    level = dict.fromkeys(["depth", *INDEXED])
    table = normalised(
        [{"latitude": 1.0, "longitude": 1.0, "time": time} | level for time in range(9)]
    )
    found, _ = paths.index(SCHEMA, table)
    addresses = [t.column("latitude").chunk(0).buffers()[1].address for t in (table, found)]
    assert addresses[0] == addresses[1]
