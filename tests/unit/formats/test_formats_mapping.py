from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from galileo.errors import InputError
from galileo.formats import Mapping
from galileo.formats.expressions import Call, Columns, Literal, Name, parse
from galileo.model.schema import FeatureType


def test_texts_become_a_mapping() -> None:
    mapping = Mapping.parse(["wind = hypot(u10, v10)", "latitude=Lat", "time=y,m,d", "t=a=b"])
    assert mapping == Mapping(
        features=(("wind", "hypot(u10, v10)"), ("t", "a=b")), latitude="Lat", time="y,m,d"
    )


def test_a_time_after_an_at_sign_is_that_of_every_row() -> None:
    mapping = Mapping.parse(["time=@2012-03-01T06:00Z"])
    assert mapping == Mapping(constant_time="2012-03-01T06:00Z")


@pytest.mark.parametrize("text", ["temperature", "=t", "temperature=", " = "])
def test_a_text_that_maps_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a mapping such as"):
        Mapping.parse([text])


def test_a_feature_mapped_twice_is_refused() -> None:
    with pytest.raises(InputError, match="got t again"):
        Mapping.parse(["t=a", "t=b"])


def test_expressions() -> None:
    assert parse(" t@surface ") == Name("t@surface")
    assert parse("wind_speed( u , v )") == Call("wind_speed", (Name("u"), Name("v")))
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
def test_operators_bind_as_in_arithmetic(text: str, written: str) -> None:
    assert str(parse(text)) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hypot(u)", r"expected 2 arguments of hypot\(...\), got 1"),
        ("celsius_to_kelvin(a, b)", "expected 1 arguments of"),
        ("hypot(u,)", "expected a name, a number or a text"),
        ("hypot()", "expected 2 arguments"),
        ("coalesce(a)", "expected 2 to 16 arguments"),
        ("nullif(a, b)", "expected numbers or texts behind the first"),
        ("sqrt(a)", "expected one of the functions celsius_to_kelvin, coalesce"),
        ("Temp (C) ?", "at character 9 of"),
        ("a b", "expected an operator or the end"),
        ("(a", "expected '\\)'"),
        ("a +", "expected a name, a number or a text"),
        ("(" * 5000 + "a", "at most 200 words"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


def evaluated(text: str, kind: FeatureType = "float", **columns: pa.Array) -> list[Any]:
    rows = len(next(iter(columns.values())))
    result: list[Any] = (
        Columns(columns, rows=rows, first_row=0).evaluate(parse(text), kind).to_pylist()
    )
    return result


def test_functions_compute_what_they_say() -> None:
    u, v = pa.array([3.0, None, -5.0]), pa.array([4.0, 1.0, 12.0])
    for name in ("hypot", "wind_speed"):
        assert evaluated(f"{name}(u, v)", u=u, v=v) == [5.0, None, 13.0]
    assert evaluated("celsius_to_kelvin(t)", t=pa.array([-40.0])) == pytest.approx([233.15])
    assert evaluated("fahrenheit_to_kelvin(t)", t=pa.array([-40.0, 32.0, 212.0])) == pytest.approx(
        [233.15, 273.15, 373.15]
    )


def test_arithmetic_keeps_missing_values_and_divides_by_nothing_but_numbers() -> None:
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
def test_nullif_knows_a_sentinel_however_it_is_stored(column: pa.Array, sentinel: str) -> None:
    assert evaluated(f"nullif(x, 12345, {sentinel})", x=column) == [None, 1.0, None]
    assert evaluated(f"coalesce(nullif(x, {sentinel}), 7)", x=column) == [7.0, 1.0, 7.0]


def test_large_whole_numbers_are_compared_exactly() -> None:
    column = pa.array([2**53, 2**53 + 1])
    assert evaluated(f"nullif(x, {2**53})", "int", x=column) == [None, 2**53 + 1]


def test_a_mapping_is_made_of_what_python_has() -> None:
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
    with pytest.raises(InputError, match="expected a mapping such as"):
        Mapping.of([3])  # type: ignore[list-item]
