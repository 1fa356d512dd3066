"""Thresholds of the caches of a node, as pure functions.

The caches of a node may fill a part of their byte budget, the *capacity*: less if the machine has
little free memory, and less if its processors are busy, so that CCQs are handed off while the node
can still do that work. The capacity is divided among the CCQs that the node coordinates. A CCQ that
is fetched often has a larger share, since readers wait for its labels; each further CCQ lowers the
shares of all others (paper, IV.D).

A share is a threshold: over it a cache has overflowed (`galileo.ccq.cache_memory` handles that).
The sum of the thresholds is at most the capacity, so while the capacity is exceeded, some cache is
over its threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ThresholdWeights:
    """Weights of the thresholds.

    Attributes:
        room: part of the budget that caches may fill. The rest takes the results of cycles
            meanwhile.
        cpu: part of the capacity that a node with fully used processors gives up.
        popularity: extra shares of a CCQ that is fetched all the time; one that is never fetched
            has one share.
        fetches_typical: recent fetches at which a CCQ has half of the extra shares.
    """

    room: float = 0.8
    cpu: float = 0.25
    popularity: float = 3.0
    fetches_typical: float = 10.0


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory of a node for caches.

    Attributes:
        budget_bytes: configured limit of its caches.
        memory_bytes: what caches hold, plus free memory of the machine.
        cpu_share: used share of all cores, 0 to 1.
    """

    budget_bytes: int
    memory_bytes: int
    cpu_share: float = 0.0

    @property
    def allowance(self) -> int:
        """Above it labels are dropped if nothing else helps."""
        return max(0, min(self.budget_bytes, self.memory_bytes))


_WEIGHTS = ThresholdWeights()


def free_capacity(means: MemoryBudget, *, weights: ThresholdWeights = _WEIGHTS) -> int:
    """Bytes that all caches of a node may take before some are spilled or handed off."""
    busy = min(1.0, max(0.0, means.cpu_share))
    return int(means.allowance * weights.room * (1.0 - weights.cpu * busy))


def thresholds(
    means: MemoryBudget,
    fetches: npt.ArrayLike,
    *,
    weights: ThresholdWeights = _WEIGHTS,
) -> npt.NDArray[np.int64]:
    """Bytes that each CCQ's cache may take.

    Args:
        means: of the node.
        fetches: recent fetches of each CCQ that it coordinates.
        weights: of the thresholds.
    """
    often = np.maximum(np.asarray(fetches, dtype=np.float64), 0.0)
    shares = 1.0 + weights.popularity * often / (often + weights.fetches_typical)
    whole = free_capacity(means, weights=weights)
    bounds: npt.NDArray[np.int64] = np.floor(whole * (shares / shares.sum())).astype(np.int64)
    return bounds
