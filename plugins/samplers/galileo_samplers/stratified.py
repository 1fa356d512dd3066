"""Stratified sampling: the same number, or fraction, of labels from each part of the data.

A stratum is a coarser cell, a stretch of time, or an interval of a feature's values. Of each
stratum of a commit the labels with the smallest hashes are kept, which is a simple random sample
without replacement; of the strata of many commits likewise, where the sample is of everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.samplers import Scope, label_hashes
from galileo_samplers.lowest import Ints, Key, Mask, lowest, ordered
from galileo_samplers.options import (
    checked_count,
    checked_edges,
    checked_feature,
    checked_fraction,
    checked_precision,
    checked_quotas,
    checked_scope,
    checked_width_us,
)
from galileo_samplers.strata import ByCell, ByInterval, ByTime, ByValue, Strata, quotas_of

_ROUNDING = 9
"""Decimals of `fraction · labels` that count: 0.1 of 30 is 3 and not a rounding error above."""
_GIVEN_BY = {"cell": ("precision",), "time": ("width",), "feature": ("feature", "edges")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified:
    """Keeps a number of labels, or a fraction of them rounded up, of each stratum.

    Args:
        by: "cell", "time" or "feature".
        precision: with "cell", characters of the geohash that make a stratum.
        width: with "time", the length of a stratum ("6h", seconds); strata start at the epoch.
        feature: with "feature", an indexed feature; missing values are one stratum.
        edges: with "feature", where one stratum ends and the next begins (the edge belongs to
            the upper one); without edges every value is a stratum.
        per_stratum: how many labels of each stratum.
        quotas: how many of single strata, by name: a geohash, the start of a stretch of time
            (`2012-03-01T06:00:00Z`), a value, the lower edge of an interval (`below` for the
            first), `~` for missing values. For the others `per_stratum`, or none where absent.
        fraction: instead of numbers, how much of each stratum of each commit.
        scope: with numbers, whose strata: each commit's, each node's, or those of everything,
            which it is when absent. A fraction is of each commit.
    """

    by: Literal["cell", "time", "feature"]
    precision: int | None = None
    width: str | float | None = None
    feature: str | None = None
    edges: Sequence[float] | None = None
    per_stratum: int | None = None
    quotas: Mapping[str, int] | None = None
    fraction: float | None = None
    scope: Scope | None = None
    regroups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_strata(self)
        counted = self.per_stratum is not None or self.quotas is not None
        if counted == (self.fraction is not None):
            raise InputError(
                "expected either per_stratum or fraction, or quotas, got "
                + ("both" if counted else "neither"),
                expected="one_of",
                option="per_stratum",
            )
        if self.per_stratum is not None:
            checked_count(self.per_stratum, name="per_stratum")
        if self.quotas is not None:
            strata = _strata(self)
            for name in checked_quotas(self.quotas):
                strata.check(name)
        scope = checked_scope(self.scope or ("global" if counted else "commit"))
        if self.fraction is not None:
            checked_fraction(self.fraction)
            if scope != "commit":
                raise InputError(
                    f"expected scope 'commit' with a fraction, got {scope!r}",
                    expected="scope_of_fraction",
                    option="scope",
                )
        object.__setattr__(self, "scope", scope)

    @property
    def needs_columns(self) -> tuple[str, ...]:
        return _strata(self).columns

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        return self._sampled(labels, commits=(labels.sequences, labels.partitions), seed=seed)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        return self._sampled(labels, commits=(), seed=seed)

    def _sampled(self, labels: LabelSet, *, commits: tuple[Key, ...], seed: int) -> Mask:
        strata = _strata(self)
        numbers = strata.numbers(labels)
        groups = (numbers, *commits)
        hashes = label_hashes(labels, seed=seed)
        if self.fraction is not None:
            quotas: Ints | int = _shares(labels, hashes, groups=groups, fraction=self.fraction)
        elif self.quotas is not None:
            otherwise = self.per_stratum or 0
            named = dict(self.quotas)
            quotas = quotas_of(labels, numbers, strata=strata, quotas=named, otherwise=otherwise)
        else:
            assert self.per_stratum is not None, "the constructor demands one of the three"
            quotas = self.per_stratum
        return lowest(labels, hashes, groups=groups, quotas=quotas)


def _shares(labels: LabelSet, hashes: Key, *, groups: tuple[Key, ...], fraction: float) -> Ints:
    """A fraction of the size of each label's group, rounded up."""
    order, starts = ordered(labels, hashes, groups=groups)
    sizes = np.diff(np.append(starts, len(order)))
    shares = np.ceil(np.round(sizes * fraction, _ROUNDING)).astype(np.int64)
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.repeat(shares, sizes)
    return found


def _strata(chosen: Stratified) -> Strata:
    if chosen.by == "cell":
        return ByCell(checked_precision(chosen.precision))
    if chosen.by == "time":
        return ByTime(checked_width_us(chosen.width))
    feature = checked_feature(chosen.feature)
    if chosen.edges is None:
        return ByValue(feature)
    return ByInterval(feature, checked_edges(chosen.edges))


def _check_strata(chosen: Stratified) -> None:
    if chosen.by not in _GIVEN_BY:
        raise InputError(f"expected by of {sorted(_GIVEN_BY)}, got {chosen.by!r}", option="by")
    for by, options in _GIVEN_BY.items():
        strangers = [name for name in options if getattr(chosen, name) is not None]
        if by != chosen.by and strangers:
            raise InputError(
                f"{strangers[0]} goes with by={by!r}, not with by={chosen.by!r}",
                expected="option_of_by",
                option=strangers[0],
            )
    _strata(chosen)
