"""The coordinator of one CCQ: its cache, cycles and fetches."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import exp
from typing import Any

from galileo.ccq.cache import LabelCache
from galileo.ccq.cycles import Cycles
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import (
    BackfillFinished,
    CacheReadAnswered,
    CacheReadFailed,
    CompactPacks,
    ContinuousEffect,
    CycleResult,
    Effects,
    FetchRequested,
    SequencesConfirmed,
)
from galileo.ccq.fetches import Fetches
from galileo.ccq.model import Record
from galileo.ccq.stats import LabelCounts
from galileo.cursor import Cursor
from galileo.errors import Failure, HistoryChanged

LATELY_S = 300.0
"""Time constant: a fetch of this age counts 1/e of a new one."""
VISIT_PAUSE_S = 1.0
"""Fetches with longer pauses between them are separate visits."""
NEWEST_WEIGHT = 0.5
"""Weight of the newest pause in the mean pause (exponential average)."""
RESET_PAUSE_S = 600.0
"""The longest pause within a reset of one reader while others go on."""
RESETS_MAX = 16
"""Readers within a reset for which the others are held back; of more, the latest ones."""


class FetchStats:
    """How frequent the fetches of a CCQ are, and when the next visit is expected.

    A visit is one fetch, or several in a row. The statistics only decide which labels wait on disk,
    never what is answered.

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
        """Count a fetch."""
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
        """Number of fetches, exponentially weighted by age."""
        return self._lately * exp((self.last_at - now) / LATELY_S)

    def next_expected_at(self, interval_s: float) -> float:
        """When the next visit is expected; after one update interval if nothing is known."""
        return self.last_at + (interval_s if self.pause_s is None else self.pause_s)


class Coordinator:
    """Runs one CCQ for one term: from when this node begins until it stops.

    It begins with an empty cache at the record's retrieved cursor, or where the range of the last
    holder ends. What a predecessor evaluated beyond that was lost with its cache and is evaluated
    again.

    Invariant: retrieved <= evaluated, and neither moves back.

    Args:
        record: that names this node.
        term: no other one of this process has it.
        now: the time.
        labels_max: bound of `FetchRequested.labels_max`.
        clock: of the dataset.
    """

    cache_type = LabelCache
    cycles_type = Cycles
    fetches_type = Fetches

    def __init__(
        self,
        record: Record,
        *,
        term: int,
        now: float,
        labels_max: int,
        clock: EventClock | None = None,
    ) -> None:
        self.ccq = record.ccq
        self.term = term
        self.counts = LabelCounts()
        self.cache = self.cache_type(beginning(record))
        self.cycles = self.cycles_type(record.ccq, term=term, cache=self.cache, now=now)
        self.fetches = self.fetches_type(
            cache=self.cache, cycles=self.cycles, labels_max=labels_max, clock=clock
        )
        self.cycles.counts = self.fetches.counts = self.counts
        self.fetches.acknowledged = record.retrieved
        self.fetches.holders = record.holders
        self.fetch_stats = FetchStats(now)
        self._resets: dict[Cursor, float] = {}

    @property
    def evaluated(self) -> Cursor:
        return self.cache.until

    @property
    def retrieved(self) -> Cursor:
        return self.fetches.acknowledged

    def saved(self, now: float) -> Cursor:
        """What has been retrieved, but nothing past the snapshot of a reader within a reset.

        Cleaning waits for it. If it went past the snapshot, the reader would have to begin again.
        """
        snapshots = [cursor for cursor, at in self._resets.items() if now - at < RESET_PAUSE_S]
        return reduce(Cursor.meet, snapshots, self.retrieved)

    def apply_result(self, result: CycleResult, now: float) -> Effects:
        """Add the result of a cycle to the cache, and wake waiting fetches."""
        if result.failure is not None and result.failure.kind == HistoryChanged.kind:
            return self._begin_again(result.failure, now)
        labels_added = self.cycles.finish(result, now)
        fetches = self.fetches
        is_news = labels_added or result.failure or result.gone
        is_awaited = fetches.awaits_clock or fetches.awaits_withdrawals
        effects = fetches.wake(now) if is_news or is_awaited else []
        small_chunks = self.cache.compact()
        if small_chunks is not None:
            effects.append(CompactPacks(self.ccq, self.term, small_chunks))
        return effects

    def _begin_again(self, failure: Failure, now: float) -> Effects:
        """Empty the cache where commits that it has labels of were lost.

        It begins again behind the jumps of the logs. Tokens of before are behind it, so a rescan
        checks each of them and finds what is stored past it, or refuses it.
        """
        details: dict[str, Any] = dict(failure.details)
        begins = Cursor(dict(zip(details["partitions"], details["until"], strict=True)))
        self.cache.advance(self.evaluated.join(begins))
        self.fetches.holders = ()
        return self.fetches.wake(now)

    def apply_retrieved(self, cursor: Cursor, now: float) -> Effects:
        """Take over what a client acknowledged to another coordinator."""
        if self.retrieved.covers(cursor):
            return []
        self.cache.advance(cursor)
        self.fetches.acknowledged = self.retrieved.join(cursor)
        return self.fetches.wake(now)

    def fetch(self, event: FetchRequested, known: Cursor, now: float) -> Effects:
        self.fetch_stats.record_fetch(now)
        self._resets.pop(event.cursor, None)
        if event.is_reset:
            self._resets[event.cursor] = now
            for oldest in [*self._resets][:-RESETS_MAX]:
                del self._resets[oldest]
        return self.fetches.fetch(event, known, now)

    def confirm(self, event: SequencesConfirmed, known: Cursor, now: float) -> Effects:
        return self.fetches.confirm(event, known, now)

    def backfill(self, event: BackfillFinished, now: float) -> Effects:
        return self.fetches.backfill(event, now)

    def on_cache_read(self, event: CacheReadAnswered | CacheReadFailed, now: float) -> Effects:
        return self.fetches.on_cache_read(event, now)

    def refuse(self, request: int, failure: Failure) -> Effects:
        return self.fetches.refuse(request, failure)

    def close(self, response: Callable[[int], ContinuousEffect]) -> Effects:
        return self.fetches.close(response)

    def check(self) -> None:
        self.cycles.check()
        self.fetches.check()


def beginning(record: Record) -> Cursor:
    """The cursor up to which clients have all labels, or holders keep them."""
    at = record.retrieved
    for holder in record.holders:
        at = at.join(holder.until)
    return at
