"""Whether and where to this process tells its spans."""

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
"""Where collectors listen for OTLP over gRPC."""


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """The section [tracing] of a node's configuration, and what others choose about it.

    Attributes:
        endpoint: of a collector that takes OTLP over gRPC, `http://host:4317`, or `https://` with
            the certificates that this machine trusts; empty: nothing is recorded.
        ratio: which part of the traces that begin here is recorded, 0 to 1. What belongs to a
            trace that began elsewhere is recorded where that one is.
        insecure: whether a collector on another machine may be spoken to without TLS.
    """

    endpoint: str = ""
    ratio: float = 0.1
    insecure: bool = False

    def check(self) -> None:
        """Raises ConfigError where the values are none."""
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"expected a tracing.ratio of 0 to 1, got {self.ratio}")
        if not self.endpoint:
            return
        address, is_tls = collector_of(self.endpoint)
        if not (is_tls or self.insecure or _is_here(address)):
            raise ConfigError(
                f"expected tracing.endpoint with https:// or on this machine, got "
                f"{self.endpoint!r}: spans tell who asks what; set tracing.insecure = true to "
                "trust the network"
            )


NO_TRACING = TracingOptions()


class Tracing(Protocol):
    """What is recorded in this process, until it is closed."""

    def close(self) -> None:
        """Sends what waits, and records no more; takes some seconds where nobody answers."""
        ...


def collector_of(endpoint: str) -> tuple[str, bool]:
    """`host:port` of a collector, and whether it is spoken to through TLS.

    Raises:
        ConfigError: this is no endpoint.
    """
    expected = ConfigError(
        f"expected a collector as http://host:{PORT} or https://host:{PORT}, got {endpoint!r}"
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
    """Has this process record its spans from here on; None where there is no endpoint.

    Args:
        options: where to, and how many.
        service: what this process is: "galileo-node", "galileo-evaluator", a client's own name.
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
    """Has this process record its spans while the block runs; see `start_tracing`."""
    started = start_tracing(options, service=service, node=node)
    try:
        yield
    finally:
        if started is not None:
            started.close()
