"""A gateway on its addresses: the API, and metrics on an address of their own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path

from galileo.errors import ConfigError
from galileo.gateway.app import Gateway
from galileo.gateway.options import HELD_BYTES_MAX, IDLE_TIMEOUT_S, GatewayOptions
from galileo.http_serving.hosts import url_of
from galileo.http_serving.monitoring import MonitoringServer, listening
from galileo.http_serving.protocol import HttpLimits
from galileo.http_serving.server import HttpServer


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
        self._servers: list[HttpServer | MonitoringServer] = [
            api := listening(self._gateway.app, options.host, options.port, limits=limits, tls=tls)
        ]
        self.url = url_of(options.host, api.port, scheme="https" if tls else "http")
        self._gateway.metrics.connections = lambda: len(api.limiter)
        self.metrics_url = ""
        if options.metrics:
            monitoring = MonitoringServer(
                options.metrics,
                exposed=self._gateway.metrics.exposed,
                is_ready=self._gateway.callers.is_reachable,
            )
            self._servers.append(monitoring)
            self.metrics_url = monitoring.url

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
