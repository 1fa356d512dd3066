from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InvalidObservations
from galileo.formats.type_conversion import convert, guess_type, time_columns, times
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
        ([None, None], "text"),
        (["99999999999999999999"], "float"),
        (["-"], "text"),
    ],
)
def test_types_are_guessed_from_every_value(texts: list[str | None], kind: str) -> None:
    assert guess_type(pa.array(texts, pa.string())) == kind


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_numbers_survive_as_texts(values: list[float | None]) -> None:
    texts = pa.array([None if v is None else repr(v) for v in values], pa.string())
    assert convert(texts, "float", name="x", first_row=0).to_pylist() == values


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array(["+1.5", "2"]), "float", [1.5, 2.0]),
        (pa.array(["+7"]), "int", [7]),
        (pa.array(["true", "False", None]), "bool", [True, False, None]),
        (pa.array([1.0, float("nan")]), "int", [1, None]),
        (pa.array([1.0, float("nan")]), "float", [1.0, None]),
        (pa.array([1, 2], pa.int16()), "float", [1.0, 2.0]),
        (pa.array([1, 2]), "text", ["1", "2"]),
        (pa.array([None, None]), "float", [None, None]),
    ],
)
def test_columns_take_the_type_of_their_feature(
    column: pa.Array, kind: FeatureType, expected: list[Any]
) -> None:
    assert convert(column, kind, name="x", first_row=0).to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        (pa.array(["1", "2", "x1"]), "float", r"'x1' in row 102"),
        (pa.array(["1", "2.5"]), "int", r"'2.5' in row 101"),
        (pa.array(["yes"]), "bool", r"'yes' in row 100"),
        (pa.array([1.0, 2.5]), "int", r"2.5 in row 101"),
        (pa.array(["9" * 18, "1"]), "int", None),
        (pa.array([[1]]), "float", r"got list"),
    ],
)
def test_values_that_do_not_fit_are_named(
    column: pa.Array, kind: FeatureType, message: str | None
) -> None:
    if message is None:
        assert convert(column, kind, name="x", first_row=100).to_pylist()[1] == 1
        return
    with pytest.raises(InvalidObservations, match=message):
        convert(column, kind, name="x", first_row=100)


def test_time_columns() -> None:
    assert time_columns("valid") == ("valid",)
    assert time_columns("year, month,day") == ("year", "month", "day")
    assert time_columns("epoch_ms( t )") == ("t",)


@given(st.datetimes(dt.datetime(1850, 1, 1), dt.datetime(2200, 1, 1)))
def test_parts_make_the_same_time_as_the_calendar(moment: dt.datetime) -> None:
    second = moment.second + moment.microsecond / 1e6
    parts = [moment.year, moment.month, moment.day, moment.hour, moment.minute, second]
    columns = [pa.array([part, None]) for part in parts]
    result = times(columns, "year,month,day,hour,minute,second", first_row=0)
    assert result.type == TIME_TYPE
    assert result.to_pylist() == [moment.replace(tzinfo=dt.UTC), None]


@pytest.mark.parametrize(
    "parts",
    [(2023, 2, 29, 0), (2023, 13, 1, 0), (2023, 0, 1, 0), (2023, 4, 31, 0), (2023, 4, 3, 24)],
)
def test_dates_that_do_not_exist_are_refused(parts: tuple[int, ...]) -> None:
    columns = [pa.array([2020 if i == 0 else 1, part]) for i, part in enumerate(parts)]
    with pytest.raises(InvalidObservations, match="in row 8"):
        times(columns, "year,month,day,hour", first_row=7)


def test_a_wrong_number_of_parts_is_refused() -> None:
    with pytest.raises(InvalidObservations, match="at least the first three"):
        times([pa.array([2020]), pa.array([1])], "year,month", first_row=0)


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
def test_times_of_all_forms_are_converted(column: pa.Array, source: str) -> None:
    moment = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)
    assert times([column], source, first_row=0).to_pylist() == [moment, None]


@pytest.mark.parametrize("column", [pa.array(["yesterday"]), pa.array([17])])
def test_what_is_no_time_is_refused_with_the_way_out(column: pa.Array) -> None:
    with pytest.raises(InvalidObservations, match=r"time=epoch_s\(t\)"):
        times([column], "t", first_row=0)
