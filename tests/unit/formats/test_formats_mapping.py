from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import Mapping
from galileo.formats.expressions import FileColumns, FunctionCall, Literal, Name, parse
from galileo.model.schema import FeatureType


def test_mapping_parse_texts_gives_mapping() -> None:
    mapping = Mapping.parse(["wind = hypot(u10, v10)", "latitude=Lat", "time=y,m,d", "t=a=b"])
    assert mapping == Mapping(
        features=(("wind", "hypot(u10, v10)"), ("t", "a=b")), latitude="Lat", time="y,m,d"
    )


def test_mapping_parse_time_with_at_sign_is_constant() -> None:
    mapping = Mapping.parse(["time=@2012-03-01T06:00Z"])
    assert mapping == Mapping(constant_time="2012-03-01T06:00Z")


@pytest.mark.parametrize("text", ["temperature", "=t", "temperature=", " = "])
def test_mapping_parse_invalid_text_raises(text: str) -> None:
    with raises(InputError, expected="mapping"):
        Mapping.parse([text])


def test_mapping_parse_duplicate_feature_raises() -> None:
    with raises(InputError, expected="unique", feature="t"):
        Mapping.parse(["t=a", "t=b"])


def test_expression_parse_gives_tree() -> None:
    assert parse(" t@surface ") == Name("t@surface")
    assert parse("wind_speed( u , v )") == FunctionCall("wind_speed", (Name("u"), Name("v")))
    assert str(parse("hypot(a,b)")) == "hypot(a, b)"
    assert parse("`Temp (C)`") == Name("Temp (C)")
    assert parse("10u") == Name("10u")
    assert parse("hlcy@heightAboveGroundLayer:3000-0") == Name("hlcy@heightAboveGroundLayer:3000-0")
    assert parse("-1.5e3") == Literal(-1500.0)
    assert parse("'A12'") == parse('"A12"') == Literal("A12")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a + b * c - 2", "((a + (b * c)) - 2)"),
        ("(a + b) * -c / .5", "(((a + b) * negative(c)) / 0.5)"),
        ("a - b - c", "((a - b) - c)"),
        ("t@level:850 - t@level:500", "(t@level:850 - t@level:500)"),
        ("coalesce(nullif(t, -9999, 'x'), 0)", 'coalesce(nullif(t, -9999, "x"), 0)'),
    ],
)
def test_expression_parse_operators_bind_as_in_arithmetic(text: str, written: str) -> None:
    assert str(parse(text)) == written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hypot(u)", "arguments"),
        ("celsius_to_kelvin(a, b)", "arguments"),
        ("hypot(u,,v)", "expression"),
        ("hypot()", "arguments"),
        ("coalesce(a)", "arguments"),
        ("nullif(a, b)", "constants"),
        ("sqrt(a)", "function"),
        ("Temp (C) ?", "expression"),
        ("a b", "expression"),
        ("a b()", "expression"),
        ("`a`(b)", "expression"),
        ("(a", "expression"),
        ("(a, b)", "expression"),
        ("a +", "expression"),
        ("+a", "expression"),
        ("a * * b", "expression"),
        ("a / / b", "expression"),
        ("hypot(*a)", "expression"),
        ("", "expression"),
        ("(" * 5000 + "a", "expression"),
    ],
)
def test_expression_parse_invalid_text_raises(text: str, expected: str) -> None:
    with raises(InputError, expected=expected):
        parse(text)


def evaluated(text: str, kind: FeatureType = "float", **columns: pa.Array) -> list[Any]:
    rows = len(next(iter(columns.values())))
    result: list[Any] = FileColumns(columns, rows=rows).evaluate(parse(text), kind).to_pylist()
    return result


def test_expression_functions_give_known_values() -> None:
    u, v = pa.array([3.0, None, -5.0]), pa.array([4.0, 1.0, 12.0])
    for name in ("hypot", "wind_speed"):
        assert evaluated(f"{name}(u, v)", u=u, v=v) == [5.0, None, 13.0]
    assert evaluated("celsius_to_kelvin(t)", t=pa.array([-40.0])) == pytest.approx([233.15])
    assert evaluated("fahrenheit_to_kelvin(t)", t=pa.array([-40.0, 32.0, 212.0])) == pytest.approx(
        [233.15, 273.15, 373.15]
    )


def test_expression_arithmetic_missing_or_zero_divisor_is_null() -> None:
    a, b = pa.array([6, None, 1]), pa.array(["4", "2", "0"])
    assert evaluated("(a + 2) * b / 4 - 1", a=a, b=b) == [7.0, None, -1.0]
    assert evaluated("a / b", a=a, b=b) == [1.5, None, None]
    assert evaluated("-a", "int", a=a) == [-6, None, -1]
    assert evaluated("5", "int", a=a) == [5, 5, 5]


@pytest.mark.parametrize(
    ("column", "sentinel"),
    [
        (pa.array([-9999, 1, None]), "-9999.0"),
        (pa.array([-9999.0, 1, None]), "-9999"),
        (pa.array([-999.9, 1, None], pa.float32()), "-999.9"),
        (pa.array(["-9999.00", "1", None]), "-9999"),
        (pa.array(["---", "1", None]), "'---'"),
        (pa.array([200, 1, None], pa.uint8()), "200"),
    ],
)
def test_expression_nullif_sentinel_of_any_type_is_null(column: pa.Array, sentinel: str) -> None:
    assert evaluated(f"nullif(x, 12345, {sentinel})", x=column) == [None, 1.0, None]
    assert evaluated(f"coalesce(nullif(x, {sentinel}), 7)", x=column) == [7.0, 1.0, 7.0]


def test_expression_nullif_large_integers_are_exact() -> None:
    column = pa.array([2**53, 2**53 + 1])
    assert evaluated(f"nullif(x, {2**53})", "int", x=column) == [None, 2**53 + 1]


def test_mapping_of_python_values_gives_mapping() -> None:
    mapping = Mapping.of(
        {"t": "nullif(t2, -1)", "latitude": 39.1, "time": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
        missing={"t": [-9999, "x"], "u": 0.5},
    )
    assert mapping.features == (("t", "nullif(t2, -1)"),)
    assert mapping.latitude == "39.1"
    assert mapping.constant_time == "2020-01-01T00:00:00+00:00"
    assert mapping.missing == (("t", "-9999"), ("t", "x"), ("u", "0.5"))
    assert Mapping.of(["t=a"], missing=["-9999", "u=-1"]).missing == (("", "-9999"), ("u", "-1"))
    assert Mapping.of("t=a") == Mapping.of(Mapping.of({"t": "a"})) == Mapping.parse(["t=a"])
    assert Mapping.of(None).is_empty
    with raises(InputError, expected="mapping"):
        Mapping.of([3])  # type: ignore[list-item]
