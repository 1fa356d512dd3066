"""The values of groups, of which percentiles are computed.

Each value has the number of observations that have it. The values of a group with more than
`EXACT_MAX` different ones go into a KLL sketch (Karnin, Lang, Liberty: Optimal Quantile
Approximation in Streams, FOCS 2016). Sketches merge in any order with one bound on the error of
ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.optional_imports import LateModule

datasketches = LateModule("datasketches", purpose="a percentile of more than 10,000 values")

EXACT_MAX = 10_000
"""Different values of a group whose percentiles are exact."""
SKETCH_K = 2_000
"""Of sketches: each holds some 6,000 values, however many it was given."""
_GIVEN_VALUES = 1 << 20
"""Values that are given to a sketch together."""
_SORTED_VALUES = 1 << 20
"""Values, and room around them, that are sorted together."""

Ints: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupValues:
    """Values of some groups, which have numbers from 0.

    Attributes:
        numbers: the group of each of n values, shape (n,).
        values: shape (n,).
        weights: observations with this value, shape (n,); None: one each.
        sketches: of further values, by the number of the group.
    """

    numbers: Numbers
    values: Floats
    weights: Ints | None
    sketches: Mapping[int, Any]

    def __len__(self) -> int:
        return len(self.values) + sum(int(one.num_retained) for one in self.sketches.values())

    @classmethod
    def of(
        cls, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], weights: Ints
    ) -> GroupValues:
        """Each valid value a group of `weights` observations."""
        rows = np.flatnonzero(valid)
        weights = weights if len(rows) == len(valid) else weights[rows]
        values = values if len(rows) == len(valid) else values[rows]
        has_weights = bool((weights != 1).any())
        return cls(
            rows.astype(np.int32),
            np.asarray(values, np.float64),
            weights if has_weights else None,
            {},
        )

    def renumbered(self, numbers: npt.NDArray[np.integer[Any]]) -> GroupValues:
        """With new numbers for the groups; groups of equal numbers become one."""
        sketches: dict[int, Any] = {}
        for group, sketch in self.sketches.items():
            number = int(numbers[group])
            merged = sketches.setdefault(number, sketch)
            if merged is not sketch:
                merged.merge(sketch)
        small = numbers.astype(np.int32, copy=False).take(self.numbers)
        return GroupValues(small, self.values, self.weights, sketches)

    @staticmethod
    def concat(parts: Sequence[GroupValues], sizes: Sequence[int]) -> GroupValues:
        """Those of parts, which have `sizes` groups, behind each other."""
        starts = list(itertools.accumulate(sizes, initial=0))
        each = list(zip(parts, starts, strict=False))
        has_weights = any(part.weights is not None for part in parts)
        return GroupValues(
            np.concatenate([part.numbers + np.int32(start) for part, start in each]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part._all_weights() for part in parts]) if has_weights else None,
            {start + group: one for part, start in each for group, one in part.sketches.items()},
        )

    def _all_weights(self) -> Ints:
        return np.ones(len(self.values), np.int64) if self.weights is None else self.weights

    def reduced(self, size: int) -> GroupValues:
        """The same of `size` groups, in which no group has more than `EXACT_MAX` values.

        Equal values of a larger group become one first; if it still has too many, or had too many
        before, they go into its sketch.
        """
        counts = np.bincount(self.numbers, minlength=size)
        large = counts > EXACT_MAX
        large[list(self.sketches)] = True
        large &= counts > 0
        if not large.any():
            return self
        kept = ~large.take(self.numbers)
        numbers, values = [self.numbers[kept]], [self.values[kept]]
        weights, sketches = [self._all_weights()[kept]], dict(self.sketches)
        for group, rows in self._rows_of(np.flatnonzero(large), ~kept):
            distinct, times = self._distinct(rows)
            if group not in sketches and len(distinct) > EXACT_MAX:
                sketches[group] = datasketches.kll_doubles_sketch(SKETCH_K)
            if group in sketches:
                _give(sketches[group], distinct, times)
                continue
            numbers.append(np.full(len(distinct), group, np.int32))
            values.append(distinct)
            weights.append(times)
        whole = np.concatenate(weights)
        return GroupValues(
            np.concatenate(numbers),
            np.concatenate(values),
            whole if (whole != 1).any() else None,
            sketches,
        )

    def _rows_of(
        self, groups: Ints, mask: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """The rows of each of some groups, of those of a mask, which all have one of the groups."""
        rows = np.flatnonzero(mask)
        order = rows.take(_by_number(self.numbers[rows]))
        ends = np.searchsorted(self.numbers.take(order), groups, side="right")
        yield from zip(groups.tolist(), np.split(order, ends[:-1]), strict=True)

    def _distinct(self, rows: npt.NDArray[np.intp]) -> tuple[Floats, Ints]:
        """Different values of some rows, ascending, and how many observations have each."""
        if self.weights is None:
            return np.unique(self.values[rows], return_counts=True)
        distinct, at = np.unique(self.values[rows], return_inverse=True)
        times = np.zeros(len(distinct), np.int64)
        np.add.at(times, at, self.weights[rows])
        return distinct, times

    def percentiles(self, shares: Sequence[float], size: int) -> list[Floats]:
        """Of each share of 0 to 1, the percentile of each of `size` groups; any number if empty.

        Between two values it is interpolated, as by `numpy.quantile`. That of a sketch is a value
        whose rank differs by no more than `rank_error`, with 99 % confidence.
        """
        results = [np.full(size, np.nan) for _ in shares]
        counts = np.bincount(self.numbers, minlength=size)
        order = _by_number(self.numbers)
        starts = np.cumsum(counts) - counts
        for groups in _alike(counts):
            values, weights = self._matrix(order, starts[groups], counts[groups])
            for result, share in zip(results, shares, strict=True):
                result[groups] = _interpolated(values, weights, counts[groups], share)
        for group, sketch in self.sketches.items():
            for result, found in zip(results, sketch.get_quantiles(list(shares)), strict=True):
                result[group] = found
        return results

    @property
    def rank_error(self) -> float:
        """Greatest error of the ranks of percentiles; 0 without sketches."""
        return max((s.normalized_rank_error(False) for s in self.sketches.values()), default=0.0)

    def _matrix(
        self, order: npt.NDArray[np.intp], starts: Ints, counts: Ints
    ) -> tuple[Floats, Ints | None]:
        """The values of groups in rows, ascending, infinity behind them; and the weights so far."""
        column = np.arange(counts.max())
        at = np.minimum(starts[:, None] + column, len(order) - 1)
        rows, is_beyond = order.take(at), column >= counts[:, None]
        values = self.values.take(rows)
        values[is_beyond] = np.inf
        if self.weights is None:
            values.sort(axis=1)
            return values, None
        weights = self.weights.take(rows)
        weights[is_beyond] = 0
        by_value = values.argsort(axis=1)
        sums = np.take_along_axis(weights, by_value, axis=1).cumsum(axis=1)
        return np.take_along_axis(values, by_value, axis=1), sums

    def to_arrow(self, size: int) -> dict[str, pa.Array]:
        """Columns of `size` groups: lists of values and of weights (null: one each), sketches."""
        order = _by_number(self.numbers)
        offsets = np.append(0, np.cumsum(np.bincount(self.numbers, minlength=size)))
        lists: Callable[..., pa.Array] = pa.LargeListArray.from_arrays
        weights: pa.Array = pa.nulls(size, pa.large_list(pa.int64()))
        if self.weights is not None:
            weights = lists(offsets, self.weights.take(order))
        sketches: list[bytes | None] = [None] * size
        for group, sketch in self.sketches.items():
            sketches[group] = sketch.serialize()
        return {
            "values": lists(offsets, self.values.take(order)),
            "weights": weights,
            "sketch": pa.array(sketches, pa.large_binary()),
        }

    @classmethod
    def from_arrow(cls, values: pa.Array, weights: pa.Array, sketches: pa.Array) -> GroupValues:
        """The inverse of `to_arrow`."""
        counts = values.value_lengths().to_numpy()
        numbers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        given = np.flatnonzero(sketches.is_valid().to_numpy(zero_copy_only=False)).tolist()
        return cls(
            numbers,
            values.flatten().to_numpy(),
            None if weights.null_count else weights.flatten().to_numpy(),
            {group: _sketch_of(sketches[group].as_py()) for group in given},
        )


def _sketch_of(serialized: bytes) -> Any:
    return datasketches.kll_doubles_sketch.deserialize(serialized)


def _by_number(numbers: Numbers) -> npt.NDArray[np.intp]:
    """The rows in the order of their groups."""
    # Integers that hold both are sorted several times faster than rows by their groups.
    bits = np.int64(max(len(numbers) - 1, 0).bit_length())
    packed = (numbers.astype(np.int64) << bits) | np.arange(len(numbers))
    packed.sort()
    return packed & ((np.int64(1) << bits) - 1)


def _alike(counts: Ints) -> Iterator[Ints]:
    """Groups with some values, those together of which none has twice as many as another."""
    exponents = np.frexp(counts)[1]
    for exponent in range(1, int(exponents.max(initial=0)) + 1):
        groups = np.flatnonzero(exponents == exponent)
        step = max(_SORTED_VALUES >> exponent, 1)
        for start in range(0, len(groups), step):
            yield groups[start : start + step]


def _interpolated(values: Floats, weights: Ints | None, counts: Ints, share: float) -> Floats:
    """A percentile of each row."""
    totals = counts if weights is None else weights[:, -1]
    ranks = share * (totals - 1)
    first = np.floor(ranks).astype(np.int64)
    rest = ranks - first
    low, high = (
        _at_rank(values, weights, rank) for rank in (first, np.minimum(first + 1, totals - 1))
    )
    with np.errstate(invalid="ignore", over="ignore"):
        gap = high - low
        between = np.where(rest < 0.5, low + gap * rest, high - gap * (1 - rest))
    return np.where((low == high) | (rest == 0), low, between)


def _at_rank(values: Floats, weights: Ints | None, ranks: Ints) -> Floats:
    at = ranks if weights is None else (weights <= ranks[:, None]).sum(axis=1)
    return np.take_along_axis(values, at[:, None], axis=1)[:, 0]


def _give(sketch: Any, values: Floats, weights: Ints) -> None:
    """Adds values, each as often as its weight says, to a sketch."""
    if (weights == 1).all():
        sketch.update(values)
        return
    ends = np.cumsum(weights)
    for start in range(0, int(ends[-1]), _GIVEN_VALUES):
        ranks = np.arange(start, min(start + _GIVEN_VALUES, int(ends[-1])))
        sketch.update(values.take(np.searchsorted(ends, ranks, side="right")))
