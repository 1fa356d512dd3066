"""Elections of coordinators: at submission, after the death of a coordinator, and at a hand-off.

Theory of operation. The election machine (`galileo.election.machine`) decides to which node to
offer the duty. Each offer is a record that names the node as coordinator, in a new term, and is on
disk before the offer is sent. A term consists of a round, higher than any known one, and this
node's ordinal. So two nodes can never have the same term, whatever is lost, repeated or late: an
offer that is accepted too late is superseded by the higher term of the next one. An election ends
when the node has accepted, when no node accepts, or when a record with a higher term arrives.

A submission is answered when `copies_min` nodes (of those alive) have the record on disk: this one,
the coordinator, and others that share it. A submission that was refused or never answered
may be repeated at any node; the id of the duty makes it idempotent.

Which node starts the election after the death of a coordinator is agreed without a message: the
live replicas are ranked by rendezvous hashing, and each waits `takeover_stagger_s` longer than the
one before. Two nodes that start at the same time only waste work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from galileo.election.events import AnswerSubmit, Effects, RefuseSubmit, Send, Submission
from galileo.election.machine import Election, ElectionOptions
from galileo.election.messages import (
    AssignCoordinator,
    AssignmentAccepted,
    AssignmentRefused,
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
    RecordAck,
    SendPoll,
    Started,
)
from galileo.election.model import R
from galileo.election.records import draw
from galileo.election.state import DutyState, ElectionEnded, T
from galileo.errors import Failure

SUBMISSIONS_PER_DUTY_MAX = 16
CPU_SLACK = 0.05
"""Tolerated difference of CPU shares: nodes of one host measure at different moments."""
ELECTIONS_MAX = 256
"""Elections at a time; above it failovers wait and submissions are refused."""


@dataclass(slots=True)
class _RunningElection(Generic[R]):
    """A running election; `requests` are the submissions that wait for it.

    Attributes:
        copies: the nodes that have the record on disk, as far as this node knows.
        is_transfer: this node hands the duty off to a suitable node, or keeps it.
    """

    name: str
    record: R
    need_bytes: int
    machine: Election
    deadline: float
    requests: list[int] = field(default_factory=list)
    copies: set[str] = field(default_factory=set)
    next_ack_request_at: float | None = None
    is_transfer: bool = False
    begun_at: float = 0.0

    def ended(self, failure: str = "") -> ElectionEnded:
        request = self.requests[0] if self.requests else None
        return ElectionEnded(self.record.id, self.begun_at, request, failure)


class CoordinatorElections(Generic[R, T]):
    """The running elections of one node, at most one for each duty.

    Attributes:
        reserved: duties for which other elections run (`galileo.ccq.batch_submission`).
    """

    def __init__(self, state: DutyState[R, T]) -> None:
        self._state = state
        self._running: dict[str, _RunningElection[R]] = {}
        self._count = 0
        self._orphans: dict[str, tuple[int, float]] = {}
        self._drain_not_before: dict[str, float] = {}
        self._transfer_not_before: dict[str, float] = {}
        self.reserved: set[str] = set()

    def __contains__(self, duty_id: str) -> bool:
        return duty_id in self._running or duty_id in self.reserved

    # --- start ------------------------------------------------------------------------------

    def submit(self, event: Submission[R], now: float, *, remote: R | None = None) -> Effects:
        """Start the election for a duty; `remote` is its record where other nodes have one."""
        new = event.record
        duty_id, noun = new.id, self._state.noun[0]
        known = self._state.record_table.get(duty_id) or remote
        running = self._running.get(duty_id)
        refusal = self._state.refusal(new, known or (running.record if running else None))
        if refusal is None and duty_id in self.reserved:
            refusal = overloaded(f"submissions of this {noun}")
        if refusal is not None:
            return [RefuseSubmit(event.request, refusal)]
        if running is not None:
            return self._add_request(running, event.request)
        if known is not None:
            return self._resubmit(known, event.request, now)
        if len(self._running) >= ELECTIONS_MAX:
            return [RefuseSubmit(event.request, overloaded("elections at a time"))]
        election = self._add_election(new, need_bytes=event.need_bytes, now=now)
        election.requests.append(event.request)
        return self._start(election, event.candidates, now)

    def start_failover(self, now: float) -> Effects:
        """Start due elections for duties of gone coordinators, up to `ELECTIONS_MAX` at a time."""
        effects: Effects = []
        table = self._state.record_table
        for node in filter(self._state.is_gone, table.coordinators):
            for duty_id in table.coordinated_by(node):
                if len(self._running) >= ELECTIONS_MAX:
                    return effects
                effects += self._start_failover_if_due(duty_id, now)
        return effects

    def drain(self, now: float) -> Effects:
        """Start elections for the duties of a draining node, and again where one failed.

        The successor begins with the progress of this node.
        """
        if not self._state.is_draining:
            self._drain_not_before.clear()
            return []
        effects: Effects = []
        for duty_id in list(self._state.coordinated):
            if len(self._running) >= ELECTIONS_MAX:
                break
            if duty_id in self or now < self._drain_not_before.get(duty_id, now):
                continue
            self._drain_not_before[duty_id] = now + self._state.options.submit_timeout_s
            effects += self._start(self._add_hand_off(duty_id, now), (), now)
        return effects

    def transfer_coordinator(self, duty_id: str, now: float) -> Effects:
        """Start the election of a successor for a duty for which this node lacks memory.

        Only a node with free memory for all of it qualifies. Does nothing shortly after an attempt,
        or if no peer is alive.
        """
        state, options = self._state, self._state.options
        transfers = [c for c in self._running.values() if c.is_transfer]
        is_late = now >= self._transfer_not_before.get(duty_id, now)
        is_alone = all(peer in state.dead for peer in state.peers)
        is_busy = len(transfers) >= options.successions_max or len(self._running) >= ELECTIONS_MAX
        if duty_id in self or not is_late or is_alone or is_busy:
            return []
        self._transfer_not_before = {
            other_id: at for other_id, at in self._transfer_not_before.items() if at > now
        }
        self._transfer_not_before[duty_id] = now + options.succession_pause_s
        election = self._add_hand_off(duty_id, now)
        election.is_transfer = True
        election.machine = self.election(self._transfer_options())
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

    def on_refused(self, sender: str, message: AssignmentRefused[R], now: float) -> Effects:
        effects = self._state.learn_record(message.record, now) if message.record else []
        election = self._running.get(message.ccq_id)
        if election is None or election.record.term != message.term:
            return effects
        return [*effects, *self._step(election, OfferRefused(sender), now)]

    def on_record_ack(self, sender: str, message: RecordAck, now: float) -> Effects:
        effects: Effects = []
        for duty_id, term in message.entries:
            election = self._running.get(duty_id)
            if election is None or election.next_ack_request_at is None:
                continue
            if election.record.term == term:
                election.copies.add(sender)
                effects += self._request_acks(election, now)
        return effects

    def on_record(self, record: R, now: float) -> Effects:
        """End an election that another node has decided; submissions wait for copies of that."""
        self._orphans.pop(record.id, None)
        election = self._running.get(record.id)
        if election is None:
            return []
        if record.ended is not None:
            return self._close(election, self._state.end_reason(record))
        if record.term <= election.record.term:
            return []
        election.record = record
        if not election.requests:
            return self._succeed(election)
        election.copies = {self._state.me}
        election.next_ack_request_at = now
        return self._request_acks(election, now)

    def close_over(self) -> Effects:
        """End the elections for duties that are over (`DutyState.ending_of`)."""
        failures = [
            (election, self._state.over_failure(election.record))
            for election in self._running.values()
        ]
        return [
            effect
            for election, failure in failures
            if failure is not None
            for effect in self._close(election, failure)
        ]

    def check(self) -> None:
        for duty_id, election in self._running.items():
            assert election.record.id == duty_id
            election.machine.check()
            ending = self._state.ending_of(election.record)
            assert ending is None, "an election for a duty that is over"
            mine = self._state.record_table.get(duty_id)
            assert mine is None or mine.ended is None, "an election for an ended duty"
            assert mine is None or mine.term <= election.record.term, "an election in an old term"

    # --- failover ------------------------------------------------------------------------------

    def _start_failover_if_due(self, duty_id: str, now: float) -> Effects:
        record = self._state.record_table.records[duty_id]
        term, at = self._orphans.get(duty_id, (-1, 0.0))
        if term != record.term:
            rank = self._failover_rank(record)
            at = now + rank * self._state.options.takeover_stagger_s
            self._orphans[duty_id] = (record.term, at)
        if now < at or duty_id in self:
            return []
        self._orphans[duty_id] = (record.term, now + self._state.options.submit_timeout_s)
        return self._start(self._add_election(record, need_bytes=0, now=now), (), now)

    def _failover_rank(self, record: R) -> int:
        """This node's rank among the live replicas, by a hash that differs for each term.

        Other nodes that have the record come after them.
        """
        state = self._state
        live = [n for n in state.record_table.replicas(record.id) if not state.is_gone(n)]
        drawn = sorted(live, key=lambda node: draw(record.id, f"{node}\0{record.term}"))
        return drawn.index(state.me) if state.me in drawn else len(drawn)

    def _transfer_options(self) -> ElectionOptions:
        """Election options that accept a successor as busy as this node."""
        options = self._state.options.election
        busy = min(1.0, self._state.measured.cpu_share + CPU_SLACK)
        limits = options.limits
        limits = replace(limits, cpu_share_max=max(limits.cpu_share_max, busy))
        return replace(options, limits=limits)

    # --- inside ----------------------------------------------------------------------------------

    def _add_election(self, record: R, *, need_bytes: int, now: float) -> _RunningElection[R]:
        self._count += 1
        self._state.counts.elections += 1
        options = self._state.options
        election = _RunningElection(
            name=f"{record.id}/{self._count}",
            record=record,
            need_bytes=need_bytes,
            machine=self.election(options.election),
            deadline=now + options.submit_timeout_s,
            begun_at=now,
        )
        self._running[record.id] = election
        return election

    def _add_hand_off(self, duty_id: str, now: float) -> _RunningElection[R]:
        """An election of a successor for a duty of this node."""
        state = self._state
        state.save_progress(duty_id)
        need_bytes = state.need_bytes(duty_id)
        return self._add_election(
            state.record_table.records[duty_id], need_bytes=need_bytes, now=now
        )

    def _add_request(self, election: _RunningElection[R], request: int) -> Effects:
        if len(election.requests) >= SUBMISSIONS_PER_DUTY_MAX:
            return [RefuseSubmit(request, overloaded(f"submissions of one {self._state.noun[0]}"))]
        election.requests.append(request)
        return []

    def _resubmit(self, record: R, request: int, now: float) -> Effects:
        """Answer a repeated submission as soon as there are enough copies."""
        election = self._add_election(record, need_bytes=0, now=now)
        election.requests.append(request)
        election.copies.add(self._state.me)
        election.next_ack_request_at = now
        saves = self._state.apply_record(record, now)  # It may be at other nodes only.
        return [*saves, *self._request_acks(election, now)]

    def _start(
        self, election: _RunningElection[R], candidates: Sequence[str], now: float
    ) -> Effects:
        is_excluding_self = election.is_transfer or self._state.is_draining
        rounds = self.rounds(
            candidates,
            key=election.record.id,
            polled_first=self._state.options.polled_first,
            is_excluding_self=is_excluding_self,
        )
        started = Started(election.need_bytes, rounds, only_suitable=election.is_transfer)
        return self._step(election, started, now)

    def election(self, options: ElectionOptions) -> Election:
        """A machine that counts what this node knows to be assigned or offered."""
        state = self._state
        return Election(options=options, assigned=state.assigned_count, noun=state.noun[0])

    def rounds(
        self, first: Sequence[str], *, key: str, polled_first: int, is_excluding_self: bool
    ) -> tuple[tuple[str, ...], ...]:
        """The live nodes in the rounds in which an election polls them.

        Nodes of the groups of `first` come before the others; within both the order is drawn by a
        hash of `key`. Each round has twice as many nodes as the one before. A node that hands its
        duty off excludes itself.
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

    def _step(self, election: _RunningElection[R], event: ElectionEvent, now: float) -> Effects:
        effects: Effects = []
        for effect in election.machine.step(event, now):
            effects += self._execute(election, effect, now)
        return effects

    def _execute(
        self, election: _RunningElection[R], effect: ElectionEffect, now: float
    ) -> Effects:
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

    def _offer(self, election: _RunningElection[R], node: str, now: float) -> Effects:
        state = self._state
        state.count_offer(node, former=election.record.coordinator)
        in_next_term = state.with_successor if election.is_transfer else state.with_next_term
        election.record = in_next_term(election.record, node)
        effects = self._state.apply_record(election.record, now)
        if node != self._state.me:
            return [*effects, Send(node, AssignCoordinator(election.record, election.need_bytes))]
        return [*effects, *self._step(election, OfferAccepted(node), now)]

    def _decide(self, election: _RunningElection[R], node: str, now: float) -> Effects:
        if not election.requests:
            others = [one for one in self._state.sharers(election.record) if one != node]
            announced = self._state.distribute([(election.record, others)])
            return [*announced, *self._succeed(election)]
        election.copies = {self._state.me, node}
        election.next_ack_request_at = now
        return self._request_acks(election, now)

    def _request_acks(self, election: _RunningElection[R], now: float) -> Effects:
        """Answer a submission if there are enough copies; otherwise send the record for them."""
        left = self.left_to_copy(election.record, election.copies)
        if not left:
            return self._succeed(election)
        if election.next_ack_request_at is None or now < election.next_ack_request_at:
            return []
        election.next_ack_request_at = now + self._state.options.retry_s
        return self._state.distribute([(election.record, left)], note=True)

    def left_to_copy(self, record: R, copies: set[str]) -> list[str]:
        """The live nodes that share a record and do not have it yet; none if copies suffice.

        A copy of a node that has left the cluster since does not count.
        """
        members = copies.intersection([self._state.me, *self._state.peers])
        if len(members) >= self._state.options.copies_min:
            return []
        left = self._state.sharers(record)
        return [node for node in left if node not in copies and not self._state.is_gone(node)]

    def _succeed(self, election: _RunningElection[R]) -> Effects:
        record = election.record
        del self._running[record.id]
        self._state.counts.ended.append(election.ended())
        return [
            AnswerSubmit(request, record.id, record.coordinator, record.term)
            for request in election.requests
        ]

    def _fail(self, election: _RunningElection[R], reason: str) -> Effects:
        """Refuse the submissions. An offer may still be accepted: it is not withdrawn, because the
        client may have submitted to another node too and have got an answer there.
        """
        self._state.counts.elections_failed += 1
        return self._close(election, self.no_taker(election.record.id, reason))

    def no_taker(self, duty_id: str, reason: str) -> Failure:
        """The error for a duty that no node has accepted."""
        details = (("after_s", self._state.options.retry_s), ("ccq_id", duty_id))
        noun = self._state.noun[0]
        message = f"no node took the {noun}: {reason}; submit it again with this id"
        return Failure("unavailable", message, details)

    def _close(self, election: _RunningElection[R], failure: Failure) -> Effects:
        del self._running[election.record.id]
        self._state.counts.ended.append(election.ended(failure.kind))
        return [RefuseSubmit(request, failure) for request in election.requests]


def overloaded(what: str) -> Failure:
    return Failure("overloaded", f"this node takes no more {what}; try later", (("after_s", 5.0),))
