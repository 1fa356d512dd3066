"""The bound of connections to an HTTP server, and the choice of one to close if it is reached.

A connection is active while the server computes its answer, and idle while the server waits for the
client: for a request, or until an answer is received. Only idle connections are closed, so that
neither clients with incomplete requests nor readers that receive nothing can block others. The
victim belongs to the host with the most connections, and made progress least recently; progress is
a complete request or a received part of an answer, not a few bytes of a request.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

GRACE_S = 0.25
LEAVE_WITHIN_S = 1.0


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Attributes:
        host: of the client.
        since: monotonic time of its last progress.
        is_worked_for: whether its request is being answered.
        held_bytes: size of the answer that is being sent.
    """

    connection: socket.socket
    host: str
    since: float
    is_worked_for: bool = False
    held_bytes: int = 0


class ConnectionLimiter:
    """Limits connections; thread-safe.

    Args:
        seats_max: largest number of connections.
        held_bytes_max: total size of answers that are being sent; a single one may be larger.
        grace_s: a connection with progress within this time is not closed. New connections wait
            for it in order, so that each has time for a request.
        leave_within_s: further wait of `take` for closed connections whose threads have not ended.
    """

    def __init__(
        self,
        seats_max: int,
        *,
        held_bytes_max: int,
        grace_s: float = GRACE_S,
        leave_within_s: float = LEAVE_WITHIN_S,
    ) -> None:
        self._seats_max = seats_max
        self._held_bytes_max = held_bytes_max
        self._grace_s = grace_s
        self._leave_within_s = leave_within_s
        self._lock = threading.Condition()
        self._seats: dict[socket.socket, Connection] = {}
        """The connections, by time of progress."""
        self._leaving: set[socket.socket] = set()

    def __len__(self) -> int:
        """The number of connections, without those that were closed."""
        return len(self._seats)

    def take(self, connection: socket.socket, host: str) -> bool:
        """Admits a connection; may close another. Returns False if there is no room."""
        with self._lock:
            if not self._has_room():
                return False
            self._seats[connection] = Connection(connection, host, time.monotonic())
            return True

    def _has_room(self) -> bool:
        """Closes connections until there is room, within the time; holds the lock."""
        give_up_at = time.monotonic() + self._grace_s + self._leave_within_s
        while True:
            now = time.monotonic()
            wait_s = give_up_at - now
            # Threads of closed connections end soon, and their number is bounded.
            if len(self._leaving) < self._seats_max:
                if len(self._seats) < self._seats_max:
                    return True
                gone = select_victim(self._seats.values())
                if gone is None:
                    return False
                wait_s = gone.since + self._grace_s - now
                if wait_s <= 0:
                    self._send_away(gone)
                    return True
            if now >= give_up_at:
                return False
            self._lock.wait(wait_s)

    def leave(self, connection: socket.socket) -> None:
        """Removes a connection; call it before closing, also if it was not admitted."""
        with self._lock:
            self._seats.pop(connection, None)
            self._leaving.discard(connection)
            self._lock.notify_all()

    def record_request(self, connection: socket.socket) -> None:
        """Records a complete request."""
        self._note(connection, is_worked_for=True)

    def record_answer(self, connection: socket.socket, held_bytes: int) -> None:
        """Records the size of an answer; closes slow readers if the total is too large."""
        self._note(connection, is_worked_for=False, held_bytes=held_bytes)
        with self._lock:
            while sum(seat.held_bytes for seat in self._seats.values()) > self._held_bytes_max:
                others = (
                    seat for seat in self._seats.values() if seat.connection is not connection
                )
                gone = select_victim(seat for seat in others if seat.held_bytes)
                if gone is None:
                    return
                self._send_away(gone)

    def record_written(self, connection: socket.socket) -> None:
        """Records progress of the reader."""
        self._note(connection)

    def record_end(self, connection: socket.socket) -> None:
        """Records that the answer was received."""
        self._note(connection, is_worked_for=False, held_bytes=0)

    def _note(
        self,
        connection: socket.socket,
        *,
        is_worked_for: bool | None = None,
        held_bytes: int | None = None,
    ) -> None:
        with self._lock:
            seat = self._seats.pop(connection, None)
            if seat is None:
                return  # It was closed; its next read or write fails.
            self._seats[connection] = seat
            seat.since = time.monotonic()
            if is_worked_for is not None:
                seat.is_worked_for = is_worked_for
            if held_bytes is not None:
                seat.held_bytes = held_bytes

    def _send_away(self, seat: Connection) -> None:
        del self._seats[seat.connection]
        self._leaving.add(seat.connection)
        with contextlib.suppress(OSError):  # the client may have disconnected
            seat.connection.shutdown(socket.SHUT_RDWR)


def select_victim(seats: Iterable[Connection]) -> Connection | None:
    """The connection to close, of connections by time of progress; None if all are active."""
    all_seats = list(seats)
    of_host = Counter(seat.host for seat in all_seats)
    waiting = [seat for seat in all_seats if not seat.is_worked_for]
    # The first of several hosts is that with the least recent progress.
    return max(waiting, key=lambda seat: of_host[seat.host], default=None)
