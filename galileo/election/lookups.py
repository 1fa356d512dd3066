"""Lookups of records at other nodes, for requests that name a duty without a record here.

The replicas of the duty are asked first, then all other nodes: after a change of the topology, or
while announcements are lost, a record may be elsewhere. A duty is unknown only if each node has no
record; while an answer is outstanding, the client gets a transient error. A submission needs less:
it begins when the live replicas have no record.

The record is not stored: requests are answered from it. Lookups that begin in one step are sent
together, as are those that begin until the next tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from galileo.election.events import Effects
from galileo.election.messages import RecordNotFound
from galileo.election.model import R
from galileo.election.state import DutyState, T
from galileo.errors import Failure

LOOKUPS_MAX = 100_000
REQUESTS_PER_LOOKUP_MAX = 100


class Request(Protocol):
    """A request that waits for a lookup."""

    @property
    def request(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    is_submission: bool


@dataclass(slots=True)
class _Lookup:
    deadline: float
    next_request_at: float
    requests: list[_Waiting] = field(default_factory=list)
    denied_by: set[str] = field(default_factory=set)

    @property
    def is_for_submissions(self) -> bool:
        """Whether the replicas suffice."""
        return all(one.is_submission for one in self.requests)


@dataclass(frozen=True, slots=True)
class Found(Generic[R]):
    """The end of a lookup for a request: the record, or that there is none, or a failure."""

    request: Any
    duty_id: str
    record: R | None = None
    failure: Failure | None = None


class RecordLookups(Generic[R, T]):
    """The running lookups of one node, one for each duty.

    Attributes:
        ended: lookups that have ended in this step.
    """

    def __init__(self, state: DutyState[R, T]) -> None:
        self._state = state
        self._running: dict[str, _Lookup] = {}
        self._unsent: dict[str, None] = {}
        self.ended: list[Found[R]] = []

    def start(
        self, request: Request, duty_id: str, now: float, *, is_submission: bool = False
    ) -> None:
        """Begin a lookup; `send` sends it. For a submission, the replicas suffice."""
        lookup = self._running.get(duty_id)
        is_full = lookup is None and len(self._running) >= LOOKUPS_MAX
        if is_full or (lookup is not None and len(lookup.requests) >= REQUESTS_PER_LOOKUP_MAX):
            self.ended.append(Found(request, duty_id, failure=self._overloaded()))
            return
        if lookup is None:
            lookup = _Lookup(now + self._state.options.locate_timeout_s, now)
            self._running[duty_id] = lookup
        self._unsent[duty_id] = None
        lookup.requests.append(_Waiting(request, is_submission))
        self._conclude(duty_id)

    def send(self, now: float) -> Effects:
        """Ask for the records of all lookups that are new or due again."""
        ids_by_peer: dict[str, list[str]] = {}
        for duty_id in self._unsent:
            lookup = self._running.get(duty_id)
            if lookup is not None:
                lookup.next_request_at = now + self._state.options.retry_s
                for peer in self._silent(duty_id, lookup):
                    ids_by_peer.setdefault(peer, []).append(duty_id)
        self._unsent.clear()
        return self._state.request_records(ids_by_peer)

    def on_not_found(self, sender: str, message: RecordNotFound) -> None:
        for duty_id in message.ccq_ids:
            if duty_id in self._running:
                lookup = self._running[duty_id]
                before = self._silent(duty_id, lookup)
                lookup.denied_by.add(sender)
                self._conclude(duty_id)
                if not set(self._silent(duty_id, lookup)) <= set(before):
                    self._unsent[duty_id] = None  # All replicas have denied it.

    def on_record(self, record: R) -> None:
        """A record has come, or is here now."""
        if record.id in self._running:
            self._end(record.id, record=record)

    def tick(self, now: float) -> None:
        for duty_id, lookup in list(self._running.items()):
            if now >= lookup.deadline:
                self._end(duty_id, failure=self._unanswered(duty_id, lookup))
                continue
            if now >= lookup.next_request_at:
                self._unsent[duty_id] = None
            self._conclude(duty_id)

    def abandon(self, request: int) -> None:
        for lookup in self._running.values():
            lookup.requests = [one for one in lookup.requests if one.request.request != request]

    def check(self) -> None:
        assert not self.ended, "lookups have ended and were not used"
        for duty_id in self._running:
            assert self._state.record_table.get(duty_id) is None, f"{duty_id} is searched but known"

    def _silent(self, duty_id: str, lookup: _Lookup) -> list[str]:
        """The nodes whose answers are awaited now: replicas first."""
        live = [n for n in self._state.live_replicas(duty_id) if n not in lookup.denied_by]
        if live or lookup.is_for_submissions:
            return live
        return [peer for peer in self._state.peers if peer not in lookup.denied_by]

    def _conclude(self, duty_id: str) -> None:
        """End the requests of a lookup that no node has to answer any more."""
        lookup = self._running[duty_id]
        state = self._state
        if lookup.denied_by.issuperset(state.live_replicas(duty_id)):
            requests, lookup.requests = lookup.requests, []
            for one in requests:
                if one.is_submission:
                    self.ended.append(Found(one.request, duty_id))
                else:
                    lookup.requests.append(one)
        if not lookup.requests:
            del self._running[duty_id]
        elif lookup.denied_by >= set(state.peers):
            self._end(duty_id, failure=state.unknown_failure(duty_id))

    def _end(
        self, duty_id: str, *, record: R | None = None, failure: Failure | None = None
    ) -> None:
        for one in self._running.pop(duty_id).requests:
            self.ended.append(Found(one.request, duty_id, record, failure))

    def _unanswered(self, duty_id: str, lookup: _Lookup) -> Failure:
        silent = [peer for peer in self._state.peers if peer not in lookup.denied_by]
        return Failure(
            "unavailable",
            f"this node does not know the {self._state.noun[0]} {duty_id!r} and could not ask "
            f"{', '.join(silent)}; try again",
            (("after_s", self._state.options.retry_s),),
        )

    def _overloaded(self) -> Failure:
        advice = (("after_s", self._state.options.retry_s),)
        what = f"too many requests for unknown {self._state.noun[1]}"
        return Failure("overloaded", what, advice)
