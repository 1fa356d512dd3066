"""Plans the processing cycles of one CCQ and applies their results.

Cycles start at multiples of the update interval, so that CCQs with the same interval share jobs. A
result names its term and its range of commits, so late, repeated and reordered results are
harmless: the cache takes what is new in them.
"""

from __future__ import annotations

import math

from galileo.ccq.cache import LabelCache
from galileo.ccq.events import CycleItem, CycleResult
from galileo.ccq.model import CcqDefinition
from galileo.ccq.stats import LabelCounts
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure, SamplerRevoked

LASTING_FAILURES = frozenset({SamplerRevoked.kind})
"""Kinds that no further cycle can mend; readers get them at once."""
FAILURES_BEFORE_ERROR = 3
"""Failures of a CCQ at one cursor before its readers get the error."""
RETRY_S, RETRY_MAX_S = 0.5, 30.0
"""Pause after a failed cycle, doubled up to `RETRY_MAX_S`."""
_DOUBLINGS_MAX = 16
_CALM_FACTOR = 2.0
"""In `RETRY_MAX_S`: after this time without a failure a CCQ has recovered."""


class Cycles:
    """The processing cycles of one CCQ in one term.

    Attributes:
        running: id of the cycle in flight; at most one.
        failure: why the CCQ fails, set after several failures at the same cursor: a sampler whose
            process died may succeed in the next cycle.
        fresh_at: when the cache was last known to be complete.
        is_resting: no commits past the cache are known, until `wake`.
        over, failed: cycles that ended, and of them those that failed.
        over_s: their total duration in seconds.
        counts: label counts for metrics.
    """

    def __init__(self, ccq: CcqDefinition, *, term: int, cache: LabelCache, now: float) -> None:
        self.ccq = ccq
        self.term = term
        self.running: int | None = None
        self.failure: Failure | None = None
        self.fresh_at = now
        self.is_resting = False
        self.over = self.failed = 0
        self.over_s = 0.0
        self.counts = LabelCounts()
        self._cache = cache
        self._due_at = now
        self._started_at = now
        self._goal = EMPTY_CURSOR
        self._failed_at = -math.inf
        self._failed_until = EMPTY_CURSOR
        self._cycles_without_progress = 0
        self._failures = 0
        self._took_s = 0.0

    @property
    def due_at(self) -> float:
        """The earliest time at which a cycle may start."""
        return self._due_at

    def age_s(self, now: float) -> float:
        """Seconds since the cache may be incomplete; 0 while it is complete."""
        return 0.0 if self.is_resting else max(0.0, now - self.fresh_at)

    def interval_s(self, now: float) -> float:
        """The present time between two evaluations: the update interval, or the cycle time if
        longer.

        A CCQ has one cycle at a time, and an overdue one begins when it ends. So cycles that take
        longer than the interval stretch it, and each of them finds more; nothing is skipped.
        """
        waits_s = 0.0 if self.running is None else now - self._started_at
        return max(self.ccq.interval_s, self._took_s, waits_s)

    def is_overloaded(self, now: float) -> bool:
        return self.interval_s(now) > self.ccq.interval_s

    def wake(self, now: float) -> None:
        """Plan a cycle for new commits at the next multiple of the interval."""
        self.is_resting, self.fresh_at = False, now
        # A later time stays: it is a multiple already, or a pause after a failure.
        if self._due_at <= now:
            self._due_at = self._next_due(now)

    def item(self, known: Cursor, now: float) -> CycleItem | None:
        """The item of the next cycle; None if it is not due, or nothing is new and it rests."""
        if self.running is not None or now < self._due_at:
            return None
        self._due_at = self._next_due(now)
        until = self._cache.until
        news = until.news(known)
        if not news:
            self.is_resting, self.fresh_at, self._took_s = True, now, 0.0
            return None
        return CycleItem(self.ccq, self.term, until, news)

    def start(self, cycle_id: int, known: Cursor, now: float) -> None:
        assert self.running is None, f"{self.ccq.id} is in two cycles"
        self.running, self._goal, self._started_at = cycle_id, known, now

    def end(self, now: float) -> None:
        """Mark the cycle in flight as ended; `finish` applies its result."""
        self.running, self._took_s = None, now - self._started_at
        self.over += 1
        self.over_s += self._took_s

    def finish(self, result: CycleResult, now: float) -> int:
        """Apply a result of this term, from any cycle.

        Returns:
            How many labels were new.
        """
        if result.failure is not None:
            self._record_failure(result.failure, now)
            self._back_off(now)
            return 0
        before = self._cache.until
        assert before.covers(result.after), "a cycle began past the cache"
        labels_added = self._cache.append(
            result.labels, reached=result.reached, gone=result.gone, after=result.after
        )
        self.counts.record_matched(labels_added, lag_s=now - self.fresh_at)
        if self._cache.until == before:
            self._back_off(now)  # No partition with new commits answered.
        else:
            self._cycles_without_progress = 0
        # What was known when the cycle began is in the cache; what has come since may not be.
        if self._cache.until.covers(self._goal):
            self.fresh_at = self._started_at
        if self._has_recovered(now):
            self._failures, self.failure = 0, None
        return labels_added

    def fail(self, now: float) -> None:
        """Mark the cycle in flight as failed."""
        self.end(now)
        self.failed += 1
        self._back_off(now)

    def check(self) -> None:
        self._cache.check()

    def _record_failure(self, failure: Failure, now: float) -> None:
        # The evaluator has answered, so the pauses grow with the failures of this CCQ alone.
        self._cycles_without_progress = self._failures
        self._failures += 1
        self._failed_at, self._failed_until = now, self._goal
        is_repeated = self._failures >= FAILURES_BEFORE_ERROR
        if is_repeated or failure.kind in LASTING_FAILURES:
            self.failure = failure

    def _has_recovered(self, now: float) -> bool:
        """Whether the failure is over; called after progress.

        Progress alone is not enough: it may come from other partitions, while the sampler still
        runs where it fails. Nor is the goal always reached, with a node down. So a long time
        without a failure counts, too.
        """
        calm_s = _CALM_FACTOR * RETRY_MAX_S
        return self._cache.until.covers(self._failed_until) or now - self._failed_at > calm_s

    def _next_due(self, now: float) -> float:
        interval_s = self.ccq.interval_s
        return (math.floor(now / interval_s) + 1) * interval_s

    def _back_off(self, now: float) -> None:
        doublings = min(self._cycles_without_progress, _DOUBLINGS_MAX)
        pause_s = RETRY_S * 2**doublings
        self._cycles_without_progress += 1
        self._due_at = now + min(pause_s, RETRY_MAX_S)
