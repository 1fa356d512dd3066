from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pytest
import shapely
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError, QuerySyntaxError, UnsupportedQuery
from galileo.model.schema import Feature, Schema
from galileo.query import parse
from galileo.query.builder import query_text

f = galileo.f
SCHEMA = Schema(
    "nam",
    [
        Feature("temperature"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ],
    geohash_precision=4,
)
BOX = shapely.box(-110, 35, -100, 42)
DAY = dt.date(2012, 3, 1)
NOON = dt.datetime(2012, 3, 1, 12, tzinfo=dt.UTC)


def canonical(query: Any) -> str:
    return parse(query_text(query), SCHEMA).to_json()


@pytest.mark.parametrize(
    ("text", "values", "written"),
    [
        ("temperature > :t", {"t": 290}, "temperature > 290"),
        (":t < temperature", {"t": np.float32(0.5)}, "temperature > 0.5"),
        ("temperature BETWEEN :a AND :b", {"a": 1, "b": 2}, "temperature BETWEEN 1 AND 2"),
        ("temperature > :t OR count > :t", {"t": 3}, "temperature > 3 OR count > 3"),
        ("NOT (temperature > :t)", {"t": 3}, "temperature <= 3"),
        ("station = :s", {"s": "it's"}, "station = 'it''s'"),
        ("station = :s", {"s": "' OR true"}, "station = ''' OR true'"),
        ("CASEI(station) = CASEI(:s)", {"s": "KDen"}, "CASEI(station) = CASEI('kden')"),
        ("station LIKE :p", {"p": "K%"}, "station LIKE 'K%'"),
        ("geohash LIKE :p", {"p": "9x%"}, "geohash LIKE '9x%'"),
        ("station IN (:s)", {"s": ["a", "b"]}, "station IN ('a', 'b')"),
        ("station IN (:s, 'c', :d)", {"s": ("a", "b"), "d": "d"}, "station IN ('a','b','c','d')"),
        ("count IN (:n)", {"n": np.array([1, 2])}, "count IN (1, 2)"),
        ("raining = :r", {"r": True}, "raining = TRUE"),
        ("datetime >= :t", {"t": NOON}, "datetime >= TIMESTAMP('2012-03-01T12:00:00Z')"),
        ("datetime = :t", {"t": DAY}, "datetime = DATE('2012-03-01')"),
        ("datetime = :t", {"t": "2012-03-01"}, "datetime = DATE('2012-03-01')"),
        (
            "T_DURING(datetime, INTERVAL(:a, :b))",
            {"a": DAY, "b": None},
            "T_DURING(datetime, INTERVAL('2012-03-01', '..'))",
        ),
        ("S_INTERSECTS(geometry, :area)", {"area": BOX}, query_text(galileo.within(BOX))),
        ("S_INTERSECTS(:area, geometry)", {"area": BOX.wkt}, query_text(galileo.within(BOX))),
        (
            "S_WITHIN(geometry, :area)",
            {"area": BOX.bounds},
            query_text(galileo.within(BOX.bounds, edge=False)),
        ),
        (
            "S_INTERSECTS(geometry, BBOX(:w, 35, -100, 42))",
            {"w": -110},
            "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))",
        ),
        (
            "S_DWITHIN(geometry, :place, :radius)",
            {"place": shapely.Point(-105, 40), "radius": "5km"},
            query_text(galileo.near(40, -105, "5km")),
        ),
        ("DWITHIN(geometry, POINT(-105 40), :m)", {"m": 5}, query_text(galileo.near(40, -105, 5))),
        (":query", {"query": f.temperature > 1}, "temperature > 1"),
        (":query", {"query": "count > 1"}, "count > 1"),
        (":rest AND count > :n", {"rest": f.raining, "n": 1}, "raining AND count > 1"),
        ("count > :n AND NOT :rest", {"rest": False, "n": 1}, "count > 1"),
        ("station = ':n' AND count > :n", {"n": 1}, "station = ':n' AND count > 1"),
        ("count > 1", {}, "count > 1"),
        ("", {}, ""),
    ],
)
def test_values_of_parameters_make_the_query_with_these_values(
    text: str, values: dict[str, Any], written: str
) -> None:
    template = galileo.Template(text)

    assert canonical(template(**values)) == canonical(written)
    assert set(template.parameters) == set(values)
    # What is bound once does not change the template.
    assert canonical(template(**values)) == canonical(written)


@given(value=st.text(max_size=20), other=st.text(max_size=20))
def test_text_that_is_bound_is_never_read_as_syntax(value: str, other: str) -> None:
    template = galileo.Template("station = :a OR (station LIKE 'x%' AND station IN (:b))")

    bound = template(a=value, b=[other])

    expected = (f.station == value) | (f.station.like("x%") & f.station.isin([other]))
    assert bound == expected


def test_parameters_stand_in_the_order_of_the_text_once() -> None:
    template = galileo.Template("count > :b AND temperature > :a OR temperature < :b")

    assert template.parameters == ("b", "a")


@pytest.mark.parametrize("values", [{}, {"t": 1}, {"t": 1, "area": BOX, "x": 2}])
def test_missing_and_unknown_parameters_are_refused(values: dict[str, Any]) -> None:
    template = galileo.Template("temperature > :t AND S_INTERSECTS(geometry, :area)")

    with raises(InputError, expected="parameters", parameters=["t", "area"]):
        template(**values)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("temperature > :x", None, "literal"),
        ("temperature > :x", object(), "literal"),
        ("temperature > :x", float("nan"), "finite_number"),
        ("S_INTERSECTS(geometry, :x)", "POLYGON", "region"),
        ("S_INTERSECTS(geometry, :x)", None, "region"),
        ("DWITHIN(geometry, POINT(1 2), :x)", "5 parsec", "distance"),
        ("station IN (:x)", [None], "literal"),
        (":x", 3, "query"),
    ],
)
def test_values_that_do_not_fit_their_place_are_refused(
    text: str, value: Any, expected: str
) -> None:
    with raises(InputError, expected=expected):
        galileo.Template(text)(x=value)


