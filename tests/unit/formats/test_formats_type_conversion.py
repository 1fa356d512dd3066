from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InvalidObservations
from galileo.formats.type_conversion import TypeGuess, convert, time_columns, times
from galileo.model.schema import FeatureType
from galileo.model.times import TIME_TYPE


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", None], "int"),
        (["1", "2.5"], "float"),
        (["1e3", ".5", "+2", "7."], "float"),
        (["true", "False"], "bool"),
        (["12a"], "text"),
        (["1", "x"], "text"),
        ([None, None], None),
        (["1234567890123456789", "+9223372036854775807"], "int"),
        (["9223372036854775808", "1"], "text"),
        (["9223372036854775808", "1.5"], "float"),
        (["01", "2"], "text"),
        (["0", "-0", "+0"], "int"),
        (["0.5", "00.5"], "float"),
        (["1", "true"], "text"),
        (["-"], "text"),
    ],
)
def test_guess_type_uses_every_value(texts: list[str | None], kind: str | None) -> None:
    guess = TypeGuess()
    for piece in texts:
        guess.add(pa.array([piece], pa.string()))
    assert guess.type == kind
    whole = TypeGuess()
    whole.add(pa.array(texts, pa.string()))
    assert whole.type == kind


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_convert_random_numbers_as_texts_round_trip(values: list[float | None]) -> None:
    texts = pa.array([None if v is None else repr(v) for v in values], pa.string())
    assert convert(texts, "float", name="x").to_pylist() == values


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array(["+1.5", "2"]), "float", [1.5, 2.0]),
        (pa.array(["9" * 18, "1"]), "int", [10**18 - 1, 1]),
        (pa.array(["+7"]), "int", [7]),
        (pa.array(["true", "False", None]), "bool", [True, False, None]),
        (pa.array([1.0, float("nan")]), "int", [1, None]),
        (pa.array([1.0, float("nan")]), "float", [1.0, None]),
        (pa.array([1, 2], pa.int16()), "float", [1.0, 2.0]),
        (pa.array([1, 2]), "text", ["1", "2"]),
        (pa.array([None, None]), "float", [None, None]),
    ],
)
def test_convert_column_takes_type_of_feature(
    column: pa.Array, kind: FeatureType, expected: list[Any]
) -> None:
    assert convert(column, kind, name="x").to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "kind", "details"),
    [
        (pa.array(["1", "2", "x1"]), "float", {"row": 2}),
        (pa.array(["1", "2.5"]), "int", {"row": 1}),
        (pa.array(["yes"]), "bool", {"row": 0}),
        (pa.array([1.0, 2.5]), "int", {"row": 1}),
        (pa.array([[1]]), "float", {}),
    ],
)
def test_convert_invalid_value_raises_with_row(
    column: pa.Array, kind: FeatureType, details: dict[str, int]
) -> None:
    with raises(InvalidObservations, column="x", **details):
        convert(column, kind, name="x")


def test_time_columns_splits_names_of_parts() -> None:
    assert time_columns("valid") == ("valid",)
    assert time_columns("year, month,day") == ("year", "month", "day")
    assert time_columns("epoch_ms( t )") == ("t",)


@given(st.datetimes(dt.datetime(1850, 1, 1), dt.datetime(2200, 1, 1)))
def test_times_random_parts_equal_calendar(moment: dt.datetime) -> None:
    second = moment.second + moment.microsecond / 1e6
    parts = [moment.year, moment.month, moment.day, moment.hour, moment.minute, second]
    columns = [pa.array([part, None]) for part in parts]
    result = times(columns, "year,month,day,hour,minute,second")
    assert result.type == TIME_TYPE
    assert result.to_pylist() == [moment.replace(tzinfo=dt.UTC), None]


