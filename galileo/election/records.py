"""The record table: the records of duties that one node has.

A record is *shared* by its replicas, which rendezvous hashing draws (Thaler, Ravishankar, 1998),
and by its participants, such as its coordinator. A node may have others for a while: those that it
submitted, or shared under an earlier topology. These are *surplus*: they stay until all replicas
have acknowledged them.

Records only grow in the order of `Record.merge`. Wall time is read once, when a record is first
seen, and converted to a deadline on the monotonic clock: later jumps of the clock do not matter.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Generic

from galileo.election.messages import Digest, Summary
from galileo.election.model import R
from galileo.election.options import DutyOptions

SUMMARY_ENTRIES_MAX = 512
_FINGERPRINT_MODULUS = 1 << 64
_FINGERPRINTS_KEPT = 4096
_EMPTY = Digest(0, 0)


def draw(key: str, node: str) -> bytes:
    """A number that differs for each pair and is the same at every node."""
    return blake2b(f"{key}\0{node}".encode(), digest_size=8).digest()


@lru_cache(maxsize=4096)
def replicas_of(
    duty_id: str, nodes: tuple[str, ...], count: int, racks: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The `count` nodes with the lowest draws, or all, from as many racks as there are.

    Without racks, a node more or less changes one of them at most.

    Args:
        duty_id: of the duty.
        nodes: of the cluster.
        count: nodes that keep the record.
        racks: of each node; none: each node is a rack of its own.
    """
    drawn = sorted(zip(nodes, racks or nodes, strict=True), key=lambda one: draw(duty_id, one[0]))
    before, rounds = Counter[str](), list[tuple[int, str]]()
    for node, rack in drawn:
        rounds.append((before[rack], node))
        before[rack] += 1
    first = heapq.nsmallest(count, rounds, key=lambda one: one[0])  # Stable, as sorted is.
    return tuple(node for _, node in first)


