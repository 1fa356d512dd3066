"""Metrics, readiness and liveness over HTTP, for Prometheus and supervisors.

The server has an event loop of its own, in a thread, and gets the data from the node's event loop,
with a timeout: a node whose loop does not answer is not alive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from galileo.errors import ConfigError
from galileo.http_serving.hosts import is_loopback, names_this_machine
from galileo.http_serving.protocol import HttpLimits
from galileo.http_serving.server import HttpServer, ServerThread
from galileo.server.metrics import Measured, exposed
from galileo.server.readiness import Readiness

CONNECTIONS_MAX = 64
IDLE_S = 10.0
"""Timeout of a request, of a piece of its answer, and between two requests."""
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
        self._answer_within_s = answer_within_s
        self._loop = asyncio.get_running_loop()
        self._measure = measure
        self._look = look
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        self._answers = {"/metrics": self._metrics, "/ready": self._ready, "/live": self._live}
        limits = HttpLimits(connections_max=CONNECTIONS_MAX, idle_timeout_s=IDLE_S)
        try:
            server = HttpServer(self._app, host=self._host, port=int(port), limits=limits)
        except OSError as error:
            raise ConfigError(
                f"expected an address to listen on as metrics.address, got {address}: "
                f"{error.strerror or error}",
                key="metrics.address",
            ) from error
        self.port = server.port
        self._thread = ServerThread(server, "metrics")

    def close(self) -> None:
        """Closes the server; blocks shortly, so call it in a thread."""
        self._thread.stop()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self._respond(Request(scope))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if not self._is_for_this_machine(request):
            return _text("expected a host of this machine", HTTPStatus.MISDIRECTED_REQUEST)
        answer = self._answers.get(request.scope["path"])
        if answer is None:
            return _text(f"expected one of {', '.join(self._answers)}", HTTPStatus.NOT_FOUND)
        if request.method not in ("GET", "HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
            return _text("expected GET or HEAD", status, Allow="GET, HEAD")
        try:
            return await answer(request)
        except TimeoutError:
            waited_s = self._answer_within_s
            text = f"the event loop has not answered for {waited_s:g} s"
            return _text(text, HTTPStatus.SERVICE_UNAVAILABLE)

    def _is_for_this_machine(self, request: Request) -> bool:
        """Whether a Host header is accepted; any, if the server listens for other machines."""
        header = request.headers.get("host", "")
        return not is_loopback(self._host) or names_this_machine(header, listening=self._host)

    async def _on_loop(self, function: Callable[[], T]) -> T:
        """Calls `function` on the node's event loop and returns its result.

        Raises:
            TimeoutError: the loop did not answer in time.
        """

        async def called() -> T:
            return function()

        future = asyncio.run_coroutine_threadsafe(called(), self._loop)
        async with asyncio.timeout(self._answer_within_s):
            return await asyncio.wrap_future(future)

    async def _metrics(self, request: Request) -> Response:
        measured = await self._on_loop(self._measure)
        body, content_type = exposed(measured, accept=request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    async def _ready(self, request: Request) -> Response:
        readiness = await self._on_loop(self._look)
        checks = {name: problem or "ok" for name, problem in readiness.checks.items()}
        body = json.dumps({"ready": readiness.is_ready, "checks": checks})
        status = HTTPStatus.OK if readiness.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(body, status_code=status, headers={"Content-Type": _JSON})

    async def _live(self, request: Request) -> Response:
        await self._on_loop(lambda: None)
        return _text("alive", HTTPStatus.OK)


def _text(text: str, status: HTTPStatus, **headers: str) -> Response:
    return Response(f"{text}\n", status_code=status, headers={"Content-Type": _TEXT, **headers})
