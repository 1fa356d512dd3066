"""The k nearest observations against sorting all of them, from a store in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import event, given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.geo.circles import EARTH_RADIUS_M, HALFWAY_M, metres
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query import from_arrow, parse
from galileo.query.nearest import (
    COUNT_MAX,
    CountBlocks,
    NearestTo,
    _Blocks,
    first,
    nearest,
    search,
)

SCHEMA = Schema(
    "world", [Feature("t"), Feature("s", type="text")], geohash_precision=4, time_bucket="1d"
)
START = micros("2012-03-01")
HOUR = 3_600_000_000


@dataclass
class Store:
    """Observations in memory; answers a search's questions by looking at all of them."""

    table: pa.Table
    asked: list[str] = field(default_factory=list)

    def answer(self, question):
        self.asked.append(type(question).__name__)
        query = parse(question.query.to_json(), SCHEMA)
        if isinstance(question, CountBlocks):
            return self._labels(query)
        return self.table.filter(pa.array(query.match_observations(self.table)))

    def _labels(self, query):
        if self.table.num_rows == 0:
            return SCHEMA.path_schema.empty_table()
        batch = paths.index(SCHEMA, self.table)[1]
        columns = {name: from_arrow(batch.column(name)) for name in ("t", "s")}
        columns["cell"] = batch.column("cell").to_numpy()
        columns["bucket"] = batch.column("bucket").cast(pa.int64()).to_numpy()
        return pa.Table.from_batches([batch]).filter(pa.array(query.match_paths(columns)))


def world(latitude, longitude, *, seed=0):
    random, count = np.random.default_rng(seed), len(latitude)
    columns = {
        "latitude": np.asarray(latitude, dtype=np.float64),
        "longitude": np.asarray(longitude, dtype=np.float64),
        "time": times_from_micros(START + HOUR * random.integers(0, 48, count)),
        "t": pa.array(random.integers(0, 3, count).astype(float), mask=random.random(count) < 0.2),
        "s": pa.array(random.choice(["a", "b", "ä"], count), mask=random.random(count) < 0.2),
    }
    return pa.table(columns, schema=SCHEMA.observation_schema)


def key(row, latitude, longitude):
    """Nearest first by the straight line through the earth, then the order that is promised."""
    here, there = unit(latitude, longitude), unit(row["latitude"], row["longitude"])
    line = round(math.dist(here, there), 12)
    last = (row["t"] is None, row["t"] or 0, row["s"] is None, (row["s"] or "").encode())
    return line, row["time"], row["latitude"], row["longitude"], last


def unit(latitude, longitude):
    up, around = math.radians(latitude), math.radians(longitude)
    return math.cos(up) * math.cos(around), math.cos(up) * math.sin(around), math.sin(up)


def expected(table, sought):
    matching = table.filter(pa.array(sought.among.match_observations(table))).to_pylist()
    limit = 2 * math.sin(min(sought.within_m / 2 / EARTH_RADIUS_M, math.pi / 2))
    point = (sought.latitude, sought.longitude)
    matching = [row for row in matching if key(row, *point)[0] <= limit + 1e-11]
    ordered = sorted(matching, key=lambda row: key(row, sought.latitude, sought.longitude))
    return ordered[: sought.count]


@st.composite
def worlds(draw):
    """Clusters of observations, on a coarse grid so that some share a place."""
    size, seed = draw(st.integers(0, 400)), draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    centre = draw(st.sampled_from([(40.0, -105.0), (89.5, 0.0), (-90.0, 0.0), (0.0, 179.9)]))
    spread = draw(st.sampled_from([0.01, 1.0, 30.0, 180.0]))
    latitude = np.clip(np.round(random.normal(centre[0], spread, size), 2), -90, 90)
    longitude = (np.round(random.normal(centre[1], spread, size), 2) + 180) % 360 - 180
    return world(latitude, longitude, seed=seed)


points = st.sampled_from([(40.0, -105.0), (90.0, 0.0), (-89.9, 17.0), (0.0, -180.0), (10.0, 75.0)])
queries = st.sampled_from(
    [
        "",
        "t = 1",
        "s = 'a' AND t IS NOT NULL",
        "datetime < TIMESTAMP('2012-03-01T01:00:00Z')",
        "S_INTERSECTS(geometry, BBOX(-106, 39, -104, 39.9)) OR latitude_is_high",
        "false",
    ]
)


def query_of(text):
    return parse(
        text.replace("latitude_is_high", "S_WITHIN(geometry, BBOX(-180,80,180,90))"), SCHEMA
    )


@examples(150)
@given(
    worlds(),
    points,
    queries,
    st.integers(1, 30),
    st.sampled_from([1.0, 5e3, 5e4, 1e6, 3e7]),
    st.sampled_from([0.0, 10.0, 3e4, 2e6, math.inf]),
)
def test_nearest_random_world_equals_sort(table, point, text, count, first_m, within_m):
    sought = NearestTo(*point, count, query_of(text), first_m, within_m)
    store = Store(table)
    found = nearest(store.answer, sought)
    event(f"questions: {len(store.asked)}")
    rows = expected(table, sought)
    assert found.observations.to_pylist() == rows
    here = np.array(unit(*point))
    lines = [np.linalg.norm(here - unit(row["latitude"], row["longitude"])) for row in rows]
    wanted = 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(np.array(lines) / 2, 1))
    assert found.distance_m == pytest.approx(wanted, rel=1e-6, abs=1.0)
    assert (np.diff(found.distance_m) >= 0).all()


@given(worlds(), points, st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_nearest_shuffled_answers_are_the_same(table, point, count, seed):
    shuffled = table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))
    sought = NearestTo(*point, count, query_of(""))
    one, other = (nearest(Store(t).answer, sought).observations for t in (table, shuffled))
    assert one.equals(other)


