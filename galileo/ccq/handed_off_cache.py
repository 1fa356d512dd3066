"""Handed-off caches: what a former coordinator (a *holder*) of a CCQ keeps and serves.

A coordinator whose cache has overflowed, or that drains, hands its CCQ to another node, which
begins where the cache ends. The cache stays here, frozen, while the record of the CCQ names this
node as the holder of its range: until clients have acknowledged all of it, the CCQ has ended, the
coordinator has removed the holder, or `TTL_S` has passed. The coordinator reads
labels from it (`CacheReadRequested`) for tokens in its range.

A handed-off cache is not durable. If it is lost, or lacks the labels, the answer says so and the
range is rescanned from the log.
"""

from __future__ import annotations

from galileo.ccq.cache import LabelCache
from galileo.ccq.events import (
    AnswerCacheRead,
    CacheReadRequested,
    Effects,
    LoadPacks,
    RefuseCacheRead,
)
from galileo.ccq.model import CcqDefinition, Record

TTL_S = 3600.0
"""The longest that a node keeps a handed-off cache."""
REQUESTS_MAX = 256
"""Requests that may wait for one cache's files."""


class HandedOffCache:
    """The frozen cache of one CCQ and term."""

    def __init__(self, ccq: CcqDefinition, *, term: int, cache: LabelCache, now: float) -> None:
        self.ccq = ccq
        self.term = term
        self.cache = cache
        self.since = now
        self._waiting: dict[int, CacheReadRequested] = {}

    def read(self, event: CacheReadRequested) -> Effects:
        """All labels of (after, reached], up to the first gap."""
        selection = self.cache.select(event.after, labels_max=event.labels_max)
        if selection.missing_spill is not None:
            return self._load(event, selection.missing_spill)
        if selection.covered == event.after:
            return [RefuseCacheRead(event.request)]
        gone = self.cache.gone.between(event.after, selection.covered)
        return [AnswerCacheRead(event.request, selection.labels, selection.covered, gone)]

    def on_loaded(self) -> Effects:
        """Retry the requests that wait for files."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return [effect for event in waiting for effect in self.read(event)]

    def abandon(self, request: int) -> None:
        self._waiting.pop(request, None)

    def close(self) -> Effects:
        """Drop all labels and refuse waiting requests."""
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
    """All handed-off caches of one node, by CCQ and term.

    Args:
        me: name of this node.
    """

    handed_off_cache_type = HandedOffCache

    def __init__(self, me: str) -> None:
        self._me = me
        self._held: dict[str, dict[int, HandedOffCache]] = {}

    def all(self) -> list[HandedOffCache]:
        return [cache for held in self._held.values() for cache in held.values()]

    def of(self, ccq_id: str) -> list[HandedOffCache]:
        return list(self._held.get(ccq_id, {}).values())

    def ccq_ids(self) -> list[str]:
        return list(self._held)

    def has(self, ccq_id: str, term: int) -> bool:
        return term in self._held.get(ccq_id, {})

    def keep(self, ccq: CcqDefinition, *, term: int, cache: LabelCache, now: float) -> None:
        """Freeze and store a cache."""
        cache.apply_compacted(None)
        handed_off = self.handed_off_cache_type(ccq, term=term, cache=cache, now=now)
        self._held.setdefault(ccq.id, {})[term] = handed_off

    def on_record(self, ccq_id: str, record: Record | None, now: float) -> Effects:
        """Drop caches that the record does not name, and labels that clients have."""
        held = self._held.get(ccq_id)
        if not held:
            return []
        named = (
            [holder.term for holder in record.holders if holder.node == self._me] if record else []
        )
        effects: Effects = []
        for term, handed_off in list(held.items()):
            if term not in named or now >= handed_off.since + TTL_S:
                effects += held.pop(term).close()
            elif record is not None:
                handed_off.cache.drop(record.retrieved)
        if not held:
            del self._held[ccq_id]
        return effects

    def read(self, event: CacheReadRequested) -> Effects:
        handed_off = self._held.get(event.ccq_id, {}).get(event.term)
        return (
            handed_off.read(event) if handed_off is not None else [RefuseCacheRead(event.request)]
        )

    def abandon(self, request: int) -> None:
        for handed_off in self.all():
            handed_off.abandon(request)
