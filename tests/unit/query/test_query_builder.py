from __future__ import annotations

import copy
import datetime as dt
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError, UnknownProperty
from galileo.model.schema import Feature, Schema
from galileo.query import parse
from galileo.query.builder import Condition, Property, query_text

f = galileo.f
NAMES = ["temperature", "and", "Between", "true", "date", "point", "in", "_x", "null_x"]
SCHEMA = Schema(
    "nam",
    [
        *[Feature(name) for name in NAMES],
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ],
    geohash_precision=4,
)
BOX = shapely.box(-110, 35, -100, 42)


def halves(box: shapely.Polygon) -> list[shapely.Polygon]:
    west, south, east, north = box.bounds
    middle = (west + east) / 2
    return [shapely.box(west, south, middle, north), shapely.box(middle, south, east, north)]


def feature_of(shape: shapely.Geometry | None) -> dict[str, Any]:
    geometry = None if shape is None else shapely.geometry.mapping(shape)
    return {"type": "Feature", "properties": {"name": "a"}, "geometry": geometry}


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (f.temperature > 290, "temperature > 290"),
        (f.temperature >= 290.5, "temperature >= 290.5"),
        (f.temperature != -5, "temperature <> -5"),
        (f.temperature < 1e-7, "temperature < 0.0000001"),
        (f.temperature == np.float32(0.5), "temperature = 0.5"),
        (f.count == np.int64(3), "count = 3"),
        (f.station == "it's", "station = 'it''s'"),
        (f.raining == np.bool_(True), "raining = true"),
        (f["and"] > 1, '"and" > 1'),
        (f.temperature.between(280, 290), "temperature BETWEEN 280 AND 290"),
        (f.station.isin(["a", "b"]), "station IN ('a', 'b')"),
        (f.station.isin([]), "false"),
        (f.station.like("K%"), "station LIKE 'K%'"),
        (f.station.casei() == "kden", "CASEI(station) = CASEI('kden')"),
        (f.station.casei().isin(["a"]), "CASEI(station) IN (CASEI('a'))"),
        (f.count.is_null(), "count IS NULL"),
        (f.count.is_not_null(), "NOT (count IS NULL)"),
        (f.datetime == dt.date(2012, 3, 1), "datetime = DATE('2012-03-01')"),
        (
            f.datetime >= pd.Timestamp("2012-03-01T06:00+02:00"),
            "datetime >= TIMESTAMP('2012-03-01T04:00:00Z')",
        ),
        (f.raining & (f.count > 3), "raining AND count > 3"),
        (
            (f.count > 1) & (f.count < 3) & ~(f.raining | f.station.is_null()),
            "count > 1 AND count < 3 AND NOT (raining OR station IS NULL)",
        ),
        ((f.count > 1) & (f.raining | (f.count < 0)), "count > 1 AND (raining OR count < 0)"),
        (galileo.geohash("9x%"), "geohash LIKE '9x%'"),
        (galileo.near(40, -105.25, 5e4), "DWITHIN(geometry, POINT(-105.25 40), 50000.0)"),
        (galileo.within((170, -10, -170, 10)), "S_INTERSECTS(geometry, BBOX(170, -10, -170, 10))"),
        (
            galileo.within("POINT Z (1 2 3)", edge=False),
            "S_WITHIN(geometry, POINT(1.0 2.0))",
        ),
        (
            galileo.during("2012-03-01", dt.datetime(2012, 3, 2)),
            "datetime >= TIMESTAMP('2012-03-01T00:00:00Z') "
            "AND datetime < TIMESTAMP('2012-03-02T00:00:00Z')",
        ),
        (galileo.during(None, "2012"), "datetime < TIMESTAMP('2012-01-01T00:00:00Z')"),
        (galileo.during(None, None), "true"),
    ],
)
def test_a_condition_is_cql2(condition: Condition, text: str) -> None:
    assert str(condition) == text
    assert parse(text, SCHEMA).tree == parse(condition.to_json(), SCHEMA).tree


