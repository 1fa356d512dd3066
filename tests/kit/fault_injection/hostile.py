"""Hostile connections of all kinds to a gateway and a node, from one process.

`python -m fault_injection.hostile` reads a line of JSON: `gateway` and `node` (host:port), `seed`,
and `floods`, each a name of `KINDS`, a number of connections and a token. It floods like
`fault_injection.flooding`. It has a low priority, so that it takes what is left of the processors
of this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from fault_injection.bombs import ITEMS, LABELS, NODE_BOMBS, SPARQL, TEXT_BODIES
from fault_injection.flooding import HOST, PAUSE_S, Flood, hold

NICE = 10
STRANGER, READER, WRITER = "", "reader", "rival"
"""Names of callers; the last one may store, and sends nothing that can be stored."""
SLOW_TO_MAKE = ("Storage/Ingest", "Samplers/Upload")
BOMB_BYTES_MAX = 1 << 20
"""Size of the calls that are sent over and over."""
UNREAD_BYTES = 1 << 16


class GatewayFlood(Flood):
    """Floods a gateway; announced bodies are as large as those with observations may be."""

    sparql = SPARQL
    upload = ITEMS
    media_type = "text/csv"

    def _query(self, text: str) -> str:
        return f"{super()._query(text)}&filter={quote(LABELS)}"

    async def wrong_tokens(self) -> None:
        """Requests with a token of their own each, which no principal has."""
        await self._each_connection(
            lambda reader, writer: self._asked_with(reader, writer, random.randbytes(16).hex())
        )

    async def garbage(self) -> None:
        """Bytes that are no HTTP."""
        await self._each_connection(
            lambda reader, writer: self._silent(reader, writer, random.randbytes(4_096))
        )

    async def unread(self) -> None:
        """Requests one after the other, of whose answers nothing is read."""
        words = self._get(f"{ITEMS}?limit=1000") * 50

        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _number in range(100):
                writer.write(words)
                self.counts["requests"] += 50
                await asyncio.wait_for(writer.drain(), 30.0)
            writer.transport.abort()

        await self._each_connection(send)

    async def bodies(self) -> None:
        """Bombs, one after the other."""
        bodies = [(body, body.content()) for body in TEXT_BODIES]

        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body, content = random.choice(bodies)
            writer.write(body.head(len(content), self.token) + content)
            await self._answered(reader, writer)

        await self._each_connection(send)

    async def downloads(self) -> None:
        """The whole dataset, over and over."""
        await self._repeated(f"{ITEMS}?f=csv&limit=10000")

    async def streams_of_events(self) -> None:
        """Streams of events that are opened and left after the first one."""
        await self._repeated("/channels/hot/brokers/other/events", first_only=True)

    async def _repeated(self, path: str, *, first_only: bool = False) -> None:
        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self._get(path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            await self._answered(reader, writer, first_only=first_only)

        await self._each_connection(ask)

    async def _asked_with(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
    ) -> None:
        head = f"GET {ITEMS} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n".encode()
        writer.write(head + HOST + b"\r\n")
        await self._answered(reader, writer, first_only=True)

    async def _answered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, first_only: bool = True
    ) -> None:
        """Counts the status of an answer, and reads all of it or its first piece."""
        status = (await reader.read(UNREAD_BYTES))[9:12].decode("ascii", "replace")
        while not first_only and await reader.read(UNREAD_BYTES):
            pass
        self.counts[f"answered {status or 'nothing'}"] += 1
        writer.transport.abort()
        await asyncio.sleep(PAUSE_S)


class NodeFlood(Flood):
    """Floods of a node."""

    async def bombs(self) -> None:
        """Bombs, one after the other."""
        small = [bomb for bomb in NODE_BOMBS if bomb.method not in SLOW_TO_MAKE]
        bombs = [bomb for bomb in small if len(bomb.made()) <= BOMB_BYTES_MAX]

        async def send() -> None:
            answer = await asyncio.to_thread(random.choice(bombs).send, self.address, self.token)
            self.counts[f"answered {answer}"] += 1
            await asyncio.sleep(PAUSE_S)

        await self._all(self._again(send) for _ in range(self.count))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of hostile connection: a method of `GatewayFlood` or `NodeFlood`, and its caller."""

    flood: type[Flood]
    method: str
    caller: str = STRANGER

    @property
    def name(self) -> str:
        door = "gateway" if self.flood is GatewayFlood else "node"
        return f"{door} {self.method}{' as ' * bool(self.caller)}{self.caller}"


_gateway, _node = partial(Kind, GatewayFlood), partial(Kind, NodeFlood)
IDLE = (
    *(
        _gateway(method, caller)
        for method in ("silent", "slow", "slow_bodies")
        for caller in ("", READER)
    ),
    *(_node(method, caller) for method in ("idle", "mute", "halves") for caller in ("", READER)),
)
"""Slow and idle ones."""
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        *IDLE,
        *map(
            _gateway, ("churn", "endless_heads", "huge_bodies", "wrong_tokens", "garbage", "bodies")
        ),
        *(_gateway(method, READER) for method in ("expensive", "unread", "downloads", "bodies")),
        *(_gateway(method, READER) for method in ("streams_of_events", "takers")),
        *(_gateway(method, WRITER) for method in ("slow_bodies", "huge_bodies", "bodies")),
        *map(_node, ("churn", "resets", "headers", "settings", "bombs")),
        *(_node(method, READER) for method in ("queries", "readers", "bombs", "resets")),
        *(_node(method, WRITER) for method in ("halves", "bombs", "uploads")),
    )
}


async def main() -> None:
    os.nice(NICE)
    plan = json.loads(sys.stdin.readline())
    random.seed(plan["seed"])
    floods = []
    for name, count, token in plan["floods"]:
        kind = KINDS[name]
        address = plan["gateway" if kind.flood is GatewayFlood else "node"]
        floods.append((f"{name}: ", kind.flood(address, count, token), kind.method))
    await hold(*floods)


if __name__ == "__main__":
    asyncio.run(main())
