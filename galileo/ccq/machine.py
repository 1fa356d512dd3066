"""Continuous queries on one node: the records of all, the coordination of some.

Theory of operation
===================

*Exactly-once* rests on the log and the client's token alone (`galileo.ccq.fetches`): an answer
is all matches between two cursors, and the client goes on from the second. Nothing else in here
needs to be right for that: not who coordinates, not what is cached, not any clock.

*Progress* is what the rest is for. Every node keeps a record of every CCQ (`tracker`), made
equal everywhere by announcements and anti-entropy (`gossip`). The record names the coordinator;
a node that learns that it is named begins to coordinate (`coordination`), one that learns of a
higher term stops. Terms come from elections (`campaigns`, and `batches` for many CCQs that are
submitted at once): at submission, when the peers of a
dead coordinator take over, and when a node whose caches are too full (`budget`) gives a CCQ away,
whose labels it goes on to hold (`holding`). A node that restarts listens for a successor first and
then appoints itself anew, since what it had evaluated went with its memory. Cycles (`schedule`)
fill the caches. A CCQ ends when it is cancelled, expires, or its dataset is dropped: each node that
knows of the drop ends the CCQ in every record that it has and that comes, so none can come back.

A record is saved durably before anything is sent that depends on it. Messages may be lost,
repeated, late and out of order: all that they carry is merged into a semilattice or is checked
against the term, and what matters is asked again on a timer.

Invariants (`check`): this node coordinates exactly the live CCQs whose record names it; for each,
base <= evaluated and retrieved <= evaluated; none moves back within a term; what clients
acknowledged never exceeds what was evaluated; at most one cycle of a CCQ is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from galileo.ccq.batch_events import BatchSubmitted
from galileo.ccq.batches import Batches
from galileo.ccq.budget import Budget
from galileo.ccq.campaigns import Campaigns
from galileo.ccq.coordination import Coordination
from galileo.ccq.elsewhere import (
    HeldRequested,
    HolderAnswered,
    HolderFailed,
    PacksLoaded,
    PacksSpilled,
    RefuseHeld,
)
from galileo.ccq.events import (
    AnswerCancel,
    AnswerFetch,
    BackfillFailed,
    BackfillFinished,
    CancelRequested,
    ContinuousEffect,
    ContinuousEvent,
    CycleFailed,
    CycleFinished,
    DatasetDropped,
    DrainRequested,
    FetchAbandoned,
    FetchesRequested,
    FetchRequested,
    MessageArrived,
    PacksGathered,
    PurgeRecord,
    RedirectFetch,
    RefuseCancel,
    RefuseFetch,
    RefuseSubmit,
    Restored,
    Send,
    SequencesConfirmed,
    SequencesSeen,
    SubmitRequested,
    Ticked,
    UsageMeasured,
)
from galileo.ccq.gossip import Gossip
from galileo.ccq.messages import (
    Announce,
    Appoint,
    Appointed,
    AppointMany,
    AppointRefused,
    Digest,
    ManyAppointed,
    Noted,
    RecordsDenied,
    RecordsWanted,
    Summary,
)
from galileo.ccq.model import Failure, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.schedule import Schedule
from galileo.ccq.searches import Searches
from galileo.ccq.state import Effects, NodeState, ending_of
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.messages import Poll, PollAnswer, UsageStatistics

IDS_PER_MESSAGE = 512
_FETCH_ANSWERS = (AnswerFetch, RefuseFetch, RedirectFetch)
_BEFORE_RESTORED = (
    Restored,
    DatasetDropped,
    UsageMeasured,
    DrainRequested,
    SequencesSeen,
    PeerDied,
    PeerRevived,
)


class Continuous:
    """See the module; `galileo.ccq.events` is its vocabulary.

    Args:
        me: name of this node.
        options: with the groups of all nodes, this one among them.
    """

    state_type = NodeState
    batches_type = Batches

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.state = self.state_type(me, options)
        self._gossip = Gossip(self.state)
        self._campaigns = Campaigns(self.state)
        self._batches = self.batches_type(self.state, self._campaigns)
        self._searches = Searches(self.state)
        self._schedule = Schedule(self.state)
        self._budget = Budget(self.state, self._campaigns)
        self._asked: dict[int, str] = {}
        self._sync_at = 0.0
        self._graced: set[str] = set()
        self._is_restored = False
        self._handlers: dict[type, Callable[[Any, float], Effects]] = {
            Restored: self._on_restored,
            DatasetDropped: self._on_dropped,
            Ticked: self._on_ticked,
            UsageMeasured: self._on_usage,
            DrainRequested: self._on_drain,
            SequencesSeen: self._on_sequences,
            MessageArrived: self._on_message,
            PeerDied: self._on_peer_died,
            PeerRevived: self._on_peer_revived,
            SubmitRequested: self._campaigns.submit,
            BatchSubmitted: self._batches.submit,
            FetchRequested: self._on_fetch,
            FetchesRequested: self._on_fetches,
            FetchAbandoned: self._on_abandoned,
            CancelRequested: self._on_cancel,
            CycleFinished: self._on_cycle_finished,
            CycleFailed: self._schedule.on_failed,
            BackfillFinished: self._on_backfilled,
            BackfillFailed: self._on_backfill_failed,
            SequencesConfirmed: self._on_confirmed,
            PacksGathered: self._on_gathered,
            PacksSpilled: self._budget.on_spilled,
            PacksLoaded: self._budget.on_loaded,
            HolderAnswered: self._on_holder,
            HolderFailed: self._on_holder,
            HeldRequested: lambda event, _: self.state.holdings.ask(event),
        }
        self._receivers: dict[type, Callable[[str, Any, float], Effects]] = {
            Poll: self._on_poll,
            PollAnswer: self._on_poll_answer,
            Appoint: self._on_appoint,
            Appointed: self._campaigns.on_appointed,
            AppointRefused: self._campaigns.on_refused,
            AppointMany: self._batches.on_appoint,
            ManyAppointed: self._batches.on_appointed,
            Announce: self._gossip.on_announce,
            Noted: self._on_noted,
            Digest: self._gossip.on_digest,
            Summary: lambda sender, message, _: self._gossip.on_summary(sender, message),
            RecordsWanted: lambda sender, message, _: self._gossip.on_wanted(sender, message),
            RecordsDenied: lambda sender, message, _: self._searches.on_denied(sender, message),
        }

    # --- what others may look at -----------------------------------------------------------------

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, ended ones included."""
        return tuple(self.state.tracker.records.values())

    @property
    def coordinated(self) -> dict[str, Coordination]:
        """What this node coordinates now; for looking only."""
        return self.state.led

    def owned_by(self, owner: str) -> int:
        """How many live CCQs of the cluster are somebody's, as far as this node knows."""
        return self.state.tracker.owned_by(owner)

    @property
    def is_restored(self) -> bool:
        """Whether its own records are back."""
        return self._is_restored

    @property
    def cycle_due_at(self) -> float | None:
        """When a processing cycle may be due, at the earliest; None where none is planned."""
        return self._schedule.due_at

    @property
    def usage(self) -> UsageStatistics:
        return self.state.usage

    @property
    def held_bytes(self) -> int:
        """Memory of what this node keeps of CCQs that others coordinate by now."""
        return sum(holding.cache.bytes for holding in self.state.holdings.all())

    def live_records(self, dataset: str, now: float) -> tuple[Record, ...] | None:
        """The CCQs of a dataset that have not ended; may be called from any thread.

        None while this node cannot be certain that it knows all of them: until its own records
        are back and, lately, every peer was heard to have the same ones.
        """
        since = now - self.state.options.agreement_s
        agreed = self.state.agreed
        if not self._is_restored or any(agreed.get(p, -inf) < since for p in self.state.peers):
            return None
        return tuple(r for r in self.records if r.ended is None and r.ccq.dataset == dataset)

    # --- the machine -----------------------------------------------------------------------------

    def step(self, event: ContinuousEvent, now: float) -> list[ContinuousEffect]:
        if not self._is_restored and not isinstance(event, _BEFORE_RESTORED):
            return self._not_yet(event)
        effects = [
            *self._handlers[type(event)](event, now),
            *self._spread_news(now),
            *self._budget.take_discarded(),
        ]
        for effect in effects:
            if isinstance(effect, _FETCH_ANSWERS):
                self._asked.pop(effect.request, None)
        return effects

    def check(self) -> None:
        assert not self.state.news, "news were not spread"
        for elections in (self._campaigns, self._batches):
            elections.check()
        for part in (self.state, self._searches, self._schedule, self._budget):
            part.check()
        open_fetches = sum(len(led.fetches) for led in self.state.led.values())
        assert open_fetches == len(self._asked), "fetches were forgotten"

    # --- time and peers -------------------------------------------------------------------------

    def _on_restored(self, event: Restored, now: float) -> Effects:
        assert not self._is_restored, "restored twice"
        self._is_restored = True
        self.state.wall = event.wall
        tracker = self.state.tracker
        merged = [tracker.merge(record, now=now, wall=event.wall) for record in event.records]
        over = [r.ccq.id for r, m in zip(event.records, merged, strict=True) if m.record is None]
        ended = self._end_dropped(now)
        mine = tracker.led_by(self.state.me)
        check_s = self.state.options.resume_check_s if self.state.peers else 0.0
        self.state.resuming = dict.fromkeys(mine, now + check_s)
        pages = [mine[i : i + IDS_PER_MESSAGE] for i in range(0, len(mine), IDS_PER_MESSAGE)]
        asked = [effect for page in pages for effect in self.state.tell(RecordsWanted(page))]
        return [*(PurgeRecord(ccq_id) for ccq_id in over), *ended, *asked]

    def _on_dropped(self, event: DatasetDropped, now: float) -> Effects:
        """Ends the CCQs of the dropped datasets in all records that this node has."""
        state = self.state
        state.dropped[event.name] = max(event.generations, state.dropped.get(event.name, 0))
        effects = [*self._campaigns.on_dropped(), *self._batches.on_dropped()]
        effects += self._end_dropped(now)
        for dataset in filter(state.is_dropped, {**state.known, **state.clocks}):
            self._schedule.rouse(dataset, now)
            state.known.pop(dataset, None)
            state.clocks.pop(dataset, None)
        return effects

    def _end_dropped(self, now: float) -> Effects:
        state = self.state
        live = [record for record in state.tracker.records.values() if record.ended is None]
        dropped = [record for record in live if state.is_dropped(record.ccq.dataset)]
        return [effect for record in dropped for effect in state.learn(record, now)]

    def _not_yet(self, event: ContinuousEvent) -> Effects:
        """Before its records are back a node must promise nothing: it may know of higher terms."""
        failure = self._try_again("unavailable", "this node is starting")
        if isinstance(event, SubmitRequested | BatchSubmitted):
            return [RefuseSubmit(event.request, failure)]
        if isinstance(event, FetchRequested):
            return [RefuseFetch(event.request, failure)]
        if isinstance(event, FetchesRequested):
            return [RefuseFetch(one.request, failure) for one in event.fetches]
        if isinstance(event, CancelRequested):
            return [RefuseCancel(event.request, failure)]
        if isinstance(event, HeldRequested):
            return [RefuseHeld(event.request)]
        return []  # Messages count as lost.

    def _on_ticked(self, event: Ticked, now: float) -> Effects:
        self.state.wall = event.wall
        effects = [
            *self._resume(now),
            *self._retire(now),
            *self._campaigns.tick(now),
            *self._batches.tick(now),
            *self._campaigns.take_over(now),
            *self._campaigns.hand_over(now),
            *self._searches.tick(now),
            *self._schedule.tick(now),
            *self._budget.tick(now),
        ]
        for ccq_id in dict.fromkeys(self._asked.values()):
            led = self.state.led.get(ccq_id)  # What has just ended is asked for until it is told.
            effects += led.fetches.tick(now) if led is not None else []
        if now >= self._sync_at:
            self._sync_at = now + self.state.options.sync_interval_s
            effects += self._gossip.tick()
        return effects

    def _on_usage(self, event: UsageMeasured, now: float) -> Effects:
        self.state.measured, self.state.is_measured = event.usage, True
        return []

    def _on_drain(self, event: DrainRequested, now: float) -> Effects:
        self.state.is_draining = event.is_on
        return self._campaigns.hand_over(now)

    def _on_sequences(self, event: SequencesSeen, now: float) -> Effects:
        if self.state.is_dropped(event.dataset):
            return []
        is_later = self.state.clock_of(event.dataset).learn(event.clock)
        known = self.state.known_of(event.dataset)
        if not known.covers(event.sequences):
            self.state.known[event.dataset] = known.join(event.sequences)
            self._schedule.rouse(event.dataset, now)
        return self._strike(event.dataset, now) if is_later else []

    def _strike(self, dataset: str, now: float) -> Effects:
        """Serves the fetches that wait for the event clock of a dataset."""
        led = [self.state.led.get(ccq_id) for ccq_id in dict.fromkeys(self._asked.values())]
        waiting = [one for one in led if one is not None and one.ccq.dataset == dataset]
        return [e for one in waiting if one.fetches.awaits_clock for e in one.fetches.wake(now)]

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
        """Names of elections of both kinds differ."""
        return [
            *self._campaigns.on_poll_answer(sender, message, now),
            *self._batches.on_poll_answer(sender, message, now),
        ]

    def _on_noted(self, sender: str, message: Noted, now: float) -> Effects:
        return [*self._campaigns.on_noted(message), *self._batches.on_noted(message)]

    def _on_appoint(self, sender: str, message: Appoint, now: float) -> Effects:
        """Accepts a CCQ once: what this node then knows of it is saved, announced, answered."""
        record, state = message.record, self.state
        ccq_id, mine = record.ccq.id, state.tracker.get(record.ccq.id)
        if mine is not None and (mine.ended is not None or mine.term > record.term):
            return [Send(sender, AppointRefused(ccq_id, record.term, mine))]
        if state.is_dropped(record.ccq.dataset):
            ended = state.learn(record, now)
            return [
                *ended,
                Send(sender, AppointRefused(ccq_id, record.term, state.tracker.get(ccq_id))),
            ]
        effects: Effects = []
        if mine is None or mine.term < record.term:
            if not state.takes_more:
                return [Send(sender, AppointRefused(ccq_id, record.term, None))]
            effects = [*state.learn(record, now), *state.announce([record])]
        if ccq_id not in state.led:
            return effects  # It was accepted in an earlier life; `_resume` will go on with it.
        return [*effects, Send(sender, Appointed(ccq_id, record.term))]

    def _resume(self, now: float) -> Effects:
        """Goes on with what this node coordinated before its restart, unless succeeded."""
        ready = [ccq_id for ccq_id, at in self.state.resuming.items() if at <= now]
        return [effect for ccq_id in ready for effect in self.state.lead(ccq_id, now)]

    def _retire(self, now: float) -> Effects:
        """Ends what has expired, and forgets what ended long ago."""
        effects: Effects = []
        tracker = self.state.tracker
        for ccq_id in tracker.due(now):
            record = tracker.records[ccq_id]
            if record.ended is not None:
                tracker.purge(ccq_id)
                self._graced.discard(ccq_id)
                effects.append(PurgeRecord(ccq_id))
            elif record.coordinator == self.state.me or ccq_id in self._graced:
                effects += self.state.end(record, "expired", now)
            else:
                self._graced.add(ccq_id)
                tracker.postpone(ccq_id, now + self.state.options.expiry_grace_s)
        return effects

    def _spread_news(self, now: float) -> Effects:
        """Tells the parts that wait for a record what has been learnt in this step."""
        effects: Effects = []
        while self.state.news:
            record = self.state.news.pop(0)
            effects += self._campaigns.on_news(record)
            effects += self._batches.on_news(record)
            for request in self._searches.take_found(record.ccq.id):
                effects += self._handlers[type(request)](request, now)
        return effects

    # --- clients --------------------------------------------------------------------------------

    def _on_fetch(self, event: FetchRequested, now: float) -> Effects:
        state = self.state
        record = state.tracker.get(event.ccq_id)
        if record is None:
            return self._searches.look_for(event, now)
        if record.ended is not None:
            return [RefuseFetch(event.request, ending_of(record))]
        led = state.led.get(event.ccq_id)
        if led is None:
            return [self._elsewhere(event, record)]
        if len(self._asked) >= state.options.fetches_max:
            return [RefuseFetch(event.request, self._try_again("overloaded", "too many fetches"))]
        self._asked[event.request] = event.ccq_id
        return led.ask(event, state.known_of(record.ccq.dataset), now)

    def _on_fetches(self, event: FetchesRequested, now: float) -> Effects:
        """Those that the cache can answer as it is are answered without more ado."""
        effects: Effects = []
        led = self.state.led
        for one in event.fetches:
            asked = led.get(one.ccq_id)
            answer = asked.ask_at_once(one, now) if asked is not None else None
            if answer is not None:
                effects.append(answer)
            else:
                effects += self._on_fetch(one, now)
        return effects

    def _elsewhere(self, event: FetchRequested, record: Record) -> RedirectFetch | RefuseFetch:
        """Where to ask, unless that is known to be in vain."""
        is_undecided = event.ccq_id in self._campaigns or event.ccq_id in self.state.resuming
        if is_undecided or record.coordinator in self.state.dead:
            reason = f"the continuous query {event.ccq_id!r} is getting a new coordinator"
            return RefuseFetch(event.request, self._try_again("unavailable", reason))
        return RedirectFetch(event.request, record.coordinator)

    def _try_again(self, kind: str, reason: str) -> Failure:
        after_s = self.state.options.retry_s
        return Failure(kind, f"{reason}; try again in {after_s} s", (("after_s", after_s),))

    def _on_abandoned(self, event: FetchAbandoned, now: float) -> Effects:
        led = self._led_for(event.request)
        if led is not None:
            led.fetches.abandon(event.request)
        self._asked.pop(event.request, None)
        self._searches.abandon(event.request)
        self.state.holdings.abandon(event.request)
        return []

    def _on_cancel(self, event: CancelRequested, now: float) -> Effects:
        record = self.state.tracker.get(event.ccq_id)
        if record is None:
            return self._searches.look_for(event, now)
        effects = self.state.end(record, "cancelled", now) if record.ended is None else []
        return [*effects, AnswerCancel(event.request, event.ccq_id)]

    # --- results of effects ---------------------------------------------------------------------

    def _on_cycle_finished(self, event: CycleFinished, now: float) -> Effects:
        return [*self._schedule.on_finished(event, now), *self._budget.keep(now)]

    def _on_holder(self, event: HolderAnswered | HolderFailed, now: float) -> Effects:
        led = self._led_for(event.request)
        return led.hear_holder(event, now) if led else []

    def _on_backfilled(self, event: BackfillFinished, now: float) -> Effects:
        led = self._led_for(event.request)
        return led.backfill(event, now) if led else []

    def _on_backfill_failed(self, event: BackfillFailed, now: float) -> Effects:
        led = self._led_for(event.request)
        return led.refuse(event.request, event.failure) if led else []

    def _on_confirmed(self, event: SequencesConfirmed, now: float) -> Effects:
        led = self._led_for(event.request)
        if led is None:
            return []
        dataset = led.ccq.dataset
        self._on_sequences(SequencesSeen(dataset, event.sequences), now)
        return led.confirm(event, self.state.known_of(dataset), now)

    def _on_gathered(self, event: PacksGathered, now: float) -> Effects:
        self._schedule.on_gathered(event.ccq_id)
        led = self.state.led.get(event.ccq_id)
        if led is not None and led.term == event.term:
            led.cache.take_gathered(event.labels)
        return []

    def _led_for(self, request: int) -> Coordination | None:
        """The coordination that an open fetch belongs to."""
        return self.state.led.get(self._asked.get(request, ""))