@pytest.mark.parametrize(
    "region",
    [
        BOX,
        BOX.wkt,
        shapely.geometry.mapping(BOX),
        shapely.geometry.polygon.orient(BOX),
        shapely.to_geojson(BOX),
        feature_of(BOX),
        {"type": "FeatureCollection", "features": [*map(feature_of, halves(BOX))]},
        {"type": "FeatureCollection", "features": [feature_of(BOX), feature_of(None)]},
    ],
)
def test_a_region_may_be_given_in_many_ways(region: Any) -> None:
    found = parse(str(galileo.within(region)), SCHEMA)
    assert found.match_observations(observations([(38, -105), (50, -105)])).tolist() == [
        True,
        False,
    ]


def test_a_geodataframe_is_a_region_unless_it_is_projected() -> None:
    geopandas = pytest.importorskip("geopandas")
    series = geopandas.GeoSeries(halves(BOX), crs=4326)
    assert galileo.within(series) == galileo.within(shapely.union_all(halves(BOX)))
    assert galileo.within(geopandas.GeoDataFrame(geometry=series)) == galileo.within(series)
    with pytest.raises(InputError, match=r"the projection 'WGS 84 / Pseudo-Mercator'; .*4326"):
        galileo.within(series.to_crs(3857))


def test_what_has_a_geo_interface_is_a_region() -> None:
    class Shape:
        __geo_interface__ = shapely.geometry.mapping(BOX)

    assert galileo.within(Shape()) == galileo.within(BOX)


def observations(places: list[tuple[float, float]]) -> Any:
    columns = dict.fromkeys(SCHEMA.observation_schema.names, [None] * len(places))
    columns |= {"latitude": [float(lat) for lat, _ in places]}
    columns |= {"longitude": [float(lon) for _, lon in places]}
    columns |= {"time": [dt.datetime(2012, 3, 1, tzinfo=dt.UTC)] * len(places)}
    return SCHEMA.observation_schema.empty_table().from_pydict(
        columns, schema=SCHEMA.observation_schema
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: 280 < f.count < 290, "write .between"),
        (lambda: f.count > 1 and f.count < 3, "join conditions by &"),
        (lambda: not f.raining, "join conditions by &"),
        (lambda: f.station in ["a"], "write .between|isin"),
        (lambda: (f.count > 1) & True, "a condition on both sides of &"),
        (lambda: f.count > None, "write f.count.is_null"),
        (lambda: f.count > f.temperature, "another property, temperature"),
        (lambda: f.count > (f.count < 3), "in parentheses"),
        (lambda: f.count > float("nan"), "a finite number"),
        (lambda: f.count > [1], "a number, text, bool or time"),
        (lambda: f.station.isin("abc"), "a list of values"),
        (lambda: f[""], "the name of a property"),
        (lambda: galileo.within("POLYGON((1 2"), "a region as"),
        (lambda: galileo.within('{"type": "Polygon"'), "a region as"),
        (lambda: galileo.within({"type": "FeatureCollection"}), "a region as"),
        (lambda: galileo.within({"type": "FeatureCollection", "features": []}), "one geometry"),
        (lambda: galileo.within((1, 2, 3)), "west, south, east and north"),
        (lambda: galileo.within("POLYGON EMPTY"), "one geometry with coordinates"),
        (lambda: galileo.within(7), "a region as"),
        (lambda: galileo.within(shapely.Point(1, float("inf"))), "finite coordinates"),
        (lambda: galileo.near(True, 3, 4), "a finite number"),
        (lambda: galileo.near(-105, 40, 4), "a latitude from -90 to 90 degrees, got -105"),
        (lambda: galileo.near(40, 400, 4), "a longitude from -360 to 360 degrees, got 400"),
        (lambda: galileo.near(40, 40, "50 miles"), "in metres, or such as '50km', got '50 miles'"),
        (lambda: galileo.near(40, 40, -1), "in metres, or such as '50km', got -1"),
        (lambda: galileo.during("2012-03-02", "2012-03-01"), "a start before the end, got '2012"),
        (lambda: galileo.during("now", None), "expected a time"),
        (lambda: query_text(7), "a query as CQL2 text or as a condition"),
    ],
)
def test_a_misuse_says_what_to_write(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: f.count > 1 & f.raining,
        lambda: f.count > 1 | f.raining,
        lambda: f.count > 1 & f.station == "a",
        lambda: f.station == "a" | f.station == "b",
        lambda: f.count > 1.5 & (f.count < 3),
    ],
)
def test_an_operand_without_parentheses_is_noticed(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"put comparisons in parentheses: \(f.x > 1\)"):
        wrong()


