"""The journal of one partition of one dataset: its commits, in sequence, on the disk."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import (
    BatchConflict,
    GalileoError,
    InputError,
    InvalidObservations,
    MessageTooLarge,
    PartitionStopped,
)
from galileo.model.schema import Schema
from galileo.model.times import MICROS
from galileo.storage.disk import make_directory
from galileo.storage.frame import (
    BATCH_MAX,
    Buffer,
    FrameHeader,
    decode_body,
    encode_body,
    encode_header,
    producer_name,
)
from galileo.storage.producers import ProducerIndex
from galileo.storage.recovery import SegmentScan, scan
from galileo.storage.segment import Segment, SegmentMaps, damaged, segment_paths
from galileo.storage.writer import JournalOptions, SegmentWriter

_log = logging.getLogger(__name__)

COMMIT_BYTES_MAX = 1 << 30
"""Arrow bytes of the observations of one commit."""

RowRanges: TypeAlias = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]
"""First rows and row counts, as the columns `row` and `rows` of labels have them."""

Replay: TypeAlias = Callable[[int, pa.RecordBatch], None]


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
class _Group:
    """Frames that are written and synced together."""

    first: int
    headers: list[FrameHeader] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    batches: dict[tuple[str, int], tuple[FrameHeader, pa.Table]] = field(default_factory=dict)

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


class PartitionJournal:
    """One directory of segment files. `append` excludes itself; readers never wait for it.

    Invariants: sequences are 1, 2, 3 … without gaps; what a reader can see is durable.

    Attributes:
        last_sequence: of the newest commit, 0 where there is none.
        rows_total, paths_total: over all commits.
        torn_bytes: length of the torn tail that was cut when the journal was opened.
    """

    def __init__(
        self,
        directory: Path,
        *,
        schema: Schema,
        partition: int,
        options: JournalOptions,
        wall: Callable[[], float],
    ) -> None:
        self.last_sequence = 0
        self.rows_total = 0
        self.paths_total = 0
        self.torn_bytes = 0
        self._directory = directory
        self._partition = partition
        self._observation_schema = schema.observation_schema
        self._path_schema = schema.path_schema
        self._wall = wall
        self._producers = ProducerIndex()
        self._segments: list[Segment] = []
        self._maps = SegmentMaps()
        self._writer = SegmentWriter(directory, options)
        self._writing = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        schema: Schema,
        partition: int,
        options: JournalOptions,
        replay: Replay,
        wall: Callable[[], float],
    ) -> PartitionJournal:
        """Recovers a partition, or starts an empty one where there is no directory.

        Cost: reads the headers and paths of all segments, and the whole last segment.

        Args:
            directory: of this partition alone.
            schema: of the dataset.
            partition: its number, which every frame repeats.
            options: how to write.
            replay: called with (sequence, paths) for every commit in sequence order.
            wall: seconds since 1970, for the informative time in each frame.

        Raises:
            DataDamaged: a frame fails its checksum and is not the torn tail.
            PartitionStopped: the disk refuses what recovery has to write.
            ConfigError: the files are of a format that this version does not know.
        """
        journal = cls(directory, schema=schema, partition=partition, options=options, wall=wall)
        try:
            make_directory(options.disk, directory)
            journal._recover(replay)
        except BaseException as error:
            journal.close()
            if isinstance(error, OSError):
                raise PartitionStopped(
                    f"the partition in {directory} cannot be opened: {error}. "
                    "Check the disk, then start again",
                    after_s=options.retry_after_s,
                ) from error
            raise
        return journal

    @property
    def stopped(self) -> str | None:
        """Why the partition takes no writes at present, None while it does."""
        return self._writer.stopped

    @property
    def bytes_on_disk(self) -> int:
        return sum(segment.length for segment in self._segments)

    @property
    def segments(self) -> int:
        return len(self._segments)

    def last_batch(self, producer: str) -> int | None:
        """The highest batch number of a producer, None where it has committed nothing."""
        return self._producers.last_batch(producer)

    def append(self, commits: Sequence[Commit]) -> list[Committed | GalileoError]:
        """Commits all of `commits` with one sync; returns when they are durable.

        Returns:
            For each commit its result, in order. Errors are results too: `BatchConflict`,
            `InputError` for what can never be stored, `PartitionStopped` for everything new
            while the disk refuses. A known (producer, batch) is answered in any state.
        """
        with self._writing:
            group = _Group(self.last_sequence + 1)
            results = [self._admit(commit, group) for commit in commits]
            if not group.headers:
                return results
            try:
                self._writer.write(group.buffers, size=group.size, sequence=group.first)
            except PartitionStopped as error:
                return [error if _is_new(result, group) else result for result in results]
            self._publish(group)
            return results

    def read(self, sequence: int, *, ranges: RowRanges | None = None) -> pa.Table:
        """Observations of one commit, in stored order; memory-mapped where rows are adjacent.

        Args:
            sequence: of the commit.
            ranges: which rows, in the order wanted; None for all.

        Raises:
            DataDamaged: the stored bytes fail their checksum.
            InputError: there is no such commit, or no such row in it.
        """
        buffer = self._segment_of(sequence).observations(sequence, self._maps)
        table = pa.Table.from_batches([decode_body(buffer, self._observation_schema)])
        return table if ranges is None else _rows(table, ranges)

    def paths(self, sequence: int) -> pa.RecordBatch:
        """The paths of one commit; errors as `read`."""
        buffer = self._segment_of(sequence).paths(sequence, self._maps)
        return decode_body(buffer, self._path_schema)

    def header(self, sequence: int) -> FrameHeader:
        """What the frame of one commit says about itself; errors as `read`."""
        return self._segment_of(sequence).header(sequence, self._maps)

    def close(self) -> None:
        """Ends writing and drops the memory maps; tables that were read stay valid."""
        with self._writing:
            self._writer.close()
            self._maps.clear()

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self, replay: Replay) -> None:
        paths = segment_paths(self._directory)
        if not paths:
            return
        self._writer.settle(paths[-1])
        for path in paths:
            self._recover_segment(path, replay, last=path == paths[-1])
        last = self._segments[-1] if self._segments else None
        length = last.length if last is not None and last.path == paths[-1] else 0
        self.torn_bytes = paths[-1].stat().st_size - length
        if self.torn_bytes:
            _log.warning("cutting a torn tail of %d bytes off %s", self.torn_bytes, paths[-1])
        self._writer.resume(paths[-1], length=length)

    def _recover_segment(self, path: Path, replay: Replay, *, last: bool) -> None:
        first = self.last_sequence + 1
        if int(path.stem) != first:
            reason = f"expected the segment of sequence {first} next; one is missing or misplaced"
            raise damaged(path, 0, reason=reason)
        plan = SegmentScan(path, self._partition, first, self._path_schema, last)
        for frame in scan(plan):
            self._note(frame.header, path, verified=last)
            replay(frame.header.sequence, frame.paths)

    def _note(self, header: FrameHeader, path: Path, *, verified: bool) -> None:
        """Takes a durable frame into the index; readers see it when its sequence is set."""
        if not self._segments or self._segments[-1].path != path:
            self._segments.append(Segment(path, first_sequence=header.sequence))
        self._segments[-1].add(header, verified=verified)
        self._producers.add(header.producer, header.batch, sequence=header.sequence)
        self.rows_total += header.rows
        self.paths_total += header.paths
        self.last_sequence = header.sequence

    # --- append ------------------------------------------------------------------------------

    def _admit(self, commit: Commit, group: _Group) -> Committed | GalileoError:
        """Answers a known batch, or encodes a new one into the group."""
        try:
            known = self._known(commit, group)
            if known is not None:
                return _first_result(commit, *known)
            refusal = self._writer.refusal()
            if refusal is not None:
                return refusal
            header = self._encode(commit, group)
        except GalileoError as error:
            return error
        return Committed(header.sequence, header.rows, header.paths, duplicate=False)

    def _known(self, commit: Commit, group: _Group) -> tuple[FrameHeader, pa.Table] | None:
        """The first commit of this producer and batch, with its observations."""
        if not 0 <= commit.batch <= BATCH_MAX:
            raise InputError(f"expected a batch number from 0 to 2^64-1, got {commit.batch}")
        producer = producer_name(commit.producer)
        sequence = self._producers.sequence_of(producer, commit.batch)
        if sequence is not None:
            return self.header(sequence), self.read(sequence)
        return group.batches.get((producer, commit.batch))

    def _encode(self, commit: Commit, group: _Group) -> FrameHeader:
        observations = _checked(commit.observations, self._observation_schema, "observations")
        paths = _checked(commit.paths, self._path_schema, "paths")
        observations_body, paths_body = encode_body(observations), encode_body(paths)
        header = FrameHeader(
            partition=self._partition,
            sequence=group.next_sequence,
            group=group.first,
            producer=commit.producer,
            batch=commit.batch,
            rows=observations.num_rows,
            paths=paths.num_rows,
            committed_at_us=int(self._wall() * MICROS),
            paths_bytes=paths_body.size,
            observations_bytes=observations_body.size,
            paths_crc=paths_body.crc,
            observations_crc=observations_body.crc,
        )
        bodies = [*paths_body.buffers, *observations_body.buffers]
        group.add(header, bodies, pa.Table.from_batches([observations]))
        return header

    def _publish(self, group: _Group) -> None:
        assert self._writer.path is not None, "a group was written to no file"
        for header in group.headers:
            self._note(header, self._writer.path, verified=False)

    # --- reading -----------------------------------------------------------------------------

    def _segment_of(self, sequence: int) -> Segment:
        if not 1 <= sequence <= self.last_sequence:
            raise InputError(
                f"expected a commit sequence from 1 to {self.last_sequence}, got {sequence}",
                last_sequence=self.last_sequence,
            )
        segments = self._segments
        return segments[bisect_right(segments, sequence, key=attrgetter("first_sequence")) - 1]


def _first_result(commit: Commit, known: FrameHeader, stored: pa.Table) -> Committed | GalileoError:
    sent = commit.observations
    if not pa.table(sent.columns, schema=sent.schema).equals(stored):
        return BatchConflict(
            f"producer {commit.producer!r} sent other rows as batch {commit.batch} than before "
            f"({sent.num_rows} now, {known.rows} then); number each batch once, and give each "
            "producer a name of its own",
            sequence=known.sequence,
        )
    return Committed(known.sequence, known.rows, known.paths, duplicate=True)


def _is_new(result: Committed | GalileoError, group: _Group) -> bool:
    return isinstance(result, Committed) and result.sequence >= group.first


def _checked(data: Any, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """One record batch of the dataset's schema, with at least one row."""
    if not data.schema.equals(schema):
        raise InvalidObservations(
            f"expected {what} with the columns {', '.join(map(str, schema))}; "
            f"got {', '.join(map(str, data.schema))}"
        )
    if data.num_rows == 0:
        raise InvalidObservations(f"expected {what} of at least one row, got none")
    if data.nbytes > COMMIT_BYTES_MAX:
        raise MessageTooLarge(
            f"expected {what} of at most {COMMIT_BYTES_MAX} bytes, got {data.nbytes}; "
            "send smaller batches"
        )
    return data.combine_chunks().to_batches()[0] if isinstance(data, pa.Table) else data


def _rows(table: pa.Table, ranges: RowRanges) -> pa.Table:
    starts, counts = (np.asarray(numbers, dtype=np.int64) for numbers in ranges)
    outside = (starts < 0) | (counts < 0) | (starts + counts > table.num_rows)
    if starts.shape != counts.shape or outside.any():
        raise InputError(
            f"expected first rows and row counts, one for one, within {table.num_rows} rows, "
            f"got {starts.tolist()[:5]} … and {counts.tolist()[:5]} …"
        )
    starts, counts = _joined(starts, counts)
    if len(starts) == 1:
        return table.slice(int(starts[0]), int(counts[0]))
    shifts = starts - np.append(0, np.cumsum(counts)[:-1])[: len(starts)]
    return table.take(pa.array(np.repeat(shifts, counts) + np.arange(counts.sum())))


def _joined(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same rows in as few ranges as possible: adjacent ones become one."""
    if len(starts) == 0:
        return starts, counts
    ends = starts + counts
    first = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))
    last = np.append(first[1:] - 1, len(starts) - 1)
    return starts[first], ends[last] - starts[first]
