"""Standing queries find what a loop over single queries finds, whatever they ask."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from parameters import keep_quick

from galileo.cycle import NOT_REQUESTED
from galileo.geo import geohash
from galileo.graph.standing_match import MatchRequests
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros
from galileo.query import Columns, from_arrow, parse
from galileo.query.index import StandingQueries, access_path, normal_form
from galileo.query.index.candidates import PAIRS_AT_ONCE
from galileo.query.index.prefixes import prefixes_from_ranges
from galileo.query.query import Query

FEATURES = [
    Feature("t", "K"),
    Feature("n", type="int"),
    Feature("s", type="text"),
    Feature("b", type="bool"),
]
COARSE = Schema("coarse", FEATURES, geohash_precision=2, time_bucket="1h")
FINE = Schema("fine", FEATURES, geohash_precision=7, time_bucket="1h")
START = micros("2012-03-01T00:00:00Z")
HOUR = 3_600_000_000
SIGNS = ("=", "<>", "<", "<=", ">", ">=")
OTHERS = (
    "CASEI(s) = CASEI('ALPHA')",
    "s LIKE 'a%'",
    "s IS NOT NULL",
    "t IS NULL",
    "n IN (1, 3)",
    "n BETWEEN 1 AND 2",
    "t > n",
    "t * 2 - n <= 1 + n",
    "s <> s",
    "CASEI(s) = CASEI(s)",
    "b = true",
    "b",
    "true",
    "false",
)
TEXTS = ("alpha", "Alpha", "beta", "", "ä/ö")

# --- made-up queries and paths ---------------------------------------------------------------


def _place() -> st.SearchStrategy[str]:
    lon, lat = st.integers(-175, 150), st.integers(-85, 60)
    boxes = st.builds(
        lambda x, y, w, h: f"S_INTERSECTS(geometry, BBOX({x}, {y}, {x + w}, {y + h}))",
        *(lon, lat, st.integers(1, 25), st.integers(1, 25)),
    )
    triangles = st.builds(
        lambda x, y, w, h: (
            f"S_INTERSECTS(geometry, POLYGON(({x} {y}, {x + w} {y}, {x} {y + h}, {x} {y})))"
        ),
        *(lon, lat, st.integers(1, 25), st.integers(1, 25)),
    )
    circles = st.builds(
        lambda x, y, r: f"DWITHIN(geometry, POINT({x} {y}), {r})",
        *(lon, lat, st.integers(1_000, 2_000_000)),
    )
    cells = st.sampled_from(["9%", "9x%", "s0%", "e%", "_x%", "9xjq8y%"])
    return st.one_of(boxes, triangles, circles, cells.map(lambda c: f"geohash LIKE '{c}'"))


def _time() -> st.SearchStrategy[str]:
    hours = st.integers(0, 23)
    after = hours.map(lambda h: f"datetime >= TIMESTAMP('2012-03-01T{h:02}:30:00Z')")
    before = hours.map(lambda h: f"datetime < TIMESTAMP('2012-03-01T{h:02}:00:00Z')")
    until = hours.map(lambda h: f"datetime <= TIMESTAMP('2012-03-01T{h:02}:00:00Z')")
    return st.one_of(after, before, until)


def _feature() -> st.SearchStrategy[str]:
    number = st.sampled_from([-1.5, -1, 0, 0.5, 1, 2, 3, 1e18])
    compared = st.builds(
        lambda name, sign, value: f"{name} {sign} {value}",
        *(st.sampled_from("tn"), st.sampled_from(SIGNS), number),
    )
    texts = st.builds(
        lambda sign, text: f"s {sign} '{text}'",
        *(st.sampled_from(["=", "=", "=", "<", "<>"]), st.sampled_from([*TEXTS, "none"])),
    )
    others = st.sampled_from(OTHERS)
    return st.one_of(compared, texts, others)


def _conditions() -> st.SearchStrategy[str]:
    simple = st.one_of(_place(), _time(), _feature())
    single = st.one_of(simple, simple, simple.map(lambda one: f"NOT ({one})"))
    pair = st.builds(lambda one, other: f"({one} OR {other})", simple, simple)
    return st.lists(st.one_of(single, single, single, pair), max_size=4).map(
        lambda parts: " AND ".join(parts) or "true"
    )


def made_up(seed: int, *, count: int) -> list[str]:
    """Conjunctions of up to three conditions of all kinds."""
    rng = random.Random(seed)
    x, y = (lambda: rng.randint(-175, 150)), (lambda: rng.randint(-85, 60))
    kinds = (
        lambda: f"S_INTERSECTS(geometry, BBOX({(a := x())}, {(b := y())}, {a + 90}, {b + 25}))",
        lambda: f"DWITHIN(geometry, POINT({x()} {y()}), {rng.randint(1_000, 3_000_000)})",
        lambda: f"geohash LIKE '{rng.choice('9sedk')}%'",
        lambda: (
            f"datetime {rng.choice(SIGNS)} TIMESTAMP('2012-03-01T{rng.randint(0, 23):02}:00:00Z')"
        ),
        lambda: f"{rng.choice('tn')} {rng.choice(SIGNS)} {rng.choice([-1, 0, 0.5, 1, 2])}",
        lambda: f"s = '{rng.choice(TEXTS)}'",
        lambda: rng.choice(OTHERS),
    )
    parts = [[rng.choice(kinds)() for _ in range(rng.randint(1, 3))] for _ in range(count)]
    return [rng.choice(["{}", "{}", "{}", "NOT ({})"]).format(" AND ".join(p)) for p in parts]


def paths_of(schema: Schema, *, seed: int, size: int) -> Columns:
    """Paths in few cells, some of their values missing."""
    rng = np.random.default_rng(seed)
    latitude, longitude = rng.uniform(-85, 85, 12), rng.uniform(-175, 175, 12)
    latitude[:4], longitude[:4] = rng.uniform(39, 41, 4), rng.uniform(-106, -104, 4)
    cells = geohash.encode(latitude, longitude, schema.geohash_precision)
    null = rng.random((4, size)) < 0.2
    features = {
        "t": pa.array(rng.integers(-2, 4, size) / 2.0, mask=null[0]),
        "n": pa.array(rng.integers(-1, 4, size), mask=null[1]),
        "s": pa.array(
            np.array(TEXTS, dtype=object)[rng.integers(0, 5, size)], mask=null[2], type=pa.string()
        ),
        "b": pa.array(rng.random(size) < 0.5, mask=null[3]),
    }
    return Columns(
        cells[rng.integers(0, len(cells), size)],
        START + HOUR * rng.integers(0, 24, size),
        {name: from_arrow(array) for name, array in features.items()},
    )


def naive(queries: dict[int, Query], columns: Columns) -> set[tuple[int, int]]:
    return {
        (key, row)
        for key, query in queries.items()
        for row in np.flatnonzero(query.match_paths(columns)).tolist()
    }


def matched(standing: StandingQueries, columns: Columns, keys: list[int]) -> list[tuple[int, int]]:
    slots = standing.slots(keys)
    key_of = dict(zip(slots.tolist(), keys, strict=True))
    found = standing.match(columns, slots=slots)
    return [
        (key_of[slot], row)
        for part in found
        for slot, row in zip(part.slots.tolist(), part.rows.tolist(), strict=True)
    ]


@pytest.fixture(scope="module", autouse=True)
def few_are_many():
    """Ways to candidates that pay for many queries only are taken for few, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access_path, "FEW", 2)
        yield


