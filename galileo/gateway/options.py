"""Options of a gateway."""

from __future__ import annotations

import re
from dataclasses import dataclass

from galileo.errors import ConfigError
from galileo.http_serving.hosts import is_loopback
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

PORT = 7790
CONNECTIONS_MAX = 256
REQUESTS_OF_CALLER_MAX = 16
"""Requests of one principal, or of one host without a token, that are answered at the same time."""
IDLE_TIMEOUT_S = 30.0
HELD_BYTES_MAX = 256 << 20
ENCODERS = 2
ENCODINGS_WAITING_MAX = 1_024
"""Pieces of answers that wait for a thread that encodes them."""

_ROOT_PATH = re.compile(r"(?:/[\w.~-]+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Where a gateway listens, whom it lets in, and which cluster it calls.

    Attributes:
        nodes: addresses of nodes, "host:port".
        cluster_keys: TLS files of the gateway as a client of the nodes, without a token.
        patience_s: how long calls of nodes are retried.
        host: address to listen on.
        port: 0 for any free one.
        metrics: "host:port" of metrics and readiness; "" for none.
        certificate: file of the certificate that clients see, PEM; "" without TLS.
        key: file of its private key.
        insecure: whether to serve other machines without TLS.
        hosts: names in `Host` headers that are accepted besides those of loopback addresses; on a
            loopback address others are refused, elsewhere only if there are some.
        root_path: below which a proxy serves the gateway, such as "/geo"; the proxy takes
            it away from paths.
        proxies: addresses or networks of proxies whose `Forwarded` or `X-Forwarded-*` count.
        origins: of web pages that may read answers; none by default.
        anonymous: whether callers without a token are let in, as far as the nodes do.
        anonymous_token: the token of callers without one.
        connections_max: largest number of connections.
    """

    nodes: tuple[str, ...]
    cluster_keys: TlsFiles = NO_TLS_FILES
    patience_s: float = 15.0
    host: str = "127.0.0.1"
    port: int = PORT
    metrics: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    root_path: str = ""
    proxies: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    anonymous: bool = False
    anonymous_token: str = ""
    connections_max: int = CONNECTIONS_MAX

    @property
    def readers_max(self) -> int:
        """Largest number of readers of events; other requests have the remaining connections."""
        return self.connections_max * 3 // 4

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ConfigError(
                "expected a certificate and its key, got one of them", expected="all_files"
            )
        if not (self.certificate or self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"expected TLS to serve other machines at {self.host}, or others on the network "
                "could read tokens",
                remedy="gateway_insecure",
                expected="tls",
            )
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                "expected the path below which a proxy serves the gateway, such as /geo, got "
                f"{self.root_path!r}",
                expected="root_path",
            )
        if "*" in self.origins:
            raise ConfigError(
                "expected the origins of web pages that may read answers, such as "
                "https://maps.example, got '*'; name each of them",
                expected="origins",
            )
