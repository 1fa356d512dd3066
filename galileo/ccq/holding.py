"""Holders: nodes that keep what they cached of a CCQ before they gave it away.

A coordinator whose cache has overflowed gives its CCQ to a successor, which begins where the cache
ends. The cache stays here, frozen, as long as the record of the CCQ names this node as the holder
of that stretch: until clients have acknowledged all of it, the CCQ is over, the coordinator has
given the holder up, or `holding_s` is over. The coordinator asks for labels out of it
(`HeldRequested`) when a token lies in there.

A holding is a promise to nobody. Where it is lost, or lacks what is asked for, the answer says so
and the stretch is rescanned from the log.
"""

from __future__ import annotations

from galileo.ccq.cache import LabelCache
from galileo.ccq.elsewhere import AnswerHeld, HeldRequested, LoadPacks, RefuseHeld
from galileo.ccq.events import ContinuousEffect
from galileo.ccq.model import Ccq, Record

Effects = list[ContinuousEffect]
REQUESTS_MAX = 256
"""Requests that may wait for one holding's files."""


class Holding:
    """The frozen cache of one CCQ and term."""

    def __init__(self, ccq: Ccq, *, term: int, cache: LabelCache, now: float) -> None:
        self.ccq = ccq
        self.term = term
        self.cache = cache
        self.since = now
        self._waiting: dict[int, HeldRequested] = {}

    def ask(self, event: HeldRequested) -> Effects:
        """All labels of (after, reached], for as much of it as is held in one piece."""
        selection = self.cache.select(event.after, labels_max=event.labels_max)
        if selection.lacking is not None:
            return self._load(event, selection.lacking)
        if selection.covered == event.after:
            return [RefuseHeld(event.request)]
        gone = self.cache.gone.between(event.after, selection.covered)
        return [AnswerHeld(event.request, selection.labels, selection.covered, gone)]

    def on_loaded(self) -> Effects:
        """Looks again at the requests that wait for files."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return [effect for event in waiting for effect in self.ask(event)]

    def abandon(self, request: int) -> None:
        self._waiting.pop(request, None)

    def close(self) -> Effects:
        """Lets go of everything."""
        self.cache.clear()
        waiting, self._waiting = self._waiting, {}
        return [RefuseHeld(request) for request in waiting]

    def _load(self, event: HeldRequested, number: int) -> Effects:
        if len(self._waiting) >= REQUESTS_MAX:
            return [RefuseHeld(event.request)]
        self._waiting[event.request] = event
        is_new = self.cache.load(number)
        return [LoadPacks(number, self.ccq)] if is_new else []


class Holdings:
    """All holdings of one node, by CCQ and term.

    Args:
        me: name of this node.
        holding_s: the longest that one is kept.
    """

    holding_type = Holding

    def __init__(self, me: str, *, holding_s: float) -> None:
        self._me = me
        self._holding_s = holding_s
        self._held: dict[str, dict[int, Holding]] = {}

    def all(self) -> list[Holding]:
        return [one for held in self._held.values() for one in held.values()]

    def of(self, ccq_id: str) -> list[Holding]:
        return list(self._held.get(ccq_id, {}).values())

    def ccq_ids(self) -> list[str]:
        return list(self._held)

    def has(self, ccq_id: str, term: int) -> bool:
        return term in self._held.get(ccq_id, {})

    def keep(self, ccq: Ccq, *, term: int, cache: LabelCache, now: float) -> None:
        """Freezes a cache."""
        cache.take_gathered(None)
        holding = self.holding_type(ccq, term=term, cache=cache, now=now)
        self._held.setdefault(ccq.id, {})[term] = holding

    def heed(self, ccq_id: str, record: Record | None, now: float) -> Effects:
        """Lets go of what the record does not name (any more), and of what clients have."""
        held = self._held.get(ccq_id)
        if not held:
            return []
        named = [one.term for one in record.holders if one.node == self._me] if record else []
        effects: Effects = []
        for term, holding in list(held.items()):
            if term not in named or now >= holding.since + self._holding_s:
                effects += held.pop(term).close()
            elif record is not None:
                holding.cache.drop(record.retrieved)
        if not held:
            del self._held[ccq_id]
        return effects

    def ask(self, event: HeldRequested) -> Effects:
        holding = self._held.get(event.ccq_id, {}).get(event.term)
        return holding.ask(event) if holding is not None else [RefuseHeld(event.request)]

    def abandon(self, request: int) -> None:
        for holding in self.all():
            holding.abandon(request)
