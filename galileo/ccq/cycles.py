"""When a CCQ is due, what its next processing cycle has to look at, and what came of it.

Cycles lie on the multiples of the update interval, so that CCQs of one interval share their
jobs. Results describe themselves (term, from where, to where), hence a result that comes late,
twice, or after another one is as good as any: the cache takes what is new in it.
"""

from __future__ import annotations

import math

from galileo.ccq.cache import LabelCache
from galileo.ccq.events import CycleItem, CycleResult
from galileo.ccq.model import Ccq, Failure
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.stats import LabelCounts
from galileo.cursor import ORIGIN, Cursor
from galileo.errors import SamplerRevoked

LASTING_FAILURES = frozenset({SamplerRevoked.kind})
"""A further cycle cannot mend them, so readers get the error at once."""
_DOUBLINGS_MAX = 16
_CALM_FACTOR = 2.0
"""A sampler that is still at work is asked again after the longest pause, and once more."""


class Cycles:
    """The processing cycles of one CCQ in one term.

    Attributes:
        running: id of the cycle in flight, of which there is at most one.
        failure: why the CCQ itself fails, once it has done so several times at the same place: a
            sampler whose process died may do better in the next cycle, so readers get no error at
            once.
        fresh_at: when it was last known that nothing lies beyond the cache.
        is_resting: nothing is known to lie beyond it now, until `wake` says otherwise.
        over, failed: cycles that are over, and of them those that came to nothing.
        over_s: what all of them took, in seconds.
        counts: of labels, for those who watch.
    """

    def __init__(
        self, ccq: Ccq, *, term: int, cache: LabelCache, now: float, options: ContinuousOptions
    ) -> None:
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
        self._options = options
        self._due_at = now
        self._started_at = now
        self._goal = ORIGIN
        self._failed_at = -math.inf
        self._failed_until = ORIGIN
        self._fruitless = 0
        self._failures = 0
        self._took_s = 0.0

    @property
    def due_at(self) -> float:
        """When there is something to do, at the earliest."""
        return self._due_at

    def age_s(self, now: float) -> float:
        """Since when something may lie beyond the cache, in seconds; 0 while nothing does."""
        return 0.0 if self.is_resting else max(0.0, now - self.fresh_at)

    def interval_s(self, now: float) -> float:
        """At which the CCQ is evaluated now: its own, or as long as its cycles take.

        A CCQ has one cycle at a time, and what is overdue begins when that ends. So cycles that
        take longer than the interval stretch it, and each of them finds more; nothing is skipped.
        """
        waits_s = 0.0 if self.running is None else now - self._started_at
        return max(self.ccq.interval_s, self._took_s, waits_s)

    def is_overloaded(self, now: float) -> bool:
        return self.interval_s(now) > self.ccq.interval_s

    def wake(self, now: float) -> None:
        """There is news for a CCQ that rests: it is due at the next multiple of its interval."""
        self.is_resting, self.fresh_at = False, now
        if self._due_at <= now:
            self._due_at = self._next_due(now)

    def item(self, known: Cursor, now: float) -> CycleItem | None:
        """What there is to do now; None when it is not due, or nothing is new and it rests."""
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
        """The cycle in flight is over; what it found, if anything, is another matter."""
        self.running, self._took_s = None, now - self._started_at
        self.over += 1
        self.over_s += self._took_s

    def finish(self, result: CycleResult, now: float) -> int:
        """Takes a result of this term over, from whichever cycle.

        Returns:
            How many labels were new.
        """
        if result.failure is not None:
            self._note_failure(result.failure, now)
        if result.failure is not None or not self._cache.until.covers(result.after):
            self._back_off(now)
            return 0
        before = self._cache.until
        found = self._cache.append(
            result.labels, reached=result.reached, gone=result.gone, after=result.after
        )
        self.counts.record_matched(found, lag_s=now - self.fresh_at)
        if self._cache.until == before:
            self._back_off(now)  # The partitions with news could not be asked.
        else:
            self._fruitless = 0
        if self._cache.until.covers(self._goal):
            self.fresh_at = self._started_at
        if self._has_overcome(now):
            self._failures, self.failure = 0, None
        return found

    def fail(self, now: float) -> None:
        """The cycle in flight came to nothing."""
        self.end(now)
        self.failed += 1
        self._back_off(now)

    def check(self) -> None:
        self._cache.check()

    def _note_failure(self, failure: Failure, now: float) -> None:
        self._fruitless = self._failures  # An answer; cycles that waited for it do not count on.
        self._failures += 1
        self._failed_at, self._failed_until = now, self._goal
        is_told = self._failures >= self._options.failures_before_error
        if is_told or failure.kind in LASTING_FAILURES:
            self.failure = failure

    def _has_overcome(self, now: float) -> bool:
        """Whether what failed has done better since; asked after progress.

        That something was found is not enough: it may come from other partitions, while the
        sampler that failed is still at work on those where it fails. Nor is it certain that all
        is found ever, with a node away. So what goes on for long without a failure counts, too.
        """
        calm_s = _CALM_FACTOR * self._options.cycle_retry_max_s
        return self._cache.until.covers(self._failed_until) or now - self._failed_at > calm_s

    def _next_due(self, now: float) -> float:
        interval_s = self.ccq.interval_s
        return (math.floor(now / interval_s) + 1) * interval_s

    def _back_off(self, now: float) -> None:
        doublings = min(self._fruitless, _DOUBLINGS_MAX)
        pause_s = self._options.cycle_retry_s * 2**doublings
        self._fruitless += 1
        self._due_at = now + min(pause_s, self._options.cycle_retry_max_s)
