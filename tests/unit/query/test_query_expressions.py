"""Arithmetic, features compared with each other, and now()."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import QuerySyntaxError, UnsupportedQuery
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query import Columns, Query, from_arrow, parse
from galileo.query.builder import Condition, Expression
from galileo.query.zone_maps import Zones

f = galileo.f
SCHEMA = Schema(
    "air",
    [
        Feature("t"),
        Feature("u"),
        Feature("n", type="int"),
        Feature("m", type="int"),
        Feature("s", type="text"),
        Feature("r", type="text"),
        Feature("w", type="float32"),
    ],
    geohash_precision=3,
)
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 1e-9, 1e200, -1e308, 2.0**53 + 2])
VALUES = NUMBERS | st.sampled_from([math.inf, -math.inf])
SIGNS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def observations(**columns: list[Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    place = {"latitude": [1.0] * count, "longitude": [1.0] * count}
    place["time"] = times_from_micros(np.zeros(count, np.int64))
    missing = {name: [None] * count for name in ("t", "u", "n", "m", "s", "r", "w")}
    return pa.table(place | missing | columns, schema=SCHEMA.observation_schema)


def matches(text: str, **columns: list[Any]) -> list[bool]:
    found: list[bool] = parse(text, SCHEMA).match_observations(observations(**columns)).tolist()
    return found


def test_two_int_features_are_compared_exactly() -> None:
    n, m = [2**53, 2**53 + 1, 2**62, None], [2**53 + 1, 2**53 + 1, 2**62 - 1, 1]
    assert matches("n < m", n=n, m=m) == [True, False, False, False]
    assert matches("n = m", n=n, m=m) == [False, True, False, False]
    assert matches("NOT n <= m", n=n, m=m) == [False, False, True, False]


def test_arithmetic_of_32_bit_floats_is_done_in_doubles() -> None:
    assert matches("w + 1 > 16777216", w=[16777216.0, None]) == [True, False]
    assert matches("w = t", w=[4.3, 0.5], t=[4.3, 0.5]) == [False, True], "4.3 was rounded"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("t / n", [3.5, -3.5, None, None, math.inf]),
        ("t % n", [1.0, -1.0, None, None, None]),
        ("t div n", [3.0, -3.0, None, None, None]),
        ("t ^ 2", [49.0, 49.0, 49.0, None, math.inf]),
        ("t ^ 0.5", [math.sqrt(7), None, math.sqrt(7), None, math.inf]),
        ("n ^ -1", [0.5, 0.5, None, 1.0, 0.5]),
        ("t * 1e308", [None, None, None, None, math.inf]),
        ("t - t", [0.0, 0.0, 0.0, None, None]),
        ("-t + n", [-5.0, 9.0, -7.0, None, -math.inf]),
        ("2 ^ 3 ^ 2 + 0 * n", [64.0, 64.0, 64.0, 64.0, 64.0]),
    ],
)
def test_results_and_errors_of_arithmetic(expression: str, expected: list[float | None]) -> None:
    columns: dict[str, list[Any]] = {"t": [7.0, -7.0, 7.0, None, math.inf], "n": [2, 2, 0, 1, 2]}
    is_null = [value is None for value in expected]
    assert matches(f"({expression}) IS NULL", **columns) == is_null
    for number, value in enumerate(expected):
        one = {name: [values[number]] for name, values in columns.items()}
        if value is not None and math.isfinite(value):
            assert matches(f"{expression} = {value!r}", **one) == [True]
            assert matches(f"{expression} IN (-17, {value!r})", **one) == [True]
            assert matches(f"NOT ({expression} = {value!r})", **one) == [False]
        elif value is not None:
            beyond = "> 1e308" if value > 0 else "< -1e308"
            assert matches(f"{expression} {beyond}", **one) == [True]


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3).filter(lambda b: abs(b) > 1e-3))
def test_div_is_the_exact_quotient_without_its_fraction(a: float, b: float) -> None:
    quotient = float(math.trunc(Fraction(a) / Fraction(b)))
    assert matches(f"t div u = {quotient!r}", t=[a], u=[b]) == [True]


_EXPRESSIONS = st.recursive(
    st.sampled_from([f.t, f.u, f.n]) | NUMBERS,
    lambda inner: st.tuples(st.sampled_from("+-*/%^"), inner, inner).map(lambda args: made(*args)),
    max_leaves=6,
)


def made(op: str, left: Any, right: Any) -> Any:
    operations = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
        "%": lambda: left % right,
        "^": lambda: left**right,
    }
    is_expression = isinstance(left, Expression) or isinstance(right, Expression)
    return operations[op]() if is_expression else f.u + left


def random_condition(op: str, left: Any, right: Any) -> Condition:
    left = left if isinstance(left, Expression) else f.t + left
    compare = {
        "=": left.__eq__,
        "<>": left.__ne__,
        "<": left.__lt__,
        "<=": left.__le__,
        ">": left.__gt__,
        ">=": left.__ge__,
    }
    condition = compare[op](right)
    assert isinstance(condition, Condition)
    return condition


CONDITIONS = st.builds(random_condition, SIGNS, _EXPRESSIONS, _EXPRESSIONS)


@given(CONDITIONS)
def test_text_and_json_of_an_expression_are_equal_queries(condition: Condition) -> None:
    query = parse(condition.to_json(), SCHEMA)
    assert parse(query.to_json(), SCHEMA) == query
    assert parse(str(condition), SCHEMA) == query


@given(
    condition=CONDITIONS,
    rows=st.lists(
        st.tuples(*[VALUES | st.none()] * 2, st.sampled_from([None, 0, -3, 7, 2**53 + 1])),
        min_size=1,
        max_size=12,
    ),
    starts=st.sets(st.integers(1, 11), max_size=4),
)
def test_zones_never_rule_out_a_match(
    condition: Condition, rows: list[Any], starts: set[int]
) -> None:
    query = parse(condition.to_json(), SCHEMA)
    named = dict(zip("tun", zip(*rows, strict=True), strict=True))
    check_zones(query, {name: list(values) for name, values in named.items()}, starts)


def check_zones(query: Query, columns: dict[str, list[Any]], starts: set[int]) -> None:
    table = observations(**columns)
    count = table.num_rows
    features = {
        name: from_arrow(table.column(name).combine_chunks()) for name in ("t", "u", "n", "m")
    }
    of_paths = Columns(np.zeros(count, np.uint64), np.zeros(count, np.int64), features)
    begins = np.array([0, *sorted(start for start in starts if start < count)])
    mask = query.match_paths(of_paths)
    assert mask.tolist() == query.match_observations(table).tolist()
    zones = query.may_match_zones(Zones.of(of_paths, begins))
    found = np.logical_or.reduceat(mask, begins)
    assert (zones | ~found).all()


def test_zones_of_integers_that_round_alike_are_kept() -> None:
    check_zones(parse("n < m", SCHEMA), {"n": [2**53], "m": [2**53 + 1]}, set())


def test_zones_are_ruled_out_by_bounds() -> None:
    table = observations(t=[1.0, 2.0, 5.0, 6.0], u=[3.0, 3.0, 3.0, 4.0])
    features = {name: from_arrow(table.column(name).combine_chunks()) for name in ("t", "u")}
    of_paths = Columns(np.zeros(4, np.uint64), np.zeros(4, np.int64), features)
    zones = Zones.of(of_paths, np.array([0, 2]))
    for text, expected in (
        ("t > u", [False, True]),
        ("t = u", [False, False]),
        ("t + 1 < u", [True, False]),
        ("t - u < -3", [False, False]),
        ("t * u >= 24", [False, True]),
        ("t / u IN (2)", [False, True]),
        ("t ^ u > 1e9", [True, True]),
        ("t <> u", [True, True]),
    ):
        assert parse(text, SCHEMA).may_match_zones(zones).tolist() == expected, text


def test_texts_of_a_graph_are_compared_with_each_other() -> None:
    words = ["a", "b", "A", None, "b"]
    table = observations(s=words, r=["a", "a", "a", "a", "c"])
    graph = MetadataGraph(SCHEMA)
    for sequence in (1, 2):
        graph.insert(paths.index(SCHEMA, table)[1], partition=0, sequence=sequence)
    for text, expected in (("s = r", 1), ("CASEI(s) = CASEI(r)", 2), ("s > r", 1), ("s <> r", 3)):
        assert sum(matches(text, s=words, r=["a", "a", "a", "a", "c"])) == expected
        assert graph.scan(parse(text, SCHEMA)).num_rows == 2 * expected


def test_now_is_the_time_that_is_given() -> None:
    now_us = micros("2024-05-06T07:08:09.5Z")
    for text, expected in (
        ("datetime > now()", "datetime > TIMESTAMP('2024-05-06T07:08:09.5Z')"),
        ("datetime > NOW() - '1d'", "datetime > TIMESTAMP('2024-05-05T07:08:09.5Z')"),
        (
            "T_DURING(datetime, INTERVAL(now() - '1h30m', now() + '1s'))",
            "T_DURING(datetime, INTERVAL('2024-05-06T05:38:09.5Z', '2024-05-06T07:08:10.5Z'))",
        ),
        ("s = 'now()'", "s = 'now()'"),
    ):
        assert parse(text, SCHEMA, now_us=now_us) == parse(expected, SCHEMA)
    later = parse("datetime > now()", SCHEMA, now_us=now_us + 1)
    assert later != parse("datetime > now()", SCHEMA, now_us=now_us)
    source = '{"op": "<", "args": [{"property": "datetime"}, {"op": "now", "args": []}]}'
    assert parse(source, SCHEMA, now_us=now_us).to_json().endswith('09.499999Z"]}]}')


@pytest.mark.parametrize("text", ["datetime > now()", "T_BEFORE(datetime, now() - '1d')"])
def test_now_is_refused_where_a_query_has_no_time_of_its_own(text: str) -> None:
    with raises(UnsupportedQuery, expected="no_now"):
        parse(text, SCHEMA)


def test_arithmetic_of_many_operations_is_refused() -> None:
    tree: Any = {"property": "t"}
    for _ in range(9):
        tree = {"op": "+", "args": [tree, tree]}
    with raises(UnsupportedQuery, bound=256):
        parse({"op": ">", "args": [tree, 1]}, SCHEMA)


def test_deep_arithmetic_is_refused() -> None:
    tree: Any = {"property": "t"}
    for _ in range(500):
        tree = {"op": "+", "args": [tree, 1]}
    with raises(QuerySyntaxError):
        parse({"op": ">", "args": [tree, 1]}, SCHEMA)
