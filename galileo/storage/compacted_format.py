"""The file format of compacted segments: encoding and decoding; only the index is read here.

    block 1 | block 2 | … | index | trailer

A block holds the paths and then the observations of consecutive commits, each as one Arrow IPC
stream of one compressed record batch: compression needs more bytes than a small commit has. The
index has one row per commit, with what its frame's header said, and one row per block. The
trailer, at the very end, says where the index is. All parts are padded with zeros to a
multiple of 64 bytes, and every byte is under a CRC-32C.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import ConfigError, CorruptData
from galileo.storage.frame import Body, FrameHeader, checksum, padded
from galileo.storage.sequential_reader import OpenFile, SequentialReader

MAGIC = b"\x89GLM\x0d\x0a\x1a\xa7"
FORMAT_VERSION = 1
TRAILER_BYTES = 64
COMPRESSION = "zstd"

# magic, version, partition; first sequence; index offset; bytes of commits, blocks; index crc
_TRAILER = struct.Struct("<8sHIQQQQI")
_CRC = struct.Struct("<I")
_WRITING = pa.ipc.IpcWriteOptions(compression=pa.Codec(COMPRESSION, compression_level=1))

_COMMITS = pa.schema(
    [
        ("group", pa.uint64()),
        ("producer", pa.dictionary(pa.int32(), pa.string())),
        ("batch", pa.uint64()),
        ("rows", pa.uint32()),
        ("paths", pa.uint32()),
        ("committed_at_us", pa.int64()),
        ("paths_bytes", pa.uint64()),
        ("observations_bytes", pa.uint64()),
        ("paths_crc", pa.uint32()),
        ("observations_crc", pa.uint32()),
        ("epoch", pa.uint64()),
        ("added", pa.uint16()),
        ("erased", pa.uint64()),
    ]
)
_BLOCKS = pa.schema(
    [
        ("commits", pa.int64()),
        ("paths_bytes", pa.int64()),
        ("observations_bytes", pa.int64()),
        ("paths_crc", pa.uint32()),
        ("observations_crc", pa.uint32()),
    ]
)

Numbers = npt.NDArray[np.int64]

_open_for_index = partial(SequentialReader, window_bytes=TRAILER_BYTES)
"""The trailer goes through the window; the index is larger, and is read at once."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """What the index says of one block: how many commits, and both of its parts."""

    commits: int
    paths_bytes: int
    observations_bytes: int
    paths_crc: int
    observations_crc: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block's place among others.

    Attributes:
        first_sequence: of its commits.
        first_commit: number of its first commit within the file.
        offset: of its paths in the file, which its observations follow.
    """

    entry: BlockEntry
    first_sequence: int
    first_commit: int
    offset: int

    @property
    def next_commit(self) -> int:
        return self.first_commit + self.entry.commits

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.entry.commits - 1

    @property
    def observations_offset(self) -> int:
        return self.offset + self.entry.paths_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIndex:
    """The index of a merged segment.

    Attributes:
        commits: what the headers of the original frames said, in the order of sequences.
        length: of the file, bytes.
    """

    partition: int
    first_sequence: int
    commits: pa.RecordBatch
    blocks: tuple[Block, ...]
    length: int

    def numbers(self, column: str) -> Numbers:
        return np.asarray(self.commits.column(column).to_numpy(), dtype=np.int64)

    def header(self, number: int) -> FrameHeader:
        """What the original frame of one commit said about itself."""
        row = {name: self.commits.column(name)[number].as_py() for name in _COMMITS.names}
        sequence = self.first_sequence + number
        return FrameHeader(partition=self.partition, sequence=sequence, committed=sequence, **row)


def encode_batch(batch: pa.RecordBatch) -> Body:
    """A compressed record batch, padded."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    buffers = (stream, bytes(padded(stream.size) - stream.size))
    return Body(buffers, padded(stream.size), checksum(buffers))


def decode_batch(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of `encode_batch`, for bytes whose checksum was right.

    Raises:
        CorruptData: they are no record batch of this schema.
    """
    try:
        with pa.ipc.open_stream(data) as reader:
            if not reader.schema.equals(schema):
                raise CorruptData(f"expected columns {schema.names}, got {reader.schema.names}")
            return reader.read_next_batch()
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        raise CorruptData(f"expected a record batch of {schema.names}: {error}") from error


