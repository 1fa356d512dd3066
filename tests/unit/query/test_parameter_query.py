"""Templates bound to a schema: types of parameters, constant conditions, checks of values."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely
from expected_errors import raises

from galileo.errors import (
    InputError,
    InvalidObservations,
    QuerySyntaxError,
    UnknownProperty,
    UnsupportedQuery,
)
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.query import parse
from galileo.query.subscriptions import ParameterQuery
from galileo.query.subscriptions.parameters import PARAMETERS_MAX

SCHEMA = Schema(
    "air",
    [
        Feature("temperature"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ],
    geohash_precision=5,
)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("temperature > :t", {"t": "float"}),
        (":t >= count", {"t": "float"}),
        ("count BETWEEN :low AND :high", {"low": "float", "high": "float"}),
        ("count = :n OR temperature > :n", {"n": "float"}),
        ("station = :s", {"s": "text"}),
        ("CASEI(station) = CASEI(:s)", {"s": "text"}),
        ("station LIKE :s AND NOT geohash LIKE :cell", {"s": "text", "cell": "text"}),
        ("station IN (:a, 'x', :b)", {"a": "text", "b": "text"}),
        ("raining <> :wet", {"wet": "bool"}),
        ("datetime >= :start", {"start": "time"}),
        ("time < :end", {"end": "time"}),
        ("T_AFTER(datetime, :start)", {"start": "time"}),
        ("T_DURING(datetime, INTERVAL(:a, '1990-01-01'))", {"a": "time"}),
        ("T_DURING(datetime, INTERVAL('2090-01-01', :b))", {"b": "time"}),
        ("S_INTERSECTS(geometry, :area)", {"area": "geometry"}),
        ("S_WITHIN(geometry, :area) OR S_DISJOINT(:area, geometry)", {"area": "geometry"}),
        ("S_DWITHIN(geometry, :place, :metres)", {"place": "geometry", "metres": "float"}),
        ("DWITHIN(geometry, POINT(-105 40), :metres)", {"metres": "float"}),
        ("S_INTERSECTS(geometry, BBOX(1, :s, 3, -10))", {"s": "float"}),
        (":query", {"query": "text"}),
        ("NOT :rest AND count > :n", {"rest": "text", "n": "float"}),
    ],
)
def test_parameters_have_the_types_of_their_places(text: str, types: dict[str, str]) -> None:
    assert dict(ParameterQuery(text, SCHEMA).parameters) == types


@pytest.mark.parametrize(
    ("text", "constant", "features"),
    [
        ("temperature > :t", "true", ("temperature",)),
        ("station = :s AND count > 3 AND raining", "count > 3 AND raining", None),
        ("count BETWEEN 2 AND :n", "count >= 2", ("count",)),
        ("NOT (count > 4 OR temperature < :t)", "count <= 4", ("temperature", "count")),
        ("(count > 3 OR station = :s) AND raining", "raining", ("count", "station", "raining")),
        (
            "(count > 3 AND station = :s) OR (count < 1 AND :query)",
            "count > 3 OR count < 1",
            ("temperature", "count", "station", "raining"),
        ),
    ],
)
def test_constant_is_what_all_matches_satisfy(
    text: str, constant: str, features: tuple[str, ...] | None
) -> None:
    query = ParameterQuery(text, SCHEMA)

    assert query.constant == parse(constant, SCHEMA)
    assert query.features == (features or ("count", "station", "raining"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("count > 3", InputError),
        ("count = :id", InputError),
        ("station = :broker", InputError),
        ("raining = :deleted", InputError),
        ("count = :x AND station = :x", InputError),
        (f"count = :{'x' * 65}", InputError),
        ("count > ", QuerySyntaxError),
        ("station IN :names", QuerySyntaxError),
        ("cuont > :n", UnknownProperty),
        ("raining > :b", UnsupportedQuery),
        (":a = :b", UnsupportedQuery),
        ("S_INTERSECTS(:a, :b)", UnsupportedQuery),
        ("station + :n > 3", UnsupportedQuery),
        ("count > :n AND datetime > now() - '1d'", UnsupportedQuery),
    ],
)
def test_templates_that_make_no_query_are_refused(text: str, error: type[InputError]) -> None:
    with raises(error):
        ParameterQuery(text, SCHEMA)


def test_more_parameters_than_the_bound_are_refused() -> None:
    names = [f":p{number}" for number in range(PARAMETERS_MAX + 1)]

    ParameterQuery(f"count IN ({', '.join(names[1:])})", SCHEMA)
    with raises(InputError, bound=PARAMETERS_MAX):
        ParameterQuery(f"count IN ({', '.join(names)})", SCHEMA)


POINT, BOX = shapely.to_wkb(shapely.Point(1, 2)), shapely.to_wkb(shapely.box(0, 0, 1, 1))
BIG_ENDIAN = shapely.to_wkb(shapely.Point(1, 2), byte_order=0)
TIMES = [dt.datetime(2012, 3, 1, tzinfo=dt.UTC), dt.datetime(2011, 3, 1, tzinfo=dt.UTC)]


def rows_of(**columns: Any) -> pa.Table:
    count = len(next(iter(columns.values())))
    given = {"id": [f"s{n}" for n in range(count)], "broker": ["b"] * count} | columns
    return pa.table(given)


CHECKED: list[tuple[str, dict[str, Any], int | None]] = [
    ("count > :n", {"n": [1.0, None]}, 1),
    ("count > :n", {"n": [np.nan, None]}, 0),
    ("count > :n", {"n": [1.0, 2.0, np.inf]}, 2),
    ("count > :n", {"n": [None, 2.0, None], "deleted": [True, False, False]}, 2),
    ("count > :n", {"n": [1.0, 2.0], "broker": ["b", None]}, 1),
    ("count > :n", {"n": [1.0, 2.0], "broker": ["b", ""]}, 1),
    ("DWITHIN(geometry, :p, 5)", {"p": [POINT, BIG_ENDIAN, BOX]}, 2),
    ("DWITHIN(geometry, :p, :r)", {"p": [POINT, BOX, BOX], "r": [1.0, 0.0, -1.0]}, 1),
    ("DWITHIN(geometry, :p, :r)", {"p": [POINT, POINT, BOX], "r": [1.0, -1.0, 0.0]}, 1),
    ("datetime > :t", {"t": pa.array([0, 1 << 60], TIME_TYPE)}, 1),
    (":query", {"query": ["count > 1", "", "count > 1", "cuont > 1", "count >"]}, 3),
    (":query AND count > :n", {"query": ["", "x"], "n": [np.nan, 1.0]}, 0),
    (":query AND count > :n", {"query": ["x", ""], "n": [1.0, np.nan]}, 0),
    ("station LIKE :s", {"s": ["a%", "b\\"]}, 1),
    ("geohash = :cell", {"cell": ["9xjq8", "9xj"]}, 1),
    ("T_DURING(datetime, INTERVAL(:a, :b))", {"a": TIMES, "b": TIMES[:1] * 2}, None),
    ("T_DURING(datetime, INTERVAL(:a, :b))", {"a": TIMES[:1] * 2, "b": TIMES}, 1),
]
"""A template, subscriptions, and the first row that is wrong."""


@pytest.mark.parametrize(("text", "columns", "row"), CHECKED)
def test_check_names_the_first_wrong_row(
    text: str, columns: dict[str, Any], row: int | None
) -> None:
    query, rows = ParameterQuery(text, SCHEMA), rows_of(**columns)

    if row is None:
        query.check(rows)
        return
    query.check(rows.slice(0, row))
    with raises(InvalidObservations, row=row, subscription=f"s{row}"):
        query.check(rows)


@pytest.mark.parametrize(("text", "columns", "_"), CHECKED)
def test_permits_each_row_that_check_permits_alone(
    text: str, columns: dict[str, Any], _: int | None
) -> None:
    query, rows = ParameterQuery(text, SCHEMA), rows_of(**columns)
    if "deleted" not in rows.column_names:
        rows = rows.append_column("deleted", [[False] * rows.num_rows])

    def is_permitted(row: pa.Table) -> bool:
        with contextlib.suppress(InvalidObservations):
            query.check(row)
            return True
        return False

    singly = [is_permitted(rows.slice(number, 1)) for number in range(rows.num_rows)]
    assert query.permits(rows).tolist() == singly
