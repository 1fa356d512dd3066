"""Validates Arrow IPC streams from untrusted sources before unpacking them.

A few kilobytes can unpack to gigabytes: by compression, by many columns that share one buffer, by a
schema or batches without end. Arrow trusts the lengths in a stream and allocates first. So the
lengths of the buffers in each message (format/Message.fbs of Arrow, parsed here by hand) are added
up, and the stream is read only if the sum is within the limit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from galileo.errors import MessageTooLarge

STREAM_BYTES_MAX = 64 << 20
"""Most unpacked bytes of one stream: as much as one uncompressed message may have."""
STREAM_MESSAGES_MAX = 16_384
"""Record batches and dictionaries of one stream; an empty one takes kilobytes."""
HEAD_BYTES_MAX = 1 << 20
"""Size of the schema, or of the header of one batch."""

_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_AS_IT_IS = -1
"""Stands for the unpacked length of a buffer that is not compressed."""


def read_stream(data: bytes | memoryview | pa.Buffer, *, bytes_max: int | None = None) -> pa.Table:
    """The table of a stream; not validated, and shares memory with `data` where possible.

    Args:
        data: the stream.
        bytes_max: most unpacked bytes; None: `STREAM_BYTES_MAX`.

    Raises:
        MessageTooLarge: it unpacks to more, or has too many or too large parts.
        pa.ArrowException, ValueError, OSError: it is no such stream.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    most, size = STREAM_BYTES_MAX if bytes_max is None else bytes_max, 0
    for number, message in enumerate(_messages(buffer)):
        if number > STREAM_MESSAGES_MAX:
            raise MessageTooLarge(
                f"expected at most {STREAM_MESSAGES_MAX:,} batches in one Arrow stream, got more; "
                "combine the chunks of the table",
                expected="batches",
                bound=STREAM_MESSAGES_MAX,
            )
        size += _unpacked_bytes(message)
        if size > most:
            raise MessageTooLarge(
                f"expected an Arrow stream of at most {most:,} bytes when it is unpacked, got at "
                f"least {size:,}; send several smaller ones",
                expected="bytes",
                bound=most,
            )
    return pa.ipc.open_stream(buffer).read_all()


def _messages(buffer: pa.Buffer) -> Iterator[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(buffer)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.metadata.size > HEAD_BYTES_MAX:
            raise MessageTooLarge(
                f"expected the schema and the head of each batch of an Arrow stream in at most "
                f"{HEAD_BYTES_MAX:,} bytes, got {message.metadata.size:,}",
                expected="schema_bytes",
                bound=HEAD_BYTES_MAX,
            )
        yield message


def _unpacked_bytes(message: pa.Message) -> int:
    """Unpacked size of the buffers of a message, by its header.

    Raises:
        ValueError: the header is invalid, or a buffer lies outside its body.
    """
    try:
        head = memoryview(message.metadata)
        batch = _batch_of(head)
        if batch is None:
            return 0
        buffers = _buffers(head, batch)
        is_compressed = bool(_field(head, batch, _COMPRESSION))
    except (struct.error, IndexError) as error:
        raise ValueError(f"the head of an Arrow message is cut off: {error}") from error
    if not is_compressed:
        return int(buffers["length"].clip(min=0).sum())
    body = np.frombuffer(message.body, np.uint8) if message.body else np.zeros(0, np.uint8)
    return _unpacked_lengths(body, buffers[buffers["length"] > 0])


def _unpacked_lengths(body: np.ndarray, buffers: np.ndarray) -> int:
    """The unpacked length at the start of each compressed buffer."""
    offsets, lengths = buffers["offset"], buffers["length"]
    if np.any(lengths < 8) or np.any(offsets < 0) or np.any(offsets > len(body) - lengths):
        raise ValueError("a compressed buffer of an Arrow message lies outside its body")
    heads = body[offsets[:, None] + np.arange(8)]
    unpacked = np.ascontiguousarray(heads).view("<i8")[:, 0]
    sizes = np.where(unpacked == _AS_IT_IS, lengths - 8, unpacked)
    if np.any(sizes < 0):
        raise ValueError("a compressed buffer of an Arrow message has a negative length")
    # Twice the largest integer would wrap around in a sum of int64.
    return int(sizes.astype(np.float64).sum())


# --- flatbuffers: a table names a table of offsets, one for each of its fields ----------------


def _batch_of(head: memoryview) -> int | None:
    """Offset of the record batch of a message; None without one."""
    (root,) = struct.unpack_from("<I", head, 0)
    place = _field(head, root, _HEADER_TYPE)
    kind = head[place] if place else 0
    header = _table(head, root, _HEADER)
    if header is None or kind not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return None
    return _table(head, header, _DICTIONARY_DATA) if kind == _DICTIONARY_BATCH else header


def _field(head: memoryview, table: int, number: int) -> int:
    """Offset of a field; 0 if it is absent."""
    (back,) = struct.unpack_from("<i", head, table)
    (size,) = struct.unpack_from("<H", head, table - back)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", head, table - back + 4 + 2 * number)
    return table + offset if offset else 0


def _table(head: memoryview, table: int, number: int) -> int | None:
    place = _field(head, table, number)
    return place + struct.unpack_from("<I", head, place)[0] if place else None


def _buffers(head: memoryview, batch: int) -> np.ndarray:
    """Offset and length of each buffer in the body."""
    vector = _table(head, batch, _BUFFERS)
    if vector is None:
        return np.zeros(0, _BUFFER)
    (count,) = struct.unpack_from("<I", head, vector)
    stop = vector + 4 + count * _BUFFER.itemsize
    if stop > len(head):
        raise ValueError("the head of an Arrow message is cut off")
    return np.frombuffer(head[vector + 4 : stop], _BUFFER)
