"""Queries written out: what matches, what zones and bounds say, what the JSON is."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo import interpreter_turns
from galileo.errors import Overloaded
from galileo.geo import geohash, ranges
from galileo.interpreter_turns import interpret
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros
from galileo.offload import INLINE_STEPS_MAX
from galileo.query import (
    BoolColumn,
    Columns,
    FeatureZones,
    FloatColumn,
    IntColumn,
    TextColumn,
    Zones,
    from_arrow,
    parse,
    parse_async,
)
from galileo.query.query import parse_steps

SCHEMA = Schema(
    "nam",
    [
        Feature("temperature", "K"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ],
)
HOUR = 3_600_000_000
NOON = micros("2012-03-01T12:00:00Z")
CELL = geohash.from_text(["9xjqb"])
BUCKETS = NOON + HOUR * np.arange(-2, 3)


def paths(**features):
    count = len(next(iter(features.values()), BUCKETS))
    cell = np.full(count, geohash.cell_from_text("9xjqb"), dtype=np.uint64)
    return {"cell": cell, "bucket": np.full(count, NOON), **features}


def at(buckets):
    cell = np.full(len(buckets), geohash.cell_from_text("9xjqb"), dtype=np.uint64)
    return {"cell": cell, "bucket": np.asarray(buckets, dtype=np.int64)}


def matched(text, columns):
    return parse(text, SCHEMA).match_paths(columns).tolist()


@pytest.mark.parametrize(
    "text", ["", "  \n", "true", "NOT false", "raining OR true", "datetime IS NOT NULL"]
)
def test_parse_always_true_text_is_everything(text):
    query = parse(text, SCHEMA)
    assert query.everything
    assert query.to_json() == "true"
    assert query.cell_ranges() is None
    assert query.time_range() == (None, None)
    assert matched(text, at(BUCKETS)) == [True] * 5


@pytest.mark.parametrize(
    "text",
    [
        "false",
        "raining AND false",
        "geometry IS NULL",
        "datetime < DATE('2012-01-01') AND datetime > DATE('2012-01-01')",
    ],
)
def test_parse_always_false_text_is_nothing(text):
    query = parse(text, SCHEMA)
    lo, hi = query.cell_ranges()
    assert query.to_json() == "false"
    assert len(lo) == len(hi) == 0
    assert query.time_range() == (0, 0)
    assert matched(text, at(BUCKETS)) == [False] * 5


def test_match_paths_missing_value_matches_no_comparison():
    columns = paths(
        temperature=FloatColumn(np.array([280.0, 300.0, np.nan])),
        count=IntColumn(np.array([1, 3, 0]), np.array([True, True, False])),
        station=TextColumn(np.array([0, 1, -1], dtype=np.int32), pa.array(["KDEN", "kbou"])),
        raining=BoolColumn(np.array([1, 0, -1], dtype=np.int8)),
    )
    assert matched("temperature > 290", columns) == [False, True, False]
    assert matched("NOT temperature > 290", columns) == [True, False, False]
    assert matched("temperature <> 280", columns) == [False, True, False]
    assert matched("temperature NOT BETWEEN 290 AND 310", columns) == [True, False, False]
    assert matched("count IN (0, 3)", columns) == [False, True, False]
    assert matched("count NOT IN (3)", columns) == [True, False, False]
    assert matched("station LIKE 'K%'", columns) == [True, False, False]
    assert matched("NOT CASEI(station) LIKE CASEI('KD%')", columns) == [False, True, False]
    assert matched("raining", columns) == [True, False, False]
    assert matched("NOT raining", columns) == [False, True, False]
    assert matched("raining IS NULL OR count IS NULL", columns) == [False, False, True]
    assert matched("station IS NOT NULL", columns) == [True, True, False]


def test_match_paths_plain_arrays_are_columns():
    doubles = paths(temperature=np.array([280.0, np.nan]))
    assert matched("temperature < 290", doubles) == [True, False]
    arrow = paths(count=pa.chunked_array([[1], [None]], type=pa.int64()))
    assert matched("count IS NULL", arrow) == [False, True]


@pytest.mark.parametrize(
    ("text", "expected", "span"),
    [
        (
            "datetime = TIMESTAMP('2012-03-01T12:30:00Z')",
            [0, 0, 1, 0, 0],
            (NOON - HOUR // 2 + 1, NOON + HOUR // 2 + 1),
        ),
        ("datetime >= TIMESTAMP('2012-03-01T13:00:00Z')", [0, 0, 0, 1, 1], (NOON + 1, None)),
        ("datetime > TIMESTAMP('2012-03-01T12:59:59.999999Z')", [0, 0, 0, 1, 1], (NOON + 1, None)),
        ("datetime < TIMESTAMP('2012-03-01T12:00:00Z')", [1, 1, 0, 0, 0], (None, NOON)),
        ("datetime <= TIMESTAMP('2012-03-01T12:00:00Z')", [1, 1, 1, 0, 0], (None, NOON + 1)),
        ("datetime <= TIMESTAMP('2012-03-01T13:00:00+01:00')", [1, 1, 1, 0, 0], (None, NOON + 1)),
        ("datetime > DATE('2012-02-29')", [1] * 5, (micros("2012-03-01") - HOUR + 1, None)),
        ("datetime > DATE('2012-03-01')", [0] * 5, (micros("2012-03-02") - HOUR + 1, None)),
        (
            "datetime = '2012-03-01'",
            [1] * 5,
            (micros("2012-03-01") - HOUR + 1, micros("2012-03-02")),
        ),
        (
            "T_AFTER(datetime, INTERVAL('..','2012-03-01T12:59:59.999999Z'))",
            [0, 0, 0, 1, 1],
            (NOON + 1, None),
        ),
        (
            "T_DURING(datetime, INTERVAL('2012-03-01T12:00:00Z','2012-03-01T13:00:00Z'))",
            [0, 0, 1, 0, 0],
            (NOON - HOUR + 2, NOON + HOUR),
        ),
        (
            "T_INTERSECTS(datetime, INTERVAL('2012-03-01T12:00:00Z','2012-03-01T13:00:00Z'))",
            [0, 0, 1, 1, 0],
            (NOON - HOUR + 1, NOON + HOUR + 1),
        ),
        (
            "T_DISJOINT(datetime, INTERVAL('2012-03-01T11:30:00Z','2012-03-01T12:59:59.999999Z'))",
            [1, 1, 0, 1, 1],
            (None, None),
        ),
        (
            "NOT T_DISJOINT(datetime, INTERVAL('2012-03-01T12:00:00Z','..'))",
            [0, 0, 1, 1, 1],
            (NOON - HOUR + 1, None),
        ),
        ("T_BEFORE(DATE('2012-02-29'), datetime)", [1] * 5, (NOON - 13 * HOUR + 1, None)),
        ("T_AFTER(TIMESTAMP('2012-03-01T12:00:00Z'), datetime)", [1, 1, 0, 0, 0], (None, NOON)),
        ("T_EQUALS(datetime, INTERVAL('2012-03-01','2012-03-02'))", [0] * 5, (0, 0)),
        (
            "datetime <= DATE('9999-12-31') AND datetime >= DATE('0001-01-01')",
            [1] * 5,
            (None, None),
        ),
        ("datetime >= DATE('0100-01-01')", [1] * 5, (micros("0100-01-01") - HOUR + 1, None)),
        ("datetime > DATE('9999-12-31')", [0] * 5, (0, 0)),
    ],
)
def test_match_paths_time_conditions_match_buckets_and_span(text, expected, span):
    query = parse(text, SCHEMA)
    assert query.match_paths(at(BUCKETS)).astype(int).tolist() == expected
    assert query.time_range() == span
    assert parse(query.to_json(), SCHEMA) == query


def test_match_paths_disjoint_time_conditions_match_nothing():
    late, early = "TIMESTAMP('2012-03-01T12:40:00Z')", "TIMESTAMP('2012-03-01T12:20:00Z')"
    text = f"datetime >= {late} AND datetime < {early}"
    assert matched(text, at(BUCKETS)) == [False] * 5


def test_match_paths_geohash_prefix_matches_cells():
    names = ["9xjqb", "9xjqc", "9y123", "c2b25"]
    cells = geohash.from_text(names)
    columns = {"cell": cells, "bucket": np.zeros(4, dtype=np.int64)}
    assert matched("geohash LIKE '9x%'", columns) == [True, True, False, False]
    assert matched("geohash NOT LIKE '9x%'", columns) == [False, False, True, True]
    assert matched("geohash = '9xjqb'", columns) == [True, False, False, False]
    assert matched("geohash IN ('9xjqb', 'c2b25')", columns) == [True, False, False, True]
    assert matched("geohash LIKE '9xjqb7%'", columns) == [True, False, False, False]
    assert matched("geohash NOT LIKE '9xjqb7%'", columns) == [True] * 4
    lo, hi = parse("geohash LIKE '9x%' OR geohash LIKE '9y%'", SCHEMA).cell_ranges()
    low, high = geohash.prefix_range("9x", 5)[0], geohash.prefix_range("9y", 5)[1]
    assert (lo.tolist(), hi.tolist()) == ([low], [high])


def test_match_paths_geohash_wildcard_matches_cells():
    names = ["9xjqb", "9yjqc", "9y123", "cxjqb"]
    columns = {"cell": geohash.from_text(names), "bucket": np.zeros(4, dtype=np.int64)}
    assert matched("geohash LIKE '9_j%'", columns) == [True, True, False, False]
    assert matched("geohash LIKE '_xjqb'", columns) == [True, False, False, True]
    assert matched("geohash NOT LIKE '9_j%'", columns) == [False, False, True, True]
    assert matched("geohash LIKE '9_jq_z%'", columns) == [True, True, False, False]
    assert matched("geohash NOT LIKE '9_jq_z%'", columns) == [True] * 4
    lo, hi = parse("geohash LIKE '9_j%'", SCHEMA).cell_ranges()
    assert len(lo) == 32
    assert ((hi - lo) == 32**2).all()


@pytest.mark.parametrize(
    ("wild", "plain"),
    [
        ("geohash LIKE '9x__%'", "geohash LIKE '9x%'"),
        ("geohash LIKE '9xj__'", "geohash LIKE '9xj%'"),
        ("geohash LIKE '_____'", "true"),
        ("geohash NOT LIKE '_%'", "false"),
        ("NOT geohash LIKE '9_j%%'", "geohash NOT LIKE '9_j__%'"),
    ],
)
def test_parse_equivalent_wildcards_are_equal(wild, plain):
    assert parse(wild, SCHEMA) == parse(plain, SCHEMA)


def test_cell_ranges_combined_conditions_are_combined():
    near, far = "BBOX(-106,39,-105,40)", "BBOX(10,39,11,40)"
    query = parse(f"S_INTERSECTS(geometry, {near})", SCHEMA)
    other = parse(f"S_INTERSECTS(geometry, {far})", SCHEMA)
    either = parse(f"S_INTERSECTS(geometry, {near}) OR S_INTERSECTS(geometry, {far})", SCHEMA)
    both = parse(f"S_INTERSECTS(geometry, {near}) AND S_INTERSECTS(geometry, {far})", SCHEMA)
    loose = parse(f"S_INTERSECTS(geometry, {near}) OR count > 1", SCHEMA)
    union = ranges.union(query.cell_ranges(), other.cell_ranges())
    assert [part.tolist() for part in either.cell_ranges()] == [part.tolist() for part in union]
    assert len(both.cell_ranges()[0]) == 0
    assert loose.cell_ranges() is None
    cell = geohash.encode([39.5], [-105.5], 5)
    assert ranges.contains(query.cell_ranges(), cell).all()


def test_cell_ranges_disjoint_region_includes_border_cells():
    west, south, east, north = (float(v[0]) for v in geohash.bounds(CELL, 5))
    text = f"BBOX({west},{south},{east},{north})"
    columns = {"cell": CELL, "bucket": np.zeros(1, dtype=np.int64)}
    elsewhere = parse(f"S_DISJOINT(geometry, {text})", SCHEMA)
    assert elsewhere.match_paths(columns).tolist() == [False]
    assert not ranges.contains(elsewhere.cell_ranges(), CELL).any()
    assert ranges.contains(elsewhere.cell_ranges(), CELL + np.uint64(1)).all()
    partly = parse(
        f"S_DISJOINT(geometry, BBOX({west},{south},{(west + east) / 2},{north}))", SCHEMA
    )
    assert partly.match_paths(columns).tolist() == [True]
    assert ranges.contains(partly.cell_ranges(), CELL).all()


def test_cell_ranges_not_within_includes_cell_of_region():
    west, south, east, north = (float(v[0]) for v in geohash.bounds(CELL, 5))
    not_within = parse(f"NOT S_WITHIN(geometry, BBOX({west},{south},{east},{north}))", SCHEMA)
    columns = {"cell": CELL, "bucket": np.zeros(1, dtype=np.int64)}
    assert not_within.match_observations(world([south], [west])).tolist() == [True]
    assert not_within.match_paths(columns).tolist() == [True]
    assert ranges.contains(not_within.cell_ranges(), CELL).all()


def number_zones(lo, hi, *, has_null, has_value):
    return FeatureZones(np.array(lo), np.array(hi), np.array(has_null), np.array(has_value))


def zones(**features):
    count = len(next(iter(features.values())).has_null)
    cell, bucket = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.int64)
    return Zones(cell, cell, bucket, bucket, features)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("temperature > 290", [0, 1, 0]),
        ("temperature >= 290", [1, 1, 0]),
        ("temperature < 280", [0, 0, 0]),
        ("temperature <= 280", [1, 0, 0]),
        ("temperature = 285", [1, 0, 0]),
        ("temperature <> 300", [1, 0, 0]),
        ("temperature <> 290", [1, 1, 0]),
        ("temperature <> 280", [1, 1, 0]),
        ("temperature IN (100, 289, 400)", [1, 0, 0]),
        ("temperature IN (300, 400)", [0, 1, 0]),
        ("temperature IN (100)", [0, 0, 0]),
        ("temperature NOT IN (300, 400)", [1, 0, 0]),
        ("temperature IS NULL", [0, 1, 1]),
        ("temperature IS NOT NULL", [1, 1, 0]),
        ("temperature > 290 OR temperature IS NULL", [0, 1, 1]),
        ("temperature > 290 AND temperature < 280", [0, 0, 0]),
        ("station = 'x'", [1, 1, 1]),
    ],
)
def test_may_match_zones_numbers_use_minimum_and_maximum(text, expected):
    known = number_zones(
        [280.0, 300.0, np.nan],
        [290.0, 300.0, np.nan],
        has_null=[False, True, True],
        has_value=[True, True, False],
    )
    verdicts = parse(text, SCHEMA).may_match_zones(zones(temperature=known))
    assert verdicts.astype(int).tolist() == expected


def test_may_match_zones_texts_use_nulls_only():
    known = FeatureZones(None, None, np.array([True, False]), np.array([False, True]))
    verdicts = parse("station = 'x'", SCHEMA).may_match_zones(zones(station=known))
    assert verdicts.tolist() == [False, True]
    unknown = FeatureZones(None, None, np.array([True, False]), np.array([False, True]))
    verdicts = parse("temperature IN (1, 2)", SCHEMA).may_match_zones(zones(temperature=unknown))
    assert verdicts.tolist() == [False, True]


def test_may_match_zones_space_and_time_use_bounds():
    text = "S_INTERSECTS(geometry, BBOX(-106,39,-105,40)) AND datetime >= DATE('2012-03-01')"
    inside, outside = geohash.prefix_range("9xj", 5), geohash.prefix_range("s", 5)
    cell_lo, cell_hi = (
        np.array(ends, dtype=np.uint64) for ends in zip(inside, outside, inside, strict=True)
    )
    late, early = micros("2012-03-05"), micros("2012-01-01")
    bucket = np.array([late, late, early])
    known = Zones(cell_lo, cell_hi - np.uint64(1), bucket, bucket, {})
    assert parse(text, SCHEMA).may_match_zones(known).tolist() == [True, False, False]
    negated = "NOT S_INTERSECTS(geometry, BBOX(-180,-90,0,90))"
    assert parse(negated, SCHEMA).may_match_zones(known).tolist() == [False, True, False]


def test_columns_zones_and_take_keep_values():
    columns = Columns(
        np.array([3, 1, 2], dtype=np.uint64),
        np.array([5, 6, 7]),
        {
            "count": IntColumn(np.array([4, 9, 0]), np.array([True, True, False])),
            "station": TextColumn(np.array([0, -1, -1], dtype=np.int32), pa.array(["a"])),
        },
    )
    made = Zones.of(columns, np.array([0, 2]))
    assert made.cell_lo.tolist() == [1, 2]
    assert made.cell_hi.tolist() == [3, 2]
    assert made.bucket_lo.tolist() == [5, 7]
    assert made.bucket_hi.tolist() == [6, 7]
    count, station = made.features["count"], made.features["station"]
    assert (count.lo[0], count.hi[0]) == (4.0, 9.0)
    assert count.has_null.tolist() == [False, True]
    assert count.has_value.tolist() == [True, False]
    assert station.lo is None
    assert station.has_null.tolist() == [True, True]
    assert station.has_value.tolist() == [True, False]
    assert made.take([1]).cell_lo.tolist() == [2]
    assert columns.take([2, 0]).features["count"].to_arrow().to_pylist() == [None, 4]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, None, float("nan")]),
        pa.array([1, None, -(2**60)]),
        pa.array(["a", None, "a", ""]),
        pa.array([True, None, False]),
        pa.chunked_array([["a"], [None, "b"]]),
        pa.array([None, None], type=pa.string()),
        pa.chunked_array([], type=pa.int64()),
    ],
)
def test_from_arrow_any_type_keeps_values(values):
    expected = [None if value != value else value for value in values.to_pylist()]
    column = from_arrow(values)
    assert column.to_arrow().to_pylist() == expected
    assert column.valid.tolist() == [value is not None for value in expected]
    assert len(column) == len(expected)
    assert column.take(slice(1, None)).to_arrow().to_pylist() == expected[1:]


def test_query_to_json_is_canonical():
    text = "NOT (temperature > 290 OR station IN ('b', 'a')) AND BETWEEN_ = 1"
    schema = Schema("nam", [*SCHEMA.features, Feature("BETWEEN_")])
    assert json.loads(parse(text, schema).to_json()) == {
        "op": "and",
        "args": [
            {"op": "<=", "args": [{"property": "temperature"}, 290.0]},
            {"op": "not", "args": [{"op": "in", "args": [{"property": "station"}, ["a", "b"]]}]},
            {"op": "=", "args": [{"property": "BETWEEN_"}, 1.0]},
        ],
    }


def test_parse_equivalent_texts_are_equal():
    assert parse("temperature > 290", SCHEMA) == parse("NOT 290 >= temperature", SCHEMA)
    assert parse("BBOX_ > 1", Schema("a", [Feature("BBOX_")])) != parse("count > 1", SCHEMA)
    polygon = "S_INTERSECTS(geometry, POLYGON((0 0,1 0,1 1,0 0)))"
    assert len({parse(polygon, SCHEMA), parse(f"NOT NOT {polygon}", SCHEMA)}) == 1


def test_query_features_are_those_named():
    query = parse("count > 1 AND temperature < 5", SCHEMA)
    assert query.features == ("temperature", "count")
    assert parse("S_INTERSECTS(geometry, POINT(1 2))", SCHEMA).features == ()


def test_match_paths_border_beyond_cover_is_exact():
    """A circle whose border has far more cells of full length than a cover may keep."""
    schema = Schema("nam", SCHEMA.features, geohash_precision=8)
    angles = np.linspace(0, 2 * np.pi, 400)
    ring = np.column_stack([10 * np.cos(angles), 10 * np.sin(angles)])
    ring[-1] = ring[0]
    polygon = {"type": "Polygon", "coordinates": [ring.tolist()]}
    for negated in (False, True):
        leaf = {"op": "s_intersects", "args": [{"property": "geometry"}, polygon]}
        query = parse({"op": "not", "args": [leaf]} if negated else leaf, schema)
        angle = np.repeat(np.linspace(0, 6, 500), 3)
        radius = np.tile([9.98, 9.9998, 10.02], 500)
        cell = geohash.encode(radius * np.sin(angle), radius * np.cos(angle), 8)
        found = query.match_paths({"cell": cell, "bucket": np.zeros(len(cell), dtype=np.int64)})
        assert (found[0::3] != negated).all()
        assert (found[2::3] == negated).all()


def test_match_paths_distance_matches_possible_blocks():
    near = parse("DWITHIN(geometry, POINT(-105 40), 50000)", SCHEMA)
    far = parse("NOT S_DWITHIN(POINT(255 40), geometry, 5e4)", SCHEMA)
    latitude = np.array([40.0, 40.44, 40.4496, 40.46, 41.0])
    cell = geohash.encode(latitude, np.full(5, -105.0), 5)
    columns = {"cell": cell, "bucket": np.zeros(5, dtype=np.int64)}
    assert near.match_paths(columns).tolist() == [True, True, True, True, False]
    assert far.match_paths(columns).tolist() == [False, True, True, True, True]
    exact = [near.match_observations(world(latitude, np.full(5, -105.0))).tolist()]
    exact += [far.match_observations(world(latitude, np.full(5, -105.0))).tolist()]
    assert exact == [[True, True, True, False, False], [False, False, False, True, True]]
    assert ranges.contains(near.cell_ranges(), cell).tolist() == [True, True, True, True, False]
    assert not ranges.contains(far.cell_ranges(), cell[:1]).any()


def test_match_observations_zero_and_greatest_distance_are_exact():
    here = parse("DWITHIN(geometry, POINT(-105 40), 0)", SCHEMA)
    assert here.match_observations(world([40.0, 40.000001], [-105.0] * 2)).tolist() == [True, False]
    anywhere = parse("DWITHIN(geometry, POINT(-105 40), 1e300)", SCHEMA)
    assert anywhere.match_observations(world([-40.0, 90.0], [75.0, 0.0])).all()


def test_query_match_by_many_threads_is_right():
    """Fails by ending the process: prepared geometries bear one thread at a time."""
    random = np.random.default_rng(1)
    longitude, latitude = random.uniform(-12, 12, (2, 2_000))
    table = world(latitude, longitude)
    for _ in range(4):
        query = parse(TRIANGLE, SCHEMA)
        with ThreadPoolExecutor(8) as pool:
            counts = set(pool.map(lambda _, q=query: int(matches(q, table)), range(8)))
        assert len(counts) == 1
        assert 0 < counts.pop() < 4_000


def test_match_no_rows_gives_empty_arrays():
    query = parse(f"{TRIANGLE} AND (count > 1 OR station LIKE 'K%') AND raining", SCHEMA)
    empty = SCHEMA.observation_schema.empty_table()
    columns = {name: from_arrow(empty.column(name)) for name in query.features}
    none = {"cell": np.empty(0, dtype=np.uint64), "bucket": np.empty(0, dtype=np.int64), **columns}
    assert query.match_observations(empty).tolist() == []
    assert query.match_paths(none).tolist() == []


def test_query_pickle_round_trip_is_equal():
    query = parse(f"{TRIANGLE} AND count > 1", SCHEMA)
    assert pickle.loads(pickle.dumps(query)) == query


TRIANGLE = "S_INTERSECTS(geometry, POLYGON((-10 -10,10 -10,0 10,-10 -10)))"


def matches(query, table):
    cells = geohash.encode(table.column("latitude"), table.column("longitude"), 8)
    boxes = geohash.bounds(cells, 8)
    region = query.tree.region
    return (
        query.match_observations(table).sum()
        + (region.intersects(boxes) & region.covers(boxes)).sum()
    )


def world(latitude, longitude):
    columns = {"latitude": latitude, "longitude": longitude}
    zeros = np.zeros(len(latitude), dtype=np.int64)
    columns["time"] = pa.array(zeros).cast(pa.timestamp("us", "UTC"))
    nulls = {f.name: pa.nulls(len(latitude), f.arrow_type) for f in SCHEMA.features}
    return pa.table(columns | nulls, schema=SCHEMA.observation_schema)


def triangle(number: int) -> str:
    return f"S_INTERSECTS(geometry, POLYGON((-{number} -80, 170 0, 0 80, -{number} -80)))"


@pytest.mark.parametrize(
    ("text", "is_inline"),
    [
        ("temperature > 290", True),
        (triangle(1), True),
        (" OR ".join(map(triangle, range(1, 5))), False),
        (" OR ".join(["geohash LIKE '9%'"] * 10), False),
        (" OR ".join(f"temperature > {number}" for number in range(300)), False),
    ],
    ids=["short", "region", "regions", "cells", "long"],
)
async def test_parse_async_uses_a_thread_for_long_texts_and_many_regions(
    text: str, is_inline: bool
) -> None:
    assert (parse_steps(text) <= INLINE_STEPS_MAX) is is_inline
    query = await parse_async(text, SCHEMA)
    assert query == parse(text, SCHEMA)
    assert {"_json", "_cell_ranges"} <= vars(query).keys()


async def test_parse_async_of_long_texts_waits_for_its_turn_and_of_short_ones_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over = threading.Event()
    other = asyncio.create_task(interpret(INLINE_STEPS_MAX + 1, is_over.wait, 10.0))
    await asyncio.sleep(0)
    monkeypatch.setattr(interpreter_turns, "WITHIN_S", 0.01)
    with raises(Overloaded):
        await parse_async(triangle(1) + " " * INLINE_STEPS_MAX, SCHEMA)
    assert await parse_async(triangle(1), SCHEMA) == parse(triangle(1), SCHEMA)
    is_over.set()
    assert await other
