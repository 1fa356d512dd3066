"""A frame: one commit as bytes. Pure encoding and decoding, no I/O.

    header | paths | observations

Each part is padded with zeros to a multiple of 64 bytes, so that every frame of a segment
starts aligned and a memory map of it can be used in place. The header carries its own
CRC-32C and those of both bodies, padding included: no byte of a frame is outside a checksum.
The bodies are Arrow IPC record batch messages without their schema, which the dataset has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa

from galileo.errors import ConfigError, CorruptData, InputError
from galileo.model.schema import StoredSchema

MAGIC = b"\x89GLF\x0d\x0a\x1a\xa7"
FORMAT_VERSION = 1
ALIGNMENT = 64
PRODUCER_BYTES_MAX = 255
BATCH_MAX = 2**64 - 1
HEADER_BYTES_MIN = 128
HEADER_BYTES_MAX = 384

# magic, version, header bytes, partition; sequence; distances to group and committed, batch; rows,
# paths; committed at; lengths of paths and observations by `ALIGNMENT`, epoch; paths crc,
# observations crc; added, and whether rows are erased; producer bytes. Behind the producer comes
# `erased`, if it is not 0: most producers' names leave no room for it in a header of 128 bytes.
_FIELDS = struct.Struct("<8sHHIQIIQIIqIIQIIHB")
_FRONT = struct.Struct("<HH")
_ERASED = struct.Struct("<Q")
_IS_ERASED = 1 << 15
_CRC = struct.Struct("<I")

Buffer: TypeAlias = Any
"""Immutable contiguous bytes: `bytes` or `pyarrow.Buffer`."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame.

    Attributes:
        group: sequence of the first frame that was synced together with this one. Everything
            before it was durable when this frame was written.
        epoch: the term of the leader that made the frame.
        committed: up to where the leader knew the log to be committed when it made the frame; the
            frame's own sequence if the leader was alone in its replica set. It is at least number 0
            of the frame's history.
        committed_at_us: the writer's wall clock, microseconds; informative only. Of the record of a
            batch it is the digest of the batch.
        paths_bytes, observations_bytes: lengths of the bodies, padding included.
        added: how many of the features that were added to the dataset the bodies have.
        erased: rows that commits up to this one have removed are blank, unless it is 0.
    """

    partition: int
    sequence: int
    group: int
    producer: str
    batch: int
    rows: int
    paths: int
    committed_at_us: int
    paths_bytes: int
    observations_bytes: int
    paths_crc: int
    observations_crc: int
    epoch: int
    committed: int
    added: int = 0
    erased: int = 0

    @property
    def header_bytes(self) -> int:
        erased = _ERASED.size if self.erased else 0
        return padded(_FIELDS.size + len(self.producer.encode()) + erased + _CRC.size)

    @property
    def paths_offset(self) -> int:
        """The offset of the paths, from the start of the frame."""
        return self.header_bytes

    @property
    def observations_offset(self) -> int:
        """The offset of the observations, from the start of the frame."""
        return self.header_bytes + self.paths_bytes

    @property
    def frame_bytes(self) -> int:
        return self.header_bytes + self.paths_bytes + self.observations_bytes


@dataclass(frozen=True, slots=True)
class Body:
    """One encoded record batch: the buffers to write, their total length and checksum."""

    buffers: tuple[Buffer, ...]
    size: int
    crc: int


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def checksum(buffers: Iterable[Buffer], crc: int = 0) -> int:
    """CRC-32C of buffers as if they were joined, and joined to what `crc` is of."""
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer)
    return crc


def encode_body(batch: pa.RecordBatch) -> Body:
    """The body of a batch; batches of equal values have the same one, however they were made."""
    message = _without_unread_bytes(batch).serialize()
    buffers = (message, bytes(padded(message.size) - message.size))
    return Body(buffers, padded(message.size), checksum(buffers))


def _without_unread_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without bytes that Arrow never reads, which also get into a message.

    A slice has neighbouring texts and bits, and any value can lie where a null is. `take` makes
    arrays anew. Arrow cuts slices of numbers exactly if these have no bits for nulls.
    """
    rows = None
    columns = []
    for column in batch.columns:
        kind = column.type
        has_only_values = pa.types.is_primitive(kind) and not pa.types.is_boolean(kind)
        if not has_only_values or column.buffers()[0] is not None:
            rows = pa.array(np.arange(len(batch))) if rows is None else rows
            column = column.take(rows)
        columns.append(column)
    return batch if rows is None else pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def decode_body(buffer: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of a body whose checksum was right; it shares the buffer's memory.

    Raises:
        CorruptData: the bytes are no record batch of this schema.
    """
    try:
        return pa.ipc.read_record_batch(buffer, schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptData(
            f"expected a record batch of {schema.names}: {error}", expected="record_batch"
        ) from error


def schema_of_frame(schema: StoredSchema, added: int) -> StoredSchema:
    """The schema of the bodies of a frame.

    Args:
        schema: of the dataset.
        added: how many of its added features the frame has.

    Raises:
        CorruptData: the dataset has fewer, as far as is known here.
    """
    if added > schema.added:
        raise CorruptData(
            f"expected a commit with at most {schema.added} added features, got {added}; the "
            f"schema of dataset {schema.name!r} that is stored here is older than its commits",
            expected="added",
            bound=schema.added,
        )
    return schema.narrowed(added)


def producer_name(producer: str) -> str:
    """The producer, if its name fits a frame.

    Raises:
        InputError: it is empty, too long or not encodable.
    """
    try:
        size = len(producer.encode())
    except UnicodeEncodeError as error:
        raise InputError(f"expected a producer name in Unicode, got {producer!r}") from error
    if not 1 <= size <= PRODUCER_BYTES_MAX:
        raise InputError(
            f"expected a producer name of 1 to {PRODUCER_BYTES_MAX} UTF-8 bytes, got {size}"
        )
    return producer


def encode_header(header: FrameHeader) -> bytes:
    """The header's bytes; its checksum is their last four."""
    name, size, sequence = header.producer.encode(), header.header_bytes, header.sequence
    fields = _FIELDS.pack(
        *(MAGIC, FORMAT_VERSION, size, header.partition),
        *(sequence, sequence - header.group, sequence - header.committed, header.batch),
        *(header.rows, header.paths, header.committed_at_us),
        *(header.paths_bytes // ALIGNMENT, header.observations_bytes // ALIGNMENT, header.epoch),
        *(header.paths_crc, header.observations_crc),
        *(header.added | (_IS_ERASED if header.erased else 0), len(name)),
    )
    erased = _ERASED.pack(header.erased) if header.erased else b""
    covered = (fields + name + erased).ljust(size - _CRC.size, b"\0")
    return covered + _CRC.pack(checksum([covered]))


def decode_header(data: bytes) -> FrameHeader:
    """The header at the start of `data`, of which `HEADER_BYTES_MAX` bytes are always enough.

    Raises:
        CorruptData: no complete header with a valid checksum is there.
        ConfigError: one does, in a format that this version does not know.
    """
    if len(data) < HEADER_BYTES_MIN or data[: len(MAGIC)] != MAGIC:
        raise CorruptData(f"expected a frame header, got {len(data)} bytes that start with none")
    version, size = _FRONT.unpack_from(data, len(MAGIC))
    if size % ALIGNMENT or not HEADER_BYTES_MIN <= size <= min(len(data), HEADER_BYTES_MAX):
        raise CorruptData(f"expected a whole frame header, got one that claims {size} bytes")
    covered, crc = data[: size - _CRC.size], data[size - _CRC.size : size]
    if _CRC.pack(checksum([covered])) != crc:
        raise CorruptData("the checksum of the frame header is wrong")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"expected stored frames of format {FORMAT_VERSION}, got {version}; start the version "
            "of Galileo that wrote them",
            expected="format_version",
        )
    _, _, _, *numbers, name_bytes = _FIELDS.unpack_from(covered)
    name_end = _FIELDS.size + name_bytes
    try:
        name = covered[_FIELDS.size : name_end].decode()
        is_erased = numbers[-1] & _IS_ERASED
        erased = _ERASED.unpack_from(covered, name_end)[0] if is_erased else 0
    except (UnicodeDecodeError, struct.error) as error:
        raise CorruptData(
            f"expected a producer's name in UTF-8: {error}", expected="producer"
        ) from error
    return _header(numbers, name, erased)


def _header(numbers: list[int], producer: str, erased: int) -> FrameHeader:
    partition, sequence, group, committed, batch, rows, paths, committed_at_us = numbers[:8]
    paths_length, observations_length, epoch, paths_crc, observations_crc, added = numbers[8:]
    return FrameHeader(
        partition=partition,
        sequence=sequence,
        group=sequence - group,
        producer=producer,
        batch=batch,
        rows=rows,
        paths=paths,
        committed_at_us=committed_at_us,
        paths_bytes=paths_length * ALIGNMENT,
        observations_bytes=observations_length * ALIGNMENT,
        paths_crc=paths_crc,
        observations_crc=observations_crc,
        epoch=epoch,
        committed=sequence - committed,
        added=added & ~_IS_ERASED,
        erased=erased,
    )
