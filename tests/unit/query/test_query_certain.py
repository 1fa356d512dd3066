"""Paths that certainly hold matching observations only, and queries that are kept."""

from __future__ import annotations

import numpy as np
import pytest

from galileo.geo import geohash
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros
from galileo.query import FloatColumn, parse

SCHEMA = Schema("nam", [Feature("temperature", "K"), Feature("count", type="int")])
NOON = micros("2012-03-01T12:00:00Z")
BUCKETS = NOON + 3_600_000_000 * np.arange(-2, 3)


def at(buckets):
    cell = np.full(len(buckets), geohash.cell_from_text("9xjqb"), dtype=np.uint64)
    return {"cell": cell, "bucket": np.asarray(buckets, dtype=np.int64)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [True] * 5),
        ("false", [False] * 5),
        ("datetime >= TIMESTAMP('2012-03-01T11:00:00Z')", [False, True, True, True, True]),
        ("datetime >= TIMESTAMP('2012-03-01T11:00:00.000001Z')", [False, False, True, True, True]),
        ("datetime < TIMESTAMP('2012-03-01T12:00:00Z')", [True, True, False, False, False]),
        ("datetime < TIMESTAMP('2012-03-01T12:59:59Z')", [True, True, False, False, False]),
        ("NOT datetime < TIMESTAMP('2012-03-01T12:30:00Z')", [False, False, False, True, True]),
        ("geohash LIKE '9xj%'", [True] * 5),
        ("geohash LIKE '9xjqb1%'", [False] * 5),
        ("geohash NOT LIKE '9xjqb1%'", [False] * 5),
        ("geohash NOT LIKE '9z%'", [True] * 5),
        ("geohash LIKE '9_j%'", [True] * 5),
        ("S_INTERSECTS(geometry, BBOX(-120, 30, -90, 50))", [True] * 5),
        ("S_INTERSECTS(geometry, POINT(-105.0 39.9))", [False] * 5),
        ("S_DISJOINT(geometry, BBOX(0, 0, 1, 1))", [True] * 5),
        ("DWITHIN(geometry, POINT(-105 40), 1000000)", [True] * 5),
        ("NOT DWITHIN(geometry, POINT(5 40), 1000000)", [True] * 5),
        ("geohash LIKE '9z%' OR geohash LIKE '9x%'", [True] * 5),
    ],
)
def test_must_match_paths_space_and_time_excludes_borders(text, expected):
    assert parse(text, SCHEMA).must_match_paths(at(BUCKETS)).tolist() == expected


def test_must_match_paths_features_equals_match_paths():
    columns = {**at(BUCKETS[:3]), "temperature": FloatColumn(np.array([280.0, 300.0, np.nan]))}
    for text in ("temperature > 290", "NOT temperature > 290", "temperature IS NULL"):
        query = parse(text, SCHEMA)
        assert query.must_match_paths(columns).tolist() == query.match_paths(columns).tolist()


def test_parse_same_text_is_cached():
    assert parse("count > 3", SCHEMA) is parse("count > 3", SCHEMA)
    other = Schema("other", SCHEMA.features)
    assert parse("count > 3", other).schema is other
    long = f"count IN ({', '.join(map(str, range(2000)))})"
    assert parse(long, SCHEMA) == parse(long, SCHEMA)
    assert parse(long, SCHEMA) is not parse(long, SCHEMA)
