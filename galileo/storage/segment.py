"""Segments as readers see them: where each frame lies, and verified views into the files."""

from __future__ import annotations

import mmap
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from galileo.errors import CorruptData
from galileo.model.schema import StoredSchema
from galileo.model.times import TIME_MIN_US
from galileo.storage.disk import read_at
from galileo.storage.frame import (
    HEADER_BYTES_MAX,
    FrameHeader,
    checksum,
    decode_body,
    decode_header,
    schema_of_frame,
)

SUFFIX = ".segment"
MAPPED_SEGMENTS_MAX = 32
"""Segments of a partition that stay memory-mapped; each costs a file descriptor."""
DECODED_COMMITS_MAX = 256
"""Commits of a partition whose decoded observations are kept: views, some 4 KB each."""


def segment_name(first_sequence: int) -> str:
    return f"{first_sequence:020d}{SUFFIX}"


def segment_paths(directory: Path) -> list[Path]:
    """The segment files of a partition in sequence order."""
    paths = directory.glob(f"*{SUFFIX}")
    return sorted(path for path in paths if path.stem.isdigit() and len(path.stem) == 20)


def corrupt_error(path: Path, offset: int, *, reason: str) -> CorruptData:
    """The error for stored bytes that cannot be trusted; says where they are and what to do."""
    return CorruptData(
        f"{path} is damaged at byte {offset}: {reason}. Nothing was changed. Check the disk; "
        "restore this file from a copy, or, where the loss of its commits is acceptable, move "
        "the directory that holds it away and start again",
        file=str(path),
        offset=offset,
    )


class Segment:
    """One segment file: its committed frames and which of them were verified.

    One thread adds; any number of threads read what was added before.

    Attributes:
        newest_us: the end of its newest time bucket, microseconds since 1970; set by the journal.
        schema: of the dataset when the newest frame was added; set by the journal.
    """

    __slots__ = (
        "_maps",
        "_offsets",
        "_verified",
        "first_sequence",
        "length",
        "newest_us",
        "path",
        "schema",
    )

    def __init__(
        self, path: Path, *, first_sequence: int, schema: StoredSchema, maps: SegmentMaps
    ) -> None:
        self.path = path
        self.first_sequence = first_sequence
        self.length = 0
        self.newest_us = TIME_MIN_US
        self.schema = schema
        self._maps = maps
        self._offsets = array("Q")
        self._verified = bytearray()

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self._offsets)

    def add(self, header: FrameHeader, *, verified: bool) -> None:
        """Adds the frame at the end of the known part.

        Args:
            header: of that frame.
            verified: whether the observations need no check when they are first read.
        """
        self._verified.append(verified)
        self._offsets.append(self.length)
        self.length += header.frame_bytes

    def truncate(self, next_sequence: int) -> None:
        """Removes the frames from `next_sequence` on."""
        self.length = self.length_before(next_sequence)
        count = next_sequence - self.first_sequence
        del self._offsets[count:], self._verified[count:]

    def length_before(self, sequence: int) -> int:
        """The bytes of the frames before one."""
        return self._offset(sequence) if sequence < self.next_sequence else self.length

    def frames(self, after: int, until: int, *, bytes_max: int) -> tuple[int, bytes]:
        """Frames as they are on the disk, from that of `after + 1` on, at least one.

        Args:
            after: before the first frame that is wanted.
            until: the last one that is wanted.
            bytes_max: of all frames; a single one may exceed it.

        Returns:
            The sequence of the last one, and their bytes; they are not checked.
        """
        start = self._offset(after + 1)
        last = min(until, self.next_sequence - 1)
        while last > after + 1 and self.length_before(last + 1) - start > bytes_max:
            last -= 1
        with self.path.open("rb", buffering=0) as file:
            return last, read_at(file.fileno(), self.length_before(last + 1) - start, offset=start)

    def header(self, sequence: int) -> FrameHeader:
        """Raises:
        CorruptData: the header on disk is not the one that was written.
        """
        offset = self._offset(sequence)
        size = min(HEADER_BYTES_MAX, self.length - offset)
        try:
            header = decode_header(self._view(offset, size).to_pybytes())
        except CorruptData as error:
            raise corrupt_error(self.path, offset, reason=error.message) from error
        if header.sequence != sequence or offset + header.frame_bytes > self.length:
            reason = f"expected the frame of sequence {sequence}, got that of {header.sequence}"
            raise corrupt_error(self.path, offset, reason=reason)
        return header

    def row_count(self, sequence: int) -> int:
        """The rows of a commit; errors as `header`."""
        return self.header(sequence).rows

    def row_sizes(self, sequences: Sequence[int]) -> list[float]:
        """The mean bytes of the rows of some commits; errors as `header`."""
        headers = map(self.header, sequences)
        return [header.observations_bytes / max(header.rows, 1) for header in headers]

    def erased(self, sequences: np.ndarray) -> np.ndarray:
        """As of a merged segment; copies of erased commits are in segments, too."""
        named, places = np.unique(sequences, return_inverse=True)
        return np.array([self.header(one).erased for one in named.tolist()], np.int64)[places]

    def count_rows(self) -> int:
        """Reads every header."""
        return sum(self.header(n).rows for n in range(self.first_sequence, self.next_sequence))

    def paths(self, sequence: int) -> pa.RecordBatch:
        """The paths of a commit as they are stored, checked each time."""
        header = self.header(sequence)
        start = self._offset(sequence) + header.paths_offset
        view = self._view(start, header.paths_bytes)
        if checksum([view]) != header.paths_crc:
            raise corrupt_error(self.path, start, reason="the checksum of the paths is wrong")
        return decode_body(view, self._schema_of(header, start).path_schema)

    def observations(self, sequence: int) -> pa.RecordBatch:
        """The observations of a commit as they are stored, in the file's memory map.

        Raises:
            CorruptData: at the first read of this frame, if its checksum is wrong.
        """
        decoded = self._maps.cached(sequence)
        if decoded is not None:
            return decoded
        header = self.header(sequence)
        start = self._offset(sequence) + header.observations_offset
        if not self._verified[sequence - self.first_sequence]:
            self._verify(header, start)
            self._verified[sequence - self.first_sequence] = True
        view = self._maps.view(self, until=start + header.observations_bytes)
        body = view.slice(start, header.observations_bytes)
        batch = decode_body(body, self._schema_of(header, start).observation_schema)
        self._maps.keep(self.path, sequence, batch, view=view)
        return batch

    def _schema_of(self, header: FrameHeader, start: int) -> StoredSchema:
        try:
            return schema_of_frame(self.schema, header.added)
        except CorruptData as error:
            raise corrupt_error(self.path, start, reason=error.message) from error

    def _verify(self, header: FrameHeader, start: int) -> None:
        """Reads through the file, not the map: a bad sector is an error here, there SIGBUS."""
        try:
            with self.path.open("rb", buffering=0) as file:
                data = read_at(file.fileno(), header.observations_bytes, offset=start)
        except OSError as error:
            raise corrupt_error(
                self.path, start, reason=f"the disk cannot read it: {error}"
            ) from error
        if checksum([data]) != header.observations_crc:
            raise corrupt_error(
                self.path, start, reason="the checksum of the observations is wrong"
            )

    def _view(self, start: int, size: int) -> pa.Buffer:
        return self._maps.view(self, until=start + size).slice(start, size)

    def _offset(self, sequence: int) -> int:
        return self._offsets[sequence - self.first_sequence]


