"""TCP proxies between processes: what they carry comes later, or its answer never comes.

Each node listens behind one, and the topology names the proxies, so clients and other nodes alike
come through them. Delay is drawn anew for each piece, so pieces of different connections overtake
each other; those of one connection stay in order, as TCP has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator

from galileo.cluster import LocalCluster, free_ports

PIECE_BYTES = 64 << 10
WAITING_MAX = 256
"""Pieces of one direction of a connection that are under way."""
START_TIMEOUT_S = 10.0


class Proxies:
    """Proxies in a thread of their own.

    Args:
        seed: of the delays.

    Attributes:
        delay_s: least and most that a piece takes, in either direction.
        counts: "connections", "pieces", "answers dropped".
    """

    def __init__(self, *, seed: int = 1) -> None:
        self.delay_s = (0.0, 0.0)
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._drops_answers = False
        self._thread.start()

    def between(self, address: str, target: str) -> None:
        """Forwards connections to `address` to `target`."""
        made = asyncio.run_coroutine_threadsafe(self._listen(address, target), self._loop)
        made.result(START_TIMEOUT_S)

    def cut_answers(self) -> None:
        """What clients have sent arrives, what comes back does not, until `heal`."""
        self._loop.call_soon_threadsafe(setattr, self, "_drops_answers", True)

    def heal(self) -> None:
        """Connections over which an answer was lost end; new ones are whole."""
        self._loop.call_soon_threadsafe(self._heal)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

    async def _listen(self, address: str, target: str) -> None:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "connections are carried in tasks"
            self._open.add(task)
            try:
                await self._carry(reader, writer, target)
            except (OSError, asyncio.CancelledError):
                pass  # One side is gone, and so is the other in a moment.
            finally:
                self._open.discard(task)
                writer.transport.abort()

        host, _, port = address.rpartition(":")
        self._servers.append(await asyncio.start_server(carry, host, int(port)))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str
    ) -> None:
        host, _, port = target.rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        self.counts["connections"] += 1
        try:
            ways = [
                asyncio.create_task(self._one_way(reader, inner_writer, is_answer=False)),
                asyncio.create_task(self._one_way(inner_reader, writer, is_answer=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            inner_writer.transport.abort()

    async def _one_way(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING_MAX)
        sender = asyncio.create_task(self._send(waiting, writer, is_answer=is_answer))
        try:
            while piece := await reader.read(PIECE_BYTES):
                due = self._loop.time() + self._random.uniform(*self.delay_s)
                await waiting.put((due, piece))
            await waiting.put((0.0, b""))
            await sender
        finally:
            sender.cancel()

    async def _send(
        self,
        waiting: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        while True:
            due, piece = await waiting.get()
            if not piece:
                return
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if is_answer and self._drops_answers:
                self.counts["answers dropped"] += 1
                continue
            writer.write(piece)
            await writer.drain()
            self.counts["pieces"] += 1

    def _heal(self) -> None:
        self._drops_answers = False
        for task in self._open:
            task.cancel()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


@contextlib.contextmanager
def proxied(cluster: LocalCluster, *, seed: int = 1) -> Iterator[Proxies]:
    """Has all nodes of a cluster that is not started yet be reached through proxies."""
    proxies = Proxies(seed=seed)
    try:
        for node in cluster.nodes:
            behind = f"127.0.0.1:{free_ports(1)[0]}"
            proxies.between(node.address, behind)
            node.listen = behind
        yield proxies
    finally:
        proxies.close()
