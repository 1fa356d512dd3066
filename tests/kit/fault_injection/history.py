"""The history of a store, as its clients saw it, and whether a correct store could have had it.

Clients write batches of numbered observations and read everything. For each operation the history
has when it began and when its answer came, by one monotonic clock. The judge knows nothing else.

Each observation is a register that is set once. Its history is linearizable if there is one moment
before which no read has it and after which all have it. A write with an answer sets it between its
beginning and its end, a write without an answer at any time after its beginning or never. So, with
the *appearance* of an observation being the earliest answer that shows it, of its write or of a
read: no complete read that began after the appearance lacks it, and no read that ended before the
write began has it. This is the test "set-full" of Jepsen, for each observation instead of in steps.
A read is not required to be a snapshot of several observations.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Read:
    """What a read of everything returned.

    Attributes:
        began, ended: by the monotonic clock.
        numbers: of the observations, in any order.
        is_complete: whether the answer claims to have everything.
    """

    began: float
    ended: float
    numbers: Numbers
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class HistoryAudit:
    """What the history has, and what no correct store could have returned.

    Attributes:
        writes, unanswered: batches that were sent; those without an answer.
        reads, incomplete: answers to reads; those that named missing partitions.
        lacking: observations that a complete read lacks, though they had appeared before it began.
        early: observations in a read that ended before their write began, or was never made.
        repeated: observations that an answer has twice.
    """

    writes: int
    unanswered: int
    reads: int
    incomplete: int
    lacking: int
    early: int
    repeated: int

    @property
    def is_linearizable(self) -> bool:
        return not (self.lacking or self.early or self.repeated)


@dataclass(slots=True)
class History:
    """Records operations of several clients; thread-safe.

    Args:
        rows: observations of a batch. Batch n has the numbers from n * rows on.
    """

    rows: int
    _writes: dict[int, tuple[float, float]] = field(default_factory=dict)
    _reads: list[Read] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_write(self, batch: int, at: float) -> None:
        with self._lock:
            self._writes[batch] = at, inf

    def end_write(self, batch: int, at: float) -> None:
        with self._lock:
            self._writes[batch] = self._writes[batch][0], at

    def add_read(self, read: Read) -> None:
        with self._lock:
            self._reads.append(read)

    def audit(self) -> HistoryAudit:
        with self._lock:
            writes, reads = dict(self._writes), list(self._reads)
        began, ended = self._times(writes)
        seen, repeated, early = _sets(reads, began)
        appeared = ended.copy()
        for read, has in zip(reads, seen, strict=True):
            appeared[has] = np.minimum(appeared[has], read.ended)
        lacking = sum(
            int(np.count_nonzero(~has & (appeared < read.began)))
            for read, has in zip(reads, seen, strict=True)
            if read.is_complete
        )
        return HistoryAudit(
            writes=len(writes),
            unanswered=sum(end == inf for _, end in writes.values()),
            reads=len(reads),
            incomplete=sum(not read.is_complete for read in reads),
            lacking=lacking,
            early=early,
            repeated=repeated,
        )

    def _times(self, writes: dict[int, tuple[float, float]]) -> tuple[Times, Times]:
        """When the write of each observation began and ended, by its number; inf: never."""
        times = np.full((max(writes, default=-1) + 1, 2), inf)
        for batch, span in writes.items():
            times[batch] = span
        began, ended = np.repeat(times, self.rows, axis=0).T
        return began, ended


def _sets(reads: Sequence[Read], began: Times) -> tuple[list[npt.NDArray[np.bool_]], int, int]:
    """Which observations each read has, and how many are repeated, and early, in all reads."""
    sets, repeated, early = [], 0, 0
    for read in reads:
        numbers = np.unique(read.numbers)
        repeated += len(read.numbers) - len(numbers)
        known = numbers[(numbers >= 0) & (numbers < len(began))]
        early += len(numbers) - len(known)
        early += int(np.count_nonzero(began[known] > read.ended))
        has = np.zeros(len(began), dtype=np.bool_)
        has[known] = True
        sets.append(has)
    return sets, repeated, early
