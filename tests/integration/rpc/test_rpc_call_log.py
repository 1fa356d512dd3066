"""Calls are counted from their arrival to the end of their handler, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from waiting import until

from galileo.rpc.call_log import CallTracker
from galileo.rpc.interceptor import CallInterceptor

PREFIX = "/galileo.v1.Query/"


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Calls of all four kinds that wait until they are let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> object:
        made = {
            "One": grpc.unary_unary_rpc_method_handler(self.answer),
            "In": grpc.stream_unary_rpc_method_handler(self.answer),
            "Out": grpc.unary_stream_rpc_method_handler(self.stream),
            "Both": grpc.stream_stream_rpc_method_handler(self.stream),
            "Fails": grpc.unary_stream_rpc_method_handler(self.fails),
        }
        return made.get(details.method.rpartition("/")[2])

    async def answer(self, request: object, context: object) -> bytes:
        await self.go.wait()
        return b"answer"

    async def stream(self, request: object, context: object) -> AsyncIterator[bytes]:
        yield b"first"
        await self.go.wait()
        yield b"last"

    async def fails(
        self, request: object, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        yield b"first"
        await context.abort(grpc.StatusCode.INTERNAL, "broken")


@pytest.fixture
async def served() -> AsyncIterator[tuple[CallTracker, Handlers, grpc.aio.Channel]]:
    calls, handlers = CallTracker(), Handlers()
    server = grpc.aio.server(
        interceptors=[CallInterceptor(calls)], options=[("grpc.so_reuseport", 0)]
    )
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield calls, handlers, channel
    await server.stop(None)


async def test_call_tracker_counts_calls_of_every_kind(
    served: tuple[CallTracker, Handlers, grpc.aio.Channel],
) -> None:
    calls, handlers, channel = served
    assert calls.counts() == {}
    one = [channel.unary_unary(f"{PREFIX}One")(b"") for _ in range(2)]
    inward = channel.stream_unary(f"{PREFIX}In")(iter([b""]))
    outward = channel.unary_stream(f"{PREFIX}Out")(b"")
    both = channel.stream_stream(f"{PREFIX}Both")(iter([b""]))
    await until(
        lambda: calls.counts() == {"Query/One": 2, "Query/In": 1, "Query/Out": 1, "Query/Both": 1}
    )
    handlers.go.set()
    assert [await call for call in (*one, inward)] == [b"answer"] * 3
    for stream in (outward, both):
        assert [piece async for piece in stream] == [b"first", b"last"]
    await until(lambda: calls.counts() == {})


async def test_call_tracker_forgets_cancelled_and_failed_calls(
    served: tuple[CallTracker, Handlers, grpc.aio.Channel],
) -> None:
    calls, _, channel = served
    waiting = channel.unary_unary(f"{PREFIX}One")(b"")
    stream = channel.unary_stream(f"{PREFIX}Out")(b"")
    assert await stream.read() == b"first"
    await until(lambda: calls.counts() == {"Query/One": 1, "Query/Out": 1})
    waiting.cancel()
    stream.cancel()
    await until(lambda: calls.counts() == {})
    with pytest.raises(grpc.aio.AioRpcError, match="broken"):
        [piece async for piece in channel.unary_stream(f"{PREFIX}Fails")(b"")]
    await until(lambda: calls.counts() == {})


async def test_call_tracker_ignores_foreign_and_unknown_methods(
    served: tuple[CallTracker, Handlers, grpc.aio.Channel],
) -> None:
    calls, handlers, channel = served
    foreign = channel.unary_stream("/grpc.health.v1.Health/Out")(b"")
    assert await foreign.read() == b"first"
    assert calls.counts() == {}
    with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
        await channel.unary_unary(f"{PREFIX}NoSuch")(b"")
    handlers.go.set()
    assert [await foreign.read(), await foreign.read()] == [b"last", grpc.aio.EOF]
