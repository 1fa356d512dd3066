"""Known-wrong variants of the machines, each of which the simulator must convict.

Every mutant is one mistake, made by overriding one decision of the production machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from galileo.ccq.cache import CachedLabels, LabelCache
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.cycles import Cycles
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import (
    AnswerCacheRead,
    AnswerFetch,
    CacheReadRequested,
    CycleItem,
    CycleResult,
    DatasetDropped,
    Effects,
    FetchRequested,
)
from galileo.ccq.fetches import Fetches, FetchResponse, compose
from galileo.ccq.handed_off_cache import HandedOffCache, HandedOffCaches
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Ending, Record
from galileo.ccq.moves import Moves
from galileo.ccq.placement import CcqChange, ForgetCcq, Lost, MoveCcq, PlaceCcq, due_change
from galileo.ccq.records import CCQ_ROWS, NOTHING, merged
from galileo.ccq.state import NodeState
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.system_rows import Draft, Rows
from galileo.packing import Compression
from galileo.packs import PackedLabels, pack_labels
from simulator.evaluator import Evaluate, by_sequence
from simulator.logs import Log, Path, matches, scan, to_labels
from simulator.variants import Conduct, Variant

STAMP = 1_000_000
"""The "partition" under which the paper's protocol keeps its wall time, in microseconds."""


def _with(
    *,
    cache: type[LabelCache] = LabelCache,
    cycles: type[Cycles] = Cycles,
    fetches: type[Fetches] = Fetches,
    coordination: type[Coordinator] = Coordinator,
    evaluate: Evaluate = by_sequence,
    has_cursors: bool = True,
    holding: type[HandedOffCache] = HandedOffCache,
) -> Variant:
    """The production machine with some parts of its coordinators replaced."""
    coordinator = _with_parts(
        coordination, cache_type=cache, cycles_type=cycles, fetches_type=fetches
    )
    handed_off = _with_parts(HandedOffCaches, handed_off_cache_type=holding)
    state = _with_parts(NodeState, coordinator_type=coordinator, handed_off_type=handed_off)
    return Variant(_on(state), evaluate, has_cursors)


def _on(state: type[NodeState]) -> type[Continuous]:
    return _with_parts(Continuous, state_type=state)


def _with_parts(machine: type[Any], **parts: type[Any]) -> type[Any]:
    """A subclass of a machine with some of its parts replaced."""
    unknown = [name for name in parts if not hasattr(machine, name)]
    assert not unknown, f"{machine.__name__} has no part {unknown[0]!r}"
    return type(f"Mutant{machine.__name__}", (machine,), parts)


# --- the paper's protocol --------------------------------------------------------------------


class _PaperCache(LabelCache):
    """Appends without a check of earlier contents."""

    def append(
        self,
        labels: PackedLabels | None,
        *,
        reached: Cursor,
        gone: Cursor = EMPTY_CURSOR,
        after: Cursor | None = None,
    ) -> int:
        self.until = self.until.join(reached)
        return self._add(labels, after=EMPTY_CURSOR) if labels is not None else 0

    def take_all(self) -> PackedLabels | None:
        parts = [chunk.packed for chunk in self._chunks]
        self._keep([])
        self.base = self.until
        return PackedLabels.concat(parts)


class _PaperFetches(Fetches):
    """Answers with the whole cache and clears it; keeps its time for a successor."""

    def fetch(self, event: FetchRequested, known: Cursor, now: float) -> Effects:
        assert isinstance(self._cache, _PaperCache)
        labels = self._cache.take_all()
        cursor = self.acknowledged = self._cache.until
        ccq_id = self._cycles.ccq.id
        return [AnswerFetch(event.request, ccq_id, event.cursor, labels, cursor)]


def _by_timestamp(item: CycleItem, logs: dict[int, Log], *, wall: float) -> CycleResult:
    """All blocks younger than the coordinator's timestamp, by the clock of the storing node."""
    since = item.after[STAMP] / 1e6
    commits = [c for log in logs.values() for c in log.commits if c.wall > since]
    paths: list[Path] = [path for commit in commits for path in matches(item.ccq, commit)]
    reached = {p: max(log.end, item.after[p]) for p, log in logs.items()}
    reached[STAMP] = max(int(wall * 1e6), item.after[STAMP])
    labels = to_labels(paths)
    return CycleResult(item.ccq.id, item.term, item.after, labels, Cursor(reached))


# --- caches and cursors ----------------------------------------------------------------------


class _ClearOnReply(Fetches):
    """Clears the cache when an answer is sent, not when it is acknowledged."""

    def _answer(self, *arguments: Any, **named: Any) -> Effects:
        effects = super()._answer(*arguments, **named)
        self._cache._keep([])
        return effects


