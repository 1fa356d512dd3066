"""Messages, events and effects of replication.

Names are those of Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014) where it has the
same message; `StartTerm` is the StartView of Viewstamped Replication Revisited (2012).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from galileo.replication.values import Epochs, Member, ReplicaSet, ReplicaState

# --- messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestPreVote:
    """Asks whether a vote would be given; changes nothing at the receiver.

    Attributes:
        resigned: the term of a leader that has resigned, 0 without one. Voters that support a
            leader of this or a lower term need not wait.
    """

    term: int
    set: ReplicaSet
    resigned: int


@dataclass(frozen=True, slots=True)
class PreVote:
    term: int


@dataclass(frozen=True, slots=True)
class RequestVote:
    term: int
    set: ReplicaSet
    resigned: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A promise to refuse lower terms, with all that the member has.

    Attributes:
        joined: the term whose logs it has taken over.
        logs: what it has durable of each log.
        suspect: per log, the last sequence that it may have lost.
    """

    term: int
    joined: int
    logs: Mapping[str, Epochs]
    suspect: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """The receiver's term is too low; `promised` is the sender's."""

    promised: int


@dataclass(frozen=True, slots=True)
class NewerSet:
    """The receiver's replica set is older than the sender's."""

    set: ReplicaSet


@dataclass(frozen=True, slots=True)
class Fetch:
    """A candidate asks for the frames in (after, until] of the best log."""

    term: int
    log: str
    after: int
    until: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Frames (after, epochs.end] for a candidate; the driver attaches them.

    Attributes:
        start: up to where the sender has dropped the log.
    """

    term: int
    log: str
    after: int
    epochs: Epochs
    start: int = 0


@dataclass(frozen=True, slots=True)
class StartTerm:
    """A leader tells its members its set and logs.

    Attributes:
        starts: the end of each log when the term began; who has them all joins the term.
        logs: the epochs of each log now.
    """

    term: int
    set: ReplicaSet
    starts: Mapping[str, int]
    logs: Mapping[str, Epochs]


@dataclass(frozen=True, slots=True)
class Append:
    """Frames (after, epochs.end] of a log; the driver attaches them.

    Attributes:
        after_epoch: epoch of the frame `after`, which the receiver must have.
        match: how far the leader believes the receiver's log to be acknowledged.
        committed: as the leader knows it.
        start: up to where the leader has dropped the log. A member that has less begins there.
    """

    term: int
    log: str
    after: int
    after_epoch: int
    epochs: Epochs
    match: int
    committed: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """How far logs are durable and the leader's; the answer to `StartTerm` and `Append`.

    Attributes:
        set_version: of the set that the member has installed.
        has_joined: whether it has joined the term; else its frames do not count for commits.
        is_complete: whether all its logs are named.
        matches: per log, the last sequence that is durable and the leader's.
        committed: per log, what the member knows to be committed.
    """

    term: int
    set_version: tuple[int, int]
    has_joined: bool
    is_complete: bool
    matches: Mapping[str, int]
    committed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NotFollowing:
    """The member has restarted, or has less than the leader believes: it needs `StartTerm`."""

    term: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A leader claims its partition; `sent_at` is by its own clock."""

    term: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class Support:
    """The sender votes for no other member before `dead_after_s` since it got the beat."""

    term: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class Resigned:
    """The leader of `term` leads no more; its voters need not wait.

    Attributes:
        successor: who campaigns at once, if anybody.
    """

    term: int
    successor: Member | None


Message = (
    RequestPreVote
    | PreVote
    | RequestVote
    | Vote
    | Refused
    | NewerSet
    | Fetch
    | Fetched
    | StartTerm
    | Append
    | Acknowledged
    | NotFollowing
    | Beat
    | Support
    | Resigned
)

# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A message to this very disk; the driver drops those to an earlier one of the node."""

    sender: Member
    message: Message


@dataclass(frozen=True, slots=True)
class FrameAppended:
    """The driver of an open leader has begun to write frames of the current term up to `end`."""

    log: str
    end: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """All writes and truncations of a log up to `end` are durable.

    A sync that began before a truncation is not reported after it.
    """

    log: str
    end: int


@dataclass(frozen=True, slots=True)
class WrittenAlone:
    """The writer has committed frames up to `end`, all of the present term, without asking.

    It may do so while `Replica.is_alone`. The driver gives these events before any other event that
    changes a machine which was alone.
    """

    log: str
    end: int


@dataclass(frozen=True, slots=True)
class LogDropped:
    """The driver has dropped the frames up to `until`, which are committed."""

    log: str
    until: int


@dataclass(frozen=True, slots=True)
class LogForgotten:
    """A log is no more, as its dataset was dropped; no log ever has its name again."""

    log: str


@dataclass(frozen=True, slots=True)
class StateSaved:
    """This state is durable; states are saved in order."""

    state: ReplicaState


@dataclass(frozen=True, slots=True)
class MembersWanted:
    """The members that the partition should have, as the topology says; to leaders, each term."""

    members: frozenset[Member]


@dataclass(frozen=True, slots=True)
class HandOverRequested:
    """Let another voter lead, once it has all."""

    successor: Member


@dataclass(frozen=True, slots=True)
class ReplicaTicked:
    """Time has passed."""


ReplicaEvent = (
    MessageArrived
    | FrameAppended
    | LogSynced
    | WrittenAlone
    | LogDropped
    | LogForgotten
    | StateSaved
    | MembersWanted
    | HandOverRequested
    | ReplicaTicked
)

# --- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveReplicaState:
    state: ReplicaState


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send it, with its frames if it is an `Append` or a `Fetched`."""

    to: Member
    message: Message


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Remove the frames after `end`, then sync; no reader has seen them."""

    log: str
    end: int


@dataclass(frozen=True, slots=True)
class WriteFrames:
    """Write and sync those frames of the message that come after `after`."""

    log: str
    after: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Begin the log anew behind `start`, then sync: the leader dropped, or lost, what it has."""

    log: str
    start: int


@dataclass(frozen=True, slots=True)
class DropFrames:
    """Drop what can be dropped of the frames up to `until`, as the leader has."""

    log: str
    until: int


@dataclass(frozen=True, slots=True)
class PublishFrames:
    """Let readers see the frames up to `until`, and answer their producers."""

    log: str
    until: int


ReplicaEffect = (
    SaveReplicaState
    | SendMessage
    | TruncateLog
    | WriteFrames
    | ResetLog
    | DropFrames
    | PublishFrames
)
