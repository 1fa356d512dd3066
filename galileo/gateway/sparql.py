"""SPARQL queries of the labels of a dataset, with the rights of the caller.

Each request makes a graph of the labels that its filter matches, and drops it afterwards.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.errors import InputError, Overloaded
from galileo.gateway import parameters, sparql_protocol
from galileo.gateway.callers import Callers
from galileo.gateway.formats import Encoders
from galileo.gateway.request_bodies import document_of
from galileo.gateway.route_group import RouteGroup
from galileo.query.builder import Condition
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.graphs import ROWS_MAX, LabelGraph
from galileo.shares import SHARE_HOLDER
from galileo.turns import FairTurns

LABELS_MAX = 100_000
"""Labels of a graph; it takes some seconds to make one of so many."""
MEMORY_BYTES_MAX = 1 << 30
TIMEOUT_S = 30.0
"""For a request, with the wait for its turn."""
QUERIES_MAX = 256
"""Queries that run or wait; one of them runs."""
FIRST_TURN_S = 1.0
"""Expected time of the first query of a caller: callers with known short ones go before it."""
LEFT_MIN_S = 0.001
"""The minimum time limit of a query at its turn."""
LOOK_S = 0.1
"""How often a query that runs looks whether other callers wait."""


@dataclass(frozen=True, slots=True)
class SparqlAnswer:
    """A serialised answer."""

    media_type: str
    body: bytes


class SparqlRoutes(RouteGroup):
    """Answers queries, one at a time.

    Among n callers that have or want a turn, one that has run for 1/(2 n) of the time of a request
    is stopped. So the caller that has the last turn of a round still has half of the time.
    """

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        super().__init__(callers, encoders)
        self._turns = FairTurns(
            1, what="SPARQL queries", first_turn_s=FIRST_TURN_S, waiting_max=QUERIES_MAX - 1
        )
        self._stopping = Cancellation()
        # One query at a time, and another one that was cancelled and ends.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="galileo-sparql")

    def stop(self) -> None:
        """Cancels the query that runs and those that wait."""
        self._stopping.cancel()
        self._threads.shutdown(wait=False)
        self._turns.close()

    async def sparql(self, request: Request) -> Response:
        async with self._callers.client(request) as client:
            return await self._answer(request, client)

    async def _answer(self, request: Request, client: AsyncClient) -> Response:
        """The answer to a request of the SPARQL 1.1 Protocol.

        Raises:
            GalileoError: the query fails, or its filter.
            Refused: the request is not one of the protocol.
        """
        until = time.monotonic() + TIMEOUT_S
        accept = request.headers.get("accept", "")
        text = await _query_text(request)
        condition = await parameters.filter_of(request.query_params)
        dataset = request.path_params["collectionId"]
        async with self._turns.acquire(SHARE_HOLDER.get(), within_s=TIMEOUT_S):
            query = self._query(client, dataset, condition, text, accept=accept, until=until)
            answer = await self._within_share(asyncio.create_task(query))
        charset = "; charset=utf-8" if answer.media_type.startswith("text/") else ""
        headers = {"Content-Type": answer.media_type + charset, "Vary": "Accept"}
        return Response(answer.body, headers=headers)

    async def _query(
        self,
        client: AsyncClient,
        dataset: str,
        condition: Condition | None,
        text: str,
        *,
        accept: str,
        until: float,
    ) -> SparqlAnswer:
        graph = await _graph(client, dataset, condition)
        try:
            return await self._run(graph, text, accept, until=until)
        finally:
            await asyncio.to_thread(graph.close)

    async def _run(
        self, graph: LabelGraph, text: str, accept: str, *, until: float
    ) -> SparqlAnswer:
        """The answer of a graph; a cancelled task cancels its query, and waits until it has ended.

        Args:
            graph: that is asked.
            text: of the query.
            accept: the `Accept` header of the client.
            until: deadline, by the monotonic clock.

        Raises:
            Refused: the client accepts no format of the answer.
            GalileoError: of the query.
        """
        cancel = Cancellation()

        def query() -> SparqlAnswer:
            timeout_s = max(LEFT_MIN_S, until - time.monotonic())
            result = graph.sparql(text, timeout_s=timeout_s, rows_max=ROWS_MAX, cancel=cancel)
            # Within the turn, so that one answer at a time is in memory in two formats.
            media_type, form = sparql_protocol.negotiate(accept, result.kind)
            return SparqlAnswer(media_type, result.serialise(form))

        with self._stopping.calling(cancel.cancel):
            running = asyncio.get_running_loop().run_in_executor(self._threads, query)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                cancel.cancel()
                await asyncio.wait([running])
                raise

    async def _within_share(self, query: asyncio.Task[SparqlAnswer]) -> SparqlAnswer:
        """The answer of a query; ends it when it has run longer than its part of the time."""
        since = time.monotonic()
        try:
            while not query.done():
                await asyncio.wait([query], timeout=LOOK_S)
                part_s = TIMEOUT_S / (2 * self._turns.callers)
                if self._turns.callers > 1 and time.monotonic() - since > part_s:
                    break
        finally:
            query.cancel()
            await asyncio.wait([query])
        if query.cancelled():
            raise Overloaded(
                f"the query ran for {part_s:.3g} s, its part of the time while others wait; narrow "
                "it, or try again later",
                bound=part_s,
            )
        return query.result()


async def _query_text(request: Request) -> str:
    query = request.scope["query_string"].decode("ascii", "replace")
    body = await document_of(request)
    return sparql_protocol.query_text(
        sparql_protocol.Request(request.method, query, request.headers, body)
    )


async def _graph(client: AsyncClient, dataset: str, condition: Condition | None) -> LabelGraph:
    """The graph of the labels that match.

    Raises:
        InputError: there are too many.
        IncompleteAnswer: a node cannot be reached.
    """
    labels = await client.query(
        dataset, "" if condition is None else condition, limit=LABELS_MAX + 1, require_complete=True
    )
    if len(labels) > LABELS_MAX:
        raise InputError(
            f"expected a filter that matches at most {LABELS_MAX:,} labels, got one that matches "
            "more; narrow it, or run galileo sparql query",
            parameter="filter",
            bound=LABELS_MAX,
        )
    return LabelGraph(labels, memory_bytes_max=MEMORY_BYTES_MAX)
