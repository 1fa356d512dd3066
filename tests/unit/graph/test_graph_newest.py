"""The newest observations, against a loop over rows, where times and places are often the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.geo import geohash
from galileo.graph.newest import NewestMerger
from galileo.model.grouping import parse_key
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros

SCHEMA = Schema("air", [Feature("t"), Feature("n", type="int"), Feature("s", type="text")])
ROWS = st.lists(
    st.tuples(
        st.sampled_from([-1.0, 0.0, 1.0]),
        st.sampled_from([-1.0, 0.0, 1.0]),
        st.sampled_from([5, 6]),
        st.sampled_from([None, -1.5, 0.0, 2.0]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=12,
)


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [*zip(*rows, strict=True)] or [()] * 6
    latitude, longitude, time, *features = columns
    named = dict(zip(("t", "n", "s"), features, strict=True))
    return pa.table(
        {
            "latitude": pa.array(latitude, pa.float64()),
            "longitude": pa.array(longitude, pa.float64()),
            "time": times_from_micros(np.array(time, dtype=np.int64)),
            **{f.name: pa.array(named[f.name], f.arrow_type) for f in SCHEMA.features},
        },
        schema=SCHEMA.observation_schema,
    )


def newest_by_loop(rows: list[tuple[Any, ...]], key: Any) -> set[tuple[Any, ...]]:
    """Of each key the row with the greatest time; then the least place, then the least values."""
    newest: dict[Any, tuple[Any, ...]] = {}
    for row in rows:
        rank = (-row[2], row[0], row[1], *((value is None, value or 0) for value in row[3:5]))
        rank = (*rank, row[5] is None, row[5] or "")
        if key(row) not in newest or rank < newest[key(row)][0]:
            newest[key(row)] = (rank, row)
    return {row for _, row in newest.values()}


@pytest.mark.parametrize(
    ("by", "key"),
    [
        ("s", lambda row: row[5]),
        ("n", lambda row: row[4]),
        ("cell:1", lambda row: int(geohash.encode([row[0]], [row[1]], 1)[0])),
    ],
)
@given(parts=st.lists(ROWS, min_size=1, max_size=3))
def test_newest_of_ties_is_that_of_a_loop_in_any_order_of_parts(
    by: str, key: Any, parts: list[list[tuple[Any, ...]]]
) -> None:
    expected = newest_by_loop([row for part in parts for row in part], key)
    for order in (parts, parts[::-1]):
        whole = NewestMerger(parse_key(by), SCHEMA)
        for part in order:
            merger = NewestMerger(parse_key(by), SCHEMA)
            merger.add(table_of(part))
            whole.add(merger.partial())
        times = pa.field("time", pa.int64())
        answer = whole.answer().select(SCHEMA.observation_schema.names)
        answer = answer.set_column(2, times, answer.column("time").cast(pa.int64()))
        assert {tuple(row.values()) for row in answer.to_pylist()} == expected
