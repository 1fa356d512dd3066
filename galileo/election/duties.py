"""The machine of duties on one node: the records of all, the coordination of some.

Theory of operation. Each duty has a record on three nodes that a hash of its id gives and on its
coordinator (`records`), made equal there by announcements and anti-entropy (`gossip`); other nodes
find it (`lookups`). The record names the coordinator; a node to which the duty is offered begins a
term, one that learns of a higher term stops. A node that learns by other means that it is named
goes on as after a restart. Terms come from elections (`elections`): at submission, when the peers
of a dead coordinator take over, and when a node drains or transfers a duty. A node that restarts
waits for messages of a successor first and then starts a new term itself, since what it had in
memory was lost. A duty ends when its owner ends it, when it expires, or when it is over for another
reason (`DutyState.ending_of`): each node that knows of that ends the duty in every record that it
has or receives, so none can come back.

A record is saved durably before anything is sent that depends on it. Messages may be lost,
repeated, late and out of order: their content is merged into a semilattice or checked against the
term, and important requests are repeated on a timer.

Nothing here makes the work of two terms exclusive: for a moment two nodes may believe that a duty
is theirs. The term fences: what a coordinator writes carries it.

Invariants (`check`): this node has exactly the live duties whose record names it, each in the term
of its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Generic

from galileo.election.elections import CoordinatorElections
from galileo.election.events import (
    DrainRequested,
    Effects,
    MembersChanged,
    MessageArrived,
    PurgeRecord,
    RecordsLoaded,
    RefuseSubmit,
    Send,
    Submission,
    Ticked,
    UsageMeasured,
)
from galileo.election.gossip import Gossip
from galileo.election.lookups import Found, RecordLookups
from galileo.election.messages import (
    UNASKED,
    AssignCoordinator,
    AssignmentAccepted,
    AssignmentRefused,
    Digest,
    Poll,
    PollAnswer,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    Summary,
    UsageStatistics,
)
from galileo.election.model import R
from galileo.election.state import DutyState, T

COORDINATING_S = 3.0
"""How long the report of a node counts that it coordinates duties."""


class Duties(Generic[R, T]):
    """The machine of duties; `galileo.election.events` has its events and effects.

    A package that has duties derives its machine from this one and adds events of its own to
    `_handlers`, and to `before_loaded` those that may come before RecordsLoaded.

    Args:
        state: of the node.
    """

    elections_type = CoordinatorElections
    gossip_type = Gossip
    lookups_type = RecordLookups
    before_loaded: tuple[type, ...] = (
        RecordsLoaded,
        UsageMeasured,
        DrainRequested,
        MembersChanged,
    )

    def __init__(self, state: DutyState[R, T]) -> None:
        self._duties = state
        self._elections: CoordinatorElections[R, T] = self.elections_type(state)
        self._all_elections: list[Any] = [self._elections]
        self._gossip: Gossip[R, T] = self.gossip_type(state, is_in_use=self._elections.__contains__)
        self._lookups: RecordLookups[R, T] = self.lookups_type(state)
        self._sync_at = 0.0
        self._now = 0.0
        self._in_expiry_grace: set[str] = set()
        self._is_restored = False
        self._handlers: dict[type, Callable[[Any, float], Effects]] = {
            RecordsLoaded: self._on_records_loaded,
            Ticked: self._on_ticked,
            UsageMeasured: self._on_usage,
            DrainRequested: self._on_drain,
            MembersChanged: self._on_members,
            MessageArrived: self._on_message,
        }
        self._receivers: dict[type, Callable[[str, Any, float], Effects]] = {
            Poll: self._on_poll,
            PollAnswer: self._on_poll_answer,
            AssignCoordinator: self._on_assign,
            AssignmentAccepted: self._elections.on_assigned,
            AssignmentRefused: self._elections.on_refused,
            RecordUpdate: self._on_update,
            RecordAck: self._on_record_ack,
            Digest: self._gossip.on_digest,
            Summary: lambda sender, message, _: self._gossip.on_summary(sender, message),
            RecordRequest: lambda sender, message, _: self._gossip.on_request(sender, message),
            RecordNotFound: self._on_not_found,
        }

    # --- for readers ---------------------------------------------------------------------------

    @property
    def records(self) -> tuple[R, ...]:
        """The records of this node, ended ones included."""
        return tuple(self._duties.record_table.records.values())

    @property
    def coordinated(self) -> dict[str, T]:
        """The terms of this node now; read only."""
        return self._duties.coordinated

    def is_coordinator(self, node: str) -> bool:
        """Whether a node has a live duty, as far as this node knows."""
        if self._duties.record_table.coordinated_count(node) > 0:
            return True
        reported_at = self._duties.coordinating.get(node, -inf)
        return self._now < reported_at + COORDINATING_S

    @property
    def is_restored(self) -> bool:
        """Whether RecordsLoaded has been processed."""
        return self._is_restored

    @property
    def usage(self) -> UsageStatistics:
        return self._duties.usage

    # --- the machine -----------------------------------------------------------------------------

    def step(self, event: Any, now: float) -> Effects:
        if not self._is_restored and not isinstance(event, self.before_loaded):
            return self._refuse_before_loaded(event)
        self._now = now
        return [
            *self._handlers[type(event)](event, now),
            *self._announce_changes(now),
            *self._end_lookups(now),
            *self._lookups.send(now),
        ]

    def check(self) -> None:
        assert not self._duties.changed_records, "changed records were not announced"
        for part in (*self._all_elections, self._duties, self._lookups):
            part.check()

    # --- what a package with duties may add ------------------------------------------------------

    def _work(self, now: float) -> Effects:
        """What is due of the work of this node's duties; called with each tick."""
        return []

    def _proceed(self, found: Found[R], now: float) -> Effects:
        """Go on with a request whose lookup has ended."""
        if found.failure is not None:
            return [RefuseSubmit(found.request.request, found.failure)]
        return self._elections.submit(found.request, now, remote=found.record)

    def _refuse_before_loaded(self, event: Any) -> Effects:
        """Refuse requests until the own records are loaded: they may have higher terms."""
        return []  # Messages count as lost.

    # --- requests --------------------------------------------------------------------------------

    def _on_submit(self, event: Submission[R], now: float) -> Effects:
        """Submit a duty, after a lookup unless this node would have its record."""
        duty_id = event.record.id
        if duty_id in self._elections or not self._is_elsewhere(duty_id):
            return self._elections.submit(event, now)
        self._lookups.start(event, duty_id, now, is_submission=True)
        return []

    def _is_elsewhere(self, duty_id: str) -> bool:
        """Whether other nodes may have the record of a duty that is not here."""
        table = self._duties.record_table
        return table.get(duty_id) is None and self._duties.me not in table.replicas(duty_id)

    # --- time and peers -------------------------------------------------------------------------

    def _on_records_loaded(self, event: RecordsLoaded[R], now: float) -> Effects:
        assert not self._is_restored, "restored twice"
        self._is_restored = True
        state, table = self._duties, self._duties.record_table
        state.wall = event.wall
        merged = [table.merge(record, now=now, wall=event.wall) for record in event.records]
        purged = [r.id for r, m in zip(event.records, merged, strict=True) if m.record is None]
        ended = state.end_all_over(now)
        mine = table.coordinated_by(state.me)
        check_s = state.options.resume_check_s if state.peers else 0.0
        state.resuming = dict.fromkeys(mine, now + check_s)
        return [
            *(PurgeRecord(duty_id) for duty_id in purged),
            *ended,
            *self._request_successors(mine),
        ]

    def _request_successors(self, duty_ids: Sequence[str]) -> Effects:
        """Ask the nodes that share the duties that this node had before its restart."""
        ids_by_peer: dict[str, list[str]] = {}
        for duty_id in duty_ids:
            for peer in self._duties.sharers(self._duties.record_table.records[duty_id]):
                ids_by_peer.setdefault(peer, []).append(duty_id)
        return self._duties.request_records(ids_by_peer)

    def _end_all_over(self, now: float) -> Effects:
        """End elections and duties after a change of what `DutyState.ending_of` says."""
        closed = [effect for one in self._all_elections for effect in one.close_over()]
        return [*closed, *self._duties.end_all_over(now)]

    def _on_ticked(self, event: Ticked, now: float) -> Effects:
        self._duties.wall = event.wall
        self._lookups.tick(now)
        effects = [
            *self._resume(now),
            *self._expire_and_purge(now),
            *(effect for elections in self._all_elections for effect in elections.tick(now)),
            *self._elections.start_failover(now),
            *self._elections.drain(now),
            *self._work(now),
        ]
        if now >= self._sync_at:
            self._sync_at = now + self._duties.options.sync_interval_s
            effects += self._gossip.tick(now)
        return effects

    def _on_usage(self, event: UsageMeasured, now: float) -> Effects:
        self._duties.measured, self._duties.is_measured = event.usage, True
        return []

    def _on_drain(self, event: DrainRequested, now: float) -> Effects:
        self._duties.is_draining = event.is_on
        return self._elections.drain(now)

    def _on_members(self, event: MembersChanged, now: float) -> Effects:
        self._duties.set_members(event.groups, event.racks)
        return []

    def _set_dead(self, node: str, *, is_dead: bool) -> Effects:
        """Note that a peer is presumed dead, or is not any more."""
        if is_dead:
            self._duties.dead.add(node)
        else:
            self._duties.dead.discard(node)
        return []

    # --- messages -------------------------------------------------------------------------------

    def _on_message(self, event: MessageArrived, now: float) -> Effects:
        return self._receivers[type(event.message)](event.sender, event.message, now)

    def _on_poll(self, sender: str, message: Poll, now: float) -> Effects:
        return [Send(sender, PollAnswer(message.election, self._duties.usage))]

    def _on_poll_answer(self, sender: str, message: PollAnswer, now: float) -> Effects:
        event = self._duties.peer_usage.record_answer(sender, message.usage, now)
        return [
            effect
            for elections in self._all_elections
            for effect in elections.on_poll_answered(event, now)
        ]

    def _on_record_ack(self, sender: str, message: RecordAck, now: float) -> Effects:
        effects = [
            effect
            for elections in self._all_elections
            for effect in elections.on_record_ack(sender, message, now)
        ]
        return [*effects, *self._gossip.on_record_ack(sender, message)]

    def _on_update(self, sender: str, message: RecordUpdate[R], now: float) -> Effects:
        effects = self._gossip.on_update(sender, message, now)
        for record in message.records:
            self._lookups.on_record(self._duties.record_table.get(record.id) or record)
        return effects

    def _on_not_found(self, sender: str, message: RecordNotFound, now: float) -> Effects:
        self._lookups.on_not_found(sender, message)
        return []

    def _on_assign(self, sender: str, message: AssignCoordinator[R], now: float) -> Effects:
        """Accept a duty if possible: save its record, answer."""
        record, state = message.record, self._duties
        duty_id, mine = record.id, state.record_table.get(record.id)
        if mine is not None and (mine.ended is not None or mine.term > record.term):
            return [Send(sender, AssignmentRefused(duty_id, record.term, mine))]
        if state.ending_of(record) is not None:
            effects = state.apply_record(record, now)
            ended = state.record_table.get(duty_id)
            return [*effects, Send(sender, AssignmentRefused(duty_id, record.term, ended))]
        effects = []
        if mine is None or mine.term < record.term:
            if not state.accepts_assignments:
                return [Send(sender, AssignmentRefused(duty_id, record.term, None))]
            effects = state.apply_record(record, now)
        if duty_id not in state.coordinated:
            return effects  # Accepted before a restart; `_resume` continues it.
        answers = PollAnswer(UNASKED, state.usage), AssignmentAccepted(duty_id, record.term)
        return [*effects, *(Send(sender, answer) for answer in answers)]

    # --- inside ----------------------------------------------------------------------------------

    def _resume(self, now: float) -> Effects:
        """Start new terms for what this node had before its restart, unless it was succeeded."""
        ready = [duty_id for duty_id, at in self._duties.resuming.items() if at <= now]
        return [
            effect for duty_id in ready for effect in self._duties.start_coordinating(duty_id, now)
        ]

    def _expire_and_purge(self, now: float) -> Effects:
        """End expired duties, and remove those that ended long ago."""
        effects: Effects = []
        table = self._duties.record_table
        for duty_id in table.due(now):
            record = table.records[duty_id]
            if record.ended is not None:
                table.purge(duty_id)
                self._in_expiry_grace.discard(duty_id)
                effects.append(PurgeRecord(duty_id))
            elif record.coordinator == self._duties.me or duty_id in self._in_expiry_grace:
                effects += self._duties.end(record, "expired", now)
            else:
                self._in_expiry_grace.add(duty_id)
                table.postpone(duty_id, now + self._duties.options.expiry_grace_s)
        return effects

    def _announce_changes(self, now: float) -> Effects:
        """Pass the records that changed in this step to the parts that wait for them."""
        effects: Effects = []
        while self._duties.changed_records:
            record = self._duties.changed_records.pop(0)
            for elections in self._all_elections:
                effects += elections.on_record(record, now)
            self._lookups.on_record(record)
        return effects

    def _end_lookups(self, now: float) -> Effects:
        effects: Effects = []
        while self._lookups.ended:
            effects += self._proceed(self._lookups.ended.pop(0), now)
            effects += self._announce_changes(now)
        return effects
