"""What proxies carry comes late, in order, or its answer never comes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fault_injection.proxies import Proxies

from galileo.cluster import free_ports


def free_address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def echo(server: socket.socket, came: list[bytes]) -> None:
    """Answers each connection with what it says, and notes it."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while piece := connection.recv(4_096):
                came.append(piece)
                connection.sendall(piece)

    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


@pytest.fixture
def way() -> Iterator[tuple[Proxies, str, list[bytes]]]:
    """Proxies, the address of one, and what has come to the server behind it."""
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server, came), daemon=True).start()
        proxies, address = Proxies(seed=3), free_address()
        proxies.between(address, f"127.0.0.1:{server.getsockname()[1]}")
        yield proxies, address, came
        proxies.close()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


Way = tuple[Proxies, str, list[bytes]]


def test_proxies_bytes_arrive_in_order(way: Way) -> None:
    proxies, address, _ = way
    proxies.delay_s = (0.0, 0.01)
    sent = bytes(range(256)) * 2_000
    with connected(address) as connection:
        sending = threading.Thread(target=connection.sendall, args=(sent,))
        sending.start()
        assert read(connection, len(sent)) == sent
        sending.join()
    assert proxies.counts["connections"] == 1


def test_proxies_delay_is_kept(way: Way) -> None:
    proxies, address, _ = way
    with connected(address) as connection:
        connection.sendall(b"early")
        assert read(connection, 5) == b"early"
        proxies.delay_s = (0.1, 0.1)
        started = time.monotonic()
        connection.sendall(b"late")
        assert read(connection, 4) == b"late"
        assert time.monotonic() - started >= 0.2


def test_proxies_cut_answers_drops_answers_only(way: Way) -> None:
    proxies, address, came = way
    proxies.cut_answers()
    with connected(address) as connection:
        connection.sendall(b"asked")
        deadline = time.monotonic() + 60
        while not proxies.counts["answers dropped"]:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert b"".join(came) == b"asked"
        proxies.heal()
        with contextlib.suppress(ConnectionError):
            assert read(connection, 5) == b""
    with connected(address) as connection:
        connection.sendall(b"again")
        assert read(connection, 5) == b"again"


def test_proxies_unreachable_target_ends_connection() -> None:
    proxies, address = Proxies(), free_address()
    proxies.between(address, free_address())
    with connected(address) as connection, contextlib.suppress(ConnectionError):
        assert read(connection, 1) == b""
    proxies.close()
