"""The state that the parts of the machine of duties share, and its transitions.

A package that has duties derives its state from `DutyState` and says there what a coordinator is,
and how it begins and stops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from galileo.election.events import Effects, SaveRecord, Send
from galileo.election.messages import RecordRequest, RecordUpdate, UsageStatistics
from galileo.election.model import NODES_MAX, R
from galileo.election.options import DutyOptions
from galileo.election.peer_usage import PeerUsage
from galileo.election.records import RecordTable
from galileo.errors import Failure

IDS_PER_MESSAGE = 512
RECORDS_PER_MESSAGE = 256
ENDED_MAX = 256


class Term(Protocol):
    """The work of a coordinator in one term."""

    term: int


T = TypeVar("T", bound=Term)


@dataclass(frozen=True, slots=True)
class ElectionEnded:
    """An election that ended.

    Attributes:
        ccq_id: of the duty; of a batch its name.
        begun_at: by the clock of the machine.
        request: a submission that waited for it, if any.
        failure: kind of the failure; empty if a node accepted, or none was needed.
    """

    ccq_id: str
    begun_at: float
    request: int | None
    failure: str = ""


class ElectionCounts:
    """Counts of one node since its start, for metrics; no decision depends on them.

    Attributes:
        elections: that this node began.
        elections_failed: elections in which no node accepted.
        ended: the newest elections that ended; the reader removes them.
    """

    __slots__ = ("elections", "elections_failed", "ended")

    def __init__(self) -> None:
        self.elections = 0
        self.elections_failed = 0
        self.ended: deque[ElectionEnded] = deque(maxlen=ENDED_MAX)


class DutyState(ABC, Generic[R, T]):
    """State of one node.

    Every record enters through `apply_record`, which starts and stops coordinators: this node has
    exactly the live duties whose record names it (except those in `resuming`, which wait for the
    peers after a restart).

    Attributes:
        noun: what the duties are called in errors, one and several.
        coordinated: the terms of this node, by duty.
        dead: peers that are presumed dead.
        coordinating: when each peer last reported that it has duties that are not here.
        resuming: duties that this node had before its restart, and when to resume them.
        changed_records: records that changed in this step.
        counts: for metrics.
        peer_usage: of the other nodes, for elections.
        wall: wall time of the last tick.
        is_measured: whether `measured` is known.
        is_draining: whether this node hands off its duties.
    """

    noun = ("duty", "duties")

    def __init__(self, me: str, options: DutyOptions) -> None:
        self.me = me
        self.options = options
        self.peers = _peers_of(me, options.groups)
        self.record_table: RecordTable[R] = RecordTable(me, options)
        self.coordinated: dict[str, T] = {}
        self.dead: set[str] = set()
        self.coordinating: dict[str, float] = {}
        self.resuming: dict[str, float] = {}
        self.changed_records: list[R] = []
        self.counts = ElectionCounts()
        self.measured = UsageStatistics()
        self.peer_usage = PeerUsage(
            ttl_s=options.usage_ttl_s, poll_timeout_s=options.election.poll_timeout_s
        )
        self.is_measured = False
        self.wall = 0.0
        self.is_draining = False

    # --- what a package with duties defines -----------------------------------------------------

    @abstractmethod
    def begin_term(self, record: R, now: float) -> T:
        """Begin the duty in the term of a record that names this node."""

    @abstractmethod
    def stop_term(self, former: T, record: R, now: float) -> Effects:
        """Stop: the duty has ended, or its record names another term."""

    @abstractmethod
    def end_reason(self, record: R) -> Failure:
        """The error for an ended duty."""

    @abstractmethod
    def unknown_failure(self, duty_id: str) -> Failure:
        """The error for a duty of which no node has a record."""

    def ending_of(self, record: R) -> str | None:
        """Why a live duty is over, where that does not depend on its record; None if it is not."""
        return None

    def save_progress(self, duty_id: str) -> None:
        """Update the record of a duty of this node with what was done in its term."""

    def need_bytes(self, duty_id: str) -> int:
        """Memory that a duty of this node needs at its successor."""
        return 0

    def on_merged(self, record: R, now: float, *, is_news: bool) -> Effects:
        """Called with each merged record, before a term begins or stops."""
        return []

    @property
    def held_bytes(self) -> int:
        """Memory that the duties of this node take."""
        return 0

    def with_successor(self, record: R, node: str) -> R:
        """The record by which this node transfers a duty, in a new term."""
        return self.with_next_term(record, node)

    # --- nodes ----------------------------------------------------------------------------------

    def set_members(self, groups: tuple[tuple[str, ...], ...], racks: Mapping[str, str]) -> None:
        """Replace the nodes of the cluster; the duties of removed ones are taken over."""
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
        """This node's statistics, including its duties."""
        return replace(
            self.measured,
            ccq_count=len(self.coordinated),
            cache_bytes=self.held_bytes,
            is_draining=self.is_draining,
        )

    @property
    def accepts_assignments(self) -> bool:
        """Whether this node accepts further duties."""
        return not self.is_draining and len(self.coordinated) < self.options.coordinated_max

    def assigned_count(self, node: str) -> int:
        """Duties that a node has or was offered by this one, as far as this node knows."""
        is_me = node == self.me
        return len(self.coordinated) if is_me else self.peer_usage.ccq_count(node)

    def count_offer(self, node: str, *, former: str, count: int = 1) -> None:
        """Count an offer, after one to `former` that was refused or not answered."""
        self.peer_usage.forget(former)
        self.peer_usage.record_offer(node, count)

    # --- records --------------------------------------------------------------------------------

    def learn_record(self, incoming: R, now: float) -> Effects:
        """Merge a record that another node has sent, other than as an offer.

        If it names this node as coordinator, this node may have had the duty in that term and have
        forgotten it: it goes on as after a restart, in a new term.
        """
        effects = self.apply_record(incoming, now, is_offer=False)
        duty_id = incoming.id
        if duty_id in self.resuming and any(isinstance(one, SaveRecord) for one in effects):
            peers = self.sharers(self.record_table.records[duty_id])
            effects += self.request_records(dict.fromkeys(peers, (duty_id,)))
        return effects

    def apply_record(self, incoming: R, now: float, *, is_offer: bool = True) -> Effects:
        """Merge a record; save changes durably, then begin or stop the term here.

        A live duty that is over (`ending_of`) ends here, from any node and at any time.
        """
        if incoming.ended is None:
            ending = self.ending_of(incoming)
            if ending is not None:
                incoming = replace(incoming, ended=ending, ended_at=self.wall)
        merged = self.record_table.merge(incoming, now=now, wall=self.wall)
        record = merged.record
        if record is None:
            return []
        effects = self.on_merged(record, now, is_news=merged.is_news)
        if not merged.is_news:
            return effects
        self.changed_records.append(record)
        changes = self._begin_or_stop(record, now, is_offer=is_offer)
        return [SaveRecord(record, durable=True), *effects, *changes]

    def with_next_term(self, record: R, coordinator: str) -> R:
        """The record with a new coordinator, in a term that no other node can use.

        The caller applies it (which saves it) before sending it.
        """
        mine = self.record_table.get(record.id) or record
        round_number = mine.term // NODES_MAX + 1
        term = round_number * NODES_MAX + self.options.ordinal
        return replace(mine, term=term, coordinator=coordinator)

    def start_coordinating(self, duty_id: str, now: float) -> Effects:
        """Make this node the coordinator in a new term, and announce it."""
        record = self.with_next_term(self.record_table.records[duty_id], self.me)
        return [*self.apply_record(record, now), *self.announce([record])]

    def end(self, record: R, ending: str, now: float) -> Effects:
        """End a duty everywhere."""
        ended = replace(record, ended=ending, ended_at=self.wall)
        return [*self.apply_record(ended, now), *self.announce([ended])]

    def end_all_over(self, now: float) -> Effects:
        """End the duties that are over (`ending_of`) in all records of this node."""
        live = [record for record in self.record_table.records.values() if record.ended is None]
        over = [record for record in live if self.ending_of(record) is not None]
        return [effect for record in over for effect in self.apply_record(record, now)]

    def refusal(self, new: R, known: R | None) -> Failure | None:
        """Why a duty cannot be submitted; None if it can.

        Args:
            new: its record.
            known: the one that some node has already.
        """
        if known is not None and known.ended is not None:
            return self.end_reason(known)
        if known is not None and not known.is_same_duty(new):
            return Failure(
                "invalid_input",
                f"the id {new.id!r} belongs to another {self.noun[0]}; submit this one with its "
                "own",
            )
        return self.over_failure(new)

    def over_failure(self, record: R) -> Failure | None:
        """The error for a live duty that is over (`ending_of`); None if it is not."""
        ending = self.ending_of(record)
        return self.end_reason(replace(record, ended=ending)) if ending is not None else None

    # --- sending --------------------------------------------------------------------------------

    def announce(self, records: Iterable[R]) -> Effects:
        """Send records to the nodes that share them."""
        return self.distribute((record, self.sharers(record)) for record in records)

    def send_records(self, to: str, records: Iterable[R]) -> Effects:
        return [Send(to, RecordUpdate(page)) for page in record_pages(records)]

    def distribute(
        self, records: Iterable[tuple[R, Iterable[str]]], *, note: bool = False
    ) -> Effects:
        """Send each record to some peers, in few messages; those to equal records are equal."""
        by_peer: dict[str, list[R]] = {}
        for record, peers in records:
            for peer in peers:
                by_peer.setdefault(peer, []).append(record)
        messages: dict[tuple[int, ...], list[RecordUpdate[R]]] = {}
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
        """Ask peers for the records of some duties, in messages of bounded size."""
        return [
            Send(peer, RecordRequest(tuple(ids[start : start + IDS_PER_MESSAGE])))
            for peer, ids in ids_by_peer.items()
            for start in range(0, len(ids), IDS_PER_MESSAGE)
        ]

    def live_replicas(self, duty_id: str) -> list[str]:
        """The other nodes that keep the record of a duty and are not gone."""
        replicas = self.record_table.replicas(duty_id)
        return [node for node in replicas if node != self.me and not self.is_gone(node)]

    def sharers(self, record: R) -> list[str]:
        """The other nodes of the cluster that share a record."""
        sharers = self.record_table.sharers(record)
        return [node for node in sharers if node in self.peers]

    def check(self) -> None:
        self.record_table.check()
        assert set(self.coordinated) | set(self.resuming) == set(
            self.record_table.coordinated_by(self.me)
        )
        assert not set(self.coordinated) & set(self.resuming), "running and resuming"
        for record in self.record_table.records.values():
            is_over = record.ended is not None
            assert is_over or self.ending_of(record) is None, "a duty that is over is alive"
        for duty_id, term in self.coordinated.items():
            record = self.record_table.records[duty_id]
            assert term.term == record.term, "coordinates an old term"

    def _begin_or_stop(self, record: R, now: float, *, is_offer: bool) -> Effects:
        """Begin or stop the term here as the record demands."""
        duty_id = record.id
        self.resuming.pop(duty_id, None)
        former = self.coordinated.pop(duty_id, None)
        effects = self.stop_term(former, record, now) if former is not None else []
        is_mine = record.coordinator == self.me and record.ended is None
        if is_mine and not is_offer:
            self.resuming[duty_id] = now + self.options.resume_check_s
        elif is_mine:
            stored = self.record_table.records[duty_id]
            self.coordinated[duty_id] = self.begin_term(stored, now)
        return effects


def _peers_of(me: str, groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(node for group in groups for node in group if node != me)


def record_pages(records: Iterable[R]) -> list[tuple[R, ...]]:
    """Split records into messages."""
    records = tuple(records)
    return [
        records[i : i + RECORDS_PER_MESSAGE] for i in range(0, len(records), RECORDS_PER_MESSAGE)
    ]
