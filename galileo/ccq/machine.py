"""Continuous queries on one node: the records of all, the coordination of some.

Theory of operation. *Exactly-once* rests on the log and the client's token alone
(`galileo.ccq.fetches`): an answer is all matches between two cursors, and the client continues from
the second. It depends neither on who coordinates, nor on what is cached, nor on any clock.

*Progress* depends on the rest. Each CCQ is a duty (`galileo.election.duties`): its record names its
coordinator, terms come from elections, and another node takes over when the coordinator dies or
drains. A coordinator begins at the record's retrieved cursor. `batch_submission` elects for many
CCQs that are submitted together; a node whose caches are too full (`cache_memory`) hands a CCQ off,
whose labels it keeps (`handed_off_cache`). Cycles (`schedule`) fill the caches. A CCQ ends when it
is cancelled, expires, or its dataset is dropped.

Invariants (`check`), besides those of duties: for each CCQ that this node coordinates, base <=
evaluated and retrieved <= evaluated; none moves back within a term; what clients acknowledged never
exceeds what was evaluated; at most one cycle of a CCQ is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from galileo.ccq.batch_submission import BatchSubmissions
from galileo.ccq.cache_memory import CacheMemory
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.events import (
    AnswerCancel,
    AnswerFetch,
    AnswerFind,
    BackfillFailed,
    BackfillFinished,
    BatchSubmitted,
    CacheReadAnswered,
    CacheReadFailed,
    CacheReadRequested,
    CancelRequested,
    CommitsObserved,
    ContinuousEffect,
    ContinuousEvent,
    CycleFailed,
    CycleFinished,
    DatasetDropped,
    Effects,
    FetchAbandoned,
    FetchRequested,
    FindRequested,
    PacksCompacted,
    PacksLoaded,
    PacksSpilled,
    RedirectFetch,
    RefuseCacheRead,
    RefuseCancel,
    RefuseFetch,
    RefuseFind,
    SequencesConfirmed,
    SubmitRequested,
)
from galileo.ccq.model import Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.schedule import Schedule
from galileo.ccq.state import NodeState, end_reason
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.duties import Duties
from galileo.election.events import RefuseSubmit
from galileo.election.lookups import Found
from galileo.election.messages import AssignMany, AssignmentsAnswered
from galileo.errors import Failure

_FETCH_ANSWERS = (AnswerFetch, RefuseFetch, RedirectFetch)


@dataclass(slots=True)
class _BatchLookup:
    """A batch of submissions that waits for lookups.

    Attributes:
        waiting: the ids whose lookups are running.
        remote: the records that were found.
        failures: of lookups.
    """

    event: BatchSubmitted
    waiting: set[str] = field(default_factory=set)
    remote: dict[str, Record] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)

    @property
    def request(self) -> int:
        """No request: a batch is not abandoned."""
        return -1


class Continuous(Duties[Record, Coordinator]):
    """The machine of continuous queries; `galileo.ccq.events` has its events and effects.

    Args:
        me: name of this node.
        options: with the groups of all nodes, including this one.
    """

    state_type = NodeState
    batches_type = BatchSubmissions
    before_loaded = (
        *Duties.before_loaded,
        DatasetDropped,
        CommitsObserved,
        PeerDied,
        PeerRevived,
    )

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.state = self.state_type(me, options)
        super().__init__(self.state)
        self._batches = self.batches_type(self.state, self._elections)
        self._all_elections.append(self._batches)
        self._schedule = Schedule(self.state)
        self._cache_memory = CacheMemory(self.state, self._elections)
        self._fetch_ccq_ids: dict[int, str] = {}
        self._handlers |= {
            DatasetDropped: self._on_dropped,
            CommitsObserved: self._on_sequences,
            PeerDied: lambda event, _: self._set_dead(event.node, is_dead=True),
            PeerRevived: lambda event, _: self._set_dead(event.node, is_dead=False),
            SubmitRequested: self._on_submit,
            BatchSubmitted: self._on_batch,
            FetchRequested: self._look_up,
            FetchAbandoned: self._on_abandoned,
            FindRequested: self._look_up,
            CancelRequested: self._look_up,
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
        self._receivers |= {
            AssignMany: self._batches.on_assign,
            AssignmentsAnswered: self._batches.on_assigned,
        }

    # --- for readers ---------------------------------------------------------------------------

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
        effects = [*super().step(event, now), *self._cache_memory.apply_discarded()]
        for effect in effects:
            if isinstance(effect, _FETCH_ANSWERS):
                self._fetch_ccq_ids.pop(effect.request, None)
        return effects

    def check(self) -> None:
        super().check()
        for part in (self._schedule, self._cache_memory):
            part.check()
        open_fetches = sum(
            len(coordinator.fetches) for coordinator in self.state.coordinated.values()
        )
        assert open_fetches == len(self._fetch_ccq_ids), "fetches were forgotten"

    # --- time and peers -------------------------------------------------------------------------

    def _on_dropped(self, event: DatasetDropped, now: float) -> Effects:
        """End the CCQs of the dropped datasets in all records of this node."""
        state = self.state
        state.dropped[event.name] = max(event.generations, state.dropped.get(event.name, 0))
        effects = self._end_all_over(now)
        for dataset in filter(state.is_dropped, {**state.known, **state.clocks}):
            self._schedule.wake(dataset, now)
            state.known.pop(dataset, None)
            state.clocks.pop(dataset, None)
        return effects

    def _refuse_before_loaded(self, event: ContinuousEvent) -> Effects:
        """Refuse requests until the own records are loaded: they may have higher terms."""
        failure = self._transient_failure("unavailable", "this node is starting")
        if isinstance(event, SubmitRequested | BatchSubmitted):
            return [RefuseSubmit(event.request, failure)]
        if isinstance(event, FetchRequested):
            return [RefuseFetch(event.request, failure)]
        if isinstance(event, FindRequested):
            return [RefuseFind(event.request, failure)]
        if isinstance(event, CancelRequested):
            return [RefuseCancel(event.request, failure)]
        if isinstance(event, CacheReadRequested):
            return [RefuseCacheRead(event.request)]
        return []  # Messages count as lost.

    def _work(self, now: float) -> Effects:
        """Cycles, caches, and fetches that wait."""
        effects = [*self._schedule.tick(now), *self._cache_memory.tick(now)]
        for ccq_id in dict.fromkeys(self._fetch_ccq_ids.values()):
            coordinator = self.state.coordinated.get(ccq_id)  # None if the CCQ ended in this step.
            effects += coordinator.fetches.tick(now) if coordinator is not None else []
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

    # --- lookups ---------------------------------------------------------------------------------

    def _proceed(self, found: Found[Record], now: float) -> Effects:
        request = found.request
        if isinstance(request, _BatchLookup):
            return self._end_batch_lookup(request, found, now)
        if isinstance(request, SubmitRequested):
            return super()._proceed(found, now)
        if found.failure is not None:
            return [_refuse(request, found.failure)]
        assert found.record is not None, "a request went on without a record"
        return self._carry_out(request, found.record, now)

    def _end_batch_lookup(self, lookup: _BatchLookup, found: Found[Record], now: float) -> Effects:
        lookup.waiting.discard(found.duty_id)
        if found.record is not None:
            lookup.remote[found.duty_id] = found.record
        if found.failure is not None:
            lookup.failures[found.duty_id] = found.failure
        return self._submit_batch(lookup, now) if not lookup.waiting else []

    def _carry_out(
        self,
        request: FetchRequested | FindRequested | CancelRequested,
        record: Record,
        now: float,
    ) -> Effects:
        """Carry out a request for a CCQ with a record."""
        if isinstance(request, FetchRequested):
            return self._fetch(request, record, now)
        if isinstance(request, FindRequested):
            return [AnswerFind(request.request, record)]
        effects = self.state.end(record, "cancelled", now) if record.ended is None else []
        return [*effects, AnswerCancel(request.request, request.ccq_id)]

    def _look_up(
        self, request: FetchRequested | FindRequested | CancelRequested, now: float
    ) -> Effects:
        """Carry out a request where the record is, or look it up."""
        record = self.state.record_table.get(request.ccq_id)
        if record is not None:
            return self._carry_out(request, record, now)
        self._lookups.start(request, request.ccq_id, now)
        return []

    # --- clients --------------------------------------------------------------------------------

    def _on_batch(self, event: BatchSubmitted, now: float) -> Effects:
        ids = [item.ccq.id for item in event.items if self._is_elsewhere(item.ccq.id)]
        lookup = _BatchLookup(event, set(ids))
        for ccq_id in ids:
            self._lookups.start(lookup, ccq_id, now, is_submission=True)
        return [] if ids else self._submit_batch(lookup, now)

    def _submit_batch(self, lookup: _BatchLookup, now: float) -> Effects:
        return self._batches.submit(
            lookup.event, now, remote=lookup.remote, failures=lookup.failures
        )

    def _fetch(self, event: FetchRequested, record: Record, now: float) -> Effects:
        state = self.state
        if record.ended is not None:
            return [RefuseFetch(event.request, end_reason(record))]
        coordinator = state.coordinated.get(event.ccq_id)
        if coordinator is None:
            return [self._redirect(event, record)]
        if len(self._fetch_ccq_ids) >= state.options.fetches_max:
            return [
                RefuseFetch(
                    event.request, self._transient_failure("overloaded", "too many fetches")
                )
            ]
        self._fetch_ccq_ids[event.request] = event.ccq_id
        return coordinator.fetch(event, state.known_commits(record.ccq.dataset), now)

    def _redirect(self, event: FetchRequested, record: Record) -> RedirectFetch | RefuseFetch:
        """Name the coordinator, unless it is known to be down or undecided."""
        is_undecided = event.ccq_id in self._elections or event.ccq_id in self.state.resuming
        if is_undecided or self.state.is_gone(record.coordinator):
            reason = f"the continuous query {event.ccq_id!r} is getting a new coordinator"
            return RefuseFetch(event.request, self._transient_failure("unavailable", reason))
        return RedirectFetch(event.request, record.coordinator)

    def _transient_failure(self, kind: str, reason: str) -> Failure:
        after_s = self.state.options.retry_s
        return Failure(kind, f"{reason}; try again in {after_s} s", (("after_s", after_s),))

    def _on_abandoned(self, event: FetchAbandoned, now: float) -> Effects:
        coordinator = self._coordinator_of(event.request)
        if coordinator is not None:
            coordinator.fetches.abandon(event.request)
        self._fetch_ccq_ids.pop(event.request, None)
        self._lookups.abandon(event.request)
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


def _refuse(
    request: FetchRequested | FindRequested | CancelRequested, failure: Failure
) -> RefuseFetch | RefuseFind | RefuseCancel:
    if isinstance(request, FetchRequested):
        return RefuseFetch(request.request, failure)
    if isinstance(request, FindRequested):
        return RefuseFind(request.request, failure)
    return RefuseCancel(request.request, failure)
