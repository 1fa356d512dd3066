"""The fetches of one CCQ at its coordinator.

Theory of operation. A fetch carries the cursor of its token. In each partition the token is in one
of three places:

* *behind* the cache (`token < base`): another reader, another coordinator or a full memory moved
  the base. A token of an earlier history than the cache's is behind the begin of that history: the
  owners check whether its commits were lost. If a holder has the range of the token, it is asked;
  if there is none, or it does not have the labels, the log is rescanned from the token to the base.
  The answer joins these labels to those of the cache as it is when they arrive; where the two do
  not meet, the answer ends with the rescan.
* *inside* the cache: answered from it, after loading the file that has the labels.
* *ahead* of the cache (`token > until`): another coordinator had evaluated further. If commits up
  to there are known, the cache drops them as delivered. If not, the owners of the partition are
  asked. If they report that no such commit exists, the token is refused; if they are unreachable,
  the partition stays at the token and the others are answered.

A fetch that waits for new labels is served afresh, by the same rules, when the cache grew. For a
CCQ with windows it is also served when the event clock reaches the end of a window. If retention
dropped commits before they were evaluated, the answer reports the range; a fetch does not wait
after that. A fetch is also served when commits were evaluated that may withdraw labels, as anything
in a keyed dataset, and deletions in others. A fetch within a reset gets no labels from here.

Each answer is "all labels in (after, cursor]" and a function of the log, the token and the cursor
alone: a repeated fetch gets the same labels, and a client that continues from the cursor gets every
label once.

Stages of a fetch: confirming, reading_holder, backfilling, loading, waiting; answered fetches are
removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from galileo.ccq.cache import CachedLabels, LabelCache
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
    Effects,
    FetchRequested,
    LoadPacks,
    ReadHandedOffCache,
    RefuseFetch,
    SequencesConfirmed,
)
from galileo.ccq.model import RETRY_S, Holder
from galileo.ccq.stats import LabelCounts
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.errors import Failure
from galileo.model.forks import first_of, history_of
from galileo.packs import PackedLabels

CONFIRM_TIMEOUT_S = 1.0
"""Time for the owners to confirm a token that is ahead of known commits."""
BACKFILL_TIMEOUT_S = 30.0
"""Time for the rescan for a token older than the cache."""
HOLDER_TIMEOUT_S = 5.0
"""Time for a holder's answer, after which its range is rescanned."""
BACKFILLS_MAX = 32
"""Rescans at a time, for each CCQ."""


@dataclass(frozen=True, slots=True)
class FetchResponse:
    labels: PackedLabels | None
    cursor: Cursor
    is_cut: bool


def compose(
    backfilled: PackedLabels | None, selection: CachedLabels, *, labels_max: int
) -> FetchResponse:
    """Join the labels of a rescan and of the cache, and cut the answer between commits.

    It is cut evenly over the partitions, so that none starves.

    Args:
        backfilled: matches before those of the selection, by partition; None: none.
        selection: of the cache, past what the rescan reached.
        labels_max: bound of the answer; its first commit may exceed it.
    """
    joined = selection.labels
    if backfilled is not None:
        joined = PackedLabels.concat([backfilled, joined])
    if joined is None:
        return FetchResponse(None, selection.covered, is_cut=False)
    labels, cursor = joined.cut(reached=selection.covered, labels_max=labels_max)
    return FetchResponse(labels, cursor, is_cut=cursor != selection.covered)


@dataclass(slots=True)
class _Fetch:
    request: int
    cursor: Cursor
    wait_until: float | None
    labels_max: int
    deadline: float
    stage: Literal["new", "confirming", "reading_holder", "backfilling", "loading", "waiting"] = (
        "new"
    )
    unconfirmed: tuple[int, ...] = ()
    until: Cursor = EMPTY_CURSOR
    holder: Holder | None = None
    until_clock_us: int | None = None
    withdraws: Callable[[Cursor, Cursor], Collection[int]] | None = None
    is_reset: bool = False

    def may_withdraw(self, until: Cursor) -> bool:
        """Whether what was evaluated up to a cursor may withdraw labels."""
        return self.withdraws is not None and bool(self.withdraws(self.cursor, until))


