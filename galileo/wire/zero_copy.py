"""Encoding and decoding of messages with observations without copies.

Protobuf copies a `bytes` field when it is set, encoded, decoded and accessed, with the interpreter
locked; for megabytes of observations this would dominate the work of a node. The wire format is
unchanged: this module encodes and decodes the messages of `storage.proto` around that field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from galileo.wire.v1 import storage_pb2

FIELD = "observations"
BULK = frozenset([storage_pb2.IngestRequest, storage_pb2.SelectPart])
"""The messages that callers and servers hold as `Bulk`."""

HEAD_FIELDS_MAX = 100
"""Fields of a message without its observations; they are parsed here, not in C."""
CHUNKS_MAX = 1_000
"""A table with more chunks is combined first, because readers reject many small batches."""
ALIGNMENT = 16
"""Alignment of the observations in a message, so that their buffers can be read in place."""

_PADDING_FIELD = 15
_VARINT_BITS_MAX = 64
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

Head = TypeVar("Head", bound=Message)


@dataclass(frozen=True, slots=True)
class Bulk(Generic[Head]):
    """A message and its observations.

    Attributes:
        head: the message with an empty observations field.
        observations: the content of that field, an Arrow IPC stream.
    """

    head: Head
    observations: pa.Buffer


def stream_of(table: pa.Table) -> pa.Buffer:
    """A table as one Arrow IPC stream, schema included."""
    if table.num_columns and table.column(0).num_chunks > CHUNKS_MAX:
        table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def encode(bulk: Bulk[Any]) -> bytes:
    """Encodes a message; copies the observations once.

    An unknown field serves as padding, which every protobuf reader skips.
    """
    number = bulk.head.DESCRIPTOR.fields_by_name[FIELD].number
    head, prefix = bulk.head.SerializeToString(), _length_prefix(number, bulk.observations.size)
    padding = -(len(head) + len(_length_prefix(_PADDING_FIELD, 0)) + len(prefix)) % ALIGNMENT
    filler = _length_prefix(_PADDING_FIELD, padding) + bytes(padding)
    return b"".join((head, filler, prefix, bulk.observations))


def decoder(kind: type[Head]) -> Callable[[bytes], Bulk[Head]]:
    """A decoder of messages of a kind; their observations share memory with the input.

    Raises, when it is called:
        DecodeError: the bytes are no such message.
    """
    number = kind.DESCRIPTOR.fields_by_name[FIELD].number

    def decode(data: bytes) -> Bulk[Head]:
        rest, observations = _taken_apart(data, number)
        return Bulk(kind.FromString(rest), aligned(observations))

    return decode


def has_more_fields(data: bytes, most: int) -> bool:
    """Whether a message has more than `most` top-level fields.

    Raises:
        DecodeError: the bytes up to there are no message.
    """
    view, place, count = memoryview(data), 0, 0
    while place < len(view) and count <= most:
        tag, start = _read_varint(view, place)
        if tag >> 3 == 0:
            raise DecodeError("expected fields with numbers, got number 0")
        place = _end_of_value(view, start, tag & 7)
        count += 1
    return count > most


def serializer(kind: type[Message]) -> Callable[[Any], bytes]:
    """The function that encodes messages of a kind; those in `BULK` are given as `Bulk`."""
    return encode if kind in BULK else kind.SerializeToString


def deserializer(kind: type[Message]) -> Callable[[bytes], Any]:
    """The function that decodes messages of a kind, those in `BULK` to `Bulk`."""
    return decoder(kind) if kind in BULK else kind.FromString


def aligned(view: memoryview) -> pa.Buffer:
    """The bytes, copied only if another writer did not align them."""
    buffer = pa.py_buffer(view)
    return buffer if buffer.address % ALIGNMENT == 0 else pa.py_buffer(bytes(view))


def _length_prefix(number: int, size: int) -> bytes:
    """The tag and length before `size` bytes of a field."""
    return _varint(number << 3 | _LENGTH) + _varint(size)


def _taken_apart(data: bytes, number: int) -> tuple[bytes, memoryview]:
    """The message without a field, and the field's last value."""
    view = memoryview(data)
    rest: list[memoryview] = []
    content, place = view[:0], 0
    while place < len(view):
        if len(rest) > HEAD_FIELDS_MAX:
            raise DecodeError(f"expected at most {HEAD_FIELDS_MAX} fields beside {FIELD}, got more")
        tag, start = _read_varint(view, place)
        stop = _end_of_value(view, start, tag & 7)
        if tag == number << 3 | _LENGTH:
            _, begin = _read_varint(view, start)
            content = view[begin:stop]
        else:
            rest.append(view[place:stop])
        place = stop
    return b"".join(rest), content


def _end_of_value(view: memoryview, start: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        _, stop = _read_varint(view, start)
    elif wire_type == _LENGTH:
        length, begin = _read_varint(view, start)
        stop = begin + length
    elif wire_type in (_FIXED64, _FIXED32):
        stop = start + (8 if wire_type == _FIXED64 else 4)
    else:
        raise DecodeError(f"expected a message, got a field of wire type {wire_type}")
    if stop > len(view):
        raise DecodeError("expected a whole message, got one that is cut off")
    return stop


def _read_varint(view: memoryview, place: int) -> tuple[int, int]:
    """A varint, and its end."""
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if place >= len(view):
            raise DecodeError("expected a whole message, got one that is cut off")
        byte = view[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise DecodeError("expected a number of at most 64 bits in a message")


def _varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
