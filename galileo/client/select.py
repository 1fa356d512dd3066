"""Observations that match exactly, found and read in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pyarrow as pa

from galileo.client.decode import ANSWER_TIMEOUT_S, ended
from galileo.client.ingestion import Progress
from galileo.client.queries import of_total
from galileo.client.transport import Transport
from galileo.labels import marked
from galileo.model.rows import RowOptions, needed_columns, sorted_by_time
from galileo.model.schema import Schema
from galileo.packing.arrow_streams import read_stream
from galileo.wire.codec import table_of
from galileo.wire.v1 import storage_pb2, storage_pb2_grpc


async def select(
    transport: Transport,
    schema: Schema,
    query: str,
    *,
    options: RowOptions,
    require_complete: bool,
    progress: Progress | None = None,
) -> pa.Table:
    """The observations; see `AsyncClient.select`."""
    options.check(schema)
    names = options.names(schema)
    needed = dataclasses.replace(options, columns=needed_columns(names, options.order_by))
    request = storage_pb2.SelectRequest(
        dataset=schema.key,
        query=query,
        columns=needed.columns,
        limit=options.limit,
        order_by=options.order_by,
        partial=not require_complete,
    )

    report = of_total(progress)

    async def attempt(channel: grpc.aio.Channel) -> pa.Table:
        chunks, missing, rows = list[bytes](), list[int](), 0
        async for part in _parts(channel, request):
            missing.extend(part.missing)
            if part.observations:
                chunks.append(part.observations)
                if report is not None:
                    rows += read_stream(part.observations).num_rows
                    report(rows)
        table = sorted_by_time(table_of(chunks, needed.arrow_schema(schema)), options.order_by)
        return marked(table.select(names), missing)

    return await transport.call(attempt)


async def count(transport: Transport, dataset: str, query: str) -> int:
    """How many there are; see `AsyncClient.count`."""
    request = storage_pb2.SelectRequest(dataset=dataset, query=query, count_only=True)

    async def attempt(channel: grpc.aio.Channel) -> int:
        return sum([part.rows async for part in _parts(channel, request)])

    return await transport.call(attempt)


async def _parts(
    channel: grpc.aio.Channel, request: storage_pb2.SelectRequest
) -> AsyncIterator[storage_pb2.SelectPart]:
    """The parts of an answer up to the last one; does not wait for the end of the stream."""
    call: Any = storage_pb2_grpc.StorageStub(channel).Select(request, timeout=ANSWER_TIMEOUT_S)
    try:
        while (part := await call.read()) is not grpc.aio.EOF:
            yield part
            if part.last:
                return
        raise await ended(call)
    finally:
        call.cancel()
