"""Commits to a journal: requests, results, validation, and row ranges of stored commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from galileo.errors import (
    BatchConflict,
    GalileoError,
    InputError,
    InvalidObservations,
    MessageTooLarge,
    RangesChanged,
)
from galileo.model.schema import StoredSchema
from galileo.model.times import TIME_MIN_US
from galileo.storage.erasing import blank_rows
from galileo.storage.frame import Buffer, FrameHeader, encode_header

COMMIT_BYTES_MAX = 1 << 30
"""Bytes of the observations of one commit, as an Arrow message."""
SEAL = "~"
"""The producer of seals; no producer's own name has this character."""
RECORD = "#"
"""Ends the name of a producer in the records of its batches; no producer's own name has it."""
DELETION = "!" + RECORD
"""Ends the name of a producer in its deletions, which are records with paths."""
JOINED_BYTES_MAX = 64 << 10
"""Frames up to this size become one buffer: a copy costs less than the handling of each part."""

RowRanges: TypeAlias = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]
"""First rows and row counts, as in the columns `row` and `rows` of labels."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch of one producer, as `model.paths.index` gives it.

    Attributes:
        range_epoch: of the ranges by which it was split; a log with a later seal refuses it.
        unchanged_since: of rows of a table: a version of one of their keys past this commit refuses
            them all. None: whatever is there is replaced.
        refusal: why it may not be stored, unless it is already.
        digest: of a record, that of the whole batch.
    """

    producer: str
    batch: int
    observations: pa.Table | pa.RecordBatch
    paths: pa.RecordBatch
    range_epoch: int = 1
    unchanged_since: int | None = None
    refusal: GalileoError | None = None
    digest: int = 0

    @property
    def is_seal(self) -> bool:
        return self.producer == SEAL

    @property
    def is_record(self) -> bool:
        return self.producer.endswith(RECORD)

    @property
    def has_rows(self) -> bool:
        return not self.is_seal and not self.is_record


def seal_of(schema: StoredSchema, range_epoch: int) -> Commit:
    """The commit without rows after which a log takes no commits of earlier range epochs."""
    return Commit(SEAL, range_epoch, *_nothing(schema), range_epoch)


def record_of(schema: StoredSchema, producer: str, batch: int, *, digest: int) -> Commit:
    """The commit without rows that says which whole batch has a producer's number."""
    return Commit(f"{producer}{RECORD}", batch, *_nothing(schema), digest=digest)


def deletion_of(
    schema: StoredSchema, producer: str, batch: int, paths: pa.RecordBatch, *, digest: int
) -> Commit:
    """The commit without rows that deletes some, as `galileo.model.deletions` has them as paths."""
    nothing, _ = _nothing(schema)
    return Commit(f"{producer}{DELETION}", batch, nothing, paths, digest=digest)


