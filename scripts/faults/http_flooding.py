"""Floods a server over HTTP: `python -m faults.http_flooding KIND ADDRESS COUNT`.

As `faults.flooding`, whose connections it uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from urllib.parse import quote

from faults.flooding import AT_ONCE, PAUSE_S, Flood, flooded

HOST = b"Host: localhost\r\n"
BODY_BYTES = 1_000_000
"""Of a body that the endpoint would take."""
HUGE_BYTES = 9_999_999_999
EXPENSIVE = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
BIG = "SELECT * { ?a ?b ?c . ?d ?e ?f } LIMIT 100000"
HELD_S = 60.0
TAKEN_BYTES = 4_096
"""What the kernel takes for a reader that takes nothing."""


def _get(text: str) -> bytes:
    return f"GET /sparql?query={quote(text)} HTTP/1.1\r\n".encode() + HOST + b"\r\n"


class HttpFlood(Flood):
    """Floods of either kind of server: that of queries, and that of metrics."""

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
                self.told["headers"] += 1

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
                self.told["MiB sent"] += 1

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
                    await loop.sock_sendall(one, _get(BIG))
                    begun = await loop.sock_recv(one, 12)
                    self.told["begun" if begun.endswith(b" 200") else "turned away"] += 1
                    if begun.endswith(b" 200"):
                        await asyncio.sleep(HELD_S)
                await asyncio.sleep(PAUSE_S)

        await self._all(hold() for _ in range(self.count))

    async def _asked(self, text: str) -> None:
        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(_get(text))
            begun = await reader.read(12)
            self.told[f"answered {begun[9:].decode() or 'nothing'}"] += 1
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
        self.told["closed by the server"] += 1
        writer.transport.abort()

    def _post(self, size: int) -> bytes:
        kind = b"Content-Type: application/sparql-query\r\n"
        return b"POST /sparql HTTP/1.1\r\n" + HOST + kind + b"Content-Length: %d\r\n\r\n" % size


def main(kind: str, address: str, count: str) -> None:
    async def start() -> None:
        flood = HttpFlood(address, int(count))
        await flooded(flood, getattr(flood, kind)())

    asyncio.run(start())


if __name__ == "__main__":
    main(*sys.argv[1:])