class _AdvanceOnFailure(Cycles):
    """Continues after a failed cycle as if it had found nothing."""

    def fail(self, now: float) -> None:
        super().fail(now)
        self._cache.until = self._cache.until.join(self._goal)


class _SkipWhenLate(Cycles):
    """Skips the commits of a cycle that took longer than the interval."""

    def finish(self, result: CycleResult, now: float) -> int:
        found = super().finish(result, now)
        if self.is_overloaded(now):
            self._cache.append(None, reached=self._goal)
        return found


class _ResumeFromEvaluated(Coordinator):
    """Hands the evaluated cursor to the successor as if it had the cache."""

    def __init__(
        self,
        record: Record,
        *,
        term: int,
        now: float,
        labels_max: int,
        clock: EventClock | None = None,
    ) -> None:
        super().__init__(record, term=term, now=now, labels_max=labels_max, clock=clock)
        self.cache.base = EMPTY_CURSOR

    @property
    def retrieved(self) -> Cursor:
        return self.evaluated


class _TokenUnchecked(Fetches):
    """Accepts every token."""

    def _ahead(self, cursor: Cursor, known: Cursor) -> tuple[int, ...]:
        return ()


def _cut_anywhere(
    backfilled: PackedLabels | None, selection: CachedLabels, *, labels_max: int
) -> FetchResponse:
    """Cuts the answer in the middle of a commit, and counts that commit as delivered."""
    whole = compose(backfilled, selection, labels_max=1_000_000)
    if whole.labels is None or len(whole.labels) <= labels_max:
        return whole
    found = whole.labels.labels().in_commit_order()
    cursor = Cursor(selection.covered)
    left = found.slice(labels_max, len(found))
    for partition in np.unique(left.partitions).tolist():
        first = int(left.sequences[left.partitions == partition].min())
        cursor = Cursor({**cursor, partition: first})
    return FetchResponse(
        pack_labels(found.slice(0, labels_max), Compression.NONE), cursor, is_cut=True
    )


class _CutInsideCommit(Fetches):
    compose = staticmethod(_cut_anywhere)


class _NoBackfill(Fetches):
    """Serves an old token from the cache alone."""

    def _rescan(self, fetch: Any, until: Cursor, now: float) -> Effects:
        asked_with = fetch.cursor
        fetch.cursor = fetch.cursor.join(until)
        effects = self._serve(fetch, now)
        fetch.cursor = asked_with
        return [replace(e, after=asked_with) if isinstance(e, AnswerFetch) else e for e in effects]


class _TakeAll(LabelCache):
    """Appends a result without removing known labels."""

    def append(
        self,
        labels: PackedLabels | None,
        *,
        reached: Cursor,
        gone: Cursor = EMPTY_CURSOR,
        after: Cursor | None = None,
    ) -> int:
        self.until = self.until.join(reached)
        return self._add(labels, after=EMPTY_CURSOR) if labels is not None else 0


def _inclusive(item: CycleItem, logs: dict[int, Log], *, wall: float) -> CycleResult:
    """Evaluates the commit at the cursor again."""
    right = by_sequence(item, logs, wall=wall)
    paths: list[Path] = []
    for partition, log in logs.items():
        after = max(0, item.after[partition] - 1)
        paths += scan(item.ccq, log, after=after, until=log.end)
    return replace(right, labels=to_labels(paths))


def _open_interval(item: CycleItem, logs: dict[int, Log], *, wall: float) -> CycleResult:
    """Evaluates commits between the cursor and the end, both excluded."""
    right = by_sequence(item, logs, wall=wall)
    paths: list[Path] = []
    for partition, log in logs.items():
        paths += scan(item.ccq, log, after=item.after[partition], until=max(0, log.end - 1))
    return replace(right, labels=to_labels(paths))


def _skip_without_stamp(item: CycleItem, logs: dict[int, Log], *, wall: float) -> CycleResult:
    """Skips a partition whose synopsis has no match up to its end, past the synopsis's version."""
    right = by_sequence(item, logs, wall=wall)
    paths: list[Path] = []
    for partition, log in logs.items():
        after, known = item.after[partition], max(0, log.end - 1)
        if scan(item.ccq, log, after=after, until=known):
            paths += scan(item.ccq, log, after=after, until=log.end)
    return replace(right, labels=to_labels(paths))


# --- full caches -----------------------------------------------------------------------------


class _TrustHolders(Fetches):
    """Treats a range that its holder has lost as empty."""

    def _drop_holder(self, fetch: Any, now: float) -> Effects:
        reached = fetch.cursor.join(fetch.until)
        return self._join_with_cache(
            fetch, None, reached, now=now, missing=fetch.unconfirmed, gone=()
        )


class _ForgetHeld(HandedOffCache):
    """Drops a handed-off cache when it is read for the first time."""

    def read(self, event: CacheReadRequested) -> Effects:
        effects = super().read(event)
        self.cache.clear()
        return effects


