"""What the parts of the continuous-query machine share, and the few ways in which it changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from galileo.ccq.cache import Tally
from galileo.ccq.coordination import Coordination
from galileo.ccq.counts import NodeCounts
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import ContinuousEffect, RedirectFetch, RefuseFetch, SaveRecord, Send
from galileo.ccq.holding import Holdings
from galileo.ccq.messages import Announce, Message
from galileo.ccq.model import NODES_MAX, Ccq, Ending, Failure, Holder, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.tracker import Tracker
from galileo.cursor import ORIGIN, Cursor
from galileo.election.messages import UsageStatistics
from galileo.model.schema import is_dropped, name_of_key

Effects = list[ContinuousEffect]
RECORDS_PER_MESSAGE = 256


class NodeState:
    """State of one node.

    Every record, from whatever source, comes in through `learn`, which keeps the coordinations
    in step with the records: this node runs exactly the live CCQs whose record names it
    (those of `resuming` excepted, which wait for the word of the peers after a restart).

    Attributes:
        known: durable commits by dataset.
        clocks: event clocks by dataset.
        dropped: how many datasets of each name were dropped; see `galileo.model.schema.Schema.key`.
        dead: peers that are thought dead.
        agreed: when each peer was last heard to have the same live records as this node.
        resuming: CCQs that this node coordinated in its last life, and when to go on with them.
        news: records that changed in this step, for the parts that wait for such.
        begun: CCQs that this node began to coordinate since the schedule last looked.
        holdings: what this node keeps of CCQs that it has given away.
        tally: of all caches, held ones included.
        counts: for those who watch.
        wall: of the last event that told it.
        is_measured: whether the node has told its usage.
        is_draining: whether this node gives away what it coordinates.
    """

    coordination_type = Coordination
    holdings_type = Holdings
    clock_type = EventClock

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.me = me
        self.options = options
        self.peers = tuple(n for group in options.groups for n in group if n != me)
        self.tracker = Tracker(options)
        self.led: dict[str, Coordination] = {}
        self.known: dict[str, Cursor] = {}
        self.clocks: dict[str, EventClock] = {}
        self.dropped: dict[str, int] = {}
        self.dead: set[str] = set()
        self.agreed: dict[str, float] = {}
        self.resuming: dict[str, float] = {}
        self.news: list[Record] = []
        self.begun: list[str] = []
        self.holdings = self.holdings_type(me, holding_s=options.holding_s)
        self.tally = Tally()
        self.counts = NodeCounts()
        self.measured = UsageStatistics()
        self.is_measured = False
        self.wall = 0.0
        self.is_draining = False

    @property
    def usage(self) -> UsageStatistics:
        """This node's statistics, what it coordinates included."""
        return replace(
            self.measured,
            ccq_count=len(self.led),
            cache_bytes=self.tally.bytes,
            is_draining=self.is_draining,
        )

    @property
    def takes_more(self) -> bool:
        """Whether this node accepts appointments."""
        return not self.is_draining and len(self.led) < self.options.coordinated_max

    def known_of(self, dataset: str) -> Cursor:
        return self.known.get(dataset, ORIGIN)

    def clock_of(self, dataset: str) -> EventClock:
        """The event clock of a dataset; one object, which is wound in place."""
        return self.clocks.setdefault(dataset, self.clock_type())

    def is_dropped(self, dataset: str) -> bool:
        """Whether the dataset with this key was dropped."""
        return is_dropped(dataset, self.dropped)

    def learn(self, incoming: Record, now: float) -> Effects:
        """Merges a record; what changes is saved, durably, before anything is built on it.

        One of a dropped dataset ends here, from whatever node it comes and however late.
        """
        if incoming.ended is None and self.is_dropped(incoming.ccq.dataset):
            incoming = replace(incoming, ended="dropped", ended_at=self.wall)
        merged = self.tracker.merge(incoming, now=now, wall=self.wall)
        record = merged.record
        if record is None:
            return []
        released = self.holdings.heed(record.ccq.id, record, now)
        if not merged.is_news:
            led = self.led.get(record.ccq.id)
            return [*released, *(led.learn_retrieved(record.retrieved, now) if led else [])]
        self.news.append(record)
        return [SaveRecord(record, durable=True), *released, *self._adapt(record, now)]

    def mint(self, record: Record, coordinator: str) -> Record:
        """The record with a new coordinator, in a term that nobody else can ever use.

        The caller learns it (which saves it) before it tells anybody. What this node held in an
        earlier life is not named any more.
        """
        mine = self.tracker.get(record.ccq.id) or record
        round_number = mine.term // NODES_MAX + 1
        term = round_number * NODES_MAX + self.options.ordinal
        holders = tuple(
            one
            for one in mine.holders
            if one.node != self.me or self.holdings.has(mine.ccq.id, one.term)
        )
        return replace(mine, term=term, coordinator=coordinator, holders=holders)

    def holder_of(self, led: Coordination) -> Holder:
        """This node as the holder of all that it has cached.

        As soon as the record names it, and another coordinator, the cache is put away.
        """
        self.tracker.acknowledge(led.ccq.id, led.retrieved)
        self.tracker.keep_holders(led.ccq.id, led.fetches.holders)
        return Holder(self.me, led.term, led.cache.base, led.cache.until)

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
        return self.announce_to(self.peers if to is None else (to,), records)

    def announce_to(self, peers: Iterable[str], records: Iterable[Record]) -> Effects:
        """Tells some peers; each page goes to all of them before the next."""
        pages, peers = [Announce(page) for page in pages_of(records)], tuple(peers)
        return [Send(peer, page) for page in pages for peer in peers]

    def tell(self, message: Message, *, to: str | None = None) -> Effects:
        return [Send(peer, message) for peer in (self.peers if to is None else (to,))]

    def check(self) -> None:
        self.tracker.check()
        for clock in self.clocks.values():
            clock.check()
        assert set(self.led) | set(self.resuming) == set(self.tracker.led_by(self.me))
        assert not set(self.led) & set(self.resuming), "running before the peers were heard"
        caches = [led.cache for led in self.led.values()]
        caches += [holding.cache for holding in self.holdings.all()]
        assert self.tally.bytes == sum(cache.bytes for cache in caches), "bytes miscounted"
        assert self.tally.spilled_bytes == sum(cache.spilled_bytes for cache in caches)
        for holding in self.holdings.all():
            holding.cache.check()
        for record in self.tracker.records.values():
            is_over = record.ended is not None
            assert is_over or not self.is_dropped(record.ccq.dataset), "outlives its dataset"
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
            self._put_away(led, now)
        if record.coordinator == self.me and record.ended is None:
            kept = self.tracker.records[ccq_id]
            clock = self.clock_of(kept.ccq.dataset)
            begun = self.coordination_type(kept, now=now, options=self.options, clock=clock)
            begun.cache.tally = self.tally
            begun.counts.of_node = self.counts.labels
            self.led[ccq_id] = begun
            self.begun.append(ccq_id)
        if led is None:
            return []
        if record.ended is not None:
            failure = ending_of(record)
            return led.close(lambda request: RefuseFetch(request, failure))
        return led.close(lambda request: RedirectFetch(request, record.coordinator))

    def _put_away(self, led: Coordination, now: float) -> None:
        """Keeps the cache of a coordination that is over where this node is to be its holder."""
        holders = self.tracker.records[led.ccq.id].holders
        if any((one.node, one.term) == (self.me, led.term) for one in holders):
            self.holdings.keep(led.ccq, term=led.term, cache=led.cache, now=now)
        else:
            led.cache.clear()


def pages_of(records: Iterable[Record]) -> list[tuple[Record, ...]]:
    """As many records together as go into one message."""
    records = tuple(records)
    return [
        records[i : i + RECORDS_PER_MESSAGE] for i in range(0, len(records), RECORDS_PER_MESSAGE)
    ]


def drop_of(ccq: Ccq) -> Failure:
    """Why a CCQ of a dropped dataset answers nothing any more, and is not taken."""
    return Failure(
        "ccq_dropped",
        f"the continuous query {ccq.id!r} ended when its dataset {name_of_key(ccq.dataset)!r} was "
        "dropped; a dataset that is created under this name is another one",
    )


def ending_of(record: Record) -> Failure:
    """Why an ended CCQ answers nothing any more."""
    ccq_id = record.ccq.id
    if record.ended == "dropped":
        return drop_of(record.ccq)
    if record.ended == "cancelled":
        return Failure(
            "ccq_cancelled",
            f"the continuous query {ccq_id!r} was cancelled; submit it again to go on",
        )
    return Failure(
        "ccq_expired", f"the continuous query {ccq_id!r} has expired; submit it again to go on"
    )
