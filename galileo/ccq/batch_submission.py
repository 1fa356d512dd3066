"""Submissions of many CCQs at once: one election for all that have the same candidates.

Theory of operation. A batch does for many CCQs what a campaign
(`galileo.ccq.coordinator_elections`) does for one, by the same rules: each offer is a record in a
term of its own, on disk before the offer is sent; a CCQ counts as submitted when two nodes (of
those alive) have it on disk; repeating a submission under the same ids is safe. What is shared is
the work. The CCQs of a submission whose candidates are in the same groups make one batch, one
election finds the node to which all of them are offered, and records travel and are written many at
a time.

CCQs of a batch go their own ways only where they must. What the node does not take of an offer
goes to the next one; one of which a higher term or an end becomes known is answered with that. One
that is known already (the submission was repeated) needs no election, only a second copy.

A CCQ begins at the origin: nothing is evaluated at submission, and the first cycle finds what is
stored. So there is nothing that a crash in between could lose or repeat.

Stages of a CCQ: placing (until a node has accepted it), noting (until a second node has noted it),
answered. Ids that are placed or noted are reserved: no other election for them begins here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from galileo.ccq.coordinator_elections import CoordinatorElections, overloaded, taken, too_many
from galileo.ccq.events import AnswerBatch, BatchItem, BatchSubmitted, Outcome, RefuseSubmit, Send
from galileo.ccq.messages import AssignMany, AssignmentsAnswered, RecordAck, RecordUpdate
from galileo.ccq.model import Failure, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.state import Effects, NodeState, dropped_failure, end_reason, record_pages
from galileo.ccq.stats import ElectionEnded
from galileo.election.machine import Election, ElectionOptions
from galileo.election.messages import (
    ElectionEffect,
    ElectionEvent,
    ElectionTicked,
    Failed,
    OfferAccepted,
    OfferAssignment,
    OfferRefused,
    Poll,
    PollAnswer,
    PollAnswered,
    SendPoll,
    Started,
)

SUBMISSIONS_MAX = 64
"""Submissions of many CCQs that are under way at a time; over it they are refused."""
APPOINT_S_PER_CCQ = 0.005
"""A node has so much longer to accept an offer for each CCQ in it."""


@dataclass(slots=True)
class _Submission:
    """What a client waits for: an outcome for each place."""

    request: int
    outcomes: list[Outcome | None]


@dataclass(slots=True)
class _Batch:
    """CCQs with the same candidates; `places` are those in the submission's outcomes."""

    name: str
    submission: _Submission
    deadline: float
    election: Election
    places: dict[str, int] = field(default_factory=dict)
    placing: dict[str, Record] = field(default_factory=dict)
    noting: dict[str, Record] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    noting_at: float = 0.0
    begun_at: float = 0.0


