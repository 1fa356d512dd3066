"""The state of continuous queries on one node, besides that of duties."""

from __future__ import annotations

from dataclasses import replace

from galileo.ccq.cache import CacheUsage
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.event_clock import EventClock
from galileo.ccq.events import Effects, RedirectFetch, RefuseFetch
from galileo.ccq.handed_off_cache import HandedOffCaches
from galileo.ccq.model import Ccq, Ending, Holder, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.stats import NodeCounts
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.election.state import DutyState
from galileo.errors import Failure
from galileo.model.schema import is_dropped, name_of_key


class NodeState(DutyState[Record, Coordinator]):
    """State of one node; its duties are CCQs.

    Attributes:
        known: durable commits by dataset.
        clocks: event clocks by dataset.
        dropped: how many datasets of each name were dropped; see `galileo.model.schema.Schema.key`.
        newly_coordinated: CCQs that this node began to coordinate and has not planned yet.
        handed_off: caches that this node has handed off.
        cache_usage: of all caches, handed-off ones included.
    """

    coordinator_type = Coordinator
    handed_off_type = HandedOffCaches
    clock_type = EventClock
    noun = ("continuous query", "continuous queries")
    options: ContinuousOptions
    counts: NodeCounts

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        super().__init__(me, options)
        self.counts = NodeCounts()
        self.known: dict[str, Cursor] = {}
        self.clocks: dict[str, EventClock] = {}
        self.dropped: dict[str, int] = {}
        self.newly_coordinated: list[str] = []
        self.handed_off = self.handed_off_type(me, ttl_s=options.handed_off_cache_ttl_s)
        self.cache_usage = CacheUsage()

    def known_commits(self, dataset: str) -> Cursor:
        return self.known.get(dataset, EMPTY_CURSOR)

    def clock_of(self, dataset: str) -> EventClock:
        """The event clock of a dataset; one object, updated in place."""
        return self.clocks.setdefault(dataset, self.clock_type())

    def is_dropped(self, dataset: str) -> bool:
        """Whether the dataset with this key was dropped."""
        return is_dropped(dataset, self.dropped)

    def acknowledge(self, ccq_id: str, cursor: Cursor) -> None:
        """Join a cursor that clients have acknowledged to the record."""
        mine = self.record_table.records[ccq_id]
        if mine.retrieved is cursor or mine.retrieved.covers(cursor):
            return
        joined = mine.retrieved.join(cursor)
        # Keep equal cursors one object: identity is cheap to compare.
        retrieved = cursor if cursor == joined else joined
        self.record_table.update(replace(mine, retrieved=retrieved))

    # --- duties ---------------------------------------------------------------------------------

    def begin_term(self, record: Record, now: float) -> Coordinator:
        clock = self.clock_of(record.ccq.dataset)
        coordinator = self.coordinator_type(record, now=now, options=self.options, clock=clock)
        coordinator.cache.cache_usage = self.cache_usage
        coordinator.counts.of_node = self.counts.labels
        self.newly_coordinated.append(record.id)
        return coordinator

    def stop_term(self, former: Coordinator, record: Record, now: float) -> Effects:
        self.acknowledge(record.id, former.retrieved)
        self._keep_cache(former, now)
        if record.ended is not None:
            failure = self.end_reason(record)
            return former.close(lambda request: RefuseFetch(request, failure))
        return former.close(lambda request: RedirectFetch(request, record.coordinator))

    def end_reason(self, record: Record) -> Failure:
        return end_reason(record)

    def unknown_failure(self, duty_id: str) -> Failure:
        message = f"continuous query {duty_id!r} does not exist"
        return Failure("unknown_ccq", message, (("remedy", "list_ccqs"),))

    def ending_of(self, record: Record) -> Ending | None:
        return "dropped" if self.is_dropped(record.ccq.dataset) else None

    def save_progress(self, duty_id: str) -> None:
        """Join acknowledged cursors to the record, and remove holders whose ranges are read."""
        coordinator = self.coordinated[duty_id]
        self.acknowledge(duty_id, coordinator.retrieved)
        self._keep_holders(duty_id, coordinator.fetches.holders)

    def need_bytes(self, duty_id: str) -> int:
        return self.coordinated[duty_id].cache.bytes

    def on_merged(self, record: Record, now: float, *, is_news: bool) -> Effects:
        released = self.handed_off.on_record(record.id, record, now)
        coordinator = self.coordinated.get(record.id)
        if is_news or coordinator is None:
            return released
        return [*released, *coordinator.apply_retrieved(record.retrieved, now)]

    @property
    def held_bytes(self) -> int:
        return self.cache_usage.bytes

    def with_next_term(self, record: Record, coordinator: str) -> Record:
        """As for any duty; removes caches that this node lost in a restart from the holders."""
        new = super().with_next_term(record, coordinator)
        holders = tuple(
            holder
            for holder in new.holders
            if holder.node != self.me or self.handed_off.has(new.id, holder.term)
        )
        return replace(new, holders=holders)

    def with_successor(self, record: Record, node: str) -> Record:
        """The first offer hands the cache off; later ones find the holder in the record."""
        coordinator = self.coordinated.get(record.id)
        holders = (self._holder_of(coordinator),) if coordinator else ()
        new = self.with_next_term(record, node)
        return replace(new, holders=(*new.holders, *holders))

    def check(self) -> None:
        super().check()
        for clock in self.clocks.values():
            clock.check()
        caches = [coordinator.cache for coordinator in self.coordinated.values()]
        caches += [handed_off.cache for handed_off in self.handed_off.all()]
        assert self.cache_usage.bytes == sum(cache.bytes for cache in caches), "bytes miscounted"
        assert self.cache_usage.spilled_bytes == sum(cache.spilled_bytes for cache in caches)
        for handed_off in self.handed_off.all():
            handed_off.cache.check()
        for ccq_id, coordinator in self.coordinated.items():
            record = self.record_table.records[ccq_id]
            assert coordinator.retrieved.covers(record.retrieved), "retrieved what is not evaluated"
            coordinator.check()

    # --- inside ------------------------------------------------------------------------------

    def _keep_holders(self, ccq_id: str, holders: tuple[Holder, ...]) -> None:
        """Remove all holders but these from the record."""
        mine = self.record_table.records[ccq_id]
        common = tuple(holder for holder in mine.holders if holder in holders)
        if common != mine.holders:
            self.record_table.update(replace(mine, holders=common))

    def _holder_of(self, coordinator: Coordinator) -> Holder:
        """This node as the holder of its whole cache.

        The cache is handed off as soon as the record names this holder and another coordinator.
        """
        self.save_progress(coordinator.ccq.id)
        return Holder(self.me, coordinator.term, coordinator.cache.base, coordinator.cache.until)

    def _keep_cache(self, coordinator: Coordinator, now: float) -> None:
        """Hand off the cache of a stopped coordinator if the record names this node as holder."""
        holders = self.record_table.records[coordinator.ccq.id].holders
        if any((holder.node, holder.term) == (self.me, coordinator.term) for holder in holders):
            self.handed_off.keep(
                coordinator.ccq, term=coordinator.term, cache=coordinator.cache, now=now
            )
        else:
            coordinator.cache.clear()


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
