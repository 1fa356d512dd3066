"""What is handed to a journal, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from galileo.errors import BatchConflict, GalileoError
from galileo.model.times import TIME_MIN_US
from galileo.storage.frame import Buffer, FrameHeader, encode_header


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch of one producer, as `model.paths.index` gives it."""

    producer: str
    batch: int
    observations: pa.Table | pa.RecordBatch
    paths: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a commit is. `duplicate`: it had been there before, and this is its first result."""

    sequence: int
    rows: int
    paths: int
    duplicate: bool


@dataclass(slots=True)
class FrameGroup:
    """Frames that are written and synced together."""

    first: int
    headers: list[FrameHeader] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    batches: dict[tuple[str, int], tuple[FrameHeader, pa.Table]] = field(default_factory=dict)
    newest_us: int = TIME_MIN_US

    @property
    def next_sequence(self) -> int:
        return self.first + len(self.headers)

    @property
    def size(self) -> int:
        return sum(header.frame_bytes for header in self.headers)

    def add(self, header: FrameHeader, bodies: Sequence[Buffer], observations: pa.Table) -> None:
        self.headers.append(header)
        self.buffers += [encode_header(header), *bodies]
        self.batches[header.producer, header.batch] = header, observations


def first_result(commit: Commit, first: Committed, stored: pa.Table) -> Committed | GalileoError:
    """The answer to a batch that is stored: that of its first commit, if it is the same batch."""
    sent = commit.observations
    if not pa.table(sent.columns, schema=sent.schema).equals(stored):
        return conflict(commit, first)
    return first


def conflict(commit: Commit, first: Committed) -> BatchConflict:
    """The error for a batch number that was used before, for other rows."""
    return BatchConflict(
        f"producer {commit.producer!r} sent other rows as batch {commit.batch} than before "
        f"({commit.observations.num_rows} now, {first.rows} then); number each batch once, and "
        "give each producer a name of its own",
        sequence=first.sequence,
    )


def is_new(result: Committed | GalileoError, group: FrameGroup) -> bool:
    """Whether a commit went into the group."""
    return isinstance(result, Committed) and result.sequence >= group.first
