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
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.geo import geohash
from galileo.graph.columns import StringDictionary
from galileo.graph.group_keys import Ints, key_columns
from galileo.model.grouping import CellKey, Grouping, WindowKey, parts_of
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


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """What statistics of one feature in k groups are computed of.

    Attributes:
        count: observations with a value, shape (k,).
        parts: others of `PARTS` that are needed, each of shape (k,).
    """

    count: Ints
    parts: Mapping[str, Extremes]

    @classmethod
    def of(cls, column: FeatureColumn, weights: Ints, statistics: Sequence[str]) -> Measure:
        """The values of a column, each a group of `weights` observations."""
        valid = column.valid
        is_complete = bool(valid.all())
        count: Ints = weights if is_complete else np.where(valid, weights, np.int64(0))
        if isinstance(column, TextColumn):
            return cls(count, {})
        values: Extremes = column.numbers
        if isinstance(column, IntColumn | BoolColumn):
            values = column.values.astype(np.int64, copy=False)
        parts = {}
        for name in parts_of(statistics):
            part = PARTS[name]
            with np.errstate(over="ignore", invalid="ignore"):
                each = part.begin(values, weights)
            missing = part.missing(each.dtype)
            parts[name] = each if is_complete else np.where(valid, each, missing)
        return cls(count, parts)

    def merged(self, numbers: Ints, size: int) -> Measure:
        """The parts of groups by their number, below `size`."""
        return Measure(
            _sums(numbers, self.count, size).astype(np.int64),
            {name: PARTS[name].fold(numbers, part, size) for name, part in self.parts.items()},
        )

    def take(self, rows: Any) -> Measure:
        return Measure(self.count[rows], {name: part[rows] for name, part in self.parts.items()})

    @staticmethod
    def concat(measures: Sequence[Measure]) -> Measure:
        """Those of the same parts behind each other."""
        return Measure(
            np.concatenate([measure.count for measure in measures]),
            {
                name: np.concatenate([measure.parts[name] for measure in measures])
                for name in measures[0].parts
            },
        )


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
class Part:
    """A part of statistics of numbers; a bool is 0 or 1.

    Attributes:
        begin: of values, each of some observations.
        missing: that of no value, by the type of the part.
        fold: of groups by their number, below a size.
    """

    begin: Callable[[Extremes, Ints], Extremes]
    missing: Callable[[np.dtype[Any]], Any]
    fold: Callable[[Ints, Extremes, int], Extremes]


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "total": Part(
            lambda values, weights: np.asarray(values, np.float64) * weights,
            lambda _: np.float64(0.0),
            _sums,
        ),
        "low": Part(
            lambda values, _: values, lambda dtype: _bound(dtype, 1), partial(_extremes, np.minimum)
        ),
        "high": Part(
            lambda values, _: values,
            lambda dtype: _bound(dtype, -1),
            partial(_extremes, np.maximum),
        ),
    }
)
"""By name. Integers are exact in those that are values."""


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
            tuple(measure.merged(numbers, size).take(used) for measure in self.measures),
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
            keys.append(columns.bucket // key.width_us)
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
            keys.append(column_micros(table.column("time")) // key.width_us)
        else:
            column = features[key.name]
            keys += key_columns(texts.encode(column) if isinstance(column, TextColumn) else column)
    return Groups(tuple(keys), weights, _measures(features, weights, grouping))


def _cells(table: pa.Table, bits: int) -> Ints:
    precision = -(-bits // 5)
    latitude, longitude = (table.column(name).to_numpy() for name in ("latitude", "longitude"))
    cells = geohash.encode(latitude, longitude, precision) >> np.uint64(5 * precision - bits)
    return cells.astype(np.int64)


def _measures(
    features: Mapping[str, FeatureColumn], weights: Ints, grouping: Grouping
) -> tuple[Measure, ...]:
    return tuple(
        Measure.of(features[name], weights, statistics) for name, statistics in grouping.statistics
    )
