"""What an endpoint does with one request: checks whence it comes, has it answered, writes it."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from galileo.errors import ConfigError, GalileoError, InputError
from galileo.http_server import RETRY_AFTER_S
from galileo.rdf import convert, protocol
from galileo.rdf.answers import SparqlResult
from galileo.rdf.cancelling import Cancellation
from galileo.rdf.disconnects import Disconnects
from galileo.rdf.graphs import ROWS_MAX, TIMEOUT_S, OpenGraph
from galileo.rdf.ontology import ontology
from galileo.rdf.protocol import Ask, Refused, Request, Tell

PORT = 7780
QUERIES_MAX = 8
CONNECTIONS_MAX = 64
IDLE_TIMEOUT_S = 30.0
"""How long a client may take for its request, for taking the answer, and between two requests."""
STOP_TIMEOUT_S = 5.0
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Where an endpoint listens, and its limits.

    Attributes:
        host: address to listen on.
        port: 0 for any that is free.
        public: whether `host` may be another than a loopback address.
        timeout_s: of a query, waiting for its turn included.
        rows_max: solutions or triples of an answer.
        queries_max: queries that run or wait; more are told to come back.
        connections_max: clients that are connected; more are told to come back.
        idle_timeout_s: for a client's silence.
        cors: an origin whose pages may ask, "*" for all; empty for none.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    public: bool = False
    timeout_s: float = TIMEOUT_S
    rows_max: int = ROWS_MAX
    queries_max: int = QUERIES_MAX
    connections_max: int = CONNECTIONS_MAX
    idle_timeout_s: float = IDLE_TIMEOUT_S
    cors: str = ""

    def __post_init__(self) -> None:
        if not self.public and not _is_loopback(self.host):
            raise ConfigError(
                f"expected a loopback address, since anybody who reaches the endpoint may ask, got "
                f"{self.host!r}; serve a trusted network all the same with public (--public)"
            )
        if min(self.queries_max, self.connections_max) < 1:
            raise InputError("expected room for at least one query and one connection")


@dataclass(slots=True)
class Service:
    """What all connections share."""

    graph: OpenGraph
    options: EndpointOptions
    url: str = ""
    stopping: Cancellation = field(default_factory=Cancellation)
    disconnects: Disconnects = field(default_factory=Disconnects)
    queries: threading.BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        self.queries = threading.BoundedSemaphore(self.options.queries_max)

    def answer(self, request: Request, connection: socket.socket) -> tuple[str, bytes]:
        """Media type and body of the answer to a request."""
        self._check_host(request.headers.get("host", ""))
        accept = request.headers.get("accept", "")
        wanted = protocol.understood(request)
        if isinstance(wanted, Tell):
            media_type, form = protocol.chosen(accept, "triples")
            return media_type, self._told(wanted, form)
        result = self._asked(wanted, connection)
        media_type, form = protocol.chosen(accept, result.kind)
        return media_type, result.serialise(form)

    def stop(self) -> None:
        """Ends the queries that run, and waits until they have."""
        self.stopping.cancel()
        until = time.monotonic() + STOP_TIMEOUT_S
        for _ in range(self.options.queries_max):
            self.queries.acquire(timeout=max(0.0, until - time.monotonic()))
        self.disconnects.close()

    def _told(self, wanted: Tell, form: str) -> bytes:
        if wanted.what == "service":
            return convert.written(protocol.service_description(self.url), format=form)
        text = ontology().encode()
        return text if form == "turtle" else convert.written(convert.lines(text), format=form)

    def _asked(self, wanted: Ask, connection: socket.socket) -> SparqlResult:
        if not self.queries.acquire(blocking=False):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.options.queries_max} queries run or wait already; come back",
                Retry_After=str(RETRY_AFTER_S),
            )
        cancel = Cancellation()
        try:
            with (
                self.disconnects.calling(connection, cancel.cancel),
                self.stopping.calling(cancel.cancel),
            ):
                return self.graph.sparql(
                    wanted.text,
                    timeout_s=self.options.timeout_s,
                    rows_max=self.options.rows_max,
                    cancel=cancel,
                )
        except GalileoError as error:
            raise protocol.refusal(error) from error
        finally:
            self.queries.release()

    def _check_host(self, host: str) -> None:
        """A page elsewhere can give a loopback address a name of its own, and ask in it."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if not self.options.public and name not in LOOPBACK_NAMES | {self.options.host}:
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST, f"expected a host of this machine, got {host!r}"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
