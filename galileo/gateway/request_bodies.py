"""Bodies of requests: documents in JSON, and data to store, which lie once in memory as a file."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from email.message import Message as Headers
from http import HTTPStatus
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.types import Message, Receive

from galileo.errors import GalileoError, InputError
from galileo.formats.memory_file import MemoryFile
from galileo.gateway.crs import CRS84, Crs, body_crs
from galileo.gateway.documents import JSON
from galileo.gateway.problems import RequestRefused
from galileo.interpreter_turns import interpret
from galileo.model.schema import finite_json
from galileo.shares import ArrivingRequest, Pool, ShareHolder

BODY_BYTES_MAX = 64 << 20
BODIES_BYTES_MAX = 128 << 20
"""Total size of the bodies that are received and handled at a time."""
DOCUMENT_BYTES_MAX = 1 << 20
"""Size of a document in JSON, and of a SPARQL query."""
JSON_STEP_BYTES = 64
"""Bytes of JSON that are parsed in a step of `interpret`."""
JSON_SHOWN_MAX = 200
"""Characters of a wrong value that an error shows."""
ROOM_WITHIN_S = 20.0
"""Longest wait of a piece of a body for room."""
_CONDITIONS = ("Content-Range", "If-Match", "If-None-Match", "If-Unmodified-Since")
"""Headers that, ignored, would let a request change more than its client wants."""
_LENGTH = re.compile(r"[0-9]{1,18}")


class RequestBodies:
    """The room of the bodies of requests, which grows as they arrive; belongs to one event loop."""

    def __init__(self) -> None:
        self._pool = Pool(BODIES_BYTES_MAX, kept=0)

    @contextlib.asynccontextmanager
    async def admitted(self, request: Request, caller: ShareHolder) -> AsyncIterator[Request]:
        """The request of a caller that was let in, with room for its body, for the block."""
        body = _ArrivingBody(request.receive, self._pool, caller)
        try:
            yield Request(request.scope, body.receive)
        finally:
            body.room.release()


class _ArrivingBody:
    """The body of a request, which takes room of a pool piece by piece."""

    def __init__(self, receive: Receive, pool: Pool, caller: ShareHolder) -> None:
        self.room = ArrivingRequest(pool, caller, end=self._end)
        self._receive = receive
        self._has_begun = self._is_whole = False
        self._failure: RequestRefused | None = None
        self._waiting: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        """The next piece.

        Raises:
            Overloaded: there was no room for it in time.
            Refused: it arrives too slowly while others wait.
        """
        if self._is_whole:
            return await self._receive()
        if not self._has_begun:
            self._has_begun = True
            await self.room.reserve(0, within_s=ROOM_WITHIN_S)
        try:
            async with asyncio.timeout(0 if self._failure else None) as self._waiting:
                message = await self._receive()
                size = len(message.get("body", b""))
                await self.room.reserve(size, within_s=ROOM_WITHIN_S)
        except TimeoutError:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self._waiting = None
        self.room.arrived(size)
        self._is_whole = not message.get("more_body", False)
        if self._is_whole:
            self.room.complete()
        return message

    def _end(self, error: GalileoError) -> None:
        self._failure = RequestRefused(
            HTTPStatus.REQUEST_TIMEOUT, error.message, Connection="close"
        )
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def received(request: Request) -> AsyncIterator[tuple[MemoryFile, str]]:
    """The body of a request and the digest of its content, for the block.

    Raises:
        Refused: it is too large.
    """
    _check_length(request)
    digest = hashlib.sha256()
    with MemoryFile() as body:
        async for piece in request.stream():
            if body.size + len(piece) > BODY_BYTES_MAX:
                raise _too_large("more")
            body.write(piece)
            digest.update(piece)
        yield body, digest.hexdigest()[:32]


@contextlib.contextmanager
def decoding(body: MemoryFile, format: str) -> Iterator[None]:
    """Words errors of a body for its sender, for the block: the path of a body means nothing to it.

    Raises:
        InputError: the body is wrong; `details` have `row` and `column` where they are known.
    """
    try:
        yield
    except InputError as error:
        words = error.message.replace(str(body.path), "the body")
        raise type(error)(words, **error.details) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"expected a whole {format} body: {error}") from error


def check_change(
    request: Request, *, systems: Collection[Crs], headers: Collection[str] = ()
) -> None:
    """Checks the headers that change what a request other than GET means.

    Args:
        request: whose body is not read yet.
        systems: coordinate reference systems that its positions can have.
        headers: that have a meaning for it.

    Raises:
        InputError: it has a precondition, a part of a body, or positions in another system.
        Refused: its body is compressed, is no UTF-8, or is CSV without a header line.
    """
    unknown = (name for name in _CONDITIONS if name not in headers)
    if names := [name for name in unknown if name in request.headers]:
        raise InputError(
            f"expected a request without the header {names[0]}, which has no meaning for "
            f"{request.method} here; leave it out",
            parameter=names[0],
        )
    encoding = request.headers.get("content-encoding", "identity")
    content = Headers()
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


def _unsupported(expected: str, got: str) -> RequestRefused:
    text = f"expected {expected}, got {got:.100}"
    return RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)


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
        raise RequestRefused(
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
        raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
    try:
        body = await document_of(request)
        return await interpret(len(body) // JSON_STEP_BYTES, finite_json, body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected a JSON object: {error}", expected="json") from error


async def document_of(request: Request) -> bytes:
    """Reads the body. Raises Refused, and has the connection closed, if it is too large."""
    headers = request.headers
    is_post = request.method in ("POST", "PUT", "PATCH")
    if "transfer-encoding" in headers or ("content-length" not in headers and is_post):
        raise RequestRefused(
            HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length", Connection="close"
        )
    length = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length) or int(length) > DOCUMENT_BYTES_MAX:
        raise RequestRefused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"expected a body of at most {DOCUMENT_BYTES_MAX:,} bytes, got {length[:40]}",
            Connection="close",
        )
    return await request.body()


def _check_length(request: Request) -> None:
    """Raises Refused for an announced length above the bound."""
    length = request.headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length) or int(length) > BODY_BYTES_MAX:
        raise _too_large(length[:40])


def _too_large(got: str) -> RequestRefused:
    return RequestRefused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"expected a body of at most {BODY_BYTES_MAX:,} bytes, got {got}; send several requests",
    )


def start_of_json(value: Any) -> str:
    """The first `JSON_SHOWN_MAX` characters of a value as JSON; later members are not encoded."""
    pieces = json.JSONEncoder().iterencode(value)
    return "".join(itertools.islice(pieces, JSON_SHOWN_MAX))[:JSON_SHOWN_MAX]
