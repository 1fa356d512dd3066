"""Validates Arrow IPC streams from untrusted sources before unpacking them.

A few kilobytes can unpack to gigabytes: by compression, by many columns that share one buffer, by a
schema or batches without end. Arrow trusts the lengths in a stream and allocates first. So the
lengths of the buffers in each message (format/Message.fbs of Arrow, parsed here by hand) are added
up, and the stream is read only if the sum is within the limit. A head can name one text many times,
each of which Arrow copies, so the texts of heads are added up, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from galileo.errors import MessageTooLarge

STREAM_BYTES_MAX = 64 << 20
"""Most unpacked bytes of one stream: as much as one uncompressed message may have."""
STREAM_MESSAGES_MAX = 16_384
"""Record batches and dictionaries of one stream; an empty one takes kilobytes."""
HEAD_BYTES_MAX = 1 << 20
"""Size of the schema, or of the header of one batch."""

SMALL_HEAD_BYTES = 8 << 10
"""Size of a head that becomes some megabytes at most, whatever it repeats."""
HEAD_GROWTH = 8
"""Bytes of fields and texts for each byte of a larger head."""
FIELD_BYTES = 64
"""Counted for a field of a schema."""

_FILE_MAGIC = b"ARROW1"
_CONTINUATION = -1
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _MESSAGE_TEXTS = 1, 2, 3, 4
_SCHEMA_FIELDS, _SCHEMA_TEXTS = 1, 2
_CHILDREN, _FIELD_TEXTS = 5, 6
_FOOTER_SCHEMA, _FOOTER_DICTIONARIES, _FOOTER_BATCHES, _FOOTER_TEXTS = 1, 2, 3, 4
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
        size += message.unpacked_bytes
        if size > most:
            raise _too_large(size, most)
    return pa.ipc.open_stream(buffer).read_all()


def check_unpacked(data: pa.Buffer, *, bytes_max: int) -> None:
    """Raises MessageTooLarge if the dictionaries and any batch of Arrow data unpack to too much.

    Args:
        data: a stream, a file, or a message with a schema.
        bytes_max: most unpacked bytes that are needed at a time.

    Raises:
        MessageTooLarge: they are more, or a head is too large.
        ValueError: it is no such data.
    """
    dictionaries = 0
    try:
        is_file = data[: len(_FILE_MAGIC)].to_pybytes() == _FILE_MAGIC
        for message in _messages_of_file(data) if is_file else _messages(data):
            dictionaries += message.unpacked_bytes if message.kind == _DICTIONARY_BATCH else 0
            size = dictionaries + message.unpacked_bytes
            if size > bytes_max:
                raise _too_large(size, bytes_max)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the Arrow data is cut off: {error}") from error


def _too_large(size: int, most: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"expected an Arrow stream of at most {most:,} bytes when it is unpacked, got at "
        f"least {size:,}; send several smaller ones",
        expected="bytes",
        bound=most,
    )


# --- messages --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    """The head of a message, which is checked, and its body."""

    head: memoryview
    body: pa.Buffer
    kind: int

    @property
    def unpacked_bytes(self) -> int:
        """Unpacked size of the buffers of a message, by its head.

        Raises:
            ValueError: the head is invalid, or a buffer lies outside its body.
        """
        try:
            batch = _batch_of(self.head)
            if batch is None:
                return 0
            buffers = _buffers(self.head, batch)
            is_compressed = bool(_field(self.head, batch, _COMPRESSION))
        except (struct.error, IndexError) as error:
            raise ValueError(f"the head of an Arrow message is cut off: {error}") from error
        if not is_compressed:
            return int(buffers["length"].clip(min=0).sum())
        body = np.frombuffer(self.body, np.uint8) if self.body.size else np.zeros(0, np.uint8)
        return _unpacked_lengths(body, buffers[buffers["length"] > 0])


def _messages(buffer: pa.Buffer) -> Iterator[_Message]:
    """The messages of a stream. Arrow would copy the texts of a head before it could be checked."""
    place = 0
    while place + 4 <= buffer.size:
        message, place = _message(buffer, place)
        if message is None:
            return
        yield message


def _messages_of_file(buffer: pa.Buffer) -> Iterator[_Message]:
    """The messages that the footer of a file names."""
    view = memoryview(buffer)
    (size,) = struct.unpack_from("<i", view, len(view) - len(_FILE_MAGIC) - 4)
    footer = view[max(len(view) - len(_FILE_MAGIC) - 4 - max(size, 0), 0) :][: max(size, 0)]
    (root,) = struct.unpack_from("<I", footer, 0)
    _check_head(footer, _table(footer, root, _FOOTER_SCHEMA), root, _FOOTER_TEXTS)
    for field in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        for (place,) in struct.iter_unpack("<q16x", _vector(footer, root, field, 24)):
            message, _ = _message(buffer, place)
            if message is not None:
                yield message


def _message(buffer: pa.Buffer, place: int) -> tuple[_Message | None, int]:
    """The message at a place, and the place after it; None at the end of a stream."""
    view = memoryview(buffer)
    try:
        size, length = *struct.unpack_from("<i", view, place), 4
        if size == _CONTINUATION:
            size, length = *struct.unpack_from("<i", view, place + 4), 8
        if size == 0:
            return None, place
        head = view[place + length : place + length + size]
        if size < 0 or len(head) < size:
            raise ValueError("an Arrow message is cut off")
        (root,) = struct.unpack_from("<I", head, 0)
        kind = head[at] if (at := _field(head, root, _HEADER_TYPE)) else 0
        schema = _table(head, root, _HEADER) if kind == _SCHEMA else None
        _check_head(head, schema, root, _MESSAGE_TEXTS)
        at = _field(head, root, _BODY_LENGTH)
        body_size = struct.unpack_from("<q", head, at)[0] if at else 0
    except (struct.error, IndexError) as error:
        raise ValueError(f"an Arrow message is cut off: {error}") from error
    begin = place + length + size
    if not 0 <= body_size <= buffer.size - begin:
        raise ValueError("the body of an Arrow message is cut off")
    return _Message(head, buffer.slice(begin, body_size), kind), begin + body_size


def _check_head(head: memoryview, schema: int | None, root: int, texts: int) -> None:
    """Raises MessageTooLarge for a head that is large, or that would become much larger.

    Args:
        head: with a schema or a batch.
        schema: its place, if there is one.
        root: the place of the table around it.
        texts: number of the field of that table that has texts.
    """
    if len(head) > HEAD_BYTES_MAX:
        raise MessageTooLarge(
            f"expected the schema and the head of each batch of an Arrow stream in at most "
            f"{HEAD_BYTES_MAX:,} bytes, got {len(head):,}",
            expected="schema_bytes",
            bound=HEAD_BYTES_MAX,
        )
    if len(head) <= SMALL_HEAD_BYTES:
        return
    size = _text_bytes(head, root, texts)
    fields = []
    if schema is not None:
        size += _text_bytes(head, schema, _SCHEMA_TEXTS)
        fields = _tables(head, schema, _SCHEMA_FIELDS)
    size += FIELD_BYTES * len(fields)
    while fields and size <= HEAD_GROWTH * len(head):
        field = fields.pop()
        children = _tables(head, field, _CHILDREN)
        size += FIELD_BYTES * len(children) + _text_bytes(head, field, _FIELD_TEXTS)
        fields += children if size <= HEAD_GROWTH * len(head) else []
    if size > HEAD_GROWTH * len(head):
        raise MessageTooLarge(
            "expected an Arrow schema without texts and fields that repeat each other",
            expected="schema_bytes",
            bound=HEAD_GROWTH * len(head),
        )


def _text_bytes(head: memoryview, table: int, number: int) -> int:
    """Bytes of the names and values of a field with texts (custom_metadata)."""
    size = 0
    for pair in _tables(head, table, number):
        for text in (_table(head, pair, 0), _table(head, pair, 1)):
            size += struct.unpack_from("<I", head, text)[0] if text else 0
        if size > HEAD_GROWTH * len(head):
            break
    return size


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


def _vector(head: memoryview, table: int, number: int, size: int) -> memoryview:
    """The elements of a vector, each of `size` bytes; none if it is absent."""
    vector = _table(head, table, number)
    if vector is None:
        return head[:0]
    (count,) = struct.unpack_from("<I", head, vector)
    stop = vector + 4 + count * size
    if stop > len(head):
        raise ValueError("the head of an Arrow message is cut off")
    return head[vector + 4 : stop]


def _tables(head: memoryview, table: int, number: int) -> list[int]:
    """The places of the tables in a vector."""
    vector = _table(head, table, number)
    offsets = np.frombuffer(_vector(head, table, number, 4), "<u4").astype(np.int64)
    return [] if vector is None else (offsets + vector + 4 + 4 * np.arange(len(offsets))).tolist()


def _buffers(head: memoryview, batch: int) -> np.ndarray:
    """Offset and length of each buffer in the body."""
    return np.frombuffer(_vector(head, batch, _BUFFERS, _BUFFER.itemsize), _BUFFER)
