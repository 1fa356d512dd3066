"""Calls that are made together, of which one fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from galileo.client import AsyncClient
from galileo.client.bulk_fetch import gather_or_cancel
from galileo.errors import InvalidToken
from galileo.rpc.error_mapping import streaming
from galileo.wire.channel import server_options
from galileo.wire.v1 import cluster_pb2_grpc, continuous_pb2, continuous_pb2_grpc


async def test_gather_or_cancel_cancels_the_others_after_a_failure() -> None:
    over = []

    async def endless(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append(number)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise InvalidToken("made up")

    with pytest.raises(InvalidToken):
        await gather_or_cancel([endless(1), failing(), endless(2)])
    assert sorted(over) == [1, 2]


async def test_gather_or_cancel_returns_results_in_order() -> None:
    async def later(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather_or_cancel(map(later, [5, 1, 3])) == [5, 1, 3]
    assert await gather_or_cancel([]) == []


class Node(continuous_pb2_grpc.ContinuousServicer, cluster_pb2_grpc.ClusterServicer):
    """Knows the coordinator of each query; a coordinator refuses its own, or keeps them waiting.

    Attributes:
        coordinators: addresses by query; of others it is the coordinator.
        begun: set once a fetch waits here.
        ended: set once that fetch is cancelled.
        refuses_after: what a refusal waits for; None: this one lets wait.
    """

    def __init__(self) -> None:
        self.coordinators: dict[str, str] = {}
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self.refuses_after: asyncio.Event | None = None
        self.address = ""

    @streaming
    async def FetchMany(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if self.coordinators:
            updates = [
                continuous_pb2.ManyUpdate(ccq=place, coordinator=self.coordinators[one])
                for place, one in enumerate(request.ccq_ids)
            ]
            yield continuous_pb2.FetchManyPart(updates=updates)
            return
        if self.refuses_after is not None:
            await self.refuses_after.wait()
            raise InvalidToken("made up")
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def Topology(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


@contextlib.asynccontextmanager
async def serving(*nodes: Node) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            server = grpc.aio.server(options=server_options())
            continuous_pb2_grpc.add_ContinuousServicer_to_server(node, server)
            cluster_pb2_grpc.add_ClusterServicer_to_server(node, server)
            node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield


async def test_fetch_many_error_of_one_coordinator_cancels_the_others() -> None:
    known, slow, refusing = Node(), Node(), Node()
    refusing.refuses_after = slow.begun
    async with serving(known, slow, refusing):
        known.coordinators = {"a": slow.address, "b": refusing.address}
        async with AsyncClient(known.address) as client:
            with pytest.raises(InvalidToken):
                await client.fetch_many({"a": "", "b": ""})
            async with asyncio.timeout(60):
                await slow.ended.wait()
