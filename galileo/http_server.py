"""The standard library's threading HTTP server, with bounds on time, memory and connections.

Each connection has a thread; `galileo.connection_limits` bounds their number. A whole request has a
timeout and its head a size limit, so that slow clients cannot hold connections. If no connection
can be closed for a new one, the new one gets status 503.
"""

from __future__ import annotations

import io
import ipaddress
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from galileo.connection_limits import ConnectionLimiter

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RETRY_AFTER_S = 1
STOP_POLL_S = 0.1
"""Interval at which the server checks whether to stop."""
HEAD_BYTES_MAX = 128 << 10
"""Size of the first line and the headers of a request."""
HELD_BYTES_MAX = 64 << 20
"""Total size of answers that are being sent; a single one may be larger."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
BACKLOG = 1024
"""Connections that wait in order; beyond it, the kernel lets clients retry after a second."""
PIECE_BYTES = 256 << 10
_BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_S}\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n"
).encode()

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(header: str, *, listening: str) -> bool:
    """Whether a `Host` header names the loopback address that a server listens on.

    This prevents DNS rebinding: a page of another site can map its name to a loopback address and
    send requests from a browser on this machine; they carry that name.

    Args:
        header: its value, "host" or "host:port".
        listening: the server's address.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    return name in LOOPBACK_NAMES | {listening}


class BoundedServer(ThreadingHTTPServer):
    """An HTTP server that listens from construction on and answers between `begin` and `end`.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        handler: answers the requests of one connection.
        connections_max: largest number of connections.
        idle_timeout_s: timeout of a request, of the time before it, and of sending an answer.
        held_bytes_max: total size of answers that are being sent.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(
        self,
        host: str,
        port: int,
        *,
        handler: type[BoundedHandler],
        connections_max: int,
        idle_timeout_s: float,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.idle_timeout_s = idle_timeout_s
        self.seats = ConnectionLimiter(connections_max, held_bytes_max=held_bytes_max)
        super().__init__((host, port), handler)

    def begin(self, name: str) -> None:
        """Starts the thread that accepts connections."""
        self._thread = threading.Thread(
            target=self.serve_forever, args=(STOP_POLL_S,), name=name, daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Stops the server; does not wait for open connections."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """Binds without a DNS lookup of this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.seats.take(request, str(client_address[0])):
            request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called at the end of each connection."""
        self.seats.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores disconnects and timeouts of clients."""
        if not isinstance(sys.exception(), OSError):
            log.error("a request over HTTP failed", exc_info=True)


class BoundedHandler(BaseHTTPRequestHandler):
    """Handles requests within the bounds of its server.

    Subclasses call `record_request` after they have read a request, and write by `send_body`.
    """

    protocol_version = "HTTP/1.1"
    server: Any  # A BoundedServer; subclasses know which.

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection, self.server.idle_timeout_s)
        self.rfile = io.BufferedReader(self._incoming)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no requests, because queries may be confidential."""

    def handle_one_request(self) -> None:
        self._incoming.begin()
        super().handle_one_request()
        self.server.seats.record_end(self.connection)

    def parse_request(self) -> bool:
        is_parsed = super().parse_request()
        self._incoming.end_head()
        return is_parsed

    def record_request(self) -> None:
        """Marks the request as complete."""
        self.server.seats.record_request(self.connection)

    def send_body(self, body: bytes) -> None:
        """Sends the headers and a body within the timeout.

        Raises:
            OSError: the client was too slow, or the connection was closed.
        """
        seats, until = self.server.seats, time.monotonic() + self.server.idle_timeout_s
        seats.record_answer(self.connection, len(body))
        self._set_timeout(until)
        self.end_headers()
        if self.command == "HEAD":
            return
        view = memoryview(body)
        for start in range(0, len(view), PIECE_BYTES):
            self._set_timeout(until)
            self.wfile.write(view[start : start + PIECE_BYTES])
            seats.record_written(self.connection)

    def _set_timeout(self, until: float) -> None:
        self.connection.settimeout(_left(until))


class _Incoming(io.RawIOBase):
    """A reader of requests with a timeout for each request and a size limit for its head."""

    def __init__(
        self,
        connection: socket.socket,
        within_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._within_s = within_s
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Starts the wait for a request."""
        self._until = self._clock() + self._within_s
        self._has_begun = False
        self._head_left: int | None = HEAD_BYTES_MAX

    def end_head(self) -> None:
        """Ends the head; a body of known size follows."""
        self._head_left = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Reads into a buffer.

        Raises:
            TimeoutError: the request is not complete in time.
            HTTPException: its head is too large.
        """
        self._connection.settimeout(_left(self._until, now=self._clock()))
        size = self._connection.recv_into(buffer)
        if not self._has_begun:
            self._has_begun, self._until = True, self._clock() + self._within_s
        if self._head_left is not None:
            self._head_left -= size
            if self._head_left < 0:
                raise HTTPException(f"expected at most {HEAD_BYTES_MAX:,} bytes of headers")
        return size


def _left(until: float, *, now: float | None = None) -> float:
    """Seconds until a deadline.

    Raises:
        TimeoutError: it has passed.
    """
    left_s = until - (time.monotonic() if now is None else now)
    if left_s <= 0:
        raise TimeoutError("the time of a client is over")
    return left_s
