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

ROOM_SHARE = 0.8
"""Part of the budget that caches may fill. The rest takes the results of cycles meanwhile."""
CPU_WEIGHT = 0.25
"""Part of the capacity that a node with fully used processors gives up."""
POPULARITY_WEIGHT = 3.0
"""Extra shares of a CCQ that is fetched all the time; one that is never fetched has one share."""
FETCHES_TYPICAL = 10.0
"""Recent fetches at which a CCQ has half of the extra shares."""


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


def free_capacity(means: MemoryBudget) -> int:
    """Bytes that all caches of a node may take before some are spilled or handed off."""
    busy = min(1.0, max(0.0, means.cpu_share))
    return int(means.allowance * ROOM_SHARE * (1.0 - CPU_WEIGHT * busy))


def thresholds(means: MemoryBudget, fetches: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Bytes that each CCQ's cache may take.

    Args:
        means: of the node.
        fetches: recent fetches of each CCQ that it coordinates.
    """
    often = np.maximum(np.asarray(fetches, dtype=np.float64), 0.0)
    shares = 1.0 + POPULARITY_WEIGHT * often / (often + FETCHES_TYPICAL)
    whole = free_capacity(means)
    bounds: npt.NDArray[np.int64] = np.floor(whole * (shares / shares.sum())).astype(np.int64)
    return bounds
