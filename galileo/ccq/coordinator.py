"""One CCQ at its coordinator, in one term: cache, cycles and fetches together."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from galileo.ccq.cache import LabelCache
from galileo.ccq.cycles import Cycles
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import (
    AnswerFetch,
    BackfillFinished,
    CacheReadAnswered,
    CacheReadFailed,
    CompactPacks,
    ContinuousEffect,
    CycleResult,
    FetchRequested,
    SequencesConfirmed,
)
from galileo.ccq.fetches import Fetches
from galileo.ccq.model import Failure, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.stats import LabelCounts
from galileo.cursor import Cursor

Effects = list[ContinuousEffect]

LATELY_S = 300.0
"""Fetches count for less as they are older; after so long for 1/e of one."""
VISIT_PAUSE_S = 1.0
"""Fetches with longer pauses between them are visits of their own."""
NEWEST_WEIGHT = 0.5
"""Of the pause before the last visit, in the mean pause."""


class FetchStats:
    """The fetches of one CCQ at its coordinator.

    Attributes:
        last_at: of the last fetch; before the first one, when the coordinator began.
        pause_s: mean time between visits; None until there have been two.
    """

    __slots__ = ("_lately", "_visits", "last_at", "pause_s")

    def __init__(self, now: float) -> None:
        self.last_at = now
        self.pause_s: float | None = None
        self._lately = 0.0
        self._visits = 0

    def record_fetch(self, now: float) -> None:
        """A fetch has come."""
        pause_s = now - self.last_at
        self._lately = self.recent_fetch_rate(now) + 1.0
        self.last_at = now
        if self._visits and pause_s <= VISIT_PAUSE_S:
            return
        self._visits += 1
        if self._visits > 1:
            before_s = pause_s if self.pause_s is None else self.pause_s
            self.pause_s = before_s + NEWEST_WEIGHT * (pause_s - before_s)

    def recent_fetch_rate(self, now: float) -> float:
        """How many there were, the old ones counted for less."""
        return self._lately * exp((self.last_at - now) / LATELY_S)

    def next_expected_at(self, interval_s: float) -> float:
        """When the next visit is to be expected; readers of whom nothing is known come at each
        update interval.
        """
        return self.last_at + (interval_s if self.pause_s is None else self.pause_s)


class Coordinator:
    """Begins, empty, at the record's retrieved cursor, or where the last holder's stretch ends:
    what a predecessor evaluated beyond that went with its cache and is evaluated again.

    Invariant: retrieved <= evaluated, and neither moves back, since a restart has a new term.
    """

    cache_type = LabelCache
    cycles_type = Cycles
    fetches_type = Fetches

    def __init__(
        self,
        record: Record,
        *,
        now: float,
        options: ContinuousOptions,
        clock: EventClock | None = None,
    ) -> None:
        self.ccq = record.ccq
        self.term = record.term
        self.counts = LabelCounts()
        self.cache = self.cache_type(beginning(record), chunks_compacted=options.chunks_compacted)
        self.cycles = self.cycles_type(
            record.ccq, term=record.term, cache=self.cache, now=now, options=options
        )
        self.fetches = self.fetches_type(
            cache=self.cache, cycles=self.cycles, options=options, clock=clock
        )
        self.cycles.counts = self.fetches.counts = self.counts
        self.fetches.acknowledged = record.retrieved
        self.fetches.holders = record.holders
        self.fetch_stats = FetchStats(now)

    @property
    def evaluated(self) -> Cursor:
        return self.cache.until

    @property
    def retrieved(self) -> Cursor:
        return self.fetches.acknowledged

    def apply_result(self, result: CycleResult, now: float) -> Effects:
        """A cycle's result for this CCQ."""
        found = self.cycles.finish(result, now)
        is_news = found or result.failure or result.gone or self.fetches.awaits_clock
        effects = self.fetches.wake(now) if is_news else []
        crowd = self.cache.compact()
        if crowd is not None:
            effects.append(CompactPacks(self.ccq, self.term, crowd))
        return effects

    def apply_retrieved(self, cursor: Cursor, now: float) -> Effects:
        """A client acknowledged this much to another coordinator."""
        if self.retrieved.covers(cursor):
            return []
        self.cache.advance(cursor)
        self.fetches.acknowledged = self.retrieved.join(cursor)
        return self.fetches.wake(now)

    def fetch(self, event: FetchRequested, known: Cursor, now: float) -> Effects:
        self.fetch_stats.record_fetch(now)
        return self.fetches.fetch(event, known, now)

    def try_fetch_from_cache(self, event: FetchRequested, now: float) -> AnswerFetch | None:
        """What `fetch` would answer; None where that is not for the cache alone to say."""
        answer = self.fetches.try_fetch_from_cache(event, now)
        if answer is not None:
            self.fetch_stats.record_fetch(now)
        return answer

    def confirm(self, event: SequencesConfirmed, known: Cursor, now: float) -> Effects:
        return self.fetches.confirm(event, known, now)

    def backfill(self, event: BackfillFinished, now: float) -> Effects:
        return self.fetches.backfill(event, now)

    def on_cache_read(self, event: CacheReadAnswered | CacheReadFailed, now: float) -> Effects:
        return self.fetches.on_cache_read(event, now)

    def refuse(self, request: int, failure: Failure) -> Effects:
        return self.fetches.refuse(request, failure)

    def close(self, last_word: Callable[[int], ContinuousEffect]) -> Effects:
        return self.fetches.close(last_word)

    def check(self) -> None:
        self.cycles.check()
        self.fetches.check()


def beginning(record: Record) -> Cursor:
    """Up to where clients have everything, or holders keep it."""
    at = record.retrieved
    for holder in record.holders:
        at = at.join(holder.until)
    return at
