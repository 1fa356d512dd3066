"""Resume tokens: a cursor as a client holds it, opaque text that is safe to store.

Layout before base64 (url-safe, unpadded): version byte; length and UTF-8 bytes of the CCQ's id;
number of pairs, then for each pair, by ascending partition, the difference to the partition
before and the sequence; CRC-32C of all that, big-endian. Numbers are LEB128.
"""

from __future__ import annotations

import base64
import binascii

import google_crc32c

from galileo.cursor import Cursor
from galileo.errors import InvalidToken

VERSION = 1
TOKEN_CHARS_MAX = 1 << 20
_CHECKSUM_BYTES = 4
_NUMBER_BITS_MAX = 63
_ADVICE = "fetch with the token of the last answer, or with none to begin from the first label"


def encode(ccq_id: str, cursor: Cursor) -> str:
    """The token of `cursor` for the CCQ `ccq_id`."""
    name = ccq_id.encode()
    body = bytearray([VERSION]) + _number(len(name)) + name + _number(len(cursor))
    before = 0
    for partition, sequence in cursor.items():
        body += _number(partition - before) + _number(sequence)
        before = partition
    body += google_crc32c.value(bytes(body)).to_bytes(_CHECKSUM_BYTES, "big")
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode(text: str, *, ccq_id: str) -> Cursor:
    """The cursor of a token.

    Raises:
        InvalidToken: the text is no token, is damaged, or belongs to another CCQ.
    """
    try:
        return _decoded(text, ccq_id=ccq_id)
    except InvalidToken as error:
        raise InvalidToken(f"{error.message}; {_ADVICE}") from error


def _decoded(text: str, *, ccq_id: str) -> Cursor:
    body = _checked(text)
    name, at = _text(body, 1)
    if name != ccq_id:
        raise InvalidToken(
            f"expected a resume token of the continuous query {ccq_id!r}, got one of {name!r}"
        )
    count, at = _read(body, at)
    positions, partition = {}, 0
    for _ in range(count):
        step, at = _read(body, at)
        sequence, at = _read(body, at)
        partition += step
        positions[partition] = sequence
    cursor = Cursor(positions)
    if encode(ccq_id, cursor) != text:
        raise InvalidToken("expected a resume token as it was given out, got another spelling")
    return cursor


def _checked(text: str) -> bytes:
    """The body of the token, once its checksum and version are right."""
    if len(text) > TOKEN_CHARS_MAX:
        raise InvalidToken(f"expected a token of at most {TOKEN_CHARS_MAX} characters")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidToken(f"expected a resume token, got text that is no base64: {error}") from (
            error
        )
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if not body or google_crc32c.value(body) != int.from_bytes(checksum, "big"):
        raise InvalidToken("expected a resume token as it was given out, got a damaged one")
    if body[0] != VERSION:
        raise InvalidToken(f"expected a resume token of version {VERSION}, got {body[0]}")
    return body


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift <= _NUMBER_BITS_MAX:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise InvalidToken("expected a resume token, got one that ends too early")


def _text(body: bytes, at: int) -> tuple[str, int]:
    length, at = _read(body, at)
    try:
        return body[at : at + length].decode(), at + length
    except UnicodeDecodeError as error:
        raise InvalidToken("expected a resume token, got one whose id is no text") from error
