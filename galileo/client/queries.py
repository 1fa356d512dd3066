"""Streams of labels and observations, of which the client holds one bounded piece at a time.

A piece is read from the connection when the caller asks for it, so a slow caller slows the nodes
down (flow control of HTTP/2) and fills neither memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from galileo.client import completeness, decode
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.ingestion import Progress
from galileo.client.interleaving import cancel_all, interleaved
from galileo.client.results import Labels, QueryEnd
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import IncompleteAnswer, TransientError, Unavailable
from galileo.labels import from_ipc, marked
from galileo.model.rows import RowOptions, in_order, needed_columns
from galileo.model.schema import Schema
from galileo.packing.arrow_streams import read_stream
from galileo.wire.caller import Caller, Connection, Stream
from galileo.wire.codec import cursor_from_pb, cursor_to_pb, table_of
from galileo.wire.services import QUERY, STORAGE
from galileo.wire.v1 import query_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

ENDPOINTS_AT_ONCE = 8
"""Owners whose parts of one answer are read at the same time."""
PART_S = 60.0
"""Time to the next part of a stream."""

Result = TypeVar("Result")


async def collect(
    caller: Caller,
    request: query_pb2.QueryRequest,
    *,
    require_complete: bool = False,
    progress: Progress | None = None,
) -> Labels:
    """All labels of a query; begins again if the node fails meanwhile.

    `progress` counts each label once, also after a new beginning.
    """
    report_total = of_total(progress)

    async def attempt(node: Connection) -> Labels:
        counts = dict[int, int]()

        def count(source: int, part: query_pb2.QueryPart | None) -> None:
            """Counts the labels of a part; None: its source begins again."""
            if report_total is not None:
                labels = read_stream(part.labels).num_rows if part and part.labels else 0
                counts[source] = counts.get(source, 0) + labels if part else 0
                report_total(sum(counts.values()))

        first = await _collect_parts(node, request, functools.partial(count, 0))
        head, endpoints = first[0].head, first[-1].tail.endpoints
        slots = asyncio.Semaphore(ENDPOINTS_AT_ONCE)

        async def collect_rest(number: int) -> list[query_pb2.QueryPart]:
            rest = _endpoint_request(head, endpoints[number])
            count_rest = functools.partial(count, number + 1)
            async with slots:
                return await caller.call_owner(
                    endpoints[number].address, lambda node: _collect_parts(node, rest, count_rest)
                )

        rests = [collect_rest(number) for number in range(len(endpoints))]
        return _labels_of([first, *await gather_or_cancel(rests)])

    return await completeness.call(caller, attempt, require_complete=require_complete)


def _run_query(
    node: Connection, request: query_pb2.QueryRequest, *, timeout_s: float | None = None
) -> Stream:
    return node.stream(QUERY, "Run", request, timeout_s=timeout_s, part_s=PART_S)


def _endpoint_request(
    head: query_pb2.QueryHead, endpoint: query_pb2.QueryEndpoint
) -> query_pb2.QueryRequest:
    """The request for a part of an answer that its owner gives."""
    schema = decode.schema_of(head.schema_json)
    return query_pb2.QueryRequest(
        dataset=schema.key,
        query=head.query_json,
        partitions=endpoint.partitions,
        added=schema.added,
    )


async def _collect_parts(
    node: Connection,
    request: query_pb2.QueryRequest,
    count: Callable[[query_pb2.QueryPart | None], None],
) -> list[query_pb2.QueryPart]:
    """The parts of one node's answer; `count` gets None at first, then each of them."""
    parts = list[query_pb2.QueryPart]()
    count(None)
    with _run_query(node, request, timeout_s=ANSWER_S) as stream:
        while not parts or not parts[-1].HasField("tail"):
            parts.append(await stream.next())
            count(parts[-1])
    return parts


def _labels_of(answers: Sequence[Sequence[query_pb2.QueryPart]]) -> Labels:
    """The labels of answers, the first of which has the head."""
    head = answers[0][0].head
    schema = decode.schema_of(head.schema_json)
    chunks = [part.labels for parts in answers for part in parts if part.labels]
    labels = Labels(schema, table_of(chunks, schema.label_schema), query=head.query_json)
    end = _end([parts[-1].tail for parts in answers], labels=len(labels))
    # A node that failed midway may have sent labels of partitions that now count as missing.
    known = labels if end.complete else end.known(labels)
    answer: Labels = known.answering(  # type: ignore[assignment]
        frontier=end.frontier, missing=end.missing, query=head.query_json
    )
    return answer


