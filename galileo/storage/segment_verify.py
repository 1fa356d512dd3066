"""Verifies every byte of one file of commits, and continues after corruption."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from galileo.errors import ConfigError, CorruptData
from galileo.storage.compacted_format import Block, read_index
from galileo.storage.fast_verify import skip_valid_frames
from galileo.storage.frame import (
    ALIGNMENT,
    HEADER_BYTES_MAX,
    MAGIC,
    FrameHeader,
    decode_header,
)
from galileo.storage.recovery import is_torn
from galileo.storage.sequential_reader import WINDOW_BYTES, OpenFile, SequentialReader

SMALL_BYTES = 32 << 10
"""Frames up to here are looked at in memory, whole; so much of a window is at most read again."""

CHUNK_BYTES = 16 << 20
"""Of a merged segment that one thread checks at a time."""

RunPieces: TypeAlias = Callable[
    [Callable[[Sequence[Block]], Any], Iterable[Sequence[Block]]], Iterable[Any]
]
"""Like `map`: results in the order of the pieces."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """One stretch of a file that cannot be trusted.

    Attributes:
        offset: where it begins, bytes.
        sequence: of the commit that should be there, None where that is unknown.
    """

    offset: int
    sequence: int | None
    reason: str


@dataclass(slots=True)
class FileCheck:
    """The result of a check of one file.

    Attributes:
        next_sequence: the sequence of the partition's next file; None if unknown.
        torn_bytes: size of a tail that the next start cuts, or that is being written.
    """

    size: int
    next_sequence: int | None
    commits: int = 0
    torn_bytes: int = 0
    flaws: list[Corruption] = field(default_factory=list)


@dataclass(slots=True)
class _VerifyCursor:
    """The position of a check; `result` is its result so far."""

    window: SequentialReader
    partition: int
    last: bool
    result: FileCheck
    sequence: int
    offset: int = 0


def check_segment(
    path: Path, *, partition: int, last: bool, open_file: OpenFile = SequentialReader
) -> FileCheck:
    """Reads all of a segment file and compares it with its checksums.

    Args:
        path: of the file; its name says its first sequence.
        partition: that its frames must be of.
        last: whether it is the partition's last file, which may have a torn tail.
        open_file: how it is read.

    Raises:
        FileNotFoundError: there is no such file any more.
        ConfigError: a frame is of a format that this version does not know.
    """
    with open_file(path) as window:
        first = int(path.stem)
        walk = _VerifyCursor(window, partition, last, FileCheck(window.size, first), first)
        while walk.offset < window.size:
            _skip_valid_frames(walk)
            if walk.offset < window.size:
                _check_frame(walk, path)
        return walk.result


def check_compacted(
    path: Path, *, partition: int, open_file: OpenFile = SequentialReader, run: RunPieces = map
) -> FileCheck:
    """Reads all of a merged segment and compares it with its checksums; errors as above.

    Compressed bytes are not decoded: a checksum covers each of them.

    Args:
        path: of the file; its name says its first sequence.
        partition: that it must be of.
        open_file: how it is read; called once for the index and once for each piece.
        run: applies a function to pieces of the file, in threads where it likes.
    """
    result = FileCheck(path.stat().st_size, None)
    try:
        index = read_index(path, open_file=open_file)
    except FileNotFoundError:
        raise
    except (CorruptData, OSError) as error:
        result.flaws.append(Corruption(result.size, None, f"no index: {error}"))
        return result
    result.next_sequence = index.first_sequence + index.commits.num_rows
    if (index.partition, index.first_sequence) != (partition, int(path.stem)):
        place = f"sequence {index.first_sequence} of partition {index.partition}"
        result.flaws.append(Corruption(0, None, f"its place is not here but at {place}"))
    check = functools.partial(_check_blocks, path, open_file=open_file)
    for commits, flaws in run(check, _pieces(index.blocks)):
        result.commits += commits
        result.flaws += flaws
    return result


def _pieces(blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Consecutive blocks of about `CHUNK_BYTES` together."""
    starts = [block.offset // CHUNK_BYTES for block in blocks]
    edges = [n for n in range(1, len(blocks)) if starts[n] != starts[n - 1]]
    for start, stop in itertools.pairwise([0, *edges, len(blocks)]):
        yield blocks[start:stop]


def _check_blocks(
    path: Path, blocks: Sequence[Block], *, open_file: OpenFile
) -> tuple[int, list[Corruption]]:
    """The number of valid commits, and the damage of the others."""
    commits, result = 0, []
    with open_file(path) as window:
        for block in blocks:
            flaws = list(_block_flaws(window, block))
            commits += 0 if flaws else block.entry.commits
            result += flaws
    return commits, result


def _block_flaws(window: SequentialReader, block: Block) -> Iterator[Corruption]:
    entry, last = block.entry, block.last_sequence
    parts = (
        ("paths", block.offset, entry.paths_bytes, entry.paths_crc),
        (
            "observations",
            block.observations_offset,
            entry.observations_bytes,
            entry.observations_crc,
        ),
    )
    for what, offset, size, crc in parts:
        try:
            right = window.checksum(offset, size) == crc
            reason = f"the checksum of the {what} of the commits to sequence {last} is wrong"
        except OSError as error:
            right, reason = False, f"the disk cannot read the {what} to sequence {last}: {error}"
        if not right:
            yield Corruption(offset, block.first_sequence, reason)


def _skip_valid_frames(walk: _VerifyCursor) -> None:
    """Moves behind all sound frames that are small; larger ones lose nothing one by one."""
    while walk.offset < walk.window.size:
        try:
            memory, place = walk.window.is_loaded(walk.offset, SMALL_BYTES)
        except OSError:
            return
        end, sequence = skip_valid_frames(
            memory, place, partition=walk.partition, sequence=walk.sequence
        )
        if end == place:
            return
        walk.result.commits += sequence - walk.sequence
        walk.offset += end - place
        walk.sequence = walk.result.next_sequence = sequence


def _check_frame(walk: _VerifyCursor, path: Path) -> None:
    """Checks the frame at the walk's offset, and moves behind it or behind the damage."""
    header, complaint = _header(walk)
    if header is not None and not complaint:
        complaint = _bodies(walk, header)
    if not complaint:
        assert header is not None, "a frame without complaint has a header"
        _advance(walk, header, walk.offset)
        walk.result.commits += 1
    elif walk.last and _is_tail(path, walk, header):
        walk.result.torn_bytes = walk.window.size - walk.offset
        walk.offset = walk.window.size
    else:
        walk.result.flaws.append(Corruption(walk.offset, walk.sequence, complaint))
        _step_over(walk, header)


def _header(walk: _VerifyCursor) -> tuple[FrameHeader | None, str]:
    """The header at the walk's offset if it is the one that belongs there, or what is wrong."""
    try:
        header = decode_header(walk.window.bytes_at(walk.offset, HEADER_BYTES_MAX))
    except CorruptData as error:
        return None, error.message
    except OSError as error:
        return None, f"the disk cannot read it: {error}"
    expected = walk.sequence
    if (header.partition, header.sequence) == (walk.partition, expected):
        return header, ""
    return None, (
        f"expected sequence {expected} of partition {walk.partition}, "
        f"got sequence {header.sequence} of partition {header.partition}"
    )


def _bodies(walk: _VerifyCursor, header: FrameHeader) -> str:
    paths, observations = header.paths_offset, header.observations_offset
    checks = (
        ("paths", walk.offset + paths, header.paths_bytes, header.paths_crc),
        (
            "observations",
            walk.offset + observations,
            header.observations_bytes,
            header.observations_crc,
        ),
    )
    for what, start, size, crc in checks:
        try:
            actual = walk.window.checksum(start, size)
        except OSError as error:
            return f"the disk cannot read its {what}: {error}"
        if actual is None:
            return f"expected {header.frame_bytes} bytes, the file ends before"
        if actual != crc:
            return f"the checksum of the {what} is wrong"
    return ""


def _is_tail(path: Path, walk: _VerifyCursor, header: FrameHeader | None) -> bool:
    if header is None and _is_misplaced(walk):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size <= walk.offset:
            return True  # a running node took back a write that failed
        return is_torn(descriptor, walk.offset, header=header, sequence=walk.sequence)
    finally:
        os.close(descriptor)


def _is_misplaced(walk: _VerifyCursor) -> bool:
    """Whether a whole header is at the offset, though not the one that belongs there."""
    try:
        decode_header(walk.window.bytes_at(walk.offset, HEADER_BYTES_MAX))
    except (CorruptData, OSError):
        return False
    return True


def _advance(walk: _VerifyCursor, header: FrameHeader, offset: int) -> None:
    walk.offset = offset + header.frame_bytes
    walk.sequence = walk.result.next_sequence = header.sequence + 1


def _step_over(walk: _VerifyCursor, header: FrameHeader | None) -> None:
    """Goes on with the frame behind a damaged one, searching where its length is not known."""
    if header is not None:
        _advance(walk, header, walk.offset)
        return
    for offset, header in _headers_after(walk):
        if header.partition == walk.partition and header.sequence >= walk.sequence:
            walk.offset, walk.sequence = offset, header.sequence
            return
    walk.offset, walk.result.next_sequence = walk.window.size, None


def _headers_after(walk: _VerifyCursor) -> Iterator[tuple[int, FrameHeader]]:
    """Whole headers at and behind the walk's offset, with their places."""
    window, place = walk.window, walk.offset
    while place < window.size:
        try:
            data = window.bytes_at(place, WINDOW_BYTES)
            hit = data.find(MAGIC)
            while hit >= 0:
                with_header = window.bytes_at(place + hit, HEADER_BYTES_MAX)
                if (place + hit) % ALIGNMENT == 0 and (header := _decode_if_valid(with_header)):
                    yield place + hit, header
                hit = data.find(MAGIC, hit + 1)
        except OSError:
            data = bytes(ALIGNMENT)  # an unreadable sector is stepped over
        place += max(ALIGNMENT, len(data) // ALIGNMENT * ALIGNMENT)


def _decode_if_valid(data: bytes) -> FrameHeader | None:
    try:
        return decode_header(data)
    except (CorruptData, ConfigError):
        return None