def test_wrong_value_type_for_feature_is_refused_where_the_query_is_read() -> None:
    bound = galileo.Template("temperature > :t")(t="warm")

    with pytest.raises(UnsupportedQuery):
        canonical(bound)


@pytest.mark.parametrize("text", ["temperature > :t AND", "temperature >> :t", ":t :u", "a = ::t"])
def test_wrong_template_is_refused_with_its_own_text(text: str) -> None:
    with pytest.raises(QuerySyntaxError) as caught:
        galileo.Template(text)

    assert text in caught.value.message
    assert "\u2c60" not in caught.value.message


def test_error_points_at_its_place_in_the_template() -> None:
    with pytest.raises(QuerySyntaxError) as caught:
        galileo.Template("temperature > :least AND ) count")

    assert caught.value.details["position"] == len("temperature > :least AND ")


def test_template_of_another_type_raises_input_error() -> None:
    with raises(InputError, expected="query_template"):
        galileo.Template(f.temperature > 1)  # type: ignore[arg-type]


def test_query_with_parameters_says_that_it_is_a_template() -> None:
    with raises(QuerySyntaxError, position=len("temperature > "), parameter="t"):
        parse("temperature > :t", SCHEMA)


def test_template_is_no_query_before_it_has_values() -> None:
    with raises(InputError, expected="query"):
        query_text(galileo.Template("temperature > :t"))  # type: ignore[arg-type]


def test_templates_are_values() -> None:
    template = galileo.Template("temperature > :t")

    assert template == galileo.Template("temperature > :t") == pickle.loads(pickle.dumps(template))
    assert len({template, galileo.Template("temperature > :t")}) == 1
    assert template != galileo.Template("temperature > :u")
    assert repr(template) == "Template('temperature > :t')"
