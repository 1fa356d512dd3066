"""Messages between nodes about CCQs; one-way, and may be lost, repeated and reordered.

Polls are in `galileo.election.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.model import Record
from galileo.election.messages import Poll, PollAnswer


@dataclass(frozen=True, slots=True)
class AssignCoordinator:
    """Offers the CCQ to the node that `record.coordinator` names, in `record.term`."""

    record: Record
    need_bytes: int


@dataclass(frozen=True, slots=True)
class AssignmentAccepted:
    """The sender coordinates the CCQ in `term`, and has stored that."""

    ccq_id: str
    term: int


@dataclass(frozen=True, slots=True)
class AssignmentRefused:
    """The sender refuses the CCQ in `term`; `record` is its own, if that is newer."""

    ccq_id: str
    term: int
    record: Record | None


@dataclass(frozen=True, slots=True)
class AssignMany:
    """Offers CCQs that were submitted together to the node that all their records name."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class AssignmentsAnswered:
    """The CCQs that the sender coordinates, and has stored, and those it refuses; each as (id,
    term).
    """

    accepted: tuple[tuple[str, int], ...]
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RecordUpdate:
    """Records to merge.

    `note` asks the receiver to answer with RecordAck once it has stored them.
    """

    records: tuple[Record, ...]
    note: bool = False


@dataclass(frozen=True, slots=True)
class RecordAck:
    """The sender has stored these records, as (id, term); the term is negative if the CCQ ended."""

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
    """The sender has no record of these CCQs."""

    ccq_ids: tuple[str, ...]


Message = (
    Poll
    | PollAnswer
    | AssignCoordinator
    | AssignmentAccepted
    | AssignmentRefused
    | AssignMany
    | AssignmentsAnswered
    | RecordUpdate
    | RecordAck
    | Digest
    | Summary
    | RecordRequest
    | RecordNotFound
)

TAGS: dict[type, str] = {
    AssignCoordinator: "Appoint",
    AssignmentAccepted: "Appointed",
    AssignmentRefused: "AppointRefused",
    AssignMany: "AppointMany",
    AssignmentsAnswered: "ManyAppointed",
    RecordUpdate: "Announce",
    RecordAck: "Noted",
    RecordRequest: "RecordsWanted",
    RecordNotFound: "RecordsDenied",
}
"""Tags of messages on the wire that differ from the names of their classes."""
