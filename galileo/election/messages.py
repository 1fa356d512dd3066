"""Messages between nodes about duties, and events and effects of one election (paper, IV.B).

Messages are one-way, and may be lost, repeated and reordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from galileo.election.model import R


@dataclass(frozen=True, slots=True)
class UsageStatistics:
    """The load of a node, by its own measurement.

    Attributes:
        cpu_share: recently used share of all its cores, 0 to 1.
        memory_free_bytes: free memory that duties could use.
        load: runnable threads per core, averaged over a minute.
        ccq_count: duties that it coordinates.
        cache_bytes: memory that they take.
        is_draining: whether it hands off its duties and accepts no others.
    """

    cpu_share: float = 0.0
    memory_free_bytes: int = 0
    load: float = 0.0
    ccq_count: int = 0
    cache_bytes: int = 0
    is_draining: bool = False


# --- messages ----------------------------------------------------------------------------------

UNASKED = ""
"""The election of a PollAnswer that goes with the acceptance of a duty."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Requests the usage statistics of a node; `election` is repeated in the answer."""

    election: str


@dataclass(frozen=True, slots=True)
class PollAnswer:
    election: str
    usage: UsageStatistics


# --- messages about records and assignments ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class AssignCoordinator(Generic[R]):
    """Offers the duty to the node that `record.coordinator` names, in `record.term`."""

    record: R
    need_bytes: int


@dataclass(frozen=True, slots=True)
class AssignmentAccepted:
    """The sender coordinates the duty in `term`, and has stored that."""

    ccq_id: str
    term: int


@dataclass(frozen=True, slots=True)
class AssignmentRefused(Generic[R]):
    """The sender refuses the duty in `term`; `record` is its own, if that is newer."""

    ccq_id: str
    term: int
    record: R | None


@dataclass(frozen=True, slots=True)
class AssignMany(Generic[R]):
    """Offers duties that were submitted together to the node that all their records name."""

    records: tuple[R, ...]


@dataclass(frozen=True, slots=True)
class AssignmentsAnswered:
    """The duties that the sender coordinates, and has stored, and those it refuses; each as (id,
    term).
    """

    accepted: tuple[tuple[str, int], ...]
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RecordUpdate(Generic[R]):
    """Records to merge.

    `note` asks the receiver to answer with RecordAck once it has stored them.
    """

    records: tuple[R, ...]
    note: bool = False


@dataclass(frozen=True, slots=True)
class RecordAck:
    """The sender has stored these records, as (id, term); the term of an ended duty is negative."""

    entries: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """Fingerprint of the sender's live records; nodes with equal ones have equal records."""

    fingerprint: int
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All records of the sender with `after < id <= until`, as (id, term, is ended)."""

    after: str
    until: str | None
    entries: tuple[tuple[str, int, bool], ...]


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """Requests these records; the receiver sends RecordUpdate or RecordNotFound for each."""

    ccq_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordNotFound:
    """The sender has no record of these duties."""

    ccq_ids: tuple[str, ...]


Message = (
    Poll
    | PollAnswer
    | AssignCoordinator[Any]
    | AssignmentAccepted
    | AssignmentRefused[Any]
    | AssignMany[Any]
    | AssignmentsAnswered
    | RecordUpdate[Any]
    | RecordAck
    | Digest
    | Summary
    | RecordRequest
    | RecordNotFound
)


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """Begins the election.

    Attributes:
        need_bytes: memory that the duty is expected to take.
        rounds: the nodes that are polled together, in the order of polling.
        only_suitable: fail rather than offer to an unsuitable node.
    """

    need_bytes: int
    rounds: tuple[tuple[str, ...], ...]
    only_suitable: bool = False


@dataclass(frozen=True, slots=True)
class PollAnswered:
    node: str
    usage: UsageStatistics
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OfferAccepted:
    node: str


@dataclass(frozen=True, slots=True)
class OfferRefused:
    node: str


@dataclass(frozen=True, slots=True)
class ElectionTicked:
    """Time has passed."""


ElectionEvent = Started | PollAnswered | OfferAccepted | OfferRefused | ElectionTicked


# --- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendPoll:
    to: str


@dataclass(frozen=True, slots=True)
class OfferAssignment:
    """Offer the duty to this node, in a new term."""

    node: str


@dataclass(frozen=True, slots=True)
class Decided:
    node: str


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


ElectionEffect = SendPoll | OfferAssignment | Decided | Failed
