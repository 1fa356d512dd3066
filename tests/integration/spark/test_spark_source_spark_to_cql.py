"""Filters as Spark hands them down, against what they mean row by row."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.query import parse
from galileo.spark.source.spark_to_cql import conjunction, conjuncts, push_all, push_implied

SCHEMA = Schema(
    "air",
    [
        Feature("temperature", "K"),
        Feature("count", "1", type="int"),
        Feature("station", "1", type="text"),
        Feature("raining", "1", type="bool"),
        Feature("note", "1", type="text", indexed=False),
    ],
)
NOON_US = 1_330_603_200_000_000
NOON = dt.datetime(2012, 3, 1, 12, tzinfo=dt.UTC)
ROWS = 60


def observations() -> pa.Table:
    """Rows with few different values, so that comparisons meet them; some are missing."""
    random = np.random.default_rng(3)

    def holed(values: list[Any], kind: pa.DataType) -> pa.Array:
        picked = random.integers(0, len(values), ROWS)
        return pa.array([values[i] for i in picked], kind)

    return pa.table(
        [
            pa.array(random.integers(-4, 5, ROWS).astype(float) * 20),
            pa.array(random.integers(-4, 5, ROWS).astype(float) * 45),
            times_from_micros(NOON_US + random.integers(-2, 3, ROWS)),
            holed([None, 270.0, 280.5, 290.0, -0.0], pa.float64()),
            holed([None, -1, 0, 2**53, 2**53 + 1], pa.int64()),
            holed([None, "KDEN", "K%", "K_D", "a\\b", ""], pa.string()),
            holed([None, True, False], pa.bool_()),
            holed([None, "x"], pa.string()),
        ],
        schema=SCHEMA.observation_schema,
    )


TABLE = observations()
VALUES: dict[str, list[Any]] = {
    "latitude": [-80.0, 0, 40.0, float("nan")],
    "longitude": [-180.0, -45.0, 180.0],
    "time": [NOON, NOON + dt.timedelta(microseconds=1)],
    "temperature": [270.0, 280.5, 0.0, float("inf")],
    "count": [-1, 0, 2**53, 2**53 + 1],
    "station": ["KDEN", "K", "%", "_", "\\", "K\\_", ""],
    "raining": [True, False],
    "note": ["x"],
}
COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    spark.EqualTo: lambda a, b: a == b,
    spark.GreaterThan: lambda a, b: a > b,
    spark.GreaterThanOrEqual: lambda a, b: a >= b,
    spark.LessThan: lambda a, b: a < b,
    spark.LessThanOrEqual: lambda a, b: a <= b,
    spark.StringStartsWith: lambda a, b: a.startswith(b),
    spark.StringEndsWith: lambda a, b: a.endswith(b),
    spark.StringContains: lambda a, b: b in a,
}
TEXTS = (spark.StringStartsWith, spark.StringEndsWith, spark.StringContains)


def passes(one: Any, row: dict[str, Any]) -> bool | None:
    """What a filter says of a row in SQL: None for unknown."""
    if isinstance(one, spark.Not):
        inner = passes(one.child, row)
        return None if inner is None else not inner
    value = row[one.attribute[0]]
    if isinstance(one, spark.IsNull | spark.IsNotNull):
        return (value is None) == isinstance(one, spark.IsNull)
    if isinstance(one, spark.EqualNullSafe):
        return bool(value == one.value)
    if value is None:
        return None
    if isinstance(one, spark.In):
        return value in one.value
    return COMPARISONS[type(one)](value, one.value)


@st.composite
def filters(draw: st.DrawFn) -> spark.Filter:
    name = draw(st.sampled_from(sorted(VALUES)))
    path, values = (name,), st.sampled_from(VALUES[name])
    kinds = [*COMPARISONS, spark.In, spark.IsNull, spark.IsNotNull, spark.EqualNullSafe]
    kind = draw(st.sampled_from([k for k in kinds if k not in TEXTS or name in ("station",)]))
    if kind in (spark.IsNull, spark.IsNotNull):
        found = kind(path)
    elif kind is spark.In:
        found = kind(path, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    else:
        found = kind(path, draw(values))
    return spark.Not(found) if draw(st.booleans()) else found


@given(st.lists(filters(), max_size=4))
def test_pushed_and_remaining_filters_equal_all_filters(asked: list[spark.Filter]) -> None:
    found = push_all(asked, SCHEMA, what="observations")
    assert set(map(id, found.remaining)) <= set(map(id, asked)), "by reference, as Spark demands"
    query = parse(conjunction("", found.conditions, SCHEMA), SCHEMA)
    kept = query.match_observations(TABLE)
    rows = TABLE.to_pylist()
    expected = [all(passes(one, row) is True for one in asked) for row in rows]
    got = [
        bool(keep) and all(passes(one, row) is True for one in found.remaining)
        for keep, row in zip(kept, rows, strict=True)
    ]
    assert got == expected


@given(st.lists(filters(), max_size=3), st.lists(filters(), max_size=3))
def test_push_implied_accepts_conditions_of_the_query(
    said: list[spark.Filter], asked: list[spark.Filter]
) -> None:
    query = conjunction("", push_all(said, SCHEMA, what="observations").conditions, SCHEMA)
    found = push_implied([*said, *asked], SCHEMA, query=query, what="observations")
    assert found.conditions == ()
    left = set(map(id, found.remaining))
    matching = parse(query, SCHEMA).match_observations(TABLE)
    for one in (*said, *asked):
        if id(one) not in left:
            assert all(passes(one, row) is True for row in TABLE.filter(matching).to_pylist())


@pytest.mark.parametrize(
    ("one", "condition"),
    [
        (spark.GreaterThan(("temperature",), 290.0), "temperature > 290"),
        (spark.Not(spark.EqualTo(("station",), "a")), "station <> 'a'"),
        (spark.In(("count",), (1, 2)), "count IN (1, 2)"),
        (spark.StringStartsWith(("station",), "K%"), "station LIKE 'K\\%%'"),
        (spark.StringContains(("station",), "D"), "station LIKE '%D%'"),
        (spark.LessThan(("time",), NOON), "datetime < TIMESTAMP('2012-03-01T12:00:00Z')"),
        (spark.EqualTo(("raining",), True), "raining"),
        (spark.IsNull(("count",)), "count IS NULL"),
    ],
)
def test_push_all_converts_exact_filters(one: spark.Filter, condition: str) -> None:
    found = push_all([one], SCHEMA, what="observations")
    assert found.remaining == ()
    assert conjunction("", found.conditions, SCHEMA) == parse(condition, SCHEMA).to_json()
    assert push_implied([one], SCHEMA, query=condition, what="observations").remaining == ()
    assert push_implied([one], SCHEMA, query="", what="observations").remaining == (one,)


@pytest.mark.parametrize(
    "one",
    [
        spark.EqualTo(("note",), "x"),
        spark.EqualTo(("count",), 2**53),
        spark.GreaterThan(("temperature",), float("nan")),
        spark.EqualTo(("station", "inner"), "x"),
        spark.Not(spark.EqualNullSafe(("count",), 1)),
    ],
)
def test_push_all_leaves_filters_without_equivalent(one: spark.Filter) -> None:
    assert push_all([one], SCHEMA, what="observations").remaining == (one,)


def test_push_all_bounds_become_a_box_and_remain() -> None:
    bounds = [
        spark.GreaterThan(("latitude",), 10),
        spark.LessThanOrEqual(("latitude",), 20.0),
        spark.GreaterThanOrEqual(("longitude",), -5.0),
    ]
    found = push_all(bounds, SCHEMA, what="observations")
    assert found.remaining == tuple(bounds)
    [box] = found.conditions
    assert box["args"][1]["bbox"] == pytest.approx([-5, 10, 180, 20], abs=1e-6)
    empty = push_all([*bounds, spark.LessThan(("latitude",), 5)], SCHEMA, what="observations")
    assert empty.conditions == (False,)


def test_cells_of_labels() -> None:
    starts = spark.StringStartsWith(("geohash",), "9x")
    whole = spark.EqualTo(("geohash",), "9xjqb")
    short = spark.EqualTo(("geohash",), "9x")
    bucket = spark.GreaterThan(("bucket",), NOON)
    found = push_all([starts, whole, short, bucket], SCHEMA, what="labels")
    assert found.remaining == (short, bucket)
    assert (
        conjunction("", found.conditions, SCHEMA)
        == parse("geohash LIKE '9x%' AND geohash = '9xjqb'", SCHEMA).to_json()
    )


def test_conjuncts_are_the_conditions_of_a_query() -> None:
    query = "temperature BETWEEN 1 AND 2 AND datetime = DATE('2012-03-01') AND count > 3"
    assert len(conjuncts(query, SCHEMA)) == 5
    assert conjuncts("", SCHEMA) == []
    [either] = conjuncts("temperature > 1 OR count > 3", SCHEMA)
    assert either["op"] == "or"
    assert json.loads(conjunction(query, (), SCHEMA)) == json.loads(parse(query, SCHEMA).to_json())
