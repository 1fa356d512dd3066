"""uvicorn's HTTP/1.1 protocol, with a bound for each thing that a client can make it wait for.

- A client sends its whole request within the timeout, counted from the first byte, and the first
  byte within the timeout of the connection or of the last answer.
- The head of a request has a size limit.
- An answer leaves in pieces. The client takes each of them within the timeout, and the application
  makes the next one afterwards, so that a slow reader holds one piece.
- A connection that ends cancels the task that answers its request. A client that sends more than
  the size of a head before its answer is complete is disconnected.
- An application that fails before its answer is complete closes the connection.
- A request for a whole URL is one for its path, with the host of the URL (RFC 9112, 3.2.2).

The protocol reports each step to `galileo.connection_limits`, which chooses the connection to close
when there are too many. `tests/unit/http_serving/test_http_serving_uvicorn.py` checks what this
module expects of uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from galileo.connection_limits import ConnectionLimiter, OpenConnection

HEAD_BYTES_MAX = 64 << 10
"""Size of the first line and the headers of a request."""
PIECE_BYTES = 256 << 10
LAST_PIECE_BYTES = 64 << 10
"""A last piece up to this size is not awaited; the timeout of the next request bounds it."""
_ABSOLUTE_FORM = re.compile(rb"https?://([^/@]+)(/.*)?", re.IGNORECASE)
LINGER_S = 2.0
"""How long a refused client, which may still send, has to read the reason."""

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger(__name__)
_uvicorn_log = logging.getLogger(f"{__name__}.uvicorn")
_uvicorn_log.setLevel(logging.ERROR)  # A warning for each invalid request would fill a disk.


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of a server.

    Attributes:
        connections_max: largest number of connections.
        idle_timeout_s: for a client to send a request, to take a piece of an answer, and between
            the two.
        held_bytes_max: total size of pieces and whole answers that are being sent; a single one may
            be larger.
    """

    connections_max: int
    idle_timeout_s: float
    held_bytes_max: int = 64 << 20


def protocol_config(app: Any, limits: HttpLimits) -> Config:
    """Uvicorn's configuration: no logs, no WebSocket, no lifespan."""
    config = Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.idle_timeout_s,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )
    config.load()
    return config


