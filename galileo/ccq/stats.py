"""Statistics of continuous queries for metrics; no decision depends on them."""

from __future__ import annotations

from galileo.histogram import LAG_BOUNDS_S, DurationHistogram


class LabelCounts:
    """Counts of labels since this node began to coordinate a CCQ, or of all CCQs since its start.

    Attributes:
        matched: labels that cycles found and cached.
        delivered: labels in answers to fetches, repeated ones included.
        served_again: delivered labels at or before the end of an earlier answer: for a further
            reader, or one with an old token.
        late: labels delivered for a window that was reported closed; of sliding windows once for
            each.
        lag: seconds from when commits may have lain beyond the cache until they were added.
        of_node: counts of the node, updated too; None: these are the counts of the node.
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


class NodeCounts:
    """Counts of one node since its start.

    Attributes:
        elections: that this node held.
        elections_failed: of them those that found no node.
        labels: of all CCQs that it coordinated.
        cycles: durations of jobs, failed ones too.
        cycles_failed: number of failed jobs.
    """

    __slots__ = ("cycles", "cycles_failed", "elections", "elections_failed", "labels")

    def __init__(self) -> None:
        self.elections = self.elections_failed = 0
        self.labels = LabelCounts()
        self.cycles = DurationHistogram(LAG_BOUNDS_S)
        self.cycles_failed = 0
