"""The record table: the records of all CCQs of the cluster, as far as one node knows them.

Records only ever grow in the order of `Record.merge`. Wall time is looked at once, when a
record is first seen, and turned into a deadline on the monotonic clock: a clock that jumps
afterwards ends nothing early.
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
    """What became of an incoming record.

    Attributes:
        record: as it now stands; None where the incoming one was refused as long over.
        is_news: term, coordinator or end are new here.
        is_stale: the incoming one lags behind in term or end.
    """

    record: Record | None
    is_news: bool
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """What two nodes have to tell each other: ids of records."""

    newer_here: tuple[str, ...]
    newer_there: tuple[str, ...]


class RecordTable:
    """See the module."""

    def __init__(self, options: ContinuousOptions) -> None:
        self.records: dict[str, Record] = {}
        self.dirty: dict[str, None] = {}
        self._options = options
        self._led_by: dict[str, dict[str, None]] = {}
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
        return tuple(self._led_by.get(node, ()))

    def owned_by(self, owner: str) -> int:
        """How many live CCQs an owner has."""
        return self._owned[owner]

    def merge(self, incoming: Record, *, now: float, wall: float) -> MergeResult:
        mine = self.records.get(incoming.ccq.id)
        if mine is None:
            return self._adopt(incoming, now=now, wall=wall)
        merged = mine.merge(incoming)
        is_news = _announced_state(merged) != _announced_state(mine)
        if merged != mine:
            self._replace(mine, merged, now=now)
            if not is_news:
                self.dirty[merged.ccq.id] = None
        return MergeResult(
            merged, is_news, is_stale=_announced_state(merged) != _announced_state(incoming)
        )

    def acknowledge(self, ccq_id: str, cursor: Cursor) -> None:
        """Joins what clients have acknowledged to the record."""
        mine = self.records[ccq_id]
        if mine.retrieved is cursor or mine.retrieved.covers(cursor):
            return
        joined = mine.retrieved.join(cursor)
        # The same object where it says the same, so that the next look need not compare.
        retrieved = cursor if cursor == joined else joined
        self.records[ccq_id] = replace(mine, retrieved=retrieved)
        self.dirty[ccq_id] = None

    def keep_holders(self, ccq_id: str, holders: tuple[Holder, ...]) -> None:
        """Names no holders but these any more, all of which are named."""
        mine = self.records[ccq_id]
        if not mine.holders:
            return
        kept = tuple(one for one in mine.holders if one in holders)
        if kept != mine.holders:
            self.records[ccq_id] = replace(mine, holders=kept)
            self.dirty[ccq_id] = None

    def pop_dirty(self, at_most: int) -> list[Record]:
        """Records whose retrieved cursor alone has changed since they were last taken, those that
        wait longest first.
        """
        ids = list(itertools.islice(self.dirty, at_most))
        for ccq_id in ids:
            del self.dirty[ccq_id]
        return [self.records[ccq_id] for ccq_id in ids]

    def due(self, now: float) -> list[str]:
        """Ids of records whose deadline (to expire or to be purged) is over; each once."""
        ids = []
        while self._agenda and self._agenda[0][0] <= now:
            at, ccq_id = heapq.heappop(self._agenda)
            if at == self._purges.get(ccq_id, self._expires.get(ccq_id)):
                ids.append(ccq_id)
        return ids

    def postpone(self, ccq_id: str, until: float) -> None:
        """Puts the deadline of a record off."""
        self._expires[ccq_id] = until
        heapq.heappush(self._agenda, (until, ccq_id))

    def purge(self, ccq_id: str) -> None:
        """Forgets an ended CCQ."""
        assert self.records[ccq_id].ended is not None, f"{ccq_id} is purged alive"
        for known in (self.records, self._expires, self._purges, self.dirty):
            known.pop(ccq_id, None)

    # --- comparing with peers ----------------------------------------------------------------

    @property
    def digest(self) -> Digest:
        return Digest(self._fingerprint, self._live)

    def summary(self, *, after: str) -> Summary:
        """A page of the records' terms, from id `after` on."""
        ids = sorted(ccq_id for ccq_id in self.records if ccq_id > after)
        page = ids[:SUMMARY_ENTRIES_MAX]
        records = [self.records[ccq_id] for ccq_id in page]
        entries = tuple((r.ccq.id, r.term, r.ended is not None) for r in records)
        return Summary(after, page[-1] if len(ids) > len(page) else None, entries)

    def compare(self, theirs: Summary) -> Difference:
        """Who lags behind in which record, over the summary's range of ids.

        Ends of CCQs that the other side does not know at all are no news to it.
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
        led = {r.ccq.id for r in live}
        assert led == {ccq_id for ids in self._led_by.values() for ccq_id in ids}

    # --- inside ------------------------------------------------------------------------------

    def _adopt(self, incoming: Record, *, now: float, wall: float) -> MergeResult:
        ccq_id = incoming.ccq.id
        lives_on_s = incoming.ccq.expires_at - wall
        if incoming.ended is not None and lives_on_s < -self._options.tombstone_slack_s:
            return MergeResult(None, is_news=False, is_stale=False)
        self.records[ccq_id] = incoming
        self.postpone(ccq_id, max(now, now + lives_on_s))
        self._count(incoming, 1)
        self._schedule_purge(incoming, now=now)
        return MergeResult(incoming, is_news=True, is_stale=False)

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
        led = self._led_by.setdefault(record.coordinator, {})
        if by > 0:
            led[record.ccq.id] = None
        else:
            del led[record.ccq.id]

    def _schedule_purge(self, record: Record, *, now: float) -> None:
        """Plans when to forget an end: once no late announcement of the CCQ can matter."""
        if record.ended is None:
            return
        options, ccq_id = self._options, record.ccq.id
        needed_s = max(0.0, self._expires[ccq_id] - now) + options.tombstone_slack_s
        at = now + min(needed_s, options.tombstone_max_s)
        self._purges[ccq_id] = at
        heapq.heappush(self._agenda, (at, ccq_id))


def _announced_state(record: Record) -> tuple[int, str, str | None]:
    """What has to be announced at once."""
    return (record.term, record.coordinator, record.ended)


def _fingerprint(record: Record) -> int:
    return _hash(record.ccq.id, record.term, record.coordinator)


@lru_cache(maxsize=_FINGERPRINTS_KEPT)
def _hash(ccq_id: str, term: int, coordinator: str) -> int:
    text = f"{ccq_id}\0{term}\0{coordinator}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
