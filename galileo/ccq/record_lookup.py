"""Lookups of records at other nodes, for requests that name a CCQ without a record here.

The replicas of the CCQ are asked first, then all other nodes: after a change of the topology, or
while announcements are lost, a record may be elsewhere. A CCQ is unknown only if each node has no
record; while an answer is outstanding, the client gets a transient error. A submission needs less:
it begins when the live replicas have no record.

The record is not stored: requests are answered from it. Lookups that begin in one step are sent
together, as are those that begin until the next tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from galileo.ccq.events import (
    BatchSubmitted,
    CancelRequested,
    Effects,
    FetchRequested,
    FindRequested,
    RefuseCancel,
    RefuseFetch,
    RefuseFind,
    RefuseSubmit,
    SubmitRequested,
)
from galileo.ccq.messages import RecordNotFound
from galileo.ccq.model import Failure, Record
from galileo.ccq.state import NodeState

LOOKUPS_MAX = 100_000
REQUESTS_PER_LOOKUP_MAX = 100

Request = FetchRequested | CancelRequested | FindRequested | SubmitRequested


@dataclass(slots=True)
class BatchLookup:
    """A batch of submissions that waits for lookups.

    Attributes:
        waiting: the ids whose lookups are running.
        remote: the records that were found.
        failures: of lookups.
    """

    event: BatchSubmitted
    waiting: set[str] = field(default_factory=set)
    remote: dict[str, Record] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)


@dataclass(slots=True)
class _Lookup:
    deadline: float
    next_request_at: float
    requests: list[Request | BatchLookup] = field(default_factory=list)
    denied_by: set[str] = field(default_factory=set)

    @property
    def is_for_submissions(self) -> bool:
        """Whether the replicas suffice."""
        return all(isinstance(one, SubmitRequested | BatchLookup) for one in self.requests)


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a lookup for a request: the record, or that there is none, or a failure."""

    request: Request | BatchLookup
    ccq_id: str
    record: Record | None = None
    failure: Failure | None = None


class RecordLookups:
    """The running lookups of one node, one for each CCQ.

    Attributes:
        ended: lookups that have ended in this step.
    """

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[str, _Lookup] = {}
        self._unsent: dict[str, None] = {}
        self.ended: list[Found] = []

    def start(self, request: Request | BatchLookup, ccq_id: str, now: float) -> None:
        """Begin a lookup; `send` sends it."""
        lookup = self._running.get(ccq_id)
        is_full = lookup is None and len(self._running) >= LOOKUPS_MAX
        if is_full or (lookup is not None and len(lookup.requests) >= REQUESTS_PER_LOOKUP_MAX):
            self.ended.append(Found(request, ccq_id, failure=self._overloaded()))
            return
        if lookup is None:
            lookup = _Lookup(now + self._state.options.locate_timeout_s, now)
            self._running[ccq_id] = lookup
        self._unsent[ccq_id] = None
        lookup.requests.append(request)
        self._conclude(ccq_id)

    def send(self, now: float) -> Effects:
        """Ask for the records of all lookups that are new or due again."""
        ids_by_peer: dict[str, list[str]] = {}
        for ccq_id in self._unsent:
            lookup = self._running.get(ccq_id)
            if lookup is not None:
                lookup.next_request_at = now + self._state.options.retry_s
                for peer in self._silent(ccq_id, lookup):
                    ids_by_peer.setdefault(peer, []).append(ccq_id)
        self._unsent.clear()
        return self._state.request_records(ids_by_peer)

    def on_not_found(self, sender: str, message: RecordNotFound) -> None:
        for ccq_id in message.ccq_ids:
            if ccq_id in self._running:
                lookup = self._running[ccq_id]
                before = self._silent(ccq_id, lookup)
                lookup.denied_by.add(sender)
                self._conclude(ccq_id)
                if not set(self._silent(ccq_id, lookup)) <= set(before):
                    self._unsent[ccq_id] = None  # All replicas have denied it.

    def on_record(self, record: Record) -> None:
        """A record has come, or is here now."""
        if record.ccq.id in self._running:
            self._end(record.ccq.id, record=record)

    def tick(self, now: float) -> None:
        for ccq_id, lookup in list(self._running.items()):
            if now >= lookup.deadline:
                self._end(ccq_id, failure=self._unanswered(ccq_id, lookup))
                continue
            if now >= lookup.next_request_at:
                self._unsent[ccq_id] = None
            self._conclude(ccq_id)

    def abandon(self, request: int) -> None:
        for lookup in self._running.values():
            lookup.requests = [
                one
                for one in lookup.requests
                if isinstance(one, BatchLookup) or one.request != request
            ]

    def check(self) -> None:
        assert not self.ended, "lookups have ended and were not used"
        for ccq_id in self._running:
            assert self._state.record_table.get(ccq_id) is None, f"{ccq_id} is searched but known"

    def _silent(self, ccq_id: str, lookup: _Lookup) -> list[str]:
        """The nodes whose answers are awaited now: replicas first."""
        live = [n for n in self._state.live_replicas(ccq_id) if n not in lookup.denied_by]
        if live or lookup.is_for_submissions:
            return live
        return [peer for peer in self._state.peers if peer not in lookup.denied_by]

    def _conclude(self, ccq_id: str) -> None:
        """End the requests of a lookup that no node has to answer any more."""
        lookup = self._running[ccq_id]
        state = self._state
        if lookup.denied_by.issuperset(state.live_replicas(ccq_id)):
            requests, lookup.requests = lookup.requests, []
            for one in requests:
                if isinstance(one, SubmitRequested | BatchLookup):
                    self.ended.append(Found(one, ccq_id))
                else:
                    lookup.requests.append(one)
        if not lookup.requests:
            del self._running[ccq_id]
        elif lookup.denied_by >= set(state.peers):
            message = f"continuous query {ccq_id!r} does not exist"
            failure = Failure("unknown_ccq", message, (("remedy", "list_ccqs"),))
            self._end(ccq_id, failure=failure)

    def _end(
        self, ccq_id: str, *, record: Record | None = None, failure: Failure | None = None
    ) -> None:
        for request in self._running.pop(ccq_id).requests:
            self.ended.append(Found(request, ccq_id, record, failure))

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


def refuse(
    request: Request, failure: Failure
) -> RefuseFetch | RefuseCancel | RefuseFind | RefuseSubmit:
    if isinstance(request, FetchRequested):
        return RefuseFetch(request.request, failure)
    if isinstance(request, CancelRequested):
        return RefuseCancel(request.request, failure)
    if isinstance(request, FindRequested):
        return RefuseFind(request.request, failure)
    return RefuseSubmit(request.request, failure)
