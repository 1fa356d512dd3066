"""Compacted segments: the interface of segments, over compressed blocks."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from galileo.errors import CorruptData
from galileo.model.schema import StoredSchema
from galileo.model.times import TIME_MIN_US
from galileo.storage.compacted_format import Block, SegmentIndex, decode_batch, read_index
from galileo.storage.disk import read_at
from galileo.storage.frame import (
    Buffer,
    FrameHeader,
    checksum,
    encode_body,
    encode_header,
    schema_of_frame,
)
from galileo.storage.recovery import Replayed
from galileo.storage.segment import corrupt_error

SUFFIX = ".merged"
UNFINISHED = ".merging"

CACHED_BLOCKS_MAX = 4
"""Decoded blocks of one partition in the cache, since neighbours are often read together."""
CACHED_BLOCK_BYTES_MAX = 32 << 20
"""Larger blocks, of one commit each, are not cached."""


def compacted_name(first_sequence: int) -> str:
    return f"{first_sequence:020d}{SUFFIX}"


def compacted_segment_paths(directory: Path) -> list[Path]:
    """The merged segments of a partition in sequence order."""
    return sorted(directory.glob(f"{'[0-9]' * 20}{SUFFIX}"))


def unfinished_paths(directory: Path) -> list[Path]:
    """What merges that were interrupted have left; of no use."""
    return sorted(directory.glob(f"*{UNFINISHED}"))


class BlockCache:
    """The blocks of one partition that were decoded last, by segment and offset.

    A file that was erased has the name of the one before, and another segment.
    """

    __slots__ = ("_blocks", "_lock")

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[object, int], pa.RecordBatch] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, segment: object, offset: int) -> pa.RecordBatch | None:
        with self._lock:
            block = self._blocks.get((segment, offset))
            if block is not None:
                self._blocks.move_to_end((segment, offset))
            return block

    def put(self, segment: object, offset: int, batch: pa.RecordBatch) -> None:
        if batch.nbytes <= CACHED_BLOCK_BYTES_MAX:
            with self._lock:
                self._blocks[segment, offset] = batch
                while len(self._blocks) > CACHED_BLOCKS_MAX:
                    self._blocks.popitem(last=False)

    def evict(self, segment: object) -> None:
        """Drops the blocks of a file that is deleted."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] is segment]:
                del self._blocks[key]

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()