class BatchSubmissions:
    """The submissions of many that one node carries out."""

    def __init__(self, state: NodeState, elections: CoordinatorElections) -> None:
        self._state = state
        self._elections = elections
        self._running: dict[str, _Batch] = {}
        self._of: dict[str, _Batch] = {}
        self._count = 0

    # --- what begins a batch ---------------------------------------------------------------------

    def submit(self, event: BatchSubmitted, now: float) -> Effects:
        underway = {id(batch.submission) for batch in self._running.values()}
        if len(underway) >= SUBMISSIONS_MAX:
            return [RefuseSubmit(event.request, overloaded("submissions of many at a time"))]
        submission = _Submission(event.request, [None] * len(event.items))
        batches: dict[tuple[int, ...], _Batch] = {}
        candidates: dict[tuple[int, ...], tuple[str, ...]] = {}
        room = self._free_capacity(event)
        for place, item in enumerate(event.items):
            failure = self._refusal(item)
            if failure is None and self._state.record_table.get(item.ccq.id) is None:
                room -= 1
                failure = too_many(event.owned_max or 0) if room < 0 else None
            if failure is not None:
                submission.outcomes[place] = Outcome(item.ccq.id, failure=failure)
                continue
            key = self._groups_of(item.candidates)
            batch = batches.get(key)
            if batch is None:
                batch = batches[key] = self._new(submission, now)
                candidates[key] = item.candidates
            self._take(batch, item, place)
        effects: Effects = []
        for key, batch in batches.items():
            effects += self._start(batch, candidates[key], now)
        return effects or self._conclude(submission)

    # --- what moves it on ------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        effects: Effects = []
        for batch in list(self._running.values()):
            if now >= batch.deadline:
                effects += self._fail(batch, [*batch.places], "none had accepted in time")
                continue
            effects += self._ask_to_note(batch, now)
            if batch.placing:
                effects += self._step(batch, ElectionTicked(), now)
        return effects

    def on_poll_answer(self, sender: str, message: PollAnswer, now: float) -> Effects:
        batch = self._running.get(message.election)
        return self._step(batch, PollAnswered(sender, message.usage), now) if batch else []

    def on_assign(self, sender: str, message: AssignMany, now: float) -> Effects:
        """Accepts what this node can run; what it then knows is saved, announced, answered."""
        state = self._state
        accepted, refused, news, newer = [], [], [], []
        effects: Effects = []
        for record in message.records:
            ccq_id, mine = record.ccq.id, state.record_table.get(record.ccq.id)
            if mine is not None and (mine.ended is not None or mine.term > record.term):
                newer.append(mine)
            elif state.is_dropped(record.ccq.dataset):
                effects += state.learn(record, now)
                newer += filter(None, [state.record_table.get(ccq_id)])
            elif (mine is None or mine.term < record.term) and state.takes_more:
                effects += state.learn(record, now)
                news.append(record)
            led = state.coordinated.get(ccq_id)
            if led is not None and led.term == record.term:
                accepted.append((ccq_id, record.term))
            elif ccq_id not in state.resuming:
                refused.append((ccq_id, record.term))
        others = tuple(peer for peer in state.peers if peer != sender)
        effects += state.announce_to(others, news)
        effects += state.announce_to((sender,), newer)
        return [*effects, Send(sender, AssignmentsAnswered(tuple(accepted), tuple(refused)))]

    def on_assigned(self, sender: str, message: AssignmentsAnswered, now: float) -> Effects:
        effects: Effects = []
        answered: dict[str, _Batch] = {}
        for entries, is_accepted in ((message.accepted, True), (message.refused, False)):
            for ccq_id, term in entries:
                batch = self._of.get(ccq_id)
                record = batch.placing.get(ccq_id) if batch else None
                if batch is None or record is None:
                    continue
                if (record.coordinator, record.term) != (sender, term):
                    continue  # Too late: it was offered to another node since, in a higher term.
                answered[batch.name] = batch
                if is_accepted:
                    effects += self._succeed(batch, record)
                else:
                    batch.declined.add(ccq_id)
        for batch in answered.values():
            if batch.placing and batch.declined >= set(batch.placing):
                effects += self._step(batch, OfferRefused(sender), now)
        return effects

    def on_record_ack(self, message: RecordAck) -> Effects:
        effects: Effects = []
        for ccq_id, term in message.entries:
            batch = self._of.get(ccq_id)
            record = batch.noting.get(ccq_id) if batch else None
            if batch is not None and record is not None and record.term == term:
                effects += self._succeed(batch, record)
        return effects

    def on_record(self, record: Record) -> Effects:
        """Answers for a CCQ that another node has taken over, or that has ended."""
        ccq_id = record.ccq.id
        batch = self._of.get(ccq_id)
        if batch is None:
            return []
        if record.ended is not None:
            return self._resolve(batch, Outcome(ccq_id, failure=end_reason(record)))
        mine = batch.placing.get(ccq_id) or batch.noting[ccq_id]
        return self._succeed(batch, record) if record.term > mine.term else []

    def on_dropped(self) -> Effects:
        """Answers for CCQs of datasets that are dropped."""
        effects: Effects = []
        for ccq_id, batch in list(self._of.items()):
            record = batch.placing.get(ccq_id) or batch.noting[ccq_id]
            if self._state.is_dropped(record.ccq.dataset):
                effects += self._resolve(
                    batch, Outcome(ccq_id, failure=dropped_failure(record.ccq))
                )
        return effects

    def check(self) -> None:
        for batch in self._running.values():
            batch.election.check()
            assert not set(batch.placing) & set(batch.noting), "placed and noted"
            assert set(batch.places) == set(batch.placing) | set(batch.noting)
            for ccq_id in batch.places:
                assert self._of[ccq_id] is batch, f"{ccq_id} is in two batches"
                mine = self._state.record_table.get(ccq_id)
                assert mine is None or mine.ended is None, "a batch for an ended CCQ"
        assert len(self._of) == sum(len(batch.places) for batch in self._running.values())
        assert set(self._of) == set(self._elections.reserved), "reserved without a submission"

    # --- inside ----------------------------------------------------------------------------------

    def _free_capacity(self, event: BatchSubmitted) -> float:
        """How many of its CCQs may be new."""
        if event.owned_max is None or not event.items:
            return inf
        return self._elections.free_capacity(event.items[0].ccq.owner, event.owned_max)

    def _refusal(self, item: BatchItem) -> Failure | None:
        """Why a CCQ cannot be submitted now."""
        ccq_id, tracker = item.ccq.id, self._state.record_table
        known = tracker.get(ccq_id)
        if known is not None and known.ended is not None:
            return end_reason(known)
        if known is not None and not known.ccq.asks_the_same(item.ccq):
            return taken(ccq_id)
        if self._state.is_dropped(item.ccq.dataset):
            return dropped_failure(item.ccq)
        if ccq_id in self._elections:
            advice = (("after_s", self._state.options.retry_s), ("ccq_id", ccq_id))
            reason = f"{ccq_id!r} is being submitted already; submit it again in a moment"
            return Failure("unavailable", reason, advice)
        count = len(tracker.records) + sum(len(batch.placing) for batch in self._running.values())
        if known is None and count >= self._state.options.records_max:
            return overloaded("continuous queries of the cluster")
        return None

    def _groups_of(self, candidates: tuple[str, ...]) -> tuple[int, ...]:
        groups = self._state.options.groups
        return tuple(i for i, group in enumerate(groups) if set(group) & set(candidates))

    def _new(self, submission: _Submission, now: float) -> _Batch:
        self._count += 1
        self._state.counts.elections += 1
        options = self._state.options
        name = f"batch {self._count} of {self._state.me}"
        deadline = now + options.submit_timeout_s
        batch = _Batch(name, submission, deadline, Election(options=options.election), begun_at=now)
        self._running[name] = batch
        return batch

    def _take(self, batch: _Batch, item: BatchItem, place: int) -> None:
        ccq_id = item.ccq.id
        known = self._state.record_table.get(ccq_id)
        if known is None:
            batch.placing[ccq_id] = Record(item.ccq, term=0, coordinator="")
        else:
            batch.noting[ccq_id] = known
        batch.places[ccq_id] = place
        self._of[ccq_id] = batch
        self._elections.reserved[ccq_id] = item.ccq.owner

    def _start(self, batch: _Batch, candidates: tuple[str, ...], now: float) -> Effects:
        effects = self._ask_to_note(batch, now)
        if not batch.placing:
            return effects
        batch.election = Election(options=_patient(self._state.options, len(batch.placing)))
        first = candidates or (self._state.me,)
        groups = self._elections.groups(first, is_given=self._state.is_draining)
        return [*effects, *self._step(batch, Started(0, groups), now)]

    def _step(self, batch: _Batch, event: ElectionEvent, now: float) -> Effects:
        effects: Effects = []
        for effect in batch.election.step(event, now):
            effects += self._carry_out(batch, effect, now)
        return effects

    def _carry_out(self, batch: _Batch, effect: ElectionEffect, now: float) -> Effects:
        me = self._state.me
        if isinstance(effect, SendPoll) and effect.to == me:
            return self._step(batch, PollAnswered(me, self._state.usage), now)
        if isinstance(effect, SendPoll):
            return [Send(effect.to, Poll(batch.name))]
        if isinstance(effect, OfferAssignment):
            return self._offer(batch, effect.node, now)
        if isinstance(effect, Failed):
            return self._fail(batch, [*batch.placing], effect.reason)
        return []

    def _offer(self, batch: _Batch, node: str, now: float) -> Effects:
        """Offers every submission that no node has accepted yet."""
        state, me = self._state, self._state.me
        batch.declined.clear()
        batch.placing = {
            i: state.with_next_term(record, node) for i, record in batch.placing.items()
        }
        records = list(batch.placing.values())
        effects = [effect for record in records for effect in state.learn(record, now)]
        if node != me:
            return [*effects, *(Send(node, AssignMany(page)) for page in record_pages(records))]
        batch.noting |= batch.placing
        batch.placing, batch.noting_at = {}, now
        return [
            *effects,
            *self._step(batch, OfferAccepted(node), now),
            *self._ask_to_note(batch, now),
        ]

    def _ask_to_note(self, batch: _Batch, now: float) -> Effects:
        records = list(batch.noting.values())
        if all(peer in self._state.dead for peer in self._state.peers):
            return [effect for record in records for effect in self._succeed(batch, record)]
        if not records or now < batch.noting_at:
            return []
        batch.noting_at = now + self._state.options.retry_s
        pages = [RecordUpdate(page, note=True) for page in record_pages(records)]
        return [effect for page in pages for effect in self._state.tell(page)]

    def _succeed(self, batch: _Batch, record: Record) -> Effects:
        return self._resolve(batch, Outcome(record.ccq.id, record.coordinator, record.term))

    def _fail(self, batch: _Batch, ccq_ids: Sequence[str], reason: str) -> Effects:
        """Refuses what is left. What was offered may yet be accepted: it is not taken back.

        A failed election says nothing of those that some node runs already, and that are noted.
        """
        self._state.counts.elections_failed += 1
        effects: Effects = []
        after_s = self._state.options.retry_s
        for ccq_id in ccq_ids:
            details = (("after_s", after_s), ("ccq_id", ccq_id))
            message = f"no node took the continuous query: {reason}; submit it again with this id"
            failure = Failure("unavailable", message, details)
            effects += self._resolve(batch, Outcome(ccq_id, failure=failure))
        return effects

    def _resolve(self, batch: _Batch, outcome: Outcome) -> Effects:
        ccq_id = outcome.ccq_id
        batch.submission.outcomes[batch.places.pop(ccq_id)] = outcome
        batch.placing.pop(ccq_id, None)
        batch.noting.pop(ccq_id, None)
        del self._of[ccq_id]
        self._elections.reserved.pop(ccq_id, None)
        if batch.places:
            return []
        del self._running[batch.name]
        failure = outcome.failure.kind if outcome.failure else ""
        ended = ElectionEnded(batch.name, batch.begun_at, batch.submission.request, failure)
        self._state.counts.ended.append(ended)
        return self._conclude(batch.submission)

    def _conclude(self, submission: _Submission) -> Effects:
        outcomes = tuple(one for one in submission.outcomes if one is not None)
        is_over = len(outcomes) == len(submission.outcomes)
        return [AnswerBatch(submission.request, outcomes)] if is_over else []


def _patient(options: ContinuousOptions, count: int) -> ElectionOptions:
    election = options.election
    return replace(
        election, appoint_timeout_s=election.appoint_timeout_s + count * APPOINT_S_PER_CCQ
    )