def of_total(progress: Progress | None) -> Progress | None:
    """A function of a running total that calls `progress` with the increase.

    A repeated attempt thus reports nothing twice.
    """
    if progress is None:
        return None
    reported = 0

    def report(total: int) -> None:
        nonlocal reported
        if total > reported:
            reported, new = total, total - reported
            progress(new)

    return report


async def with_progress(
    pieces: AsyncIterator[pa.Table], progress: Progress | None
) -> AsyncIterator[pa.Table]:
    """Yields the pieces, and calls `progress` with the rows of each."""
    async for piece in pieces:
        if progress is not None:
            progress(piece.num_rows)
        yield piece


class LabelBatches:
    """The labels of one query in bounded batches, in no particular order; an iterator.

    Before the first labels the client retries at other nodes. After that an error ends the
    stream, since labels were returned already; repeat the query then.

    Args:
        caller: of the cluster.
        request: builds the request, when the first labels are read.
        require_complete: whether a partial answer ends with `IncompleteAnswer`.

    Attributes:
        end: frontier and missing partitions; None before the last labels.
        schema: of the dataset; None before the first labels.
    """

    def __init__(
        self,
        caller: Caller,
        request: Callable[[], Awaitable[query_pb2.QueryRequest]],
        *,
        require_complete: bool = False,
    ) -> None:
        self._state = _StreamState(require_complete)
        # The generator has no reference to this object: dropped half-read, both are freed at once,
        # without the collector of cycles, and the call at the node is cancelled.
        self._labels = _run(caller, request, self._state)

    @property
    def end(self) -> QueryEnd | None:
        """Frontier and missing partitions; None before the last labels."""
        return self._state.end

    @property
    def schema(self) -> Schema | None:
        """The schema of the dataset; None before the first labels."""
        return self._state.schema

    def __aiter__(self) -> LabelBatches:
        return self

    async def __anext__(self) -> Labels:
        return await anext(self._labels)

    async def aclose(self) -> None:
        """Cancels the call at the node; a second call does nothing.

        Example:
            >>> async with galileo.AsyncClient("127.0.0.1:7701") as client:
            ...     batches = client.query_batches("weather")
            ...     first = await anext(batches)
            ...     await batches.aclose()
        """
        await self._labels.aclose()


@dataclass(slots=True)
class _StreamState:
    """The state of a stream of labels."""

    require_complete: bool = False
    end: QueryEnd | None = None
    schema: Schema | None = None
    given: int = 0

    def broken(self, error: TransientError) -> Unavailable:
        return Unavailable(
            f"the answer broke off after {self.given:,} labels ({error.message}); drop them and "
            "repeat the query",
            labels=self.given,
        )


async def _run(
    caller: Caller,
    make_request: Callable[[], Awaitable[query_pb2.QueryRequest]],
    state: _StreamState,
) -> AsyncGenerator[Labels, None]:
    request = await make_request()
    stream, part = await caller.open(functools.partial(_run_query, request=request), Stream.next)
    head = part.head
    schema = state.schema = decode.schema_of(head.schema_json)
    with stream:
        try:
            while True:
                if part.labels:
                    table = from_ipc(part.labels, schema.label_schema)
                    state.given += table.num_rows
                    yield Labels(schema, table, query=head.query_json)
                if part.HasField("tail"):
                    break
                part = await stream.next()
            tails = [part.tail]
            async with aclosing(_endpoint_parts(caller, head, part.tail.endpoints)) as parts:
                async for part in parts:
                    if part.labels:
                        table = from_ipc(part.labels, schema.label_schema)
                        state.given += table.num_rows
                        yield Labels(schema, table, query=head.query_json)
                    if part.HasField("tail"):
                        tails.append(part.tail)
        except TransientError as error:
            raise state.broken(error) from error
    state.end = _end(tails, labels=state.given)
    if state.require_complete:
        completeness.check_complete(state.end)


def _endpoint_parts(
    caller: Caller, head: query_pb2.QueryHead, endpoints: Sequence[query_pb2.QueryEndpoint]
) -> AsyncGenerator[query_pb2.QueryPart, None]:
    """The parts of the answers of owners as they arrive, each with a tail at its end."""
    answers = (_endpoint_answer(caller, head, endpoint) for endpoint in endpoints)
    return interleaved(answers, at_once=min(ENDPOINTS_AT_ONCE, len(endpoints)))