class CompactedSegment:
    """One merged segment file. It never changes; any number of threads read it.

    Of the index it keeps 8 bytes a commit.

    Attributes:
        newest_us: the end of its newest time bucket, microseconds since 1970; set by the journal.
    """

    __slots__ = (
        "_added",
        "_blocks",
        "_cache",
        "_paths",
        "_rows",
        "_schema",
        "first_sequence",
        "length",
        "newest_us",
        "path",
    )

    def __init__(
        self, path: Path, index: SegmentIndex, *, schema: StoredSchema, cache: BlockCache
    ) -> None:
        self.path = path
        self.first_sequence = index.first_sequence
        self.length = index.length
        self.newest_us = TIME_MIN_US
        self._schema = schema
        self._cache = cache
        self._blocks = index.blocks
        self._added = index.numbers("added")[[block.first_commit for block in index.blocks]]
        self._rows = index.numbers("rows").astype(np.uint32)
        self._paths = index.numbers("paths").astype(np.uint32)

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self._rows)

    def header(self, sequence: int) -> FrameHeader:
        """What the original frame said; reads the index anew."""
        return load_index(self.path).header(sequence - self.first_sequence)

    def row_count(self, sequence: int) -> int:
        """The rows of a commit; reads nothing."""
        return int(self._rows[sequence - self.first_sequence])

    def row_sizes(self, sequences: Sequence[int]) -> list[float]:
        """The mean bytes of the rows of some commits before they were merged; reads the index."""
        index, places = load_index(self.path), np.array(sequences) - self.first_sequence
        rows = np.maximum(index.numbers("rows")[places], 1)
        sizes: list[float] = (index.numbers("observations_bytes")[places] / rows).tolist()
        return sizes

    def erased(self, sequences: np.ndarray) -> np.ndarray:
        """Up to which commit the removed rows of some commits are blank; reads the index."""
        erased = load_index(self.path).numbers("erased")
        return erased.take(sequences - self.first_sequence)

    def count_rows(self) -> int:
        return int(self._rows.sum(dtype=np.int64))

    def frames(self, after: int, until: int, *, bytes_max: int) -> tuple[int, bytes]:
        """Frames encoded again, with the identity of the original ones; see `Segment.frames`."""
        index, frames, size, last = load_index(self.path), list[Buffer](), 0, after
        while last < min(until, self.next_sequence - 1) and (last == after or size < bytes_max):
            last += 1
            paths, rows = encode_body(self.paths(last)), encode_body(self.observations(last))
            header = replace(
                index.header(last - self.first_sequence),
                paths_bytes=paths.size,
                observations_bytes=rows.size,
                paths_crc=paths.crc,
                observations_crc=rows.crc,
            )
            frames += [encode_header(header), *paths.buffers, *rows.buffers]
            size += header.frame_bytes
        return last, b"".join(frames)

    def paths(self, sequence: int) -> pa.RecordBatch:
        """The paths of a commit as they are stored, checked each time; reads a whole block.

        Raises:
            CorruptData: the block fails its checksum.
        """
        block = self._block_of(sequence)
        return self._slice(self._read_paths(block), block, sequence, counts=self._paths)

    def observations(self, sequence: int) -> pa.RecordBatch:
        """The observations of a commit as they are stored; reads a block unless it was used lately.

        Raises:
            CorruptData: the block fails its checksum.
        """
        block = self._block_of(sequence)
        batch = self._cache.get(self, block.observations_offset)
        if batch is None:
            batch = self._read_observations(block)
            self._cache.put(self, block.observations_offset, batch)
        return self._slice(batch, block, sequence, counts=self._rows)

    def commits(self) -> Iterator[tuple[FrameHeader, pa.RecordBatch, pa.RecordBatch]]:
        """Header, paths and observations of every commit in order, a block in memory at a time."""
        index = load_index(self.path)
        for block in self._blocks:
            paths, rows = self._read_paths(block), self._read_observations(block)
            for number in range(block.first_commit, block.next_commit):
                sequence = self.first_sequence + number
                yield (
                    index.header(number),
                    self._slice(paths, block, sequence, counts=self._paths),
                    self._slice(rows, block, sequence, counts=self._rows),
                )

    def replayed(self) -> Iterator[Replayed]:
        """The paths of every commit in order, as they are stored; observations are not touched."""
        for block in self._blocks:
            batch = self._read_paths(block)
            counts = self._paths[block.first_commit : block.next_commit].astype(np.int64)
            self._check_rows(batch, int(counts.sum()), block.offset)
            sequences = np.arange(block.first_sequence, block.last_sequence + 1)
            yield Replayed(sequences, counts, batch)

    def _block_of(self, sequence: int) -> Block:
        return self._blocks[
            bisect_right(self._blocks, sequence, key=attrgetter("first_sequence")) - 1
        ]

    def _read_paths(self, block: Block) -> pa.RecordBatch:
        data = self._read(block.offset, block.entry.paths_bytes, crc=block.entry.paths_crc)
        return self._decode_batch(data, self._schema_of(block).path_schema, block.offset)

    def _read_observations(self, block: Block) -> pa.RecordBatch:
        entry, start = block.entry, block.observations_offset
        data = self._read(start, entry.observations_bytes, crc=entry.observations_crc)
        return self._decode_batch(data, self._schema_of(block).observation_schema, start)

    def _schema_of(self, block: Block) -> StoredSchema:
        number = bisect_right(self._blocks, block.offset, key=attrgetter("offset")) - 1
        try:
            return schema_of_frame(self._schema, int(self._added[number]))
        except CorruptData as error:
            raise corrupt_error(self.path, block.offset, reason=error.message) from error

    def _slice(
        self, batch: pa.RecordBatch, block: Block, sequence: int, *, counts: np.ndarray
    ) -> pa.RecordBatch:
        number = sequence - self.first_sequence
        before = int(counts[block.first_commit : number].sum(dtype=np.int64))
        whole = int(counts[block.first_commit : block.next_commit].sum(dtype=np.int64))
        self._check_rows(batch, whole, block.offset)
        return batch.slice(before, int(counts[number]))

    def _check_rows(self, batch: pa.RecordBatch, rows: int, offset: int) -> None:
        if batch.num_rows != rows:
            reason = f"expected a block of {rows} rows, got {batch.num_rows}"
            raise corrupt_error(self.path, offset, reason=reason)

    def _read(self, offset: int, size: int, *, crc: int) -> bytes:
        """Through the file, not a map: a bad sector is an error here, there SIGBUS."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = read_at(descriptor, size, offset=offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = f"the disk cannot read it: {error}"
            raise corrupt_error(self.path, offset, reason=reason) from error
        if checksum([data]) != crc:
            raise corrupt_error(self.path, offset, reason="the checksum of the block is wrong")
        return data

    def _decode_batch(self, data: bytes, schema: pa.Schema, offset: int) -> pa.RecordBatch:
        try:
            return decode_batch(data, schema)
        except CorruptData as error:
            raise corrupt_error(self.path, offset, reason=error.message) from error


def load_index(path: Path) -> SegmentIndex:
    """The index of a merged segment of a partition.

    Raises:
        CorruptData: it fails its checksums; the error names the file.
    """
    try:
        return read_index(path)
    except CorruptData as error:
        raise corrupt_error(path, path.stat().st_size, reason=error.message) from error
    except OSError as error:
        raise corrupt_error(path, 0, reason=f"the disk cannot read it: {error}") from error
