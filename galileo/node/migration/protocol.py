"""What nodes say to one another when a partition moves, as values and one protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from galileo.dht.topology import Move

NEW_LIST = "new_list"
"""Detail of an error: a file is gone or another one, and a new listing says what there is."""
Stage = Literal["copy", "verify", "switch", "done"]


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """Times and limits of moves.

    Attributes:
        grace_s: a node keeps files of a partition that it gave away for so long, for calls that had
            begun.
        fence_s: the partition takes commits again if the fence is not renewed within this time.
        renew_s: between two renewals.
        rounds_max: of copying before commits wait; a stream that is faster than the copy then waits
            all the same.
        tail_bytes: so little may be left to copy when commits begin to wait.
        fenced_rounds_max: of copying behind the fence, where merges and retention may still replace
            files.
        questions_max: to an owner about a hand-over whose answer was lost.
        question_pause_s: between two of them.
    """

    grace_s: float = 10.0
    fence_s: float = 5.0
    renew_s: float = 1.0
    rounds_max: int = 8
    tail_bytes: int = 4 << 20
    fenced_rounds_max: int = 4
    questions_max: int = 5
    question_pause_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is.

    Attributes:
        stage: what is done now. Writes wait in "switch" alone.
        bytes_done, bytes_total: of the files.
    """

    stage: Stage
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True, order=True)
class File:
    """The first `bytes` bytes of a file with commits; they never change."""

    dataset: str
    name: str
    bytes: int


@dataclass(frozen=True, slots=True, order=True)
class DatasetManifest:
    """What a partition has of one dataset; equal ones are of the same commits.

    Attributes:
        added: the number of features added to the dataset, as far as the sender knows.
    """

    dataset: str
    last_sequence: int
    dropped: int
    rows: int
    paths: int
    added: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """Everything of one partition at one moment.

    Attributes:
        number: of the move that would come next.
        files: in the order of datasets and sequences.
        contents: of each dataset that has commits or had some.
        marks: by dataset, the record of what retention dropped.
    """

    partition: int
    number: int
    files: tuple[File, ...]
    contents: tuple[DatasetManifest, ...]
    marks: tuple[tuple[str, bytes], ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Handoff:
    """Asks a node to give a partition away, to a node that has a copy of all of it."""

    move: Move
    contents: tuple[DatasetManifest, ...]


class MigrationPeer(Protocol):
    """Calls to another node by name; each raises `Unavailable` where it cannot be reached.

    Each raises `PartitionMoved` where the node does not have the partition; its
    details name the partition, the number and the node of the last move that it knows.
    """

    async def listing(self, node: str, partition: int) -> PartitionManifest: ...

    async def piece(
        self, node: str, partition: int, file: File, *, offset: int, size: int
    ) -> bytes: ...

    async def checksum(self, node: str, partition: int, file: File) -> int: ...

    async def fence(self, node: str, partition: int, *, to: str) -> PartitionManifest: ...

    async def release(self, node: str, partition: int, *, to: str) -> None: ...

    async def hand_over(self, node: str, handoff: Handoff) -> Move: ...
