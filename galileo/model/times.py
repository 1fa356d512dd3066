"""Times and durations, as people write them and as the store keeps them.

Inside Galileo a time is a whole number of microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError

MICROS = 1_000_000
TIME_TYPE = pa.timestamp("us", tz="UTC")
TIME_MIN_US = -62_135_596_800 * MICROS
"""0001-01-01T00:00:00Z, the first instant that ISO 8601 text of four-digit years can say."""
TIME_MAX_US = 253_402_300_800 * MICROS - 1
"""9999-12-31T23:59:59.999999Z, the last one."""

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

# Year first, as in ISO 8601: 01/02/2012 is January to some and February to others, and "now"
# would be another instant each time that it is read.
_YEAR_FIRST = r"^\s*[0-9]{4}"
_OFFSET = r"[0-9][T\s][0-9:.,]+\s*[-+][0-9:]+\s*$"

Duration = str | float | dt.timedelta | np.timedelta64
Instant = str | dt.datetime | dt.date | np.datetime64
"""A `pandas.Timestamp` is a datetime."""


def seconds(value: Duration) -> float:
    """Seconds of a duration: "250ms", "1h30m", "1 hour", a number of seconds or a timedelta.

    A number without a unit is seconds, as a text too. A year has 365 days.

    Raises:
        InputError: it is not a duration, or not above zero.
    """
    result = _seconds(value)
    if not 0 < result < float("inf"):
        raise InputError(f"expected a duration above zero, got {value!r}")
    return result


def _seconds(value: Duration) -> float:
    if isinstance(value, np.timedelta64):
        return float(value / np.timedelta64(1, "us")) / MICROS
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and _DURATION.fullmatch(value):
        parts = _PART.findall(value) or [(value, "s")]
        if all(unit in _UNITS_S for _, unit in parts):
            return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    raise InputError(
        f"expected a duration such as '250ms', '10s', '1h30m', '7d' or '1y', got {value!r}"
    )


def micros(value: Instant) -> int:
    """Microseconds of an instant; without a zone it is UTC.

    Raises:
        InputError: it is not a time.
    """
    if isinstance(value, str) and not re.match(_YEAR_FIRST, value):
        raise _not_a_time(value)
    try:
        stamp = pd.Timestamp(value)
    except (ValueError, TypeError) as error:
        raise _not_a_time(value) from error
    if pd.isna(stamp):
        raise _not_a_time(value)
    stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp.tz_convert("UTC")
    return int(stamp.as_unit("us").asm8.astype("datetime64[us]").astype(np.int64))


def _not_a_time(value: object) -> InputError:
    return InputError(f"expected a time such as '2012-03-01T06:00:00Z', got {value!r}")


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
    if pa.types.is_timestamp(kind):
        return _in_micros(values)
    if pa.types.is_date(kind):
        return _in_micros(pc.cast(values, pa.timestamp("ms")))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _parsed(values)
    raise InputError(
        f"expected times in column 'time' (timestamp, date or ISO 8601 text), got {kind}; "
        "convert numbers first, for they do not say their unit"
    )


def _in_micros(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Timestamps of any unit; inside, with or without a zone, they count from 1970 UTC."""
    unit = values.type.unit
    naive = pc.cast(pc.cast(values, pa.int64()), pa.timestamp(unit))
    if unit == "ns":
        naive = pc.floor_temporal(naive, unit="microsecond")
    try:
        whole = pc.cast(naive, pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        raise InputError(f"expected times that microseconds can hold: {error}") from error
    return pc.cast(pc.cast(whole, pa.int64()), TIME_TYPE)


def _parsed(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    texts = pc.cast(values, pa.string())
    # Apart, for to pandas a text without an offset has that of the text before it.
    has_offset = pc.match_substring_regex(texts, _OFFSET)
    parsed = pc.coalesce(
        *(_stamps(pc.if_else(mask, texts, None)) for mask in (pc.invert(has_offset), has_offset))
    )
    good = pc.and_(pc.is_valid(parsed), pc.match_substring_regex(texts, _YEAR_FIRST))
    row = pc.index(good, pa.scalar(False)).as_py()
    if row >= 0:
        raise InputError(
            "expected ISO 8601 texts of the years 1678 to 2261 in column 'time', "
            f"got {texts[row].as_py()!r} in row {row}",
            row=row,
        )
    return parsed


def _stamps(texts: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Times, and null where a text is none."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), TIME_TYPE)
    stamps = pd.to_datetime(texts.to_pandas(), utc=True, format="ISO8601", errors="coerce")
    return pa.Array.from_pandas(stamps.dt.as_unit("us"), type=TIME_TYPE)


def column_micros(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    """Microseconds of a `TIME_TYPE` column without nulls."""
    numbers: Any = pc.cast(values, pa.int64())
    return np.asarray(numbers.to_numpy(), dtype=np.int64)


def times_from_micros(values: npt.NDArray[np.int64]) -> pa.Array:
    """A `TIME_TYPE` array of microseconds."""
    return pa.array(values, type=pa.int64()).cast(TIME_TYPE)


def iso(value_us: int) -> str:
    """ISO 8601 text in UTC; fractions only where there are any.

    Years have four digits, more where they need them: the last window ends in the year 10000.
    """
    text, fraction = str(np.datetime64(value_us // MICROS, "s")), value_us % MICROS
    return f"{text}.{fraction:06d}Z" if fraction else f"{text}Z"


def iso_column(values_us: npt.NDArray[np.int64]) -> pa.Array:
    """ISO 8601 texts in UTC, in bulk; the same texts as `iso`."""
    unique, inverse = np.unique(values_us, return_inverse=True)
    texts = pa.array([iso(int(value)) for value in unique], type=pa.string())
    return texts.take(pa.array(inverse))
