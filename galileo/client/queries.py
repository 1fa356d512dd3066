"""Streams of labels and observations, of which the client holds one bounded piece at a time.

A piece is read from the connection when the caller asks for it, so a slow caller slows the nodes
down (flow control of HTTP/2) and fills neither memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
import numpy as np
import pyarrow as pa

from galileo.client import completeness, decode
from galileo.client.ingestion import Progress
from galileo.client.results import Labels, QueryEnd
from galileo.client.transport import PAUSE_S, Transport
from galileo.errors import DeadlineExceeded, GalileoError, InputError, TransientError, Unavailable
from galileo.labels import LabelSet, from_ipc, marked
from galileo.model.rows import RowOptions, needed_columns, sorted_by_time
from galileo.model.schema import Schema
from galileo.packing.arrow_streams import read_stream
from galileo.wire.codec import cursor_from_pb, table_chunks, table_of
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import query_pb2, query_pb2_grpc, storage_pb2, storage_pb2_grpc

PARTS_PER_READ = 100_000
PART_TIMEOUT_S = 60.0
"""For the next part of a stream."""
STREAM_TIMEOUT_S = 86_400.0
"""For a whole stream, with the pauses of its reader."""

_Opened: TypeAlias = tuple[Any, Any]


async def collect(
    transport: Transport,
    request: query_pb2.QueryRequest,
    *,
    require_complete: bool = False,
    progress: Progress | None = None,
) -> Labels:
    """All labels of a query; begins again if the node fails meanwhile.

    `progress` counts each label once, also after a new beginning.
    """
    report_total = of_total(progress)

    async def attempt(channel: grpc.aio.Channel) -> Labels:
        call = query_pb2_grpc.QueryStub(channel).Run(request, timeout=decode.ANSWER_TIMEOUT_S)
        try:
            return await _collect_parts(call, report_total)
        finally:
            call.cancel()

    return await completeness.call(transport, attempt, require_complete=require_complete)


async def _collect_parts(call: Any, report_total: Progress | None) -> Labels:
    parts, labels_read = [await _next(call)], 0
    while True:
        if report_total is not None and parts[-1].labels:
            labels_read += read_stream(parts[-1].labels).num_rows
            report_total(labels_read)
        if parts[-1].HasField("tail"):
            break
        parts.append(await _next(call))
    head, part = parts[0].head, parts[-1]
    schema = decode.schema_of(head.schema_json)
    table = table_of([part.labels for part in parts if part.labels], schema.label_schema)
    labels = Labels(schema, table, query=head.query_json)
    end = _end(part.tail, labels=len(labels))
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
        transport: to the cluster.
        request: builds the request, when the first labels are read.
        require_complete: whether a partial answer ends with `IncompleteAnswer`.

    Attributes:
        end: frontier and missing partitions; None before the last labels.
        schema: of the dataset; None before the first labels.
    """

    def __init__(
        self,
        transport: Transport,
        request: Callable[[], Awaitable[query_pb2.QueryRequest]],
        *,
        require_complete: bool = False,
    ) -> None:
        self._state = _StreamState(require_complete)
        # The generator has no reference to this object: dropped half-read, both are freed at once,
        # without the collector of cycles, and the call at the node is cancelled.
        self._labels = _run(transport, request, self._state)

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

    def broken(self, error: grpc.RpcError | TransientError) -> GalileoError:
        failure = _to_error(error)
        if not isinstance(failure, TransientError):
            return failure
        return Unavailable(
            f"the answer broke off after {self.given:,} labels ({failure.message}); drop them and "
            "repeat the query",
            labels=self.given,
        )


async def _run(
    transport: Transport,
    made: Callable[[], Awaitable[query_pb2.QueryRequest]],
    state: _StreamState,
) -> AsyncGenerator[Labels, None]:
    request = await made()
    call, part = await transport.open(functools.partial(_open, request))
    head = part.head
    schema = state.schema = decode.schema_of(head.schema_json)
    try:
        while True:
            if part.labels:
                table = from_ipc(part.labels, schema.label_schema)
                state.given += table.num_rows
                yield Labels(schema, table, query=head.query_json)
            if part.HasField("tail"):
                break
            part = await _next(call)
        state.end = _end(part.tail, labels=state.given)
    except (grpc.RpcError, TransientError) as error:
        raise state.broken(error) from error
    finally:
        call.cancel()
    if state.require_complete:
        completeness.check_complete(state.end)


async def _open(request: query_pb2.QueryRequest, channel: grpc.aio.Channel) -> _Opened:
    call = query_pb2_grpc.QueryStub(channel).Run(request, timeout=STREAM_TIMEOUT_S)
    try:
        return call, await _next(call)
    except BaseException:
        call.cancel()
        raise


