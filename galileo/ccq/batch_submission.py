"""Submissions that come at the same time: a few elections for all CCQs with the same candidates.

Theory of operation. A batch follows the rules of a single submission
(`galileo.election.elections`): each offer is a record in a term of its own, which is on disk
before the offer is sent; a CCQ counts as submitted when enough nodes have it on disk;
repeating a submission under the same ids is safe. A batch shares the work. The CCQs of a submission
whose candidates are in the same groups are divided into batches, at most one for each node that may
take them and none below `batch_share_min` CCQs; one election finds the node to which all CCQs of a
batch are offered; records are sent and written many at a time. What one election has offered counts
in the others, so the batches go to different nodes.

A CCQ leaves the common path only when it must. CCQs that the node refuses are offered to the next
node. A CCQ for which a higher term or an end becomes known is answered with that. A known CCQ (a
repeated submission) needs no election, only copies.

A CCQ begins at the frontier of the initial result that its client gets with the answer.

Stages of a CCQ: unassigned (until a node has accepted it), unacknowledged (until enough nodes have
stored it), answered. The ids of unassigned and unacknowledged CCQs are reserved: no other election
for them begins on this node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from galileo.ccq.coordinator import Coordinator
from galileo.ccq.events import (
    AnswerBatch,
    BatchItem,
    BatchSubmitted,
    Effects,
    Outcome,
)
from galileo.ccq.model import Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.state import NodeState
from galileo.election.elections import CoordinatorElections, overloaded
from galileo.election.events import RefuseSubmit, Send
from galileo.election.machine import Election, ElectionOptions
from galileo.election.messages import (
    UNASKED,
    AssignMany,
    AssignmentsAnswered,
    ElectionEffect,
    ElectionEvent,
    ElectionTicked,
    Failed,
    OfferAccepted,
    OfferAssignment,
    OfferRefused,
    PollAnswer,
    PollAnswered,
    RecordAck,
    SendPoll,
    Started,
)
from galileo.election.state import ElectionEnded, record_pages
from galileo.errors import Failure

SUBMISSIONS_MAX = 64
"""Batch submissions that run at a time; further ones are refused."""
APPOINT_S_PER_CCQ = 0.005
"""Added to the time-out of an offer for each CCQ in it."""


@dataclass(slots=True)
class _Submission:
    """A submission of a client: one outcome for each item."""

    request: int
    outcomes: list[Outcome | None]


@dataclass(slots=True)
class _Batch:
    """CCQs with the same candidates.

    Attributes:
        places: the index of each id in the outcomes.
        copies: the nodes that have stored each unacknowledged CCQ.
        need_bytes: the expected cache size of all CCQs for which a coordinator is sought.
    """

    name: str
    submission: _Submission
    deadline: float
    election: Election
    places: dict[str, int] = field(default_factory=dict)
    unassigned: dict[str, Record] = field(default_factory=dict)
    unacknowledged: dict[str, Record] = field(default_factory=dict)
    copies: dict[str, set[str]] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    next_ack_request_at: float = 0.0
    begun_at: float = 0.0
    need_bytes: int = 0


class BatchSubmissions:
    """The batch submissions that one node carries out."""

    def __init__(
        self, state: NodeState, elections: CoordinatorElections[Record, Coordinator]
    ) -> None:
        self._state = state
        self._elections = elections
        self._running: dict[str, _Batch] = {}
        self._batch_by_ccq: dict[str, _Batch] = {}
        self._count = 0

    # --- start ---------------------------------------------------------------------------------

    def submit(
        self,
        event: BatchSubmitted,
        now: float,
        *,
        remote: dict[str, Record],
        failures: Mapping[str, Failure],
    ) -> Effects:
        """Start the elections of a batch.

        Args:
            event: the batch.
            now: the time.
            remote: records that only other nodes have.
            failures: of the look-ups of some of the CCQs, which are refused.
        """
        underway = {id(batch.submission) for batch in self._running.values()}
        if len(underway) >= SUBMISSIONS_MAX:
            return [RefuseSubmit(event.request, overloaded("groups of submissions at a time"))]
        submission = _Submission(event.request, [None] * len(event.items))
        places: dict[tuple[int, ...], list[int]] = {}
        table = self._state.record_table
        known = {i.ccq.id: table.get(i.ccq.id) or remote.get(i.ccq.id) for i in event.items}
        for place, item in enumerate(event.items):
            failure = failures.get(item.ccq.id) or self._refusal(item, known[item.ccq.id])
            if failure is not None:
                submission.outcomes[place] = Outcome(item.ccq.id, failure=failure)
                continue
            places.setdefault(self._candidate_groups(item.candidates), []).append(place)
            self._elections.reserved.add(item.ccq.id)
        effects: Effects = []
        for groups, together in places.items():
            count = self._shares(groups, len(together))
            for share in range(count):
                batch = self._add_batch(submission, now)
                for place in together[share::count]:
                    item = event.items[place]
                    record = known[item.ccq.id]
                    self._add_item(batch, item, place, known=record)
                    # It may be at other nodes only.
                    effects += self._state.apply_record(record, now) if record else []
                effects += self._start(batch, event.items[together[0]].candidates, now)
        return effects or self._conclude(submission)

    # --- progress --------------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        effects: Effects = []
        for batch in list(self._running.values()):
            if now >= batch.deadline:
                effects += self._fail(batch, [*batch.places], "none had accepted in time")
                continue
            effects += self._request_acks(batch, now)
            if batch.unassigned:
                effects += self._step(batch, ElectionTicked(), now)
        return effects

    def on_poll_answered(self, event: PollAnswered, now: float) -> Effects:
        """An answer serves all batches that wait for it."""
        polling = [batch for batch in self._running.values() if batch.unassigned]
        return [effect for batch in polling for effect in self._step(batch, event, now)]

    def on_assign(self, sender: str, message: AssignMany[Record], now: float) -> Effects:
        """Accept the CCQs that this node can run; save and answer them."""
        state = self._state
        accepted, refused, newer = [], [], []
        effects: Effects = []
        for record in message.records:
            ccq_id, mine = record.ccq.id, state.record_table.get(record.ccq.id)
            if mine is not None and (mine.ended is not None or mine.term > record.term):
                newer.append(mine)
            elif state.ending_of(record) is not None:
                effects += state.apply_record(record, now)
                newer += filter(None, [state.record_table.get(ccq_id)])
            elif (mine is None or mine.term < record.term) and state.accepts_assignments:
                effects += state.apply_record(record, now)
            coordinator = state.coordinated.get(ccq_id)
            if coordinator is not None and coordinator.term == record.term:
                accepted.append((ccq_id, record.term))
            elif ccq_id not in state.resuming:
                refused.append((ccq_id, record.term))
        effects += state.send_records(sender, newer)
        if accepted:
            effects.append(Send(sender, PollAnswer(UNASKED, state.usage)))
        return [*effects, Send(sender, AssignmentsAnswered(tuple(accepted), tuple(refused)))]

    def on_assigned(self, sender: str, message: AssignmentsAnswered, now: float) -> Effects:
        self._state.peer_usage.record_accepted(sender, len(message.accepted))
        effects: Effects = []
        answered: dict[str, _Batch] = {}
        for entries, is_accepted in ((message.accepted, True), (message.refused, False)):
            for ccq_id, term in entries:
                batch = self._batch_by_ccq.get(ccq_id)
                record = batch.unassigned.get(ccq_id) if batch else None
                if batch is None or record is None:
                    continue
                if (record.coordinator, record.term) != (sender, term):
                    continue  # Late: another node has the offer by now, in a higher term.
                answered[batch.name] = batch
                if is_accepted:
                    self._await_copies(batch, record, {self._state.me, sender}, now)
                else:
                    batch.declined.add(ccq_id)
        for batch in answered.values():
            effects += self._request_acks(batch, now)
            if batch.unassigned and batch.declined >= set(batch.unassigned):
                effects += self._step(batch, OfferRefused(sender), now)
        return effects

    def on_record_ack(self, sender: str, message: RecordAck, now: float) -> Effects:
        acknowledged: dict[str, _Batch] = {}
        for ccq_id, term in message.entries:
            batch = self._batch_by_ccq.get(ccq_id)
            record = batch.unacknowledged.get(ccq_id) if batch else None
            if batch is not None and record is not None and record.term == term:
                batch.copies[ccq_id].add(sender)
                acknowledged[batch.name] = batch
        batches = acknowledged.values()
        return [effect for batch in batches for effect in self._request_acks(batch, now)]

    def on_record(self, record: Record, now: float) -> Effects:
        """Go on with a CCQ that another node coordinates in a higher term, or that has ended."""
        ccq_id = record.ccq.id
        batch = self._batch_by_ccq.get(ccq_id)
        if batch is None:
            return []
        if record.ended is not None:
            return self._resolve(batch, Outcome(ccq_id, failure=self._state.end_reason(record)))
        mine = batch.unassigned.get(ccq_id) or batch.unacknowledged[ccq_id]
        if record.term <= mine.term:
            return []
        self._await_copies(batch, record, {self._state.me}, now)
        return self._request_acks(batch, now)

    def close_over(self) -> Effects:
        """Answer for the CCQs that are over."""
        effects: Effects = []
        for ccq_id, batch in list(self._batch_by_ccq.items()):
            record = batch.unassigned.get(ccq_id) or batch.unacknowledged[ccq_id]
            failure = self._state.over_failure(record)
            if failure is not None:
                effects += self._resolve(batch, Outcome(ccq_id, failure=failure))
        return effects

    def check(self) -> None:
        for batch in self._running.values():
            batch.election.check()
            assert not set(batch.unassigned) & set(batch.unacknowledged), "unassigned and assigned"
            assert set(batch.places) == set(batch.unassigned) | set(batch.unacknowledged)
            for ccq_id in batch.places:
                assert self._batch_by_ccq[ccq_id] is batch, f"{ccq_id} is in two batches"
                mine = self._state.record_table.get(ccq_id)
                assert mine is None or mine.ended is None, "a batch for an ended CCQ"
        assert len(self._batch_by_ccq) == sum(len(batch.places) for batch in self._running.values())
        assert set(self._batch_by_ccq) == self._elections.reserved, "reserved without a batch"

    # --- inside ----------------------------------------------------------------------------------

    def _refusal(self, item: BatchItem, known: Record | None) -> Failure | None:
        """Why a CCQ cannot be submitted now; None if it can."""
        ccq_id = item.ccq.id
        failure = self._state.refusal(item.record, known)
        if failure is not None:
            return failure
        if ccq_id in self._elections:
            advice = (("after_s", self._state.options.retry_s), ("ccq_id", ccq_id))
            reason = f"{ccq_id!r} is being submitted already; submit it again in a moment"
            return Failure("unavailable", reason, advice)
        return None

    def _candidate_groups(self, candidates: tuple[str, ...]) -> tuple[int, ...]:
        groups = self._state.options.groups
        return tuple(i for i, group in enumerate(groups) if set(group) & set(candidates))

    def _shares(self, groups: tuple[int, ...], count: int) -> int:
        """Into how many batches so many CCQs are divided whose candidates are in some groups."""
        options, dead = self._state.options, self._state.dead
        numbers = groups or range(len(options.groups))
        nodes = [node for number in numbers for node in options.groups[number] if node not in dead]
        return max(1, min(len(nodes), count // options.batch_share_min))

    def _add_batch(self, submission: _Submission, now: float) -> _Batch:
        self._count += 1
        self._state.counts.elections += 1
        options = self._state.options
        name = f"batch {self._count} of {self._state.me}"
        deadline = now + options.submit_timeout_s
        batch = _Batch(name, submission, deadline, Election(options=options.election), begun_at=now)
        self._running[name] = batch
        return batch

    def _add_item(
        self, batch: _Batch, item: BatchItem, place: int, *, known: Record | None
    ) -> None:
        ccq_id = item.ccq.id
        if known is None:
            batch.unassigned[ccq_id] = item.record
            batch.need_bytes += item.need_bytes
        else:
            self._await_copies(batch, known, {self._state.me}, batch.begun_at)
        batch.places[ccq_id] = place
        self._batch_by_ccq[ccq_id] = batch

    def _start(self, batch: _Batch, candidates: tuple[str, ...], now: float) -> Effects:
        effects = self._request_acks(batch, now)
        if not batch.unassigned:
            return effects
        options = self._state.options
        batch.election = self._elections.election(
            _batch_election_options(options, len(batch.unassigned))
        )
        rounds = self._elections.rounds(
            candidates,
            key=batch.name,
            polled_first=options.batch_polled_first,
            is_excluding_self=self._state.is_draining,
        )
        return [*effects, *self._step(batch, Started(batch.need_bytes, rounds), now)]

    def _step(self, batch: _Batch, event: ElectionEvent, now: float) -> Effects:
        effects: Effects = []
        for effect in batch.election.step(event, now):
            effects += self._execute(batch, effect, now)
        return effects

    def _execute(self, batch: _Batch, effect: ElectionEffect, now: float) -> Effects:
        if isinstance(effect, SendPoll):
            return self._elections.poll(
                effect.to, batch.name, lambda event: self._step(batch, event, now), now
            )
        if isinstance(effect, OfferAssignment):
            return self._offer(batch, effect.node, now)
        if isinstance(effect, Failed):
            return self._fail(batch, [*batch.unassigned], effect.reason)
        return []

    def _offer(self, batch: _Batch, node: str, now: float) -> Effects:
        """Offer all CCQs that no node has accepted yet."""
        state, me = self._state, self._state.me
        batch.declined.clear()
        former = next(iter(batch.unassigned.values())).coordinator
        state.count_offer(node, former=former, count=len(batch.unassigned))
        batch.unassigned = {
            i: state.with_next_term(record, node) for i, record in batch.unassigned.items()
        }
        records = list(batch.unassigned.values())
        effects = [effect for record in records for effect in state.apply_record(record, now)]
        if node != me:
            return [*effects, *(Send(node, AssignMany(page)) for page in record_pages(records))]
        for record in records:
            self._await_copies(batch, record, {me}, now)
        return [
            *effects,
            *self._step(batch, OfferAccepted(node), now),
            *self._request_acks(batch, now),
        ]

    def _await_copies(self, batch: _Batch, record: Record, copies: set[str], now: float) -> None:
        """Have a CCQ that is coordinated stored by further nodes, from now on."""
        batch.unassigned.pop(record.ccq.id, None)
        batch.unacknowledged[record.ccq.id] = record
        batch.copies[record.ccq.id] = copies
        batch.next_ack_request_at = now

    def _request_acks(self, batch: _Batch, now: float) -> Effects:
        """Answer for the CCQs that have enough copies, and send the others for more."""
        effects: Effects = []
        left: list[tuple[Record, list[str]]] = []
        for ccq_id, record in list(batch.unacknowledged.items()):
            nodes = self._elections.left_to_copy(record, batch.copies[ccq_id])
            if nodes:
                left.append((record, nodes))
            else:
                effects += self._succeed(batch, record)
        if not left or now < batch.next_ack_request_at:
            return effects
        batch.next_ack_request_at = now + self._state.options.retry_s
        return [*effects, *self._state.distribute(left, note=True)]

    def _succeed(self, batch: _Batch, record: Record) -> Effects:
        return self._resolve(batch, Outcome(record.ccq.id, record.coordinator, record.term))

    def _fail(self, batch: _Batch, ccq_ids: Sequence[str], reason: str) -> Effects:
        """Refuse the given CCQs. An offer may still be accepted: it is not withdrawn.

        A failed election does not concern CCQs that a node runs already and that await
        copies.
        """
        self._state.counts.elections_failed += 1
        effects: Effects = []
        for ccq_id in ccq_ids:
            failure = self._elections.no_taker(ccq_id, reason)
            effects += self._resolve(batch, Outcome(ccq_id, failure=failure))
        return effects

    def _resolve(self, batch: _Batch, outcome: Outcome) -> Effects:
        ccq_id = outcome.ccq_id
        batch.submission.outcomes[batch.places.pop(ccq_id)] = outcome
        batch.unassigned.pop(ccq_id, None)
        batch.unacknowledged.pop(ccq_id, None)
        batch.copies.pop(ccq_id, None)
        del self._batch_by_ccq[ccq_id]
        self._elections.reserved.discard(ccq_id)
        if batch.places:
            return []
        del self._running[batch.name]
        failure = outcome.failure.kind if outcome.failure else ""
        ended = ElectionEnded(batch.name, batch.begun_at, batch.submission.request, failure)
        self._state.counts.ended.append(ended)
        return self._conclude(batch.submission)

    def _conclude(self, submission: _Submission) -> Effects:
        outcomes = tuple(outcome for outcome in submission.outcomes if outcome is not None)
        is_over = len(outcomes) == len(submission.outcomes)
        return [AnswerBatch(submission.request, outcomes)] if is_over else []


def _batch_election_options(options: ContinuousOptions, count: int) -> ElectionOptions:
    election = options.election
    return replace(
        election, appoint_timeout_s=election.appoint_timeout_s + count * APPOINT_S_PER_CCQ
    )
