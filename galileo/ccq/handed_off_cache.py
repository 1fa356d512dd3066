"""Handed-off caches: what a former coordinator of a CCQ keeps and serves; it is a holder.

A coordinator whose cache has overflowed gives its CCQ to a successor, which begins where the cache
ends. The cache stays here, frozen, as long as the record of the CCQ names this node as the holder
of that stretch: until clients have acknowledged all of it, the CCQ is over, the coordinator has
given the holder up, or `handed_off_cache_ttl_s` is over. The coordinator asks for labels out of it
(`CacheReadRequested`) when a token lies in there.

A handed-off cache may be lost at any time. Where it is lost, or lacks what is asked for, the answer
says so and the stretch is rescanned from the log.
"""

from __future__ import annotations

from galileo.ccq.cache import LabelCache
from galileo.ccq.events import (
    AnswerCacheRead,
    CacheReadRequested,
    ContinuousEffect,
    LoadPacks,
    RefuseCacheRead,
)
from galileo.ccq.model import Ccq, Record

Effects = list[ContinuousEffect]
REQUESTS_MAX = 256
"""Requests that may wait for one holding's files."""


class HandedOffCache:
    """The frozen cache of one CCQ and term."""

    def __init__(self, ccq: Ccq, *, term: int, cache: LabelCache, now: float) -> None:
        self.ccq = ccq
        self.term = term
        self.cache = cache
        self.since = now
        self._waiting: dict[int, CacheReadRequested] = {}

    def read(self, event: CacheReadRequested) -> Effects:
        """All labels of (after, reached], for as much of it as is held in one piece."""
        selection = self.cache.select(event.after, labels_max=event.labels_max)
        if selection.lacking is not None:
            return self._load(event, selection.lacking)
        if selection.covered == event.after:
            return [RefuseCacheRead(event.request)]
        gone = self.cache.gone.between(event.after, selection.covered)
        return [AnswerCacheRead(event.request, selection.labels, selection.covered, gone)]

    def on_loaded(self) -> Effects:
        """Looks again at the requests that wait for files."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return [effect for event in waiting for effect in self.read(event)]

    def abandon(self, request: int) -> None:
        self._waiting.pop(request, None)

    def close(self) -> Effects:
        """Lets go of everything."""
        self.cache.clear()
        waiting, self._waiting = self._waiting, {}
        return [RefuseCacheRead(request) for request in waiting]

    def _load(self, event: CacheReadRequested, number: int) -> Effects:
        if len(self._waiting) >= REQUESTS_MAX:
            return [RefuseCacheRead(event.request)]
        self._waiting[event.request] = event
        is_new = self.cache.load(number)
        return [LoadPacks(number, self.ccq)] if is_new else []


class HandedOffCaches:
    """All holdings of one node, by CCQ and term.

    Args:
        me: name of this node.
        ttl_s: the longest that one is kept.
    """

    holding_type = HandedOffCache

    def __init__(self, me: str, *, ttl_s: float) -> None:
        self._me = me
        self._ttl_s = ttl_s
        self._held: dict[str, dict[int, HandedOffCache]] = {}

    def all(self) -> list[HandedOffCache]:
        return [one for held in self._held.values() for one in held.values()]

    def of(self, ccq_id: str) -> list[HandedOffCache]:
        return list(self._held.get(ccq_id, {}).values())

    def ccq_ids(self) -> list[str]:
        return list(self._held)

    def has(self, ccq_id: str, term: int) -> bool:
        return term in self._held.get(ccq_id, {})

    def keep(self, ccq: Ccq, *, term: int, cache: LabelCache, now: float) -> None:
        """Freezes a cache."""
        cache.apply_compacted(None)
        holding = self.holding_type(ccq, term=term, cache=cache, now=now)
        self._held.setdefault(ccq.id, {})[term] = holding

    def on_record(self, ccq_id: str, record: Record | None, now: float) -> Effects:
        """Lets go of what the record does not name (any more), and of what clients have."""
        held = self._held.get(ccq_id)
        if not held:
            return []
        named = [one.term for one in record.holders if one.node == self._me] if record else []
        effects: Effects = []
        for term, holding in list(held.items()):
            if term not in named or now >= holding.since + self._ttl_s:
                effects += held.pop(term).close()
            elif record is not None:
                holding.cache.drop(record.retrieved)
        if not held:
            del self._held[ccq_id]
        return effects

    def read(self, event: CacheReadRequested) -> Effects:
        holding = self._held.get(event.ccq_id, {}).get(event.term)
        return holding.read(event) if holding is not None else [RefuseCacheRead(event.request)]

    def abandon(self, request: int) -> None:
        for holding in self.all():
            holding.abandon(request)