def test_a_distance_may_have_a_unit() -> None:
    assert galileo.near(40, -105, "50km") == galileo.near(40, -105, " 50000 m ")
    assert str(galileo.near(40, -105, "1.5 km")) == str(galileo.near(40, -105, 1500.0))


def test_an_empty_interval_is_no_mistake() -> None:
    assert "datetime <" in str(galileo.during("2012-03-01", "2012-03-01"))


def test_wrong_names_are_found_where_the_query_is_asked() -> None:
    with pytest.raises(UnknownProperty, match="did you mean 'temperature'"):
        parse(str(f.temprature > 3), SCHEMA)


def test_conditions_can_be_compared_copied_and_kept() -> None:
    one = (f.count > 1) & f.raining
    assert one == ((f.count > 1) & f.raining)
    assert len({one, (f.count > 1) & f.raining, f.count > 1}) == 2
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    assert repr(one) == "<Condition count > 1 AND raining>"
    assert repr(f.count) == "<Property count>"
    assert query_text(f.raining) == '{"property": "raining"}'
    assert query_text(one) == one.to_json()
    assert query_text("a > 1") == "a > 1"


def test_the_properties_have_no_private_ones() -> None:
    with pytest.raises(AttributeError, match=r"written f\['_x'\]"):
        f._x  # noqa: B018
    assert str(f["_x"] > 1) == '"_x" > 1'


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
texts = st.text(max_size=8)
stamps = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
degrees = st.integers(-80 * 4096, 80 * 4096).map(lambda value: value / 4096)
ordered = st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
boxes = st.tuples(degrees, degrees, degrees, degrees).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]) + 1, max(b[1], b[3]) + 1)
)
regions = (
    boxes | boxes.map(lambda box: shapely.box(*box)) | st.builds(shapely.Point, degrees, degrees)
)
leaves = st.one_of(
    st.builds(lambda n, op, v: getattr(f[n], op)(v), st.sampled_from(NAMES), ordered, numbers),
    st.builds(lambda op, v: getattr(f.station, op)(v), ordered, texts),
    st.builds(lambda op, v: getattr(f.station.casei(), op)(v), ordered, texts),
    st.builds(lambda op, v: getattr(f.datetime, op)(v), ordered, stamps),
    st.builds(f.temperature.between, numbers, numbers),
    st.builds(f.station.isin, st.lists(texts, max_size=3)),
    st.builds(f.station.like, st.text("ab%_é'\" ", max_size=6)),
    st.builds(galileo.within, regions, edge=st.booleans()),
    st.builds(galileo.near, degrees, degrees, st.floats(0, 1e7)),
    st.builds(lambda v: f.raining == v, st.booleans()),
    st.sampled_from([f.raining, f.count.is_null(), galileo.geohash("9x%"), f.geohash.like("9_b%")]),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=8,
)


@given(conditions)
def test_the_text_parses_to_what_was_built(condition: Condition | Property) -> None:
    built = parse(query_text(condition), SCHEMA).tree
    assert parse(str(condition), SCHEMA).tree == built


@given(st.floats(-180, 180), st.floats(-90, 90))
def test_what_is_sent_has_every_coordinate_to_the_bit(x: float, y: float) -> None:
    leaf: Any = parse(query_text(galileo.within(shapely.Point(x, y))), SCHEMA).tree
    assert shapely.get_coordinates(leaf.region.shape).tolist() == [[x, y]]
