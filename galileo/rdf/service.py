"""Handles the requests of an endpoint: checks the host, waits for a turn, queries, serialises."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus

from galileo.errors import ConfigError, GalileoError, InputError, Overloaded
from galileo.http_serving.hosts import is_loopback, names_this_machine
from galileo.rdf import protocol, to_rdf
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.graphs import ROWS_MAX, TIMEOUT_S, OpenGraph
from galileo.rdf.protocol import DescriptionRequest, Refused, Request
from galileo.rdf.terms import ontology
from galileo.turns import FairTurns

PORT = 7780
QUERIES_MAX = 8
CONNECTIONS_MAX = 64
IDLE_TIMEOUT_S = 30.0
"""The time for a client to send its request, to read the answer, and between two requests."""
ANSWERS_MIB_MAX = 256
RETRY_AFTER_S = 1
LEFT_MIN_S = 0.001
"""The minimum time limit of a query at its turn."""
MISSING_HEADER = "Galileo-Missing"
"""Response header with the partitions that the graph lacks; absent if it is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Where an endpoint listens, and its limits.

    Attributes:
        host: address to listen on.
        port: 0 for any free one.
        public: allows a `host` that is not a loopback address.
        timeout_s: for a query, including the wait for its turn.
        rows_max: solutions or triples of an answer.
        queries_max: queries that run or wait; beyond it, the latest queries of the host with the
            most are refused with 503.
        connections_max: connected clients; beyond it, the client that has been idle longest is
            disconnected, and if none is idle, new ones are refused with 503.
        answers_mib_max: total of the answers that clients are reading; beyond it, slow clients are
            disconnected. A single answer can be larger.
        idle_timeout_s: for a client to send a request, to read the answer, and between the two.
        cors: origin whose pages may send requests, "*" for all; empty for none.
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
                "expected a loopback address, since the endpoint does not authenticate clients, "
                f"got {self.host!r}",
                remedy="public",
                expected="loopback",
            )
        if min(self.queries_max, self.connections_max, self.answers_mib_max) < 1:
            raise InputError(
                "expected room for at least one query, one connection and 1 MiB", expected="room"
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; `missing` are the partitions that the graph lacks."""

    media_type: str
    body: bytes
    missing: tuple[int, ...] = ()


class QueryRunner:
    """Runs queries in threads; belongs to one event loop."""

    def __init__(self) -> None:
        self._stopping = Cancellation()
        # One query at a time, and another one that was cancelled and ends.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="galileo-sparql")

    async def run(
        self, graph: OpenGraph, text: str, accept: str, *, until: float, rows_max: int
    ) -> Answer:
        """The answer to a query; a cancelled task cancels it, and waits until it has ended.

        Args:
            graph: that is asked.
            text: of the query.
            accept: the `Accept` header of the client.
            until: deadline, by the monotonic clock.
            rows_max: solutions or triples of the answer.

        Raises:
            Refused: the client accepts no format of the answer.
            GalileoError: of the query.
        """
        cancel = Cancellation()

        def query() -> Answer:
            timeout_s = max(LEFT_MIN_S, until - time.monotonic())
            result = graph.sparql(text, timeout_s=timeout_s, rows_max=rows_max, cancel=cancel)
            # Within the turn, so that one answer at a time is in memory in two formats.
            media_type, form = protocol.negotiate(accept, result.kind)
            return Answer(media_type, result.serialise(form), result.missing)

        with self._stopping.calling(cancel.cancel):
            running = asyncio.get_running_loop().run_in_executor(self._threads, query)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                cancel.cancel()
                await asyncio.wait([running])
                raise

    def stop(self) -> None:
        """Cancels all queries."""
        self._stopping.cancel()
        self._threads.shutdown(wait=False)


class Service:
    """The queries of all connections of an endpoint; belongs to one event loop.

    Args:
        graph: that is asked.
        options: limits.
        url: of the endpoint.
    """

    def __init__(self, graph: OpenGraph, options: EndpointOptions, *, url: str) -> None:
        self.graph = graph
        self.options = options
        self.url = url
        self.turns = FairTurns(1, what="queries", waiting_max=options.queries_max - 1)
        self._runner = QueryRunner()

    async def answer(self, request: Request, *, host: str) -> Answer:
        """Answers a request of a host; cancelling the task cancels the query. Raises Refused."""
        self._check_host(request.headers.get("host", ""))
        accept = request.headers.get("accept", "")
        parsed = protocol.parse_request(request)
        if isinstance(parsed, DescriptionRequest):
            media_type, form = protocol.negotiate(accept, "triples")
            return Answer(media_type, await asyncio.to_thread(self._describe, parsed, form))
        until = time.monotonic() + self.options.timeout_s
        try:
            async with self.turns.acquire(host, within_s=self.options.timeout_s):
                return await self._runner.run(
                    self.graph, parsed.text, accept, until=until, rows_max=self.options.rows_max
                )
        except Overloaded as error:
            retry = str(RETRY_AFTER_S)
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, error.message, Retry_After=retry
            ) from error
        except GalileoError as error:
            raise protocol.refusal(error) from error

    def stop(self) -> None:
        """Cancels the query that runs and those that wait; on the event loop."""
        self._runner.stop()
        self.turns.close()

    def _describe(self, request: DescriptionRequest, form: str) -> bytes:
        if request.what == "service":
            return to_rdf.convert(protocol.service_description(self.url), format=form)
        text = ontology().encode()
        return (
            text
            if form == "turtle"
            else to_rdf.convert(to_rdf.turtle_to_ntriples(text), format=form)
        )

    def _check_host(self, host: str) -> None:
        if not (self.options.public or names_this_machine(host, listening=self.options.host)):
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST, f"expected a host of this machine, got {host!r}"
            )
