"""Sampling in proportion to a feature's values.

With `n`, Efraimidis and Spirakis's sampling without replacement ("Weighted random sampling with
a reservoir", 2006): the n largest of u^(1/w), which are the n smallest of -ln(u)/w. With `scale`,
Poisson sampling: each label on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.samplers import Scope, label_uniforms
from galileo_samplers.lowest import Mask, lowest
from galileo_samplers.options import (
    checked_count,
    checked_feature,
    checked_scale,
    checked_scope,
    feature_column,
    is_numeric,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """Keeps labels the likelier, the larger a feature's value.

    Labels without a value, or with one that is not above zero, are never kept.

    Args:
        feature: an indexed feature of numbers; its values are the weights.
        n: how many to keep. The first label is drawn with probabilities in proportion to the
            weights, the next likewise of those that are left, and so on.
        scale: instead of n: a label of weight w is kept with probability min(1, w / scale),
            independently of all others.
        scope: with n, of which the sample is: of each commit, of each node's labels, or of
            everything, which it is when absent.
    """

    feature: str
    n: int | None = None
    scale: float | None = None
    scope: Scope | None = None
    regroups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_feature(self.feature)
        if (self.n is None) == (self.scale is None):
            raise InputError(
                "expected either n or scale, got both or neither", expected="one_of", option="n"
            )
        if self.n is not None:
            checked_count(self.n, name="n")
            object.__setattr__(self, "scope", checked_scope(self.scope or "global"))
            return
        checked_scale(self.scale)
        if self.scope is not None:
            raise InputError(
                "scope goes with n; with scale every label is decided on its own",
                expected="scope_of_n",
                option="scope",
            )
        object.__setattr__(self, "scope", "commit")

    @property
    def needs_columns(self) -> tuple[str, ...]:
        return (self.feature,)

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        if self.scale is not None:
            kept: Mask = label_uniforms(labels, seed=seed) < self._weights(labels) / self.scale
            return kept
        return self._first(labels, groups=(labels.sequences, labels.partitions), seed=seed)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        return self._first(labels, groups=(), seed=seed)

    def _first(
        self, labels: LabelSet, *, groups: tuple[npt.NDArray[np.signedinteger], ...], seed: int
    ) -> Mask:
        assert self.n is not None, "the constructor demands one of the two"
        weights = self._weights(labels)
        with np.errstate(divide="ignore"):
            priorities = -np.log(label_uniforms(labels, seed=seed)) / weights
        return lowest(labels, priorities, groups=groups, quotas=self.n) & (weights > 0)

    def _weights(self, labels: LabelSet) -> npt.NDArray[np.float64]:
        column = feature_column(labels, self.feature)
        if not is_numeric(column):
            raise InputError(
                f"expected a numeric feature as weight, got {column.type}",
                expected="numeric_feature",
                option="weight",
            )
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.where(values > 0, values, 0.0)
