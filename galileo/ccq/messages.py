"""What the nodes tell each other about CCQs: one-way, lost, repeated and reordered at will.

Polls travel too; see `galileo.election.messages`.
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
    """The sender coordinates the CCQ in `term`, and has stored so."""

    ccq_id: str
    term: int


@dataclass(frozen=True, slots=True)
class AssignmentRefused:
    """The sender does not take the CCQ in `term`; `record` is its own, where that is newer."""

    ccq_id: str
    term: int
    record: Record | None


@dataclass(frozen=True, slots=True)
class AssignMany:
    """Offers CCQs that were submitted together to the node that all their records name."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class AssignmentsAnswered:
    """Which of them the sender coordinates, and has stored so, and which it does not take; each
    as (id, term).
    """

    accepted: tuple[tuple[str, int], ...]
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RecordUpdate:
    """Records for everybody to merge.

    `note` asks the receiver to answer with RecordAck once it has stored them.
    """

    records: tuple[Record, ...]
    note: bool = False


@dataclass(frozen=True, slots=True)
class RecordAck:
    """The sender has stored these records, as (id, term)."""

    entries: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """Fingerprint of the sender's live records; nodes with equal ones know the same."""

    fingerprint: int
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All records of the sender with `after < id <= until`, as (id, term, is it ended)."""

    after: str
    until: str | None
    entries: tuple[tuple[str, int, bool], ...]


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """Asks for these records; the receiver announces or denies each."""

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
"""Names of messages on the wire, where these are not the names of their classes."""
