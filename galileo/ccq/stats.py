"""Statistics of continuous queries for metrics; no decision depends on them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from galileo.histogram import LAG_BOUNDS_S, DurationHistogram

ENDED_MAX = 256


class LabelCounts:
    """What became of labels since this node began to coordinate a CCQ, or of all since its start.

    Attributes:
        matched: labels that cycles found and cached.
        delivered: labels in answers to fetches, those that were delivered before included.
        served_again: of the delivered ones those at or before a position that an earlier answer
            had reached: for a further reader, or one that came back with an old token.
        late: labels that were delivered for a window after its reader saw it closed;
            of sliding windows once for each.
        lag: from when commits may have lain beyond the cache until they were taken in.
        of_node: where all of it is counted once more; None: this is that.
    """

    __slots__ = ("delivered", "lag", "late", "matched", "of_node", "served_again")

    def __init__(self, of_node: LabelCounts | None = None) -> None:
        self.matched = self.delivered = self.served_again = self.late = 0
        self.lag = DurationHistogram(LAG_BOUNDS_S)
        self.of_node = of_node

    def record_matched(self, labels: int, *, lag_s: float) -> None:
        self.matched += labels
        self.lag.observe(lag_s)
        if self.of_node is not None:
            self.of_node.record_matched(labels, lag_s=lag_s)

    def record_delivered(self, labels: int, *, again: int) -> None:
        self.delivered += labels
        self.served_again += again
        if self.of_node is not None:
            self.of_node.record_delivered(labels, again=again)

    def record_late(self, labels: int) -> None:
        self.late += labels
        if self.of_node is not None:
            self.of_node.record_late(labels)


@dataclass(frozen=True, slots=True)
class ElectionEnded:
    """Attributes:
    ccq_id: of what was given a coordinator; of many at once the batch's name.
    begun_at: by the clock of the machine.
    request: that waited for it, if one did.
    failure: why no node took it; empty where one did, or that was no longer needed.
    """

    ccq_id: str
    begun_at: float
    request: int | None
    failure: str = ""


class NodeCounts:
    """What one node counts from its start on.

    Attributes:
        labels: of all CCQs that it coordinated.
        cycles: how long each job of cycles took, whatever came of it.
        cycles_failed: of them those that came to nothing.
        elections: that this node began.
        elections_failed: of them those in which no node took the CCQ.
        ended: the newest elections that are over; reporting them removes them.
    """

    __slots__ = ("cycles", "cycles_failed", "elections", "elections_failed", "ended", "labels")

    def __init__(self) -> None:
        self.labels = LabelCounts()
        self.cycles = DurationHistogram(LAG_BOUNDS_S)
        self.cycles_failed = 0
        self.elections = 0
        self.elections_failed = 0
        self.ended: deque[ElectionEnded] = deque(maxlen=ENDED_MAX)
