"""Metrics, readiness and liveness of a client of the cluster, such as a gateway, over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from galileo.errors import ConfigError
from galileo.http_serving.hosts import is_loopback, names_this_machine, url_of
from galileo.http_serving.protocol import HttpLimits
from galileo.http_serving.server import HttpServer

CONNECTIONS_MAX = 64
IDLE_TIMEOUT_S = 30.0
TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class MonitoringServer:
    """Listens from construction on, and answers while `serve` runs.

    Args:
        address: "host:port" to listen on.
        exposed: all metrics, in the text format of Prometheus.
        is_ready: whether the process can do its work.

    Attributes:
        url: of the server, without a path.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self, address: str, *, exposed: Callable[[], str], is_ready: Callable[[], Awaitable[bool]]
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        self._exposed = exposed
        self._is_ready = is_ready
        limits = HttpLimits(connections_max=CONNECTIONS_MAX, idle_timeout_s=IDLE_TIMEOUT_S)
        self._server = listening(self._app, self._host, int(port), limits=limits)
        self.url = url_of(self._host, self._server.port)

    async def serve(self) -> None:
        """Answers until it is cancelled."""
        await self._server.serve()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """The application; needs no request's body."""
        headers = dict(scope["headers"])
        status, text, media_type = await self._answer(
            scope["path"], headers.get(b"host", b"").decode("latin-1")
        )
        body = text.encode()
        start = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str, header: str) -> tuple[int, str, str]:
        if is_loopback(self._host) and not names_this_machine(header, listening=self._host):
            return HTTPStatus.MISDIRECTED_REQUEST, "expected a host of this machine\n", TEXT
        if path == "/metrics":
            return HTTPStatus.OK, self._exposed(), METRICS
        if path == "/live":
            return HTTPStatus.OK, "alive\n", TEXT
        if path != "/ready":
            return HTTPStatus.NOT_FOUND, "expected one of /metrics, /ready, /live\n", TEXT
        if await self._is_ready():
            return HTTPStatus.OK, "ready\n", TEXT
        return HTTPStatus.SERVICE_UNAVAILABLE, "no node of the cluster answers\n", TEXT


def listening(
    app: Any, host: str, port: int, *, limits: HttpLimits, tls: Callable[[], Any] | None = None
) -> HttpServer:
    """An HTTP server; errors as `MonitoringServer`."""
    try:
        return HttpServer(app, host=host, port=port, limits=limits, tls=tls)
    except OSError as error:
        raise ConfigError(
            f"expected an address to listen on, got {host}:{port}: {error.strerror or error}",
            expected="free_address",
        ) from error