@given(worlds(), points, queries, st.integers(1, 30), st.integers(1, 4), st.data())
def test_first_random_parts_equals_nearest_of_all(table, point, text, count, parts, data):
    """Each part by itself, its answers cut to what is wanted, in any order."""
    sought = NearestTo(*point, count, query_of(text))
    numbers = np.random.default_rng(7).integers(0, parts, table.num_rows)

    def cut(store):
        def answer(question):
            found = store.answer(question)
            counted = isinstance(question, CountBlocks)
            return found if counted else first([found], sought).observations

        return answer

    stores = [Store(table.filter(pa.array(numbers == part))) for part in range(parts)]
    found = [nearest(cut(store), sought).observations for store in stores]
    merged = first(data.draw(st.permutations(found)), sought)
    assert merged.observations.to_pylist() == expected(table, sought)


def test_nearest_within_m_stops_at_distance():
    store = Store(dense())
    found = nearest(store.answer, NearestTo(-40.0, 75.0, 3, query_of(""), within_m=4e5))
    assert len(found.distance_m) == 0
    assert store.asked == ["CountBlocks", "CountBlocks", "ReadObservations"]


def dense(size=5_000):
    random = np.random.default_rng(5)
    return world(random.uniform(38, 42, size), random.uniform(-107, -103, size))


def test_nearest_dense_first_circle_asks_twice():
    store = Store(dense())
    found = nearest(store.answer, NearestTo(40.0, -105.0, 50, query_of("t > 0"), 1e5))
    assert len(found.distance_m) == 50
    assert store.asked == ["CountBlocks", "ReadObservations"]


def test_blocks_reach_as_far_as_the_nearest_ones_with_so_many_rows():
    sought = NearestTo(40.0, -105.0, 1, query_of(""), 1e5)
    labels = Store(dense()).answer(next(search(sought)))
    boxes = geohash.bounds(labels.column("cell").to_numpy(), SCHEMA.geohash_precision)
    farthest = metres(sought.circle(1e5).farthest(boxes)).tolist()
    blocks, held = _Blocks.of(labels, sought, 1e5), 0
    for distance_m, rows in sorted(zip(farthest, labels.column("rows").to_pylist(), strict=True)):
        for count in (held + 1, held + rows):
            assert blocks.reach_m(count) == pytest.approx(distance_m, rel=1e-6, abs=1e-2)
        held += rows
    assert blocks.reach_m(held + 1) is None


def test_nearest_small_first_circle_grows_once():
    store = Store(dense())
    nearest(store.answer, NearestTo(40.0, -105.0, 500, query_of(""), 2e4))
    assert store.asked == ["CountBlocks", "CountBlocks", "ReadObservations"]


def test_nearest_remote_point_asks_few_times():
    store = Store(dense())
    found = nearest(store.answer, NearestTo(-40.0, 75.0, 3, query_of("")))
    assert len(found.distance_m) == 3
    assert store.asked == ["CountBlocks"] * 4 + ["ReadObservations"]


def test_nearest_selective_condition_reads_few_rings():
    table = dense()
    store = Store(table)
    hour = "datetime < TIMESTAMP('2012-03-01T01:00:00Z')"
    sought = NearestTo(40.0, -105.0, 20, query_of(hour))
    assert nearest(store.answer, sought).observations.to_pylist() == expected(table, sought)
    assert 2 <= store.asked.count("ReadObservations") <= 4
    rings = [q for q in store.asked if q == "ReadObservations"]
    assert len(store.asked) - len(rings) <= 3


def test_nearest_rings_read_each_observation_once():
    table = dense()
    read = []

    def answer(question):
        found = Store(table).answer(question)
        if not isinstance(question, CountBlocks):
            read.extend(found.to_pylist())
        return found

    hour = query_of("datetime < TIMESTAMP('2012-03-01T01:00:00Z')")
    nearest(answer, NearestTo(40.0, -105.0, 40, hour))
    places = [(row["latitude"], row["longitude"], row["time"]) for row in read]
    assert len(places) == len(set(places)) > 0


def test_nearest_fewer_observations_than_count_returns_all():
    table = world([1.0, 2.0], [3.0, 4.0])
    found = nearest(Store(table).answer, NearestTo(0.0, 0.0, 5, query_of("")))
    assert found.observations.column("latitude").to_pylist() == [1.0, 2.0]
    none = nearest(Store(table.slice(0, 0)).answer, NearestTo(0.0, 0.0, 5, query_of("")))
    assert none.observations.schema == SCHEMA.observation_schema
    assert len(none.distance_m) == 0


def test_nearest_antipode_is_found():
    found = nearest(Store(world([-40.0], [75.0])).answer, NearestTo(40.0, -105.0, 1, query_of("")))
    assert found.distance_m[0] == pytest.approx(HALFWAY_M)


@pytest.mark.parametrize(
    ("wrong", "details"),
    [
        ({"latitude": 91.0}, {"expected": "degrees"}),
        ({"longitude": float("nan")}, {"expected": "degrees"}),
        ({"count": 0}, {"parameter": "count", "bound": COUNT_MAX}),
        ({"count": COUNT_MAX + 1}, {"parameter": "count"}),
        ({"first_m": 0.0}, {"parameter": "first_m"}),
        ({"within_m": -1.0}, {"parameter": "within_m"}),
        ({"within_m": math.nan}, {"parameter": "within_m"}),
    ],
)
def test_nearest_to_invalid_argument_raises(wrong, details):
    given_ = {"latitude": 0.0, "longitude": 0.0, "count": 1, "among": query_of("")} | wrong
    with raises(InputError, **details):
        NearestTo(**given_)
