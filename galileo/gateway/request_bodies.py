"""Bodies of requests: documents in JSON, and data to store, which lie once in memory as a file."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from email.message import Message
from http import HTTPStatus
from typing import Any

from starlette.requests import Request

from galileo.errors import GalileoError, InputError, Overloaded
from galileo.formats.memory_file import MemoryFile
from galileo.gateway.crs import CRS84, Crs, body_crs
from galileo.gateway.documents import JSON
from galileo.model.schema import finite_json
from galileo.rdf.endpoint import body_of, drop_body
from galileo.rdf.protocol import Refused

BODY_BYTES_MAX = 64 << 20
BODIES_BYTES_MAX = 128 << 20
"""Total size of the bodies that are received and stored at a time."""
_CONDITIONS = ("Content-Range", "If-Match", "If-None-Match", "If-Unmodified-Since")
"""Headers that, ignored, would let a request change more than its client wants."""
_LENGTH = re.compile(r"[0-9]{1,18}")


class RequestBodies:
    """Receives bodies, as many at a time as there is room for; belongs to one event loop."""

    def __init__(self) -> None:
        self._held_bytes = 0

    @contextlib.asynccontextmanager
    async def received(
        self, request: Request, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[tuple[MemoryFile, str]]:
        """The body of a request and the digest of its content, for the block.

        Args:
            request: whose length is known, or counts as the largest one.
            pieces: of its body.

        Raises:
            Overloaded: there is no room for it.
            Refused: it is too large.
        """
        size = _size_of(request)
        if self._held_bytes + size > BODIES_BYTES_MAX:
            raise Overloaded(
                f"expected at most {BODIES_BYTES_MAX:,} bytes of requests to store at a time; try "
                "again",
                bound=BODIES_BYTES_MAX,
            )
        self._held_bytes += size
        digest = hashlib.sha256()
        try:
            with MemoryFile() as body:
                async for piece in pieces:
                    if body.size + len(piece) > BODY_BYTES_MAX:
                        raise _too_large("more")
                    body.write(piece)
                    digest.update(piece)
                yield body, digest.hexdigest()[:32]
        finally:
            self._held_bytes -= size


@contextlib.asynccontextmanager
async def body_pieces(request: Request) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """The pieces of a body, for the block; what an error leaves of them is received and dropped.

    A client that cannot send its body does not read the answer.
    """
    pieces = request.stream()
    try:
        yield pieces
    except (GalileoError, Refused):
        await drop_body(pieces)
        raise


async def check_change(request: Request, *, systems: Collection[Crs]) -> None:
    """Checks the headers that change what a request other than GET means.

    Args:
        request: whose body is not read yet.
        systems: coordinate reference systems that its positions can have.

    Raises:
        InputError: it has a precondition, a part of a body, or positions in another system.
        Refused: its body is compressed, is no UTF-8, or is CSV without a header line.
    """
    async with body_pieces(request):
        if names := [name for name in _CONDITIONS if name in request.headers]:
            raise InputError(
                f"expected a request without the header {names[0]}, which has no meaning for "
                f"{request.method} here; leave it out",
                parameter=names[0],
            )
        encoding = request.headers.get("content-encoding", "identity")
        content = Message()
        content["Content-Type"] = request.headers.get("content-type", "")
        charset = str(content.get_content_charset("utf-8"))
        if encoding.strip().lower() != "identity":
            raise _unsupported("a body without Content-Encoding", encoding)
        if charset not in ("utf-8", "utf8", "us-ascii"):
            raise _unsupported("a body in UTF-8", f"the charset {charset}")
        if content.get_param("header") == "absent":
            raise _unsupported("CSV with a header line", "header=absent")
        if (system := body_crs(request.headers)) not in systems:
            raise InputError(
                f"expected Content-Crs as {CRS84.uri}, got {system.uri}; send longitudes and "
                "latitudes in degrees",
                parameter="Content-Crs",
            )


def _unsupported(expected: str, got: str) -> Refused:
    text = f"expected {expected}, got {got:.100}"
    return Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)


def format_of(request: Request, formats: Mapping[str, str]) -> str:
    """The format of a body.

    Args:
        request: with the body.
        formats: by media type.

    Raises:
        Refused: there is none for its media type.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in formats:
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"expected a body of type {', '.join(formats)}, got {media_type or 'none'}",
        )
    return formats[media_type]


async def json_body(request: Request) -> Any:
    """The values of a body in JSON.

    Raises:
        InputError: the body is no JSON.
        Refused: it is of another type, or too large.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:  # HTML forms cannot send it.
        text = f"expected a body of type {JSON}, got {media_type or 'none'}"
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
    try:
        return finite_json(await body_of(request))
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected a JSON object: {error}", expected="json") from error


def _size_of(request: Request) -> int:
    """The bytes of the body, or the most that it can have where the request does not say."""
    length = request.headers.get("content-length")
    if length is None:
        return BODY_BYTES_MAX
    if not _LENGTH.fullmatch(length) or int(length) > BODY_BYTES_MAX:
        raise _too_large(length[:40])
    return int(length)


def _too_large(got: str) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"expected a body of at most {BODY_BYTES_MAX:,} bytes, got {got}; send several requests",
        Connection="close",
    )
