"""The bound of connections to an HTTP server, and the choice of one to close if it is reached.

A connection is active while the server computes its answer, and idle while the server waits for the
client: for a request, or until a part of an answer is received. Only idle connections are closed,
so that neither clients with incomplete requests nor readers that receive nothing can block others.
The victim belongs to the host with the most connections, and made progress least recently; progress
is a complete request or a received part of an answer, not a few bytes of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

GRACE_S = 0.25
ADMIT_WITHIN_S = 1.25


@dataclass(slots=True, eq=False)
class OpenConnection:
    """One connection.

    Attributes:
        host: of the client.
        close: closes it at once, whatever is still to be sent.
        since: monotonic time of its last progress.
        is_worked_for: whether its request is being answered.
        held_bytes: size of the part of an answer that is being sent.
    """

    host: str
    close: Callable[[], None]
    since: float = 0.0
    is_worked_for: bool = False
    held_bytes: int = 0


class ConnectionLimiter:
    """Limits connections; belongs to one event loop.

    Args:
        connections_max: largest number of connections.
        held_bytes_max: total size of answers that are being sent; a single one may be larger.
        grace_s: a connection with progress within this time is not closed. New connections wait
            for it, one after the other, so that each has time for a request.
        admit_within_s: longest wait of a new connection.
        monotonic: clock in seconds.
    """

    def __init__(
        self,
        connections_max: int,
        *,
        held_bytes_max: int,
        grace_s: float = GRACE_S,
        admit_within_s: float = ADMIT_WITHIN_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections_max = connections_max
        self._held_bytes_max = held_bytes_max
        self._grace_s = grace_s
        self._admit_within_s = admit_within_s
        self._monotonic = monotonic
        self._removed = asyncio.Event()
        self._connections: dict[OpenConnection, None] = {}
        """By time of progress."""
        self._held_bytes = 0

    def __len__(self) -> int:
        """The number of connections, without those that were closed."""
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Total size of the answers that are being sent."""
        return self._held_bytes

    async def admit(self, connection: OpenConnection) -> bool:
        """Admits a connection; may close another. Returns False if there is no room."""
        give_up_at = self._monotonic() + self._admit_within_s
        while len(self._connections) >= self._connections_max:
            now = self._monotonic()
            victim = select_victim(self._connections)
            if victim is None or now >= give_up_at:
                return False
            wait_s = victim.since + self._grace_s - now
            if wait_s <= 0:
                self._evict(victim)
            else:
                await self._await_removal(min(wait_s, give_up_at - now))
        connection.since = self._monotonic()
        self._connections[connection] = None
        return True

    async def _await_removal(self, timeout_s: float) -> None:
        self._removed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._removed.wait()

    def remove(self, connection: OpenConnection) -> None:
        """Removes a connection that ended; no effect on one that was closed for another."""
        if connection in self._connections:
            self._forget(connection)
        self._removed.set()

    def record_request(self, connection: OpenConnection) -> None:
        """Records a complete request, or that the server computes the next part of an answer."""
        self._record(connection, is_worked_for=True, held_bytes=0)

    def record_answer(self, connection: OpenConnection, held_bytes: int) -> None:
        """Records a part of an answer to send; closes slow readers if the total is too large."""
        self._record(connection, is_worked_for=False, held_bytes=held_bytes)
        while self.held_bytes > self._held_bytes_max:
            others = (one for one in self._connections if one is not connection)
            victim = select_victim(one for one in others if one.held_bytes)
            if victim is None:
                return
            self._evict(victim)

    def record_written(self, connection: OpenConnection) -> None:
        """Records progress of the reader."""
        self._record(connection, is_worked_for=False, held_bytes=connection.held_bytes)

    def record_end(self, connection: OpenConnection) -> None:
        """Records that the answer was received."""
        self._record(connection, is_worked_for=False, held_bytes=0)

    def _record(self, connection: OpenConnection, *, is_worked_for: bool, held_bytes: int) -> None:
        if connection not in self._connections:
            return  # It was closed; its next read or write fails.
        del self._connections[connection]
        self._connections[connection] = None
        connection.since = self._monotonic()
        connection.is_worked_for = is_worked_for
        self._held_bytes += held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes

    def _evict(self, victim: OpenConnection) -> None:
        self._forget(victim)
        victim.close()

    def _forget(self, connection: OpenConnection) -> None:
        del self._connections[connection]
        self._held_bytes -= connection.held_bytes


def select_victim(connections: Iterable[OpenConnection]) -> OpenConnection | None:
    """The connection to close, of connections by time of progress; None if all are active."""
    all_connections = list(connections)
    of_host = Counter(connection.host for connection in all_connections)
    idle = [connection for connection in all_connections if not connection.is_worked_for]
    # The first of several hosts is that with the least recent progress.
    return max(idle, key=lambda connection: of_host[connection.host], default=None)
