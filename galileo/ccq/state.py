"""The state that the parts of the continuous-query machine share, and its transitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from galileo.ccq.cache import CacheUsage
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import ContinuousEffect, RedirectFetch, RefuseFetch, SaveRecord, Send
from galileo.ccq.handed_off_cache import HandedOffCaches
from galileo.ccq.messages import Message, RecordUpdate
from galileo.ccq.model import NODES_MAX, Ccq, Ending, Failure, Holder, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.record_table import RecordTable
from galileo.ccq.stats import NodeCounts
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
        changed_records: records that changed in this step, for the parts that wait for such.
        begun: CCQs that this node began to coordinate since the schedule last looked.
        handed_off: what this node keeps of CCQs that it has given away.
        cache_usage: of all caches, held ones included.
        counts: for those who watch.
        wall: the time of the last event that set it.
        is_measured: whether the node has reported its usage.
        is_draining: whether this node gives away what it coordinates.
    """

    coordination_type = Coordinator
    handed_off_type = HandedOffCaches
    clock_type = EventClock

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.me = me
        self.options = options
        self.peers = tuple(n for group in options.groups for n in group if n != me)
        self.record_table = RecordTable(options)
        self.coordinated: dict[str, Coordinator] = {}
        self.known: dict[str, Cursor] = {}
        self.clocks: dict[str, EventClock] = {}
        self.dropped: dict[str, int] = {}
        self.dead: set[str] = set()
        self.agreed: dict[str, float] = {}
        self.resuming: dict[str, float] = {}
        self.changed_records: list[Record] = []
        self.begun: list[str] = []
        self.handed_off = self.handed_off_type(me, ttl_s=options.handed_off_cache_ttl_s)
        self.cache_usage = CacheUsage()
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
            ccq_count=len(self.coordinated),
            cache_bytes=self.cache_usage.bytes,
            is_draining=self.is_draining,
        )

    @property
    def takes_more(self) -> bool:
        """Whether this node accepts appointments."""
        return not self.is_draining and len(self.coordinated) < self.options.coordinated_max

    def known_commits(self, dataset: str) -> Cursor:
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
        merged = self.record_table.merge(incoming, now=now, wall=self.wall)
        record = merged.record
        if record is None:
            return []
        released = self.handed_off.on_record(record.ccq.id, record, now)
        if not merged.is_news:
            led = self.coordinated.get(record.ccq.id)
            return [*released, *(led.apply_retrieved(record.retrieved, now) if led else [])]
        self.changed_records.append(record)
        return [SaveRecord(record, durable=True), *released, *self._adapt(record, now)]

    def with_next_term(self, record: Record, coordinator: str) -> Record:
        """The record with a new coordinator, in a term that no other node can ever use.

        The caller learns it (which saves it) before it tells anybody. What this node held in an
        earlier life is not named any more.
        """
        mine = self.record_table.get(record.ccq.id) or record
        round_number = mine.term // NODES_MAX + 1
        term = round_number * NODES_MAX + self.options.ordinal
        holders = tuple(
            one
            for one in mine.holders
            if one.node != self.me or self.handed_off.has(mine.ccq.id, one.term)
        )
        return replace(mine, term=term, coordinator=coordinator, holders=holders)

    def holder_of(self, led: Coordinator) -> Holder:
        """This node as the holder of all that it has cached.

        As soon as the record names it, and another coordinator, the cache is put away.
        """
        self.record_table.acknowledge(led.ccq.id, led.retrieved)
        self.record_table.keep_holders(led.ccq.id, led.fetches.holders)
        return Holder(self.me, led.term, led.cache.base, led.cache.until)

    def start_coordinating(self, ccq_id: str, now: float) -> Effects:
        """Makes this node the coordinator, in a new term, and tells everybody."""
        record = self.with_next_term(self.record_table.records[ccq_id], self.me)
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
        pages, peers = [RecordUpdate(page) for page in record_pages(records)], tuple(peers)
        return [Send(peer, page) for page in pages for peer in peers]

    def tell(self, message: Message, *, to: str | None = None) -> Effects:
        return [Send(peer, message) for peer in (self.peers if to is None else (to,))]

    def check(self) -> None:
        self.record_table.check()
        for clock in self.clocks.values():
            clock.check()
        assert set(self.coordinated) | set(self.resuming) == set(
            self.record_table.coordinated_by(self.me)
        )
        assert not set(self.coordinated) & set(self.resuming), "running before the peers were heard"
        caches = [led.cache for led in self.coordinated.values()]
        caches += [holding.cache for holding in self.handed_off.all()]
        assert self.cache_usage.bytes == sum(cache.bytes for cache in caches), "bytes miscounted"
        assert self.cache_usage.spilled_bytes == sum(cache.spilled_bytes for cache in caches)
        for holding in self.handed_off.all():
            holding.cache.check()
        for record in self.record_table.records.values():
            is_over = record.ended is not None
            assert is_over or not self.is_dropped(record.ccq.dataset), "outlives its dataset"
        for ccq_id, led in self.coordinated.items():
            record = self.record_table.records[ccq_id]
            assert led.term == record.term, "coordinates an old term"
            assert led.retrieved.covers(record.retrieved), "retrieved what is not evaluated"
            led.check()

    # --- inside ------------------------------------------------------------------------------

    def _adapt(self, record: Record, now: float) -> Effects:
        """Begins or ends the coordination here as the record demands."""
        ccq_id = record.ccq.id
        self.resuming.pop(ccq_id, None)
        led = self.coordinated.pop(ccq_id, None)
        if led is not None:
            self.record_table.acknowledge(ccq_id, led.retrieved)
            self._keep_cache(led, now)
        if record.coordinator == self.me and record.ended is None:
            kept = self.record_table.records[ccq_id]
            clock = self.clock_of(kept.ccq.dataset)
            begun = self.coordination_type(kept, now=now, options=self.options, clock=clock)
            begun.cache.cache_usage = self.cache_usage
            begun.counts.of_node = self.counts.labels
            self.coordinated[ccq_id] = begun
            self.begun.append(ccq_id)
        if led is None:
            return []
        if record.ended is not None:
            failure = end_reason(record)
            return led.close(lambda request: RefuseFetch(request, failure))
        return led.close(lambda request: RedirectFetch(request, record.coordinator))

    def _keep_cache(self, led: Coordinator, now: float) -> None:
        """Keeps the cache of a coordination that is over where this node is to be its holder."""
        holders = self.record_table.records[led.ccq.id].holders
        if any((one.node, one.term) == (self.me, led.term) for one in holders):
            self.handed_off.keep(led.ccq, term=led.term, cache=led.cache, now=now)
        else:
            led.cache.clear()


def record_pages(records: Iterable[Record]) -> list[tuple[Record, ...]]:
    """As many records together as go into one message."""
    records = tuple(records)
    return [
        records[i : i + RECORDS_PER_MESSAGE] for i in range(0, len(records), RECORDS_PER_MESSAGE)
    ]


def dropped_failure(ccq: Ccq) -> Failure:
    """Why a CCQ of a dropped dataset answers nothing any more, and is not taken."""
    return Failure(
        "ccq_dropped",
        f"the continuous query {ccq.id!r} ended when its dataset {name_of_key(ccq.dataset)!r} was "
        "dropped; a dataset that is created under this name is another one",
    )


def end_reason(record: Record) -> Failure:
    """Why an ended CCQ answers nothing any more."""
    ccq_id = record.ccq.id
    if record.ended == "dropped":
        return dropped_failure(record.ccq)
    if record.ended == "cancelled":
        return Failure(
            "ccq_cancelled",
            f"the continuous query {ccq_id!r} was cancelled; submit it again to go on",
        )
    return Failure(
        "ccq_expired", f"the continuous query {ccq_id!r} has expired; submit it again to go on"
    )
