"""Finds numbers that probably mean a missing value in columns of numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import GalileoWarning

USUAL = (
    *(-99, -999, -9999, -99999, -999999, -32768, 999, 9999, 99999, 999999),
    *(-99.9, -999.9, -9999.9, 999.9, 9999.9, 1e20, -1e20, 1e30, -1e30, 1e36),
    9.969209968386869e36,  # The default of NetCDF.
)
"""Values that files use for a missing one."""
RECURS_MIN = 3


@dataclass(slots=True)
class _Column:
    """Statistics of a column: counts of usual sentinels, and the range of the other values."""

    rows: int = 0
    counts: Counter[float] = field(default_factory=Counter)
    low: float = math.inf
    high: float = -math.inf

    def is_outlier(self, value: float) -> bool:
        """Whether the value is farther from the range of the others than that range is wide."""
        gap = max(self.low - value, value - self.high)
        return self.low > self.high or gap > self.high - self.low


class SentinelSearch:
    """Finds usual sentinels in columns that come in pieces."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._texts: dict[str, bool] = {}

    def add(self, name: str, column: pa.Array) -> None:
        """Adds the next piece of a column, of which texts are looked at in the first piece."""
        if pa.types.is_string(column.type) and name not in self._texts:
            self._texts[name] = _are_fractions(column)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            return
        statistics = self._columns.setdefault(name, _Column())
        statistics.rows += len(column)
        low, high = _extremes(column)
        if _is_usual(low, column.type) or _is_usual(high, column.type):
            values = column.drop_null().to_numpy(zero_copy_only=False)
            is_sentinel = np.isin(values, _usual(column.type))
            numbers, counts = np.unique(values[is_sentinel], return_counts=True)
            statistics.counts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
            low, high = _extremes(pa.array(values[~is_sentinel]))
        if low is not None and high is not None:
            statistics.low, statistics.high = min(statistics.low, low), max(statistics.high, high)

    def warnings(self) -> list[GalileoWarning]:
        """A warning for each suspicious value of a column, and for numbers in texts."""
        texts = [
            GalileoWarning(
                f"the values of variable {name!r} are numbers and were stored as texts, since its "
                "feature is a text; for numbers, ingest the file into a new dataset"
            )
            for name, are_fractions in self._texts.items()
            if are_fractions
        ]
        return texts + [
            GalileoWarning(
                f"variable {name!r} is {value:g} in {count:,} of {column.rows:,} rows, and "
                f"{value:g} was stored as a number",
                remedy="missing_value",
                number=_as_usual(value),
            )
            for name, column in self._columns.items()
            for value, count in sorted(column.counts.items())
            if count >= RECURS_MIN and column.is_outlier(value)
        ]


def _are_fractions(column: pa.Array) -> bool:
    """Whether all texts are numbers and some have a fraction, so that they are no codes."""
    texts = column.drop_null()
    fits = pc.all(pc.match_substring_regex(texts, r"^\s*[-+]?[0-9]*\.?[0-9]+\s*$")).as_py()
    return bool(len(texts) and fits and pc.any(pc.match_substring(texts, ".")).as_py())


def _as_usual(value: float) -> str:
    """The text of a usual sentinel, with all of its digits."""
    return next(str(usual) for usual in USUAL if np.float32(usual) == np.float32(value))


def _extremes(column: pa.Array) -> tuple[float | None, float | None]:
    """Minimum and maximum without NaN and nulls; None if there are none."""
    extremes = pc.min_max(column).as_py()
    low, high = extremes["min"], extremes["max"]
    return (None, None) if low is None or math.isnan(low) else (low, high)


def _usual(kind: pa.DataType) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The usual values in the type of a column."""
    values = [value for value in USUAL if pa.types.is_floating(kind) or _fits(value, kind)]
    return np.array(values).astype(kind.to_pandas_dtype())


def _fits(value: float, kind: pa.DataType) -> bool:
    limits = np.iinfo(kind.to_pandas_dtype())
    return float(value).is_integer() and limits.min <= value <= limits.max


def _is_usual(value: float | None, kind: pa.DataType) -> bool:
    return value is not None and bool(np.isin(value, _usual(kind)))
