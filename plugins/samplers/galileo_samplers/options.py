"""Options, checked when a query is submitted rather than in its first cycle.

They come from JSON, so nothing is known about their types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from galileo.errors import InputError

PRECISION_MAX = 12


def checked_fraction(value: Any) -> float:
    if not _is_number(value) or not 0 < float(value) <= 1:
        raise InputError(f"expected a fraction above 0 and up to 1, got {value!r}")
    return float(value)


def checked_count(value: Any) -> int:
    if not _is_whole(value) or int(value) < 1:
        raise InputError(f"expected per_stratum as a whole number from 1 up, got {value!r}")
    return int(value)


def checked_precision(value: Any) -> int:
    if not _is_whole(value) or not 1 <= int(value) <= PRECISION_MAX:
        raise InputError(f"expected a precision from 1 to {PRECISION_MAX}, got {value!r}")
    return int(value)


def checked_width_us(value: Any) -> int:
    """Microseconds of a duration such as "6h", or of a number of seconds."""
    try:
        seconds = pd.Timedelta(value, unit="s") if _is_number(value) else pd.Timedelta(str(value))
    except (ValueError, OverflowError) as error:
        raise InputError(f"expected a width such as '15m', '6h' or '7d', got {value!r}") from error
    width_us = seconds.value // 1_000
    if pd.isna(seconds) or width_us < 1:
        raise InputError(f"expected a width above zero, got {value!r}")
    return int(width_us)


def checked_edges(value: Any) -> tuple[float, ...]:
    """Inner edges between intervals: finite numbers that increase, at least one."""
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    rising = all(_is_number(item) for item in items) and items == sorted(set(items))
    if not items or not rising or not all(abs(item) < float("inf") for item in items):
        raise InputError(f"expected edges as increasing numbers, got {value!r}")
    return tuple(float(item) for item in items)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
