"""Many readers of events of one continuous query over HTTP, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

RETRY_S = 0.05
CONNECT_S = 5.0


class EventReaders:
    """Readers that go to another gateway as soon as they lose the one that they have.

    Args:
        urls: of the gateways.
        ccq_id: of the query.
        count: of readers.
        seed: of the choice of gateways.

    Attributes:
        readers: each with what it has.
    """

    def __init__(self, urls: Sequence[str], ccq_id: str, *, count: int, seed: int) -> None:
        rng = random.Random(seed)
        self.readers = [
            EventReader(urls, ccq_id, rng=random.Random(rng.random())) for _ in range(count)
        ]
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> EventReaders:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        self._thread.join()

    @property
    def connected(self) -> int:
        return sum(reader.is_connected for reader in self.readers)

    @property
    def failures(self) -> list[BaseException]:
        """Errors that end readers."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in ended if (error := task.exception()) is not None]

    def _run(self) -> None:
        async def read() -> None:
            self._tasks = [asyncio.create_task(reader.run()) for reader in self.readers]
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._loop.run_until_complete(read())
        self._loop.close()


class EventReader:
    """One of them.

    Attributes:
        found: the labels that it was sent.
        connections: that it had.
        away_s: how long each loss of its gateway lasted.
        is_connected: whether a gateway answers it.
    """

    def __init__(self, urls: Sequence[str], ccq_id: str, *, rng: random.Random) -> None:
        self.found = Counter[str]()
        self.connections = 0
        self.away_s: list[float] = []
        self.is_connected = False
        self._urls = list(urls)
        self._path = f"/ccqs/{ccq_id}"
        self._rng = rng
        self._token = ""

    async def run(self) -> None:
        at, lost_at = self._rng.randrange(len(self._urls)), time.monotonic()
        while True:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                lost_at = await self._read(self._urls[at], lost_at)
            at = (at + 1) % len(self._urls)
            await asyncio.sleep(self._rng.uniform(0, RETRY_S))

    async def _read(self, url: str, lost_at: float) -> float:
        """Reads until the connection ends. Returns when; `lost_at` if there was none."""
        headers = f"Last-Event-ID: {self._token}\r\n" if self._token else ""
        async with asyncio.timeout(CONNECT_S):
            stream, writer = await _requested(url, f"{self._path}/events", headers)
        try:
            async with asyncio.timeout(CONNECT_S):
                head = await stream.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            if status != 200:
                assert status in (503, 504), head
                return lost_at
            if self.connections:
                self.away_s.append(time.monotonic() - lost_at)
            self.connections += 1
            self.is_connected = True
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    await self._take(url, await stream.readuntil(b"\n\n"))
            return time.monotonic()
        finally:
            self.is_connected = False
            writer.close()

    async def _take(self, url: str, frame: bytes) -> None:
        if not frame.startswith(b"id: "):
            return
        after, token, labels, matched = _parsed(frame)
        assert after == self._token, "it continues where the reader is"
        if matched:
            labels = await self._linked(url, after, token)
            assert len(labels) == matched
        self.found.update(labels)
        self._token = token

    async def _linked(self, url: str, after: str, until: str) -> tuple[str, ...]:
        """The labels of an event that has a link."""
        labels: tuple[str, ...] = ()
        while True:
            query = f"f=json&after={quote(after)}&until={quote(until)}"
            stream, writer = await _requested(url, f"{self._path}/labels?{query}", "")
            try:
                head, _, body = (await stream.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
            if head.split()[1] != b"200":
                raise ConnectionResetError("the gateway is gone")
            document = json.loads(body)
            labels += tuple(one["label"] for one in document["labels"])
            after = document["token"]
            if not document["more"]:
                return labels


async def _requested(
    url: str, path: str, headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The connection of a request; with HTTP/1.0, whose answers are not in chunks."""
    where = urlsplit(url)
    stream, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 22)
    writer.write(f"GET {path} HTTP/1.0\r\nHost: {where.netloc}\r\n{headers}\r\n".encode())
    return stream, writer


@functools.lru_cache(maxsize=256)
def _parsed(frame: bytes) -> tuple[str, str, tuple[str, ...], int]:
    """Token before and after an event, its labels, and the number of those behind a link."""
    document = json.loads(frame.partition(b"\ndata: ")[2])
    features = document.get("features", ())
    labels = tuple(feature["properties"]["label"] for feature in features)
    return document["after"], document["token"], labels, document.get("numberMatched", 0)
