"""A uniform fraction of all labels (Bernoulli sampling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from galileo.labels import LabelSet
from galileo.samplers import label_hashes
from galileo_samplers.options import checked_fraction

_HASHES = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Keeps each label with probability `fraction`, independently of all others.

    Of one seed, the labels of a smaller fraction are among those of a larger one.
    """

    fraction: float
    needs_columns: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        checked_fraction(self.fraction)

    def sample(self, labels: LabelSet, *, seed: int) -> npt.NDArray[np.bool_]:
        bound = int(self.fraction * _HASHES)
        if bound >= _HASHES:
            return np.ones(len(labels), dtype=np.bool_)
        mask: npt.NDArray[np.bool_] = label_hashes(labels, seed=seed) < np.uint64(bound)
        return mask
