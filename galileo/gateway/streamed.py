"""Answers that are made while they are sent, files among them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from galileo.errors import GalileoError
from galileo.gateway.formats import Encoders, TableEncoder

log = logging.getLogger(__name__)


class Streamed(Response):
    """An answer that is made while it is sent.

    Args:
        pieces: of the answer.
        media_type: of the answer.
        held: closed at the end of the answer, or of the connection.
        headers: further ones.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        media_type: str,
        *,
        held: contextlib.AsyncExitStack,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        whole = {"Content-Type": media_type, "Vary": "Accept", **(headers or {})}
        super().__init__(media_type=None, headers=whole)
        del self.headers["content-length"]
        self._pieces = pieces
        self._held = held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._held:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            if scope["method"] != "HEAD":
                await self._send_pieces(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pieces(self, send: Any) -> None:
        try:
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except GalileoError as error:
            log.warning("an answer broke off: %s [%s]", error.message, error.kind)
            # The connection is closed before the end of the answer, so that no client takes a
            # part for the whole.
            raise ConnectionAbortedError(error.message) from error


async def file_answer(
    tables: AsyncIterator[pa.Table],
    encoder: TableEncoder,
    encoders: Encoders,
    *,
    media_type: str,
    held: contextlib.AsyncExitStack,
    headers: Mapping[str, str] | None = None,
) -> Streamed:
    """The tables as one file.

    The first table is awaited, so that an error before it has a status of its own.

    Args:
        tables: that the encoder takes.
        encoder: of the file.
        encoders: in which it works.
        media_type: of the file.
        held: what the answer needs; the answer takes it over.
        headers: further ones.
    """
    first = [table async for table in _first(tables)]
    pieces = encoder.encode(_joined(first, tables), encoders)
    return Streamed(pieces, media_type, held=held.pop_all(), headers=headers)


async def _first(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    """The first table, if there is one."""
    async for table in tables:
        yield table
        return


async def _joined(first: list[pa.Table], rest: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    while first:  # The table is not kept while it is sent.
        yield first.pop()
    async for table in rest:
        yield table
