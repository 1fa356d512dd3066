"""Continuous queries on one node: the records that name it, and the CCQs that it coordinates.

Theory of operation. *Exactly-once* rests on the log and the client's token alone
(`galileo.ccq.fetches`): an answer is all matches between two cursors, and the client continues from
the second. It depends neither on who coordinates, nor on what is cached, nor on any clock.

*Progress* depends on the rest. Each CCQ has a record, a row of a system table, which names the
nodes that were elected for it: a coordinator and its standbys (`galileo.ccq.placement`). A node
follows the records that name it. It runs a CCQ if it is the first of these nodes that lives, as far
as it knows; so a standby goes on at once when it counts the coordinator as dead, and asks no one.
Two nodes may run a CCQ for a moment, which costs work and nothing else. A coordinator begins at the
record's retrieved cursor, and saves what its clients have retrieved after `state.SAVE_AFTER_S`. It
also sees to it that the nodes which the record names live (`moves`). A node whose caches are too
full (`cache_memory`) hands a CCQ off, whose labels it keeps (`handed_off_cache`). Cycles
(`schedule`) fill the caches. A CCQ ends when it is cancelled, expires, or its dataset is dropped.

What the leader of the system partition does not know yet is offered to it again, so a change that
was lost is late and nothing else.

Invariants (`check`): this node runs exactly the live CCQs whose record names it first of the nodes
that live; for each of them base <= evaluated and retrieved <= evaluated; none moves back within a
term; what clients acknowledged never exceeds what was evaluated; at most one cycle of a CCQ is in
flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from galileo.ccq.cache_memory import CacheMemory
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.events import (
    AnswerFetch,
    BackfillFailed,
    BackfillFinished,
    CacheReadAnswered,
    CacheReadFailed,
    CacheReadRequested,
    ChangeRecords,
    CommitsObserved,
    ContinuousEffect,
    ContinuousEvent,
    CycleFailed,
    CycleFinished,
    DatasetDropped,
    DrainRequested,
    Effects,
    FetchAbandoned,
    FetchRequested,
    MembersChanged,
    NodesElected,
    PacksCompacted,
    PacksLoaded,
    PacksSpilled,
    RecordsChanged,
    RecordsLearned,
    RedirectFetch,
    RefuseFetch,
    SequencesConfirmed,
    Ticked,
    UsageMeasured,
)
from galileo.ccq.model import Record, end_reason
from galileo.ccq.moves import Moves
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.placement import CcqChange, EndCcq, SaveProgress
from galileo.ccq.records import encode
from galileo.ccq.schedule import Schedule
from galileo.ccq.state import NodeState
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.ranking import UsageStatistics

EXPIRY_GRACE_S = 30.0
"""How long other nodes wait for the coordinator to end an expired CCQ."""
SAVE_INTERVAL_S = 0.5
"""Pause between two looks for records to be saved."""
FETCHES_MAX = 10_000
"""Open fetches at a time."""
_FETCH_ANSWERS = (AnswerFetch, RefuseFetch, RedirectFetch)


class Continuous:
    """The machine of continuous queries; `galileo.ccq.events` has its events and effects.

    Args:
        me: name of this node.
        options: with the groups of all nodes, including this one.
        wall: seconds since 1970-01-01 UTC.
    """

    state_type = NodeState
    moves_type = Moves

    def __init__(self, me: str, options: ContinuousOptions, *, wall: float = 0.0) -> None:
        self.state = self.state_type(me, options, wall=wall)
        self._moves = self.moves_type(self.state)
        self._schedule = Schedule(self.state)
        self._cache_memory = CacheMemory(self.state, self._moves)
        self._fetch_ccq_ids: dict[int, str] = {}
        self._fetched: dict[str, None] = {}
        self._save_at = 0.0
        self._handlers: dict[type, Callable[[Any, float], Effects]] = {
            Ticked: self._on_ticked,
            UsageMeasured: self._on_usage,
            DrainRequested: self._on_drain,
            MembersChanged: self._on_members,
            RecordsLearned: self._on_learned,
            RecordsChanged: self._on_changed,
            NodesElected: self._moves.on_elected,
            DatasetDropped: self._on_dropped,
            CommitsObserved: self._on_sequences,
            PeerDied: self._on_died,
            PeerRevived: self._on_revived,
            FetchRequested: self._fetch,
            FetchAbandoned: self._on_abandoned,
            CycleFinished: self._on_cycle_finished,
            CycleFailed: self._schedule.on_failed,
            BackfillFinished: self._on_backfilled,
            BackfillFailed: self._on_backfill_failed,
            SequencesConfirmed: self._on_confirmed,
            PacksCompacted: self._on_compacted,
            PacksSpilled: self._cache_memory.on_spilled,
            PacksLoaded: self._cache_memory.on_loaded,
            CacheReadAnswered: self._on_cache_read,
            CacheReadFailed: self._on_cache_read,
            CacheReadRequested: lambda event, _: self.state.handed_off.read(event),
        }

    # --- for readers ---------------------------------------------------------------------------

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of this node, ended ones included."""
        return tuple(self.state.records.values())

    @property
    def coordinated(self) -> dict[str, Coordinator]:
        """The CCQs that this node runs now; read only."""
        return self.state.coordinated

    @property
    def usage(self) -> UsageStatistics:
        return self.state.usage

    @property
    def cycle_due_at(self) -> float | None:
        """The earliest time at which a processing cycle is due; None if none is planned."""
        return self._schedule.due_at

    @property
    def cached_bytes(self) -> int:
        """Memory of handed-off caches."""
        return sum(handed_off.cache.bytes for handed_off in self.state.handed_off.all())

    # --- the machine -----------------------------------------------------------------------------

    def step(self, event: ContinuousEvent, now: float) -> list[ContinuousEffect]:
        effects = [*self._handlers[type(event)](event, now), *self._cache_memory.apply_discarded()]
        for effect in effects:
            if isinstance(effect, _FETCH_ANSWERS):
                self._fetch_ccq_ids.pop(effect.request, None)
        return effects

    def check(self) -> None:
        for part in (self.state, self._moves, self._schedule, self._cache_memory):
            part.check()
        open_fetches = sum(
            len(coordinator.fetches) for coordinator in self.state.coordinated.values()
        )
        assert open_fetches == len(self._fetch_ccq_ids), "fetches were forgotten"

    # --- time and peers -------------------------------------------------------------------------

    def _on_ticked(self, event: Ticked, now: float) -> Effects:
        self.state.wall = event.wall
        effects = [
            *self._expire(now),
            *self._moves.tick(now),
            *self._schedule.tick(now),
            *self._cache_memory.tick(now),
        ]
        for ccq_id in dict.fromkeys(self._fetch_ccq_ids.values()):
            coordinator = self.state.coordinated.get(ccq_id)  # None if the CCQ ended in this step.
            effects += coordinator.fetches.tick(now) if coordinator is not None else []
        return [*effects, *self._save(now)]

    def _on_usage(self, event: UsageMeasured, now: float) -> Effects:
        self.state.measured, self.state.is_measured = event.usage, True
        return []

    def _on_drain(self, event: DrainRequested, now: float) -> Effects:
        self.state.is_draining = event.is_on
        self._moves.check_soon(now)
        return []

    def _on_members(self, event: MembersChanged, now: float) -> Effects:
        self.state.set_members(event.groups, event.racks)
        self._moves.check_soon(now)
        return self._settle(self.records, now)

    def _on_died(self, event: PeerDied, now: float) -> Effects:
        self.state.dead[event.node] = now
        self._moves.check_soon(now)
        return self._settle(self.state.named_with(event.node), now)

    def _on_revived(self, event: PeerRevived, now: float) -> Effects:
        self.state.dead.pop(event.node, None)
        self._moves.check_soon(now)
        return self._settle(self.state.named_with(event.node), now)

    def _settle(self, records: Iterable[Record], now: float) -> Effects:
        return [effect for record in records for effect in self.state.settle(record.id, now)]

    def _expire(self, now: float) -> Effects:
        """End expired CCQs, and forget those that ended long ago."""
        effects: Effects = []
        state = self.state
        for ccq_id in state.due(now):
            if state.records[ccq_id].ended is not None:
                state.forget(ccq_id)
            elif ccq_id in state.coordinated:
                effects += state.end(ccq_id, "expired", now)
            else:
                state.postpone(ccq_id, now + EXPIRY_GRACE_S)
        return effects

    # --- records --------------------------------------------------------------------------------

    def _on_learned(self, event: RecordsLearned, now: float) -> Effects:
        return [effect for one in event.records for effect in self.state.learn(one, now)]

    def _on_changed(self, event: RecordsChanged, now: float) -> Effects:
        """Learn what became of changes; what is not known is tried again."""
        state = self.state
        self._moves.on_changed(event, now)
        effects = self._on_learned(RecordsLearned(event.records), now)
        for ccq_id in event.unknown:
            record = state.records.get(ccq_id)
            if record is not None and record.ended is not None:
                state.forget(ccq_id)
        known = {record.id for record in event.records}
        for ccq_id in event.names:
            if ccq_id in state.records and ccq_id not in known:
                state.dirty.setdefault(ccq_id, now)
        return effects

    def _save(self, now: float) -> Effects:
        """Have the leader know what clients have retrieved, and what has ended."""
        state = self.state
        if now < self._save_at:
            return []
        self._save_at = now + SAVE_INTERVAL_S
        fetched = self._fetched | dict.fromkeys(self._fetch_ccq_ids.values())
        self._fetched = {}
        for ccq_id in fetched:
            if ccq_id in state.coordinated:
                state.progress(ccq_id, now)
                state.note_fetch(ccq_id, now)
        changes: list[CcqChange] = []
        for record in state.pop_dirty(now):
            if record.ended is not None:
                changes.append(EndCcq(record.id, record.ended, record.ended_at))
            else:
                changes.append(SaveProgress(record.id, encode(record)))
        return [ChangeRecords(tuple(changes))] if changes else []

    def _on_dropped(self, event: DatasetDropped, now: float) -> Effects:
        """End the CCQs of the dropped datasets in all records of this node."""
        state = self.state
        state.dropped[event.name] = max(event.generations, state.dropped.get(event.name, 0))
        over = [r for r in self.records if r.ended is None and state.is_dropped(r.ccq.dataset)]
        effects = [effect for record in over for effect in state.learn(record, now)]
        for dataset in filter(state.is_dropped, {**state.known, **state.clocks}):
            self._schedule.wake(dataset, now)
            state.known.pop(dataset, None)
            state.clocks.pop(dataset, None)
        return effects

    def _on_sequences(self, event: CommitsObserved, now: float) -> Effects:
        if self.state.is_dropped(event.dataset):
            return []
        is_later = self.state.clock_of(event.dataset).observe(event.clock)
        known = self.state.known_commits(event.dataset)
        if not known.covers(event.sequences):
            self.state.known[event.dataset] = known.join(event.sequences)
            self._schedule.wake(event.dataset, now)
        return self._wake_clock_waiters(event.dataset, now) if is_later else []

    def _wake_clock_waiters(self, dataset: str, now: float) -> Effects:
        """Serve the fetches that wait for the event clock of a dataset."""
        ccq_ids = dict.fromkeys(self._fetch_ccq_ids.values())
        coordinators = [self.state.coordinated.get(ccq_id) for ccq_id in ccq_ids]
        return [
            effect
            for coordinator in coordinators
            if coordinator is not None
            and coordinator.ccq.dataset == dataset
            and coordinator.fetches.awaits_clock
            for effect in coordinator.fetches.wake(now)
        ]

    # --- clients --------------------------------------------------------------------------------

    def _fetch(self, event: FetchRequested, now: float) -> Effects:
        state = self.state
        record = state.records.get(event.ccq_id)
        if record is None:  # Only the leader of the system partition may say that there is none.
            return [RefuseFetch(event.request, state.moving(event.ccq_id))]
        if record.ended is not None:
            return [RefuseFetch(event.request, end_reason(record))]
        coordinator = state.coordinated.get(event.ccq_id)
        if coordinator is None:
            acting = record.acting(state.is_gone)
            if not acting:
                return [RefuseFetch(event.request, state.moving(event.ccq_id))]
            return [RedirectFetch(event.request, acting)]
        if len(self._fetch_ccq_ids) >= FETCHES_MAX:
            return [RefuseFetch(event.request, state.transient("overloaded", "too many fetches"))]
        self._fetch_ccq_ids[event.request] = event.ccq_id
        self._fetched[event.ccq_id] = None
        return coordinator.fetch(event, state.known_commits(record.ccq.dataset), now)

    def _on_abandoned(self, event: FetchAbandoned, now: float) -> Effects:
        coordinator = self._coordinator_of(event.request)
        if coordinator is not None:
            coordinator.fetches.abandon(event.request)
        self._fetch_ccq_ids.pop(event.request, None)
        self.state.handed_off.abandon(event.request)
        return []

    # --- results of effects ---------------------------------------------------------------------

    def _on_cycle_finished(self, event: CycleFinished, now: float) -> Effects:
        return [*self._schedule.on_finished(event, now), *self._cache_memory.enforce(now)]

    def _on_cache_read(self, event: CacheReadAnswered | CacheReadFailed, now: float) -> Effects:
        coordinator = self._coordinator_of(event.request)
        return coordinator.on_cache_read(event, now) if coordinator else []

    def _on_backfilled(self, event: BackfillFinished, now: float) -> Effects:
        coordinator = self._coordinator_of(event.request)
        return coordinator.backfill(event, now) if coordinator else []

    def _on_backfill_failed(self, event: BackfillFailed, now: float) -> Effects:
        coordinator = self._coordinator_of(event.request)
        return coordinator.refuse(event.request, event.failure) if coordinator else []

    def _on_confirmed(self, event: SequencesConfirmed, now: float) -> Effects:
        coordinator = self._coordinator_of(event.request)
        if coordinator is None:
            return []
        dataset = coordinator.ccq.dataset
        self._on_sequences(CommitsObserved(dataset, event.sequences), now)
        return coordinator.confirm(event, self.state.known_commits(dataset), now)

    def _on_compacted(self, event: PacksCompacted, now: float) -> Effects:
        self._schedule.on_compacted(event.ccq_id)
        coordinator = self.state.coordinated.get(event.ccq_id)
        if coordinator is not None and coordinator.term == event.term:
            coordinator.cache.apply_compacted(event.labels)
        return []

    def _coordinator_of(self, request: int) -> Coordinator | None:
        """The coordinator of an open fetch."""
        return self.state.coordinated.get(self._fetch_ccq_ids.get(request, ""))
