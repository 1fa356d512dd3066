"""Splits GRIB files into messages, and messages of several fields into single ones.

The support of ecCodes for several fields in one message is not used: it is a switch of the whole
process, and ends the process where a section is damaged (version 2.50).

Source: WMO Manual on Codes, No. 306, Volume I.2: FM 92 GRIB edition 2 (sections, and the
repetition of sections 2 to 7 within a message) and FM 92-VIII GRIB edition 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from galileo.errors import InputError

START, END = b"GRIB", b"7777"
HEADER_BYTES = 16
SEARCH_BYTES = 1 << 16
MESSAGE_BYTES_MAX = 4 << 30

# Edition 1 has 3 bytes for the length. Beyond that producers set the highest bit, count in units
# of 120 bytes and keep the difference in the length of section 4 (ECMWF's convention).
_LONG_FLAG, _LONG_UNIT = 0x800000, 120
_SECTION_1_OFFSET, _FLAGS_OFFSET = 8, 7
_HAS_GRID, _HAS_BITMAP = 0x80, 0x40

_BITMAP_IN_MESSAGE, _BITMAP_HERE = 254, 0


@dataclass(frozen=True, slots=True)
class MessageOffset:
    """The position of a message in its file, in bytes."""

    offset: int
    length: int


def message_offsets(file: BinaryIO) -> Iterator[MessageOffset]:
    """The positions of all messages of a file; skips bytes between messages.

    Raises:
        InputError: a message is cut off or damaged.
    """
    offset = _next_start(file, 0)
    while offset is not None:
        length = _length(file, offset)
        file.seek(offset + length - len(END))
        if file.read(len(END)) != END:
            raise InputError(
                f"the GRIB message at byte {offset} of {file.name} is cut off or damaged: "
                f"expected it to end with 7777 after {length} bytes; fetch the file again",
                expected="whole_message",
                offset=offset,
            )
        yield MessageOffset(offset, length)
        offset = _next_start(file, offset + length)


def _next_start(file: BinaryIO, offset: int) -> int | None:
    while True:
        file.seek(offset)
        chunk = file.read(SEARCH_BYTES)
        index = chunk.find(START)
        if index >= 0:
            return offset + index
        if len(chunk) < SEARCH_BYTES:
            return None
        offset += len(chunk) - len(START) + 1


def _length(file: BinaryIO, offset: int) -> int:
    file.seek(offset)
    header = file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
    edition = header[7]
    length = 0
    if edition == 2:
        length = struct.unpack(">Q", header[8:16])[0]
    elif edition == 1:
        length = _length_edition_1(file, offset, stated=int.from_bytes(header[4:7]))
    if not HEADER_BYTES <= length <= MESSAGE_BYTES_MAX:
        raise InputError(
            f"expected a GRIB message of edition 1 or 2 and {HEADER_BYTES} to "
            f"{MESSAGE_BYTES_MAX} bytes at byte {offset} of {file.name}, got edition {edition} "
            f"and {length} bytes"
        )
    return length


def _length_edition_1(file: BinaryIO, offset: int, *, stated: int) -> int:
    if not stated & _LONG_FLAG:
        return stated
    position = offset + _SECTION_1_OFFSET
    file.seek(position + _FLAGS_OFFSET)
    flags = int.from_bytes(file.read(1))
    sections = 1 + bool(flags & _HAS_GRID) + bool(flags & _HAS_BITMAP)
    for _ in range(sections):
        position += _read_uint24(file, position)
    difference = _read_uint24(file, position)
    total = (stated & ~_LONG_FLAG) * _LONG_UNIT
    return total - difference + len(END) if difference < _LONG_UNIT else stated


def _read_uint24(file: BinaryIO, position: int) -> int:
    file.seek(position)
    return int.from_bytes(file.read(3))


def read_fields(file: BinaryIO, place: MessageOffset) -> list[bytes]:
    """The fields of a message in order, each as a complete message."""
    file.seek(place.offset)
    message = file.read(place.length)
    return [message] if message[7] == 1 else _split(message)


def _split(message: bytes) -> list[bytes]:
    """Edition 2: a field ends with section 7; sections that are not repeated are shared."""
    current: dict[int, bytes] = {}
    bitmap = b""
    fields: list[bytes] = []
    for number, section in _sections(message):
        current[number] = section
        if number == 6 and section[5:6] == bytes([_BITMAP_IN_MESSAGE]):
            current[6] = bitmap
        elif number == 6 and section[5:6] == bytes([_BITMAP_HERE]):
            bitmap = section
        if number == 7:
            body = b"".join(current[key] for key in sorted(current))
            length = HEADER_BYTES + len(body) + len(END)
            fields.append(message[:8] + struct.pack(">Q", length) + body + END)
    return fields


def _sections(message: bytes) -> Iterator[tuple[int, bytes]]:
    position = HEADER_BYTES
    while message[position : position + len(END)] != END:
        if position + 5 > len(message):
            raise InputError("a GRIB message is damaged: its sections run past its end")
        length, number = struct.unpack(">IB", message[position : position + 5])
        if length < 5 or position + length > len(message):
            raise InputError(
                f"a GRIB message is damaged: section {number} has length {length}",
                expected="section_length",
            )
        yield number, message[position : position + length]
        position += length
