"""The standard library's threading HTTP server, with a bound for everything a client may take.

A thread for each connection, as many as there are seats (`galileo.connection_limits`). A request
has to come within a time and its head within a size, both in all and not for each read: a byte now
and then makes no request. Where nobody can give way, who comes is told to come back.
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
"""How often the server looks whether it should stop."""
HEAD_BYTES_MAX = 128 << 10
"""Of a request's first line and headers together."""
HELD_BYTES_MAX = 64 << 20
"""Of answers that are being taken; one alone may be larger."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
BACKLOG = 1024
"""Connections that wait for a seat in the order in which they came; beyond, the kernel has clients
try again a second later, in no order."""
PIECE_BYTES = 256 << 10
_BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_S}\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n"
).encode()

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(header: str, *, listening: str) -> bool:
    """Whether a `Host` header names the loopback address that a server listens on.

    A page of another site can give a loopback address a name of its own, and then send requests
    from a browser on this machine and read the answers. Such requests carry that name.

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
    """Listens from the moment it is made, and answers between `begin` and `end`.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        handler: answers the requests of one connection.
        connections_max: at a time.
        idle_timeout_s: for a request, from its first byte; for the time before it; and for taking
            an answer.
        held_bytes_max: of all answers that are being taken.

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
        """Answers in a thread of this name."""
        self._thread = threading.Thread(
            target=self.serve_forever, args=(STOP_POLL_S,), name=name, daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Blocks for a moment; connections that are open are not waited for."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """As of the class above, without asking the network for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.seats.take(request, str(client_address[0])):
            request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """At the end of each connection, whatever it came to."""
        self.seats.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who hung up or fell silent is no error of ours."""
        if not isinstance(sys.exception(), OSError):
            log.error("a request over HTTP failed", exc_info=True)


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads and writes within the bounds of its server.

    Subclasses say `record_request` once they have read all of a request, and write by `send_body`.
    """

    protocol_version = "HTTP/1.1"
    server: Any  # A BoundedServer; subclasses know which.

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection, self.server.idle_timeout_s)
        self.rfile = io.BufferedReader(self._incoming)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news, and queries may be secrets."""

    def handle_one_request(self) -> None:
        self._incoming.begin()
        super().handle_one_request()
        self.server.seats.record_end(self.connection)

    def parse_request(self) -> bool:
        is_parsed = super().parse_request()
        self._incoming.end_head()
        return is_parsed

    def record_request(self) -> None:
        """It has come whole, so from now on it is answered."""
        self.server.seats.record_request(self.connection)

    def send_body(self, body: bytes) -> None:
        """The headers that wait, and a body, which the client has to take within the time.

        Raises:
            OSError: it did not, or was too slow beside others.
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
    """The bytes of requests, as long as each one keeps within its time and its head in its size."""

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
        """A request is waited for."""
        self._until = self._clock() + self._within_s
        self._has_begun = False
        self._head_left: int | None = HEAD_BYTES_MAX

    def end_head(self) -> None:
        """What comes now is a body, whose size is known."""
        self._head_left = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """As of the class above.

        Raises:
            TimeoutError: the request has not come within its time.
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
    """Seconds until then.

    Raises:
        TimeoutError: there are none.
    """
    left_s = until - (time.monotonic() if now is None else now)
    if left_s <= 0:
        raise TimeoutError("the time of a client is over")
    return left_s
