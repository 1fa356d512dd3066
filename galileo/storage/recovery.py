"""Reads a segment's frames back, and tells a torn tail from damage.

A crash can leave the last group of frames half written: that tail was never acknowledged and
is cut. Anything else that fails its checksum is damage and stops the start. The difference:

- behind a torn tail stands no valid header;
- or, since a power cut loses pages in any order, only headers of the *same* group stand behind
  it (a header says which group it was synced with) and whole pages of the damaged stretch were
  never written, that is, read as zeros. A flipped bit does not look like that.

"Behind" starts after the frame where its own header is right, so that observations which
happen to contain a frame are not taken for one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from galileo.errors import DataDamaged
from galileo.storage.disk import read_at
from galileo.storage.frame import (
    ALIGNMENT,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    MAGIC,
    FrameHeader,
    checksum,
    decode_body,
    decode_header,
)
from galileo.storage.segment import damaged

PAGE_BYTES = 4096
_CHECK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """What is to be read, and what must be found.

    Attributes:
        sequence: of the first frame.
        last: whether this is the partition's last segment: the only one that may have a torn
            tail, and the only one whose observations are checked.
    """

    path: Path
    partition: int
    sequence: int
    path_schema: pa.Schema
    last: bool


@dataclass(frozen=True, slots=True)
class ScannedFrame:
    header: FrameHeader
    paths: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Flaw:
    """Why no frame can be had at a place; `header` is the frame's own, if that is whole."""

    reason: str
    header: FrameHeader | None
    can_be_torn: bool = True


def scan(plan: SegmentScan) -> Iterator[ScannedFrame]:
    """The valid frames of a segment in order; ends before a torn tail.

    Reads headers and paths, and the observations of the last segment only.

    Raises:
        DataDamaged: a frame fails its checksums, or is not the one that belongs there.
        ConfigError: a frame is of a format that this version does not know.
    """
    with plan.path.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        offset, sequence = 0, plan.sequence
        while offset < size:
            found = _frame(descriptor, offset, plan=plan, sequence=sequence)
            if isinstance(found, _Flaw):
                torn = plan.last and found.can_be_torn
                if torn and is_torn(descriptor, offset, header=found.header, sequence=sequence):
                    return
                raise damaged(plan.path, offset, reason=found.reason)
            yield found
            offset += found.header.frame_bytes
            sequence += 1


def _frame(
    descriptor: int, offset: int, *, plan: SegmentScan, sequence: int
) -> ScannedFrame | _Flaw:
    try:
        header = decode_header(read_at(descriptor, HEADER_BYTES_MAX, offset=offset))
    except DataDamaged as flaw:
        return _Flaw(flaw.message, None)
    if (header.partition, header.sequence) != (plan.partition, sequence):
        reason = (
            f"expected sequence {sequence} of partition {plan.partition}, "
            f"got sequence {header.sequence} of partition {header.partition}"
        )
        return _Flaw(reason, header, can_be_torn=False)
    try:
        return ScannedFrame(header, _paths(descriptor, offset, plan=plan, header=header))
    except DataDamaged as flaw:
        return _Flaw(flaw.message, header)


def _paths(
    descriptor: int, offset: int, *, plan: SegmentScan, header: FrameHeader
) -> pa.RecordBatch:
    """The paths of a frame, after all checks of its bodies."""
    size = os.fstat(descriptor).st_size - offset
    if header.frame_bytes > size:
        raise DataDamaged(f"expected a frame of {header.frame_bytes} bytes, the file has {size}")
    data = read_at(descriptor, header.paths_bytes, offset=offset + header.paths_offset)
    if checksum([data]) != header.paths_crc:
        raise DataDamaged("the checksum of the paths is wrong")
    if plan.last:
        _check_observations(descriptor, offset + header.observations_offset, header=header)
    paths = decode_body(pa.py_buffer(data), plan.path_schema)
    if paths.num_rows != header.paths:
        raise DataDamaged(f"expected {header.paths} paths, got {paths.num_rows}")
    return paths


def _check_observations(descriptor: int, start: int, *, header: FrameHeader) -> None:
    end = start + header.observations_bytes
    parts = (
        read_at(descriptor, min(_CHECK_BYTES, end - place), offset=place)
        for place in range(start, end, _CHECK_BYTES)
    )
    if checksum(parts) != header.observations_crc:
        raise DataDamaged("the checksum of the observations is wrong")


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
        same_group = all(found.group <= sequence for _, found in later)
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
    except DataDamaged:
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
