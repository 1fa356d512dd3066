"""Tokens of pages: where the next page begins, as opaque text for clients.

Layout before base64 (url-safe, unpadded): eight bytes of the digest of dataset and query; the
message `PageStart`; CRC-32C of all that, big-endian.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import google_crc32c
from google.protobuf.message import DecodeError

from galileo.errors import InvalidToken
from galileo.wire.v1 import storage_pb2

TOKEN_CHARS_MAX = 1 << 20
_DIGEST_BYTES, _CHECKSUM_BYTES = 8, 4


def encode(start: storage_pb2.PageStart, *, dataset: str, query: str) -> str:
    """The token of a page of a query."""
    body = _digest(dataset, query) + start.SerializeToString()
    body += google_crc32c.value(body).to_bytes(_CHECKSUM_BYTES, "big")
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode(text: object, *, dataset: str, query: str) -> storage_pb2.PageStart:
    """The start of a page.

    Raises:
        InvalidToken: the text is no token, is damaged, or is of another dataset or query.
    """
    if not isinstance(text, str) or len(text) > TOKEN_CHARS_MAX:
        raise _invalid("a token of a page, as `Page.next` has it, got something else")
    try:
        body = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        content, checksum = body[:-_CHECKSUM_BYTES], body[-_CHECKSUM_BYTES:]
        start = storage_pb2.PageStart.FromString(content[_DIGEST_BYTES:])
    except (binascii.Error, ValueError, DecodeError) as error:
        raise _invalid("a token of a page, got a damaged text") from error
    if google_crc32c.value(content).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise _invalid("a token of a page, got a damaged text")
    if content[:_DIGEST_BYTES] != _digest(dataset, query):
        raise _invalid("the token of a page of this dataset and query, got that of others")
    return start


def _digest(dataset: str, query: str) -> bytes:
    return hashlib.sha256(f"{dataset}\0{query}".encode()).digest()[:_DIGEST_BYTES]


def _invalid(expected: str) -> InvalidToken:
    return InvalidToken(f"expected {expected}; begin with the first page", expected="page_token")
