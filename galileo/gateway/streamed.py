"""Answers that are made while they are sent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response

from galileo.errors import GalileoError

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
