"""A process with many readers of the events of one continuous query over HTTP.

It opens the streams, and says "ready" when each has its answer. For each line that it reads, a
text, it waits until every reader has a whole event with that text, and writes when the first and
the last one had it (seconds of the monotonic clock).
"""

from __future__ import annotations

import select
import socket
import sys
import time
from urllib.parse import urlsplit

from benchmarks.clusters import READY

OPENED_AT_ONCE = 200
"""Connections whose answers are awaited before further ones are opened; servers queue so many."""
TIMEOUT_S = 300.0
CHUNK_BYTES = 1 << 16
_END = b"\n\n\r\n"
"""Of an event, and of the chunk of HTTP that it is sent in."""


class EventReaders:
    """Streams of events of one address.

    Args:
        url: of the events.
        count: of streams.
    """

    def __init__(self, url: str, count: int) -> None:
        where = urlsplit(url)
        self._target = where.hostname, where.port
        self._request = f"GET {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()
        self._epoll = select.epoll()
        self._streams: dict[int, socket.socket] = {}
        self._received: dict[int, bytearray] = {}
        for start in range(0, count, OPENED_AT_ONCE):
            opened = [self._open() for _ in range(min(OPENED_AT_ONCE, count - start))]
            self._await(b"event: update", opened)

    def wait(self, text: bytes) -> tuple[float, float]:
        """When the first and the last stream had an event with a text."""
        return self._await(text, list(self._streams))

    def _open(self) -> int:
        stream = socket.create_connection(self._target, timeout=TIMEOUT_S)
        stream.sendall(self._request)
        stream.setblocking(False)
        number = stream.fileno()
        self._streams[number], self._received[number] = stream, bytearray()
        self._epoll.register(number, select.EPOLLIN)
        return number

    def _await(self, text: bytes, numbers: list[int]) -> tuple[float, float]:
        waiting = set(numbers)
        first = last = 0.0
        give_up_at = time.monotonic() + TIMEOUT_S
        while waiting:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{len(waiting)} readers do not have {text!r}")
            for number, _ in self._epoll.poll(1.0):
                self._receive(number)
                received = self._received[number]
                if number in waiting and text in received and received.endswith(_END):
                    waiting.discard(number)
                    last = time.monotonic()
                    first = first or last
        for number in numbers:
            self._received[number].clear()
        return first, last

    def _receive(self, number: int) -> None:
        piece = self._streams[number].recv(CHUNK_BYTES)
        if not piece:
            raise RuntimeError("a stream has ended")
        self._received[number] += piece
        received = self._received[number]
        if received.startswith(b"HTTP/1.1") and not received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"expected status 200, got {bytes(received[:40])!r}")


def main() -> None:
    """Reads the URL and the number of streams from the command line."""
    readers = EventReaders(sys.argv[1], int(sys.argv[2]))
    print(READY, flush=True)
    for line in sys.stdin:
        first, last = readers.wait(line.strip().encode())
        print(first, last, flush=True)


if __name__ == "__main__":
    main()
