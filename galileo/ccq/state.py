"""The state that the parts of the continuous-query machine share, and its transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from galileo.ccq.cache import CacheUsage
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import (
    Effects,
    RedirectFetch,
    RefuseFetch,
    SaveRecord,
    Send,
)
from galileo.ccq.handed_off_cache import HandedOffCaches
from galileo.ccq.messages import RecordRequest, RecordUpdate
from galileo.ccq.model import NODES_MAX, Ccq, Ending, Failure, Holder, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.record_table import RecordTable
from galileo.ccq.stats import NodeCounts
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.election.messages import UsageStatistics
from galileo.election.peer_usage import PeerUsage
from galileo.model.schema import is_dropped, name_of_key

IDS_PER_MESSAGE = 512
RECORDS_PER_MESSAGE = 256


class NodeState:
    """State of one node.

    Every record enters through `apply_record`, which starts and stops coordinators: this node runs
    exactly the live CCQs whose record names it (except those in `resuming`, which wait for the
    peers after a restart).

    Attributes:
        known: durable commits by dataset.
        clocks: event clocks by dataset.
        dropped: how many datasets of each name were dropped; see `galileo.model.schema.Schema.key`.
        dead: peers that are presumed dead.
        coordinating: when each peer last reported that it coordinates CCQs that are not here.
        resuming: CCQs that this node coordinated before its restart, and when to resume them.
        changed_records: records that changed in this step.
        newly_coordinated: CCQs that this node began to coordinate and has not planned yet.
        handed_off: caches that this node has handed off.
        cache_usage: of all caches, handed-off ones included.
        counts: for metrics.
        peer_usage: of the other nodes, for elections.
        wall: wall time of the last tick.
        is_measured: whether `measured` is known.
        is_draining: whether this node hands off what it coordinates.
    """

    coordinator_type = Coordinator
    handed_off_type = HandedOffCaches
    clock_type = EventClock

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.me = me
        self.options = options
        self.peers = _peers_of(me, options.groups)
        self.record_table = RecordTable(me, options)
        self.coordinated: dict[str, Coordinator] = {}
        self.known: dict[str, Cursor] = {}
        self.clocks: dict[str, EventClock] = {}
        self.dropped: dict[str, int] = {}
        self.dead: set[str] = set()
        self.coordinating: dict[str, float] = {}
        self.resuming: dict[str, float] = {}
        self.changed_records: list[Record] = []
        self.newly_coordinated: list[str] = []
        self.handed_off = self.handed_off_type(me, ttl_s=options.handed_off_cache_ttl_s)
        self.cache_usage = CacheUsage()
        self.counts = NodeCounts()
        self.measured = UsageStatistics()
        self.peer_usage = PeerUsage(
            ttl_s=options.usage_ttl_s, poll_timeout_s=options.election.poll_timeout_s
        )
        self.is_measured = False
        self.wall = 0.0
        self.is_draining = False

    def set_members(self, groups: tuple[tuple[str, ...], ...], racks: Mapping[str, str]) -> None:
        """Replace the nodes of the cluster; what removed ones coordinate is taken over."""
        self.peers = _peers_of(self.me, groups)
        self.options = replace(self.options, groups=groups, racks=racks)
        self.dead &= set(self.peers)
        self.coordinating = {p: at for p, at in self.coordinating.items() if p in self.peers}
        self.record_table.set_options(self.options)

    def is_gone(self, node: str) -> bool:
        """Whether a node is presumed dead, or is not of the cluster any more."""
        return node in self.dead or (node != self.me and node not in self.peers)

    @property
    def usage(self) -> UsageStatistics:
        """This node's statistics, including what it coordinates."""
        return replace(
            self.measured,
            ccq_count=len(self.coordinated),
            cache_bytes=self.cache_usage.bytes,
            is_draining=self.is_draining,
        )

    @property
    def accepts_assignments(self) -> bool:
        """Whether this node accepts further CCQs."""
        return not self.is_draining and len(self.coordinated) < self.options.coordinated_max

    def assigned_count(self, node: str) -> int:
        """CCQs that a node coordinates or was offered by this one, as far as this node knows."""
        is_me = node == self.me
        return len(self.coordinated) if is_me else self.peer_usage.ccq_count(node)

    def count_offer(self, node: str, *, former: str, count: int = 1) -> None:
        """Count an offer, after one to `former` that was refused or not answered."""
        self.peer_usage.forget(former)
        self.peer_usage.record_offer(node, count)

    def known_commits(self, dataset: str) -> Cursor:
        return self.known.get(dataset, EMPTY_CURSOR)

    def clock_of(self, dataset: str) -> EventClock:
        """The event clock of a dataset; one object, updated in place."""
        return self.clocks.setdefault(dataset, self.clock_type())

    def is_dropped(self, dataset: str) -> bool:
        """Whether the dataset with this key was dropped."""
        return is_dropped(dataset, self.dropped)

    def learn_record(self, incoming: Record, now: float) -> Effects:
        """Merge a record that another node has sent, other than as an offer.

        If it names this node as coordinator, this node may have coordinated the CCQ in that term
        and have forgotten it: it goes on as after a restart, in a new term.
        """
        effects = self.apply_record(incoming, now, is_offer=False)
        ccq_id = incoming.ccq.id
        if ccq_id in self.resuming and any(isinstance(one, SaveRecord) for one in effects):
            peers = self.sharers(self.record_table.records[ccq_id])
            effects += self.request_records(dict.fromkeys(peers, (ccq_id,)))
        return effects

    def apply_record(self, incoming: Record, now: float, *, is_offer: bool = True) -> Effects:
        """Merge a record; save changes durably, then start or stop the coordinator.

        A record of a dropped dataset ends here, from any node and at any time.
        """
        if incoming.ended is None and self.is_dropped(incoming.ccq.dataset):
            incoming = replace(incoming, ended="dropped", ended_at=self.wall)
        merged = self.record_table.merge(incoming, now=now, wall=self.wall)
        record = merged.record
        if record is None:
            return []
        released = self.handed_off.on_record(record.ccq.id, record, now)
        if not merged.is_news:
            coordinator = self.coordinated.get(record.ccq.id)
            return [
                *released,
                *(coordinator.apply_retrieved(record.retrieved, now) if coordinator else []),
            ]
        self.changed_records.append(record)
        changes = self._start_or_stop(record, now, is_offer=is_offer)
        return [SaveRecord(record, durable=True), *released, *changes]

    def with_next_term(self, record: Record, coordinator: str) -> Record:
        """The record with a new coordinator, in a term that no other node can use.

        The caller applies it (which saves it) before sending it. Caches that this node lost in a
        restart are removed from the holders.
        """
        mine = self.record_table.get(record.ccq.id) or record
        round_number = mine.term // NODES_MAX + 1
        term = round_number * NODES_MAX + self.options.ordinal
        holders = tuple(
            holder
            for holder in mine.holders
            if holder.node != self.me or self.handed_off.has(mine.ccq.id, holder.term)
        )
        return replace(mine, term=term, coordinator=coordinator, holders=holders)

    def holder_of(self, coordinator: Coordinator) -> Holder:
        """This node as the holder of its whole cache.

        The cache is handed off as soon as the record names this holder and another coordinator.
        """
        self.record_table.acknowledge(coordinator.ccq.id, coordinator.retrieved)
        self.record_table.keep_holders(coordinator.ccq.id, coordinator.fetches.holders)
        return Holder(self.me, coordinator.term, coordinator.cache.base, coordinator.cache.until)

    def start_coordinating(self, ccq_id: str, now: float) -> Effects:
        """Make this node the coordinator in a new term, and announce it."""
        record = self.with_next_term(self.record_table.records[ccq_id], self.me)
        return [*self.apply_record(record, now), *self.announce([record])]

    def end(self, record: Record, ending: Ending, now: float) -> Effects:
        """End a CCQ everywhere."""
        ended = replace(record, ended=ending, ended_at=self.wall)
        return [*self.apply_record(ended, now), *self.announce([ended])]

    def announce(self, records: Iterable[Record]) -> Effects:
        """Send records to the nodes that share them."""
        return self.distribute((record, self.sharers(record)) for record in records)

    def send_records(self, to: str, records: Iterable[Record]) -> Effects:
        return [Send(to, RecordUpdate(page)) for page in record_pages(records)]

    def distribute(
        self, records: Iterable[tuple[Record, Iterable[str]]], *, note: bool = False
    ) -> Effects:
        """Send each record to some peers, in few messages; those to equal records are equal."""
        by_peer: dict[str, list[Record]] = {}
        for record, peers in records:
            for peer in peers:
                by_peer.setdefault(peer, []).append(record)
        messages: dict[tuple[int, ...], list[RecordUpdate]] = {}
        effects: Effects = []
        for peer, together in by_peer.items():
            key = tuple(map(id, together))
            pages = messages.get(key)
            if pages is None:  # One object for all peers is encoded once.
                pages = [RecordUpdate(page, note) for page in record_pages(together)]
                messages[key] = pages
            effects += [Send(peer, page) for page in pages]
        return effects

    def request_records(self, ids_by_peer: Mapping[str, Sequence[str]]) -> Effects:
        """Ask peers for the records of some CCQs, in messages of bounded size."""
        return [
            Send(peer, RecordRequest(tuple(ids[start : start + IDS_PER_MESSAGE])))
            for peer, ids in ids_by_peer.items()
            for start in range(0, len(ids), IDS_PER_MESSAGE)
        ]

    def live_replicas(self, ccq_id: str) -> list[str]:
        """The other nodes that keep the record of a CCQ and are not gone."""
        replicas = self.record_table.replicas(ccq_id)
        return [node for node in replicas if node != self.me and not self.is_gone(node)]

    def sharers(self, record: Record) -> list[str]:
        """The other nodes of the cluster that share a record."""
        sharers = self.record_table.sharers(record)
        return [node for node in sharers if node in self.peers]

    def check(self) -> None:
        self.record_table.check()
        for clock in self.clocks.values():
            clock.check()
        assert set(self.coordinated) | set(self.resuming) == set(
            self.record_table.coordinated_by(self.me)
        )
        assert not set(self.coordinated) & set(self.resuming), "running and resuming"
        caches = [coordinator.cache for coordinator in self.coordinated.values()]
        caches += [handed_off.cache for handed_off in self.handed_off.all()]
        assert self.cache_usage.bytes == sum(cache.bytes for cache in caches), "bytes miscounted"
        assert self.cache_usage.spilled_bytes == sum(cache.spilled_bytes for cache in caches)
        for handed_off in self.handed_off.all():
            handed_off.cache.check()
        for record in self.record_table.records.values():
            is_over = record.ended is not None
            assert is_over or not self.is_dropped(record.ccq.dataset), (
                "the CCQ of a dropped dataset is alive"
            )
        for ccq_id, coordinator in self.coordinated.items():
            record = self.record_table.records[ccq_id]
            assert coordinator.term == record.term, "coordinates an old term"
            assert coordinator.retrieved.covers(record.retrieved), "retrieved what is not evaluated"
            coordinator.check()

    # --- inside ------------------------------------------------------------------------------

    def _start_or_stop(self, record: Record, now: float, *, is_offer: bool) -> Effects:
        """Start or stop the coordinator here as the record demands."""
        ccq_id = record.ccq.id
        self.resuming.pop(ccq_id, None)
        former = self.coordinated.pop(ccq_id, None)
        if former is not None:
            self.record_table.acknowledge(ccq_id, former.retrieved)
            self._keep_cache(former, now)
        is_mine = record.coordinator == self.me and record.ended is None
        if is_mine and not is_offer:
            self.resuming[ccq_id] = now + self.options.resume_check_s
        elif is_mine:
            stored = self.record_table.records[ccq_id]
            clock = self.clock_of(stored.ccq.dataset)
            coordinator = self.coordinator_type(stored, now=now, options=self.options, clock=clock)
            coordinator.cache.cache_usage = self.cache_usage
            coordinator.counts.of_node = self.counts.labels
            self.coordinated[ccq_id] = coordinator
            self.newly_coordinated.append(ccq_id)
        if former is None:
            return []
        if record.ended is not None:
            failure = end_reason(record)
            return former.close(lambda request: RefuseFetch(request, failure))
        return former.close(lambda request: RedirectFetch(request, record.coordinator))

    def _keep_cache(self, coordinator: Coordinator, now: float) -> None:
        """Hand off the cache of a stopped coordinator if the record names this node as holder."""
        holders = self.record_table.records[coordinator.ccq.id].holders
        if any((holder.node, holder.term) == (self.me, coordinator.term) for holder in holders):
            self.handed_off.keep(
                coordinator.ccq, term=coordinator.term, cache=coordinator.cache, now=now
            )
        else:
            coordinator.cache.clear()


def _peers_of(me: str, groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(node for group in groups for node in group if node != me)


def record_pages(records: Iterable[Record]) -> list[tuple[Record, ...]]:
    """Split records into messages."""
    records = tuple(records)
    return [
        records[i : i + RECORDS_PER_MESSAGE] for i in range(0, len(records), RECORDS_PER_MESSAGE)
    ]


def dropped_failure(ccq: Ccq) -> Failure:
    """The error for a CCQ of a dropped dataset."""
    return Failure(
        "ccq_dropped",
        f"the continuous query {ccq.id!r} ended when its dataset {name_of_key(ccq.dataset)!r} was "
        "dropped; a dataset that is created under this name is another one",
    )


def end_reason(record: Record) -> Failure:
    """The error for an ended CCQ."""
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
