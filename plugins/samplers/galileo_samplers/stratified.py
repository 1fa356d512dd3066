"""Stratified sampling: the same number, or fraction, of labels from each part of the data.

A stratum is a coarser cell, a stretch of time, or an interval of a feature's values, *within
one commit*: counting across commits would make the choice depend on which commits a cycle
happens to see together. Of each stratum the labels with the smallest hashes are kept, which
is a simple random sample without replacement (bottom-k sampling; Cohen and Kaplan, "Summarizing
data using bottom-k sketches", PODC 2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.samplers import label_hashes
from galileo_samplers.options import (
    checked_count,
    checked_edges,
    checked_fraction,
    checked_precision,
    checked_width_us,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BITS_PER_CHARACTER = 5
_ROUNDING = 9
"""Decimals of `fraction · labels` that count: 0.1 of 30 is 3 and not a rounding error above."""
_GIVEN_BY = {"cell": ("precision",), "time": ("width",), "feature": ("feature", "edges")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified:
    """Keeps `per_stratum` labels, or `fraction` of them rounded up, of each stratum.

    Args:
        by: "cell", "time" or "feature".
        precision: with "cell", characters of the geohash that make a stratum.
        width: with "time", the length of a stratum ("6h", seconds); strata start at the epoch.
        feature: with "feature", an indexed feature; missing values are one stratum.
        edges: with "feature", where one stratum ends and the next begins (the edge belongs to
            the upper one); without edges every value is a stratum.
    """

    by: Literal["cell", "time", "feature"]
    precision: int | None = None
    width: str | float | None = None
    feature: str | None = None
    edges: Sequence[float] | None = None
    per_stratum: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        _check_strata(self)
        if (self.per_stratum is None) == (self.fraction is None):
            raise InputError("expected either per_stratum or fraction, got both or neither")
        if self.per_stratum is not None:
            checked_count(self.per_stratum)
        if self.fraction is not None:
            checked_fraction(self.fraction)

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        strata = self._strata(labels)
        keys = (strata, labels.sequences, labels.partitions)
        order = np.lexsort((labels.rows, label_hashes(labels, seed=seed), *keys))
        starts = _run_starts([key[order] for key in keys])
        sizes = np.diff(np.append(starts, len(order)))
        ranks = np.arange(len(order)) - np.repeat(starts, sizes)
        mask = np.zeros(len(order), dtype=np.bool_)
        mask[order] = ranks < np.repeat(self._quotas(sizes), sizes)
        return mask

    def _quotas(self, sizes: Ints) -> Ints:
        if self.per_stratum is not None:
            return np.full(len(sizes), self.per_stratum, dtype=np.int64)
        assert self.fraction is not None, "the constructor demands one of the two"
        return np.ceil(np.round(sizes * self.fraction, _ROUNDING)).astype(np.int64)

    def _strata(self, labels: LabelSet) -> Ints:
        """A number per label that is equal within a stratum."""
        if self.by == "cell":
            return _coarser_cells(labels, checked_precision(self.precision))
        if self.by == "time":
            return labels.buckets // checked_width_us(self.width)
        assert self.feature is not None, "the constructor demands a feature"
        column = _feature_column(labels, self.feature)
        return _values(column) if self.edges is None else _intervals(column, self.edges)


def _check_strata(chosen: Stratified) -> None:
    if chosen.by not in _GIVEN_BY:
        raise InputError(f"expected by of {sorted(_GIVEN_BY)}, got {chosen.by!r}")
    for by, options in _GIVEN_BY.items():
        strangers = [name for name in options if getattr(chosen, name) is not None]
        if by != chosen.by and strangers:
            raise InputError(f"{strangers[0]} goes with by={by!r}, not with by={chosen.by!r}")
    if chosen.by == "cell":
        checked_precision(chosen.precision)
    elif chosen.by == "time":
        checked_width_us(chosen.width)
    else:
        _check_feature(chosen)


def _check_feature(chosen: Stratified) -> None:
    if not isinstance(chosen.feature, str):
        raise InputError(f"expected a feature by name, got {chosen.feature!r}")
    if chosen.edges is not None:
        checked_edges(chosen.edges)


def _coarser_cells(labels: LabelSet, precision: int) -> Ints:
    fine = labels.schema.geohash_precision
    if precision > fine:
        raise InputError(
            f"expected a precision of at most {fine}, that of dataset {labels.schema.name!r}, "
            f"got {precision}"
        )
    shift = np.uint64(_BITS_PER_CHARACTER * (fine - precision))
    return (labels.cells >> shift).astype(np.int64)


def _feature_column(labels: LabelSet, name: str) -> pa.Array:
    names = [feature.name for feature in labels.schema.indexed]
    if name not in names:
        raise InputError(f"expected an indexed feature of {names}, got {name!r}")
    column = labels.table.column(name)
    return pa.concat_arrays(column.chunks) if len(labels) else pa.array([], column.type)


def _values(column: pa.Array) -> Ints:
    """A code per value, a null included; codes of different calls do not agree."""
    codes: Ints = column.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    return codes


def _intervals(column: pa.Array, edges: Sequence[float]) -> Ints:
    """The number of edges at or below each value; -1 for a null."""
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InputError(f"expected a numeric feature where edges are given, got {column.type}")
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    intervals = np.searchsorted(np.asarray(checked_edges(edges)), values, side="right")
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing, -1, intervals).astype(np.int64)


def _run_starts(keys: list[npt.NDArray[np.signedinteger]]) -> Ints:
    """Where a run of equal keys begins."""
    changed = np.zeros(len(keys[0]), dtype=np.bool_)
    changed[:1] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed).astype(np.int64)