# --- equal to the loop -----------------------------------------------------------------------


@examples(150)
@given(
    texts=st.lists(_conditions(), min_size=1, max_size=20),
    schema=st.sampled_from([COARSE, FINE]),
    seed=st.integers(0, 1_000),
    size=st.sampled_from([0, 1, 40]),
)
def test_standing_queries_random_queries_equals_loop(texts, schema, seed, size):
    queries = {key: parse(text, schema) for key, text in enumerate(texts)}
    standing = StandingQueries(schema)
    for key, query in queries.items():
        standing.add(key, query)
    columns = paths_of(schema, seed=seed, size=size)
    found = matched(standing, columns, [*queries])
    assert len(set(found)) == len(found)
    assert set(found) == naive(queries, columns)


@pytest.mark.parametrize("schema", [COARSE, FINE])
@pytest.mark.parametrize("seed", keep_quick(range(15), 0, 1, 2, 3))
def test_standing_queries_sixty_queries_equals_loop(schema, seed):
    """Sixty queries of all kinds, so that each kind shares its columns with others."""
    queries = {key: parse(text, schema) for key, text in enumerate(made_up(seed, count=60))}
    standing = StandingQueries(schema)
    for key, query in queries.items():
        standing.add(key, query)
    columns = paths_of(schema, seed=seed, size=80)
    found = matched(standing, columns, [*queries])
    assert len(set(found)) == len(found)
    assert set(found) == naive(queries, columns)


