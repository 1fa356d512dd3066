"""A sample of fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from galileo.labels import LabelSet
from galileo.samplers import Scope, label_hashes
from galileo_samplers.lowest import Mask, lowest
from galileo_samplers.options import checked_count, checked_scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservoir:
    """Keeps `n` labels, or all where there are fewer: a simple random sample.

    Every set of n labels is as likely as any other. Of one seed, the labels of a smaller n are
    among those of a larger one.

    Args:
        n: how many.
        scope: of which the sample is: of each commit, of each node's labels, or of everything.
    """

    n: int
    scope: Scope = "global"
    regroups: ClassVar[bool] = True
    needs_columns: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        checked_count(self.n, name="n")
        checked_scope(self.scope)

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        commits = (labels.sequences, labels.partitions)
        return lowest(labels, label_hashes(labels, seed=seed), groups=commits, quotas=self.n)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        return lowest(labels, label_hashes(labels, seed=seed), groups=(), quotas=self.n)
