"""What nodes say to one another when a partition moves, as values and one protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from galileo.dht.topology import Move

NEW_LIST = "new_list"
"""Detail of an error: a file is gone or another one, and a new listing says what there is."""
Stage = Literal["copy", "verify", "switch", "done"]


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
    """What a partition has of one dataset; equal ones are of the same commits."""

    dataset: str
    last_sequence: int
    dropped: int
    rows: int
    paths: int


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
