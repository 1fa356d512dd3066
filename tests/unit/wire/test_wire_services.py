"""Stubs and handlers that are made from the descriptors of services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from partial_services import add_part

from galileo.wire.channel import open_blocking_channel, open_channel, server_options
from galileo.wire.services import CONTINUOUS, QUERY, STORAGE, add_service, stub_of
from galileo.wire.v1 import continuous_pb2, query_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk


class Store:
    """Sends the observations of the last batch back, and the token of each request of a watch."""

    def __init__(self) -> None:
        self.observations = pa.py_buffer(b"")

    async def Ingest(self, request: Bulk[storage_pb2.IngestRequest], context: Any) -> Any:
        self.observations = request.observations
        return storage_pb2.IngestReply(rows=request.head.batch)

    async def Select(self, request: storage_pb2.SelectRequest, context: Any) -> AsyncIterator[Any]:
        yield Bulk(storage_pb2.SelectPart(rows=request.limit, last=True), self.observations)

    async def Watch(self, request: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for one in request:
            yield continuous_pb2.FetchPart(tail=continuous_pb2.FetchTail(token=one.token))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = grpc.aio.server(options=server_options())
    store = Store()
    add_part(STORAGE, store, server)
    add_part(CONTINUOUS, store, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_stub_call_of_each_kind_is_answered(address: str) -> None:
    async with open_channel(address) as channel:
        storage, continuous = stub_of(STORAGE, channel), stub_of(CONTINUOUS, channel)
        batch = Bulk(storage_pb2.IngestRequest(batch=7), pa.py_buffer(b"rows"))
        assert (await storage.Ingest(batch)).rows == 7
        [part] = [part async for part in storage.Select(storage_pb2.SelectRequest(limit=3))]
        assert (part.head.rows, part.observations.to_pybytes()) == (3, b"rows")
        asked = [continuous_pb2.FetchRequest(token=token) for token in "ab"]
        assert [part.tail.token async for part in continuous.Watch(iter(asked))] == ["a", "b"]


async def test_stub_method_that_a_servicer_lacks_is_unimplemented(address: str) -> None:
    async with open_channel(address) as channel:
        for call in (
            stub_of(CONTINUOUS, channel).List(continuous_pb2.ListRequest()),
            stub_of(QUERY, channel).Run(query_pb2.QueryRequest()).read(),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_stub_has_the_methods_of_the_service() -> None:
    with open_blocking_channel("127.0.0.1:1") as channel:
        assert vars(stub_of(STORAGE, channel)).keys() == set(STORAGE.methods_by_name)
        assert channel.stub(STORAGE) is channel.stub(STORAGE)


async def test_add_service_without_a_method_raises() -> None:
    server = grpc.aio.server()
    with pytest.raises(AttributeError, match="Read"):
        add_service(STORAGE, Store(), server)
    await server.stop(None)
