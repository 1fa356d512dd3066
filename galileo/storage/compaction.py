"""Compaction: sealed segments of a partition become one compressed file with the same commits.

Erasing rewrites one file in the same way, a merged one too, and leaves rows blank that were removed
(`galileo.storage.erasing`). The new file of a merged one takes its name.

Steps, each durable before the next: the new file is written under a name that recovery
removes; it is synced and read back; it gets its final name; then the segments that it replaces
are deleted. Recovery deletes segments whose sequences a merged one has. So whenever the process
dies, each commit is found once: in its segment before the final name is there, in the merged
segment afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from galileo.errors import ConfigError, CorruptData, GalileoError
from galileo.model.schema import StoredSchema
from galileo.storage.compacted_format import BlockEntry, encode_batch, encode_index
from galileo.storage.compacted_segment import UNFINISHED, CompactedSegment, compacted_name
from galileo.storage.disk import Disk, read_at, write_all
from galileo.storage.erasing import RemovedRows, blank_observations, blank_paths
from galileo.storage.frame import (
    HEADER_BYTES_MAX,
    Body,
    FrameHeader,
    checksum,
    decode_body,
    decode_header,
    schema_of_frame,
)
from galileo.storage.segment import Segment, corrupt_error
from galileo.storage.segment_verify import check_compacted

COMPACTION_BYTES_MIN = 256 << 20
COMPACTION_BYTES_MAX = 1 << 30
BLOCK_BYTES = 1 << 20

RateLimit: TypeAlias = Callable[[int], bool]
"""Called with the bytes read since the last call; may wait; returns whether to go on."""


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """When and how sealed segments are merged; sizes are of the segments' files.

    Args:
        bytes_min: sealed segments that hold less wait for more.
        bytes_max: that go into one merged segment.
        block_bytes: of frames that are compressed together; a read decodes a whole block.
        span_us: by which the newest observation times of segments that become one may differ,
            microseconds; what fits is merged then, however little it is. None: by any.
    """

    bytes_min: int = COMPACTION_BYTES_MIN
    bytes_max: int = COMPACTION_BYTES_MAX
    block_bytes: int = BLOCK_BYTES
    span_us: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.bytes_min <= self.bytes_max or self.block_bytes <= 0:
            raise ConfigError(
                "expected block_bytes above 0 and bytes_min from 1 to bytes_max for merging, "
                f"got {self}"
            )


@dataclass(frozen=True, slots=True)
class Compaction:
    """The segments of one compaction, and where its file goes.

    Attributes:
        sources: sealed segments, one behind the other.
        removed: rows that become blank; None: none.
    """

    directory: Path
    partition: int
    schema: StoredSchema
    sources: tuple[Segment | CompactedSegment, ...]
    block_bytes: int
    removed: RemovedRows | None = None


@dataclass(frozen=True, slots=True)
class _Frame:
    header: FrameHeader
    paths: pa.RecordBatch
    observations: pa.RecordBatch


@dataclass(slots=True)
class _Output:
    """The new file as far as it is written."""

    descriptor: int
    length: int = 0
    headers: list[FrameHeader] = field(default_factory=list)
    entries: list[BlockEntry] = field(default_factory=list)


def pick_compaction(sealed: Sequence[Segment], options: CompactionOptions) -> tuple[Segment, ...]:
    """The sealed segments to compact now, oldest first; empty while they are too few."""
    chosen: list[Segment] = []
    size, is_complete = 0, False
    for segment in sealed:
        is_complete = bool(chosen) and (
            segment.first_sequence != chosen[-1].next_sequence
            or size + segment.length > options.bytes_max
            or (options.span_us is not None and _span(segment, chosen) > options.span_us)
        )
        if is_complete:
            break
        chosen.append(segment)
        size += segment.length
    return tuple(chosen) if size >= options.bytes_min or is_complete else ()


def _span(segment: Segment, chosen: Sequence[Segment]) -> int:
    """Between the newest times of a segment and of those before it; they may come in any order."""
    newest = [segment.newest_us, *(other.newest_us for other in chosen)]
    return max(newest) - min(newest)


def write_compacted(merge: Compaction, *, disk: Disk, pace: RateLimit) -> Path | None:
    """Writes the merged segment, under a name that recovery removes; the sources stay.

    Cost: one block of frames in memory. Each frame is checked, so damage is not passed on.

    Returns:
        The file, durable; None where `pace` ended it, and then nothing is left.

    Raises:
        CorruptData: of a source, or of what the disk stored.
        OSError: the disk refuses; nothing of the new file is left where it lets itself be removed.
    """
    first = merge.sources[0].first_sequence
    temporary = merge.directory / f"{first:020d}{UNFINISHED}"
    temporary.unlink(missing_ok=True)
    try:
        if not _write(temporary, merge, disk=disk, pace=pace):
            temporary.unlink()
            return None
        _check(temporary, merge.partition)
    except (OSError, GalileoError):
        _discard(temporary)
        raise
    return temporary


def give_final_name(temporary: Path, *, disk: Disk) -> Path:
    """The file with its final name; in place of the merged segment that has it.

    Raises:
        OSError: the disk refuses; nothing of the new file is left where it lets itself be removed.
    """
    final = temporary.with_name(compacted_name(int(temporary.stem)))
    try:
        disk.rename(temporary, final)
    except OSError:
        _discard(temporary)
        raise
    return final


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _write(path: Path, merge: Compaction, *, disk: Disk, pace: RateLimit) -> bool:
    output = _Output(disk.create(path))
    try:
        for block in _blocks(merge):
            _write_block(output, block, disk)
            if not pace(sum(frame.header.frame_bytes for frame in block)):
                return False
        index = encode_index(output.headers, output.entries)
        write_all(disk, output.descriptor, index, offset=output.length)
        disk.fdatasync(output.descriptor)
        if hasattr(os, "posix_fadvise"):  # what is read back comes from the disk
            os.posix_fadvise(output.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return True
    finally:
        os.close(output.descriptor)


def _write_block(output: _Output, frames: list[_Frame], disk: Disk) -> None:
    paths = encode_batch(pa.concat_batches([frame.paths for frame in frames]))
    observations = encode_batch(pa.concat_batches([frame.observations for frame in frames]))
    buffers = [*paths.buffers, *observations.buffers]
    write_all(disk, output.descriptor, buffers, offset=output.length)
    output.length += paths.size + observations.size
    output.headers += [frame.header for frame in frames]
    output.entries.append(_entry(len(frames), paths, observations))


def _entry(commits: int, paths: Body, observations: Body) -> BlockEntry:
    return BlockEntry(
        commits=commits,
        paths_bytes=paths.size,
        observations_bytes=observations.size,
        paths_crc=paths.crc,
        observations_crc=observations.crc,
    )


def _blocks(merge: Compaction) -> Iterator[list[_Frame]]:
    """The frames of all sources, together as long as a block has room.

    Those of a block have the same features: commits stay as narrow as they were made.
    """
    block: list[_Frame] = []
    size = 0
    for source in merge.sources:
        for stored in _frames(source, merge):
            frame = stored if merge.removed is None else _erased(stored, merge.removed)
            is_full = size + frame.header.frame_bytes > merge.block_bytes
            if block and (is_full or frame.header.added != block[0].header.added):
                yield block
                block, size = [], 0
            block.append(frame)
            size += frame.header.frame_bytes
    yield block


def _erased(frame: _Frame, removed: RemovedRows) -> _Frame:
    """The frame without the values of removed rows; its header says what it said, and that."""
    part = removed.between(frame.header.sequence, frame.header.sequence + 1)
    if not len(part):
        return frame
    mask = part.mask(frame.header.sequence, frame.header.rows)
    return _Frame(
        replace(frame.header, erased=removed.until),
        blank_paths(frame.paths, mask),
        blank_observations(frame.observations, mask),
    )


def _frames(source: Segment | CompactedSegment, merge: Compaction) -> Iterator[_Frame]:
    """The frames of a segment, read through the file and checked whole."""
    if isinstance(source, CompactedSegment):
        for stored in source.commits():
            yield _Frame(*stored)
        return
    offset = 0
    with source.path.open("rb", buffering=0) as file:
        for sequence in range(source.first_sequence, source.next_sequence):
            try:
                frame = _frame(file.fileno(), offset, merge)
                if frame.header.sequence != sequence:
                    raise CorruptData(f"expected sequence {sequence}, got {frame.header.sequence}")
            except CorruptData as error:
                raise corrupt_error(source.path, offset, reason=error.message) from error
            yield frame
            offset += frame.header.frame_bytes


def _frame(descriptor: int, offset: int, merge: Compaction) -> _Frame:
    header = decode_header(read_at(descriptor, HEADER_BYTES_MAX, offset=offset))
    data = pa.py_buffer(read_at(descriptor, header.frame_bytes, offset=offset))
    paths = data.slice(header.paths_offset, header.paths_bytes)
    observations = data.slice(header.observations_offset, header.observations_bytes)
    checks = ((paths, header.paths_crc), (observations, header.observations_crc))
    if any(checksum([body]) != crc for body, crc in checks):
        raise CorruptData("the checksum of the paths or of the observations is wrong")
    schema = schema_of_frame(merge.schema, header.added)
    frame = _Frame(
        header,
        decode_body(paths, schema.path_schema),
        decode_body(observations, schema.observation_schema),
    )
    if (frame.paths.num_rows, frame.observations.num_rows) != (header.paths, header.rows):
        raise CorruptData(f"expected {header.rows} rows and {header.paths} paths, got others")
    return frame


def _check(path: Path, partition: int) -> None:
    """Reads the new file back before anything else depends on it."""
    check = check_compacted(path, partition=partition)
    if check.flaws:
        flaw = check.flaws[0]
        raise corrupt_error(
            path, flaw.offset, reason=f"just written, it reads differently: {flaw.reason}"
        )