async def _endpoint_answer(
    caller: Caller, head: query_pb2.QueryHead, endpoint: query_pb2.QueryEndpoint
) -> AsyncGenerator[query_pb2.QueryPart, None]:
    """The parts of one answer; the partitions of a node that is lost midway are missing."""
    opening = functools.partial(_run_query, request=_endpoint_request(head, endpoint))
    stream, part = await caller.open(opening, Stream.next, owner=endpoint.address)
    with stream:
        try:
            while not part.HasField("tail"):
                yield part
                part = await stream.next()
        except TransientError:
            part = query_pb2.QueryPart(tail=query_pb2.QueryTail(missing=endpoint.partitions))
        yield part


async def select(
    caller: Caller,
    schema: Schema,
    query: str,
    *,
    options: RowOptions,
    require_complete: bool,
    progress: Progress | None = None,
    at: Cursor | None = None,
) -> pa.Table:
    """The observations; see `AsyncClient.select`."""
    options.check(schema)
    names = options.names(schema)
    needed = dataclasses.replace(options, columns=needed_columns(names, options.ordered))
    request = _select_request(schema, query, needed, require_complete=require_complete, at=at)
    report = of_total(progress)

    async def attempt(node: Connection) -> pa.Table:
        chunks, missing, rows = list[pa.Buffer](), list[int](), 0
        async for part in _select_parts(node, request):
            missing.extend(part.head.missing)
            if part.observations.size:
                chunks.append(part.observations)
                if report is not None:
                    rows += read_stream(part.observations).num_rows
                    report(rows)
        table = in_order(table_of(chunks, needed.described_schema(schema)), options)
        return marked(table.select(names), missing)

    return await caller.call(attempt)


async def select_batches(
    caller: Caller, schema: Schema, query: str, *, options: RowOptions, at: Cursor | None = None
) -> AsyncGenerator[pa.Table, None]:
    """The observations in pieces; see `AsyncClient.select_batches`."""
    options.check(schema)
    request = _select_request(schema, query, options, require_complete=True, at=at)
    arrow_schema, rows = options.described_schema(schema), 0
    stream, part = await caller.open(
        lambda node: node.stream(STORAGE, "Select", request, part_s=PART_S),
        Stream.next,
    )
    with stream:
        try:
            while True:
                observations, is_last = part.observations, part.head.last
                del part  # It has the observations once more, and the caller may wait for long.
                if observations.size:
                    table = from_ipc(observations, arrow_schema)
                    rows += table.num_rows
                    yield table
                if is_last:
                    return
                part = await stream.next()
        except TransientError as error:
            if isinstance(error, IncompleteAnswer):
                raise
            raise Unavailable(
                f"the answer broke off after {rows:,} observations ({error.message}); drop them "
                "and repeat the call"
            ) from error


def _select_request(
    schema: Schema,
    query: str,
    options: RowOptions,
    *,
    require_complete: bool,
    at: Cursor | None = None,
) -> storage_pb2.SelectRequest:
    scope = None if at is None else storage_pb2.SelectScope(partitions=at, until=cursor_to_pb(at))
    return storage_pb2.SelectRequest(
        commits=scope,
        dataset=schema.key,
        query=query,
        columns=options.columns,
        limit=options.limit,
        order_by=options.order_by,
        partial=not require_complete,
        added=schema.added,
    )


async def count(caller: Caller, dataset: str, query: str) -> int:
    """How many there are; see `AsyncClient.count`."""
    request = storage_pb2.SelectRequest(dataset=dataset, query=query, count_only=True)

    async def attempt(node: Connection) -> int:
        return sum([part.head.rows async for part in _select_parts(node, request)])

    return await caller.call(attempt)


async def _select_parts(
    node: Connection, request: storage_pb2.SelectRequest
) -> AsyncIterator[Bulk[storage_pb2.SelectPart]]:
    """The parts of an answer up to the last one; does not wait for the end of the stream."""
    with node.stream(STORAGE, "Select", request, timeout_s=ANSWER_S) as stream:
        while True:
            part = await stream.next()
            yield part
            if part.head.last:
                return


def _end(tails: Sequence[query_pb2.QueryTail], *, labels: int) -> QueryEnd:
    missing = tuple(sorted({partition for tail in tails for partition in tail.missing}))
    frontiers = (cursor_from_pb(tail.frontier) for tail in tails)
    frontier = functools.reduce(Cursor.join, frontiers, EMPTY_CURSOR)
    return QueryEnd(labels=labels, frontier=frontier, missing=missing)


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results in the order of the calls; if one fails, cancels the others first."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)
