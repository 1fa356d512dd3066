"""Groups of observations with their counts and the statistics of features; groups of parts merge.

A group is a row of columns, as a path is. A path, or an observation, begins as a group of its own,
and `Groups.merged` makes one group of those with equal keys, in the order of the keys. The groups
of portions, runs and nodes merge in the same way, so that what a node sends is what it has made.

A key is one or two columns of 64-bit integers whose order is that of its values, null last: a
cell, the number of a window, the bits of a double, the code of a text. Merging combines the keys
of a group into one integer. Where these are dense, sums and extremes are scattered into arrays of
their range; else the integers are first numbered by a hash table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.geo import geohash
from galileo.graph.columns import StringDictionary
from galileo.graph.group_keys import Ints, key_columns
from galileo.graph.group_values import GroupValues
from galileo.model.grouping import CellKey, Grouping, WindowKey, known, parts_of
from galileo.model.schema import Schema
from galileo.model.times import column_micros
from galileo.query.columns import (
    BoolColumn,
    Columns,
    FeatureColumn,
    IntColumn,
    TextColumn,
    from_arrow,
)

DENSE_SHARE = 4
"""Combined keys are dense if their range is at most so many times their number."""
_RANGE_MAX = 1 << 62
_LAST = np.iinfo(np.int64).max

Floats: TypeAlias = npt.NDArray[np.float64]
Extremes: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Arrays: TypeAlias = tuple[Extremes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """What statistics of one feature in k groups are computed of.

    Attributes:
        count: observations with a value, shape (k,).
        parts: others of `PARTS` that are needed, arrays of shape (k,).
        values: of which percentiles are computed; None if none are needed. Merging changes their
            sketches, so that a measure is merged once.
        texts: of a text feature, whose values in `parts` are codes in this dictionary.
    """

    count: Ints
    parts: Mapping[str, Arrays]
    values: GroupValues | None = None
    texts: StringDictionary | None = None

    @classmethod
    def of(
        cls,
        column: FeatureColumn,
        weights: Ints,
        statistics: Sequence[str],
        *,
        times: Ints | None = None,
        texts: StringDictionary | None = None,
    ) -> Measure:
        """The values of a column, each a group of `weights` observations.

        Args:
            column: of a feature.
            weights: shape (k,).
            statistics: of `STATISTICS`, and percentiles.
            times: of observations, microseconds; needed by "first" and "last".
            texts: to which texts are added; needed by "first" and "last" of texts.
        """
        valid = column.valid
        is_complete = bool(valid.all())
        count: Ints = weights if is_complete else np.where(valid, weights, np.int64(0))
        is_text = isinstance(column, TextColumn)
        if isinstance(column, TextColumn):
            column = column if texts is None else texts.encode(column)
            values: Extremes = column.codes.astype(np.int64)
        elif isinstance(column, IntColumn | BoolColumn):
            values = column.values.astype(np.int64, copy=False)
        else:
            values = column.numbers
        parts: dict[str, Arrays] = {}
        for name in parts_of(statistics):
            part = PARTS[name]
            with np.errstate(over="ignore", invalid="ignore"):
                each = part.begin(Values(values, weights, times))
            if not is_complete:
                pairs = zip(each, part.missing(values.dtype), strict=True)
                each = tuple(np.where(valid, array, missing) for array, missing in pairs)
            parts[name] = each
        is_needed = any(known(name).share is not None for name in statistics)
        each_value = GroupValues.of(values, valid, weights) if is_needed else None
        return cls(count, parts, each_value, texts if is_text else None)

    def merged(self, numbers: Ints, size: int) -> Measure:
        """The parts of groups by their number, below `size`."""
        merging = Merging(numbers, size, self.count)
        return Measure(
            _sums(numbers, self.count, size).astype(np.int64),
            {name: self._folded(name, merging) for name in self.parts},
            None if self.values is None else self.values.renumbered(numbers),
            self.texts,
        )

    def _folded(self, name: str, merging: Merging) -> Arrays:
        if self.texts is None:
            return PARTS[name].fold(merging, *self.parts[name])
        times, codes = self.parts[name]
        known, ranks = self.count > 0, codes.copy()
        ranks[known], by_rank = self.texts.ranked(codes[known])
        times, ranks = PARTS[name].fold(merging, times, ranks)
        known = (ranks >= 0) & (ranks < len(by_rank))
        ranks[known] = by_rank[ranks[known]]
        return times, ranks

    def take(self, rows: Ints, size: int) -> Measure:
        """Some of `size` groups; no other one has a value."""
        parts = {
            name: tuple(array.take(rows) for array in arrays) for name, arrays in self.parts.items()
        }
        values = self.values
        if values is not None and len(rows) < size:
            numbers = np.zeros(size, dtype=np.int64)
            numbers[rows] = np.arange(len(rows))
            values = values.renumbered(numbers)
        return Measure(self.count.take(rows), parts, values, self.texts)

    @staticmethod
    def concat(measures: Sequence[Measure]) -> Measure:
        """Those of the same parts behind each other."""
        values = [measure.values for measure in measures if measure.values is not None]
        return Measure(
            np.concatenate([measure.count for measure in measures]),
            {
                name: tuple(
                    map(np.concatenate, zip(*(m.parts[name] for m in measures), strict=True))
                )
                for name in measures[0].parts
            },
            GroupValues.concat(values, [len(m.count) for m in measures]) if values else None,
            measures[0].texts,
        )

    def reduced(self) -> Measure:
        """With a bounded number of values for each group."""
        if self.values is None:
            return self
        return replace(self, values=self.values.reduced(len(self.count)))


def _bound(dtype: np.dtype[Any], sign: int) -> Any:
    """What no value is above (1) or below (-1)."""
    if dtype == np.float64:
        return np.float64(sign * np.inf)
    return np.int64(_LAST if sign > 0 else -_LAST - 1)


def _sums(numbers: Ints, values: npt.NDArray[Any], size: int) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        sums: Any = np.bincount(numbers, weights=values, minlength=size)
    return np.asarray(sums, dtype=np.float64)  # Of no values they would be integers.


def _extremes(ufunc: np.ufunc, numbers: Ints, values: Extremes, size: int) -> Extremes:
    bound = _bound(values.dtype, 1 if ufunc is np.minimum else -1)
    result: Any = np.full(size, bound, dtype=values.dtype)
    ufunc.at(result, numbers, values)
    extremes: Extremes = result
    return extremes


@dataclass(frozen=True, slots=True)
class Values:
    """Values, each of `weights` observations, with their times if these are known."""

    values: Extremes
    weights: Ints
    times: Ints | None


@dataclass(frozen=True, slots=True)
class Merging:
    """How groups are merged: the numbers of the new ones, below `size`, and the values of each."""

    numbers: Ints
    size: int
    count: Ints

    def sums(self, values: npt.NDArray[Any]) -> Floats:
        return _sums(self.numbers, values, self.size)

    def extremes(self, sign: int, values: Extremes) -> Extremes:
        """The least values (1) or the greatest (-1)."""
        ufunc = np.minimum if sign > 0 else np.maximum
        return _extremes(ufunc, self.numbers, values, self.size)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of statistics of numbers; a bool is 0 or 1.

    Attributes:
        begin: arrays of values.
        missing: what these have where there is no value, by the type of the values.
        fold: arrays of merged groups.
    """

    begin: Callable[[Values], Arrays]
    missing: Callable[[np.dtype[Any]], tuple[Any, ...]]
    fold: Callable[..., Arrays]


