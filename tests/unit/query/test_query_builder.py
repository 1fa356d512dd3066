from __future__ import annotations

import copy
import datetime as dt
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from expected_errors import raises
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
        (f.temperature > f.count, "temperature > count"),
        (f.temperature + 1 > 2 * f.count, "(temperature + 1) > (2 * count)"),
        (-f.count / 2 - 1 <= 5 % f.count, "(((-1 * count) / 2) - 1) <= (5 % count)"),
        ((f.count**2).isin([1, 4]), "(count ^ 2) IN (1, 4)"),
        ((1 + f.count).between(f.temperature, 9), "(1 + count) BETWEEN temperature AND 9"),
        ((2 - f.count).is_not_null(), "NOT ((2 - count) IS NULL)"),
        (f.station.casei() == f.station.casei(), "CASEI(station) = CASEI(station)"),
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
        (galileo.near(40, -105.25, 5e4), "DWITHIN(geometry, POINT(-105.25 40), 50000)"),
        (galileo.within((170, -10, -170, 10)), "S_INTERSECTS(geometry, BBOX(170, -10, -170, 10))"),
        (galileo.within("POINT Z (1 2 3)", edge=False), "S_WITHIN(geometry, POINT(1 2))"),
        (
            galileo.during("2012-03-01", dt.datetime(2012, 3, 2)),
            "datetime >= TIMESTAMP('2012-03-01T00:00:00Z') "
            "AND datetime < TIMESTAMP('2012-03-02T00:00:00Z')",
        ),
        (galileo.during(None, "2012"), "datetime < TIMESTAMP('2012-01-01T00:00:00Z')"),
        (galileo.during(None, None), "true"),
    ],
)
def test_condition_text_is_cql2(condition: Condition, text: str) -> None:
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
def test_within_region_of_any_form_is_accepted(region: Any) -> None:
    found = parse(str(galileo.within(region)), SCHEMA)
    assert found.match_observations(observations([(38, -105), (50, -105)])).tolist() == [
        True,
        False,
    ]


def test_within_geodataframe_projected_raises() -> None:
    geopandas = pytest.importorskip("geopandas")
    series = geopandas.GeoSeries(halves(BOX), crs=4326)
    assert galileo.within(series) == galileo.within(shapely.union_all(halves(BOX)))
    assert galileo.within(geopandas.GeoDataFrame(geometry=series)) == galileo.within(series)
    with raises(InputError, expected="crs"):
        galileo.within(series.to_crs(3857))


def test_within_geo_interface_is_accepted() -> None:
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
    ("wrong", "expected"),
    [
        (lambda: 280 < f.count < 290, "no_truth_value"),
        (lambda: f.count > 1 and f.count < 3, "no_truth_value"),
        (lambda: not f.raining, "no_truth_value"),
        (lambda: f.station in ["a"], "no_truth_value"),
        (lambda: (f.count > 1) & True, "condition"),
        (lambda: f.count > None, "literal"),
        (lambda: f.count + None > 1, "literal"),
        (lambda: f.count + {} > 1, "literal"),
        (lambda: f.count > (f.count < 3), "literal"),
        (lambda: f.count > float("nan"), "finite_number"),
        (lambda: f.count > [1], "literal"),
        (lambda: f.station.isin("abc"), "values"),
        (lambda: f[""], "property_name"),
        (lambda: galileo.within("POLYGON((1 2"), "region"),
        (lambda: galileo.within('{"type": "Polygon"'), "region"),
        (lambda: galileo.within({"type": "FeatureCollection"}), "region"),
        (lambda: galileo.within({"type": "FeatureCollection", "features": []}), "geometry"),
        (lambda: galileo.within((1, 2, 3)), "box"),
        (lambda: galileo.within("POLYGON EMPTY"), "geometry"),
        (lambda: galileo.within(7), "region"),
        (lambda: galileo.within(shapely.Point(1, float("inf"))), "finite_coordinates"),
        (lambda: galileo.near(True, 3, 4), "finite_number"),
        (lambda: galileo.near(-105, 40, 4), "degrees"),
        (lambda: galileo.near(40, 400, 4), "degrees"),
        (lambda: galileo.near(40, 40, "50 miles"), "distance"),
        (lambda: galileo.near(40, 40, -1), "distance"),
        (lambda: galileo.during("2012-03-02", "2012-03-01"), "start_before_end"),
        (lambda: galileo.during("now", None), "time"),
        (lambda: query_text(7), "query"),
    ],
)
def test_builder_invalid_argument_raises(wrong: Any, expected: str) -> None:
    with raises(InputError, expected=expected):
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
def test_builder_operand_without_parentheses_raises(wrong: Any) -> None:
    with raises(InputError, expected="condition"):
        wrong()


def test_near_distance_with_unit_is_converted() -> None:
    assert galileo.near(40, -105, "50km") == galileo.near(40, -105, " 50000 m ")
    assert str(galileo.near(40, -105, "1.5 km")) == str(galileo.near(40, -105, 1500.0))


def test_during_empty_interval_is_accepted() -> None:
    assert "datetime <" in str(galileo.during("2012-03-01", "2012-03-01"))


def test_parse_condition_of_unknown_property_raises_with_nearest() -> None:
    with raises(UnknownProperty, property="temprature", nearest="temperature", position=0):
        parse(str(f.temprature > 3), SCHEMA)


def test_condition_equality_hash_and_pickle_agree() -> None:
    one = (f.count > 1) & f.raining
    assert one == ((f.count > 1) & f.raining)
    assert len({one, (f.count > 1) & f.raining, f.count > 1}) == 2
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    assert repr(one) == "<Condition count > 1 AND raining>"
    assert repr(f.count) == "<Property count>"
    assert query_text(f.raining) == '{"property": "raining"}'
    assert query_text(one) == one.to_json()
    assert query_text("a > 1") == "a > 1"


def test_properties_private_attribute_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"written f\['_x'\]"):
        f._x  # noqa: B018
    assert str(f["_x"] > 1) == "_x > 1"


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
def test_condition_text_of_random_condition_parses_to_it(condition: Condition | Property) -> None:
    built = parse(query_text(condition), SCHEMA).tree
    assert parse(str(condition), SCHEMA).tree == built


@given(st.floats(-180, 180), st.floats(-90, 90))
def test_query_text_random_coordinates_are_exact(x: float, y: float) -> None:
    leaf: Any = parse(query_text(galileo.within(shapely.Point(x, y))), SCHEMA).tree
    assert shapely.get_coordinates(leaf.region.shape).tolist() == [[x, y]]
