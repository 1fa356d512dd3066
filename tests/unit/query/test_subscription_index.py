"""The index of subscriptions finds what a query for each subscription finds."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely
import shapes
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from parameters import keep_quick

from galileo.errors import MessageTooLarge
from galileo.geo.circles import Circle
from galileo.hashing import hash128, mix64
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE, micros
from galileo.query import parse
from galileo.query.builder import query_text
from galileo.query.index import candidates
from galileo.query.subscriptions import (
    MATCH_SCHEMA,
    ParameterQuery,
    RowIndex,
    SubscriptionIndex,
    blocks,
    column_groups,
    point_grid,
    row_index,
    subscription_index,
)
from galileo.query.subscriptions.point_grid import PointGrid
from galileo.query.template import Template

SCHEMA = Schema(
    "air",
    [
        Feature("t"),
        Feature("n", type="int"),
        Feature("s", type="text"),
        Feature("b", type="bool"),
        Feature("w", type="float32"),
    ],
    geohash_precision=3,
    time_bucket="1h",
)
ARROW = {
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "time": TIME_TYPE,
    "geometry": pa.binary(),
}
SIGNS = ("=", "<>", "<", "<=", ">", ">=")
NUMBERS = [-1.5, -0.0, 0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 4.3, 2.0**53, 2.0**53 + 2, 1e300]
SINGLES = np.array([-1.5, -0.0, 0.0, 0.1, 1.0, 4.3, 2.0**53], np.float32)
WHOLE = [-1, 0, 1, 2, 3, 2**53, 2**53 + 1, 2**62]
TEXTS = ["alpha", "Alpha", "beta", "", "ä/ö", "ALPHA", "Straße", "STRASSE"]
START = micros("2012-03-01T00:00:00Z")
TIMES_US = [START + number for number in (-1, 0, 1, 3_600_000_000, 7_200_000_000)]
CONDITIONS = [
    "t > 1",
    "n = 1 OR b",
    "t + 1 > n",
    "",
    "false",
    "s LIKE 'a%'",
    "S_INTERSECTS(geometry, BBOX(0,0,9,9))",
]
AREAS = [
    shapely.box(0, 0, 10, 10),
    shapely.box(10, 0, 20, 10),
    shapely.box(0, 0, 10, 10, ccw=False),
    shapely.box(-180, -90, 180, 90),
    shapely.box(170, -10, 190, 10),
    shapely.box(-200, -10, -170, 10),
    shapely.box(-180, 0, -170, 10),
    shapely.box(170, 0, 180, 10),
    shapely.box(-360, 60, 360, 90),
    shapely.box(-90, -90, 90, -80),
    shapely.Polygon([(0, 0), (10, 0), (0, 10)]),
    shapely.Polygon([(175, 0), (190, 0), (175, 10)]),
    shapely.box(0, 0, 10, 10) - shapely.box(2, 2, 8, 8),
    shapely.MultiPolygon([shapely.box(0, 0, 1, 1), shapely.box(5, 5, 10, 10)]),
    shapely.LineString([(0, 0), (10, 10)]),
    shapely.Point(10, 10),
    shapely.MultiPoint([(0, 0), (180, 0)]),
]
CENTRES = [
    shapely.Point(*place)
    for place in [(0, 0), (10, 10), (180, 0), (-180, 5), (190, 5), (0, 90), (33, -90), (0, 89.9)]
]
RADII_M = [0.0, 1.0, 111_195.08, 1_000_000.0, 5e6, 1.5e7, 20_015_000.0, 1e9]
PLACES = [(0, 0), (10, 10), (5, 5), (10, 0), (180, 0), (-180, 0), (175, 5), (-175, 5), (0, 90)]
PLACES += [(50, 90), (0, -90), (100, 89.95), (0, 9.999999), (-5, 70), (1, 1), (8, 2)]

SIMPLE = [
    "t {sign} :x",
    ":x {sign} t",
    "w {sign} :x",
    "w BETWEEN :x AND :y",
    "n {sign} :x",
    "n BETWEEN :x AND :y",
    "t BETWEEN 0 AND :y",
    "s {sign} :s",
    "CASEI(s) {sign} CASEI(:s)",
    "b = :b",
    "b <> :b",
    "datetime {sign} :time",
    "S_INTERSECTS(geometry, :area)",
    "S_INTERSECTS(geometry, :area)",
    "S_WITHIN(geometry, :area)",
    "S_DWITHIN(geometry, :place, :radius)",
    "S_DWITHIN(:place, geometry, 1000000)",
    "DWITHIN(geometry, POINT(190 5), :radius)",
]
GENERAL = [
    "S_DISJOINT(geometry, :area)",
    "NOT S_WITHIN(geometry, :area)",
    "(t > :x OR S_INTERSECTS(geometry, :area))",
    "NOT (n > :x)",
    "w IN (:x, :y)",
    "(w = :x AND t >= :x)",
    "n IN (:x, :y, 1)",
    "t + :x > n",
    "n * 2 - 1 < :x",
    "t > n / :x",
    "t {sign} n AND t <> n * :x",
    "s IN (:s, 'beta')",
    "s LIKE :s",
    "CASEI(s) = :s",
    ":query",
    "(NOT :query OR b)",
    "T_AFTER(datetime, :time)",
    "geohash LIKE 's0%' AND t > :x",
    "(DWITHIN(geometry, :place, :radius) OR datetime < :time)",
]
CONSTANT = ["t > 0", "b", "S_INTERSECTS(geometry, BBOX(-10, -10, 90, 90))", "n IS NOT NULL"]


class History:
    """A template, and subscriptions in a dictionary."""

    def __init__(self, seed: int, *, simple: bool) -> None:
        self.random = np.random.default_rng(seed)
        kinds = SIMPLE if simple else [*SIMPLE, *GENERAL, *GENERAL]
        parts = [self._one(kinds) for _ in range(self.random.integers(1, 4))]
        if not simple:
            parts.append(self._one(GENERAL))
        parts += [self._one(CONSTANT)] * int(self.random.integers(0, 2))
        signs = [self._one(SIGNS) for _ in parts]
        self.text = " AND ".join(
            part.format(sign=sign) for part, sign in zip(parts, signs, strict=True)
        )
        self.query = ParameterQuery(self.text, SCHEMA)
        self.index = SubscriptionIndex(self.query)
        self.subscriptions: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self.pool = [self._values() for _ in range(6)]

    def _one(self, items: Any) -> Any:
        return items[self.random.integers(len(items))]

    def _values(self) -> tuple[Any, ...]:
        return tuple(self._value(name) for name, _ in self.query.parameters)

    def _value(self, name: str) -> Any:
        if name == "area" and self.random.random() < 0.3:
            shape = shapes.drawn(self.random)
            return self._value(name) if shape is None else shape
        values: dict[str, Any] = {"x": NUMBERS, "y": NUMBERS, "s": TEXTS, "b": [True, False]}
        values |= {"area": AREAS, "place": CENTRES, "radius": RADII_M, "query": CONDITIONS}
        if name == "time":
            return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(
                microseconds=int(self._one(TIMES_US))
            )
        return self._one(values[name])

    def apply(self, count: int) -> None:
        """Change so many of 60 subscriptions, some of which are there."""
        ids = [f"sub-{number}" for number in self.random.permutation(60)[:count]]
        deleted = self.random.random(count) < self._one([0.1, 0.5, 0.9])
        brokers = [self._one(["north", "south", "east"]) for _ in ids]
        values = [
            self._one(self.pool) if self.random.random() < 0.6 else self._values() for _ in ids
        ]
        self.index.apply(self._changes(ids, deleted.tolist(), brokers, values))
        for id_, gone, broker, row in zip(ids, deleted, brokers, values, strict=True):
            self.subscriptions.pop(id_, None)
            if not gone:
                self.subscriptions[id_] = (broker, row)

    def _changes(self, ids: Any, deleted: Any, brokers: Any, values: Any) -> pa.Table:
        """Deleted ones have no values."""
        columns = {"id": ids, "deleted": pa.array(deleted, pa.bool_())}
        columns["broker"] = pa.array(brokers, pa.string(), mask=np.array(deleted, dtype=bool))
        for number, (name, kind) in enumerate(self.query.parameters):
            items = [
                None if gone else row[number] for gone, row in zip(deleted, values, strict=True)
            ]
            if kind == "geometry":
                items = [None if item is None else shapely.to_wkb(item) for item in items]
            columns[name] = pa.array(items, ARROW[kind])
        return pa.table(columns)

    def observations(self, count: int) -> pa.Table:
        place = self.random.integers(0, len(PLACES), count)
        longitude, latitude = np.array(PLACES, dtype=float)[place].reshape(-1, 2).T
        apart = self.random.random(count) < 0.5
        longitude = np.where(apart, self.random.uniform(-180, 180, count), longitude)
        latitude = np.where(apart, self.random.uniform(-90, 90, count), latitude)
        areas = [values[number] for values in self.pool for number in self._numbers("area")]
        if areas:
            x, y = shapes.points_about(self._one(areas), self.random)
            taken = self.random.integers(0, len(x), count)
            at = self.random.random(count) < 0.5
            longitude, latitude = (
                np.where(at, x[taken], longitude),
                np.where(at, y[taken], latitude),
            )
        null = self.random.random((5, count)) < 0.2
        return pa.table(
            {
                "latitude": latitude,
                "longitude": longitude,
                "time": pa.array(self.random.choice(TIMES_US, count), TIME_TYPE),
                "t": pa.array(self.random.choice(NUMBERS, count), mask=null[0]),
                "n": pa.array(self.random.choice(WHOLE, count), pa.int64(), mask=null[1]),
                "s": pa.array([self._one(TEXTS) for _ in range(count)], pa.string(), mask=null[2]),
                "b": pa.array(self.random.random(count) < 0.5, mask=null[3]),
                "w": pa.array(self.random.choice(SINGLES, count), mask=null[4]),
            }
        ).cast(SCHEMA.observation_schema)

    def _numbers(self, name: str) -> list[int]:
        return [number for number, (known, _) in enumerate(self.query.parameters) if known == name]

    def expected(self, observations: pa.Table) -> set[tuple[str, str, int]]:
        template, names = Template(self.text), [name for name, _ in self.query.parameters]
        return {
            (id_, broker, row)
            for id_, (broker, values) in self.subscriptions.items()
            for row in np.flatnonzero(
                parse(
                    query_text(template(**dict(zip(names, values, strict=True)))), SCHEMA
                ).match_observations(observations)
            ).tolist()
        }

    def check(self, observations: pa.Table) -> int:
        """Compare the matches; returns how many there are."""
        batch = self.index.match(RowIndex(self.index.query, observations))
        batch.validate(full=True)
        assert batch.schema == MATCH_SCHEMA
        records = batch.to_pylist()
        found = [
            (id_, record["broker"], row)
            for record in records
            for id_ in record["subscriptions"]
            for row in record["rows"]
        ]
        assert all(record["rows"] == sorted(set(record["rows"])) for record in records)
        assert len(set(found)) == len(found), self.text
        assert set(found) == self.expected(observations), self.text
        groups = [
            {
                (record["broker"], plain(self.subscriptions[id_][1]))
                for id_ in record["subscriptions"]
            }
            for record in records
        ]
        assert all(len(group) == 1 for group in groups)
        assert len(self.index) == len(self.subscriptions)
        return len(found)


def plain(values: tuple[Any, ...]) -> str:
    """A text that is the same for values that mean the same."""
    zeros = (value + 0.0 if isinstance(value, float) else value for value in values)
    return str([shapely.normalize(v) if isinstance(v, shapely.Geometry) else v for v in zeros])


@pytest.fixture
def few_are_many(monkeypatch):
    """Columns are merged, cut into pieces and cleaned as if there were many subscriptions."""
    monkeypatch.setattr(blocks, "FAN", 3)
    monkeypatch.setattr(blocks, "SMALL", 4)
    monkeypatch.setattr(subscription_index, "EMPTY_GROUPS_MIN", 2)
    monkeypatch.setattr(column_groups, "GROUPS_AT_ONCE", 8)
    monkeypatch.setattr(column_groups, "RUNS", 3)
    monkeypatch.setattr(candidates, "PAIRS_AT_ONCE", 16)
    monkeypatch.setattr(point_grid, "PAIRS_AT_ONCE", 16)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("simple", keep_quick([True, False], True))
def test_random_histories_find_what_queries_of_all_subscriptions_find(simple: bool) -> None:
    @examples(60)
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        history = History(seed, simple=simple)
        for count in history.random.integers(0, 40, 5).tolist():
            history.apply(count)
            history.apply(count // 8)
            history.check(history.observations(int(history.random.integers(0, 60))))

    check()


# --- at their usual sizes --------------------------------------------------------------------


def changes_of(count: int, **values: Any) -> pa.Table:
    ids = [f"{number:08x}" for number in range(count)]
    columns = {"id": ids, "broker": ["b"] * count, "deleted": pa.array([False] * count)}
    return pa.table(columns | values)


def rows_of(longitude: Any, latitude: Any) -> pa.Table:
    count = len(longitude)
    nulls = {name: pa.nulls(count, SCHEMA.observation_schema.field(name).type) for name in "tnsb"}
    times = pa.array(np.full(count, START), TIME_TYPE)
    return pa.table({"latitude": latitude, "longitude": longitude, "time": times} | nulls)


def pairs_of(batch: pa.RecordBatch) -> set[tuple[int, int]]:
    return {
        (int(id_, 16), row)
        for record in batch.to_pylist()
        for id_ in record["subscriptions"]
        for row in record["rows"]
    }


@pytest.mark.parametrize("together", [False, True])
def test_thousands_of_boxes_find_their_points(together: bool) -> None:
    """Also where all but one of the points are in one town."""
    random, count = np.random.default_rng(1), 3_000
    width = 0.2 if together else 150.0
    west, south = random.uniform(-width / 2, width / 2, (2, count)).round(3)
    east, north = np.array([west, south]) + random.uniform(
        width / 100, width / 30, (2, count)
    ).round(3)
    x, y = random.uniform(-width / 2, width / 2, (2, 400)).round(3)
    x[0], y[0] = 179.0, 89.0
    boxes = pa.array(shapely.to_wkb(shapely.box(west, south, east, north)), pa.binary())
    index = SubscriptionIndex(ParameterQuery("S_INTERSECTS(geometry, :area)", SCHEMA))

    index.apply(changes_of(count, area=boxes))

    inside = (west[:, None] <= x) & (x <= east[:, None])
    inside &= (south[:, None] <= y) & (y <= north[:, None])
    assert pairs_of(index.match(RowIndex(index.query, rows_of(x, y)))) == set(
        map(tuple, np.argwhere(inside).tolist())
    )
    assert index.nbytes <= count * (120 + 8)


def test_rows_are_indexed_once_for_indices_that_match_in_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[PointGrid]()

    def make(*places: Any) -> PointGrid:
        made.append(PointGrid(*places))
        return made[-1]

    monkeypatch.setattr(row_index, "PointGrid", make)
    query = ParameterQuery("S_INTERSECTS(geometry, :area)", SCHEMA)
    indices = [SubscriptionIndex(query) for _ in range(8)]
    for number, index in enumerate(indices):
        area = shapely.box(number, 0.0, number + 1.5, 1.0)
        index.apply(changes_of(1, area=pa.array([shapely.to_wkb(area)])))
    rows = RowIndex(query, rows_of([0.5, 4.2, 20.0], [0.5, 0.5, 0.5]))
    with ThreadPoolExecutor(8) as pool:
        found = [pairs_of(one) for one in pool.map(lambda index: index.match(rows), indices)]
    assert found == [{(0, 0)}, set(), set(), {(0, 1)}, {(0, 1)}, set(), set(), set()]
    assert len(made) == 1


def test_thousands_of_circles_find_their_points() -> None:
    random, count = np.random.default_rng(2), 2_000
    places, x = random.uniform(-180, 180, (2, count)), random.uniform(-180, 180, 300)
    places[1] /= 2
    y = random.uniform(-90, 90, 300)
    radii_m = 10 ** random.uniform(3, 6.5, count)
    index = SubscriptionIndex(ParameterQuery("DWITHIN(geometry, :place, :radius)", SCHEMA))
    points = pa.array(shapely.to_wkb(shapely.points(places.T)), pa.binary())

    index.apply(changes_of(count, place=points, radius=radii_m))

    expected = {
        (number, row)
        for number, (longitude, latitude) in enumerate(places.T.tolist())
        for row in np.flatnonzero(
            Circle(latitude, longitude, radii_m[number]).intersects_points(y, x)
        ).tolist()
    }
    assert pairs_of(index.match(RowIndex(index.query, rows_of(x, y)))) == expected
    assert index.nbytes <= count * (120 + 8)


def test_subscriptions_with_equal_values_share_memory_and_records() -> None:
    count = 50_000
    index = SubscriptionIndex(ParameterQuery("t > :x", SCHEMA))
    thresholds = np.arange(count) % 7
    rows = rows_of(np.zeros(5), np.zeros(5)).set_column(3, "t", pa.array([0.5, None, 6.5, 9, -3]))

    for part in range(0, count, 10_000):
        index.apply(changes_of(count, x=thresholds.astype(float)).slice(part, 10_000))

    batch = index.match(RowIndex(index.query, rows))
    assert len(index) == count
    assert index.nbytes <= count * (28 + 8)
    assert batch.num_rows == 7
    assert batch.column("rows").to_pylist() == [[0, 2, 3], *[[2, 3]] * 6]
    assert sum(map(len, batch.column("subscriptions").to_pylist())) == count


def test_match_of_an_empty_index_or_of_no_rows_is_empty() -> None:
    index = SubscriptionIndex(ParameterQuery("t > :x AND b", SCHEMA))
    rows = rows_of(np.zeros(2), np.zeros(2))

    assert index.match(RowIndex(index.query, rows)).num_rows == 0
    index.apply(changes_of(0, x=pa.array([], pa.float64())))
    index.apply(changes_of(2, x=[0.0, 1.0]))
    assert index.match(RowIndex(index.query, rows.slice(0, 0))).num_rows == 0
    assert index.match(RowIndex(index.query, rows)) == pa.RecordBatch.from_pylist(
        [], schema=MATCH_SCHEMA
    )


@pytest.mark.parametrize("text", ["b = :b", "NOT (b = :b)"])
def test_more_matches_than_the_bound_are_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_index, "MATCHES_MAX", 3)
    index = SubscriptionIndex(ParameterQuery(text, SCHEMA))
    index.apply(changes_of(2, b=[True, False]))
    rows = rows_of(np.zeros(4), np.zeros(4)).set_column(6, "b", pa.array([True] * 4))

    assert index.match(RowIndex(index.query, rows.slice(0, 3))).num_rows == 1
    with raises(MessageTooLarge, bound=3):
        index.match(RowIndex(index.query, rows))


def colliding_texts() -> tuple[str, str]:
    """Two different texts with one 64-bit hash: the second words make up for the first ones."""

    def first_half(text: bytes) -> np.uint64:
        return hash128([pa.array([text], pa.binary())])[0, 0]

    firsts = [f"{number:08}".encode() for number in range(5_000)]
    hashes = np.array([_state(first) for first in firsts])
    second = np.frombuffer(b"any word", dtype="<u8")[0]
    for number in range(1, len(firsts)):
        word = int(hashes[0] ^ second ^ hashes[number]).to_bytes(8, "little")
        if word.isascii():
            one, other = firsts[0] + b"any word", firsts[number] + word
            assert first_half(one) == first_half(other)
            return one.decode(), other.decode()
    raise AssertionError("expected two texts of one hash among so many")


def _state(word: bytes) -> np.uint64:
    """The hash of the first word of a text of sixteen bytes, before the second one is mixed in."""
    seed = np.array([0x243F6A8885A308D3], dtype=np.uint64)
    length = mix64(seed ^ np.uint64(16))
    return mix64(length ^ np.frombuffer(word, dtype="<u8"))[0]


def test_ids_and_values_of_one_hash_are_told_apart() -> None:
    one, other = colliding_texts()
    index = SubscriptionIndex(ParameterQuery("s = :s", SCHEMA))
    rows = rows_of(np.zeros(2), np.zeros(2)).set_column(5, "s", pa.array([one, other]))

    def change(id_: str, text: str | None) -> None:
        row = {"id": id_, "broker": "b", "s": text, "deleted": text is None}
        index.apply(pa.Table.from_pylist([row]))

    def found() -> dict[str, list[int]]:
        records = index.match(RowIndex(index.query, rows)).to_pylist()
        return {id_: record["rows"] for record in records for id_ in record["subscriptions"]}

    change(one, other)
    change(other, one)
    assert found() == {one: [1], other: [0]}
    change(other, None)
    assert found() == {one: [1]}
    change(one, one)
    assert found() == {one: [0]}
