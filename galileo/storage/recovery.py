"""Reads a segment's frames back, and distinguishes a torn tail from damage.

A crash can leave the last group of frames half written: that tail was never acknowledged and
is cut. Anything else that fails its checksum is damage and stops the start. The difference:

- no valid header follows a torn tail;
- or, since a power cut loses pages in any order, only headers of the *same* group follow
  it (a header says which group it was synced with) and whole pages of the damaged stretch were
  never written, that is, read as zeros. A flipped bit does not look like that.

"Behind" starts after the frame where its own header is right, so that observations which
happen to contain a frame are not taken for one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import CorruptData
from galileo.model.schema import StoredSchema, widen
from galileo.storage.frame import (
    ALIGNMENT,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    MAGIC,
    FrameHeader,
    checksum,
    decode_body,
    decode_header,
    schema_of_frame,
)
from galileo.storage.segment import corrupt_error
from galileo.storage.sequential_reader import SequentialReader

PAGE_BYTES = 4096
WINDOW_BYTES = 64 << 10
"""Holds many small frames; of a large one it reads little more than the header."""
PATHS_TOGETHER = 65_536
COMMITS_TOGETHER = 8_192
"""So many paths or commits are replayed at a time."""


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The part of a segment to read, and the expected frames.

    Attributes:
        sequence: of the first frame.
        schema: of the dataset.
        last: whether this is the partition's last segment: the only one that may have a torn
            tail, and the only one whose observations are checked.
    """

    path: Path
    partition: int
    sequence: int
    schema: StoredSchema
    last: bool
    path_schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path_schema", self.schema.path_schema)


@dataclass(frozen=True, slots=True)
class ScannedFrame:
    """A frame without its observations; `paths` as they are stored, or widened."""

    header: FrameHeader
    paths: pa.RecordBatch


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """Commits that a partition already has, one behind the other.

    Attributes:
        sequences: of the commits, at least one.
        counts: how many paths each of them has.
        paths: of all of them.
    """

    sequences: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    paths: pa.RecordBatch

    @property
    def first_sequence(self) -> int:
        return int(self.sequences[0])

    @property
    def last_sequence(self) -> int:
        return int(self.sequences[-1])

    @classmethod
    def of(cls, frames: Sequence[ScannedFrame]) -> Replayed:
        """The commits of consecutive frames, at least one."""
        headers = [frame.header for frame in frames]
        sequences = np.array([header.sequence for header in headers], dtype=np.int64)
        counts = np.array([header.paths for header in headers], dtype=np.int64)
        batches = [frame.paths for frame in frames]
        paths = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return cls(sequences, counts, paths)


def in_groups(frames: Iterable[ScannedFrame]) -> Iterator[list[ScannedFrame]]:
    """Many frames at a time, since what is done once for all of them is done for nearly nothing."""
    waiting: list[ScannedFrame] = []
    paths = 0
    for frame in frames:
        waiting.append(frame)
        paths += frame.header.paths
        if paths >= PATHS_TOGETHER or len(waiting) >= COMMITS_TOGETHER:
            yield waiting
            waiting, paths = [], 0
    if waiting:
        yield waiting


@dataclass(frozen=True, slots=True)
class _Invalid:
    """Why no frame can be had at a place; `header` is the frame's own, if that is whole."""

    reason: str
    header: FrameHeader | None
    can_be_torn: bool = True


def scan(plan: SegmentScan) -> Iterator[ScannedFrame]:
    """The valid frames of a segment in order; ends before a torn tail.

    Reads headers and paths, and the observations of the last segment only.

    Raises:
        CorruptData: a frame fails its checksums, or is not the one that belongs there.
        ConfigError: a frame is of a format that this version does not know.
    """
    with SequentialReader(plan.path, window_bytes=WINDOW_BYTES) as window:
        offset, sequence = 0, plan.sequence
        while offset < window.size:
            frame = _frame(window, offset, plan=plan, sequence=sequence)
            if isinstance(frame, _Invalid):
                torn, header = plan.last and frame.can_be_torn, frame.header
                if torn and is_torn(window.descriptor, offset, header=header, sequence=sequence):
                    return
                raise corrupt_error(plan.path, offset, reason=frame.reason)
            yield frame
            offset += frame.header.frame_bytes
            sequence += 1