@dataclass(frozen=True, slots=True)
class MergeResult(Generic[R]):
    """The outcome of merging a record.

    Attributes:
        record: the merged one; None if the incoming one was refused as ended long ago.
        is_news: term, coordinator or end are new here.
    """

    record: R | None
    is_news: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Ids of records that are newer at one of two nodes."""

    newer_here: tuple[str, ...]
    newer_there: tuple[str, ...]


@dataclass(slots=True)
class Surplus:
    """A surplus record since its last change; `None` where the time is not known yet.

    Attributes:
        acknowledged_by: the replicas that have it.
        since: when it was first looked at.
    """

    acknowledged_by: set[str] = field(default_factory=set)
    since: float | None = None


class RecordTable(Generic[R]):
    """Records by id, with indexes by coordinator, deadline and nodes that share them.

    Args:
        me: name of this node.
        options: with the nodes of the cluster.

    Attributes:
        surplus: the surplus records, those first that were sent to replicas longest ago.
    """

    def __init__(self, me: str, options: DutyOptions) -> None:
        self.records: dict[str, R] = {}
        self.dirty: dict[str, None] = {}
        self.surplus: dict[str, Surplus] = {}
        self._me = me
        self._options = options
        self._replicas: dict[str, tuple[str, ...]] = {}
        self._teams: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._digests: dict[str, Digest] = {}
        self._ids_by_coordinator: dict[str, dict[str, None]] = {}
        self._expires: dict[str, float] = {}
        self._purges: dict[str, float] = {}
        self._agenda: list[tuple[float, str]] = []

    def get(self, duty_id: str) -> R | None:
        return self.records.get(duty_id)

    def coordinated_by(self, node: str) -> tuple[str, ...]:
        """The live duties whose coordinator is `node`."""
        return tuple(self._ids_by_coordinator.get(node, ()))

    def coordinated_count(self, node: str) -> int:
        """Number of live duties whose coordinator is `node`, offers included."""
        return len(self._ids_by_coordinator.get(node, ()))

    @property
    def coordinators(self) -> tuple[str, ...]:
        """The nodes that coordinate live duties, sorted."""
        return tuple(sorted(node for node, ids in self._ids_by_coordinator.items() if ids))

    def set_options(self, options: DutyOptions) -> None:
        """Follow a change of the nodes: other nodes share the records."""
        self._options = options
        self._replicas.clear()
        self._teams.clear()
        self._digests.clear()
        self.surplus.clear()
        for record in self.records.values():
            self._replicas[record.id] = self.replicas(record.id)
            self._count_shared(record, 1)
            self._note_surplus(record)

    def replicas(self, duty_id: str) -> tuple[str, ...]:
        """The nodes that keep the record of a duty, whether or not it is here."""
        known = self._replicas.get(duty_id)
        if known is not None:
            return known
        options = self._options
        nodes = tuple(node for group in options.groups for node in group)
        racks = tuple(options.racks[node] for node in nodes) if options.racks else ()
        replicas = replicas_of(duty_id, nodes, options.record_replicas, racks)
        return self._teams.setdefault(replicas, replicas)  # One object for all equal ones.

    def sharers(self, record: R) -> tuple[str, ...]:
        """The nodes that share a record, this one included if it does."""
        return tuple(dict.fromkeys((*self.replicas(record.id), *record.participants)))

    def is_shared(self, record: R) -> bool:
        """Whether this node is one of those that share a record.

        What it has ended itself is surplus, unless it is a replica: digests leave out ends, so one
        whose announcement is lost would stay here, while another node takes the duty over.
        """
        is_over = record.ended is not None
        return self._me in (self.replicas(record.id) if is_over else self.sharers(record))

    def forget(self, duty_id: str) -> None:
        """Remove a surplus record."""
        assert duty_id in self.surplus, f"{duty_id} is not surplus"
        self._count(self.records[duty_id], -1)
        self._remove(duty_id)

    def merge(self, incoming: R, *, now: float, wall: float) -> MergeResult[R]:
        mine = self.records.get(incoming.id)
        if mine is None:
            return self._insert(incoming, now=now, wall=wall)
        merged = mine.merge(incoming)
        is_news = _announced_state(merged) != _announced_state(mine)
        if merged != mine:
            self._replace(mine, merged, now=now)
            if not is_news:
                self.dirty[merged.id] = None
        return MergeResult(merged, is_news)

    def update(self, record: R) -> None:
        """Put a record of which no announced field has changed in place; a later `pop_dirty`
        returns it.
        """
        self._set(self.records[record.id], record)
        self.dirty[record.id] = None

    def pop_dirty(self, at_most: int) -> list[R]:
        """Remove and return records of which no announced field changed, oldest first."""
        ids = list(itertools.islice(self.dirty, at_most))
        for duty_id in ids:
            del self.dirty[duty_id]
        return [self.records[duty_id] for duty_id in ids]

    def due(self, now: float) -> list[str]:
        """Ids of records whose deadline (expiry or purge) has passed; each once."""
        ids = []
        while self._agenda and self._agenda[0][0] <= now:
            at, duty_id = heapq.heappop(self._agenda)
            if at == self._purges.get(duty_id, self._expires.get(duty_id)):
                ids.append(duty_id)
        return ids

    def postpone(self, duty_id: str, until: float) -> None:
        """Set the deadline of a record."""
        self._expires[duty_id] = until
        heapq.heappush(self._agenda, (until, duty_id))

    def purge(self, duty_id: str) -> None:
        """Remove the record of an ended duty."""
        assert self.records[duty_id].ended is not None, f"{duty_id} is purged alive"
        self._remove(duty_id)

    # --- comparing with peers ----------------------------------------------------------------

    def digest(self, peer: str) -> Digest:
        """Of the live records that this node and a peer share."""
        return self._digests.get(peer, _EMPTY)

    def summary(self, peer: str, *, after: str) -> Summary:
        """A page of the terms of records that are shared with a peer, past id `after`."""
        ids = sorted(
            duty_id
            for duty_id, record in self.records.items()
            if duty_id > after and self._is_shared_with(peer, record)
        )
        page = ids[:SUMMARY_ENTRIES_MAX]
        records = [self.records[duty_id] for duty_id in page]
        entries = tuple((r.id, r.term, r.ended is not None) for r in records)
        return Summary(after, page[-1] if len(ids) > len(page) else None, entries)

    def compare(self, peer: str, theirs: Summary) -> Difference:
        """Which records are newer here or there, over the summary's range of ids.

        Ends of duties that the other node does not know are ignored. A record that the other node
        does not share counts as newer here.
        """
        entries = {duty_id: (term, ended) for duty_id, term, ended in theirs.entries}
        here, there = [], []
        for duty_id, record in self.records.items():
            if duty_id in entries:
                term, ended = entries[duty_id]
                is_ended_here = record.ended is not None and not ended
                if record.term > term or is_ended_here or peer not in self.sharers(record):
                    here.append(duty_id)
                if record.term < term or (record.ended is None and ended):
                    there.append(duty_id)
            elif theirs.after < duty_id and (theirs.until is None or duty_id <= theirs.until):
                is_missing = record.ended is None and self._is_shared_with(peer, record)
                here += [duty_id] * is_missing
        there += [i for i, (_, ended) in entries.items() if i not in self.records and not ended]
        return Difference(tuple(here), tuple(there))

    def check(self) -> None:
        live = [r for r in self.records.values() if r.ended is None]
        digests: dict[str, Digest] = {}
        for record in live:
            for peer in self._peers_sharing(record):
                digests[peer] = _with(digests.get(peer, _EMPTY), record, 1)
        assert {p: d for p, d in self._digests.items() if d.count} == digests, "wrong digests"
        surplus = {i for i, record in self.records.items() if not self.is_shared(record)}
        assert set(self.surplus) == surplus, "surplus records are not known as such"
        live_ids = {r.id for r in live}
        assert live_ids == {duty_id for ids in self._ids_by_coordinator.values() for duty_id in ids}

    # --- inside ------------------------------------------------------------------------------

    def _insert(self, incoming: R, *, now: float, wall: float) -> MergeResult[R]:
        duty_id = incoming.id
        remaining_s = incoming.expires_at - wall
        if incoming.ended is not None and remaining_s < -self._options.tombstone_slack_s:
            return MergeResult(None, is_news=False)
        self.records[duty_id] = incoming
        self._replicas[duty_id] = self.replicas(duty_id)
        self.postpone(duty_id, max(now, now + remaining_s))
        self._count(incoming, 1)
        self._note_surplus(incoming)
        self._schedule_purge(incoming, now=now)
        return MergeResult(incoming, is_news=True)

    def _replace(self, old: R, new: R, *, now: float) -> None:
        self._set(old, new)
        if old.ended is None:
            self._schedule_purge(new, now=now)

    def _set(self, old: R, new: R) -> None:
        """Put a record in place of another; its participants may change."""
        if _announced_state(old) == _announced_state(new) and old.participants == new.participants:
            self.records[new.id] = new
            return
        self._count(old, -1)
        self.records[new.id] = new
        self._count(new, 1)
        self._note_surplus(new)

    def _count(self, record: R, by: int) -> None:
        if record.ended is not None:
            return
        self._count_shared(record, by)
        ids = self._ids_by_coordinator.setdefault(record.coordinator, {})
        if by > 0:
            ids[record.id] = None
        else:
            del ids[record.id]

    def _count_shared(self, record: R, by: int) -> None:
        if record.ended is None:
            for peer in self._peers_sharing(record):
                self._digests[peer] = _with(self._digests.get(peer, _EMPTY), record, by)

    def _peers_sharing(self, record: R) -> list[str]:
        """The other nodes that share a record which this node shares."""
        sharers = self.sharers(record)
        return [node for node in sharers if node != self._me] if self._me in sharers else []

    def _is_shared_with(self, peer: str, record: R) -> bool:
        sharers = self.sharers(record)
        return self._me in sharers and peer in sharers

    def _note_surplus(self, record: R) -> None:
        """A changed record has to be acknowledged again."""
        if self.is_shared(record):
            self.surplus.pop(record.id, None)
        else:
            self.surplus[record.id] = Surplus()

    def _remove(self, duty_id: str) -> None:
        for known in (
            self.records,
            self._expires,
            self._purges,
            self.dirty,
            self._replicas,
            self.surplus,
        ):
            known.pop(duty_id, None)

    def _schedule_purge(self, record: R, *, now: float) -> None:
        """Plan the removal of an ended duty, once no late announcement of it can arrive."""
        if record.ended is None:
            return
        options, duty_id = self._options, record.id
        needed_s = max(0.0, self._expires[duty_id] - now) + options.tombstone_slack_s
        at = now + min(needed_s, options.tombstone_max_s)
        self._purges[duty_id] = at
        heapq.heappush(self._agenda, (at, duty_id))


def _announced_state(record: R) -> tuple[int, str, str | None]:
    """The fields whose changes are announced at once."""
    return (record.term, record.coordinator, record.ended)


def _with(digest: Digest, record: R, by: int) -> Digest:
    """The digest with a record more or less."""
    fingerprint = (digest.fingerprint + by * _fingerprint(record)) % _FINGERPRINT_MODULUS
    return Digest(fingerprint, digest.count + by)


def _fingerprint(record: R) -> int:
    return _hash(record.id, record.term, record.coordinator)


@lru_cache(maxsize=_FINGERPRINTS_KEPT)
def _hash(duty_id: str, term: int, coordinator: str) -> int:
    text = f"{duty_id}\0{term}\0{coordinator}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
