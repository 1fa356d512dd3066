"""Continuous queries on one node: the records of all, the coordination of some.

Theory of operation. *Exactly-once* rests on the log and the client's token alone
(`galileo.ccq.fetches`): an answer is all matches between two cursors, and the client continues from
the second. It depends neither on who coordinates, nor on what is cached, nor on any clock.

*Progress* depends on the rest. Each CCQ has a record on three nodes that a hash of its id gives
(`replicas`) and on its coordinator (`record_table`), made equal there by announcements and
anti-entropy (`gossip`); other nodes find it (`record_lookup`). The record names the coordinator; a
node to which it is offered begins to coordinate (`coordinator`), one that learns of a higher term
stops. A node that learns by other means that it is named goes on as after a restart. Terms
come from elections (`coordinator_elections`, and `batch_submission` for many CCQs that are
submitted at once): at submission, when the peers of a dead coordinator take over, and when a node
whose caches are too full (`cache_memory`) hands a CCQ off, whose labels it keeps
(`handed_off_cache`). A node that restarts waits for messages of a successor first and then starts a
new term itself, since its cache was lost. Cycles (`schedule`) fill the caches. A CCQ ends when it
is cancelled, expires, or its dataset is dropped: each node that knows of the drop ends the CCQ in
every record that it has or receives, so none can come back.

A record is saved durably before anything is sent that depends on it. Messages may be lost,
repeated, late and out of order: their content is merged into a semilattice or checked against the
term, and important requests are repeated on a timer.

Invariants (`check`): this node coordinates exactly the live CCQs whose record names it; for each,
base <= evaluated and retrieved <= evaluated; none moves back within a term; what clients
acknowledged never exceeds what was evaluated; at most one cycle of a CCQ is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from galileo.ccq.batch_submission import BatchSubmissions
from galileo.ccq.cache_memory import CacheMemory
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.coordinator_elections import CoordinatorElections
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
    DrainRequested,
    Effects,
    FetchAbandoned,
    FetchesRequested,
    FetchRequested,
    FindRequested,
    FindsRequested,
    MembersChanged,
    MessageArrived,
    PacksCompacted,
    PacksLoaded,
    PacksSpilled,
    PurgeRecord,
    RecordsLoaded,
    RedirectFetch,
    RefuseCacheRead,
    RefuseCancel,
    RefuseFetch,
    RefuseFind,
    RefuseSubmit,
    Send,
    SequencesConfirmed,
    SubmitRequested,
    Ticked,
    UsageMeasured,
)
from galileo.ccq.gossip import Gossip
from galileo.ccq.messages import (
    AssignCoordinator,
    AssignMany,
    AssignmentAccepted,
    AssignmentRefused,
    AssignmentsAnswered,
    Digest,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    Summary,
)
from galileo.ccq.model import Failure, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.record_lookup import BatchLookup, Found, RecordLookups, Request, refuse
from galileo.ccq.schedule import Schedule
from galileo.ccq.state import NodeState, end_reason
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.messages import UNASKED, Poll, PollAnswer, UsageStatistics

COORDINATING_S = 3.0
"""How long the report of a node counts that it coordinates CCQs."""
_FETCH_ANSWERS = (AnswerFetch, RefuseFetch, RedirectFetch)
_BEFORE_RESTORED = (
    RecordsLoaded,
    DatasetDropped,
    UsageMeasured,
    DrainRequested,
    MembersChanged,
    CommitsObserved,
    PeerDied,
    PeerRevived,
)


class Continuous:
    """The machine of continuous queries; `galileo.ccq.events` has its events and effects.

    Args:
        me: name of this node.
        options: with the groups of all nodes, including this one.
    """

    state_type = NodeState
    elections_type = CoordinatorElections
    batches_type = BatchSubmissions
    gossip_type = Gossip
    lookups_type = RecordLookups

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.state = self.state_type(me, options)
        self._elections = self.elections_type(self.state)
        self._batches = self.batches_type(self.state, self._elections)
        self._gossip = self.gossip_type(self.state, is_in_use=self._elections.__contains__)
        self._lookups = self.lookups_type(self.state)
        self._schedule = Schedule(self.state)
        self._cache_memory = CacheMemory(self.state, self._elections)
        self._fetch_ccq_ids: dict[int, str] = {}
        self._sync_at = 0.0
        self._now = 0.0
        self._in_expiry_grace: set[str] = set()
        self._is_restored = False
        self._handlers: dict[type, Callable[[Any, float], Effects]] = {
            RecordsLoaded: self._on_records_loaded,
            DatasetDropped: self._on_dropped,
            Ticked: self._on_ticked,
            UsageMeasured: self._on_usage,
            DrainRequested: self._on_drain,
            MembersChanged: self._on_members,
            CommitsObserved: self._on_sequences,
            MessageArrived: self._on_message,
            PeerDied: self._on_peer_died,
            PeerRevived: self._on_peer_revived,
            SubmitRequested: self._on_submit,
            BatchSubmitted: self._on_batch,
            FetchRequested: self._look_up,
            FetchesRequested: self._on_fetches,
            FetchAbandoned: self._on_abandoned,
            FindRequested: self._look_up,
            FindsRequested: self._on_finds,
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
        self._receivers: dict[type, Callable[[str, Any, float], Effects]] = {
            Poll: self._on_poll,
            PollAnswer: self._on_poll_answer,
            AssignCoordinator: self._on_assign,
            AssignmentAccepted: self._elections.on_assigned,
            AssignmentRefused: self._elections.on_refused,
            AssignMany: self._batches.on_assign,
            AssignmentsAnswered: self._batches.on_assigned,
            RecordUpdate: self._on_update,
            RecordAck: self._on_record_ack,
            Digest: self._gossip.on_digest,
            Summary: lambda sender, message, _: self._gossip.on_summary(sender, message),
            RecordRequest: lambda sender, message, _: self._gossip.on_request(sender, message),
            RecordNotFound: self._on_not_found,
        }

    # --- for readers ---------------------------------------------------------------------------

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of this node, ended ones included."""
        return tuple(self.state.record_table.records.values())

    @property
    def coordinated(self) -> dict[str, Coordinator]:
        """What this node coordinates now; read only."""
        return self.state.coordinated

    def is_coordinator(self, node: str) -> bool:
        """Whether a node coordinates a live CCQ, as far as this node knows."""
        if self.state.record_table.coordinated_count(node) > 0:
            return True
        reported_at = self.state.coordinating.get(node, -inf)
        return self._now < reported_at + COORDINATING_S

    @property
    def is_restored(self) -> bool:
        """Whether RecordsLoaded has been processed."""
        return self._is_restored

    @property
    def cycle_due_at(self) -> float | None:
        """The earliest time at which a processing cycle is due; None if none is planned."""
        return self._schedule.due_at

    @property
    def usage(self) -> UsageStatistics:
        return self.state.usage

    @property
    def cached_bytes(self) -> int:
        """Memory of handed-off caches."""
        return sum(handed_off.cache.bytes for handed_off in self.state.handed_off.all())

    # --- the machine -----------------------------------------------------------------------------

    def step(self, event: ContinuousEvent, now: float) -> list[ContinuousEffect]:
        if not self._is_restored and not isinstance(event, _BEFORE_RESTORED):
            return self._refuse_before_loaded(event)
        self._now = now
        effects = [
            *self._handlers[type(event)](event, now),
            *self._announce_changes(now),
            *self._end_lookups(now),
            *self._lookups.send(now),
            *self._cache_memory.apply_discarded(),
        ]
        for effect in effects:
            if isinstance(effect, _FETCH_ANSWERS):
                self._fetch_ccq_ids.pop(effect.request, None)
        return effects

    def check(self) -> None:
        assert not self.state.changed_records, "changed records were not announced"
        for elections in (self._elections, self._batches):
            elections.check()
        for part in (self.state, self._lookups, self._schedule, self._cache_memory):
            part.check()
        open_fetches = sum(
            len(coordinator.fetches) for coordinator in self.state.coordinated.values()
        )
        assert open_fetches == len(self._fetch_ccq_ids), "fetches were forgotten"

    # --- time and peers -------------------------------------------------------------------------

    def _on_records_loaded(self, event: RecordsLoaded, now: float) -> Effects:
        assert not self._is_restored, "restored twice"
        self._is_restored = True
        self.state.wall = event.wall
        table = self.state.record_table
        merged = [table.merge(record, now=now, wall=event.wall) for record in event.records]
        purged = [r.ccq.id for r, m in zip(event.records, merged, strict=True) if m.record is None]
        ended = self._end_dropped(now)
        mine = table.coordinated_by(self.state.me)
        check_s = self.state.options.resume_check_s if self.state.peers else 0.0
        self.state.resuming = dict.fromkeys(mine, now + check_s)
        return [
            *(PurgeRecord(ccq_id) for ccq_id in purged),
            *ended,
            *self._request_successors(mine),
        ]

    def _request_successors(self, ccq_ids: Sequence[str]) -> Effects:
        """Ask the nodes that share what this node coordinated before its restart."""
        ids_by_peer: dict[str, list[str]] = {}
        for ccq_id in ccq_ids:
            for peer in self.state.sharers(self.state.record_table.records[ccq_id]):
                ids_by_peer.setdefault(peer, []).append(ccq_id)
        return self.state.request_records(ids_by_peer)

    def _on_dropped(self, event: DatasetDropped, now: float) -> Effects:
        """End the CCQs of the dropped datasets in all records of this node."""
        state = self.state
        state.dropped[event.name] = max(event.generations, state.dropped.get(event.name, 0))
        effects = [*self._elections.on_dropped(), *self._batches.on_dropped()]
        effects += self._end_dropped(now)
        for dataset in filter(state.is_dropped, {**state.known, **state.clocks}):
            self._schedule.wake(dataset, now)
            state.known.pop(dataset, None)
            state.clocks.pop(dataset, None)
        return effects

    def _end_dropped(self, now: float) -> Effects:
        state = self.state
        live = [record for record in state.record_table.records.values() if record.ended is None]
        dropped = [record for record in live if state.is_dropped(record.ccq.dataset)]
        return [effect for record in dropped for effect in state.apply_record(record, now)]

    def _refuse_before_loaded(self, event: ContinuousEvent) -> Effects:
        """Refuse requests until the own records are loaded: they may have higher terms."""
        failure = self._transient_failure("unavailable", "this node is starting")
        if isinstance(event, SubmitRequested | BatchSubmitted):
            return [RefuseSubmit(event.request, failure)]
        if isinstance(event, FetchRequested):
            return [RefuseFetch(event.request, failure)]
        if isinstance(event, FetchesRequested):
            return [RefuseFetch(fetch.request, failure) for fetch in event.fetches]
        if isinstance(event, FindRequested):
            return [RefuseFind(event.request, failure)]
        if isinstance(event, FindsRequested):
            return [RefuseFind(find.request, failure) for find in event.finds]
        if isinstance(event, CancelRequested):
            return [RefuseCancel(event.request, failure)]
        if isinstance(event, CacheReadRequested):
            return [RefuseCacheRead(event.request)]
        return []  # Messages count as lost.

    def _on_ticked(self, event: Ticked, now: float) -> Effects:
        self.state.wall = event.wall
        self._lookups.tick(now)
        effects = [
            *self._resume(now),
            *self._expire_and_purge(now),
            *self._elections.tick(now),
            *self._batches.tick(now),
            *self._elections.start_failover(now),
            *self._elections.drain(now),
            *self._schedule.tick(now),
            *self._cache_memory.tick(now),
        ]
        for ccq_id in dict.fromkeys(self._fetch_ccq_ids.values()):
            coordinator = self.state.coordinated.get(ccq_id)  # None if the CCQ ended in this step.
            effects += coordinator.fetches.tick(now) if coordinator is not None else []
        if now >= self._sync_at:
            self._sync_at = now + self.state.options.sync_interval_s
            effects += self._gossip.tick(now)
        return effects

    def _on_usage(self, event: UsageMeasured, now: float) -> Effects:
        self.state.measured, self.state.is_measured = event.usage, True
        return []

    def _on_drain(self, event: DrainRequested, now: float) -> Effects:
        self.state.is_draining = event.is_on
        return self._elections.drain(now)

    def _on_members(self, event: MembersChanged, now: float) -> Effects:
        self.state.set_members(event.groups, event.racks)
        return []

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

    def _on_peer_died(self, event: PeerDied, now: float) -> Effects:
        self.state.dead.add(event.node)
        return []

    def _on_peer_revived(self, event: PeerRevived, now: float) -> Effects:
        self.state.dead.discard(event.node)
        return []

    def _on_message(self, event: MessageArrived, now: float) -> Effects:
        return self._receivers[type(event.message)](event.sender, event.message, now)

    def _on_poll(self, sender: str, message: Poll, now: float) -> Effects:
        return [Send(sender, PollAnswer(message.election, self.state.usage))]

    def _on_poll_answer(self, sender: str, message: PollAnswer, now: float) -> Effects:
        event = self.state.peer_usage.record_answer(sender, message.usage, now)
        return [
            *self._elections.on_poll_answered(event, now),
            *self._batches.on_poll_answered(event, now),
        ]

    def _on_record_ack(self, sender: str, message: RecordAck, now: float) -> Effects:
        return [
            *self._elections.on_record_ack(sender, message, now),
            *self._batches.on_record_ack(sender, message, now),
            *self._gossip.on_record_ack(sender, message),
        ]

    def _on_update(self, sender: str, message: RecordUpdate, now: float) -> Effects:
        effects = self._gossip.on_update(sender, message, now)
        for record in message.records:
            self._lookups.on_record(self.state.record_table.get(record.ccq.id) or record)
        return effects

    def _on_not_found(self, sender: str, message: RecordNotFound, now: float) -> Effects:
        self._lookups.on_not_found(sender, message)
        return []

    def _on_assign(self, sender: str, message: AssignCoordinator, now: float) -> Effects:
        """Accept a CCQ if possible: save its record, answer."""
        record, state = message.record, self.state
        ccq_id, mine = record.ccq.id, state.record_table.get(record.ccq.id)
        if mine is not None and (mine.ended is not None or mine.term > record.term):
            return [Send(sender, AssignmentRefused(ccq_id, record.term, mine))]
        if state.is_dropped(record.ccq.dataset):
            ended = state.apply_record(record, now)
            return [
                *ended,
                Send(
                    sender, AssignmentRefused(ccq_id, record.term, state.record_table.get(ccq_id))
                ),
            ]
        effects: Effects = []
        if mine is None or mine.term < record.term:
            if not state.accepts_assignments:
                return [Send(sender, AssignmentRefused(ccq_id, record.term, None))]
            effects = state.apply_record(record, now)
        if ccq_id not in state.coordinated:
            return effects  # Accepted before a restart; `_resume` continues it.
        answers = PollAnswer(UNASKED, state.usage), AssignmentAccepted(ccq_id, record.term)
        return [*effects, *(Send(sender, answer) for answer in answers)]

    def _resume(self, now: float) -> Effects:
        """Start new terms for what this node coordinated before its restart, unless succeeded."""
        ready = [ccq_id for ccq_id, at in self.state.resuming.items() if at <= now]
        return [effect for ccq_id in ready for effect in self.state.start_coordinating(ccq_id, now)]

    def _expire_and_purge(self, now: float) -> Effects:
        """End expired CCQs, and remove those that ended long ago."""
        effects: Effects = []
        table = self.state.record_table
        for ccq_id in table.due(now):
            record = table.records[ccq_id]
            if record.ended is not None:
                table.purge(ccq_id)
                self._in_expiry_grace.discard(ccq_id)
                effects.append(PurgeRecord(ccq_id))
            elif record.coordinator == self.state.me or ccq_id in self._in_expiry_grace:
                effects += self.state.end(record, "expired", now)
            else:
                self._in_expiry_grace.add(ccq_id)
                table.postpone(ccq_id, now + self.state.options.expiry_grace_s)
        return effects

    def _announce_changes(self, now: float) -> Effects:
        """Pass the records that changed in this step to the parts that wait for them."""
        effects: Effects = []
        while self.state.changed_records:
            record = self.state.changed_records.pop(0)
            effects += self._elections.on_record(record, now)
            effects += self._batches.on_record(record, now)
            self._lookups.on_record(record)
        return effects

    def _end_lookups(self, now: float) -> Effects:
        """Go on with the requests whose lookups have ended."""
        effects: Effects = []
        while self._lookups.ended:
            found = self._lookups.ended.pop(0)
            if isinstance(found.request, BatchLookup):
                effects += self._end_batch_lookup(found.request, found, now)
            elif found.failure is not None:
                effects.append(refuse(found.request, found.failure))
            else:
                effects += self._proceed(found.request, found.record, now)
            effects += self._announce_changes(now)
        return effects

    def _end_batch_lookup(self, lookup: BatchLookup, found: Found, now: float) -> Effects:
        lookup.waiting.discard(found.ccq_id)
        if found.record is not None:
            lookup.remote[found.ccq_id] = found.record
        if found.failure is not None:
            lookup.failures[found.ccq_id] = found.failure
        return self._submit_batch(lookup, now) if not lookup.waiting else []

    def _proceed(self, request: Request, record: Record | None, now: float) -> Effects:
        """Carry out a request; `record` is None for a submission of a new CCQ only."""
        if isinstance(request, SubmitRequested):
            return self._elections.submit(request, now, remote=record)
        assert record is not None, "a request went on without a record"
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
            return self._proceed(request, record, now)
        self._lookups.start(request, request.ccq_id, now)
        return []

    # --- clients --------------------------------------------------------------------------------

    def _on_submit(self, event: SubmitRequested, now: float) -> Effects:
        """Submit a CCQ, after a look-up unless this node would have its record."""
        if event.ccq.id in self._elections or not self._is_elsewhere(event.ccq.id):
            return self._elections.submit(event, now)
        self._lookups.start(event, event.ccq.id, now)
        return []

    def _on_batch(self, event: BatchSubmitted, now: float) -> Effects:
        ids = [item.ccq.id for item in event.items if self._is_elsewhere(item.ccq.id)]
        lookup = BatchLookup(event, set(ids))
        for ccq_id in ids:
            self._lookups.start(lookup, ccq_id, now)
        return [] if ids else self._submit_batch(lookup, now)

    def _submit_batch(self, lookup: BatchLookup, now: float) -> Effects:
        return self._batches.submit(
            lookup.event, now, remote=lookup.remote, failures=lookup.failures
        )

    def _is_elsewhere(self, ccq_id: str) -> bool:
        """Whether other nodes may have the record of a CCQ that is not here."""
        table = self.state.record_table
        return table.get(ccq_id) is None and self.state.me not in table.replicas(ccq_id)

    def _on_finds(self, event: FindsRequested, now: float) -> Effects:
        return [effect for find in event.finds for effect in self._look_up(find, now)]

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

    def _on_fetches(self, event: FetchesRequested, now: float) -> Effects:
        """Answer from the caches where possible, the others like single fetches."""
        effects: Effects = []
        coordinated = self.state.coordinated
        for fetch in event.fetches:
            coordinator = coordinated.get(fetch.ccq_id)
            answer = coordinator.try_fetch_from_cache(fetch, now) if coordinator else None
            if answer is not None:
                effects.append(answer)
            else:
                effects += self._look_up(fetch, now)
        return effects

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
