"""One CCQ at its coordinator, in one term: cache, cycles and fetches together."""

from __future__ import annotations

from collections.abc import Callable

from galileo.ccq.cache import LabelCache
from galileo.ccq.cycles import Cycles
from galileo.ccq.events import (
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
from galileo.cursor import Cursor

Effects = list[ContinuousEffect]


class Coordination:
    """Begins, empty, at the record's retrieved cursor: what a predecessor evaluated beyond it
    went with its cache and is evaluated again.

    Invariant: retrieved <= evaluated, and neither moves back, since a restart has a new term.
    """

    cache_type = LabelCache
    cycles_type = Cycles
    fetches_type = Fetches

    def __init__(self, record: Record, *, now: float, options: ContinuousOptions) -> None:
        self.ccq = record.ccq
        self.term = record.term
        self.cache = self.cache_type(record.retrieved, chunks_gathered=options.chunks_gathered)
        self.cycles = self.cycles_type(
            record.ccq, term=record.term, cache=self.cache, now=now, options=options
        )
        self.fetches = self.fetches_type(cache=self.cache, cycles=self.cycles, options=options)

    @property
    def evaluated(self) -> Cursor:
        return self.cache.until

    @property
    def retrieved(self) -> Cursor:
        return self.fetches.acknowledged

    def take_over(self, result: CycleResult, now: float) -> Effects:
        """A cycle's result for this CCQ."""
        found = self.cycles.finish(result, now)
        effects = self.fetches.wake(now) if found or result.failure or result.gone else []
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
        return self.fetches.ask(event, known, now)

    def confirm(self, event: SequencesConfirmed, known: Cursor, now: float) -> Effects:
        return self.fetches.confirm(event, known, now)

    def backfill(self, event: BackfillFinished, now: float) -> Effects:
        return self.fetches.backfill(event, now)

    def refuse(self, request: int, failure: Failure) -> Effects:
        return self.fetches.refuse(request, failure)

    def close(self, last_word: Callable[[int], ContinuousEffect]) -> Effects:
        return self.fetches.close(last_word)

    def check(self) -> None:
        self.cycles.check()
        self.fetches.check()