async def read(
    transport: Transport,
    labels: LabelSet,
    *,
    exact: bool,
    options: RowOptions,
    progress: Progress | None,
) -> pa.Table:
    """The observations behind labels; see `AsyncClient.read`."""
    schema = labels.schema
    options.check(schema)
    needed = dataclasses.replace(
        options, columns=needed_columns(options.names(schema), options.order_by)
    )
    pieces = read_batches(transport, labels, exact=exact, options=needed)
    tables = [table async for table in with_progress(pieces, progress)]
    whole = pa.concat_tables([needed.arrow_schema(schema).empty_table(), *tables])
    first = sorted_by_time(whole, options.order_by).slice(0, options.limit)
    return marked(first.select(options.names(schema)), labels.missing)


async def read_batches(
    transport: Transport, labels: LabelSet, *, exact: bool, options: RowOptions
) -> AsyncGenerator[pa.Table, None]:
    """The observations behind labels in pieces; see `AsyncClient.read_batches`.

    With an order each piece is sorted, but not all of them together.
    """
    options.check(labels.schema)
    left = options.limit
    parts = await asyncio.to_thread(_parts, labels)
    for chunk in table_chunks(parts, PARTS_PER_READ):
        if left == 0:
            return
        request = storage_pb2.ReadRequest(
            dataset=labels.schema.key,
            parts=chunk,
            query_json=labels.query if exact else "",
            columns=options.columns,
            limit=left,
            order_by=options.order_by,
        )
        reading = _Reading(transport, request, options.arrow_schema(labels.schema))
        async with aclosing(reading.tables()) as tables:
            async for table in tables:
                if left is not None and not options.order_by:
                    left -= table.num_rows
                yield table


def check_labels(labels: object, *others: object) -> None:
    """Raises InputError if the arguments of `read` are not labels."""
    if isinstance(labels, LabelSet) and not others:
        return
    given = " and ".join(f"a {type(one).__name__}" for one in (labels, *others))
    raise InputError(
        f"expected labels, as query returns them, got {given}; use "
        "client.select(dataset, query), which finds and reads observations in one call"
    )


def _parts(labels: LabelSet) -> pa.Table:
    """The commits and rows to read, in the order in which nodes send them."""
    order = np.lexsort((labels.rows, labels.sequences, labels.partitions))
    return labels.table.select(["partition", "sequence", "row", "rows"]).take(pa.array(order))


class _Reading:
    """A read that resumes at another node after an error.

    All nodes send the same rows in the same order, so the number of rows read is the position.
    """

    def __init__(
        self, transport: Transport, request: storage_pb2.ReadRequest, schema: pa.Schema
    ) -> None:
        self._transport = transport
        self._request = request
        self._schema = schema
        self._rows_read = 0

    async def tables(self) -> AsyncGenerator[pa.Table, None]:
        """All rows once; raises after the transport's timeout without a new row."""
        patience_s = self._transport.patience_s
        given, deadline = 0, time.monotonic() + patience_s
        while True:
            try:
                async with aclosing(self._rest()) as tables:
                    async for table in tables:
                        yield table
                return
            except (grpc.RpcError, TransientError) as error:
                failure = _to_error(error)
                if self._rows_read > given:
                    given, deadline = self._rows_read, time.monotonic() + patience_s
                if not isinstance(failure, TransientError) or time.monotonic() > deadline:
                    raise failure from error
                await asyncio.sleep(PAUSE_S)

    async def _rest(self) -> AsyncGenerator[pa.Table, None]:
        call, part = await self._transport.open(self._open)
        skip = self._rows_read
        try:
            while part is not grpc.aio.EOF:
                table = from_ipc(part.observations, self._schema)
                skip, fresh = max(0, skip - table.num_rows), table.slice(skip)
                if fresh.num_rows:
                    self._rows_read += fresh.num_rows
                    yield fresh
                part = await _read(call)
        finally:
            call.cancel()

    async def _open(self, channel: grpc.aio.Channel) -> _Opened:
        call = storage_pb2_grpc.StorageStub(channel).Read(self._request, timeout=STREAM_TIMEOUT_S)
        try:
            return call, await _read(call)
        except BaseException:
            call.cancel()
            raise


async def _read(call: Any) -> Any:
    """The next part of a stream, or `EOF`, in time."""
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            return await call.read()
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"the node sent nothing for {PART_TIMEOUT_S:g} s; try again"
        ) from error


async def _next(call: Any) -> Any:
    """The next part of a stream that ends with its tail, in time."""
    part = await _read(call)
    if part is grpc.aio.EOF:
        raise await decode.ended(call)
    return part


def _to_error(error: grpc.RpcError | GalileoError) -> GalileoError:
    return error if isinstance(error, GalileoError) else error_of_rpc(error, asked="the node")


def _end(tail: query_pb2.QueryTail, *, labels: int) -> QueryEnd:
    missing = tuple(sorted(tail.missing))
    return QueryEnd(labels=labels, frontier=cursor_from_pb(tail.frontier), missing=missing)