@pytest.mark.parametrize(
    "parts",
    [
        *((2023, 2, 29, 0), (2023, 13, 1, 0), (2023, 0, 1, 0), (2023, 4, 31, 0), (2023, 4, 3, 24)),
        *((2023, 1, 1, -1), (2023.5, 1, 1, 0), (2023, 1.5, 1, 0), (2023, 1, 1.5, 2)),
        *((0, 1, 1, 0), (10_000, 1, 1, 0), (1e15, 1, 1, 0), (-9999, 1, 1, 0)),
        *((float("inf"), 1, 1, 0), (2023, 1, float("inf"), 0), (2023, 1, 1, -float("inf"))),
    ],
)
def test_times_invalid_date_raises_with_row(parts: tuple[int, ...]) -> None:
    columns = [pa.array([2020.0 if i == 0 else 1.0, part]) for i, part in enumerate(parts)]
    with raises(InvalidObservations, row=1, expected="time_parts"):
        times(columns, "year,month,day,hour")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((2014, 3, 1.75), dt.datetime(2014, 3, 1, 18)),
        ((2014, 3, 1.75, 0, 0), dt.datetime(2014, 3, 1, 18)),
        ((2014, 3, 31.999), dt.datetime(2014, 3, 31, 23, 58, 33, 600_000)),
        ((2014, 3, 1, 5.5), dt.datetime(2014, 3, 1, 5, 30)),
        ((2014, 3, 1, 5, 30.25), dt.datetime(2014, 3, 1, 5, 30, 15)),
        ((2014, 3, 1, 23, 59, 60.5), dt.datetime(2014, 3, 2, 0, 0, 0, 500_000)),
    ],
)
def test_times_last_part_may_have_a_fraction(
    parts: tuple[float, ...], expected: dt.datetime
) -> None:
    columns = [pa.array([float(part)]) for part in parts]
    names = ",".join(["year", "month", "day", "hour", "minute", "second"][: len(parts)])
    found = times(columns, names).to_pylist()
    assert found == [expected.replace(tzinfo=dt.UTC)]


def test_times_missing_parts_raises() -> None:
    with raises(InvalidObservations, expected="time_parts"):
        times([pa.array([2020]), pa.array([1])], "year,month")


@pytest.mark.parametrize(
    ("column", "source"),
    [
        (pa.array([1.5, None]), "epoch_s(t)"),
        (pa.array([1500, None]), "epoch_ms(t)"),
        (pa.array(["1.5", None]), "epoch_s(t)"),
        (pa.array(["1970-01-01 00:00:01.5", None]), "t"),
        (pa.array(["1970-01-01T01:00:01.5+01:00", None]), "t"),
        (pa.array(np.array([1500, "NaT"], dtype="datetime64[ms]")), "t"),
    ],
)
def test_times_any_form_is_converted(column: pa.Array, source: str) -> None:
    moment = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)
    assert times([column], source).to_pylist() == [moment, None]


@given(st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=50))
def test_times_epoch_of_doubles_is_rounded_to_microseconds(micros: list[int]) -> None:
    numbers = [number / 1e6 for number in micros]
    got = times([pa.array(numbers)], "epoch_s(t)").cast(pa.int64()).to_pylist()
    assert got == [round(number * 1e6) for number in numbers]
    thousandths = times([pa.array([n * 1e3 for n in numbers])], "epoch_ms(t)")
    assert thousandths.cast(pa.int64()).to_pylist() == [round(n * 1e3 * 1e3) for n in numbers]


@pytest.mark.parametrize("column", [pa.array(["yesterday"]), pa.array([17])])
def test_times_invalid_column_raises(column: pa.Array) -> None:
    with raises(InvalidObservations, expected="times", column="t"):
        times([column], "t")


EDGES = [-(1 << 63), (1 << 63) - 1, 253_402_300_800_000 * 2, 10**19, -1e300, float("inf"), 1e22]


@pytest.mark.parametrize("number", EDGES)
@pytest.mark.parametrize("source", ["epoch_s(t)", "epoch_ms(t)"])
def test_times_number_beyond_the_calendar_raises_with_row(number: float, source: str) -> None:
    column = pa.array([0, number], pa.uint64() if number == 10**19 else None)
    with raises(InvalidObservations, column="t", row=1):
        times([column], source)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_times_random_number_of_milliseconds_equals_python(number: int) -> None:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=number)
    for column in (pa.array([number]), pa.array([float(number)])):
        assert times([column], "epoch_ms(t)").to_pylist() == [moment]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_nat_as_a_number_raises_with_row(unit: str) -> None:
    column = pa.array([0, -(1 << 63)]).view(pa.timestamp(unit))
    with raises(InvalidObservations, row=1):
        times([column], "t")
