"""What an endpoint does with one request: checks whence it comes, has it answered, writes it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from galileo.errors import ConfigError, GalileoError, InputError, Overloaded
from galileo.http_server import RETRY_AFTER_S, is_loopback, names_this_machine
from galileo.rdf import protocol, to_rdf
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.disconnect_watcher import Disconnects
from galileo.rdf.fair_queue import FairQueue
from galileo.rdf.graphs import ROWS_MAX, TIMEOUT_S, OpenGraph
from galileo.rdf.ontology import ontology
from galileo.rdf.protocol import DescriptionRequest, Refused, Request
from galileo.rdf.sparql_result import SparqlResult

PORT = 7780
QUERIES_MAX = 8
CONNECTIONS_MAX = 64
IDLE_TIMEOUT_S = 30.0
"""How long a client may take for its request, for taking the answer, and between two requests."""
ANSWERS_MIB_MAX = 256
STOP_TIMEOUT_S = 5.0
LEFT_MIN_S = 0.001
"""Of a query's time, at its turn."""
MISSING_HEADER = "Galileo-Missing"
"""Of an answer over HTTP: the partitions that the graph lacks. Without it the graph is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Where an endpoint listens, and its limits.

    Attributes:
        host: address to listen on.
        port: 0 for any that is free.
        public: whether `host` may be another than a loopback address.
        timeout_s: of a query, waiting for its turn included.
        rows_max: solutions or triples of an answer.
        queries_max: queries that run or wait; of more, the latest of the host that has the most are
            told to come back.
        connections_max: clients that are connected; of more, those go that let the server wait
            longest, and where none does, more are told to come back.
        answers_mib_max: of answers that are being taken, together; beyond, clients go that are slow
            at it. One alone may be larger.
        idle_timeout_s: for a client's request, all of it; for taking the answer; and for the time
            between.
        cors: an origin whose pages may ask, "*" for all; empty for none.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    public: bool = False
    timeout_s: float = TIMEOUT_S
    rows_max: int = ROWS_MAX
    queries_max: int = QUERIES_MAX
    connections_max: int = CONNECTIONS_MAX
    answers_mib_max: int = ANSWERS_MIB_MAX
    idle_timeout_s: float = IDLE_TIMEOUT_S
    cors: str = ""

    def __post_init__(self) -> None:
        if not self.public and not is_loopback(self.host):
            raise ConfigError(
                f"expected a loopback address, since anybody who reaches the endpoint may ask, got "
                f"{self.host!r}; serve a trusted network all the same with public (--public)"
            )
        if min(self.queries_max, self.connections_max, self.answers_mib_max) < 1:
            raise InputError("expected room for at least one query, one connection and 1 MiB")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back; `missing` names the partitions that the graph lacks."""

    media_type: str
    body: bytes
    missing: tuple[int, ...] = ()


@dataclass(slots=True)
class Service:
    """What all connections share."""

    graph: OpenGraph
    options: EndpointOptions
    url: str = ""
    stopping: Cancellation = field(default_factory=Cancellation)
    disconnects: Disconnects = field(default_factory=Disconnects)
    turns: FairQueue = field(init=False)

    def __post_init__(self) -> None:
        self.turns = FairQueue(self.options.queries_max)

    def answer(self, request: Request, connection: socket.socket, *, host: str) -> Answer:
        """The answer to a request of a host's."""
        self._check_host(request.headers.get("host", ""))
        accept = request.headers.get("accept", "")
        wanted = protocol.parse_request(request)
        if isinstance(wanted, DescriptionRequest):
            media_type, form = protocol.negotiate(accept, "triples")
            return Answer(media_type, self._told(wanted, form))
        with self._turn(connection, host) as ask:
            result = ask(wanted.text)
            # Within the turn: so one answer at a time is there both as it came and as it goes.
            media_type, form = protocol.negotiate(accept, result.kind)
            return Answer(media_type, result.serialise(form), result.missing)

    def stop(self) -> None:
        """Ends the queries that run, and waits until they have."""
        self.stopping.cancel()
        self.turns.wait_until_empty(STOP_TIMEOUT_S)
        self.disconnects.close()

    def _told(self, wanted: DescriptionRequest, form: str) -> bytes:
        if wanted.what == "service":
            return to_rdf.written(protocol.service_description(self.url), format=form)
        text = ontology().encode()
        return text if form == "turtle" else to_rdf.written(to_rdf.lines(text), format=form)

    @contextmanager
    def _turn(
        self, connection: socket.socket, host: str
    ) -> Iterator[Callable[[str], SparqlResult]]:
        """A turn, which ends where the client hangs up; what asks a query in what is left of it."""
        cancel = Cancellation()
        until = time.monotonic() + self.options.timeout_s

        def ask(text: str) -> SparqlResult:
            return self.graph.sparql(
                text,
                timeout_s=max(LEFT_MIN_S, until - time.monotonic()),
                rows_max=self.options.rows_max,
                cancel=cancel,
            )

        try:
            with (
                self.disconnects.calling(connection, cancel.cancel),
                self.stopping.calling(cancel.cancel),
                self.turns.acquire(host, until=until, cancel=cancel),
            ):
                yield ask
        except Overloaded as error:
            retry = str(RETRY_AFTER_S)
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, error.message, Retry_After=retry
            ) from error
        except GalileoError as error:
            raise protocol.refusal(error) from error

    def _check_host(self, host: str) -> None:
        if not (self.options.public or names_this_machine(host, listening=self.options.host)):
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST, f"expected a host of this machine, got {host!r}"
            )
