"""Detects clients that disconnect while their query runs."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DisconnectWatcher:
    """A thread that watches the connections of clients that wait for an answer."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._open = True
        self._thread = threading.Thread(target=self._watch, name="galileo-disconnects", daemon=True)
        self._thread.start()

    @contextmanager
    def calling(
        self, connection: socket.socket, on_disconnect: Callable[[], None]
    ) -> Iterator[None]:
        """Calls `on_disconnect` if the client ends the connection within the block."""
        with self._lock:
            self._selector.register(connection, selectors.EVENT_READ, on_disconnect)
        self._wake()
        try:
            yield
        finally:
            with self._lock:
                if connection in self._selector.get_map():
                    self._selector.unregister(connection)

    def close(self) -> None:
        self._open = False
        self._wake()
        self._thread.join()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def _wake(self) -> None:
        self._waker.send(b"\0")

    def _watch(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                else:
                    self._on_readable(key)

    def _on_readable(self, key: selectors.SelectorKey) -> None:
        """Handles data on a connection: its end, or the next request, which is left unread."""
        with self._lock:
            if key not in self._selector.get_map().values():
                return  # The block of this connection has ended.
            self._selector.unregister(key.fileobj)
            connection = key.fileobj
            assert isinstance(connection, socket.socket), "only sockets are registered"
            if _has_ended(connection):
                key.data()


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
