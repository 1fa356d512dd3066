"""Durations and instants, as people write them and as the store keeps them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.model import times

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_US = -62_135_596_800 * times.MICROS
LAST_US = 253_402_300_800 * times.MICROS - 1

instants = st.integers(FIRST_US, LAST_US)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("250ms", 0.25),
        ("10us", 1e-5),
        ("1s", 1.0),
        ("15m", 900.0),
        ("15min", 900.0),
        ("1.5h", 5400.0),
        (" 7 d ", 604800.0),
        ("2w", 1209600.0),
        ("5", 5.0),
        (" 0.5 ", 0.5),
        ("10y", 315360000.0),
        ("1 hour", 3600.0),
        ("2 minutes", 120.0),
        ("1h30m", 5400.0),
        ("1 day 12 hours", 129600.0),
        (3, 3.0),
        (0.5, 0.5),
        (dt.timedelta(minutes=2), 120.0),
        (np.timedelta64(1500, "ms"), 1.5),
    ],
)
def test_seconds_valid_duration_gives_seconds(written: times.Duration, wanted: float) -> None:
    assert times.seconds(written) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    "written", ["", "h", "-1s", "-1", "1e3s", "1,5h", "1h30", "1 month", "1hm", None, True, []]
)
def test_seconds_invalid_duration_raises(written: object) -> None:
    with raises(InputError, expected="duration"):
        times.seconds(written)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [0, -1.0, "0s", float("nan"), float("inf"), dt.timedelta(0), np.timedelta64("NaT", "s")],
)
def test_seconds_zero_negative_or_infinite_raises(written: times.Duration) -> None:
    with raises(InputError, expected="positive_duration"):
        times.seconds(written)


@pytest.mark.parametrize(
    "written",
    [
        "2012-03-01T06:00:00Z",
        "2012-03-01T06:00:00",
        "2012-03-01 06:00",
        "2012-03-01T07:00:00+01:00",
        "20120301T060000Z",
        dt.datetime(2012, 3, 1, 6),
        dt.datetime(2012, 3, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
        np.datetime64("2012-03-01T06:00:00"),
        pd.Timestamp("2012-03-01 06:00"),
        pd.Timestamp("2012-03-01 06:00", tz="UTC"),
    ],
)
def test_micros_valid_instant_gives_microseconds(written: times.Instant) -> None:
    assert times.micros(written) == 1_330_581_600 * times.MICROS


def test_micros_date_gives_its_midnight() -> None:
    assert times.micros(dt.date(1970, 1, 2)) == 86_400 * times.MICROS


@pytest.mark.parametrize(
    "written",
    ["", "soon", "now", "today", "NaT", "01/02/2012", "March 1, 2012", None, pd.NaT, "2012-13-01"],
)
def test_micros_invalid_instant_raises(written: object) -> None:
    with raises(InputError, expected="time"):
        times.micros(written)  # type: ignore[arg-type]


@given(instants)
def test_iso_random_instant_round_trips(value_us: int) -> None:
    text = times.iso(value_us)
    assert dt.datetime.fromisoformat(text) == EPOCH + dt.timedelta(microseconds=value_us)
    assert times.micros(text) == value_us
    assert ("." in text) == (value_us % times.MICROS != 0)


@given(st.lists(instants, max_size=8))
def test_iso_column_random_instants_equals_iso(values_us: list[int]) -> None:
    column = times.iso_column(np.array(values_us, dtype=np.int64))
    assert column.to_pylist() == [times.iso(value) for value in values_us]


def test_iso_first_and_last_year_has_four_digits() -> None:
    assert times.iso(FIRST_US) == "0001-01-01T00:00:00Z"
    assert times.iso(LAST_US) == "9999-12-31T23:59:59.999999Z"


def test_iso_instant_beside_calendar_gives_text() -> None:
    assert times.iso(LAST_US + 1) == "10000-01-01T00:00:00Z"
    assert times.iso(FIRST_US - times.MICROS // 2) == "0000-12-31T23:59:59.500000Z"


# --- columns ---------------------------------------------------------------------------------


@given(st.lists(instants, max_size=8))
def test_times_from_micros_random_instants_round_trip(values_us: list[int]) -> None:
    column = times.times_from_micros(np.array(values_us, dtype=np.int64))
    assert column.type == times.TIME_TYPE
    assert times.column_micros(column).tolist() == values_us
    assert times.time_column(column).equals(column)


@pytest.mark.parametrize(
    ("unit", "factor"), [("s", 10**6), ("ms", 10**3), ("us", 1), ("ns", 10**-3)]
)
@pytest.mark.parametrize("zone", [None, "UTC", "America/Denver", "+02:00"])
def test_time_column_timestamp_of_any_unit_and_zone_is_converted(
    unit: str, factor: float, zone: str | None
) -> None:
    numbers = [0, 1_330_581_600_000, -86_400_000]
    column = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, tz=zone))
    got = times.column_micros(times.time_column(column)).tolist()
    assert got == [int(number * factor) for number in numbers]


def test_time_column_dates_give_midnights() -> None:
    for kind in (pa.date32(), pa.date64()):
        column = pa.array([dt.date(1970, 1, 2), None]).cast(kind)
        assert times.time_column(column).cast(pa.int64()).to_pylist() == [86_400_000_000, None]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("chunked", [False, True])
def test_time_column_texts_with_mixed_offsets_are_parsed(
    kind: pa.DataType, *, chunked: bool
) -> None:
    texts = ["1970-01-01T01:00:00+01:00", "1969-12-31 19:00-05:00", None, "1970-01-01", ""]
    texts[4] = "1970-01-01T00:00:00.000001Z"
    column = pa.array(texts, kind)
    parsed = times.time_column(pa.chunked_array([column[:2], column[2:]]) if chunked else column)
    assert parsed.type == times.TIME_TYPE
    assert parsed.cast(pa.int64()).to_pylist() == [0, 0, None, 0, 1]


@given(
    st.lists(
        st.none()
        | st.builds(
            "".join,
            st.tuples(
                st.sampled_from(["2012-03-01", "20120301", " 1969-12-31"]),
                st.sampled_from(["T06", " 06:30", "T06:30:15", " 06:30:15.25", "T06:30\t"]),
                st.sampled_from(["", "Z", "+05:00", "-0330", "+01", "+05:00\t"]),
            ),
        )
        | st.sampled_from(["2012-03-01", " 2012-03"]),
        max_size=8,
    )
)
def test_time_column_random_texts_equals_micros(texts: list[str | None]) -> None:
    found = times.time_column(pa.array(texts, pa.string())).cast(pa.int64()).to_pylist()
    assert found == [None if text is None else times.micros(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1500-01-01", "1500-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999Z"),
        ("2012/3/1 6:00", "2012-03-01T06:00:00Z"),
        ("2012-03", "2012-03-01T00:00:00Z"),
        ("2012-02-29T24:00", ""),
        ("2012-03 06:00", ""),
        ("2012-03-01T06:60", ""),
        ("2012-03-01T06:00+24:00", ""),
        ("2012-03-01T600", ""),
        ("0000-01-01", ""),
        ("\N{FULLWIDTH DIGIT TWO}012-03-01", ""),
    ],
)
def test_time_column_any_text_form_equals_micros(text: str, wanted: str) -> None:
    read: list[str] = []
    for micros in (
        lambda: times.micros(text),
        # Two forms in one column, which Arrow's own parser refuses.
        lambda: times.column_micros(times.time_column(pa.array([text, "2012-03-01T06Z"])))[0],
    ):
        try:
            read.append(times.iso(int(micros())))
        except InputError:
            read.append("")
    assert read == [wanted, wanted]


def test_time_column_no_values_gives_nulls() -> None:
    for texts in ([], [None, None]):
        parsed = times.time_column(pa.array(texts, pa.string()))
        assert parsed.type == times.TIME_TYPE
        assert parsed.to_pylist() == texts


def test_time_column_nanoseconds_round_down() -> None:
    naive = pa.array([-1, 1, 999, 1999, None], pa.int64()).cast(pa.timestamp("ns"))
    wanted = [-1, 0, 0, 1, None]
    for column in (naive, naive.cast(pa.timestamp("ns", "UTC")), pa.chunked_array([naive])):
        assert times.time_column(column).cast(pa.int64()).to_pylist() == wanted
    text = "1969-12-31T23:59:59.999999999Z"
    assert times.time_column(pa.array([text])).cast(pa.int64()).to_pylist() == [-1]
    assert times.micros(text) == -1


@pytest.mark.parametrize(
    "text", ["soon", "", "now", "today", "2012-13-01", "01/02/2012", "2012-02-30", "2012111"]
)
def test_time_column_invalid_text_raises_with_row(text: str) -> None:
    with raises(InputError, row=2, expected="iso_8601", column="time"):
        times.time_column(pa.array(["2012-03-01", None, text]))


@pytest.mark.parametrize("unit", ["s", "ms"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_time_column_overflow_raises(unit: str, zone: str | None) -> None:
    column = pa.array([2**62], pa.int64()).cast(pa.timestamp(unit, tz=zone))
    with raises(InputError, expected="microseconds", column="time"):
        times.time_column(column)


@pytest.mark.parametrize("values", [[1.0], [1], [True], [b"x"]])
def test_time_column_other_type_raises(values: list[object]) -> None:
    with raises(InputError, expected="times", column="time"):
        times.time_column(pa.array(values))


@pytest.mark.parametrize("number", [1 << 62, (1 << 63) - 1, -(1 << 62)])
@pytest.mark.parametrize("unit", ["Y", "M", "D", "s"])
def test_micros_instant_that_64_bits_do_not_hold_raises(number: int, unit: Any) -> None:
    with pytest.raises(InputError):
        times.micros(np.datetime64(number, unit))
