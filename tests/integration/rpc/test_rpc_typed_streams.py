"""Typed calls whose answer is a stream, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import grpc.aio
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import UnknownBroker
from galileo.rpc.internal import add_internal
from galileo.wire.caller import Caller, Connection
from galileo.wire.typed_service import TypedService


class Counter:
    """Counts, up to what is requested."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def count(self, numbers: int, fails: bool) -> AsyncGenerator[pa.Buffer, None]:
        """Yields each number as a text, and fails afterwards if that is wanted."""
        try:
            for number in range(numbers):
                yield pa.py_buffer(str(number).encode())
            if fails:
                raise UnknownBroker("none", broker="b")
        finally:
            self.ended.set()


SERVICE = TypedService("galileo.test", Counter)
COUNT = SERVICE.call(Counter.count)


@pytest.fixture
async def counter() -> AsyncIterator[tuple[Counter, Connection]]:
    servicer, server, caller = Counter(), grpc.aio.server(), Caller()
    add_internal(servicer, server, SERVICE)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield servicer, caller.connection(address)
    await caller.close()
    await server.stop(None)


async def test_typed_stream_yields_every_part(counter: tuple[Counter, Connection]) -> None:
    _, node = counter
    request = COUNT.encode(5, fails=False)
    with node.exchange_parts(COUNT.path, request, part_s=60.0) as stream:
        parts = [COUNT.decode_answer(part).to_pybytes() async for part in stream]
    assert parts == [b"0", b"1", b"2", b"3", b"4"]


async def test_typed_stream_ends_with_the_error_of_its_method(
    counter: tuple[Counter, Connection],
) -> None:
    _, node = counter
    with node.exchange_parts(COUNT.path, COUNT.encode(1, fails=True), part_s=60.0) as stream:
        assert await stream.read() is not None
        with raises(UnknownBroker, broker="b"):
            await stream.read()


async def test_typed_stream_without_a_reader_ends_its_method(
    counter: tuple[Counter, Connection],
) -> None:
    servicer, node = counter
    with node.exchange_parts(COUNT.path, COUNT.encode(10**9, fails=False), part_s=60.0) as stream:
        assert await stream.read() is not None
    await asyncio.wait_for(servicer.ended.wait(), timeout=60)
