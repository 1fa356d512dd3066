"""Configuration and start of the OTLP span exporter."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from galileo import spans
from galileo.errors import ConfigError
from galileo.optional_imports import library

PORT = 4317
"""The default port of OTLP over gRPC."""


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """Options of tracing; the section [tracing] of a node's configuration.

    Attributes:
        endpoint: of a collector with OTLP over gRPC, `http://host:4317`, or `https://` with the
            certificates that this machine trusts; empty disables tracing.
        ratio: the recorded share of traces that begin here, 0 to 1. Spans of other traces are
            recorded if their root is.
        insecure: whether to allow a collector on another machine without TLS.
    """

    endpoint: str = ""
    ratio: float = 0.1
    insecure: bool = False

    def check(self) -> None:
        """Raises ConfigError if a value is invalid."""
        if not 0 <= self.ratio <= 1:
            raise ConfigError(
                f"expected a tracing.ratio of 0 to 1, got {self.ratio}", key="tracing.ratio"
            )
        if not self.endpoint:
            return
        address, is_tls = collector_of(self.endpoint)
        if not (is_tls or self.insecure or _is_here(address)):
            raise ConfigError(
                f"expected tracing.endpoint with https:// or on this machine, got "
                f"{self.endpoint!r}: spans contain requests; set tracing.insecure = true to "
                "trust the network",
                key="tracing.insecure",
            )


NO_TRACING = TracingOptions()


class Tracing(Protocol):
    """The active recorder of this process."""

    def close(self) -> None:
        """Exports queued spans and stops; takes some seconds if the collector is unreachable."""
        ...


def collector_of(endpoint: str) -> tuple[str, bool]:
    """Parses an endpoint into `host:port` and whether it uses TLS.

    Raises:
        ConfigError: the endpoint is invalid.
    """
    expected = ConfigError(
        f"expected a collector as http://host:{PORT} or https://host:{PORT}, got {endpoint!r}",
        key="tracing.endpoint",
    )
    try:
        parts = urlsplit(endpoint)
        port = parts.port or PORT
    except ValueError:
        raise expected from None
    is_plain = parts.path in ("", "/") and not parts.query and not parts.username
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise expected
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", parts.scheme == "https"


def _is_here(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def start_tracing(options: TracingOptions, *, service: str, node: str = "") -> Tracing | None:
    """Starts recording the spans of this process; returns None without an endpoint.

    Args:
        options: endpoint and ratio.
        service: the name of the service: "galileo-node", "galileo-evaluator", or a client's own.
        node: name of the node.

    Raises:
        ConfigError: the options are wrong.
        MissingExtra: OpenTelemetry is not installed.
    """
    options.check()
    if not options.endpoint:
        return None
    recording = library("galileo.tracing.recording", purpose="[tracing]")
    address, is_tls = collector_of(options.endpoint)
    started = recording.Recording(
        address, is_tls=is_tls, ratio=options.ratio, service=service, node=node
    )
    spans.record_with(started)
    tracing: Tracing = started
    return tracing


@contextlib.contextmanager
def tracing(options: TracingOptions, *, service: str, node: str = "") -> Iterator[None]:
    """Records the spans of this process in the block; see `start_tracing`."""
    started = start_tracing(options, service=service, node=node)
    try:
        yield
    finally:
        if started is not None:
            started.close()
