"""Server-sent events of a continuous query: the answer to one reader.

A raw ASGI callable: one task for each reader, which sends bytes that all readers share. The
protocol closes the connection of a reader that takes nothing for its timeout; the reader comes back
with the token of its last event.
"""

from __future__ import annotations

import contextlib
import json
import logging
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from galileo.client.results import Update
from galileo.errors import GalileoError, NotPermitted, TerminalError, UnknownCcq
from galileo.gateway.documents import EVENT_STREAM
from galileo.gateway.hub import QueryReader
from galileo.gateway.problems import problem_of, status_of
from galileo.gateway.updates import end_frame

HEARTBEAT_S = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection."""
RETRY_MS = 1_000
"""How long readers that lost the connection wait."""
_RETRY = f"retry: {RETRY_MS}\n\n".encode()
_HEARTBEAT = b":\n\n"
_FINAL = (TerminalError, NotPermitted, UnknownCcq)
"""Errors after which a reader that comes back gets the same one, but for those of the server."""

log = logging.getLogger(__name__)


class EventStream(Response):
    """The events of a reader.

    Args:
        reader: that they are for.
        first: the result of its first fetch.
        held: closed at the end.
    """

    def __init__(
        self, reader: QueryReader, first: Update, *, held: contextlib.AsyncExitStack
    ) -> None:
        # Proxies must neither collect nor compress events.
        headers = {"Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._reader = reader
        self._first: Update | None = first
        self._held = held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._held:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            if scope["method"] != "HEAD":
                await self._send_events(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Any) -> None:
        first, self._first = self._first, None  # It is not kept for as long as the reader is.
        assert first is not None
        await _send(send, _RETRY)
        events = self._reader.events(first, heartbeat_s=HEARTBEAT_S)
        del first
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    await _send(send, _HEARTBEAT if event is None else event.frame)
        except GalileoError as error:
            if isinstance(error, _FINAL) and status_of(error) < HTTPStatus.INTERNAL_SERVER_ERROR:
                await _send(send, end_frame(_document(error)))
                return
            log.info("a reader of events has to come back: %s [%s]", error.message, error.kind)


async def _send(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _document(error: GalileoError) -> bytes:
    """Problem details in one line."""
    return json.dumps(json.loads(bytes(problem_of(error).body))).encode()
