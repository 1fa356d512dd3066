"""What the parts of the continuous-query machine share, and the few ways in which it changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from galileo.ccq.coordination import Coordination
from galileo.ccq.events import ContinuousEffect, RedirectFetch, RefuseFetch, SaveRecord, Send
from galileo.ccq.messages import Announce, Message
from galileo.ccq.model import NODES_MAX, Ending, Failure, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.tracker import Tracker
from galileo.cursor import ORIGIN, Cursor
from galileo.election.messages import UsageStatistics

Effects = list[ContinuousEffect]
RECORDS_PER_MESSAGE = 64


class NodeState:
    """State of one node.

    Every record, from whatever source, comes in through `learn`, which keeps the coordinations
    in step with the records: this node runs exactly the live CCQs whose record names it
    (those of `resuming` excepted, which wait for the word of the peers after a restart).

    Attributes:
        known: durable commits by dataset.
        dead: peers that are thought dead.
        agreed: when each peer was last heard to have the same live records as this node.
        resuming: CCQs that this node coordinated in its last life, and when to go on with them.
        news: records that changed in this step, for the parts that wait for such.
        begun: CCQs that this node began to coordinate since the schedule last looked.
        wall: of the last event that told it.
        is_draining: whether this node gives away what it coordinates.
    """

    coordination_type = Coordination

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.me = me
        self.options = options
        self.peers = tuple(n for group in options.groups for n in group if n != me)
        self.tracker = Tracker(options)
        self.led: dict[str, Coordination] = {}
        self.known: dict[str, Cursor] = {}
        self.dead: set[str] = set()
        self.agreed: dict[str, float] = {}
        self.resuming: dict[str, float] = {}
        self.news: list[Record] = []
        self.begun: list[str] = []
        self.measured = UsageStatistics()
        self.wall = 0.0
        self.is_draining = False

    @property
    def usage(self) -> UsageStatistics:
        """This node's statistics, what it coordinates included."""
        cache_bytes = sum(led.cache.bytes for led in self.led.values())
        return replace(
            self.measured,
            ccq_count=len(self.led),
            cache_bytes=cache_bytes,
            is_draining=self.is_draining,
        )

    def known_of(self, dataset: str) -> Cursor:
        return self.known.get(dataset, ORIGIN)

    def learn(self, incoming: Record, now: float) -> Effects:
        """Merges a record; what changes is saved, durably, before anything is built on it."""
        merged = self.tracker.merge(incoming, now=now, wall=self.wall)
        record = merged.record
        if record is None:
            return []
        if not merged.is_news:
            led = self.led.get(record.ccq.id)
            return led.learn_retrieved(record.retrieved, now) if led else []
        self.news.append(record)
        return [SaveRecord(record, durable=True), *self._adapt(record, now)]

    def mint(self, record: Record, coordinator: str) -> Record:
        """The record with a new coordinator, in a term that nobody else can ever use.

        The caller learns it (which saves it) before it tells anybody.
        """
        mine = self.tracker.get(record.ccq.id) or record
        round_number = mine.term // NODES_MAX + 1
        term = round_number * NODES_MAX + self.options.ordinal
        return replace(mine, term=term, coordinator=coordinator)

    def lead(self, ccq_id: str, now: float) -> Effects:
        """Makes this node the coordinator, in a new term, and tells everybody."""
        record = self.mint(self.tracker.records[ccq_id], self.me)
        return [*self.learn(record, now), *self.announce([record])]

    def end(self, record: Record, ending: Ending, now: float) -> Effects:
        """Ends a CCQ for good, everywhere."""
        ended = replace(record, ended=ending, ended_at=self.wall)
        return [*self.learn(ended, now), *self.announce([ended])]

    def announce(self, records: Iterable[Record], *, to: str | None = None) -> Effects:
        """Tells one peer or all of them."""
        records = tuple(records)
        pages = [
            Announce(records[i : i + RECORDS_PER_MESSAGE])
            for i in range(0, len(records), RECORDS_PER_MESSAGE)
        ]
        return [effect for page in pages for effect in self.tell(page, to=to)]

    def tell(self, message: Message, *, to: str | None = None) -> Effects:
        return [Send(peer, message) for peer in (self.peers if to is None else (to,))]

    def check(self) -> None:
        self.tracker.check()
        assert set(self.led) | set(self.resuming) == set(self.tracker.led_by(self.me))
        assert not set(self.led) & set(self.resuming), "running before the peers were heard"
        for ccq_id, led in self.led.items():
            record = self.tracker.records[ccq_id]
            assert led.term == record.term, "coordinates an old term"
            assert led.retrieved.covers(record.retrieved), "retrieved what is not evaluated"
            led.check()

    # --- inside ------------------------------------------------------------------------------

    def _adapt(self, record: Record, now: float) -> Effects:
        """Begins or ends the coordination here as the record demands."""
        ccq_id = record.ccq.id
        self.resuming.pop(ccq_id, None)
        led = self.led.pop(ccq_id, None)
        if led is not None:
            self.tracker.acknowledge(ccq_id, led.retrieved)
        if record.coordinator == self.me and record.ended is None:
            kept = self.tracker.records[ccq_id]
            self.led[ccq_id] = self.coordination_type(kept, now=now, options=self.options)
            self.begun.append(ccq_id)
        if led is None:
            return []
        if record.ended is not None:
            failure = ending_of(record)
            return led.close(lambda request: RefuseFetch(request, failure))
        return led.close(lambda request: RedirectFetch(request, record.coordinator))


def ending_of(record: Record) -> Failure:
    """Why an ended CCQ answers nothing any more."""
    ccq_id = record.ccq.id
    if record.ended == "cancelled":
        return Failure(
            "ccq_cancelled",
            f"the continuous query {ccq_id!r} was cancelled; submit it again to go on",
        )
    return Failure(
        "ccq_expired", f"the continuous query {ccq_id!r} has expired; submit it again to go on"
    )
