"""The record table: the records of CCQs that one node has.

A record is *shared* by its replicas (`galileo.ccq.replicas`), its coordinator, and the nodes that
hold a part of its results. A node may have others for a while: those that it submitted, or shared
under an earlier topology. These are *surplus*: they stay until all replicas have acknowledged them.

Records only grow in the order of `Record.merge`. Wall time is read once, when a record is first
seen, and converted to a deadline on the monotonic clock: later jumps of the clock do not matter.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b

from galileo.ccq.messages import Digest, Summary
from galileo.ccq.model import Holder, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.replicas import replicas_of
from galileo.cursor import Cursor

SUMMARY_ENTRIES_MAX = 512
_FINGERPRINT_MODULUS = 1 << 64
_FINGERPRINTS_KEPT = 4096
_EMPTY = Digest(0, 0)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The outcome of merging a record.

    Attributes:
        record: the merged one; None if the incoming one was refused as ended long ago.
        is_news: term, coordinator or end are new here.
    """

    record: Record | None
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


class RecordTable:
    """Records by id, with indexes by coordinator, deadline and nodes that share them.

    Args:
        me: name of this node.
        options: with the nodes of the cluster.

    Attributes:
        surplus: the surplus records, those first that were sent to replicas longest ago.
    """

    def __init__(self, me: str, options: ContinuousOptions) -> None:
        self.records: dict[str, Record] = {}
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

    def get(self, ccq_id: str) -> Record | None:
        return self.records.get(ccq_id)

    def coordinated_by(self, node: str) -> tuple[str, ...]:
        """The live CCQs whose coordinator is `node`."""
        return tuple(self._ids_by_coordinator.get(node, ()))

    def coordinated_count(self, node: str) -> int:
        """Number of live CCQs whose coordinator is `node`, offers included."""
        return len(self._ids_by_coordinator.get(node, ()))

    @property
    def coordinators(self) -> tuple[str, ...]:
        """The nodes that coordinate live CCQs, sorted."""
        return tuple(sorted(node for node, ids in self._ids_by_coordinator.items() if ids))

    def set_options(self, options: ContinuousOptions) -> None:
        """Follow a change of the nodes: other nodes share the records."""
        self._options = options
        self._replicas.clear()
        self._teams.clear()
        self._digests.clear()
        self.surplus.clear()
        for record in self.records.values():
            self._replicas[record.ccq.id] = self.replicas(record.ccq.id)
            self._count_shared(record, 1)
            self._note_surplus(record)

    def replicas(self, ccq_id: str) -> tuple[str, ...]:
        """The nodes that keep the record of a CCQ, whether or not it is here."""
        known = self._replicas.get(ccq_id)
        if known is not None:
            return known
        options = self._options
        nodes = tuple(node for group in options.groups for node in group)
        racks = tuple(options.racks[node] for node in nodes) if options.racks else ()
        replicas = replicas_of(ccq_id, nodes, options.record_replicas, racks)
        return self._teams.setdefault(replicas, replicas)  # One object for all equal ones.

    def sharers(self, record: Record) -> tuple[str, ...]:
        """The nodes that share a record, this one included if it does."""
        others = (record.coordinator, *(holder.node for holder in record.holders))
        return tuple(dict.fromkeys((*self.replicas(record.ccq.id), *others)))

    def is_shared(self, record: Record) -> bool:
        """Whether this node is one of those that share a record.

        What it has ended itself is surplus, unless it is a replica: digests leave out ends, so one
        whose announcement is lost would stay here, while another node takes the CCQ over.
        """
        is_over = record.ended is not None
        return self._me in (self.replicas(record.ccq.id) if is_over else self.sharers(record))

    def forget(self, ccq_id: str) -> None:
        """Remove a surplus record."""
        assert ccq_id in self.surplus, f"{ccq_id} is not surplus"
        self._count(self.records[ccq_id], -1)
        self._remove(ccq_id)

    def merge(self, incoming: Record, *, now: float, wall: float) -> MergeResult:
        mine = self.records.get(incoming.ccq.id)
        if mine is None:
            return self._insert(incoming, now=now, wall=wall)
        merged = mine.merge(incoming)
        is_news = _announced_state(merged) != _announced_state(mine)
        if merged != mine:
            self._replace(mine, merged, now=now)
            if not is_news:
                self.dirty[merged.ccq.id] = None
        return MergeResult(merged, is_news)

    def acknowledge(self, ccq_id: str, cursor: Cursor) -> None:
        """Join a cursor that clients have acknowledged to the record."""
        mine = self.records[ccq_id]
        if mine.retrieved is cursor or mine.retrieved.covers(cursor):
            return
        joined = mine.retrieved.join(cursor)
        # Keep equal cursors one object: identity is cheap to compare.
        retrieved = cursor if cursor == joined else joined
        self._set(mine, replace(mine, retrieved=retrieved))
        self.dirty[ccq_id] = None

    def keep_holders(self, ccq_id: str, holders: tuple[Holder, ...]) -> None:
        """Remove all holders but these from the record."""
        mine = self.records[ccq_id]
        if not mine.holders:
            return
        common = tuple(holder for holder in mine.holders if holder in holders)
        if common != mine.holders:
            self._set(mine, replace(mine, holders=common))
            self.dirty[ccq_id] = None

    def pop_dirty(self, at_most: int) -> list[Record]:
        """Remove and return records of which only the retrieved cursor or holders changed, oldest
        first.
        """
        ids = list(itertools.islice(self.dirty, at_most))
        for ccq_id in ids:
            del self.dirty[ccq_id]
        return [self.records[ccq_id] for ccq_id in ids]

    def due(self, now: float) -> list[str]:
        """Ids of records whose deadline (expiry or purge) has passed; each once."""
        ids = []
        while self._agenda and self._agenda[0][0] <= now:
            at, ccq_id = heapq.heappop(self._agenda)
            if at == self._purges.get(ccq_id, self._expires.get(ccq_id)):
                ids.append(ccq_id)
        return ids

    def postpone(self, ccq_id: str, until: float) -> None:
        """Set the deadline of a record."""
        self._expires[ccq_id] = until
        heapq.heappush(self._agenda, (until, ccq_id))

    def purge(self, ccq_id: str) -> None:
        """Remove the record of an ended CCQ."""
        assert self.records[ccq_id].ended is not None, f"{ccq_id} is purged alive"
        self._remove(ccq_id)

    # --- comparing with peers ----------------------------------------------------------------

    def digest(self, peer: str) -> Digest:
        """Of the live records that this node and a peer share."""
        return self._digests.get(peer, _EMPTY)

    def summary(self, peer: str, *, after: str) -> Summary:
        """A page of the terms of records that are shared with a peer, past id `after`."""
        ids = sorted(
            ccq_id
            for ccq_id, record in self.records.items()
            if ccq_id > after and self._is_shared_with(peer, record)
        )
        page = ids[:SUMMARY_ENTRIES_MAX]
        records = [self.records[ccq_id] for ccq_id in page]
        entries = tuple((r.ccq.id, r.term, r.ended is not None) for r in records)
        return Summary(after, page[-1] if len(ids) > len(page) else None, entries)

    def compare(self, peer: str, theirs: Summary) -> Difference:
        """Which records are newer here or there, over the summary's range of ids.

        Ends of CCQs that the other node does not know are ignored. A record that the other node
        does not share counts as newer here.
        """
        entries = {ccq_id: (term, ended) for ccq_id, term, ended in theirs.entries}
        here, there = [], []
        for ccq_id, record in self.records.items():
            if ccq_id in entries:
                term, ended = entries[ccq_id]
                is_ended_here = record.ended is not None and not ended
                if record.term > term or is_ended_here or peer not in self.sharers(record):
                    here.append(ccq_id)
                if record.term < term or (record.ended is None and ended):
                    there.append(ccq_id)
            elif theirs.after < ccq_id and (theirs.until is None or ccq_id <= theirs.until):
                is_missing = record.ended is None and self._is_shared_with(peer, record)
                here += [ccq_id] * is_missing
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
        live_ids = {r.ccq.id for r in live}
        assert live_ids == {ccq_id for ids in self._ids_by_coordinator.values() for ccq_id in ids}

    # --- inside ------------------------------------------------------------------------------

    def _insert(self, incoming: Record, *, now: float, wall: float) -> MergeResult:
        ccq_id = incoming.ccq.id
        remaining_s = incoming.ccq.expires_at - wall
        if incoming.ended is not None and remaining_s < -self._options.tombstone_slack_s:
            return MergeResult(None, is_news=False)
        self.records[ccq_id] = incoming
        self._replicas[ccq_id] = self.replicas(ccq_id)
        self.postpone(ccq_id, max(now, now + remaining_s))
        self._count(incoming, 1)
        self._note_surplus(incoming)
        self._schedule_purge(incoming, now=now)
        return MergeResult(incoming, is_news=True)

    def _replace(self, old: Record, new: Record, *, now: float) -> None:
        self._set(old, new)
        if old.ended is None:
            self._schedule_purge(new, now=now)

    def _set(self, old: Record, new: Record) -> None:
        """Put a record in place of another; its coordinator or holders may change."""
        if _announced_state(old) == _announced_state(new) and old.holders == new.holders:
            self.records[new.ccq.id] = new
            return
        self._count(old, -1)
        self.records[new.ccq.id] = new
        self._count(new, 1)
        self._note_surplus(new)

    def _count(self, record: Record, by: int) -> None:
        if record.ended is not None:
            return
        self._count_shared(record, by)
        ids = self._ids_by_coordinator.setdefault(record.coordinator, {})
        if by > 0:
            ids[record.ccq.id] = None
        else:
            del ids[record.ccq.id]

    def _count_shared(self, record: Record, by: int) -> None:
        if record.ended is None:
            for peer in self._peers_sharing(record):
                self._digests[peer] = _with(self._digests.get(peer, _EMPTY), record, by)

    def _peers_sharing(self, record: Record) -> list[str]:
        """The other nodes that share a record which this node shares."""
        sharers = self.sharers(record)
        return [node for node in sharers if node != self._me] if self._me in sharers else []

    def _is_shared_with(self, peer: str, record: Record) -> bool:
        sharers = self.sharers(record)
        return self._me in sharers and peer in sharers

    def _note_surplus(self, record: Record) -> None:
        """A changed record has to be acknowledged again."""
        if self.is_shared(record):
            self.surplus.pop(record.ccq.id, None)
        else:
            self.surplus[record.ccq.id] = Surplus()

    def _remove(self, ccq_id: str) -> None:
        for known in (
            self.records,
            self._expires,
            self._purges,
            self.dirty,
            self._replicas,
            self.surplus,
        ):
            known.pop(ccq_id, None)

    def _schedule_purge(self, record: Record, *, now: float) -> None:
        """Plan the removal of an ended CCQ, once no late announcement of it can arrive."""
        if record.ended is None:
            return
        options, ccq_id = self._options, record.ccq.id
        needed_s = max(0.0, self._expires[ccq_id] - now) + options.tombstone_slack_s
        at = now + min(needed_s, options.tombstone_max_s)
        self._purges[ccq_id] = at
        heapq.heappush(self._agenda, (at, ccq_id))


def _announced_state(record: Record) -> tuple[int, str, str | None]:
    """The fields whose changes are announced at once."""
    return (record.term, record.coordinator, record.ended)


def _with(digest: Digest, record: Record, by: int) -> Digest:
    """The digest with a record more or less."""
    fingerprint = (digest.fingerprint + by * _fingerprint(record)) % _FINGERPRINT_MODULUS
    return Digest(fingerprint, digest.count + by)


def _fingerprint(record: Record) -> int:
    return _hash(record.ccq.id, record.term, record.coordinator)


@lru_cache(maxsize=_FINGERPRINTS_KEPT)
def _hash(ccq_id: str, term: int, coordinator: str) -> int:
    text = f"{ccq_id}\0{term}\0{coordinator}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
