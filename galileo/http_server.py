"""The standard library's threading HTTP server, with a bounded number of connections.

A thread for each connection; who comes when all are taken is told to come back.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RETRY_AFTER_S = 1
STOP_POLL_S = 0.1
"""How often the server looks whether it should stop."""
_BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_S}\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n"
).encode()

log = logging.getLogger(__name__)


class BoundedServer(ThreadingHTTPServer):
    """Listens from the moment it is made, and answers between `begin` and `end`.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        handler: answers the requests of one connection.
        connections_max: at a time.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, host: str, port: int, *, handler: type[BaseHTTPRequestHandler], connections_max: int
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._room = threading.BoundedSemaphore(connections_max)
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
        if not self._room.acquire(blocking=False):
            request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # No thread could be started, which would have made room again.
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who hung up or fell silent is no error of ours."""
        if not isinstance(sys.exception(), OSError):
            log.error("a request over HTTP failed", exc_info=True)
