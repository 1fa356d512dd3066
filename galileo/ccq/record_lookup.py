"""Lookups of records at other nodes, for requests that name a CCQ without a record here.

A node may lack a record that others have: it has just started, or announcements were lost. So it
asks all peers. The CCQ is unknown only if each of them has no record; while an answer is
outstanding, the client gets a transient error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from galileo.ccq.events import (
    CancelRequested,
    Effects,
    FetchRequested,
    RefuseCancel,
    RefuseFetch,
    Send,
)
from galileo.ccq.messages import RecordNotFound, RecordRequest
from galileo.ccq.model import Failure
from galileo.ccq.state import NodeState

LOOKUPS_MAX = 1000
REQUESTS_PER_LOOKUP_MAX = 100

Request = FetchRequested | CancelRequested


@dataclass(slots=True)
class _Lookup:
    deadline: float
    next_request_at: float
    requests: list[Request] = field(default_factory=list)
    denied_by: set[str] = field(default_factory=set)


class RecordLookups:
    """The running lookups of one node, one for each CCQ."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[str, _Lookup] = {}

    def start(self, request: Request, now: float) -> Effects:
        lookup = self._running.get(request.ccq_id)
        if lookup is None:
            if len(self._running) >= LOOKUPS_MAX:
                return [_refuse(request, self._overloaded())]
            lookup = _Lookup(now + self._state.options.locate_timeout_s, now)
            self._running[request.ccq_id] = lookup
        if len(lookup.requests) >= REQUESTS_PER_LOOKUP_MAX:
            return [_refuse(request, self._overloaded())]
        lookup.requests.append(request)
        return self._ask(request.ccq_id, lookup, now) or self._conclude(request.ccq_id)

    def on_not_found(self, sender: str, message: RecordNotFound) -> Effects:
        effects: Effects = []
        for ccq_id in message.ccq_ids:
            if ccq_id in self._running:
                self._running[ccq_id].denied_by.add(sender)
                effects += self._conclude(ccq_id)
        return effects

    def tick(self, now: float) -> Effects:
        effects: Effects = []
        for ccq_id, lookup in list(self._running.items()):
            if now >= lookup.deadline:
                effects += self._end(ccq_id, self._unanswered(ccq_id, lookup))
            else:
                effects += self._ask(ccq_id, lookup, now)
        return effects

    def pop_waiting(self, ccq_id: str) -> list[Request]:
        """Remove and return the requests that wait for this CCQ."""
        lookup = self._running.pop(ccq_id, None)
        return lookup.requests if lookup else []

    def abandon(self, request: int) -> None:
        for lookup in self._running.values():
            lookup.requests = [r for r in lookup.requests if r.request != request]

    def check(self) -> None:
        for ccq_id in self._running:
            assert self._state.record_table.get(ccq_id) is None, f"{ccq_id} is searched but known"

    def _ask(self, ccq_id: str, lookup: _Lookup, now: float) -> Effects:
        if now < lookup.next_request_at:
            return []
        lookup.next_request_at = now + self._state.options.retry_s
        left = [peer for peer in self._state.peers if peer not in lookup.denied_by]
        return [Send(peer, RecordRequest((ccq_id,))) for peer in left]

    def _conclude(self, ccq_id: str) -> Effects:
        if not self._running[ccq_id].denied_by >= set(self._state.peers):
            return []
        message = f"continuous query {ccq_id!r} does not exist"
        return self._end(ccq_id, Failure("unknown_ccq", message, (("remedy", "list_ccqs"),)))

    def _end(self, ccq_id: str, failure: Failure) -> Effects:
        return [_refuse(request, failure) for request in self._running.pop(ccq_id).requests]

    def _unanswered(self, ccq_id: str, lookup: _Lookup) -> Failure:
        silent = [peer for peer in self._state.peers if peer not in lookup.denied_by]
        return Failure(
            "unavailable",
            f"this node does not know the continuous query {ccq_id!r} and could not ask "
            f"{', '.join(silent)}; try again",
            (("after_s", self._state.options.retry_s),),
        )

    def _overloaded(self) -> Failure:
        advice = (("after_s", self._state.options.retry_s),)
        return Failure("overloaded", "too many requests for unknown continuous queries", advice)


def _refuse(request: Request, failure: Failure) -> RefuseFetch | RefuseCancel:
    if isinstance(request, FetchRequested):
        return RefuseFetch(request.request, failure)
    return RefuseCancel(request.request, failure)