@examples(60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 9), _conditions()),
            st.tuples(st.just("remove"), st.integers(0, 9), st.just("")),
            st.tuples(st.just("match"), st.integers(0, 1_000), st.just("")),
        ),
        max_size=40,
    )
)
def test_standing_queries_random_adds_and_removes_equals_loop(steps):
    standing, queries = StandingQueries(COARSE, dead_min=2), {}
    for kind, number, text in [*steps, ("match", 0, "")]:
        if kind == "add":
            queries.setdefault(number, parse(text, COARSE))
            standing.add(number, parse(text, COARSE))
        elif kind == "remove":
            queries.pop(number, None)
            standing.remove(number)
        else:
            columns = paths_of(COARSE, seed=number, size=20)
            assert set(matched(standing, columns, [*queries])) == naive(queries, columns)
            assert standing.features() == {f for q in queries.values() for f in q.features}
    assert len(standing) == len(queries)


@given(
    seed=st.integers(0, 1_000),
    asks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_standing_queries_resolve_gives_labels_past_each_cursor(seed, asks):
    rng = np.random.default_rng(seed)
    texts = ["t > 0", "s = 'alpha'", "geohash LIKE '9%'", "true", "n = 1 OR b"]
    queries = {key: parse(text, COARSE) for key, text in enumerate(texts)}
    standing = StandingQueries(COARSE)
    for key, query in queries.items():
        standing.add(key, query)
    columns = paths_of(COARSE, seed=seed, size=30)
    partition = rng.integers(0, 5, 30).astype(np.int32)
    sequence = rng.integers(1, 8, 30)
    partitions = np.array([0, 2, 3], dtype=np.int32)
    after = rng.integers(0, 8, (4, 3))
    after[rng.random((4, 3)) < 0.2] = NOT_REQUESTED
    made = MatchRequests(
        standing.slots([key for key, _ in asks]),
        np.array([cursor for _, cursor in asks], dtype=np.int32),
        partitions,
        after,
    )
    found = [
        one
        for part in standing.match(columns, slots=made.slots)
        for one in _answers(made, part, partition, sequence)
    ]
    expected = {
        (number, row)
        for number, (key, cursor) in enumerate(asks)
        for _, row in naive({key: queries[key]}, columns)
        if partition[row] in partitions
        and sequence[row] > after[cursor, np.searchsorted(partitions, partition[row])]
    }
    assert len(set(found)) == len(found)
    assert set(found) == expected


def _answers(made, part, partition, sequence):
    found = made.resolve(part, partition=partition, sequence=sequence)
    return list(zip(found.requests.tolist(), found.rows.tolist(), strict=True))


# --- parts of it -----------------------------------------------------------------------------


@given(precision=st.integers(1, 4), edges=st.lists(st.integers(0, 32**4), max_size=12, unique=True))
def test_prefixes_from_ranges_random_ranges_cover_them(precision, edges):
    edges = sorted({edge % (32**precision + 1) for edge in edges})
    edges = edges[: len(edges) // 2 * 2]
    lo, hi = (np.array(edges[i::2], dtype=np.uint64) for i in (0, 1))
    prefixes = prefixes_from_ranges((lo, hi), precision)
    covered = sorted(
        (prefix << 5 * (precision - length), (prefix + 1) << 5 * (precision - length))
        for length, cells in enumerate(prefixes.by_length)
        for prefix in cells.tolist()
    )
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(covered))
    assert sum(end - first for first, end in covered) == int((hi - lo).sum())
    inside = [
        any(a <= first and end <= b for a, b in zip(lo, hi, strict=True)) for first, end in covered
    ]
    assert all(inside)
    short = prefixes.shortened(5)
    assert len(short) <= max(5, 1)
    spans = [
        (prefix << 5 * (precision - length), (prefix + 1) << 5 * (precision - length))
        for length, cells in enumerate(short.by_length)
        for prefix in cells.tolist()
    ]
    assert all(any(a <= first and end <= b for a, b in spans) for first, end in covered)


def test_standing_queries_more_prefixes_than_maximum_equals_loop():
    query = parse("S_INTERSECTS(geometry, POLYGON((-110 30, -80 30, -90 50, -110 30)))", COARSE)
    form = normal_form.normal_form(query, prefixes_max=4)
    assert form.prefixes is not None
    assert len(form.prefixes) <= 4
    assert form.rest is not None
    standing = StandingQueries(COARSE, prefixes_max=4)
    standing.add(0, query)
    columns = paths_of(COARSE, seed=3, size=200)
    assert set(matched(standing, columns, [0])) == naive({0: query}, columns)


def test_standing_queries_match_many_pairs_is_chunked():
    size = PAIRS_AT_ONCE // 8
    standing = StandingQueries(COARSE)
    queries = {key: parse(f"t >= {key % 30 / 10}", COARSE) for key in range(240)}
    for key, query in queries.items():
        standing.add(key, query)
    columns = paths_of(COARSE, seed=1, size=size)
    parts = list(standing.match(columns))
    assert len(parts) > 3
    assert max(map(len, parts)) <= PAIRS_AT_ONCE + size
    expected = sum(np.count_nonzero(query.match_paths(columns)) for query in queries.values())
    assert sum(map(len, parts)) == expected


@pytest.mark.parametrize(
    "text", ["t > 1 AND s = 'alpha' AND geohash LIKE '9x%'", "n BETWEEN 1 AND 3 AND b = true"]
)
def test_normal_form_simple_conjunction_has_no_rest(text):
    assert normal_form.normal_form(parse(text, COARSE)).rest is None


def test_standing_queries_equal_conditions_are_shared():
    standing = StandingQueries(COARSE)
    for key in range(50):
        standing.add(key, parse(f"s LIKE 'a%' AND t > {key / 25}", COARSE))
    assert len(standing._rest._conditions) == 1
    for key in range(50):
        standing.remove(key)
    assert not standing._rest._conditions


@pytest.mark.parametrize("negated", ["", "NOT "])
def test_standing_queries_untested_cells_equals_loop(negated):
    """A large region in small cells: its border has too many of them."""
    triangle = "S_INTERSECTS(geometry, POLYGON((-110 30, -80 31, -95 48, -110 30)))"
    queries = {0: parse(negated + triangle, FINE), 1: parse(f"{negated}{triangle} AND t > 0", FINE)}
    assert normal_form.normal_form(queries[0]).rest is not None
    along = np.linspace(0.0, 1.0, 400)
    near = np.random.default_rng(1).normal(0.0, 0.002, (2, 400))
    cells = geohash.encode(30 + along + near[0], -110 + 30 * along + near[1], 7)
    columns = paths_of(FINE, seed=1, size=400)
    columns = Columns(cells, columns.bucket, columns.features)
    standing = StandingQueries(FINE)
    for key, query in queries.items():
        standing.add(key, query)
    expected = naive(queries, columns)
    assert 0 < sum(key == 0 for key, _ in expected) < 400
    for _ in range(2):
        assert set(matched(standing, columns, [0, 1])) == expected


def test_standing_queries_removed_slot_matches_nothing():
    standing = StandingQueries(COARSE)
    standing.add(0, parse("true", COARSE))
    slots = standing.slots([0])
    standing.remove(0)
    assert list(standing.match(paths_of(COARSE, seed=1, size=5), slots=slots)) == []


@pytest.mark.slow
def test_standing_queries_remove_frees_memory():
    standing = StandingQueries(COARSE, dead_min=2)
    for key in range(400):
        standing.add(key, parse(f"geohash LIKE '9%' AND s = '{key}'", COARSE))
        standing.remove(key - 3)
    standing._prefixes.build()
    assert standing.capacity == 64
    assert standing.nbytes < 20_000
    (wanted,) = standing._constants.texts.values()
    assert wanted.nbytes < 10_000