class BoundedProtocol(H11Protocol):
    """The protocol of one connection.

    Args:
        config: of `protocol_config`.
        state: of the server.
        limiter: has admitted the connection.
        connection: as the limiter knows it.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        *,
        limiter: ConnectionLimiter,
        connection: OpenConnection,
    ) -> None:
        super().__init__(config, state, {})
        self.logger = _uvicorn_log
        self.access_log = False
        self._app, self.app = self.app, self._answer
        self._limiter = limiter
        self._connection = connection
        self._timeout_s = float(config.timeout_keep_alive)
        self._request_timer: asyncio.TimerHandle | None = None
        self._has_begun = False
        self._is_refused = False
        self._task: asyncio.Task[Any] | None = None
        self._lost = asyncio.Event()

    # --- requests ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A write is over when the kernel has all of it: what a reader does not take is one piece.
        # Not 0, which a transport with TLS would never fall below.
        transport.set_write_buffer_limits(high=1, low=0)
        self._connection.close = transport.abort
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._limiter.remove(self._connection)
        self._lost.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._has_begun and not self._is_answering():
            self._has_begun = True
            self._restart_timer()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        # Once for each request: bytes of the next one are no progress of a slow reader.
        if is_whole and self._request_timer is not None and self._is_answering():
            self._stop_timer()
            self._limiter.record_request(self._connection)
        if is_whole and self.flow.read_paused and self._is_answering():
            self._read_ahead()

    def _read_ahead(self) -> None:
        """Reads on behind a request that is being answered, though its next one has begun.

        Nothing but a read shows that the connection has ended, and the answer is not wanted.
        """
        if len(self.conn.trailing_data[0]) > HEAD_BYTES_MAX:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        self._limiter.record_end(self._connection)
        if is_whole:  # Otherwise the rest of the request has what is left of its time.
            self._has_begun = False
            self._restart_timer()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Ends the wait for a request; does not wait until unsent bytes are taken."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, and reads on for a moment, lest a reset destroys the answer."""
        error = sys.exception()
        status, text = _status_of(error), f"{error or msg}\n".encode(errors="replace")
        self._is_refused = True
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + text)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._stop_timer()
        self._request_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def close_after_request(self) -> None:
        """Closes when the request has arrived, which is dropped: a reset would destroy the answer.

        The request has what is left of its time.
        """
        if self.conn.their_state is h11.SEND_BODY or self._is_refused:
            self._is_refused = True
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
        else:
            self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _restart_timer(self) -> None:
        self._stop_timer()
        self._request_timer = self.loop.call_later(self._timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    # --- answers -----------------------------------------------------------------------------

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Runs the application; ends quietly when the connection has ended."""
        self._task = asyncio.current_task()
        self.cycle.transport = cast(asyncio.Transport, _LingeringTransport(self))
        scope.update(_origin_form(scope), galileo_connection=self._connection)
        try:
            await self._app(scope, receive, functools.partial(self._send, send, scope))
        except asyncio.CancelledError:
            if not self.transport.is_closing():
                raise
        except Exception as error:
            if not isinstance(error, ConnectionError):  # The application gave up and said why.
                log.exception("a request over HTTP failed")
            if not self.cycle.response_complete:
                with contextlib.suppress(asyncio.CancelledError):
                    await self._abort()
        finally:
            self._task = None

    async def _abort(self) -> None:
        """Closes the connection and waits for its end, which cancels this task."""
        self.transport.abort()
        await self._lost.wait()

    async def _send(self, send: Send, scope: Any, message: Message) -> None:
        """Sends a part of an answer; returns when the client has taken it."""
        if message["type"] != "http.response.body":
            date = (b"date", _http_date(int(time.time())))
            headers = [*message.get("headers", ()), date]
            await send({**message, "headers": headers})
            return
        body, has_more = message.get("body", b""), message.get("more_body", False)
        if scope["method"] == "HEAD":
            body = b""
        self._limiter.record_answer(self._connection, len(body))
        rest = memoryview(body)
        while len(rest) > LAST_PIECE_BYTES or (has_more and rest):
            await self._send_piece(send, rest[:PIECE_BYTES])
            rest = rest[PIECE_BYTES:]
        if has_more:
            self._limiter.record_request(self._connection)
        else:
            await send({**message, "body": bytes(rest)})

    async def _send_piece(self, send: Send, piece: memoryview) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
                await self.flow.drain()
                # Neither waits for a reader that takes all at once, nor where there is none.
                await asyncio.sleep(0)
        except TimeoutError:
            self.transport.abort()
        if self.transport.is_closing():
            await self._lost.wait()
            raise ConnectionResetError("the client disconnected")
        self._limiter.record_written(self._connection)


class _LingeringTransport:
    """The transport of a request, which is closed when the request has arrived."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)

    def close(self) -> None:
        self._protocol.close_after_request()


def _origin_form(scope: Any) -> dict[str, Any]:
    """What differs in the scope of a request whose target is a whole URL; nothing for a path."""
    target = _ABSOLUTE_FORM.fullmatch(scope["raw_path"])
    if target is None:
        return {}
    host, path = target[1], target[2] or b"/"
    headers = [pair for pair in scope["headers"] if pair[0] != b"host"]
    return {
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "headers": [(b"host", host), *headers],
    }


def _status_of(error: BaseException | None) -> HTTPStatus:
    """The status of an error of h11; a length that is no number is one that is not taken."""
    if "Content-Length" in str(error):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))


@functools.lru_cache(maxsize=1)
def _http_date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
