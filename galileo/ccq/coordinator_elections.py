"""Elections of coordinators: at submission, after the death of a coordinator, and at a hand-off.

Theory of operation. The election machine (`galileo.election.machine`) decides to which node to
offer the CCQ. Each offer is a record that names the node as coordinator, in a new term, and is on
disk before the offer is sent. A term consists of a round, higher than any known one, and this
node's ordinal. So two nodes can never have the same term, whatever is lost, repeated or late: an
offer that is accepted too late is superseded by the higher term of the next one. An election ends
when the node has accepted, when no node accepts, or when a record with a higher term arrives.

A submission is answered when `copies_min` nodes (of those alive) have the CCQ on disk: this one,
the coordinator, and others that share the record. A submission that was refused or never answered
may be repeated at any node; the id of the CCQ makes it idempotent.

Which node starts the election after the death of a coordinator is agreed without a message: the
live replicas are ranked by rendezvous hashing, and each waits `takeover_stagger_s` longer than the
one before. Two nodes that start at the same time only waste work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from galileo.ccq.events import AnswerSubmit, Effects, RefuseSubmit, Send, SubmitRequested
from galileo.ccq.messages import (
    AssignCoordinator,
    AssignmentAccepted,
    AssignmentRefused,
    RecordAck,
)
from galileo.ccq.model import Failure, Record
from galileo.ccq.replicas import draw
from galileo.ccq.state import NodeState, dropped_failure, end_reason
from galileo.ccq.stats import ElectionEnded
from galileo.election.machine import Election, ElectionOptions
from galileo.election.messages import (
    Decided,
    ElectionEffect,
    ElectionEvent,
    ElectionTicked,
    Failed,
    OfferAccepted,
    OfferAssignment,
    OfferRefused,
    Poll,
    PollAnswered,
    SendPoll,
    Started,
)

SUBMISSIONS_PER_CCQ_MAX = 16
CPU_SLACK = 0.05
"""Tolerated difference of CPU shares: nodes of one host measure at different moments."""
ELECTIONS_MAX = 256
"""Elections at a time; above it failovers wait and submissions are refused."""


@dataclass(slots=True)
class _RunningElection:
    """A running election; `requests` are the submissions that wait for it.

    Attributes:
        copies: the nodes that have the record on disk, as far as this node knows.
        is_overflow: this node remains the holder of its cache.
    """

    name: str
    record: Record
    need_bytes: int
    machine: Election
    deadline: float
    requests: list[int] = field(default_factory=list)
    copies: set[str] = field(default_factory=set)
    next_ack_request_at: float | None = None
    is_overflow: bool = False
    begun_at: float = 0.0

    def ended(self, failure: str = "") -> ElectionEnded:
        request = self.requests[0] if self.requests else None
        return ElectionEnded(self.record.ccq.id, self.begun_at, request, failure)


class CoordinatorElections:
    """The running elections of one node, at most one for each CCQ.

    Attributes:
        reserved: owners by id of the CCQs of `galileo.ccq.batch_submission`.
    """

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[str, _RunningElection] = {}
        self._count = 0
        self._orphans: dict[str, tuple[int, float]] = {}
        self._drain_not_before: dict[str, float] = {}
        self._transfer_not_before: dict[str, float] = {}
        self.reserved: dict[str, str] = {}

    def __contains__(self, ccq_id: str) -> bool:
        return ccq_id in self._running or ccq_id in self.reserved

    # --- start ------------------------------------------------------------------------------

    def submit(
        self, event: SubmitRequested, now: float, *, remote: Record | None = None
    ) -> Effects:
        """Start the election for a CCQ; `remote` is its record where other nodes have one."""
        ccq_id = event.ccq.id
        known = self._state.record_table.get(ccq_id) or remote
        if known is not None and known.ended is not None:
            return [RefuseSubmit(event.request, end_reason(known))]
        running = self._running.get(ccq_id)
        holder = known or (running.record if running else None)
        if holder is not None and not holder.ccq.asks_the_same(event.ccq):
            return [RefuseSubmit(event.request, id_conflict(ccq_id))]
        if self._state.is_dropped(event.ccq.dataset):
            return [RefuseSubmit(event.request, dropped_failure(event.ccq))]
        if ccq_id in self.reserved:
            return [RefuseSubmit(event.request, overloaded("submissions of this query"))]
        if running is not None:
            return self._add_request(running, event.request)
        if known is not None:
            return self._resubmit(known, event.request, now)
        if len(self._running) >= ELECTIONS_MAX:
            return [RefuseSubmit(event.request, overloaded("elections at a time"))]
        record = Record(event.ccq, term=0, coordinator="", retrieved=event.reached)
        election = self._add_election(record, need_bytes=event.need_bytes, now=now)
        election.requests.append(event.request)
        return self._start(election, event.candidates, now)

    def start_failover(self, now: float) -> Effects:
        """Start due elections for CCQs of gone coordinators, up to `ELECTIONS_MAX` at a time."""
        effects: Effects = []
        table = self._state.record_table
        for node in filter(self._state.is_gone, table.coordinators):
            for ccq_id in table.coordinated_by(node):
                if len(self._running) >= ELECTIONS_MAX:
                    return effects
                effects += self._start_failover_if_due(ccq_id, now)
        return effects

    def drain(self, now: float) -> Effects:
        """Start elections for the CCQs of a draining node, and again where one failed.

        The successor begins at what clients have acknowledged to this node.
        """
        if not self._state.is_draining:
            self._drain_not_before.clear()
            return []
        effects: Effects = []
        for ccq_id, coordinator in list(self._state.coordinated.items()):
            if len(self._running) >= ELECTIONS_MAX:
                break
            if ccq_id in self or now < self._drain_not_before.get(ccq_id, now):
                continue
            self._drain_not_before[ccq_id] = now + self._state.options.submit_timeout_s
            self._state.record_table.acknowledge(ccq_id, coordinator.retrieved)
            record = self._state.record_table.records[ccq_id]
            election = self._add_election(record, need_bytes=coordinator.cache.bytes, now=now)
            effects += self._start(election, (), now)
        return effects

    def transfer_coordinator(self, ccq_id: str, now: float) -> Effects:
        """Start the election of a successor for a CCQ whose cache has overflowed here.

        Only a node with free memory for the whole cache qualifies. It begins where the cache ends,
        which stays here (`galileo.ccq.handed_off_cache`). Does nothing shortly after an attempt, if
        `holders_max` nodes have ranges already, or if no peer is alive.
        """
        state, options = self._state, self._state.options
        coordinator, overflows = (
            state.coordinated[ccq_id],
            [c for c in self._running.values() if c.is_overflow],
        )
        is_late = now >= self._transfer_not_before.get(ccq_id, now)
        is_alone = all(peer in state.dead for peer in state.peers)
        is_full = len(coordinator.fetches.holders) >= options.holders_max
        is_busy = len(overflows) >= options.successions_max or len(self._running) >= ELECTIONS_MAX
        if ccq_id in self or not is_late or is_alone or is_full or is_busy:
            return []
        self._transfer_not_before = {
            other_id: at for other_id, at in self._transfer_not_before.items() if at > now
        }
        self._transfer_not_before[ccq_id] = now + options.succession_pause_s
        state.record_table.acknowledge(ccq_id, coordinator.retrieved)
        state.record_table.keep_holders(ccq_id, coordinator.fetches.holders)
        record = state.record_table.records[ccq_id]
        election = self._add_election(record, need_bytes=coordinator.cache.bytes, now=now)
        election.is_overflow = True
        election.machine = self.election(self._overflow_options())
        return self._start(election, (), now)

    # --- progress --------------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        effects: Effects = []
        for election in list(self._running.values()):
            if now >= election.deadline:
                effects += self._fail(election, "none had accepted in time")
            elif election.next_ack_request_at is not None:
                effects += self._request_acks(election, now)
            else:
                effects += self._step(election, ElectionTicked(), now)
        return effects

    def on_poll_answered(self, event: PollAnswered, now: float) -> Effects:
        """An answer serves all elections that wait for it."""
        polling = [one for one in self._running.values() if one.next_ack_request_at is None]
        return [effect for election in polling for effect in self._step(election, event, now)]

    def on_assigned(self, sender: str, message: AssignmentAccepted, now: float) -> Effects:
        self._state.peer_usage.record_accepted(sender, 1)
        election = self._running.get(message.ccq_id)
        if election is None or election.record.term != message.term:
            return []
        return self._step(election, OfferAccepted(sender), now)

    def on_refused(self, sender: str, message: AssignmentRefused, now: float) -> Effects:
        effects = self._state.learn_record(message.record, now) if message.record else []
        election = self._running.get(message.ccq_id)
        if election is None or election.record.term != message.term:
            return effects
        return [*effects, *self._step(election, OfferRefused(sender), now)]

    def on_record_ack(self, sender: str, message: RecordAck, now: float) -> Effects:
        effects: Effects = []
        for ccq_id, term in message.entries:
            election = self._running.get(ccq_id)
            if election is None or election.next_ack_request_at is None:
                continue
            if election.record.term == term:
                election.copies.add(sender)
                effects += self._request_acks(election, now)
        return effects

    def on_record(self, record: Record, now: float) -> Effects:
        """End an election that another node has decided; submissions wait for copies of that."""
        self._orphans.pop(record.ccq.id, None)
        election = self._running.get(record.ccq.id)
        if election is None:
            return []
        if record.ended is not None:
            return self._close(election, end_reason(record))
        if record.term <= election.record.term:
            return []
        election.record = record
        if not election.requests:
            return self._succeed(election)
        election.copies = {self._state.me}
        election.next_ack_request_at = now
        return self._request_acks(election, now)

    def on_dropped(self) -> Effects:
        """End the elections for CCQs of dropped datasets."""
        over = [c for c in self._running.values() if self._state.is_dropped(c.record.ccq.dataset)]
        return [
            effect
            for election in over
            for effect in self._close(election, dropped_failure(election.record.ccq))
        ]

    def check(self) -> None:
        for ccq_id, election in self._running.items():
            assert election.record.ccq.id == ccq_id
            election.machine.check()
            assert not self._state.is_dropped(election.record.ccq.dataset), (
                "an election for a dropped dataset"
            )
            mine = self._state.record_table.get(ccq_id)
            assert mine is None or mine.ended is None, "an election for an ended CCQ"
            assert mine is None or mine.term <= election.record.term, "an election in an old term"

    # --- failover ------------------------------------------------------------------------------

    def _start_failover_if_due(self, ccq_id: str, now: float) -> Effects:
        record = self._state.record_table.records[ccq_id]
        term, at = self._orphans.get(ccq_id, (-1, 0.0))
        if term != record.term:
            rank = self._failover_rank(record)
            at = now + rank * self._state.options.takeover_stagger_s
            self._orphans[ccq_id] = (record.term, at)
        if now < at or ccq_id in self:
            return []
        self._orphans[ccq_id] = (record.term, now + self._state.options.submit_timeout_s)
        return self._start(self._add_election(record, need_bytes=0, now=now), (), now)

    def _failover_rank(self, record: Record) -> int:
        """This node's rank among the live replicas, by a hash that differs for each term.

        Other nodes that have the record come after them.
        """
        state = self._state
        live = [n for n in state.record_table.replicas(record.ccq.id) if not state.is_gone(n)]
        drawn = sorted(live, key=lambda node: draw(record.ccq.id, f"{node}\0{record.term}"))
        return drawn.index(state.me) if state.me in drawn else len(drawn)

    def _overflow_options(self) -> ElectionOptions:
        """Election options that accept a successor as busy as this node."""
        options = self._state.options.election
        busy = min(1.0, self._state.measured.cpu_share + CPU_SLACK)
        limits = options.limits
        limits = replace(limits, cpu_share_max=max(limits.cpu_share_max, busy))
        return replace(options, limits=limits)

    # --- inside ----------------------------------------------------------------------------------

    def _add_election(self, record: Record, *, need_bytes: int, now: float) -> _RunningElection:
        self._count += 1
        self._state.counts.elections += 1
        options = self._state.options
        election = _RunningElection(
            name=f"{record.ccq.id}/{self._count}",
            record=record,
            need_bytes=need_bytes,
            machine=self.election(options.election),
            deadline=now + options.submit_timeout_s,
            begun_at=now,
        )
        self._running[record.ccq.id] = election
        return election

    def _add_request(self, election: _RunningElection, request: int) -> Effects:
        if len(election.requests) >= SUBMISSIONS_PER_CCQ_MAX:
            return [RefuseSubmit(request, overloaded("submissions of one continuous query"))]
        election.requests.append(request)
        return []

    def _resubmit(self, record: Record, request: int, now: float) -> Effects:
        """Answer a repeated submission as soon as there are enough copies."""
        election = self._add_election(record, need_bytes=0, now=now)
        election.requests.append(request)
        election.copies.add(self._state.me)
        election.next_ack_request_at = now
        saves = self._state.apply_record(record, now)  # It may be at other nodes only.
        return [*saves, *self._request_acks(election, now)]

    def _start(self, election: _RunningElection, candidates: Sequence[str], now: float) -> Effects:
        is_excluding_self = election.is_overflow or self._state.is_draining
        rounds = self.rounds(
            candidates,
            key=election.record.ccq.id,
            polled_first=self._state.options.polled_first,
            is_excluding_self=is_excluding_self,
        )
        started = Started(election.need_bytes, rounds, only_suitable=election.is_overflow)
        return self._step(election, started, now)

    def election(self, options: ElectionOptions) -> Election:
        """A machine that counts what this node knows to be assigned or offered."""
        return Election(options=options, assigned=self._state.assigned_count)

    def rounds(
        self, first: Sequence[str], *, key: str, polled_first: int, is_excluding_self: bool
    ) -> tuple[tuple[str, ...], ...]:
        """The live nodes in the rounds in which an election polls them.

        Nodes of the groups of `first` come before the others; within both the order is drawn by a
        hash of `key`. Each round has twice as many nodes as the one before. A node that hands its
        CCQ off excludes itself.
        """
        out = self._state.dead | ({self._state.me} if is_excluding_self else set())
        groups = self._state.options.groups
        nearby = {node for group in groups if set(group) & set(first) for node in group}
        alive = [node for group in groups for node in group if node not in out]
        rounds: list[tuple[str, ...]] = []
        for is_wanted in (True, False):
            nodes = [node for node in alive if (node in nearby) is is_wanted]
            drawn = sorted(nodes, key=lambda node: draw(key, node))
            while drawn:
                count = polled_first << len(rounds)
                rounds.append(tuple(node for node in nodes if node in drawn[:count]))
                drawn = drawn[count:]
        return tuple(rounds)

    def poll(
        self, node: str, name: str, answer: Callable[[PollAnswered], Effects], now: float
    ) -> Effects:
        """Answer a poll from what is known of the node, or send it unless one is under way."""
        state = self._state
        if node == state.me:
            return answer(PollAnswered(node, state.usage))
        known = state.peer_usage.answer(node, now)
        if known is not None:
            return answer(known)
        return [Send(node, Poll(name))] if state.peer_usage.begin_poll(node, now) else []

    def _step(self, election: _RunningElection, event: ElectionEvent, now: float) -> Effects:
        effects: Effects = []
        for effect in election.machine.step(event, now):
            effects += self._execute(election, effect, now)
        return effects

    def _execute(self, election: _RunningElection, effect: ElectionEffect, now: float) -> Effects:
        if isinstance(effect, SendPoll):
            return self.poll(
                effect.to, election.name, lambda event: self._step(election, event, now), now
            )
        if isinstance(effect, OfferAssignment):
            return self._offer(election, effect.node, now)
        if isinstance(effect, Decided):
            return self._decide(election, effect.node, now)
        assert isinstance(effect, Failed)
        return self._fail(election, effect.reason)

    def _offer(self, election: _RunningElection, node: str, now: float) -> Effects:
        coordinator = self._state.coordinated.get(election.record.ccq.id)
        # The first offer hands the cache off; later ones find the holder in the record.
        holders = (
            (self._state.holder_of(coordinator),) if coordinator and election.is_overflow else ()
        )
        self._state.count_offer(node, former=election.record.coordinator)
        record = self._state.with_next_term(election.record, node)
        election.record = replace(record, holders=(*record.holders, *holders))
        effects = self._state.apply_record(election.record, now)
        if node != self._state.me:
            return [*effects, Send(node, AssignCoordinator(election.record, election.need_bytes))]
        return [*effects, *self._step(election, OfferAccepted(node), now)]

    def _decide(self, election: _RunningElection, node: str, now: float) -> Effects:
        if not election.requests:
            others = [one for one in self._state.sharers(election.record) if one != node]
            announced = self._state.distribute([(election.record, others)])
            return [*announced, *self._succeed(election)]
        election.copies = {self._state.me, node}
        election.next_ack_request_at = now
        return self._request_acks(election, now)

    def _request_acks(self, election: _RunningElection, now: float) -> Effects:
        """Answer a submission if there are enough copies; otherwise send the record for them."""
        left = self.left_to_copy(election.record, election.copies)
        if not left:
            return self._succeed(election)
        if election.next_ack_request_at is None or now < election.next_ack_request_at:
            return []
        election.next_ack_request_at = now + self._state.options.retry_s
        return self._state.distribute([(election.record, left)], note=True)

    def left_to_copy(self, record: Record, copies: set[str]) -> list[str]:
        """The live nodes that share a record and do not have it yet; none if copies suffice."""
        if len(copies) >= self._state.options.copies_min:
            return []
        left = self._state.sharers(record)
        return [node for node in left if node not in copies and not self._state.is_gone(node)]

    def _succeed(self, election: _RunningElection) -> Effects:
        record = election.record
        del self._running[record.ccq.id]
        self._state.counts.ended.append(election.ended())
        return [
            AnswerSubmit(request, record.ccq.id, record.coordinator, record.term)
            for request in election.requests
        ]

    def _fail(self, election: _RunningElection, reason: str) -> Effects:
        """Refuse the submissions. An offer may still be accepted: it is not withdrawn, because the
        client may have submitted to another node too and have got an answer there.
        """
        self._state.counts.elections_failed += 1
        details = (("after_s", self._state.options.retry_s), ("ccq_id", election.record.ccq.id))
        message = f"no node took the continuous query: {reason}; submit it again with this id"
        return self._close(election, Failure("unavailable", message, details))

    def _close(self, election: _RunningElection, failure: Failure) -> Effects:
        del self._running[election.record.ccq.id]
        self._state.counts.ended.append(election.ended(failure.kind))
        return [RefuseSubmit(request, failure) for request in election.requests]


def overloaded(what: str) -> Failure:
    return Failure("overloaded", f"this node takes no more {what}; try later", (("after_s", 5.0),))


def id_conflict(ccq_id: str) -> Failure:
    return Failure(
        "invalid_input",
        f"the id {ccq_id!r} belongs to another continuous query; submit this one with its own",
    )
