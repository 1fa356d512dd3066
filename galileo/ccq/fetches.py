"""The fetches of one CCQ at its coordinator.

Theory of operation. A fetch brings the cursor of its token. Partition by partition the token
lies in one of three places:

* *behind* the cache (`token < base`): another reader, another coordinator or a full memory moved
  the base on. Where a holder keeps the stretch in which the token lies, it is asked; else, or where
  it does not have it, the log is rescanned from the token to the base. The answer joins what was
  found to what the cache holds. It is put together when the rescan arrives, against the
  cache as it is then; where rescan and cache do not meet, the answer ends with the rescan.
* *inside* the cache: answered from it, once the file that has the labels is loaded.
* *ahead* of it (`token > until`): another coordinator had evaluated further. If commits up to
  there are known, the cache takes them as known and dropped. If not, the partition's owners are
  asked. If these say that no such commit exists, the token is refused; if they cannot be
  reached, the partition stays where the token has it and the others are answered.

Where a fetch waits for news, it is served afresh, by the same rules, when the cache grew; for a
CCQ with windows, news is also that the event clock came to where one of the reader's closes.
Where retention dropped commits before they were evaluated, the answer names their stretch; it
is nothing new to wait for, so the response is sent at once.

Each answer is "all labels in (after, cursor]" and a function of the log, the token and the
cursor alone: a reader that fetches twice gets the same labels twice, each client that goes on from
the cursor gets every label once.

Stages of a fetch: confirming, asking (a holder), backfilling, loading, waiting; answered ones are
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from galileo.ccq.cache import LabelCache, Selection
from galileo.ccq.cycles import Cycles
from galileo.ccq.dropped_ranges import ranges_between, within
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import (
    AnswerFetch,
    Backfill,
    BackfillFinished,
    CacheReadAnswered,
    CacheReadFailed,
    ConfirmSequences,
    ContinuousEffect,
    FetchRequested,
    LoadPacks,
    ReadHandedOffCache,
    RefuseFetch,
    SequencesConfirmed,
)
from galileo.ccq.model import Failure, Holder
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.packs import PackedLabels
from galileo.ccq.stats import LabelCounts
from galileo.cursor import ORIGIN, Cursor, Stretch

Effects = list[ContinuousEffect]


@dataclass(frozen=True, slots=True)
class FetchResponse:
    labels: PackedLabels | None
    cursor: Cursor
    is_cut: bool


def compose(
    backfilled: PackedLabels | None, selection: Selection, *, labels_max: int
) -> FetchResponse:
    """Joins what a rescan and what the cache found, and cuts it to size.

    Args:
        backfilled: matches before those of the selection, partition by partition; None: none.
        selection: of the cache, past what the rescan reached.
        labels_max: bound of the answer; its first commit may exceed it.
    """
    found = selection.labels
    if backfilled is not None:
        found = PackedLabels.concat([backfilled, found])
    if found is None:
        return FetchResponse(None, selection.covered, is_cut=False)
    labels, cursor = found.cut(reached=selection.covered, labels_max=labels_max)
    return FetchResponse(labels, cursor, is_cut=cursor != selection.covered)


@dataclass(slots=True)
class _Fetch:
    request: int
    cursor: Cursor
    wait_until: float | None
    labels_max: int
    deadline: float
    stage: Literal["new", "confirming", "asking", "backfilling", "loading", "waiting"] = "new"
    doubtful: tuple[int, ...] = ()
    until: Cursor = ORIGIN
    holder: Holder | None = None
    until_clock_us: int | None = None


class Fetches:
    """See the module.

    Attributes:
        acknowledged: the join of all genuine tokens.
        holders: of stretches before the cache, oldest first; those that failed are given up.
        counts: of labels, for those who watch.
    """

    compose = staticmethod(compose)

    def __init__(
        self,
        *,
        cache: LabelCache,
        cycles: Cycles,
        options: ContinuousOptions,
        clock: EventClock | None = None,
    ) -> None:
        self.acknowledged = cache.base
        self.holders: tuple[Holder, ...] = ()
        self.counts = LabelCounts()
        self._answered = ORIGIN
        self._cache = cache
        self._cycles = cycles
        self._options = options
        self._clock = clock or EventClock()
        self._open: dict[int, _Fetch] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def awaits_clock(self) -> bool:
        """Whether a fetch waits for the event clock."""
        return any(
            fetch.stage == "waiting" and fetch.until_clock_us is not None
            for fetch in self._open.values()
        )

    # --- events ------------------------------------------------------------------------------

    def fetch(self, event: FetchRequested, known: Cursor, now: float) -> Effects:
        labels_max = max(1, min(event.labels_max, self._options.labels_max))
        fetch = _Fetch(event.request, event.cursor, event.wait_until, labels_max, now)
        fetch.until_clock_us = event.until_clock_us
        self._open[event.request] = fetch
        ahead = self._ahead(fetch.cursor, known)
        if not ahead:
            return self._take(fetch, now)
        fetch.stage, fetch.doubtful = "confirming", ahead
        fetch.deadline = now + self._options.confirm_timeout_s
        return [ConfirmSequences(fetch.request, self._cycles.ccq.dataset, ahead)]

    def try_fetch_from_cache(self, event: FetchRequested, now: float) -> AnswerFetch | None:
        """What `fetch` answers a token inside the cache, where there is nothing else to mind.

        None where there is: then nothing has changed, or no more than the token acknowledges.
        """
        cursor, cache = event.cursor, self._cache
        is_inside = cache.until.covers(cursor) and cursor.covers(cache.base)
        if not is_inside or event.wait_until is not None or self._open:
            return None
        if self._cycles.failure is not None or self._cycles.ccq.window is not None:
            return None
        cache.drop(cursor)
        self.acknowledged = self.acknowledged.join(cursor)
        labels_max = max(1, min(event.labels_max, self._options.labels_max))
        selection = cache.select(cursor, labels_max=labels_max)
        if selection.lacking is not None:
            return None
        answer = self.compose(None, selection, labels_max=labels_max)
        self._count(cursor, answer)
        return AnswerFetch(
            event.request,
            event.ccq_id,
            after=cursor,
            labels=answer.labels,
            cursor=answer.cursor,
            frontier=cache.until,
            frontier_age_s=self._cycles.age_s(now),
            interval_s=self._cycles.interval_s(now),
            more=answer.is_cut or not selection.whole,
            gone=cache.gone.between(cursor, answer.cursor),
        )

    def confirm(self, event: SequencesConfirmed, known: Cursor, now: float) -> Effects:
        fetch = self._open.get(event.request)
        if fetch is None or fetch.stage != "confirming":
            return []
        ahead = self._ahead(fetch.cursor, known)
        fetch.doubtful = tuple(p for p in ahead if p in event.unreachable)
        impossible = [p for p in ahead if p not in event.unreachable]
        return self._refuse_token(fetch, impossible) if impossible else self._take(fetch, now)

    def backfill(self, event: BackfillFinished, now: float) -> Effects:
        fetch = self._open.get(event.request)
        if fetch is None or fetch.stage != "backfilling":
            return []
        rescanned = self._reached(fetch, event.reached)
        gone = ranges_between(fetch.cursor, event.gone.meet(rescanned))
        missing = tuple(sorted({*event.missing, *fetch.doubtful}))
        return self._join(fetch, event.labels, rescanned, now=now, missing=missing, gone=gone)

    def on_cache_read(self, event: CacheReadAnswered | CacheReadFailed, now: float) -> Effects:
        """Answers with what the holder has; one that has nothing of use is given up."""
        fetch = self._open.get(event.request)
        if fetch is None or fetch.stage != "asking":
            return []
        if isinstance(event, CacheReadFailed):
            return self._give_up(fetch, now)
        reached = self._reached(fetch, event.reached)
        if reached == fetch.cursor:
            return self._give_up(fetch, now)
        return self._join(
            fetch, event.labels, reached, now=now, missing=fetch.doubtful, gone=event.gone
        )

    def on_loaded(self, now: float) -> Effects:
        """Serves those that wait for a file."""
        loading = [fetch for fetch in self._open.values() if fetch.stage == "loading"]
        return [effect for fetch in loading for effect in self._serve(fetch, now)]

    def refuse(self, request: int, failure: Failure) -> Effects:
        found = self._open.pop(request, None)
        return [RefuseFetch(request, failure)] if found else []

    def abandon(self, request: int) -> None:
        self._open.pop(request, None)

    def wake(self, now: float) -> Effects:
        """Serves those that wait, since the cache grew or the CCQ failed."""
        waiting = [fetch for fetch in self._open.values() if fetch.stage == "waiting"]
        return [effect for fetch in waiting for effect in self._serve(fetch, now)]

    def tick(self, now: float) -> Effects:
        late = [fetch for fetch in self._open.values() if fetch.deadline <= now]
        return [effect for fetch in late for effect in self._time_out(fetch, now)]

    def close(self, last_word: Callable[[int], ContinuousEffect]) -> Effects:
        """Gives every open fetch the same last word; results that still come are ignored."""
        effects = [last_word(request) for request in self._open]
        self._open = {}
        return effects

    def check(self) -> None:
        assert self._cache.until.covers(self.acknowledged), "acknowledged what is not evaluated"
        for request, fetch in self._open.items():
            assert request == fetch.request
            assert fetch.stage != "new", "a fetch was forgotten"

    # --- inside ------------------------------------------------------------------------------

    def _ahead(self, cursor: Cursor, known: Cursor) -> tuple[int, ...]:
        """The partitions in which the cursor is past everything known to exist."""
        if known.covers(cursor):
            return ()
        known = known.join(self._cache.until)
        return tuple(p for p, sequence in cursor.items() if sequence > known[p])

    def _take(self, fetch: _Fetch, now: float) -> Effects:
        """Takes the token as acknowledgement, then serves the fetch, and others it put behind."""
        genuine = fetch.cursor
        if fetch.doubtful:
            genuine = Cursor({p: s for p, s in genuine.items() if p not in fetch.doubtful})
        self._cache.advance(genuine)
        self.acknowledged = self.acknowledged.join(genuine)
        if len(self._open) == 1:
            return self._serve(fetch, now)
        stages = ("waiting", "loading")
        others = [other for other in self._open.values() if other.stage in stages]
        behind = [other for other in others if not other.cursor.covers(self._cache.base)]
        return [effect for f in (fetch, *behind) for effect in self._serve(f, now)]

    def _serve(self, fetch: _Fetch, now: float) -> Effects:
        base = self._cache.base
        if not fetch.cursor.covers(base):
            behind = {p: sequence for p, sequence in base.items() if fetch.cursor[p] < sequence}
            return self._look_behind(fetch, behind, now)
        selection = self._cache.select(fetch.cursor, labels_max=fetch.labels_max)
        if selection.lacking is not None:
            return self._load(fetch, selection.lacking, now)
        gone = self._cache.gone.between(fetch.cursor, selection.covered)
        is_news = (
            selection.labels is not None or gone or self._is_clock_reached(fetch, selection.covered)
        )
        if not is_news and self._may_wait(fetch, now):
            fetch.stage, fetch.deadline = "waiting", fetch.wait_until or now
            return []
        answer = self.compose(None, selection, labels_max=fetch.labels_max)
        more = answer.is_cut or not selection.whole
        return self._answer(fetch, answer, now=now, missing=fetch.doubtful, more=more)

    def _is_clock_reached(self, fetch: _Fetch, cursor: Cursor) -> bool:
        """Whether the event clock has come to where the fetch waits for it."""
        if fetch.until_clock_us is None:
            return False
        clock_us = self._clock.at(cursor)
        return clock_us is not None and clock_us >= fetch.until_clock_us

    def _may_wait(self, fetch: _Fetch, now: float) -> bool:
        is_patient = fetch.wait_until is not None and now < fetch.wait_until
        return is_patient and self._cycles.failure is None

    def _load(self, fetch: _Fetch, number: int, now: float) -> Effects:
        fetch.stage, fetch.deadline = "loading", now + self._options.backfill_timeout_s
        is_new = self._cache.load(number)
        return [LoadPacks(number, self._cycles.ccq)] if is_new else []

    def _look_behind(self, fetch: _Fetch, behind: dict[int, int], now: float) -> Effects:
        """Asks the first holder in whose stretch the token lies; rescans where there is none."""
        for holder in self.holders:
            begins = self._begins(holder)
            held = {
                p: min(holder.until[p], base)
                for p, base in behind.items()
                if begins[p] <= fetch.cursor[p] < holder.until[p]
            }
            if held:
                fetch.stage, fetch.until, fetch.holder = "asking", Cursor(held), holder
                fetch.deadline = now + self._options.holder_timeout_s
                place = (self._cycles.ccq, holder.node, holder.term)
                return [ReadHandedOffCache(fetch.request, *place, fetch.cursor, fetch.labels_max)]
        until = {p: self._rescan_until(p, fetch.cursor[p], base) for p, base in behind.items()}
        return self._rescan(fetch, Cursor(until), now)

    def _rescan_until(self, partition: int, after: int, base: int) -> int:
        """A rescan ends where a holder's stretch begins."""
        stretches = [(self._begins(one)[partition], one.until[partition]) for one in self.holders]
        return min((begin for begin, end in stretches if after < begin < end), default=base)

    def _begins(self, holder: Holder) -> Cursor:
        """Where a holder's stretch begins by now: it drops what was acknowledged."""
        return holder.after.join(self.acknowledged)

    def _give_up(self, fetch: _Fetch, now: float) -> Effects:
        """Does without a holder from now on; what it kept is rescanned."""
        self.holders = tuple(one for one in self.holders if one != fetch.holder)
        return self._serve(fetch, now)

    @staticmethod
    def _reached(fetch: _Fetch, reached: Cursor) -> Cursor:
        """Up to where a rescan or a holder was asked and has answered.

        What it claims beyond that is others' to answer.
        """
        bounded = {p: min(reached[p], bound) for p, bound in fetch.until.items()}
        return fetch.cursor.join(bounded)

    def _join(
        self,
        fetch: _Fetch,
        labels: PackedLabels | None,
        reached: Cursor,
        *,
        now: float,
        missing: tuple[int, ...],
        gone: tuple[Stretch, ...],
    ) -> Effects:
        """Answers with what lies before the cache, up to `reached`, and the cache behind it."""
        found = labels.after(fetch.cursor).until(reached) if labels is not None else None
        selection = self._cache.select(reached, labels_max=fetch.labels_max)
        answer = self.compose(found, selection, labels_max=fetch.labels_max)
        base = self._cache.base
        is_short = any(reached[p] < base[p] for p in base if p not in missing)
        more = is_short or answer.is_cut or not selection.whole
        gone = within(gone, after=fetch.cursor, until=reached)
        return self._answer(fetch, answer, now=now, missing=missing, more=more, gone=gone)

    def _rescan(self, fetch: _Fetch, until: Cursor, now: float) -> Effects:
        running = sum(other.stage == "backfilling" for other in self._open.values())
        if running >= self._options.backfills_max:
            advice = (("after_s", self._options.retry_s),)
            message = f"{running} rescans for old resume tokens are under way; try again"
            return self.refuse(fetch.request, Failure("overloaded", message, advice))
        fetch.stage, fetch.until = "backfilling", until
        fetch.deadline = now + self._options.backfill_timeout_s
        ccq = self._cycles.ccq
        return [Backfill(fetch.request, ccq, fetch.cursor, until, fetch.labels_max)]

    def _answer(
        self,
        fetch: _Fetch,
        answer: FetchResponse,
        *,
        now: float,
        missing: tuple[int, ...],
        more: bool,
        gone: tuple[Stretch, ...] = (),
    ) -> Effects:
        """`gone`: of a rescan; what lies within the cache it knows itself."""
        failure = self._cycles.failure
        if answer.labels is None and failure is not None:
            return self.refuse(fetch.request, failure)
        del self._open[fetch.request]
        self._count(fetch.cursor, answer)
        rescanned = within(gone, after=fetch.cursor, until=answer.cursor) if gone else ()
        cached = self._cache.gone.between(fetch.cursor, answer.cursor)
        has_windows = self._cycles.ccq.window is not None
        return [
            AnswerFetch(
                fetch.request,
                self._cycles.ccq.id,
                after=fetch.cursor,
                labels=answer.labels,
                cursor=answer.cursor,
                frontier=self._cache.until,
                frontier_age_s=self._cycles.age_s(now),
                interval_s=self._cycles.interval_s(now),
                missing=missing,
                more=more,
                gone=tuple(sorted((*rescanned, *cached))),
                clock_us=self._clock.at(answer.cursor) if has_windows else None,
            )
        ]

    def _count(self, after: Cursor, answer: FetchResponse) -> None:
        """Labels up to where an earlier answer went have been served before."""
        if answer.labels is not None:
            is_new = after.covers(self._answered)
            again = 0 if is_new else len(answer.labels.until(self._answered))
            self.counts.record_delivered(len(answer.labels), again=again)
        self._answered = self._answered.join(answer.cursor)

    def _time_out(self, fetch: _Fetch, now: float) -> Effects:
        if fetch.stage == "confirming":
            return self._take(fetch, now)  # All that was ahead stays doubtful.
        if fetch.stage == "waiting":
            return self._serve(fetch, now)
        if fetch.stage == "asking":
            return self._give_up(fetch, now)
        seconds = self._options.backfill_timeout_s
        failure = Failure(
            "unavailable",
            f"expected the labels past the resume token to be found within {seconds} s; "
            "ask again with the same token",
            (("after_s", self._options.retry_s),),
        )
        return self.refuse(fetch.request, failure)

    def _refuse_token(self, fetch: _Fetch, impossible: list[int]) -> Effects:
        partition = impossible[0]
        failure = Failure(
            "invalid_token",
            f"expected a resume token of this cluster, got one at commit "
            f"{fetch.cursor[partition]} of partition {partition}, which has none such",
            (("partition", partition), ("sequence", fetch.cursor[partition])),
        )
        return self.refuse(fetch.request, failure)