class _BeginPastHolder(Coordinator):
    """Begins one commit past what the predecessor has evaluated."""

    def __init__(self, record: Record, **named: Any) -> None:
        super().__init__(record, **named)
        if record.holders:
            self.cache.until = Cursor({p: s + 1 for p, s in self.cache.until.items()})


class _HoldHalfway(HandedOffCache):
    """Claims the whole range, whatever it has dropped or left out of the answer."""

    def read(self, event: CacheReadRequested) -> Effects:
        return [
            replace(one, reached=one.reached.join(self.cache.until))
            if isinstance(one, AnswerCacheRead)
            else one
            for one in super().read(event)
        ]


class _LoseSpills(LabelCache):
    """Goes on without the labels of a file that is lost."""

    def apply_loaded(self, number: int, labels: PackedLabels | None) -> None:
        if labels is not None:
            super().apply_loaded(number, labels)
        else:
            self._loading.discard(number)
            self._keep([c for c in self._chunks if c.spill is None or c.spill.number != number])


# --- records and places ----------------------------------------------------------------------


# Some mistakes are harmless, so no mutant makes them. A standby that runs a CCQ whose coordinator
# lives costs work only: the fault `suspect` has nodes do so in all worlds. Progress of an older
# revision that removes holders costs a rescan of their ranges. A change that is not repeated waits
# for the next leader, to which the node offers its record.


class _BeginPastSaved(Coordinator):
    """Begins one commit past what clients have retrieved."""

    def __init__(self, record: Record, **named: Any) -> None:
        super().__init__(record, **named)
        if not record.holders and record.revision > 1:
            self.cache.until = Cursor({p: s + 1 for p, s in self.cache.until.items()})


class _OnceAlways(NodeState):
    """Once coordinator, always coordinator."""

    def settle(self, ccq_id: str, now: float) -> Effects:
        is_kept = ccq_id in self.coordinated and self.records[ccq_id].ended is None
        return [] if is_kept else super().settle(ccq_id, now)

    def forget(self, ccq_id: str) -> None:
        if ccq_id not in self.coordinated:
            super().forget(ccq_id)

    def check(self) -> None:
        """Its rule is another one."""


class _RunUnnamed(NodeState):
    """Runs a CCQ on whose record names it no more."""

    def learn(self, incoming: Record, now: float) -> Effects:
        is_out = self.me not in incoming.participants and incoming.ended is None
        return [] if is_out and incoming.id in self.coordinated else super().learn(incoming, now)


class _EndsUntold(NodeState):
    """Ends an expired CCQ, and does not tell the leader."""

    def end(self, ccq_id: str, ending: Ending, now: float) -> Effects:
        effects = super().end(ccq_id, ending, now)
        del self.dirty[ccq_id]
        return effects


class _OverlookNames(Moves):
    """Does not look at records that come to name other nodes."""

    def tick(self, now: float) -> Effects:
        self._state.newly_named.clear()
        return super().tick(now)


class _StayNamed(Moves):
    """Stays in the records while it drains."""

    @property
    def _leaving(self) -> tuple[str, ...]:
        return ()


class _TakeDropped(NodeState):
    """Takes CCQs of a dropped dataset that come late."""

    def learn(self, incoming: Record, now: float) -> Effects:
        if incoming.id in self.records:
            return super().learn(incoming, now)
        dropped, self.dropped = self.dropped, {}
        try:
            return super().learn(incoming, now)
        finally:
            self.dropped = dropped


class _IgnoreDrops(Continuous):
    """Leaves the CCQs of a dropped dataset as they are."""

    def _on_dropped(self, event: DatasetDropped, now: float) -> Effects:
        return []


class _CancelDropped(NodeState):
    """Ends the CCQs of a dropped dataset as if a user had cancelled them."""

    def learn(self, incoming: Record, now: float) -> Effects:
        if incoming.ended is None and self.is_dropped(incoming.ccq.dataset):
            incoming = replace(incoming, ended="cancelled", ended_at=self.wall)
        return super().learn(incoming, now)


class _NamedNow(Rows[Record]):
    """Does not tell nodes of a row that names them no more."""

    def put(self, name: str, value: Record, sequence: int) -> None:
        super().put(name, value, sequence)
        if name in self and self.kind.topics is not None:
            self._topics[name] = frozenset(self.kind.topics(value))


def _forget_early(
    record: Record, *, is_gone: Callable[[str], bool], wall: float
) -> CcqChange | Lost | None:
    """Removes an end at once."""
    if record.ended is not None:
        return ForgetCcq(record.id)
    return due_change(record, is_gone=is_gone, wall=wall)


def _revived(one: Record, other: Record) -> Record:
    """Merges records as if the later one had not ended."""
    both = merged(one, other)
    is_alive = NOTHING not in (one, other) and None in (one.ended, other.ended)
    return replace(both, ended=None, ended_at=0.0) if is_alive else both


