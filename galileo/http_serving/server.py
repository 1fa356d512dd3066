"""A server of one ASGI application: listens from construction on, admits connections, ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.server import ServerState

from galileo.connection_limits import ConnectionLimiter, OpenConnection
from galileo.http_serving.protocol import BoundedProtocol, HttpLimits, protocol_config

RETRY_AFTER_S = 1
BACKLOG = 1024
"""Connections that wait in order; beyond it, the kernel lets clients retry after a second."""
ACCEPT_PAUSE_S = 0.1
"""Pause after an error of `accept`, such as too many open files."""
STOP_TIMEOUT_S = 5.0
"""How long answers that are being made have when the server stops."""
_BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_S}\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n"
).encode()

log = logging.getLogger(__name__)


class HttpServer:
    """Serves an application within limits.

    Args:
        app: an ASGI application without a lifespan.
        host: address to listen on.
        port: 0 for any that is free.
        limits: of connections, times and memory.
        tls: the TLS context of the next connection; None without TLS.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        limits: HttpLimits,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._limits = limits
        self._tls = tls
        self._config = protocol_config(app, limits)
        self._state = ServerState()
        self._tasks: set[asyncio.Task[None]] = set()
        is_ipv6 = ":" in host
        self._listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),  # "::" is every address.
        )
        # Connections inherit it. asyncio sets it only for sockets that name their protocol; without
        # it, the second part of an answer waits up to 40 ms for the client's acknowledgement.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.limiter = ConnectionLimiter(
            limits.connections_max, held_bytes_max=limits.held_bytes_max
        )

    async def serve(self) -> None:
        """Serves until it is cancelled; then answers that are being made have some time to end."""
        try:
            await self._accept()
        finally:
            await self._stop()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Neither of the two waits while there are connections to accept. Other connections get
            # their turn after each, or they would wait for all that has been opened meanwhile.
            await asyncio.sleep(0)
            try:
                client, address = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connection = OpenConnection(str(address[0]), functools.partial(_close, client))
            if not await self.limiter.admit(connection):
                self._refuse(client)
                continue
            task = asyncio.create_task(self._connect(client, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _refuse(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._tls is None:
                client.send(_BUSY)
                client.shutdown(socket.SHUT_WR)
                client.recv(1 << 16)  # Unread bytes would make a reset of the answer.

    async def _connect(self, client: socket.socket, connection: OpenConnection) -> None:
        """Makes the protocol of an admitted connection; with TLS after the handshake."""
        is_tls = self._tls is not None
        handshake_s = self._limits.idle_timeout_s if is_tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: BoundedProtocol(
                    self._config, self._state, limiter=self.limiter, connection=connection
                ),
                client,
                ssl=self._tls() if self._tls is not None else None,
                ssl_handshake_timeout=handshake_s,
            )
        except (OSError, ssl.SSLError):  # The client disconnected, or does not speak TLS.
            self.limiter.remove(connection)
            client.close()

    async def _stop(self) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        for protocol in list(self._state.connections):
            with contextlib.suppress(h11.LocalProtocolError):  # It was refused.
                protocol.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self._state.tasks:
                    await asyncio.wait(list(self._state.tasks))
        for protocol in list(self._state.connections):
            protocol.transport.abort()
        await asyncio.sleep(0)


class ServerThread:
    """Runs a server on an event loop of its own, in a thread.

    Args:
        server: belongs to that loop from now on.
        name: of the thread.
    """

    def __init__(self, server: HttpServer, name: str) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(server.serve())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def stop(self) -> None:
        """Stops the server and waits for its thread; a second call does nothing."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._serving.cancel)
            self._thread.join()


def _close(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