def encode_index(headers: list[FrameHeader], entries: list[BlockEntry]) -> list[Any]:
    """The buffers behind the blocks: index and trailer."""
    columns = [
        pa.array([getattr(header, column.name) for header in headers], column.type)
        for column in _COMMITS
    ]
    rows = [
        pa.array([getattr(entry, name) for entry in entries], _BLOCKS.field(name).type)
        for name in _BLOCKS.names
    ]
    commits = encode_batch(pa.RecordBatch.from_arrays(columns, schema=_COMMITS))
    blocks = encode_batch(pa.RecordBatch.from_arrays(rows, schema=_BLOCKS))
    index = [*commits.buffers, *blocks.buffers]
    offset = sum(entry.paths_bytes + entry.observations_bytes for entry in entries)
    fixed = _TRAILER.pack(
        *(MAGIC, FORMAT_VERSION, headers[0].partition, headers[0].sequence),
        *(offset, commits.size, blocks.size, checksum(index)),
    )
    covered = fixed.ljust(TRAILER_BYTES - _CRC.size, b"\0")
    return [*index, covered + _CRC.pack(checksum([covered]))]


def read_index(path: Path, *, open_file: OpenFile = _open_for_index) -> SegmentIndex:
    """Reads and checks the end of a merged segment; no block is looked at.

    Args:
        path: of the file.
        open_file: how it is read.

    Raises:
        CorruptData: trailer or index fail their checksums; without a place.
        ConfigError: the file is of a format that this version does not know.
        OSError: the disk cannot read it, or there is no such file.
    """
    with open_file(path) as window:
        length = window.size
        place = max(0, length - TRAILER_BYTES)
        trailer = window.all_bytes_at(place, TRAILER_BYTES)
        partition, first, offset, commits_bytes, blocks_bytes, crc = _trailer(trailer)
        data = window.all_bytes_at(offset, commits_bytes + blocks_bytes)
    if offset + commits_bytes + blocks_bytes != place or checksum([data]) != crc:
        raise CorruptData("the checksum or the length of the index is wrong")
    commits = decode_batch(data[:commits_bytes], _COMMITS)
    blocks = _place_entries(decode_batch(data[commits_bytes:], _BLOCKS), first_sequence=first)
    if blocks[-1].next_commit != commits.num_rows or _end(blocks[-1]) != offset:
        raise CorruptData("the index does not describe its file")
    return SegmentIndex(partition, first, commits, blocks, length)


def _trailer(data: bytes) -> tuple[int, int, int, int, int, int]:
    covered, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(data) < TRAILER_BYTES or _CRC.pack(checksum([covered])) != crc:
        raise CorruptData("the checksum of the trailer is wrong")
    magic, version, *numbers = _TRAILER.unpack_from(covered)
    if magic != MAGIC:
        raise CorruptData("expected the trailer of a merged segment, got another")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"expected merged segments of format {FORMAT_VERSION}, got {version}; start the "
            "version of Galileo that wrote them",
            expected="format_version",
        )
    partition, first, offset, commits_bytes, blocks_bytes, index_crc = numbers
    return partition, first, offset, commits_bytes, blocks_bytes, index_crc


def _place_entries(rows: pa.RecordBatch, *, first_sequence: int) -> tuple[Block, ...]:
    blocks, commit, offset = [], 0, 0
    names = [field.name for field in fields(BlockEntry)]
    for row in rows.to_pylist():
        block = Block(
            BlockEntry(**{name: row[name] for name in names}),
            first_sequence=first_sequence + commit,
            first_commit=commit,
            offset=offset,
        )
        blocks.append(block)
        commit, offset = block.next_commit, _end(block)
    if not blocks:
        raise CorruptData("expected at least one block, got none")
    return tuple(blocks)


def _end(block: Block) -> int:
    return block.observations_offset + block.entry.observations_bytes
