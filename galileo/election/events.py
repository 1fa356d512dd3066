"""Events and effects of the machine `galileo.election.duties.Duties`.

The driver feeds events and executes the effects of each step *in order*, one step's before the next
one's; it may save the records of a step before all else, together. `request` pairs a request with
its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from galileo.election.messages import Message, UsageStatistics
from galileo.election.model import R
from galileo.errors import Failure

# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordsLoaded(Generic[R]):
    """The first event after a start: the records in storage, if any."""

    records: tuple[R, ...]
    wall: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due about every 50 ms. `wall`: seconds since 1970-01-01 UTC."""

    wall: float


@dataclass(frozen=True, slots=True)
class UsageMeasured:
    """This node's own statistics, for polls and its own elections."""

    usage: UsageStatistics


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The nodes of the cluster are these from now on, by group; this one is among them.

    Attributes:
        groups: the names of the nodes.
        racks: the rack of each node; empty: each node is a rack of its own.
    """

    groups: tuple[tuple[str, ...], ...]
    racks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Hand off all duties and accept no others; `is_on` false ends that."""

    is_on: bool = True


@dataclass(frozen=True, slots=True)
class MessageArrived:
    sender: str
    message: Message


R_co = TypeVar("R_co", covariant=True)


class Submission(Protocol[R_co]):
    """A new duty, or one that is submitted again; answered by AnswerSubmit or RefuseSubmit.

    Attributes:
        record: of term 0, without a coordinator.
        need_bytes: memory that the duty is expected to take.
        candidates: nodes whose groups are polled first.
    """

    @property
    def request(self) -> int: ...
    @property
    def record(self) -> R_co: ...
    @property
    def need_bytes(self) -> int: ...
    @property
    def candidates(self) -> tuple[str, ...]: ...


# --- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveRecord(Generic[R]):
    """Store this record, in place of an older one of the same duty.

    Attributes:
        durable: it must be on disk before any later effect is executed. Otherwise it may be written
            later, in order.
    """

    record: R
    durable: bool


@dataclass(frozen=True, slots=True)
class PurgeRecord:
    ccq_id: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message once; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class AnswerSubmit:
    request: int
    ccq_id: str
    coordinator: str
    term: int


@dataclass(frozen=True, slots=True)
class RefuseSubmit:
    request: int
    failure: Failure


Effects: TypeAlias = list[Any]
"""These effects, and those of the package whose duties they are."""