def _nothing(schema: StoredSchema) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """No observations and no paths."""
    return (
        pa.RecordBatch.from_pylist([], schema=schema.observation_schema),
        pa.RecordBatch.from_pylist([], schema=schema.path_schema),
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a commit is. `duplicate`: it had been there before, and this is its first result."""

    sequence: int
    rows: int
    paths: int
    duplicate: bool


@dataclass(slots=True)
class FrameGroup:
    """Frames that are written and synced together.

    Attributes:
        first: sequence of the first frame.
        after: the last frame before, whose sequence is not the one below where the log jumps.
        size: bytes of all frames.
        batches: header and observations of each new commit, by producer and batch.
        newest_us: the end of the newest time bucket.
        paths: of each frame that stays pending, by sequence.
        sealed: the range epoch of the last seal among them, 0 without any.
    """

    first: int
    after: int
    size: int = 0
    headers: list[FrameHeader] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    batches: dict[tuple[str, int], tuple[FrameHeader, pa.RecordBatch]] = field(default_factory=dict)
    newest_us: int = TIME_MIN_US
    paths: dict[int, pa.RecordBatch] = field(default_factory=dict)
    sealed: int = 0

    @property
    def next_sequence(self) -> int:
        return self.first + len(self.headers)

    def add(
        self, header: FrameHeader, bodies: Sequence[Buffer], observations: pa.RecordBatch
    ) -> None:
        frame, size = [encode_header(header), *bodies], header.frame_bytes
        self.headers.append(header)
        self.buffers += [b"".join(frame)] if size <= JOINED_BYTES_MAX else frame
        self.size += size
        self.batches[header.producer, header.batch] = header, observations
        if header.producer == SEAL:
            self.sealed = max(self.sealed, header.batch)


def first_result(commit: Commit, first: Committed, stored: pa.Table) -> Committed | GalileoError:
    """The answer to a batch that is stored: that of its first commit, if it is the same batch."""
    sent = commit.observations
    if (blank := blank_rows(stored)) is not None and len(blank) == sent.num_rows:
        is_left = pa.array(~blank)  # What is erased cannot be compared.
        sent, stored = sent.filter(is_left), stored.filter(is_left)
    if not pa.table(sent.columns, schema=sent.schema).equals(stored):
        return conflict(commit, first)
    return first


def conflict(commit: Commit, first: Committed) -> BatchConflict:
    """The error for a batch number that was used before, for other rows."""
    rows = f" ({commit.observations.num_rows} now, {first.rows} then)" if commit.has_rows else ""
    producer = commit.producer.rstrip(DELETION)
    return BatchConflict(
        f"producer {producer!r} sent other rows as batch {commit.batch} than before{rows}; number "
        "each batch once, and give each producer a name of its own",
        sequence=first.sequence,
    )


def is_new(result: Committed | GalileoError, group: FrameGroup) -> bool:
    """Whether a commit went into the group."""
    return isinstance(result, Committed) and result.sequence >= group.first


def ranges_changed(range_epoch: int) -> RangesChanged:
    """The error for rows that were split by earlier ranges."""
    return RangesChanged(
        f"expected a batch that was split by the ranges of epoch {range_epoch}; read the topology "
        "and send the whole batch again",
        range_epoch=range_epoch,
        after_s=0.05,
    )


def to_record_batch(
    data: Any, schema: pa.Schema, what: str, *, may_be_empty: bool = False
) -> pa.RecordBatch:
    """The observations of a commit as one record batch; checks schema and size.

    Raises:
        InvalidObservations: the columns are not those of `schema`, or there is no row.
        MessageTooLarge: they exceed `COMMIT_BYTES_MAX`.
    """
    if not data.schema.equals(schema):
        raise InvalidObservations(
            f"expected {what} with the columns {', '.join(map(str, schema))}; "
            f"got {', '.join(map(str, data.schema))}"
        )
    if data.num_rows == 0 and not may_be_empty:
        raise InvalidObservations(f"expected {what} of at least one row, got none")
    batch = data.combine_chunks().to_batches()[0] if isinstance(data, pa.Table) else data
    size = pa.ipc.get_record_batch_size(batch)  # `nbytes` takes four times as long.
    if size > COMMIT_BYTES_MAX:
        raise MessageTooLarge(
            f"expected {what} of at most {COMMIT_BYTES_MAX} bytes, got {size}; send smaller batches"
        )
    return batch


def take_rows(table: pa.Table, ranges: RowRanges) -> pa.Table:
    """The rows of all ranges, in their order; not copied where they are adjacent.

    Raises:
        InputError: a range is not within the table.
    """
    starts, counts = (np.asarray(numbers, dtype=np.int64) for numbers in ranges)
    outside = (starts < 0) | (counts < 0) | (starts + counts > table.num_rows)
    if starts.shape != counts.shape or outside.any():
        raise InputError(
            f"expected first rows and row counts, one for one, within {table.num_rows} rows, "
            f"got {starts.tolist()[:5]} … and {counts.tolist()[:5]} …"
        )
    starts, counts = _merge_adjacent(starts, counts)
    if len(starts) == 1:
        return table.slice(int(starts[0]), int(counts[0]))
    shifts = starts - np.append(0, np.cumsum(counts)[:-1])[: len(starts)]
    return table.take(pa.array(np.repeat(shifts, counts) + np.arange(counts.sum())))


def _merge_adjacent(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same rows in as few ranges as possible: adjacent ones become one."""
    if len(starts) == 0:
        return starts, counts
    ends = starts + counts
    first = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))
    last = np.append(first[1:] - 1, len(starts) - 1)
    return starts[first], ends[last] - starts[first]
