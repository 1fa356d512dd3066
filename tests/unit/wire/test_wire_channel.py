"""Connections as we set them up, over sockets of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from galileo.wire import channel
from galileo.wire.channel import (
    KEEPALIVE_MS,
    WINDOW_BYTES,
    Channels,
    open_channel,
    server_options,
)
from galileo.wire.services import QUERY, add_service, stub_of
from galileo.wire.v1 import query_pb2

QUICK_MS = 1_000
IDLE_S = 3.6
PART_BYTES = 64 << 10
HTTP2_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


class Thoughtful:
    """Answers in two parts, and sends nothing for long between them."""

    async def Run(
        self, request: query_pb2.QueryRequest, context: object
    ) -> AsyncIterator[query_pb2.QueryPart]:
        yield query_pb2.QueryPart(labels=b"at once")
        await asyncio.sleep(IDLE_S)
        yield query_pb2.QueryPart(labels=b"at last")


@pytest.mark.slow
async def test_channel_idle_stream_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends connections that ping too often for it; it must bear with ours.

    Here the client asks every second whether the node is alive, and the node allows twice as many;
    the ratio is the one that is used.
    """
    quicker = [(k, QUICK_MS if k == "grpc.keepalive_time_ms" else v) for k, v in channel._COMMON]
    monkeypatch.setattr(channel, "_COMMON", quicker)
    options = [(k, QUICK_MS // 2 if v == KEEPALIVE_MS // 2 else v) for k, v in server_options()]
    server = grpc.aio.server(options=options)
    add_service(QUERY, Thoughtful(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with open_channel(address) as line:
        parts = [part async for part in stub_of(QUERY, line).Run(query_pb2.QueryRequest())]
    await server.stop(None)
    assert [part.labels for part in parts] == [b"at once", b"at last"]


class Slow(asyncio.Protocol):
    """Answers the handshake of HTTP/2 after half a second.

    Attributes:
        closed: set when the connection has ended.
    """

    def __init__(self, closed: asyncio.Event) -> None:
        self.closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        asyncio.get_running_loop().call_later(0.5, transport.write, HTTP2_SETTINGS)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()


async def test_channel_slow_handshake_connects() -> None:
    """With TLS, three or four round trips over a long way take as long."""
    closed = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: Slow(closed), "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        address = "{}:{}".format(*server.sockets[0].getsockname())
        async with open_channel(address) as line:
            await line.channel_ready()
        await closed.wait()


class Endless:
    """Answers as long as the reader takes something.

    Attributes:
        sent: bytes of the stream that began last.
    """

    def __init__(self) -> None:
        self.sent = 0

    async def Run(
        self, request: query_pb2.QueryRequest, context: object
    ) -> AsyncIterator[query_pb2.QueryPart]:
        self.sent = 0
        while True:
            yield query_pb2.QueryPart(labels=bytes(PART_BYTES))
            self.sent += PART_BYTES


async def test_channels_with_a_fixed_window_receive_little_ahead_of_a_stopped_reader() -> None:
    """Also after much was read fast, which makes gRPC's own window several MiB large."""
    servicer = Endless()
    server = grpc.aio.server(options=server_options())
    add_service(QUERY, servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    ahead = {}
    for has_fixed_window in (True, False):
        channels = Channels(has_fixed_window=has_fixed_window)
        stub = stub_of(QUERY, channels.get(address))
        fast = stub.Run(query_pb2.QueryRequest())
        for _ in range(512):
            await fast.read()
        fast.cancel()
        stopped = stub.Run(query_pb2.QueryRequest())
        await stopped.read()
        before = -1
        while before < servicer.sent:
            before = servicer.sent
            await asyncio.sleep(0.5)
        ahead[has_fixed_window] = servicer.sent
        stopped.cancel()
        await channels.close()
    await server.stop(None)
    # The window, and what the sockets and the server's buffer of the stream have.
    assert ahead[True] <= 4 * WINDOW_BYTES
    assert ahead[True] < ahead[False]
