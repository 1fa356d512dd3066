"""Times and durations: parsing and formatting.

Inside Galileo a time is a whole number of microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError

MICROS = 1_000_000
HOUR_US = 3_600 * MICROS
DAY_US = 24 * HOUR_US
_WEEK_US = 7 * DAY_US
_MONDAY_US = -3 * DAY_US
"""1969-12-29."""
TIME_TYPE = pa.timestamp("us", tz="UTC")
NAT = -(1 << 63)
TIME_MIN_US = -62_135_596_800 * MICROS
"""0001-01-01T00:00:00Z, the first instant of ISO 8601 with four-digit years."""
DURATION_MAX_S = 9_999 * 365 * 86_400.0
"""A longer duration has no meaning in the calendar, and could not be counted in microseconds."""
TIME_MAX_US = 253_402_300_800 * MICROS - 1
"""9999-12-31T23:59:59.999999Z, the last instant of ISO 8601 with four-digit years."""

_UNITS_S = {
    unit: width_s
    for width_s, units in {
        1e-6: "us microsecond microseconds",
        1e-3: "ms millisecond milliseconds",
        1.0: "s sec second seconds",
        60.0: "m min minute minutes",
        3600.0: "h hr hour hours",
        86400.0: "d day days",
        7 * 86400.0: "w week weeks",
        365 * 86400.0: "y yr year years",
    }.items()
    for unit in units.split()
}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_DURATION = re.compile(rf"\s*(?:{_NUMBER}\s*|(?:{_PART.pattern})+)")

# Year first, as in ISO 8601: 01/02/2012 is January to some and February to others. Of the groups
# `x` and `x2` one at most is not empty: with separators one digit is enough.
_SECOND = r"(?P<second{0}>\d\d)(?:[.,](?P<fraction{0}>\d+))?"
_TIME = (
    r"^\s*(?P<year>\d{4})"
    r"(?:[-/.](?P<month>\d\d?)(?:[-/.](?P<day>\d\d?))?|(?P<month2>\d\d)(?P<day2>\d\d))?"
    r"(?:(?:[Tt]|\s+)"
    rf"(?:(?P<hour>\d\d?)(?::(?P<minute>\d\d)(?::{_SECOND.format('')})?)?"
    rf"|(?P<hour2>\d\d)(?P<minute2>\d\d)(?:{_SECOND.format('2')})?)"
    r"\s*(?:[Zz]|UTC|(?P<sign>[-+])(?P<offset_hour>\d\d)(?::?(?P<offset_minute>\d\d))?)?)?\s*$"
)
_TWICE = ("month", "day", "hour", "minute", "second", "fraction")
_TIME_IN_PYTHON = re.compile(_TIME, re.ASCII)
_ZONE = r"[Tt ]\s*\d.*(?:[Zz]|UTC|[-+]\d\d(?::?\d\d)?)\s*$"
_ROLLED_DAYS = 3
"""Days at the begin of a month that Arrow makes of days that the month before does not have."""
_WITH_ZONE = re.compile(r"\d[Zz]$|:\d+[-+]\d")
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)

Duration = str | float | dt.timedelta | np.timedelta64
Instant = str | dt.datetime | dt.date | np.datetime64
"""A `pandas.Timestamp` is a datetime."""


def seconds(value: Duration) -> float:
    """Seconds of a duration: "250ms", "1h30m", "1 hour", a number of seconds or a timedelta.

    A number without a unit is seconds, as a text too. A year has 365 days.

    Raises:
        InputError: it is not a duration, not above zero, or longer than 9,999 years.
    """
    result = _seconds(value)
    if not 0 < result <= DURATION_MAX_S:
        bound = " of at most 9,999 years" if result > DURATION_MAX_S else ""
        raise InputError(
            f"expected a duration above zero{bound}, got {value!r:.200}",
            expected="positive_duration",
        )
    return result


def duration_text(value_s: float) -> str:
    """Seconds for people, such as "30d" or "10m"."""
    units = (("d", 86400.0), ("h", 3600.0), ("m", 60.0))
    name, width = next((u for u in units if value_s >= u[1] and value_s % u[1] == 0), ("s", 1.0))
    return f"{value_s / width:g}{name}"


def _seconds(value: Duration) -> float:
    if isinstance(value, np.timedelta64):
        return float(value / np.timedelta64(1, "us")) / MICROS
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(max(-DURATION_MAX_S, min(value, 2 * DURATION_MAX_S)))
    if isinstance(value, str) and _DURATION.fullmatch(value):
        parts = _PART.findall(value) or [(value, "s")]
        if all(unit in _UNITS_S for _, unit in parts):
            return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    raise InputError(
        f"expected a duration such as '250ms', '10s', '1h30m', '7d' or '1y', got {value!r}",
        expected="duration",
    )


def micros(value: Instant) -> int:
    """Microseconds of an instant; without a zone it is UTC.

    Raises:
        InputError: it is not a time.
    """
    if isinstance(value, np.datetime64) and not np.isnat(value):
        return _from_datetime64(value)
    if isinstance(value, dt.datetime) and value == value:  # Not so pandas.NaT, which is one.
        return _from_datetime(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return _from_datetime64(np.datetime64(value))
    match = _TIME_IN_PYTHON.match(value) if isinstance(value, str) else None
    if match is None:
        raise _not_a_time(value)
    try:
        return _from_match(match)
    except ValueError as error:  # There is no such day, hour or offset.
        raise _not_a_time(value) from error


def period(text: str) -> tuple[int, int]:
    """First and last microsecond of a year, a month, a day or, of any other time, of its instant.

    Raises:
        InputError: it is not a time.
    """
    first, match = micros(text), _TIME_IN_PYTHON.match(text)
    assert match is not None, "it was read as a time"
    if match["hour"] or match["hour2"]:
        return first, first
    is_day, is_month = match["day"] or match["day2"], match["month"] or match["month2"]
    unit = "D" if is_day else "M" if is_month else "Y"
    following = np.datetime64(first, "us").astype(f"datetime64[{unit}]") + 1
    return first, micros(following) - 1


def _from_match(match: re.Match[str]) -> int:
    """As `_read`, of one text."""

    def number(name: str, default: str = "0") -> int:
        return int(match[name] or (name in _TWICE and match[f"{name}2"]) or default)

    if (match["hour"] or match["hour2"]) and not (match["day"] or match["day2"]):
        raise ValueError("an hour without its day")
    fraction = (match["fraction"] or match["fraction2"] or "").ljust(6, "0")[:6]
    date = (number("year"), number("month", "1"), number("day", "1"))
    clock = (number("hour"), number("minute"), number("second"), int(fraction))
    east = dt.time(number("offset_hour"), number("offset_minute"))
    offset = dt.timedelta(hours=east.hour, minutes=east.minute)
    since = dt.datetime(*date, *clock) - _EPOCH
    return (since + offset if match["sign"] == "-" else since - offset) // _MICROSECOND


def _from_datetime(value: dt.datetime) -> int:
    offset = value.utcoffset() or dt.timedelta()
    return int((value.replace(tzinfo=None) - _EPOCH - offset) // _MICROSECOND)


def _from_datetime64(value: np.datetime64) -> int:
    if not -1e4 < value.astype("datetime64[Y]").astype(np.int64) < 1e5:  # NumPy would wrap around.
        raise _not_a_time(value)
    return int(value.astype("datetime64[us]").astype(np.int64))


def _not_a_time(value: object) -> InputError:
    return InputError(
        f"expected a time such as '2012-03-01T06:00:00Z', got {value!r}", expected="time"
    )


def time_column(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """A column of times as `TIME_TYPE`; naive times are UTC.

    Nanoseconds become the microsecond that they lie in, before 1970 too.

    Args:
        values: timestamps of any unit and zone, dates, or ISO 8601 texts.

    Raises:
        InputError: the column's type holds no times, a text does not parse, or a time is too
            far from 1970 for 64 bits of microseconds.
    """
    kind = values.type
    if pa.types.is_null(kind):
        return values.cast(TIME_TYPE)
    if pa.types.is_timestamp(kind):
        return _in_micros(values)
    if pa.types.is_date(kind):
        return _in_micros(pc.cast(values, pa.timestamp("ms")))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _parse(values)
    raise InputError(
        f"expected times in column 'time' (timestamp, date or ISO 8601 text), got {kind}; "
        "convert numbers first, for they do not say their unit",
        expected="times",
        column="time",
    )


def local_times(texts: pa.Array, *, format: str, zone: str) -> pa.Array:
    """Times of texts as `TIME_TYPE`.

    Args:
        texts: times, or null.
        format: as of `strptime`; "" for ISO 8601.
        zone: of times that say none; "" for UTC. Of an hour that clocks show twice, it is the
            first.

    Raises:
        InputError: a text is no such time, or one that clocks of the zone skip; names the row.
    """
    if format:
        times = pc.strptime(texts, format=format, unit="us", error_is_null=True)
        is_wrong = pc.or_(pc.xor(times.is_null(), texts.is_null()), _is_rolled(texts, format))
        _refuse_text(is_wrong, texts, f"times of the format {format!r}")
        has_zone = pa.scalar(times.type.tz is not None)
    else:
        times, has_zone = time_column(texts), pc.match_substring_regex(texts, _ZONE)
    times = pc.cast(pc.cast(times, pa.int64()), TIME_TYPE)
    return times if not zone else pc.if_else(has_zone, times, in_zone(times, zone, texts=texts))


def in_zone(times: pa.Array, zone: str, *, texts: pa.Array | None = None) -> pa.Array:
    """Times that were read as UTC and are those of clocks in a zone.

    Raises:
        InputError: clocks of the zone skip one of them; names the row.
    """
    naive = pc.cast(pc.cast(times, pa.int64()), pa.timestamp("us"))
    there = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest")
    skipped = pc.fill_null(pc.not_equal(pc.local_timestamp(there), naive), False)
    _refuse_text(
        skipped, naive if texts is None else texts, f"times of {zone}, as clocks show them"
    )
    return pc.cast(pc.cast(there, pa.int64()), TIME_TYPE)


def _is_rolled(texts: pa.Array, format: str) -> pa.Array:
    """Whether a text names a day that its month does not have, of which Arrow makes a later one."""
    if "%z" in format:
        texts = pc.replace_substring_regex(texts, r"[-+]\d\d:?\d\d$", "")
        format = format.replace("%z", "")
    times = pc.strptime(texts, format=format, unit="s", error_is_null=True)
    again, given = (
        pc.replace_substring_regex(pc.utf8_lower(column), r"\b0+(\d)", r"\1")
        for column in (pc.strftime(times, format=format), texts)
    )
    is_early = pc.less_equal(pc.day(times), _ROLLED_DAYS)
    return pc.fill_null(pc.and_(is_early, pc.not_equal(again, given)), False)


def _refuse_text(flags: pa.Array, texts: pa.Array, expected: str) -> None:
    row = flags.index(pa.scalar(True)).as_py()
    if row >= 0:
        raise InputError(
            f"expected {expected}, got {str(texts[row].as_py())!r} in row {row}",
            row=row,
            expected="time_format",
        )


def _in_micros(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Timestamps of any unit; inside, with or without a zone, they count from 1970 UTC."""
    unit = values.type.unit
    numbers = pc.cast(values, pa.int64())
    if pc.any(pc.equal(numbers, NAT)).as_py():
        raise InputError(
            f"expected times, got the number {NAT}, which is NumPy's missing time (NaT), in row "
            f"{pc.index(numbers, NAT).as_py()}; make it null",
            row=pc.index(numbers, NAT).as_py(),
            expected="times",
            column="time",
        )
    naive = pc.cast(numbers, pa.timestamp(unit))
    if unit == "ns":
        naive = pc.floor_temporal(naive, unit="microsecond")
    try:
        whole = pc.cast(naive, pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        raise InputError(
            f"expected times that microseconds can hold: {error}",
            expected="microseconds",
            column="time",
        ) from error
    return pc.cast(pc.cast(whole, pa.int64()), TIME_TYPE)


def _parse(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    texts = pc.cast(values, pa.string())
    first = next((text.as_py() for text in texts if text.is_valid), "")
    # Arrow reads a column of one common form many times as fast.
    with contextlib.suppress(pa.ArrowInvalid):
        zone = "UTC" if _WITH_ZONE.search(first) else None
        return _in_micros(pc.cast(texts, pa.timestamp("us", zone)))
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    times_us, is_time = _read(texts)
    is_missing = np.asarray(texts.is_null())
    if not (is_time | is_missing).all():
        row = int(np.argmin(is_time | is_missing))
        raise InputError(
            "expected ISO 8601 texts of the years 1 to 9999 in column 'time', "
            f"got {texts[row].as_py()!r} in row {row}",
            row=row,
            expected="iso_8601",
            column="time",
        )
    return pa.array(times_us, pa.int64(), mask=is_missing).cast(TIME_TYPE)


def _read(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Microseconds of ISO 8601 texts, and which of them are times."""
    fields = pc.extract_regex(texts, _TIME)
    year, month, day = (_number(fields, name, default=1) for name in ("year", "month", "day"))
    hour, minute, second = (_number(fields, name) for name in ("hour", "minute", "second"))
    offset_hour, offset_minute = (_number(fields, f"offset_{name}") for name in ("hour", "minute"))
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first, following = (month.astype("datetime64[D]") for month in (months, months + 1))
    is_time = np.asarray(fields.is_valid()) & (year >= 1) & (month >= 1) & (month <= 12)
    is_time &= (day >= 1) & (first + (day - 1) < following)
    is_time &= (hour < 24) & (minute < 60) & (second < 60) & (offset_minute < 60)
    is_time &= (offset_hour < 24) & np.asarray(
        pc.or_(pc.equal(_text(fields, "hour"), ""), pc.not_equal(_text(fields, "day"), ""))
    )
    east = np.where(np.asarray(pc.equal(_text(fields, "sign"), "-")), -1, 1)
    minutes = hour * 60 + minute - east * (offset_hour * 60 + offset_minute)
    seconds = (first.astype(np.int64) + day - 1) * 86_400 + minutes * 60 + second
    return seconds * MICROS + _number(fields, "fraction"), is_time


def _number(fields: pa.StructArray, name: str, *, default: int = 0) -> npt.NDArray[np.int64]:
    """A group of `_TIME` in all rows; of a fraction the microseconds."""
    text = _text(fields, name)
    if name == "fraction":
        text = pc.utf8_slice_codeunits(pc.utf8_rpad(text, width=6, padding="0"), 0, 6)
    text = pc.if_else(pc.equal(text, ""), str(default), text)
    return np.asarray(pc.cast(text, pa.int64()), dtype=np.int64)


def _text(fields: pa.StructArray, name: str) -> pa.Array:
    """A group of `_TIME`; empty if it did not take part in the match."""
    names = (name, f"{name}2") if name in _TWICE else (name,)
    return pc.binary_join_element_wise(
        *(pc.fill_null(pc.struct_field(fields, name), "") for name in names), ""
    )


def column_micros(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    """Microseconds of a `TIME_TYPE` column without nulls; of one chunk, they share its memory."""
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        values = values.chunk(0)
    is_view = isinstance(values, pa.Array) and values.type == TIME_TYPE  # A tenth of a cast's time.
    numbers: Any = values.view(pa.int64()) if is_view else pc.cast(values, pa.int64())
    return np.asarray(numbers.to_numpy(), dtype=np.int64)


def latest_us(values: pa.ChunkedArray | pa.Array) -> int:
    """The latest of the times of a column that is not empty; `TIME_MIN_US` if it is."""
    return int(column_micros(values).max()) if len(values) else TIME_MIN_US


def times_from_micros(values: npt.NDArray[np.int64]) -> pa.Array:
    """A `TIME_TYPE` array of microseconds."""
    return pa.array(values, type=pa.int64()).view(TIME_TYPE)


def iso(value_us: int) -> str:
    """ISO 8601 text in UTC; fractions only where there are any.

    Years have four digits, more where they need them: the last window ends in the year 10000.
    """
    text, fraction = str(np.datetime64(value_us // MICROS, "s")), value_us % MICROS
    return f"{text}.{fraction:06d}Z" if fraction else f"{text}Z"


def iso_column(values_us: npt.NDArray[np.int64]) -> pa.Array:
    """ISO 8601 texts in UTC, in bulk; the same texts as `iso`."""
    unique, inverse = np.unique(values_us, return_inverse=True)
    seconds, fractions = np.divmod(unique, MICROS)
    times = pc.cast(pc.cast(pa.array(seconds), pa.timestamp("s")), pa.string())
    times = pc.replace_substring(times, " ", "T")
    texts = pc.binary_join_element_wise(times, "Z", "")
    if fractions.any():
        digits = pc.utf8_lpad(pc.cast(pa.array(fractions), pa.string()), 6, "0")
        exact = pc.binary_join_element_wise(times, ".", digits, "Z", "")
        texts = pc.if_else(pa.array(fractions != 0), exact, texts)
    return texts.take(pa.array(inverse))


def first_window_us(width_us: int) -> int:
    """The start of window 0 of those of a width: 1970-01-01, or 1969-12-29 for whole weeks."""
    return 0 if width_us % _WEEK_US else _MONDAY_US
