"""Metrics, readiness and liveness over HTTP, for Prometheus and supervisors.

Its threads get the data from the node's event loop, with a timeout: a node whose loop does not
answer is not alive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TypeVar

from galileo.errors import ConfigError
from galileo.http_server import (
    BoundedHandler,
    BoundedServer,
    is_loopback,
    names_this_machine,
)
from galileo.server.metrics import Measured, exposed
from galileo.server.readiness import Readiness

CONNECTIONS_MAX = 64
IDLE_S = 10.0
"""Timeout of a request, of its answer, and between two requests."""
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"

T = TypeVar("T")


class Monitoring:
    """An HTTP server that uses the running event loop; serves until it is closed.

    Args:
        address: host:port to listen on.
        measure: all measurements; called on the event loop.
        look: the readiness of the node; called on the event loop.
        answer_within_s: a loop that takes longer is not alive.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self,
        address: str,
        *,
        measure: Callable[[], list[Measured]],
        look: Callable[[], Readiness],
        answer_within_s: float = 5.0,
    ) -> None:
        self.answer_within_s = answer_within_s
        self._loop = asyncio.get_running_loop()
        self.measure = measure
        self.look = look
        try:
            self._server = _Server(address, self)
        except OSError as error:
            raise ConfigError(
                f"expected an address to listen on as metrics.address, got {address}: "
                f"{error.strerror or error}",
                key="metrics.address",
            ) from error
        self._server.begin("metrics")

    @property
    def port(self) -> int:
        return self._server.server_port

    def on_loop(self, function: Callable[[], T]) -> T:
        """Calls `function` on the node's event loop and returns its result.

        Raises:
            TimeoutError: the loop did not answer in time.
        """

        async def called() -> T:
            return function()

        future = asyncio.run_coroutine_threadsafe(called(), self._loop)
        try:
            return future.result(self.answer_within_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Closes the server; blocks shortly, so call it in a thread."""
        self._server.end()


class _Server(BoundedServer):
    def __init__(self, address: str, monitoring: Monitoring) -> None:
        self.monitoring = monitoring
        host, _, port = address.rpartition(":")
        self.host = host.strip("[]")
        super().__init__(
            self.host,
            int(port),
            handler=_Handler,
            connections_max=CONNECTIONS_MAX,
            idle_timeout_s=IDLE_S,
        )


class _Handler(BoundedHandler, BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "Galileo", ""

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond()

    def _respond(self) -> None:
        self.record_request()
        if not self._is_for_this_machine():
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"expected a host of this machine\n", _TEXT)
            return
        answers = {"/metrics": self._metrics, "/ready": self._ready, "/live": self._live}
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            known = ", ".join(answers)
            self._send(HTTPStatus.NOT_FOUND, f"expected one of {known}\n".encode(), _TEXT)
            return
        try:
            answer()
        except TimeoutError:
            waited_s = self.server.monitoring.answer_within_s
            text = f"the event loop has not answered for {waited_s:g} s\n"
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, text.encode(), _TEXT)

    def _is_for_this_machine(self) -> bool:
        """Whether a Host header is accepted; any, if the server listens for other machines."""
        listening = self.server.host
        header = self.headers.get("Host", "")
        return not is_loopback(listening) or names_this_machine(header, listening=listening)

    def _metrics(self) -> None:
        monitoring = self.server.monitoring
        measured = monitoring.on_loop(monitoring.measure)
        body, content_type = exposed(measured, accept=self.headers.get("Accept", ""))
        self._send(HTTPStatus.OK, body, content_type)

    def _ready(self) -> None:
        monitoring = self.server.monitoring
        readiness = monitoring.on_loop(monitoring.look)
        checks = {name: problem or "ok" for name, problem in readiness.checks.items()}
        body = json.dumps({"ready": readiness.is_ready, "checks": checks}).encode()
        status = HTTPStatus.OK if readiness.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        self._send(status, body, _JSON)

    def _live(self) -> None:
        self.server.monitoring.on_loop(lambda: None)
        self._send(HTTPStatus.OK, b"alive\n", _TEXT)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_body(body)