def _count_ended(record: Record) -> Mapping[str, int]:
    """Counts the CCQs that have ended, too."""
    return CCQ_ROWS.totals(replace(record, ended=None))


def _place_anyway(change: PlaceCcq, draft: Draft[Record]) -> None:
    """Replaces the record that is there."""
    draft.put(change.name, draft.kind.value(change.data))


def _move_anyway(change: MoveCcq, draft: Draft[Record]) -> None:
    """Moves a CCQ whatever the revision of its record."""
    draft.put(change.name, draft.kind.value(change.data))


# --- windows ---------------------------------------------------------------------------------


class _NewestKnown(EventClock):
    """Uses the newest known bucket, whatever the cursor."""

    def at(self, cursor: Cursor) -> int | None:
        return super().at(Cursor(dict.fromkeys(self._steps, 1 << 40)))


class _ByWallClock(NodeState):
    """Closes windows by wall time."""

    def clock_of(self, dataset: str) -> EventClock:
        state = self

        class Wall(EventClock):
            def at(self, cursor: Cursor) -> int | None:
                return int(state.wall * 1e6)

        return self.clocks.setdefault(dataset, Wall())


VARIANTS: dict[str, Variant] = {
    "production": Variant(),
    "paper": _with(
        cache=_PaperCache, fetches=_PaperFetches, evaluate=_by_timestamp, has_cursors=False
    ),
    "clear_on_reply": _with(fetches=_ClearOnReply),
    "advance_on_failure": _with(cycles=_AdvanceOnFailure),
    "skip_when_late": _with(cycles=_SkipWhenLate),
    "resume_from_evaluated": _with(coordination=_ResumeFromEvaluated),
    "token_unchecked": _with(fetches=_TokenUnchecked),
    "cut_inside_commit": _with(fetches=_CutInsideCommit),
    "no_backfill": _with(fetches=_NoBackfill),
    "take_all": _with(cache=_TakeAll),
    "boundary_inclusive": _with(cache=_TakeAll, evaluate=_inclusive),
    "open_interval": _with(evaluate=_open_interval),
    "skip_without_stamp": _with(evaluate=_skip_without_stamp),
    "lazy_fsync": Variant(conduct=Conduct(replies_before_sync=True)),
    "evaluate_uncommitted": Variant(conduct=Conduct(evaluates_unsynced=True)),
    "no_producer_dedup": Variant(conduct=Conduct(stores_batches_again=True)),
    "advance_before_store": Variant(conduct=Conduct(stores_token_first=True)),
    "accept_stale_reply": Variant(conduct=Conduct(takes_stale_answers=True)),
    "drop_past_readers": Variant(conduct=Conduct(drops_what_is_unfetched=True)),
    "conceal_what_is_gone": Variant(conduct=Conduct(conceals_what_is_gone=True)),
    "close_by_wall_clock": Variant(_on(_ByWallClock)),
    "clock_ahead_of_cursor": Variant(_on(_with_parts(NodeState, clock_type=_NewestKnown))),
    "forget_windows": Variant(conduct=Conduct(forgets_windows=True)),
    "forget_held": _with(fetches=_TrustHolders, holding=_ForgetHeld),
    "begin_past_holder": _with(coordination=_BeginPastHolder),
    "hold_halfway": _with(holding=_HoldHalfway),
    "lose_spills": _with(cache=_LoseSpills),
    "ignore_drops": Variant(_IgnoreDrops),
    "cancel_dropped": Variant(_on(_CancelDropped)),
    "take_dropped": Variant(_on(_TakeDropped)),
    "begin_past_saved": _with(coordination=_BeginPastSaved),
    "once_always": Variant(_on(_OnceAlways)),
    "run_unnamed": Variant(_on(_RunUnnamed)),
    "ends_untold": Variant(_on(_EndsUntold)),
    "overlook_names": Variant(_with_parts(Continuous, moves_type=_OverlookNames)),
    "stay_named": Variant(_with_parts(Continuous, moves_type=_StayNamed)),
    "topics_of_now": Variant(rows_type=_NamedNow),
    "forget_early": Variant(due_change=_forget_early),
    "revive_by_merge": Variant(rows=replace(CCQ_ROWS, merged=_revived)),
    "count_ended": Variant(rows=replace(CCQ_ROWS, totals=_count_ended)),
    "place_anyway": Variant(changes={PlaceCcq: _place_anyway}),
    "move_anyway": Variant(changes={MoveCcq: _move_anyway}),
    "answer_uncommitted": Variant(conduct=Conduct(answers_uncommitted=True)),
    "offer_nothing": Variant(conduct=Conduct(offers_nothing=True)),
    "deny_unasked": Variant(conduct=Conduct(denies_unasked=True)),
}
