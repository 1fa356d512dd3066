"""Options, checked when a query is submitted rather than in its first cycle.

They come from JSON, so nothing is known about their types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pandas as pd
import pyarrow as pa

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.samplers import Scope

PRECISION_MAX = 12
COUNT_MAX = 10_000_000
"""Labels of one sample: they are held in memory where they are merged."""
DISTANCE_MAX_M = 20_000_000.0
"""A little less than half way round the Earth."""
QUOTAS_MAX = 100_000


def checked_fraction(value: Any) -> float:
    if not _is_number(value) or not 0 < float(value) <= 1:
        raise InputError(
            f"expected a fraction above 0 and up to 1, got {value!r}", option="fraction"
        )
    return float(value)


def checked_count(value: Any, *, name: str) -> int:
    if not _is_whole(value) or not 1 <= int(value) <= COUNT_MAX:
        raise InputError(
            f"expected {name} as a whole number from 1 to {COUNT_MAX}, got {value!r}", option=name
        )
    return int(value)


def checked_quotas(value: Any) -> dict[str, int]:
    """Labels by the name of a stratum; 0 is a quota, too."""
    if not isinstance(value, Mapping) or not 1 <= len(value) <= QUOTAS_MAX:
        raise InputError(
            f"expected quotas as up to {QUOTAS_MAX} whole numbers by stratum, got {value!r}",
            expected="quotas",
            option="quotas",
        )
    for name, quota in value.items():
        if not isinstance(name, str) or not _is_whole(quota) or not 0 <= quota <= COUNT_MAX:
            raise InputError(
                f"expected a whole number from 0 to {COUNT_MAX} as quota of {name!r}, "
                f"got {quota!r}",
                expected="quota",
                option="quotas",
            )
    return dict(value)


def checked_scope(value: Any) -> Scope:
    if value not in get_args(Scope):
        raise InputError(
            f"expected a scope of {list(get_args(Scope))}, got {value!r}",
            expected="scope",
            option="scope",
        )
    scope: Scope = value
    return scope


def checked_distance_m(value: Any) -> float:
    if not _is_number(value) or not 0 < float(value) <= DISTANCE_MAX_M:
        raise InputError(
            f"expected distance_m as metres above 0 and up to {DISTANCE_MAX_M:.0f}, got {value!r}",
            option="distance_m",
        )
    return float(value)


def checked_scale(value: Any) -> float:
    if not _is_number(value) or not 0 < float(value) < math.inf:
        raise InputError(
            f"expected scale as a finite number above 0, got {value!r}", option="scale"
        )
    return float(value)


def checked_feature(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"expected a feature by name, got {value!r}", option="feature")
    return value


def checked_precision(value: Any) -> int:
    if not _is_whole(value) or not 1 <= int(value) <= PRECISION_MAX:
        raise InputError(
            f"expected a precision from 1 to {PRECISION_MAX}, got {value!r}", option="precision"
        )
    return int(value)


def checked_width_us(value: Any) -> int:
    """Microseconds of a duration such as "6h", or of a number of seconds."""
    try:
        seconds = pd.Timedelta(value, unit="s") if _is_number(value) else pd.Timedelta(str(value))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"expected a width such as '15m', '6h' or '7d', got {value!r}",
            expected="duration",
            option="width",
        ) from error
    width_us = seconds.value // 1_000
    if pd.isna(seconds) or width_us < 1:
        raise InputError(
            f"expected a width above zero, got {value!r}",
            expected="positive_duration",
            option="width",
        )
    return int(width_us)


def checked_edges(value: Any) -> tuple[float, ...]:
    """Inner edges between intervals: finite numbers that increase, at least one."""
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    rising = all(_is_number(item) for item in items) and items == sorted(set(items))
    if not items or not rising or not all(abs(item) < float("inf") for item in items):
        raise InputError(f"expected edges as increasing numbers, got {value!r}", option="edges")
    return tuple(float(item) for item in items)


def feature_column(labels: LabelSet, name: str) -> pa.Array:
    """An indexed feature's values.

    Raises:
        InputError: the dataset has no such feature.
    """
    names = [feature.name for feature in labels.schema.indexed]
    if name not in names:
        raise InputError(
            f"expected an indexed feature of {names}, got {name!r}",
            expected="indexed_feature",
            feature=name,
        )
    column = labels.table.column(name)
    return pa.concat_arrays(column.chunks) if len(labels) else pa.array([], column.type)


def is_numeric(column: pa.Array) -> bool:
    return bool(pa.types.is_floating(column.type) or pa.types.is_integer(column.type))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
