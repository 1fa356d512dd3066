"""One CCQ at its coordinator, in one term: cache, cycles and fetches together."""

from __future__ import annotations

from collections.abc import Callable

from galileo.ccq.cache import LabelCache
from galileo.ccq.counts import LabelCounts
from galileo.ccq.cycles import Cycles
from galileo.ccq.elsewhere import HolderAnswered, HolderFailed
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import (
    AnswerFetch,
    BackfillFinished,
    ContinuousEffect,
    CycleResult,
    FetchRequested,
    GatherPacks,
    SequencesConfirmed,
)
from galileo.ccq.fetches import Fetches
from galileo.ccq.model import Failure, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.rhythm import Rhythm
from galileo.cursor import Cursor

Effects = list[ContinuousEffect]


class Coordination:
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
        self.cache = self.cache_type(beginning(record), chunks_gathered=options.chunks_gathered)
        self.cycles = self.cycles_type(
            record.ccq, term=record.term, cache=self.cache, now=now, options=options
        )
        self.fetches = self.fetches_type(
            cache=self.cache, cycles=self.cycles, options=options, clock=clock
        )
        self.cycles.counts = self.fetches.counts = self.counts
        self.fetches.acknowledged = record.retrieved
        self.fetches.holders = record.holders
        self.rhythm = Rhythm(now)

    @property
    def evaluated(self) -> Cursor:
        return self.cache.until

    @property
    def retrieved(self) -> Cursor:
        return self.fetches.acknowledged

    def take_over(self, result: CycleResult, now: float) -> Effects:
        """A cycle's result for this CCQ."""
        found = self.cycles.finish(result, now)
        is_news = found or result.failure or result.gone or self.fetches.awaits_clock
        effects = self.fetches.wake(now) if is_news else []
        crowd = self.cache.gather()
        if crowd is not None:
            effects.append(GatherPacks(self.ccq, self.term, crowd))
        return effects

    def learn_retrieved(self, cursor: Cursor, now: float) -> Effects:
        """A client acknowledged this much to another coordinator."""
        if self.retrieved.covers(cursor):
            return []
        self.cache.advance(cursor)
        self.fetches.acknowledged = self.retrieved.join(cursor)
        return self.fetches.wake(now)

    def ask(self, event: FetchRequested, known: Cursor, now: float) -> Effects:
        self.rhythm.note(now)
        return self.fetches.ask(event, known, now)

    def ask_at_once(self, event: FetchRequested, now: float) -> AnswerFetch | None:
        """What `ask` would answer; None where that is not for the cache alone to say."""
        answer = self.fetches.ask_at_once(event, now)
        if answer is not None:
            self.rhythm.note(now)
        return answer

    def confirm(self, event: SequencesConfirmed, known: Cursor, now: float) -> Effects:
        return self.fetches.confirm(event, known, now)

    def backfill(self, event: BackfillFinished, now: float) -> Effects:
        return self.fetches.backfill(event, now)

    def hear_holder(self, event: HolderAnswered | HolderFailed, now: float) -> Effects:
        return self.fetches.hear_holder(event, now)

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
