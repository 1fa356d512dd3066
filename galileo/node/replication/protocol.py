"""What replicas on different nodes send to one another, as values and one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from galileo.replication.messages import Message
from galileo.replication.values import Member


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message of one replica to another.

    Attributes:
        frames: those of an `Append` or a `Fetched`, one behind the other, as on the disk.
        log_start: with the first of them that the sender has, its record of what it has dropped.
        added: with frames, the number of features added to their dataset, as the sender knows.
    """

    partition: int
    sender: Member
    to: Member
    message: Message
    frames: pa.Buffer | None = None
    log_start: bytes = b""
    added: int = 0

    @property
    def frames_bytes(self) -> int:
        return 0 if self.frames is None else len(self.frames)


@dataclass(frozen=True, slots=True)
class LogRange:
    """The commits of a log from `after + 1` to `until`."""

    partition: int
    dataset: str
    after: int
    until: int


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """The digest of a range at one replica.

    Attributes:
        after: at least that of the range; what lies before is dropped there.
    """

    after: int
    digest: int


@dataclass(frozen=True, slots=True)
class HeldPartitions:
    """What a node has of partitions, whatever the number of copies that there should be.

    Attributes:
        voting: those of whose set its directory is a voter, as far as it knows.
        led: those that it leads for sure.
    """

    voting: frozenset[int]
    led: frozenset[int]


class ReplicaLink(Protocol):
    """Sends to another node by name; raises `Unavailable` where it cannot be reached."""

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Sends messages, and returns the answers that came at once."""
        ...

    async def digests(
        self, member: Member, ranges: Sequence[LogRange]
    ) -> Sequence[RangeDigest | None]:
        """The digest of each range at another member; None where that does not know it."""
        ...
