"""A gateway on its addresses: the API, and metrics on an address of their own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from galileo.errors import ConfigError
from galileo.gateway import metrics
from galileo.gateway.app import Gateway
from galileo.gateway.options import HELD_BYTES_MAX, IDLE_TIMEOUT_S, GatewayOptions
from galileo.http_serving.hosts import is_loopback, names_this_machine, url_of
from galileo.http_serving.protocol import HttpLimits
from galileo.http_serving.server import HttpServer

METRICS_CONNECTIONS_MAX = 64
_TEXT = "text/plain; charset=utf-8"


class GatewayServer:
    """Listens from construction on, and answers while `serve` runs.

    Args:
        options: of the gateway.

    Attributes:
        url: of the API.
        metrics_url: of metrics and readiness, without a path; "" for none.

    Raises:
        ConfigError: an address cannot be listened on, or a file of TLS cannot be used.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._gateway = Gateway(options)
        tls = _tls_contexts(options.certificate, options.key) if options.certificate else None
        limits = HttpLimits(
            connections_max=options.connections_max,
            idle_timeout_s=IDLE_TIMEOUT_S,
            held_bytes_max=HELD_BYTES_MAX,
        )
        self._servers = [
            _listening(self._gateway.app, options.host, options.port, limits=limits, tls=tls)
        ]
        api = self._servers[0]
        self.url = url_of(options.host, api.port, scheme="https" if tls else "http")
        self._gateway.metrics.connections = lambda: len(api.limiter)
        self.metrics_url = ""
        if options.metrics:
            host, _, port = options.metrics.rpartition(":")
            host = host.strip("[]")
            few = HttpLimits(connections_max=METRICS_CONNECTIONS_MAX, idle_timeout_s=IDLE_TIMEOUT_S)
            app = functools.partial(self._monitor, host)
            self._servers.append(_listening(app, host, int(port), limits=few))
            self.metrics_url = url_of(host, self._servers[1].port)

    async def serve(self) -> None:
        """Answers until it is cancelled; then answers that are being made have some time to end."""
        try:
            async with asyncio.TaskGroup() as group:
                for server in self._servers:
                    group.create_task(server.serve())
                group.create_task(self._stop_queries())
        finally:
            await self._gateway.close()

    async def _stop_queries(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        self._gateway.stop()
        raise asyncio.CancelledError

    async def _monitor(self, host: str, scope: Any, receive: Any, send: Any) -> None:
        """The application of metrics and readiness."""
        response = await self._monitoring_answer(Request(scope), host)
        await response(scope, receive, send)

    async def _monitoring_answer(self, request: Request, host: str) -> Response:
        header, path = request.headers.get("host", ""), request.scope["path"]
        if is_loopback(host) and not names_this_machine(header, listening=host):
            status = HTTPStatus.MISDIRECTED_REQUEST
            return Response("expected a host of this machine\n", status, media_type=_TEXT)
        if path == "/metrics":
            return Response(self._gateway.metrics.exposed(), media_type=metrics.MEDIA_TYPE)
        if path == "/live":
            return Response("alive\n", media_type=_TEXT)
        if path != "/ready":
            text = "expected one of /metrics, /ready, /live\n"
            return Response(text, HTTPStatus.NOT_FOUND, media_type=_TEXT)
        if await self._gateway.callers.is_reachable():
            return Response("ready\n", media_type=_TEXT)
        text = "no node of the cluster answers\n"
        return Response(text, HTTPStatus.SERVICE_UNAVAILABLE, media_type=_TEXT)


def _listening(
    app: Any,
    host: str,
    port: int,
    *,
    limits: HttpLimits,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> HttpServer:
    try:
        return HttpServer(app, host=host, port=port, limits=limits, tls=tls)
    except OSError as error:
        raise ConfigError(
            f"expected an address to listen on, got {host}:{port}: {error.strerror or error}",
            expected="free_address",
        ) from error


def _tls_contexts(certificate: str, key: str) -> Callable[[], ssl.SSLContext]:
    """A function that gives the TLS context of the next connection; reads changed files again.

    While changed files do not match (one is not written yet), it gives the previous context.

    Raises:
        ConfigError: the files cannot be used.
    """
    context, stamp = _tls_context(certificate, key), _stamp(certificate, key)

    def current() -> ssl.SSLContext:
        nonlocal context, stamp
        if (now := _stamp(certificate, key)) != stamp:
            with contextlib.suppress(ConfigError):
                context = _tls_context(certificate, key)
                stamp = now
        return context

    return current


def _tls_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"expected a certificate and its key in PEM, got {certificate} and {key}: {error}",
            expected="certificate",
        ) from error
    return context


def _stamp(*files: str) -> tuple[int, ...]:
    """A value that changes when a file is replaced; that of a file that is absent is 0."""
    stamps = []
    for file in files:
        try:
            stamps.append(Path(file).stat().st_mtime_ns)
        except OSError:
            stamps.append(0)
    return tuple(stamps)
