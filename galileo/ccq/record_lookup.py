"""Lookups of records at other nodes, for requests that name a CCQ without a record here.

A node may lack a record that others hold: it has just started, or announcements were lost. So
it asks all peers before it says anything final. Only when each of them has denied the CCQ is it
unknown; as long as one has not answered, the client gets a transient error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from galileo.ccq.events import CancelRequested, FetchRequested, RefuseCancel, RefuseFetch, Send
from galileo.ccq.messages import RecordNotFound, RecordRequest
from galileo.ccq.model import Failure
from galileo.ccq.state import Effects, NodeState

LOOKUPS_MAX = 1000
REQUESTS_PER_LOOKUP_MAX = 100

Request = FetchRequested | CancelRequested


@dataclass(slots=True)
class _Lookup:
    deadline: float
    ask_at: float
    requests: list[Request] = field(default_factory=list)
    denied_by: set[str] = field(default_factory=set)


class RecordLookups:
    """See the module."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[str, _Lookup] = {}

    def look_for(self, request: Request, now: float) -> Effects:
        search = self._running.get(request.ccq_id)
        if search is None:
            if len(self._running) >= LOOKUPS_MAX:
                return [_refuse(request, self._busy())]
            search = _Lookup(now + self._state.options.locate_timeout_s, now)
            self._running[request.ccq_id] = search
        if len(search.requests) >= REQUESTS_PER_LOOKUP_MAX:
            return [_refuse(request, self._busy())]
        search.requests.append(request)
        return self._ask(request.ccq_id, search, now) or self._conclude(request.ccq_id)

    def on_denied(self, sender: str, message: RecordNotFound) -> Effects:
        effects: Effects = []
        for ccq_id in message.ccq_ids:
            if ccq_id in self._running:
                self._running[ccq_id].denied_by.add(sender)
                effects += self._conclude(ccq_id)
        return effects

    def tick(self, now: float) -> Effects:
        effects: Effects = []
        for ccq_id, search in list(self._running.items()):
            if now >= search.deadline:
                effects += self._end(ccq_id, self._unanswered(ccq_id, search))
            else:
                effects += self._ask(ccq_id, search, now)
        return effects

    def pop_waiting(self, ccq_id: str) -> list[Request]:
        """The requests that waited for this CCQ, now that it is known."""
        search = self._running.pop(ccq_id, None)
        return search.requests if search else []

    def abandon(self, request: int) -> None:
        for search in self._running.values():
            search.requests = [r for r in search.requests if r.request != request]

    def check(self) -> None:
        for ccq_id in self._running:
            assert self._state.record_table.get(ccq_id) is None, f"{ccq_id} is searched but known"

    def _ask(self, ccq_id: str, search: _Lookup, now: float) -> Effects:
        if now < search.ask_at:
            return []
        search.ask_at = now + self._state.options.retry_s
        left = [peer for peer in self._state.peers if peer not in search.denied_by]
        return [Send(peer, RecordRequest((ccq_id,))) for peer in left]

    def _conclude(self, ccq_id: str) -> Effects:
        if not self._running[ccq_id].denied_by >= set(self._state.peers):
            return []
        message = f"continuous query {ccq_id!r} does not exist"
        return self._end(ccq_id, Failure("unknown_ccq", message, (("remedy", "list_ccqs"),)))

    def _end(self, ccq_id: str, failure: Failure) -> Effects:
        return [_refuse(request, failure) for request in self._running.pop(ccq_id).requests]

    def _unanswered(self, ccq_id: str, search: _Lookup) -> Failure:
        silent = [peer for peer in self._state.peers if peer not in search.denied_by]
        return Failure(
            "unavailable",
            f"this node does not know the continuous query {ccq_id!r} and could not ask "
            f"{', '.join(silent)}; try again",
            (("after_s", self._state.options.retry_s),),
        )

    def _busy(self) -> Failure:
        advice = (("after_s", self._state.options.retry_s),)
        return Failure("overloaded", "too many requests for unknown continuous queries", advice)


def _refuse(request: Request, failure: Failure) -> RefuseFetch | RefuseCancel:
    if isinstance(request, FetchRequested):
        return RefuseFetch(request.request, failure)
    return RefuseCancel(request.request, failure)
