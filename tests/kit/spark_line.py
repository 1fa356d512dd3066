"""A node that is reached through a line which counts the bytes that come back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import galileo
from galileo.cluster import free_ports


class Line:
    """Passes bytes between a port and another, and counts those that come back."""

    def __init__(self, port: int) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.bytes = 0
        self._to = port
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()  # the node does not serve yet
                continue
            for pair, counted in (((near, far), False), ((far, near), True)):
                threading.Thread(target=self._pump, args=(*pair, counted), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with source, sink:
            try:
                while data := source.recv(1 << 16):
                    self.bytes += len(data) * counted
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                return


@contextmanager
def behind_a_line() -> Iterator[tuple[galileo.LocalCluster, Line]]:
    """A node that is reached through a line."""
    [listen] = free_ports(1)
    line = Line(listen)
    settings = {"node": {"listen": f"127.0.0.1:{listen}"}}
    try:
        with galileo.LocalCluster(1, 1, port=line.port, settings=settings) as running:
            yield running, line
    finally:
        line.server.close()
