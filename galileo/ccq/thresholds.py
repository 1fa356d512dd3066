"""How much each cache of a node may hold, as pure functions.

A node's caches have *room* for a part of their byte budget: less where the machine has little free
memory, and less where its processors are busy, so that what is too much goes to other nodes while
this one can still do the work of giving it away. The room is shared out among the CCQs that the
node coordinates. One that is fetched often has a larger share, since its labels are what readers
wait for; each further CCQ lowers the shares of all others (paper, IV.D).

A share is a threshold: over it a cache has overflowed (`galileo.ccq.cache_memory` says what then
happens). The thresholds together are never more than the room, so as long as there is no room,
some cache is over its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ThresholdWeights:
    """What moves a threshold, and how far.

    Attributes:
        room: part of the budget that caches fill before anything is done about it. What is left
            takes in what cycles find meanwhile.
        cpu: part of the room that a node gives up whose processors are all in use.
        popularity: a CCQ that is fetched all the time has so many more shares than one that is
            never fetched, which has one.
        fetches_typical: fetches lately at which a CCQ counts as half as popular as can be.
    """

    room: float = 0.8
    cpu: float = 0.25
    popularity: float = 3.0
    fetches_typical: float = 10.0


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What a node has for caches.

    Attributes:
        budget_bytes: that its caches may take at most.
        memory_bytes: that its machine has for them: what they hold and what is free.
        cpu_share: of all cores that is in use, 0 to 1.
    """

    budget_bytes: int
    memory_bytes: int
    cpu_share: float = 0.0

    @property
    def allowance(self) -> int:
        """Over it labels are dropped, if nothing else helps."""
        return max(0, min(self.budget_bytes, self.memory_bytes))


_WEIGHTS = ThresholdWeights()


def free_capacity(means: MemoryBudget, *, weights: ThresholdWeights = _WEIGHTS) -> int:
    """Bytes that all caches of a node may take before something is done about it."""
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
        fetches: for each CCQ that it coordinates, how often it was fetched lately.
        weights: see there.
    """
    often = np.maximum(np.asarray(fetches, dtype=np.float64), 0.0)
    shares = 1.0 + weights.popularity * often / (often + weights.fetches_typical)
    whole = free_capacity(means, weights=weights)
    found: npt.NDArray[np.int64] = np.floor(whole * (shares / shares.sum())).astype(np.int64)
    return found
