"""Who is connected to an HTTP server, and who gives way where all seats are taken.

A seat is worked for while its request is answered, and otherwise waits for its client: for a
request, or for the answer to be taken. Whoever makes the server wait may have to go, so neither
clients that never end a request nor readers that take nothing can shut out others. Of those that
wait, somebody of the host that has the most seats goes, and of these the one that got on least
recently: a request that has come whole, or a piece of an answer that was taken, is getting on; a
few bytes of a request are not.
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
        since: when it last got on, by the monotonic clock.
        is_worked_for: whether the client waits for us, and not we for it.
        held_bytes: of the answer that it is to take.
    """

    connection: socket.socket
    host: str
    since: float
    is_worked_for: bool = False
    held_bytes: int = 0


class ConnectionLimiter:
    """Safe to use by all threads of a server.

    Args:
        seats_max: at a time.
        held_bytes_max: of answers that are being taken, together; one alone may be larger.
        grace_s: nobody is sent away who got on within this time. Newcomers wait for it, in the
            order in which they came; so a seat has time for a request, however many come.
        leave_within_s: how long `take` waits beyond that for those that were sent away, where as
            many as there are seats have not left yet.
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
        """In the order in which they got on."""
        self._leaving: set[socket.socket] = set()

    def __len__(self) -> int:
        """Those that were sent away and have not left yet are not counted."""
        return len(self._seats)

    def take(self, connection: socket.socket, host: str) -> bool:
        """Whether there is a seat; another one may have given way for it."""
        with self._lock:
            if not self._has_room():
                return False
            self._seats[connection] = Connection(connection, host, time.monotonic())
            return True

    def _has_room(self) -> bool:
        """Makes room, where it can be made in time; with the lock."""
        give_up_at = time.monotonic() + self._grace_s + self._leave_within_s
        while True:
            now = time.monotonic()
            wait_s = give_up_at - now
            # Threads of those that were sent away end within a moment, and are bounded always.
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
        """To be called once, before the connection is closed; whoever has no seat may, too."""
        with self._lock:
            self._seats.pop(connection, None)
            self._leaving.discard(connection)
            self._lock.notify_all()

    def record_request(self, connection: socket.socket) -> None:
        """It has come whole: now the client waits."""
        self._note(connection, is_worked_for=True)

    def record_answer(self, connection: socket.socket, held_bytes: int) -> None:
        """It is to be taken; others who are slow at that give way where all are too large."""
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
        """A piece of the answer."""
        self._note(connection)

    def record_end(self, connection: socket.socket) -> None:
        """The answer was taken; a request may come."""
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
                return  # It was sent away, and hears of it when it reads or writes.
            self._seats[connection] = seat
            seat.since = time.monotonic()
            if is_worked_for is not None:
                seat.is_worked_for = is_worked_for
            if held_bytes is not None:
                seat.held_bytes = held_bytes

    def _send_away(self, seat: Connection) -> None:
        del self._seats[seat.connection]
        self._leaving.add(seat.connection)
        with contextlib.suppress(OSError):  # it may have hung up
            seat.connection.shutdown(socket.SHUT_RDWR)


def select_victim(seats: Iterable[Connection]) -> Connection | None:
    """Of seats in the order in which they got on; None where all are worked for."""
    all_seats = list(seats)
    of_host = Counter(seat.host for seat in all_seats)
    waiting = [seat for seat in all_seats if not seat.is_worked_for]
    # The first of several that are as large is that which got on least recently.
    return max(waiting, key=lambda seat: of_host[seat.host], default=None)