class Fetches:
    """The open fetches of one CCQ and the answers to them.

    Args:
        labels_max: bound of `FetchRequested.labels_max`.

    Attributes:
        acknowledged: the join of all valid tokens.
        holders: of ranges before the cache, oldest first; those that failed are removed.
        counts: label counts for metrics.
    """

    compose = staticmethod(compose)

    def __init__(
        self,
        *,
        cache: LabelCache,
        cycles: Cycles,
        labels_max: int,
        clock: EventClock | None = None,
    ) -> None:
        self.acknowledged = cache.base
        self.holders: tuple[Holder, ...] = ()
        self.counts = LabelCounts()
        self._answered = EMPTY_CURSOR
        self._cache = cache
        self._cycles = cycles
        self._labels_max = labels_max
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

    @property
    def awaits_withdrawals(self) -> bool:
        """Whether a fetch waits for withdrawals, and there may be some."""
        until = self._cache.until
        return any(f.stage == "waiting" and f.may_withdraw(until) for f in self._open.values())

    # --- events ------------------------------------------------------------------------------

    def fetch(self, event: FetchRequested, known: Cursor, now: float) -> Effects:
        labels_max = max(1, min(event.labels_max, self._labels_max))
        fetch = _Fetch(event.request, event.cursor, event.wait_until, labels_max, now)
        fetch.until_clock_us, fetch.withdraws = event.until_clock_us, event.withdraws
        fetch.is_reset = event.is_reset
        self._open[event.request] = fetch
        ahead = self._ahead(fetch.cursor, known)
        if not ahead:
            return self._acknowledge(fetch, now, known)
        fetch.stage, fetch.unconfirmed = "confirming", ahead
        fetch.deadline = now + CONFIRM_TIMEOUT_S
        return [ConfirmSequences(fetch.request, self._cycles.ccq.dataset, ahead)]

    def confirm(self, event: SequencesConfirmed, known: Cursor, now: float) -> Effects:
        fetch = self._open.get(event.request)
        if fetch is None or fetch.stage != "confirming":
            return []
        ahead = self._ahead(fetch.cursor, known)
        fetch.unconfirmed = tuple(p for p in ahead if p in event.unreachable)
        impossible = [p for p in ahead if p not in event.unreachable]
        return (
            self._refuse_token(fetch, impossible)
            if impossible
            else self._acknowledge(fetch, now, known)
        )

    def backfill(self, event: BackfillFinished, now: float) -> Effects:
        fetch = self._open.get(event.request)
        if fetch is None or fetch.stage != "backfilling":
            return []
        rescanned = self._reached(fetch, event.reached)
        gone = ranges_between(fetch.cursor, event.gone.meet(rescanned))
        missing = tuple(sorted({*event.missing, *fetch.unconfirmed}))
        return self._join_with_cache(
            fetch, event.labels, rescanned, now=now, missing=missing, gone=gone
        )

    def on_cache_read(self, event: CacheReadAnswered | CacheReadFailed, now: float) -> Effects:
        """Answer with the labels of the holder; without any, stop using the holder."""
        fetch = self._open.get(event.request)
        if fetch is None or fetch.stage != "reading_holder":
            return []
        if isinstance(event, CacheReadFailed):
            return self._drop_holder(fetch, now)
        reached = self._reached(fetch, event.reached)
        if reached == fetch.cursor:
            return self._drop_holder(fetch, now)
        return self._join_with_cache(
            fetch, event.labels, reached, now=now, missing=fetch.unconfirmed, gone=event.gone
        )

    def on_loaded(self, now: float) -> Effects:
        """Serve the fetches that wait for a file."""
        loading = [fetch for fetch in self._open.values() if fetch.stage == "loading"]
        return [effect for fetch in loading for effect in self._serve(fetch, now)]

    def refuse(self, request: int, failure: Failure) -> Effects:
        fetch = self._open.pop(request, None)
        return [RefuseFetch(request, failure)] if fetch else []

    def abandon(self, request: int) -> None:
        self._open.pop(request, None)

    def wake(self, now: float) -> Effects:
        """Serve waiting fetches, since the cache grew or the CCQ failed."""
        waiting = [fetch for fetch in self._open.values() if fetch.stage == "waiting"]
        return [effect for fetch in waiting for effect in self._serve(fetch, now)]

    def tick(self, now: float) -> Effects:
        expired = [fetch for fetch in self._open.values() if fetch.deadline <= now]
        return [effect for fetch in expired for effect in self._time_out(fetch, now)]

    def close(self, response: Callable[[int], ContinuousEffect]) -> Effects:
        """Answer every open fetch with `response`; late results are ignored."""
        effects = [response(request) for request in self._open]
        self._open = {}
        return effects

    def check(self) -> None:
        assert self._cache.until.covers(self.acknowledged), "acknowledged what is not evaluated"
        for request, fetch in self._open.items():
            assert request == fetch.request
            assert fetch.stage != "new", "a fetch was forgotten"

    # --- inside ------------------------------------------------------------------------------

    def _ahead(self, cursor: Cursor, known: Cursor) -> tuple[int, ...]:
        """The partitions in which the cursor is past all known commits."""
        if known.covers(cursor):
            return ()
        known = known.join(self._cache.until)
        return tuple(p for p, sequence in cursor.items() if sequence > known[p])

    def _acknowledge(self, fetch: _Fetch, now: float, known: Cursor = EMPTY_CURSOR) -> Effects:
        """Acknowledge the token, then serve the fetch, and others that are behind the base now."""
        # No label is dropped because of a commit that no node has confirmed, or that may be lost.
        genuine = fetch.cursor
        doubtful = {p for p, s in genuine.items() if history_of(s) < history_of(known[p])}
        doubtful.update(fetch.unconfirmed)
        if doubtful:
            genuine = Cursor({p: s for p, s in genuine.items() if p not in doubtful})
        self._cache.advance(genuine)
        self.acknowledged = self.acknowledged.join(genuine)
        if len(self._open) == 1:
            return self._serve(fetch, now)
        stages = ("waiting", "loading")
        others = [other for other in self._open.values() if other.stage in stages]
        behind = [other for other in others if not other.cursor.covers(self._cache.base)]
        return [effect for f in (fetch, *behind) for effect in self._serve(f, now)]

    def _serve(self, fetch: _Fetch, now: float) -> Effects:
        if fetch.is_reset:
            nothing = FetchResponse(None, fetch.cursor, is_cut=False)
            return self._answer(fetch, nothing, now=now, missing=fetch.unconfirmed, more=False)
        base = self._cache.base
        behind = self._before_jumps(fetch.cursor)
        if behind or not fetch.cursor.covers(base):
            lower = {p: sequence for p, sequence in base.items() if fetch.cursor[p] < sequence}
            return self._fetch_before_cache(fetch, Cursor(behind).join(lower), now)
        selection = self._cache.select(fetch.cursor, labels_max=fetch.labels_max)
        if selection.missing_spill is not None:
            return self._load(fetch, selection.missing_spill, now)
        gone = self._cache.gone.between(fetch.cursor, selection.covered)
        is_news = (
            selection.labels is not None
            or gone
            or self._is_clock_reached(fetch, selection.covered)
            or fetch.may_withdraw(selection.covered)
        )
        if not is_news and self._may_wait(fetch, now):
            fetch.stage, fetch.deadline = "waiting", fetch.wait_until or now
            return []
        answer = self.compose(None, selection, labels_max=fetch.labels_max)
        more = answer.is_cut or not selection.whole
        return self._answer(fetch, answer, now=now, missing=fetch.unconfirmed, more=more)

    def _before_jumps(self, cursor: Cursor) -> dict[int, int]:
        """Where the histories of the cache begin, in partitions with a token of an earlier one.

        The cache does not know whether the commits up to the token were lost; owners check it.
        """
        until = self._cache.until
        return {
            p: first_of(history_of(until[p])) - 1
            for p, sequence in cursor.items()
            if history_of(sequence) < history_of(until[p])
        }

    def _is_clock_reached(self, fetch: _Fetch, cursor: Cursor) -> bool:
        """Whether the event clock has reached the time that the fetch waits for."""
        if fetch.until_clock_us is None:
            return False
        clock_us = self._clock.at(cursor)
        return clock_us is not None and clock_us >= fetch.until_clock_us

    def _may_wait(self, fetch: _Fetch, now: float) -> bool:
        has_time_left = fetch.wait_until is not None and now < fetch.wait_until
        return has_time_left and self._cycles.failure is None

    def _load(self, fetch: _Fetch, number: int, now: float) -> Effects:
        fetch.stage, fetch.deadline = "loading", now + BACKFILL_TIMEOUT_S
        is_new = self._cache.load(number)
        return [LoadPacks(number, self._cycles.ccq)] if is_new else []

    def _fetch_before_cache(self, fetch: _Fetch, behind: Cursor, now: float) -> Effects:
        """Ask the first holder whose range has the token; rescan if there is none."""
        for holder in self.holders:
            start = self._holder_start(holder)
            held = {
                p: min(holder.until[p], base)
                for p, base in behind.items()
                if start[p] <= fetch.cursor[p] < holder.until[p]
            }
            if held:
                fetch.stage, fetch.until, fetch.holder = "reading_holder", Cursor(held), holder
                fetch.deadline = now + HOLDER_TIMEOUT_S
                place = (self._cycles.ccq, holder.node, holder.term)
                return [ReadHandedOffCache(fetch.request, *place, fetch.cursor, fetch.labels_max)]
        until = {p: self._rescan_until(p, fetch.cursor[p], base) for p, base in behind.items()}
        return self._rescan(fetch, Cursor(until), now)

    def _rescan_until(self, partition: int, after: int, base: int) -> int:
        """The end of a rescan: the start of the next holder's range, or the base."""
        stretches = [
            (self._holder_start(holder)[partition], holder.until[partition])
            for holder in self.holders
        ]
        return min((begin for begin, end in stretches if after < begin < end), default=base)

    def _holder_start(self, holder: Holder) -> Cursor:
        """Start of a holder's range now: it drops what was acknowledged."""
        return holder.after.join(self.acknowledged)

    def _drop_holder(self, fetch: _Fetch, now: float) -> Effects:
        """Stop using a holder; its range is rescanned."""
        self.holders = tuple(holder for holder in self.holders if holder != fetch.holder)
        return self._serve(fetch, now)

    @staticmethod
    def _reached(fetch: _Fetch, reached: Cursor) -> Cursor:
        """Up to where a rescan or a holder has answered, within what was requested."""
        bounded = {p: min(reached[p], bound) for p, bound in fetch.until.items()}
        return fetch.cursor.join(bounded)

    def _join_with_cache(
        self,
        fetch: _Fetch,
        labels: PackedLabels | None,
        reached: Cursor,
        *,
        now: float,
        missing: tuple[int, ...],
        gone: tuple[CommitRange, ...],
    ) -> Effects:
        """Answer with `labels` up to `reached`, followed by those of the cache."""
        # A holder is not trusted to answer no more than was asked for.
        past = labels.after(fetch.cursor).until(reached) if labels is not None else None
        selection = self._cache.select(reached, labels_max=fetch.labels_max)
        answer = self.compose(past, selection, labels_max=fetch.labels_max)
        base = self._cache.base
        is_short = any(reached[p] < base[p] for p in base if p not in missing)
        more = is_short or answer.is_cut or not selection.whole
        gone = within(gone, after=fetch.cursor, until=reached)
        return self._answer(fetch, answer, now=now, missing=missing, more=more, gone=gone)

    def _rescan(self, fetch: _Fetch, until: Cursor, now: float) -> Effects:
        running = sum(other.stage == "backfilling" for other in self._open.values())
        if running >= BACKFILLS_MAX:
            advice = (("after_s", RETRY_S),)
            message = f"{running} rescans for old resume tokens are under way; try again"
            return self.refuse(fetch.request, Failure("overloaded", message, advice))
        fetch.stage, fetch.until = "backfilling", until
        fetch.deadline = now + BACKFILL_TIMEOUT_S
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
        gone: tuple[CommitRange, ...] = (),
    ) -> Effects:
        """`gone`: of a rescan; the ranges within the cache are added."""
        failure = self._cycles.failure
        # Labels that were found before the failure are delivered first.
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
        """Labels up to the end of an earlier answer count as served again."""
        if answer.labels is not None:
            is_new = after.covers(self._answered)
            again = 0 if is_new else len(answer.labels.until(self._answered))
            self.counts.record_delivered(len(answer.labels), again=again)
        self._answered = self._answered.join(answer.cursor)

    def _time_out(self, fetch: _Fetch, now: float) -> Effects:
        if fetch.stage == "confirming":
            return self._acknowledge(fetch, now)  # Partitions ahead stay unconfirmed.
        if fetch.stage == "waiting":
            return self._serve(fetch, now)
        if fetch.stage == "reading_holder":
            return self._drop_holder(fetch, now)
        seconds = BACKFILL_TIMEOUT_S
        failure = Failure(
            "unavailable",
            f"expected the labels past the resume token to be found within {seconds} s; "
            "ask again with the same token",
            (("after_s", RETRY_S),),
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
