"""Elections of coordinators: for CCQs that are submitted, for those whose coordinator died, and for
those that a node gives away, before it is stopped or because its caches are too full.

Theory of operation. An election (`galileo.election.machine`) says to whom to offer the CCQ. Each
offer is a record with that node as coordinator, in a term of its own that is made of a round
higher than any heard of and this node's ordinal, and is on disk before the offer leaves. So two
nodes can never hold the same term, whatever is lost, repeated or late: an offer accepted too late
is deposed by the next one's higher term. A campaign ends when its node has accepted, when no node
does, or when a higher term from elsewhere makes it moot.

A submission is answered when two nodes (of those alive) have the CCQ on disk: the crash of one
then loses nothing. One that was refused or never answered may be repeated at any node; the id of
the CCQ makes it one.

Who starts the election for an orphan is agreed without a message: the live nodes take their turns
in rendezvous order, each waiting `takeover_stagger_s` longer than the one before. Two that start
all the same merely waste work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from galileo.ccq.events import AnswerSubmit, RefuseSubmit, Send, SubmitRequested
from galileo.ccq.messages import (
    AssignCoordinator,
    AssignmentAccepted,
    AssignmentRefused,
    RecordAck,
    RecordUpdate,
)
from galileo.ccq.model import Failure, Record
from galileo.ccq.state import Effects, NodeState, dropped_failure, end_reason
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
    PollAnswer,
    PollAnswered,
    SendPoll,
    Started,
)
from galileo.election.ranking import Candidate, score

SUBMISSIONS_PER_CCQ_MAX = 16
CPU_SLACK = 0.05
"""Nodes of one host measure its processors at different moments."""
ELECTIONS_MAX = 256
"""Over it, take-overs wait for their turn and submissions are refused."""


@dataclass(slots=True)
class _RunningElection:
    """An election under way; `requests` are the submissions that wait for it.

    `is_overflow`: this node stays the holder of what it has cached.
    """

    name: str
    record: Record
    need_bytes: int
    election: Election
    deadline: float
    requests: list[int] = field(default_factory=list)
    noting_at: float | None = None
    is_overflow: bool = False
    begun_at: float = 0.0

    def ended(self, failure: str = "") -> ElectionEnded:
        request = self.requests[0] if self.requests else None
        return ElectionEnded(self.record.ccq.id, self.begun_at, request, failure)


class CoordinatorElections:
    """The running campaigns of one node, at most one for each CCQ.

    Attributes:
        reserved: CCQs that others here see to (`galileo.ccq.batch_submission`), with their owners.
    """

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[str, _RunningElection] = {}
        self._count = 0
        self._seen: dict[str, Candidate] = {}
        self._orphans: dict[str, tuple[int, float]] = {}
        self._given: dict[str, float] = {}
        self._passed_on: dict[str, float] = {}
        self.reserved: dict[str, str] = {}

    def __contains__(self, ccq_id: str) -> bool:
        return ccq_id in self._running or ccq_id in self.reserved

    # --- what begins a campaign ----------------------------------------------------------------

    def submit(self, event: SubmitRequested, now: float) -> Effects:
        ccq_id = event.ccq.id
        known = self._state.record_table.get(ccq_id)
        if known is not None and known.ended is not None:
            return [RefuseSubmit(event.request, end_reason(known))]
        running = self._running.get(ccq_id)
        holder = known or (running.record if running else None)
        if holder is not None and not holder.ccq.asks_the_same(event.ccq):
            return [RefuseSubmit(event.request, taken(ccq_id))]
        if self._state.is_dropped(event.ccq.dataset):
            return [RefuseSubmit(event.request, dropped_failure(event.ccq))]
        if ccq_id in self.reserved:
            return [RefuseSubmit(event.request, overloaded("submissions of this query"))]
        if running is not None:
            return self._join(running, event.request)
        if known is not None:
            return self._submit_again(known, event.request, now)
        if len(self._state.record_table.records) >= self._state.options.records_max:
            return [RefuseSubmit(event.request, overloaded("continuous queries of the cluster"))]
        if event.owned_max is not None and self.free_capacity(event.ccq.owner, event.owned_max) < 1:
            return [RefuseSubmit(event.request, too_many(event.owned_max))]
        if len(self._running) >= ELECTIONS_MAX:
            return [RefuseSubmit(event.request, overloaded("elections at a time"))]
        record = Record(event.ccq, term=0, coordinator="", retrieved=event.reached)
        campaign = self._new(record, need_bytes=event.need_bytes, now=now)
        campaign.requests.append(event.request)
        return self._start(campaign, event.candidates, now)

    def free_capacity(self, owner: str, owned_max: int) -> int:
        """How many more CCQs an owner may submit; those being submitted here count.

        What is submitted to other nodes at the same moment is not known yet.
        """
        tracker = self._state.record_table
        room = owned_max - tracker.owned_by(owner)
        if room <= 0 or room > len(self._running) + len(self.reserved):
            return room
        begun = {**self.reserved, **{i: one.record.ccq.owner for i, one in self._running.items()}}
        return room - sum(o == owner and tracker.get(i) is None for i, o in begun.items())

    def start_failover(self, now: float) -> Effects:
        """Starts elections for the orphans whose turn it is here; some at a time."""
        effects: Effects = []
        for node in sorted(self._state.dead):
            for ccq_id in self._state.record_table.coordinated_by(node):
                if len(self._running) >= ELECTIONS_MAX:
                    return effects
                effects += self._consider(ccq_id, now)
        return effects

    def drain(self, now: float) -> Effects:
        """Starts elections for what a draining node coordinates, and again where one failed.

        The successor begins at what clients have acknowledged to this node by now.
        """
        if not self._state.is_draining:
            self._given.clear()
            return []
        effects: Effects = []
        for ccq_id, led in list(self._state.coordinated.items()):
            if len(self._running) >= ELECTIONS_MAX:
                break
            if ccq_id in self or now < self._given.get(ccq_id, now):
                continue
            self._given[ccq_id] = now + self._state.options.submit_timeout_s
            self._state.record_table.acknowledge(ccq_id, led.retrieved)
            record = self._state.record_table.records[ccq_id]
            campaign = self._new(record, need_bytes=led.cache.bytes, now=now)
            effects += self._start(campaign, (), now)
        return effects

    def transfer_coordinator(self, ccq_id: str, now: float) -> Effects:
        """Starts the election of a successor for a CCQ whose cache has overflowed here.

        Only a node with room for as much again is taken. It begins where the cache ends, which
        stays here (`galileo.ccq.handed_off_cache`). Nothing happens where that was tried a moment
        ago, where enough nodes hold stretches already, or where no node could take it.
        """
        state, options = self._state, self._state.options
        led, overflows = (
            state.coordinated[ccq_id],
            [c for c in self._running.values() if c.is_overflow],
        )
        is_late = now >= self._passed_on.get(ccq_id, now)
        is_alone = all(peer in state.dead for peer in state.peers)
        is_full = len(led.fetches.holders) >= options.holders_max
        is_busy = len(overflows) >= options.successions_max or len(self._running) >= ELECTIONS_MAX
        if ccq_id in self or not is_late or is_alone or is_full or is_busy:
            return []
        self._passed_on = {one: at for one, at in self._passed_on.items() if at > now}
        self._passed_on[ccq_id] = now + options.succession_pause_s
        state.record_table.acknowledge(ccq_id, led.retrieved)
        state.record_table.keep_holders(ccq_id, led.fetches.holders)
        record = state.record_table.records[ccq_id]
        campaign = self._new(record, need_bytes=led.cache.bytes, now=now)
        campaign.is_overflow = True
        campaign.election = Election(options=self._overflow_options())
        return self._start(campaign, (), now)

    # --- what moves it on ------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        effects: Effects = []
        for campaign in list(self._running.values()):
            if now >= campaign.deadline:
                effects += self._fail(campaign, "none had accepted in time")
            elif campaign.noting_at is not None:
                effects += self._ask_to_note(campaign, now)
            else:
                effects += self._step(campaign, ElectionTicked(), now)
        return effects

    def on_poll_answer(self, sender: str, message: PollAnswer, now: float) -> Effects:
        campaign = next((c for c in self._running.values() if c.name == message.election), None)
        if campaign is None:
            return []
        return self._step(campaign, PollAnswered(sender, message.usage), now)

    def on_assigned(self, sender: str, message: AssignmentAccepted, now: float) -> Effects:
        campaign = self._running.get(message.ccq_id)
        if campaign is None or campaign.record.term != message.term:
            return []
        return self._step(campaign, OfferAccepted(sender), now)

    def on_refused(self, sender: str, message: AssignmentRefused, now: float) -> Effects:
        effects = self._state.learn(message.record, now) if message.record else []
        campaign = self._running.get(message.ccq_id)
        if campaign is None or campaign.record.term != message.term:
            return effects
        return [*effects, *self._step(campaign, OfferRefused(sender), now)]

    def on_record_ack(self, message: RecordAck) -> Effects:
        effects: Effects = []
        for ccq_id, term in message.entries:
            campaign = self._running.get(ccq_id)
            if campaign and campaign.noting_at is not None and campaign.record.term == term:
                effects += self._succeed(campaign)
        return effects

    def on_record(self, record: Record) -> Effects:
        """Ends a campaign that another node has overtaken."""
        self._orphans.pop(record.ccq.id, None)
        campaign = self._running.get(record.ccq.id)
        if campaign is None:
            return []
        if record.ended is not None:
            return self._close(campaign, end_reason(record))
        if record.term <= campaign.record.term:
            return []
        campaign.record = record
        return self._succeed(campaign)

    def on_dropped(self) -> Effects:
        """Ends the campaigns for CCQs of datasets that are dropped."""
        over = [c for c in self._running.values() if self._state.is_dropped(c.record.ccq.dataset)]
        return [
            effect for one in over for effect in self._close(one, dropped_failure(one.record.ccq))
        ]

    def check(self) -> None:
        for ccq_id, campaign in self._running.items():
            assert campaign.record.ccq.id == ccq_id
            campaign.election.check()
            assert not self._state.is_dropped(campaign.record.ccq.dataset), "a campaign for nothing"
            mine = self._state.record_table.get(ccq_id)
            assert mine is None or mine.ended is None, "a campaign for an ended CCQ"
            assert mine is None or mine.term <= campaign.record.term, "an overtaken campaign"

    # --- taking over ---------------------------------------------------------------------------

    def _consider(self, ccq_id: str, now: float) -> Effects:
        record = self._state.record_table.records[ccq_id]
        term, at = self._orphans.get(ccq_id, (-1, 0.0))
        if term != record.term:
            turn = self._turn(record)
            at = now + turn * self._state.options.takeover_stagger_s
            self._orphans[ccq_id] = (record.term, at)
        if now < at or ccq_id in self:
            return []
        self._orphans[ccq_id] = (record.term, now + self._state.options.submit_timeout_s)
        return self._start(self._new(record, need_bytes=0, now=now), (), now)

    def _turn(self, record: Record) -> int:
        """This node's place among the live ones, in an order drawn afresh for each term."""

        def draw(node: str) -> bytes:
            text = f"{record.ccq.id}\0{node}\0{record.term}"
            return blake2b(text.encode(), digest_size=8).digest()

        live = [n for n in (self._state.me, *self._state.peers) if n not in self._state.dead]
        return sorted(live, key=draw).index(self._state.me)

    def _overflow_options(self) -> ElectionOptions:
        """A successor may be as busy as this node is, if only it has memory."""
        options = self._state.options.election
        busy = min(1.0, self._state.measured.cpu_share + CPU_SLACK)
        limits = options.limits
        limits = replace(limits, cpu_share_max=max(limits.cpu_share_max, busy))
        return replace(options, limits=limits)

    # --- inside a campaign -----------------------------------------------------------------------

    def _new(self, record: Record, *, need_bytes: int, now: float) -> _RunningElection:
        self._count += 1
        self._state.counts.elections += 1
        options = self._state.options
        campaign = _RunningElection(
            name=f"{record.ccq.id}/{self._count}",
            record=record,
            need_bytes=need_bytes,
            election=Election(options=options.election),
            deadline=now + options.submit_timeout_s,
            begun_at=now,
        )
        self._running[record.ccq.id] = campaign
        return campaign

    def _join(self, campaign: _RunningElection, request: int) -> Effects:
        if len(campaign.requests) >= SUBMISSIONS_PER_CCQ_MAX:
            return [RefuseSubmit(request, overloaded("submissions of one continuous query"))]
        campaign.requests.append(request)
        return []

    def _submit_again(self, record: Record, request: int, now: float) -> Effects:
        """A submission that came before: all that may be lacking is a second copy."""
        campaign = self._new(record, need_bytes=0, now=now)
        campaign.requests.append(request)
        campaign.noting_at = now
        return self._ask_to_note(campaign, now)

    def _start(self, campaign: _RunningElection, candidates: Sequence[str], now: float) -> Effects:
        is_given = campaign.is_overflow or self._state.is_draining
        groups = self.groups(candidates or (self._state.me,), is_given=is_given)
        started = Started(campaign.need_bytes, groups, only_suitable=campaign.is_overflow)
        return self._step(campaign, started, now)

    def groups(self, first: Sequence[str], *, is_given: bool) -> tuple[tuple[str, ...], ...]:
        """Live nodes by group: those of `first`, then the others by workload and latency.

        A node that gives the CCQ away leaves itself out.
        """
        out = self._state.dead | ({self._state.me} if is_given else set())
        groups = sorted(self._state.options.groups, key=lambda group: not set(group) & set(first))
        count = sum(bool(set(group) & set(first)) for group in groups)
        alive = [tuple(node for node in group if node not in out) for group in groups]
        named, others = alive[:count], [group for group in alive[count:] if group]
        return (*named, *sorted(others, key=self._burden))

    def _burden(self, group: tuple[str, ...]) -> float:
        weights = self._state.options.election.weights
        seen = [self._seen[node] for node in group if node in self._seen]
        scores = [score(candidate, need_bytes=0, weights=weights) for candidate in seen]
        return sum(scores) / len(scores) if scores else 0.0

    def _step(self, campaign: _RunningElection, event: ElectionEvent, now: float) -> Effects:
        effects: Effects = []
        for effect in campaign.election.step(event, now):
            effects += self._carry_out(campaign, effect, now)
        self._seen.update(campaign.election.candidates)
        return effects

    def _carry_out(self, campaign: _RunningElection, effect: ElectionEffect, now: float) -> Effects:
        me = self._state.me
        if isinstance(effect, SendPoll) and effect.to == me:
            return self._step(campaign, PollAnswered(me, self._state.usage), now)
        if isinstance(effect, SendPoll):
            return [Send(effect.to, Poll(campaign.name))]
        if isinstance(effect, OfferAssignment):
            return self._offer(campaign, effect.node, now)
        if isinstance(effect, Decided):
            return self._decide(campaign, effect.node, now)
        assert isinstance(effect, Failed)
        return self._fail(campaign, effect.reason)

    def _offer(self, campaign: _RunningElection, node: str, now: float) -> Effects:
        led = self._state.coordinated.get(campaign.record.ccq.id)
        # By the first offer the cache is put away; later ones find the holder in the record.
        holders = (self._state.holder_of(led),) if led and campaign.is_overflow else ()
        minted = self._state.with_next_term(campaign.record, node)
        campaign.record = replace(minted, holders=(*minted.holders, *holders))
        effects = self._state.learn(campaign.record, now)
        if node != self._state.me:
            return [*effects, Send(node, AssignCoordinator(campaign.record, campaign.need_bytes))]
        if not campaign.requests:  # A submission is announced, and more, by `_ask_to_note`.
            effects += self._state.announce([campaign.record])
        return [*effects, *self._step(campaign, OfferAccepted(node), now)]

    def _decide(self, campaign: _RunningElection, node: str, now: float) -> Effects:
        if node == self._state.me and campaign.requests:
            campaign.noting_at = now
            return self._ask_to_note(campaign, now)
        return self._succeed(campaign)

    def _ask_to_note(self, campaign: _RunningElection, now: float) -> Effects:
        if all(peer in self._state.dead for peer in self._state.peers):
            return self._succeed(campaign)  # There is no second node to be had.
        if campaign.noting_at is None or now < campaign.noting_at:
            return []
        campaign.noting_at = now + self._state.options.retry_s
        return self._state.tell(RecordUpdate((campaign.record,), note=True))

    def _succeed(self, campaign: _RunningElection) -> Effects:
        record = campaign.record
        del self._running[record.ccq.id]
        self._state.counts.ended.append(campaign.ended())
        return [
            AnswerSubmit(request, record.ccq.id, record.coordinator, record.term)
            for request in campaign.requests
        ]

    def _fail(self, campaign: _RunningElection, reason: str) -> Effects:
        """Refuses the submissions. What was offered may yet be accepted: it is not taken back,
        for the client may have submitted to another node too, and been answered there.
        """
        self._state.counts.elections_failed += 1
        details = (("after_s", self._state.options.retry_s), ("ccq_id", campaign.record.ccq.id))
        message = f"no node took the continuous query: {reason}; submit it again with this id"
        return self._close(campaign, Failure("unavailable", message, details))

    def _close(self, campaign: _RunningElection, failure: Failure) -> Effects:
        del self._running[campaign.record.ccq.id]
        self._state.counts.ended.append(campaign.ended(failure.kind))
        return [RefuseSubmit(request, failure) for request in campaign.requests]


def overloaded(what: str) -> Failure:
    return Failure("overloaded", f"this node takes no more {what}; try later", (("after_s", 5.0),))


def too_many(owned_max: int) -> Failure:
    return Failure(
        "quota_exceeded",
        f"expected at most {owned_max:,} continuous queries alive of one owner (quota ccqs_max), "
        "got one more; cancel some, let them expire, or ask an administrator for a higher quota",
        (("quota", "ccqs_max"), ("bound", owned_max)),
    )


def taken(ccq_id: str) -> Failure:
    return Failure(
        "invalid_input",
        f"the id {ccq_id!r} belongs to another continuous query; submit this one with its own",
    )
