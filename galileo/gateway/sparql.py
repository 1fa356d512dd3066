"""SPARQL queries of the labels of a dataset, with the rights of the caller.

Each request makes a graph of the labels that its filter matches, and drops it afterwards.
`galileo sparql serve` keeps one graph for all of its clients.
"""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.errors import InputError, Overloaded
from galileo.gateway import parameters
from galileo.gateway.callers import CALLER
from galileo.query.builder import Condition
from galileo.rdf import protocol
from galileo.rdf.endpoint import body_of
from galileo.rdf.graphs import ROWS_MAX, LabelGraph
from galileo.rdf.protocol import QueryRequest
from galileo.rdf.service import Answer, QueryRunner
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
LOOK_S = 0.1
"""How often a query that runs looks whether other callers wait."""


class SparqlQueries:
    """Answers queries, one at a time; belongs to one event loop.

    Among n callers that have or want a turn, one that has run for 1/(2 n) of the time of a request
    is stopped. So the caller that has the last turn of a round still has half of the time.
    """

    def __init__(self) -> None:
        self._turns = FairTurns(
            1, what="SPARQL queries", first_turn_s=FIRST_TURN_S, waiting_max=QUERIES_MAX - 1
        )
        self._runner = QueryRunner()

    def stop(self) -> None:
        self._runner.stop()
        self._turns.close()

    async def answer(self, request: Request, client: AsyncClient, dataset: str) -> Response:
        """The answer to a request of the SPARQL 1.1 Protocol.

        Raises:
            GalileoError: the query fails, or its filter.
            Refused: the request is not one of the protocol.
        """
        until = time.monotonic() + TIMEOUT_S
        accept = request.headers.get("accept", "")
        text = await _query_text(request)
        condition = await parameters.filter_of(request.query_params)
        async with self._turns.acquire(CALLER.get(), within_s=TIMEOUT_S):
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
    ) -> Answer:
        graph = await _graph(client, dataset, condition)
        try:
            return await self._runner.run(graph, text, accept, until=until, rows_max=ROWS_MAX)
        finally:
            await asyncio.to_thread(graph.close)

    async def _within_share(self, query: asyncio.Task[Answer]) -> Answer:
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
    sent = protocol.Request(
        request.method, f"/sparql?{query}", request.headers, await body_of(request)
    )
    parsed = protocol.parse_request(sent)
    if not isinstance(parsed, QueryRequest):
        raise InputError("expected the parameter query, got none", parameter="query")
    return parsed.text


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
            "more; narrow it, or serve the graph by galileo sparql serve",
            parameter="filter",
            bound=LABELS_MAX,
        )
    return LabelGraph(labels, memory_bytes_max=MEMORY_BYTES_MAX)
