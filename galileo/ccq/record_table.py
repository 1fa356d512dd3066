"""The record table: the records of all CCQs of the cluster that one node knows.

Records only grow in the order of `Record.merge`. Wall time is read once, when a record is first
seen, and converted to a deadline on the monotonic clock: later jumps of the clock do not matter.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from galileo.ccq.messages import Digest, Summary
from galileo.ccq.model import Holder, Record
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import Cursor

SUMMARY_ENTRIES_MAX = 512
_FINGERPRINT_MODULUS = 1 << 64
_FINGERPRINTS_KEPT = 4096


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


class RecordTable:
    """Records by id, with indexes by coordinator, owner and deadline."""

    def __init__(self, options: ContinuousOptions) -> None:
        self.records: dict[str, Record] = {}
        self.dirty: dict[str, None] = {}
        self._options = options
        self._ids_by_coordinator: dict[str, dict[str, None]] = {}
        self._owned: Counter[str] = Counter()
        self._fingerprint = 0
        self._live = 0
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

    def owned_by(self, owner: str) -> int:
        """Number of live CCQs of an owner."""
        return self._owned[owner]

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
        self.records[ccq_id] = replace(mine, retrieved=retrieved)
        self.dirty[ccq_id] = None

    def keep_holders(self, ccq_id: str, holders: tuple[Holder, ...]) -> None:
        """Remove all holders but these from the record."""
        mine = self.records[ccq_id]
        if not mine.holders:
            return
        common = tuple(holder for holder in mine.holders if holder in holders)
        if common != mine.holders:
            self.records[ccq_id] = replace(mine, holders=common)
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
        for known in (self.records, self._expires, self._purges, self.dirty):
            known.pop(ccq_id, None)

    # --- comparing with peers ----------------------------------------------------------------

    @property
    def digest(self) -> Digest:
        return Digest(self._fingerprint, self._live)

    def summary(self, *, after: str) -> Summary:
        """A page of the records' terms, past id `after`."""
        ids = sorted(ccq_id for ccq_id in self.records if ccq_id > after)
        page = ids[:SUMMARY_ENTRIES_MAX]
        records = [self.records[ccq_id] for ccq_id in page]
        entries = tuple((r.ccq.id, r.term, r.ended is not None) for r in records)
        return Summary(after, page[-1] if len(ids) > len(page) else None, entries)

    def compare(self, theirs: Summary) -> Difference:
        """Which records are newer here or there, over the summary's range of ids.

        Ends of CCQs that the other node does not know are ignored.
        """
        entries = {ccq_id: (term, ended) for ccq_id, term, ended in theirs.entries}
        here, there = [], []
        for ccq_id, record in self.records.items():
            if ccq_id in entries:
                term, ended = entries[ccq_id]
                if record.term > term or (record.ended is not None and not ended):
                    here.append(ccq_id)
                if record.term < term or (record.ended is None and ended):
                    there.append(ccq_id)
            elif theirs.after < ccq_id and (theirs.until is None or ccq_id <= theirs.until):
                here += [ccq_id] * (record.ended is None)
        there += [i for i, (_, ended) in entries.items() if i not in self.records and not ended]
        return Difference(tuple(here), tuple(there))

    def check(self) -> None:
        live = [r for r in self.records.values() if r.ended is None]
        assert self._live == len(live), "the count of live records is wrong"
        assert self._fingerprint == sum(map(_fingerprint, live)) % _FINGERPRINT_MODULUS
        assert +self._owned == Counter(r.ccq.owner for r in live), "owners are counted wrongly"
        live_ids = {r.ccq.id for r in live}
        assert live_ids == {ccq_id for ids in self._ids_by_coordinator.values() for ccq_id in ids}

    # --- inside ------------------------------------------------------------------------------

    def _insert(self, incoming: Record, *, now: float, wall: float) -> MergeResult:
        ccq_id = incoming.ccq.id
        remaining_s = incoming.ccq.expires_at - wall
        if incoming.ended is not None and remaining_s < -self._options.tombstone_slack_s:
            return MergeResult(None, is_news=False)
        self.records[ccq_id] = incoming
        self.postpone(ccq_id, max(now, now + remaining_s))
        self._count(incoming, 1)
        self._schedule_purge(incoming, now=now)
        return MergeResult(incoming, is_news=True)

    def _replace(self, old: Record, new: Record, *, now: float) -> None:
        self._count(old, -1)
        self.records[new.ccq.id] = new
        self._count(new, 1)
        if old.ended is None:
            self._schedule_purge(new, now=now)

    def _count(self, record: Record, by: int) -> None:
        if record.ended is not None:
            return
        self._live += by
        self._owned[record.ccq.owner] += by
        if not self._owned[record.ccq.owner]:
            del self._owned[record.ccq.owner]
        self._fingerprint += by * _fingerprint(record)
        self._fingerprint %= _FINGERPRINT_MODULUS
        ids = self._ids_by_coordinator.setdefault(record.coordinator, {})
        if by > 0:
            ids[record.ccq.id] = None
        else:
            del ids[record.ccq.id]

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


def _fingerprint(record: Record) -> int:
    return _hash(record.ccq.id, record.term, record.coordinator)


@lru_cache(maxsize=_FINGERPRINTS_KEPT)
def _hash(ccq_id: str, term: int, coordinator: str) -> int:
    text = f"{ccq_id}\0{term}\0{coordinator}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
