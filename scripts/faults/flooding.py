"""Floods a node, from a process of its own: `python -m faults.flooding KIND ADDRESS COUNT`.

Says "flooding" once the flood is at its height, goes on until its standard input ends, and then
tells in JSON what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import grpc
import grpc.aio

from faults import http2
from galileo.wire.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    continuous_pb2,
    continuous_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    storage_pb2,
    storage_pb2_grpc,
)

DATASET = "numbered"
INGEST = "/galileo.v1.Storage/Ingest"
STATUS = "/galileo.v1.Cluster/Status"
AT_ONCE = 200
"""Connections that are opened together."""
CHANNELS = 8
UPLOAD_BYTES = 60 << 20
HEIGHT_S = 3.0
"""A flood without a natural height counts as one after so long."""
PAUSE_S = 0.05

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Flood:
    """One flood.

    Attributes:
        told: what was done, by name.
    """

    def __init__(self, address: str, count: int) -> None:
        self.address = address
        self.count = count
        self.told: Counter[str] = Counter()
        self.high = asyncio.Event()

    # --- connections ---------------------------------------------------------------------------

    async def idle(self) -> None:
        """Connections that are opened, say the first words, and nothing more."""
        await self._each_connection(
            lambda reader, writer: self._silent(reader, writer, http2.opening())
        )

    async def mute(self) -> None:
        """Connections that never say a word, or begin the first one byte by byte."""
        await self._each_connection(self._slowly)

    async def churn(self) -> None:
        """Connections that are opened and closed as fast as it goes."""

        async def again() -> None:
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await self._connected()
                    writer.write(http2.opening())
                    writer.transport.abort()
                    self.told["connections"] += 1
                await asyncio.sleep(0)

        await self._all(again() for _ in range(self.count))

    async def resets(self) -> None:
        """Calls that are begun and taken back at once, again and again."""

        def begun(number: int) -> bytes:
            stream = 2 * number + 1
            taken_back = http2.frame(http2.RST_STREAM, stream, http2.CANCEL)
            return http2.call(STATUS, stream) + taken_back

        await self._frames(begun, "calls taken back")

    async def headers(self) -> None:
        """Headers that never end."""
        block = b"".join(http2.header(f"x-{number}", "y" * 100) for number in range(100))

        def more(number: int) -> bytes:
            kind = http2.CONTINUATION if number else http2.HEADERS
            return http2.frame(kind, 1, block)

        await self._frames(more, "frames of headers")

    async def settings(self) -> None:
        """Settings and pings, each of which wants an answer that nobody reads."""
        ping = http2.frame(http2.PING, 0, bytes(8))
        await self._frames(
            lambda _: (http2.frame(http2.SETTINGS, 0) + ping) * 50, "bursts of settings and pings"
        )

    # --- calls ---------------------------------------------------------------------------------

    async def calls(self) -> None:
        """Calls over one connection, all at once, each of them again when it is answered."""
        async with self._channel() as channel:
            stub = cluster_pb2_grpc.ClusterStub(channel)
            await self._all(
                self._again(
                    lambda: stub.ListDatasets(cluster_pb2.ListDatasetsRequest(), timeout=60)
                )
                for _ in range(self.count)
            )

    async def queries(self) -> None:
        """The same with queries, over several connections."""

        async def ask(stub: Any) -> None:
            request = query_pb2.QueryRequest(dataset=DATASET, query="temperature > 309.8")
            async for _ in stub.Run(request, timeout=60):
                pass

        async with contextlib.AsyncExitStack() as stack:
            stubs = await self._stubs(stack, query_pb2_grpc.QueryStub)
            await self._all(
                self._again(partial(ask, stubs[number % CHANNELS])) for number in range(self.count)
            )

    async def streams(self) -> None:
        """Watches that ask without end, and never wait for an answer."""
        ccq_id = await self._a_ccq()

        async def ask(stub: Any) -> None:
            async def requests() -> Any:
                while True:
                    self.told["requests"] += 1
                    yield continuous_pb2.FetchRequest(ccq_id=ccq_id)

            async for _ in stub.Watch(requests()):
                self.told["answers"] += 1

        async with contextlib.AsyncExitStack() as stack:
            stubs = await self._stubs(stack, continuous_pb2_grpc.ContinuousStub)
            await self._all(
                self._again(partial(ask, stubs[number % CHANNELS])) for number in range(self.count)
            )

    async def watchers(self) -> None:
        """Readers that watch one continuous query and wait for what is new."""
        ccq_id = await self._a_ccq()
        token = await self._up_to_now(ccq_id)

        async def watch(stub: Any, started: asyncio.Semaphore) -> None:
            call = stub.Watch()
            async with started:
                asked = continuous_pb2.FetchRequest(ccq_id=ccq_id, token=token, wait_s=60.0)
                await call.write(asked)
            self.told["watching"] += 1
            while await call.read() is not grpc.aio.EOF:
                self.told["answers"] += 1

        async with contextlib.AsyncExitStack() as stack:
            started = asyncio.Semaphore(AT_ONCE)
            stubs = await self._stubs(stack, continuous_pb2_grpc.ContinuousStub)
            await self._all(
                self._once(watch(stubs[number % CHANNELS], started)) for number in range(self.count)
            )

    async def readers(self) -> None:
        """Readers of everything that take the first piece and then nothing more."""

        async def read(stub: Any, started: asyncio.Semaphore) -> None:
            async with started:
                call = stub.Select(storage_pb2.SelectRequest(dataset=DATASET))
                await call.read()
            self.told["reading"] += 1
            await asyncio.Event().wait()

        async with contextlib.AsyncExitStack() as stack:
            started = asyncio.Semaphore(AT_ONCE)
            stubs = await self._stubs(stack, storage_pb2_grpc.StorageStub)
            await self._all(
                self._once(read(stubs[number % CHANNELS], started)) for number in range(self.count)
            )

    async def uploads(self) -> None:
        """Requests of sixty megabytes each, of which nothing can be made."""
        data = bytes(UPLOAD_BYTES)

        async def send(channel: grpc.aio.Channel, method: str) -> None:
            await channel.unary_unary(method)(data, timeout=60)

        async with contextlib.AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(self._channel()) for _ in range(CHANNELS)]
            await self._all(
                self._again(
                    partial(send, channels[number % CHANNELS], INGEST if number % 2 else STATUS)
                )
                for number in range(self.count)
            )

    async def halves(self) -> None:
        """Requests that are begun and never end."""

        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun = [
                http2.call(INGEST, stream) + http2.frame(http2.DATA, stream, b"\0\3\0\0\0" + b"x")
                for stream in range(1, 40, 2)
            ]
            await self._silent(reader, writer, http2.opening() + b"".join(begun))

        await self._each_connection(begin)

    # --- HTTP ----------------------------------------------------------------------------------

    async def pages(self) -> None:
        """Half of the connections say nothing more after a first line, half ask again and again."""

        async def ask(number: int) -> None:
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await self._connected()
                    writer.write(b"GET /metrics?query=ASK%7B%7D HTTP/1.1\r\n")
                    if number % 2:
                        await asyncio.sleep(20.0)
                    writer.write(b"Host: localhost\r\nConnection: close\r\n\r\n")
                    self.told["asked"] += 1
                    answer = await reader.read(12)
                    self.told["answered" if answer.endswith(b" 200") else "turned away"] += 1
                    writer.transport.abort()
                await asyncio.sleep(PAUSE_S)

        await self._all(ask(number) for number in range(self.count))

    # --- parts ---------------------------------------------------------------------------------

    def _channel(self) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.insecure_channel(self.address, options=options)

    async def _stubs(self, stack: contextlib.AsyncExitStack, kind: Callable[..., Any]) -> list[Any]:
        return [kind(await stack.enter_async_context(self._channel())) for _ in range(CHANNELS)]

    async def _a_ccq(self) -> str:
        async with self._channel() as channel:
            reply = await continuous_pb2_grpc.ContinuousStub(channel).List(
                continuous_pb2.ListRequest()
            )
        return str(reply.ccqs[0].id)

    async def _up_to_now(self, ccq_id: str) -> str:
        """The token of a reader that has everything so far."""
        token, more = "", True
        async with self._channel() as channel:
            stub = continuous_pb2_grpc.ContinuousStub(channel)
            while more:
                asked = continuous_pb2.FetchRequest(ccq_id=ccq_id, token=token)
                parts = [part async for part in stub.Fetch(asked)]
                token, more = parts[-1].tail.token, parts[-1].tail.more
        return token

    async def _connected(self) -> Connection:
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _each_connection(self, use: Callable[..., Awaitable[None]]) -> None:
        opening = asyncio.Semaphore(AT_ONCE)

        async def hold() -> None:
            while True:
                try:
                    async with opening:
                        reader, writer = await self._connected()
                    self.told["connections"] += 1
                    await use(reader, writer)
                except OSError:
                    self.told["refused"] += 1
                    await asyncio.sleep(1.0)

        await self._all(hold() for _ in range(self.count))

    async def _silent(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes
    ) -> None:
        writer.write(words)
        while await reader.read(4_096):
            self.told["heard"] += 1
        self.told["closed by the node"] += 1
        writer.transport.abort()

    async def _slowly(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in http2.PREFACE:
            if reader.at_eof():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(1.0)
        self.told["closed by the node"] += reader.at_eof()
        writer.transport.abort()

    async def _frames(self, made: Callable[[int], bytes], name: str) -> None:
        """Sends frames over several connections as fast as they are taken, and reads nothing."""

        async def send() -> None:
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await self._connected()
                    writer.write(http2.opening())
                    for number in range(1 << 20):
                        writer.write(made(number))
                        await asyncio.wait_for(writer.drain(), 5.0)
                        self.told[name] += 1
                self.told["connections ended"] += 1
                await asyncio.sleep(PAUSE_S)

        await self._all(send() for _ in range(self.count))

    async def _again(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await self._counted(call())

    async def _once(self, call: Awaitable[Any]) -> None:
        """As long as it lasts; whoever is refused comes back."""
        await self._counted(call)

    async def _counted(self, call: Awaitable[Any]) -> None:
        try:
            await call
            self.told["answered"] += 1
        except grpc.RpcError as error:
            self.told[f"refused: {error.code().name}"] += 1
            await asyncio.sleep(PAUSE_S)
        except asyncio.InvalidStateError:  # So gRPC says where something is written after the end.
            self.told["refused before anything was asked"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _all(self, parts: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
            await asyncio.sleep(HEIGHT_S)
            self.high.set()


async def flooded(flood: Flood, run: Coroutine[Any, Any, None]) -> None:
    """Until the standard input ends."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(run)
    ended = loop.run_in_executor(None, sys.stdin.read)
    high = asyncio.create_task(flood.high.wait())
    await asyncio.wait([running, high], return_when=asyncio.FIRST_COMPLETED)
    if running.done() and running.exception() is not None:
        traceback.print_exception(running.exception())
        os._exit(1)  # Else the thread that waits for the standard input would be waited for.
    print("flooding", flush=True)
    await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
    print(json.dumps(flood.told), flush=True)
    # Thousands of calls and connections end at once this way, as those of a killed client do.
    os._exit(1 if running.done() else 0)


def main(kind: str, address: str, count: str) -> None:
    async def start() -> None:
        flood = Flood(address, int(count))
        await flooded(flood, getattr(flood, kind)())

    asyncio.run(start())


if __name__ == "__main__":
    main(*sys.argv[1:])