def _frame(
    window: SequentialReader, offset: int, *, plan: SegmentScan, sequence: int
) -> ScannedFrame | _Invalid:
    try:
        header = decode_header(window.bytes_at(offset, HEADER_BYTES_MAX))
    except CorruptData as flaw:
        return _Invalid(flaw.message, None)
    if (header.partition, header.sequence) != (plan.partition, sequence):
        reason = (
            f"expected sequence {sequence} of partition {plan.partition}, "
            f"got sequence {header.sequence} of partition {header.partition}"
        )
        return _Invalid(reason, header, can_be_torn=False)
    try:
        schema = schema_of_frame(plan.schema, header.added)
    except CorruptData as flaw:  # The frame is whole, though it cannot be read.
        return _Invalid(flaw.message, header, can_be_torn=False)
    path_schema = plan.path_schema if schema is plan.schema else schema.path_schema
    try:
        paths = _paths(window, offset, plan=plan, header=header, path_schema=path_schema)
        return ScannedFrame(header, widen(paths, plan.path_schema))
    except CorruptData as flaw:
        return _Invalid(flaw.message, header)


def _paths(
    window: SequentialReader,
    offset: int,
    *,
    plan: SegmentScan,
    header: FrameHeader,
    path_schema: pa.Schema,
) -> pa.RecordBatch:
    """The paths of a frame, after all checks of its bodies."""
    start, size = offset + header.header_bytes, window.size - offset
    bodies = header.paths_bytes + header.observations_bytes
    if offset + size < start + bodies:
        raise CorruptData(f"expected a frame of {header.frame_bytes} bytes, the file has {size}")
    data = window.all_bytes_at(start, header.paths_bytes)
    if checksum([data]) != header.paths_crc:
        raise CorruptData("the checksum of the paths is wrong")
    if plan.last:
        actual = window.checksum(start + header.paths_bytes, header.observations_bytes)
        if actual != header.observations_crc:
            raise CorruptData("the checksum of the observations is wrong")
    paths = decode_body(pa.py_buffer(data), path_schema)
    if paths.num_rows != header.paths:
        raise CorruptData(f"expected {header.paths} paths, got {paths.num_rows}")
    return paths


def is_torn(descriptor: int, offset: int, *, header: FrameHeader | None, sequence: int) -> bool:
    """Whether what fails its checks at `offset` is the torn tail of the last group commit.

    Args:
        descriptor: of the partition's last segment.
        offset: where the frame of `sequence` should be.
        header: of that frame, if it is whole and the one that belongs there.
        sequence: of that frame.
    """
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        behind = offset + (header.frame_bytes if header else ALIGNMENT)
        later = list(_headers_behind(data, behind, sequence=sequence))
        if not later:
            return True
        # A group that begins behind this frame was written after this frame was durable.
        same_group = all(follower.group <= sequence for _, follower in later)
        return same_group and _has_unwritten_page(data, offset, later[0][0])


def _headers_behind(
    data: mmap.mmap, start: int, *, sequence: int
) -> Iterator[tuple[int, FrameHeader]]:
    """Valid headers at or after `start` that can be later frames of this segment."""
    place = data.find(MAGIC, start)
    while place >= 0:
        header = _plausible(data, place, sequence=sequence, frames=(place - start) // ALIGNMENT)
        if header is not None:
            yield place, header
        place = data.find(MAGIC, place + 1)


def _plausible(data: mmap.mmap, place: int, *, sequence: int, frames: int) -> FrameHeader | None:
    """The header at `place`, if it is whole and its sequence fits that many bytes in between."""
    try:
        header = decode_header(data[place : place + HEADER_BYTES_MAX])
    except CorruptData:
        return None
    return header if sequence < header.sequence <= sequence + frames + 1 else None


def _has_unwritten_page(data: mmap.mmap, start: int, end: int) -> bool:
    """Whether some page of data[start:end] is all zeros; the first one from `start` on."""
    edge = min(-(-start // PAGE_BYTES) * PAGE_BYTES, end)
    # Less than a header of zeros before the page's edge would be an accident, not a page.
    if edge - start >= HEADER_BYTES_MIN and not any(data[start:edge]) and edge < end:
        return True
    pages = range(edge, end - PAGE_BYTES + 1, PAGE_BYTES)
    return any(data[page : page + PAGE_BYTES] == bytes(PAGE_BYTES) for page in pages)