class SegmentMaps:
    """The memory maps of a partition's segments, and observations decoded in them.

    The most recently used ones are kept. A map that is dropped here lives on until the last table
    that uses it is gone; so what was decoded in it is dropped with it.
    """

    __slots__ = ("_decoded", "_lock", "_maps")

    def __init__(self) -> None:
        self._maps: OrderedDict[Path, pa.Buffer] = OrderedDict()
        self._decoded: OrderedDict[int, tuple[Path, pa.RecordBatch]] = OrderedDict()
        self._lock = threading.Lock()

    def view(self, segment: Segment, *, until: int) -> pa.Buffer:
        """A map of the segment's file that holds at least its first `until` bytes."""
        with self._lock:
            view = self._maps.get(segment.path)
            if view is None or view.size < until:
                view = _map(segment.path, max(until, segment.length))
                self._drop_decoded(segment.path)
                self._maps[segment.path] = view
            self._maps.move_to_end(segment.path)
            while len(self._maps) > MAPPED_SEGMENTS_MAX:
                path, _ = self._maps.popitem(last=False)
                self._drop_decoded(path)
            return view

    def cached(self, sequence: int) -> pa.RecordBatch | None:
        """The observations of a commit, where they are kept; they were checked."""
        with self._lock:
            decoded = self._decoded.get(sequence)
            if decoded is None:
                return None
            self._decoded.move_to_end(sequence)
            return decoded[1]

    def keep(self, path: Path, sequence: int, batch: pa.RecordBatch, *, view: pa.Buffer) -> None:
        """Keeps the observations of a commit, unless the map that they are in was dropped."""
        with self._lock:
            if self._maps.get(path) is view:
                self._decoded[sequence] = path, batch
                while len(self._decoded) > DECODED_COMMITS_MAX:
                    self._decoded.popitem(last=False)

    def evict(self, path: Path) -> None:
        """Drops the map of a file that is deleted."""
        with self._lock:
            self._maps.pop(path, None)
            self._drop_decoded(path)

    def clear(self) -> None:
        with self._lock:
            self._maps.clear()
            self._decoded.clear()

    def _drop_decoded(self, path: Path) -> None:
        """The caller holds the lock."""
        for sequence in [s for s, (of, _) in self._decoded.items() if of == path]:
            del self._decoded[sequence]


def _map(path: Path, length: int) -> pa.Buffer:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise corrupt_error(path, 0, reason=f"the file cannot be opened: {error}") from error
    try:
        return pa.py_buffer(mmap.mmap(descriptor, length, access=mmap.ACCESS_READ))
    except ValueError as error:
        size = os.fstat(descriptor).st_size
        raise corrupt_error(path, size, reason=f"expected {length} bytes, got {size}") from error
    finally:
        os.close(descriptor)