def _extreme(sign: int) -> Part:
    return Part(
        lambda of: (of.values,),
        lambda dtype: (_bound(dtype, sign),),
        lambda merging, values: (merging.extremes(sign, values),),
    )


def _at_extreme_time(sign: int) -> Part:
    """The first time (1) or the last one (-1), and the least or greatest value at it."""

    def fold(merging: Merging, times: Ints, values: Extremes) -> Arrays:
        extremes = merging.extremes(sign, times)
        is_other = times != extremes.take(merging.numbers)
        kept = np.where(is_other, _bound(values.dtype, sign), values)
        return extremes, merging.extremes(sign, kept)

    def begin(of: Values) -> Arrays:
        assert of.times is not None, "the grouping is not in the graph"
        return of.times, of.values

    return Part(begin, lambda dtype: (_bound(np.dtype(np.int64), sign), _bound(dtype, sign)), fold)


def _fold_spread(merging: Merging, means: Floats, squares: Floats) -> Arrays:
    """The corrected two-pass algorithm (Chan, Golub, LeVeque, The American Statistician, 1983)."""
    with np.errstate(invalid="ignore", over="ignore"):
        count = np.maximum(merging.sums(merging.count), 1)
        mean = merging.sums(merging.count * means) / count
        gaps = means - mean.take(merging.numbers)
        rest = merging.sums(merging.count * gaps)
        squares = merging.sums(squares + merging.count * gaps * gaps) - rest * rest / count
        return mean + rest / count, np.maximum(squares, 0)


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "total": Part(
            lambda of: (np.asarray(of.values, np.float64) * of.weights,),
            lambda _: (np.float64(0.0),),
            lambda merging, totals: (merging.sums(totals),),
        ),
        "low": _extreme(1),
        "high": _extreme(-1),
        "spread": Part(
            lambda of: (np.asarray(of.values, np.float64), np.zeros(len(of.values))),
            lambda _: (np.float64(0.0), np.float64(0.0)),
            _fold_spread,
        ),
        "first": _at_extreme_time(1),
        "last": _at_extreme_time(-1),
    }
)
"""By name: sums, extremes, means with sums of squares of the distances from them, and times with
their values. Integers are exact in those that are values."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """k groups.

    Attributes:
        keys: the columns of all keys, each of shape (k,).
        observations: of each group, shape (k,).
        measures: in the order of `Grouping.statistics`.
    """

    keys: tuple[Ints, ...]
    observations: Ints
    measures: tuple[Measure, ...]

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def weight(self) -> int:
        """Groups, and values of which percentiles are computed."""
        return len(self) + sum(len(m.values) for m in self.measures if m.values is not None)

    def reduced(self) -> Groups:
        """With a bounded number of values for each group."""
        return replace(self, measures=tuple(measure.reduced() for measure in self.measures))

    def merged(self) -> Groups:
        """One group of those with equal keys, ascending by their keys."""
        if len(self) == 0:
            return self
        numbers, size = _number(self.keys, len(self))
        observations = _sums(numbers, self.observations, size).astype(np.int64)
        used = np.flatnonzero(observations)
        example = np.empty(size, dtype=np.intp)
        example[numbers] = np.arange(len(self))
        rows = example[used]
        return Groups(
            tuple(column.take(rows) for column in self.keys),
            observations.take(used),
            tuple(measure.merged(numbers, size).take(used, size) for measure in self.measures),
        )

    @staticmethod
    def concat(parts: Sequence[Groups]) -> Groups:
        """All of them, not merged; at least one."""
        if len(parts) == 1:
            return parts[0]
        alike = zip(*(part.measures for part in parts), strict=True)
        return Groups(
            tuple(np.concatenate(keys) for keys in zip(*(p.keys for p in parts), strict=True)),
            np.concatenate([part.observations for part in parts]),
            tuple(Measure.concat(measures) for measures in alike),
        )


def _number(keys: Sequence[Ints], count: int) -> tuple[Ints, int]:
    """A number for each row, in the order of the keys, and a bound on them."""
    numbers, size = np.zeros(count, dtype=np.int64), 1
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if high == low:
            continue
        width = high - low + 1
        codes = key - low if width <= _RANGE_MAX else None
        if codes is None or size * width > _RANGE_MAX:
            numbers, size = _dense(numbers, size)
            codes, width = _rank(key)
        numbers, size = (codes, width) if size == 1 else (numbers * width + codes, size * width)
    return _dense(numbers, size)


def _dense(numbers: Ints, size: int) -> tuple[Ints, int]:
    return (numbers, size) if size <= DENSE_SHARE * len(numbers) else _rank(numbers)


def _rank(values: Ints) -> tuple[Ints, int]:
    """The number of each value among the distinct ones, ascending, and how many these are."""
    encoded = pa.array(values).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    ranks = np.empty(len(distinct), dtype=np.int64)
    ranks[np.argsort(distinct)] = np.arange(len(distinct))
    return ranks.take(encoded.indices.to_numpy()), len(distinct)


def groups_of_paths(
    columns: Columns, rows: npt.NDArray[np.integer[Any]], grouping: Grouping, schema: Schema
) -> Groups:
    """Each path a group of its `rows` observations; the cells of paths determine those of keys."""
    weights = rows.astype(np.int64)
    keys: list[Ints] = []
    for key in grouping.keys:
        if isinstance(key, CellKey):
            shift = np.uint64(5 * schema.geohash_precision - key.bits)
            keys.append((columns.cell >> shift).astype(np.int64))
        elif isinstance(key, WindowKey):
            keys.append(key.numbers(columns.bucket))
        else:
            keys += key_columns(columns.features[key.name])
    return Groups(tuple(keys), weights, _measures(columns.features, weights, grouping))


def groups_of_observations(table: pa.Table, grouping: Grouping, texts: StringDictionary) -> Groups:
    """Each observation a group; texts are added to the dictionary."""
    weights = np.ones(table.num_rows, dtype=np.int64)
    features = {name: from_arrow(table.column(name)) for name in grouping.features}
    keys: list[Ints] = []
    for key in grouping.keys:
        if isinstance(key, CellKey):
            keys.append(_cells(table, key.bits))
        elif isinstance(key, WindowKey):
            keys.append(key.numbers(column_micros(table.column("time"))))
        else:
            column = features[key.name]
            keys += key_columns(texts.encode(column) if isinstance(column, TextColumn) else column)
    times = column_micros(table.column("time")) if grouping.needs_times else None
    measures = _measures(features, weights, grouping, times=times, texts=texts)
    return Groups(tuple(keys), weights, measures)


def _cells(table: pa.Table, bits: int) -> Ints:
    precision = -(-bits // 5)
    latitude, longitude = (table.column(name).to_numpy() for name in ("latitude", "longitude"))
    cells = geohash.encode(latitude, longitude, precision) >> np.uint64(5 * precision - bits)
    return cells.astype(np.int64)


def _measures(
    features: Mapping[str, FeatureColumn],
    weights: Ints,
    grouping: Grouping,
    *,
    times: Ints | None = None,
    texts: StringDictionary | None = None,
) -> tuple[Measure, ...]:
    return tuple(
        Measure.of(features[name], weights, statistics, times=times, texts=texts)
        for name, statistics in grouping.statistics
    )
