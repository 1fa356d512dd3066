"""Observations that match exactly, found and read in one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import pyarrow as pa

from galileo.client.decode import ANSWER_TIMEOUT_S, ended
from galileo.client.transport import Transport
from galileo.errors import InputError
from galileo.model.schema import Schema
from galileo.wire.codec import table_of
from galileo.wire.pb import storage_pb2, storage_pb2_grpc


async def select(
    transport: Transport, schema: Schema, query: str, *, columns: Sequence[str]
) -> pa.Table:
    """The observations; see `AsyncClient.select`."""
    wanted = _answer_schema(schema, columns)
    request = storage_pb2.SelectRequest(dataset=schema.name, query=query, columns=columns)

    async def attempt(channel: grpc.aio.Channel) -> pa.Table:
        parts = [part async for part in _parts(channel, request)]
        return table_of([part.observations for part in parts if part.observations], wanted)

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
    """The parts of an answer up to its last one, behind which nobody waits for the end."""
    call: Any = storage_pb2_grpc.StorageStub(channel).Select(request, timeout=ANSWER_TIMEOUT_S)
    try:
        while (part := await call.read()) is not grpc.aio.EOF:
            yield part
            if part.last:
                return
        raise await ended(call)
    finally:
        call.cancel()


def _answer_schema(schema: Schema, columns: Sequence[str]) -> pa.Schema:
    if isinstance(columns, str):
        raise InputError(f"expected a list of columns, such as [{columns!r}], got {columns!r}")
    whole = schema.observation_schema
    unknown = [name for name in columns if name not in whole.names]
    if unknown:
        raise InputError(
            f"expected columns of dataset {schema.name!r}, of {', '.join(whole.names)}; "
            f"got {', '.join(unknown)}"
        )
    return pa.schema([whole.field(name) for name in columns]) if columns else whole
