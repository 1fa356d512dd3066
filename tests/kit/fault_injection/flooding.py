"""Floods a server from a process of its own: `python flooding.py KIND ADDRESS COUNT`.

KIND is a method of `Flood`. Prints "flooding" once the flood is at its height, goes on until its
standard input ends, and then prints as JSON what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from galileo.wire.channel import InstrumentedChannel
from galileo.wire.services import CLUSTER, CONTINUOUS, QUERY, STORAGE, stub_of
from galileo.wire.v1 import (
    cluster_pb2,
    continuous_pb2,
    query_pb2,
    storage_pb2,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x9
END_HEADERS = 0x4
CANCEL = (8).to_bytes(4, "big")


def frame(kind: int, stream: int, content: bytes = b"", *, flags: int = 0) -> bytes:
    head = len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + content


def opening() -> bytes:
    """What a client says first."""
    return PREFACE + frame(SETTINGS, 0)


def call(method: str, stream: int, token: str = "") -> bytes:
    """The headers of a call; its request has yet to come."""
    proof = {"authorization": f"Bearer {token}"} if token else {}
    named = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "node",
        "te": "trailers",
        "content-type": "application/grpc",
        **proof,
    }
    block = b"".join(header(name, value) for name, value in named.items())
    return frame(HEADERS, stream, block, flags=END_HEADERS)


def header(name: str, value: str) -> bytes:
    """One header that no table remembers; both texts have less than 127 bytes."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


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

