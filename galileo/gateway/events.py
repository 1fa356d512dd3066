"""Server-sent events of continuous queries and channels: the answer to one reader.

Raw ASGI callables, which send bytes that all readers share: one task for each reader of a query,
and one more for each query of a reader of several. The protocol closes the connection of a reader
that takes nothing for its timeout; the reader comes back with the tokens of its last events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.responses import Response

from galileo.errors import (
    GalileoError,
    HistoryChanged,
    InvalidToken,
    NotPermitted,
    Overloaded,
    TerminalError,
    UnknownCcq,
    UnknownDataset,
)
from galileo.gateway.documents import EVENT_STREAM
from galileo.gateway.hub import Hubs, QueryReader
from galileo.gateway.problems import problem_document, problem_of, status_of
from galileo.gateway.updates import Event, end_frame, lost_frame, merged_frame

HEARTBEAT_S = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection."""
RETRY_MS = 1_000
"""How long readers that lost the connection wait."""
BUSY_RETRY_MS = 5_000
"""The same where there was no room for them."""
RETRY_MAX_MS = 60_000
_HEARTBEAT = b":\n\n"
_PASSING = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""Statuses of errors after which a reader comes back."""
_FINAL = (TerminalError, NotPermitted, UnknownCcq, UnknownDataset, InvalidToken)
"""Errors after which a reader that comes back gets the same one, but for those of the server."""

log = logging.getLogger(__name__)


class EventResponse(Response):
    """A stream of events.

    Args:
        held: closed at the end.
        retry_ms: how long a reader waits before it comes back.
        first: an event that comes before the others.
    """

    def __init__(
        self, *, held: contextlib.AsyncExitStack, retry_ms: int = RETRY_MS, first: bytes = b""
    ) -> None:
        # Proxies must neither collect nor compress events.
        headers = {"Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._held = held
        self._begin = f"retry: {retry_ms}\n\n".encode() + first

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(Overloaded):  # Another caller got the place.
            async with self._held:
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
                if scope["method"] != "HEAD":
                    await _send(send, self._begin)
                    await self._send_events(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Any) -> None:
        """Sends the events; a stream without any ends at once."""


def refused_stream(error: GalileoError) -> Response:
    """The answer to a reader whose stream cannot be opened: an empty stream for errors that pass.

    A browser's `EventSource` ends for good at any other status than 200. After a stream that ends
    it comes back with its last token. Where commits of the reader were lost, the stream has an
    event that says so, with the token to come back with.
    """
    if isinstance(error, HistoryChanged):
        return EventResponse(held=contextlib.AsyncExitStack(), first=_lost(error))
    if status_of(error) not in _PASSING:
        return problem_of(error)
    log.info("a reader of events has to come back: %s [%s]", error.message, error.kind)
    wait_ms = BUSY_RETRY_MS if isinstance(error, Overloaded) else RETRY_MS
    wait_ms = max(wait_ms, round(1_000 * float(error.details.get("after_s", 0))))
    return EventResponse(held=contextlib.AsyncExitStack(), retry_ms=min(wait_ms, RETRY_MAX_MS))


class EventStream(EventResponse):
    """The events of one reader.

    Args:
        events: of the reader; None where none came for a while.
        held: closed at the end.
    """

    def __init__(
        self, events: AsyncGenerator[Event | None, None], *, held: contextlib.AsyncExitStack
    ) -> None:
        super().__init__(held=held)
        self._events = events

    async def _send_events(self, send: Any) -> None:
        try:
            async with contextlib.aclosing(self._events) as events:
                async for event in events:
                    await _send(send, _HEARTBEAT if event is None else event.frame)
        except HistoryChanged as error:
            await _send(send, _lost(error))
        except GalileoError as error:
            if _is_final(error):
                await _send(send, end_frame(problem_document(error)))
                return
            log.info("a reader of events has to come back: %s [%s]", error.message, error.kind)


class MergedEvents(EventResponse):
    """The events of readers of several queries, which end one by one.

    A task for each query waits for its events. It hands one over when the last was sent, so that a
    slow client holds one event of each query, whose bytes other readers share.

    Args:
        readers: one of each query.
        hubs: of the gateway.
        held: closed at the end.
    """

    def __init__(
        self, readers: Iterable[QueryReader], hubs: Hubs, *, held: contextlib.AsyncExitStack
    ) -> None:
        super().__init__(held=held)
        self._readers = list(readers)
        self._hubs = hubs

    async def _send_events(self, send: Any) -> None:
        steps = asyncio.Queue[_Step](maxsize=1)
        tasks = [asyncio.create_task(self._follow(reader, steps)) for reader in self._readers]
        try:
            left = len(tasks)
            while left:
                step = await _next(steps)
                left -= step is not None and step.is_last
                await _send(send, _HEARTBEAT if step is None else step.frame())
                for task in tasks:
                    if task.done():
                        task.result()  # Raises the error of a bug.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, reader: QueryReader, steps: asyncio.Queue[_Step]) -> None:
        """Hands over the events of a query until it ends; after other errors, it goes on."""
        while not self._hubs.is_stopping:
            try:
                events = reader.events(await reader.fetch(), heartbeat_s=HEARTBEAT_S)
                async with contextlib.aclosing(events):
                    async for event in events:
                        if event is not None:
                            await steps.put(_Step(reader.ccq_id, event, event.is_last))
                            if event.is_last:
                                return
            except HistoryChanged as error:
                reader.token = error.details["token"]
                await steps.put(_Step(reader.ccq_id, error))
                continue
            except GalileoError as error:
                if _is_final(error):
                    await steps.put(_Step(reader.ccq_id, error, is_last=True))
                    return
                log.info("%s is read again: %s [%s]", reader.ccq_id, error.message, error.kind)
            if not self._hubs.is_stopping:
                await asyncio.sleep(RETRY_MS / 1_000)
        await steps.put(_Step(reader.ccq_id, None, is_last=True))


class _Step(NamedTuple):
    """What a query hands over: an event, the error that ends it, or None as the gateway stops.

    An error that is not the last step says that commits of the reader were lost.
    """

    ccq_id: str
    value: Event | GalileoError | None
    is_last: bool = False

    def frame(self) -> bytes:
        if isinstance(self.value, Event):
            return merged_frame(self.ccq_id, self.value)
        if self.value is None:
            return b""
        document = {"ccq": self.ccq_id, **problem_document(self.value)}
        return end_frame(document) if self.is_last else lost_frame(document)


async def _next(steps: asyncio.Queue[_Step]) -> _Step | None:
    """The next step; None if it does not come for a while."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            return await steps.get()
    except TimeoutError:
        return None


def _lost(error: HistoryChanged) -> bytes:
    return lost_frame(problem_document(error), error.details.get("token", ""))


def _is_final(error: GalileoError) -> bool:
    """Whether a reader that comes back would get the same error."""
    return isinstance(error, _FINAL) and status_of(error) < HTTPStatus.INTERNAL_SERVER_ERROR


async def _send(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
