"""What a node asks of other nodes, as values and one protocol; `rpc.peers` speaks gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import GalileoError
from galileo.model.schema import Schema


@dataclass(frozen=True, slots=True)
class CommitTask:
    """Rows of one partition, as one producer's numbered batch."""

    dataset: str
    partition: int
    producer: str
    batch: int
    observations: pa.Table


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    sequence: int
    rows: int
    paths: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class ScanTask:
    """The commits (after, until] of some partitions, seen through one query.

    `until` None means: up to what is committed when the scan starts. With `labels_max` above 0
    the answer may stop before, behind a whole commit, and says so by how far it reached.
    """

    item: int
    dataset: str
    query_json: str
    after: Cursor
    until: Cursor | None
    partitions: frozenset[int]
    labels_max: int = 0


@dataclass(frozen=True, slots=True)
class ScanLabels:
    item: int
    table: pa.Table


@dataclass(frozen=True, slots=True)
class ScanDone:
    """The last of an item: it is answered in `reached`'s partitions, up to there."""

    item: int
    reached: Cursor


@dataclass(frozen=True, slots=True)
class ScanFailed:
    item: int
    error: GalileoError


ScanAnswer = ScanLabels | ScanDone | ScanFailed


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Row ranges of commits: columns partition, sequence, row, rows (`PARTS_SCHEMA`)."""

    dataset: str
    parts: pa.Table
    query_json: str


PARTS_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
    ]
)


class Peers(Protocol):
    """Calls to another node by name; each raises `Unavailable` where it cannot be reached."""

    async def commit(self, node: str, task: CommitTask) -> CommitAnswer: ...

    def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncIterator[ScanAnswer]: ...

    def read(self, node: str, task: ReadTask, schema: Schema) -> AsyncIterator[pa.Table]: ...

    async def create_dataset(self, node: str, schema: Schema, *, replicate: bool) -> None: ...

    async def datasets(self, node: str) -> list[Schema]: ...