HOST = b"Host: localhost\r\n"
BODY_BYTES = 1_000_000
"""Of a body that the endpoint would take."""
HUGE_BYTES = 9_999_999_999
EXPENSIVE = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
BIG = "SELECT * { ?a ?b ?c . ?d ?e ?f } LIMIT 100000"
HELD_S = 60.0
TAKEN_BYTES = 4_096
"""What the kernel takes for a reader that takes nothing."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Flood:
    """One flood.

    Args:
        address: host:port of the server.
        count: of connections, or of calls at a time.
        token: of the caller; "" for a stranger.

    Attributes:
        counts: what was done, by name.
        high: set at the height of the flood.
    """

    sparql: str
    """Path of SPARQL queries, of a gateway."""
    upload: str
    """Path and media type of bodies, of a gateway."""
    media_type: str

    def __init__(self, address: str, count: int, token: str = "") -> None:
        self.address = address
        self.count = count
        self.token = token
        self.counts: Counter[str] = Counter()
        self.high = asyncio.Event()

    # --- connections ---------------------------------------------------------------------------

    async def idle(self) -> None:
        """Connections that are opened, say the first words, and nothing more."""
        await self._each_connection(lambda reader, writer: self._silent(reader, writer, opening()))

    async def mute(self) -> None:
        """Connections that never say a word, or begin the first one byte by byte."""
        await self._each_connection(self._slowly)

    async def churn(self) -> None:
        """Connections that are opened and closed as fast as it goes."""

        async def again() -> None:
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await self._connected()
                    writer.write(opening())
                    writer.transport.abort()
                    self.counts["connections"] += 1
                await asyncio.sleep(0)

        await self._all(again() for _ in range(self.count))

    async def resets(self) -> None:
        """Calls that are begun and taken back at once, again and again."""

        def begun(number: int) -> bytes:
            stream = 2 * number + 1
            taken_back = frame(RST_STREAM, stream, CANCEL)
            return call(STATUS, stream, self.token) + taken_back

        await self._frames(begun, "calls taken back")

    async def headers(self) -> None:
        """Headers that never end."""
        block = b"".join(header(f"x-{number}", "y" * 100) for number in range(100))

        def more(number: int) -> bytes:
            kind = CONTINUATION if number else HEADERS
            return frame(kind, 1, block)

        await self._frames(more, "frames of headers")

    async def settings(self) -> None:
        """Settings and pings, each of which wants an answer that nothing reads."""
        ping = frame(PING, 0, bytes(8))
        await self._frames(
            lambda _: (frame(SETTINGS, 0) + ping) * 50, "bursts of settings and pings"
        )

    # --- calls ---------------------------------------------------------------------------------

    async def calls(self) -> None:
        """Calls over one connection, all at once, each of them again when it is answered."""
        async with self._channel() as channel:
            stub = stub_of(CLUSTER, channel)
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
            stubs = await self._stubs(stack, QUERY)
            await self._all(
                self._again(partial(ask, stubs[number % CHANNELS])) for number in range(self.count)
            )

    async def streams(self) -> None:
        """Watches that ask without end, and never wait for an answer."""
        ccq_id = await self._a_ccq()

        async def ask(stub: Any) -> None:
            async def requests() -> Any:
                while True:
                    self.counts["requests"] += 1
                    yield continuous_pb2.FetchRequest(ccq_id=ccq_id)

            async for _ in stub.Watch(requests()):
                self.counts["answers"] += 1

        async with contextlib.AsyncExitStack() as stack:
            stubs = await self._stubs(stack, CONTINUOUS)
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
            self.counts["watching"] += 1
            while await call.read() is not grpc.aio.EOF:
                self.counts["answers"] += 1

        async with contextlib.AsyncExitStack() as stack:
            started = asyncio.Semaphore(AT_ONCE)
            stubs = await self._stubs(stack, CONTINUOUS)
            await self._all(
                self._counted(watch(stubs[number % CHANNELS], started))
                for number in range(self.count)
            )

    async def readers(self) -> None:
        """Readers of everything that take the first piece and then nothing more."""

        async def read(stub: Any, started: asyncio.Semaphore) -> None:
            async with started:
                call = stub.Select(storage_pb2.SelectRequest(dataset=DATASET))
                await call.read()
            self.counts["reading"] += 1
            await asyncio.Event().wait()

        async with contextlib.AsyncExitStack() as stack:
            started = asyncio.Semaphore(AT_ONCE)
            stubs = await self._stubs(stack, STORAGE)
            await self._all(
                self._counted(read(stubs[number % CHANNELS], started))
                for number in range(self.count)
            )

    async def uploads(self) -> None:
        """Requests of sixty megabytes each, of which nothing can be made."""
        data = bytes(UPLOAD_BYTES)

        async def send(channel: Any, method: str) -> None:
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
                call(INGEST, stream, self.token) + frame(DATA, stream, b"\0\3\0\0\0" + b"x")
                for stream in range(1, 40, 2)
            ]
            await self._silent(reader, writer, opening() + b"".join(begun))

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
                    self.counts["asked"] += 1
                    answer = await reader.read(12)
                    self.counts["answered" if answer.endswith(b" 200") else "turned away"] += 1
                    writer.transport.abort()
                await asyncio.sleep(PAUSE_S)

        await self._all(ask(number) for number in range(self.count))

    async def silent(self) -> None:
        """Connections that say nothing."""
        await self._each_connection(lambda reader, writer: self._silent(reader, writer, b""))

    async def slow(self) -> None:
        """Requests that come byte by byte and never end."""
        await self._each_connection(
            lambda reader, writer: self._bytewise(
                reader, writer, b"GET /ready HTTP/1.1\r\n" + HOST + b"X: "
            )
        )

    async def endless_heads(self) -> None:
        """Headers that never end, as fast as they are taken."""

        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"GET /ready HTTP/1.1\r\n" + HOST)
            while True:
                writer.write(b"X: " + b"x" * 60_000 + b"\r\n")
                await writer.drain()
                self.counts["headers"] += 1

        await self._each_connection(send)

    async def slow_bodies(self) -> None:
        """Bodies that come byte by byte and never end."""
        head = self._post(BODY_BYTES)
        await self._each_connection(lambda reader, writer: self._bytewise(reader, writer, head))

    async def huge_bodies(self) -> None:
        """Bodies of gigabytes, as fast as they are taken, with and without saying so."""

        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._number += 1
            writer.write(self._post(HUGE_BYTES if self._number % 2 else BODY_BYTES))
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
                self.counts["MiB sent"] += 1

        self._number = 0
        await self._each_connection(send)

    async def expensive(self) -> None:
        """Queries that would take for ever, again and again."""
        await self._asked(EXPENSIVE)

    async def takers(self) -> None:
        """Queries for much, of whose answers nothing is taken."""
        opening = asyncio.Semaphore(AT_ONCE)

        async def hold() -> None:
            loop = asyncio.get_running_loop()
            host, _, port = self.address.rpartition(":")
            while True:
                with socket.socket() as one, contextlib.suppress(OSError):
                    one.setblocking(False)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKEN_BYTES)
                    async with opening:
                        await loop.sock_connect(one, (host, int(port)))
                    await loop.sock_sendall(one, self._get(self._query(BIG)))
                    begun = await loop.sock_recv(one, 12)
                    self.counts["begun" if begun.endswith(b" 200") else "turned away"] += 1
                    if begun.endswith(b" 200"):
                        await asyncio.sleep(HELD_S)
                await asyncio.sleep(PAUSE_S)

        await self._all(hold() for _ in range(self.count))

    async def _asked(self, text: str) -> None:
        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self._get(self._query(text)))
            begun = await reader.read(12)
            self.counts[f"answered {begun[9:].decode() or 'nothing'}"] += 1
            writer.transport.abort()
            await asyncio.sleep(PAUSE_S)

        await self._each_connection(ask)

    async def _bytewise(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes
    ) -> None:
        writer.write(words)
        while not reader.at_eof():
            writer.write(b"x")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1.0)
        self.counts["closed by the server"] += 1
        writer.transport.abort()

    def _query(self, text: str) -> str:
        return f"{self.sparql}?query={quote(text)}"

    def _get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\n".encode() + self._proven() + b"\r\n"

    def _post(self, size: int) -> bytes:
        head = f"POST {self.upload} HTTP/1.1\r\nContent-Type: {self.media_type}\r\n".encode()
        return head + self._proven() + b"Content-Length: %d\r\n\r\n" % size

    def _proven(self) -> bytes:
        """The headers of the host and the token."""
        return HOST + (f"Authorization: Bearer {self.token}\r\n".encode() if self.token else b"")

    # --- parts ---------------------------------------------------------------------------------

    def _channel(self) -> Any:
        """A channel that sends large requests in pieces."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        channel = grpc.aio.insecure_channel(self.address, options=options)
        return InstrumentedChannel(channel, self.token)

    async def _stubs(
        self, stack: contextlib.AsyncExitStack, service: ServiceDescriptor
    ) -> list[Any]:
        channels = [await stack.enter_async_context(self._channel()) for _ in range(CHANNELS)]
        return [stub_of(service, channel) for channel in channels]

    async def _a_ccq(self) -> str:
        async with self._channel() as channel:
            reply = await stub_of(CONTINUOUS, channel).List(continuous_pb2.ListRequest())
        return str(reply.ccqs[0].id)

    async def _up_to_now(self, ccq_id: str) -> str:
        """The token of a reader that has everything so far."""
        token, more = "", True
        async with self._channel() as channel:
            stub = stub_of(CONTINUOUS, channel)
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
                    self.counts["connections"] += 1
                    await use(reader, writer)
                except OSError:
                    self.counts["refused"] += 1
                    await asyncio.sleep(1.0)

        await self._all(hold() for _ in range(self.count))

    async def _silent(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes
    ) -> None:
        writer.write(words)
        while await reader.read(4_096):
            self.counts["heard"] += 1
        self.counts["closed by the node"] += 1
        writer.transport.abort()

    async def _slowly(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in PREFACE:
            if reader.at_eof():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(1.0)
        self.counts["closed by the node"] += reader.at_eof()
        writer.transport.abort()

    async def _frames(self, made: Callable[[int], bytes], name: str) -> None:
        """Sends frames over several connections as fast as they are taken, and reads nothing."""

        async def send() -> None:
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await self._connected()
                    writer.write(opening())
                    for number in range(1 << 20):
                        writer.write(made(number))
                        await asyncio.wait_for(writer.drain(), 5.0)
                        self.counts[name] += 1
                self.counts["connections ended"] += 1
                await asyncio.sleep(PAUSE_S)

        await self._all(send() for _ in range(self.count))

    async def _again(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await self._counted(call())

    async def _counted(self, call: Awaitable[Any]) -> None:
        try:
            await call
            self.counts["answered"] += 1
        except grpc.RpcError as error:
            self.counts[f"refused: {error.code().name}"] += 1
            await asyncio.sleep(PAUSE_S)
        except asyncio.InvalidStateError:  # So gRPC says where something is written after the end.
            self.counts["refused before anything was asked"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _all(self, parts: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
            await asyncio.sleep(HEIGHT_S)
            self.high.set()


async def hold(*floods: tuple[str, Flood, str]) -> None:
    """Floods until the standard input ends.

    Args:
        floods: each with what precedes the names of its counts, and its kind.
    """
    loop = asyncio.get_running_loop()
    running = [asyncio.create_task(getattr(flood, kind)()) for _, flood, kind in floods]
    ended = loop.run_in_executor(None, sys.stdin.read)
    high = asyncio.gather(*(flood.high.wait() for _, flood, _ in floods))
    await asyncio.wait([*running, high], return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        if task.done() and task.exception() is not None:
            traceback.print_exception(task.exception())
            os._exit(1)  # Else the thread that waits for the standard input would be waited for.
    print("flooding", flush=True)
    await asyncio.wait([*running, ended], return_when=asyncio.FIRST_COMPLETED)
    counts = Counter[str]()
    for name, flood, _ in floods:
        counts.update({name + key: number for key, number in flood.counts.items()})
    print(json.dumps(counts), flush=True)
    # Thousands of calls and connections end at once this way, as those of a killed client do.
    os._exit(1 if any(task.done() for task in running) else 0)


if __name__ == "__main__":
    asyncio.run(hold(("", Flood(sys.argv[2], int(sys.argv[3])), sys.argv[1])))
