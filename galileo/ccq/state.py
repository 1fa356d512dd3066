"""State of the continuous queries on one node: their records, and those that it coordinates."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, islice

from galileo.ccq.cache import CacheUsage
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import Effects, RedirectFetch, RefuseFetch
from galileo.ccq.handed_off_cache import HandedOffCaches
from galileo.ccq.model import HOLD_PARTS, RETRY_S, Ending, Holder, Record, end_reason
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.records import merged
from galileo.ccq.stats import NodeCounts
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.election.ranking import UsageStatistics
from galileo.errors import Failure
from galileo.model.schema import is_dropped

SAVE_AFTER_S = 2.0
"""Time after which a change of what clients have retrieved is saved."""
SAVED_MAX = 256
"""Records that are saved at a time, those first that wait longest."""
TOMBSTONE_S = 600.0
"""How long past its expiry the end of a CCQ is remembered."""


class NodeState:
    """State of one node.

    Every record enters through `learn`, which starts and stops coordinators: this node runs exactly
    the CCQs whose record names it first of the nodes that live, as far as this node knows.

    Attributes:
        nodes: all nodes of the cluster.
        records: of the CCQs whose records name this node, and of others that ended lately.
        coordinated: the CCQs that this node runs.
        dead: peers that are presumed dead, and since when.
        dirty: records of which the leader of the system partition does not know all, since when.
        known: durable commits by dataset.
        clocks: event clocks by dataset.
        dropped: how many datasets of each name were dropped; see `galileo.model.schema.Schema.key`.
        newly_coordinated: CCQs that this node began to coordinate and has not planned yet.
        newly_named: CCQs whose records name other nodes than before.
        handed_off: caches that this node has handed off.
        cache_usage: of all caches, handed-off ones included.
        counts: for metrics.
        wall: wall time of the last tick.
        is_measured: whether `measured` is known.
        is_draining: whether this node hands off its CCQs.
    """

    coordinator_type = Coordinator
    handed_off_type = HandedOffCaches
    clock_type = EventClock

    def __init__(self, me: str, options: ContinuousOptions, *, wall: float) -> None:
        self.me = me
        self.options = options
        self.nodes = frozenset(node for group in options.groups for node in group)
        self.records: dict[str, Record] = {}
        self.coordinated: dict[str, Coordinator] = {}
        self.dead: dict[str, float] = {}
        self.dirty: dict[str, float] = {}
        self.known: dict[str, Cursor] = {}
        self.clocks: dict[str, EventClock] = {}
        self.dropped: dict[str, int] = {}
        self.newly_coordinated: list[str] = []
        self.newly_named: list[str] = []
        self.handed_off = self.handed_off_type(me)
        self.cache_usage = CacheUsage()
        self.counts = NodeCounts()
        self.measured = UsageStatistics()
        self.is_measured = False
        self.is_draining = False
        self.wall = wall
        self._terms = count(1)
        self._ids_by_node: dict[str, dict[str, None]] = {}
        self._deadlines: dict[str, float] = {}
        self._agenda: list[tuple[float, str]] = []

    # --- nodes ----------------------------------------------------------------------------------

    def set_members(self, groups: tuple[tuple[str, ...], ...], racks: Mapping[str, str]) -> None:
        """Replace the nodes of the cluster."""
        self.options = replace(self.options, groups=groups, racks=racks)
        self.nodes = frozenset(node for group in groups for node in group)
        self.dead = {node: at for node, at in self.dead.items() if node in self.nodes}

    def is_gone(self, node: str) -> bool:
        """Whether a node is presumed dead, or is not of the cluster any more."""
        return node in self.dead or (node != self.me and node not in self.nodes)

    @property
    def is_named(self) -> bool:
        """Whether this node runs a CCQ, or is the standby of one."""
        return bool(self._ids_by_node.get(self.me))

    def named_with(self, node: str) -> list[Record]:
        """The records here of CCQs that live and may run at a node."""
        return [self.records[ccq_id] for ccq_id in self._ids_by_node.get(node, ())]

    @property
    def usage(self) -> UsageStatistics:
        """This node's statistics, including its CCQs."""
        return replace(
            self.measured,
            ccq_count=len(self.coordinated),
            cache_bytes=self.cache_usage.bytes,
            is_draining=self.is_draining,
        )

    # --- commits --------------------------------------------------------------------------------

    def known_commits(self, dataset: str) -> Cursor:
        return self.known.get(dataset, EMPTY_CURSOR)

    def clock_of(self, dataset: str) -> EventClock:
        """The event clock of a dataset; one object, updated in place."""
        return self.clocks.setdefault(dataset, self.clock_type())

    def is_dropped(self, dataset: str) -> bool:
        """Whether the dataset with this key was dropped."""
        return is_dropped(dataset, self.dropped)

    # --- records --------------------------------------------------------------------------------

    def learn(self, incoming: Record, now: float) -> Effects:
        """Merge a record, then begin or stop the CCQ here; forget one that is of other nodes."""
        ccq_id, mine = incoming.id, self.records.get(incoming.id)
        record = incoming if mine is None else merged(mine, incoming)
        if record.ended is None and self.is_dropped(record.ccq.dataset):
            record = replace(record, ended="dropped", ended_at=self.wall)
        if mine is None or mine.nodes != record.nodes:
            self.newly_named.append(ccq_id)
        self._put(record, now)
        # The leader takes no progress of a query that it knows to be over.
        if record != incoming and incoming.ended is None:
            self.dirty.setdefault(ccq_id, now)
        else:
            self.dirty.pop(ccq_id, None)
        effects = [*self.handed_off.on_record(ccq_id, record, now), *self.settle(ccq_id, now)]
        if record.ended is None and self.me not in record.participants:
            self.forget(ccq_id)
        return effects

    def settle(self, ccq_id: str, now: float) -> Effects:
        """Begin or stop to coordinate a CCQ, as its record and the nodes that live say."""
        record = self.records[ccq_id]
        former = self.coordinated.get(ccq_id)
        is_mine = record.ended is None and record.acting(self.is_gone) == self.me
        if is_mine and former is not None:
            return former.apply_retrieved(record.retrieved, now)
        if is_mine:
            self.coordinated[ccq_id] = self.begin(record, now)
        elif former is not None:
            del self.coordinated[ccq_id]
            return self._stop(former, now)
        return []

    def begin(self, record: Record, now: float) -> Coordinator:
        clock = self.clock_of(record.ccq.dataset)
        coordinator = self.coordinator_type(
            record,
            term=next(self._terms),
            now=now,
            labels_max=self.options.labels_max,
            clock=clock,
        )
        coordinator.cache.cache_usage = self.cache_usage
        coordinator.counts.of_node = self.counts.labels
        self.newly_coordinated.append(record.id)
        return coordinator

    def end(self, ccq_id: str, ending: Ending, now: float) -> Effects:
        """End a CCQ here; the leader hears of it with the next save."""
        effects = self.learn(replace(self.records[ccq_id], ended=ending, ended_at=self.wall), now)
        self.dirty.setdefault(ccq_id, now)
        return effects

    def forget(self, ccq_id: str) -> None:
        """Remove the record of a CCQ that does not run here."""
        assert ccq_id not in self.coordinated, f"{ccq_id} runs here"
        self._index(self.records.pop(ccq_id), is_there=False)
        self.dirty.pop(ccq_id, None)
        self._deadlines.pop(ccq_id, None)

    def acknowledge(self, ccq_id: str, cursor: Cursor, now: float) -> None:
        """Join a cursor that clients have acknowledged to the record of a query that runs."""
        mine = self.records[ccq_id]
        is_over = mine.ended is not None
        if is_over or mine.retrieved is cursor or mine.retrieved.covers(cursor):
            return
        joined = mine.retrieved.join(cursor)
        # Keep equal cursors one object: identity is cheap to compare.
        retrieved = cursor if cursor == joined else joined
        self._update(replace(mine, retrieved=retrieved), now)

    def progress(self, ccq_id: str, now: float) -> Record:
        """The record with what clients have retrieved, and the holders that are needed."""
        coordinator = self.coordinated.get(ccq_id)
        if coordinator is not None:
            self.acknowledge(ccq_id, coordinator.saved(now), now)
            mine, kept = self.records[ccq_id], coordinator.fetches.holders
            holders = tuple(holder for holder in mine.holders if holder in kept)
            if holders != mine.holders:
                self._update(replace(mine, holders=holders), now)
        return self.records[ccq_id]

    def note_fetch(self, ccq_id: str, now: float) -> None:
        """Note that a query that runs here was fetched, unless that was noted lately."""
        mine = self.records[ccq_id]
        if mine.ended is None and self.wall - mine.fetched_at > mine.ccq.hold_s / HOLD_PARTS:
            self._update(replace(mine, fetched_at=self.wall), now)

    def pop_dirty(self, now: float) -> list[Record]:
        """Remove and return records that have waited to be saved, the longest first."""
        due_at = now - SAVE_AFTER_S
        ids = [name for name in islice(self.dirty, SAVED_MAX) if self._waits(name, due_at)]
        for ccq_id in ids:
            del self.dirty[ccq_id]
        return [self.records[ccq_id] for ccq_id in ids]

    def _waits(self, ccq_id: str, due_at: float) -> bool:
        return self.dirty[ccq_id] <= due_at or self.records[ccq_id].ended is not None

    def due(self, now: float) -> list[str]:
        """The CCQs whose deadline (expiry, or the removal of their end) has passed; each once.

        They have no deadline then, until they are ended, postponed or forgotten.
        """
        ids = []
        while self._agenda and self._agenda[0][0] <= now:
            at, ccq_id = heapq.heappop(self._agenda)
            # A record that was forgotten and learned again is there twice, for the same time.
            if self._deadlines.get(ccq_id) == at:
                del self._deadlines[ccq_id]
                ids.append(ccq_id)
        return ids

    def postpone(self, ccq_id: str, until: float) -> None:
        """Set the deadline of a record."""
        self._deadlines[ccq_id] = until
        heapq.heappush(self._agenda, (until, ccq_id))

    def holder_of(self, coordinator: Coordinator) -> Holder:
        """This node as the holder of the whole cache of a CCQ, as far as clients need it.

        The cache is handed off as soon as the record names this holder and another coordinator.
        """
        cache = coordinator.cache
        return Holder(self.me, coordinator.term, cache.base, cache.until)

    def check(self) -> None:
        for clock in self.clocks.values():
            clock.check()
        caches = [coordinator.cache for coordinator in self.coordinated.values()]
        caches += [handed_off.cache for handed_off in self.handed_off.all()]
        assert self.cache_usage.bytes == sum(cache.bytes for cache in caches), "bytes miscounted"
        assert self.cache_usage.spilled_bytes == sum(cache.spilled_bytes for cache in caches)
        for handed_off in self.handed_off.all():
            handed_off.cache.check()
        for ccq_id, record in self.records.items():
            is_mine = record.ended is None and record.acting(self.is_gone) == self.me
            assert is_mine == (ccq_id in self.coordinated), f"{ccq_id} runs where it should not"
            assert record.ended or not self.is_dropped(record.ccq.dataset), "lives in no dataset"
            assert ccq_id in self._deadlines, f"{ccq_id} has no deadline"
        for ccq_id, coordinator in self.coordinated.items():
            retrieved = self.records[ccq_id].retrieved
            assert coordinator.retrieved.covers(retrieved), "retrieved what is not evaluated"
            coordinator.check()

    # --- inside ------------------------------------------------------------------------------

    def _put(self, record: Record, now: float) -> None:
        """Put a record in place; wall time is read once, when it is first seen or ends.

        Later jumps of the clock do not matter.
        """
        mine = self.records.get(record.id)
        if mine is None or (mine.ended is None and record.ended is not None):
            left_s = max(0.0, record.ccq.expires_at - self.wall)
            slack_s = 0.0 if record.ended is None else TOMBSTONE_S
            self.postpone(record.id, now + left_s + slack_s)
        if mine is not None:
            self._index(mine, is_there=False)
        self.records[record.id] = record
        self._index(record, is_there=True)

    def _update(self, record: Record, now: float) -> None:
        """Put a record with other progress in place."""
        self.records[record.id] = record
        self.dirty.setdefault(record.id, now)

    def _index(self, record: Record, *, is_there: bool) -> None:
        for node in record.nodes if record.ended is None else ():
            ids = self._ids_by_node.setdefault(node, {})
            if is_there:
                ids[record.id] = None
            else:
                ids.pop(record.id, None)

    def _stop(self, former: Coordinator, now: float) -> Effects:
        record = self.records[former.ccq.id]
        self.acknowledge(record.id, former.saved(now), now)
        self._keep_cache(former, now)
        if record.ended is not None:
            failure = end_reason(record)
            return former.close(lambda request: RefuseFetch(request, failure))
        acting = record.acting(self.is_gone)
        if not acting:
            return former.close(lambda request: RefuseFetch(request, self.moving(record.id)))
        return former.close(lambda request: RedirectFetch(request, acting))

    def moving(self, ccq_id: str) -> Failure:
        """The error for a CCQ that no node runs that lives."""
        reason = f"the continuous query {ccq_id!r} is getting a new coordinator"
        return self.transient("unavailable", reason)

    def transient(self, kind: str, reason: str) -> Failure:
        """An error that may be over in a moment."""
        return Failure(kind, f"{reason}; try again in {RETRY_S} s", (("after_s", RETRY_S),))

    def _keep_cache(self, coordinator: Coordinator, now: float) -> None:
        """Hand off the cache of a stopped coordinator if the record names this node as holder."""
        holders = self.records[coordinator.ccq.id].holders
        if any((holder.node, holder.term) == (self.me, coordinator.term) for holder in holders):
            self.handed_off.keep(
                coordinator.ccq, term=coordinator.term, cache=coordinator.cache, now=now
            )
        else:
            coordinator.cache.clear()
