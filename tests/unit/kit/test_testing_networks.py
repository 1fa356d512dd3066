"""Packets between namespaces: carried, dropped in one direction, or a share of them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from fault_injection.networks import Link, Network, network_missing
from fault_injection.proxies import Proxies
from waiting import wait_until

from galileo.cluster import free_ports

LISTEN = """
import socket
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", 5000))
datagrams.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE: room for all of them
datagrams.settimeout(60)
print("ready", flush=True)
count = 0
while (data := datagrams.recv(100)) != b"end":
    count += 1
print(count)
"""
SEND = """
import socket, sys, time
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    datagrams.sendto(b"one", (sys.argv[1], 5000))
    if number % 20 == 19:
        time.sleep(0.002)
if sys.argv[3]:
    datagrams.sendto(sys.argv[3].encode(), (sys.argv[1], 5000))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    missing = network_missing()
    if missing is not None:
        pytest.skip(missing)
    with Network(("a", "b"), seed=1) as made:
        yield made


def send(network: Network, sender: str, receiver: str, count: int, last: str = "") -> None:
    words = [network.hosts[receiver].address, str(count), last]
    subprocess.run(
        [*network.hosts[sender].prefix, sys.executable, "-c", SEND, *words], check=True, timeout=60
    )


def received(network: Network, lost: dict[Link, float]) -> int:
    """How many of 400 datagrams from a to b arrive while a share of links is lost."""
    command = [*network.hosts["b"].prefix, sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "ready\n"
        before = network.carried + network.dropped
        with network.losing([*lost], max(lost.values(), default=0.0)):
            send(network, "a", "b", 400)
            wait_until(
                lambda: network.carried + network.dropped >= before + 400, what="all datagrams"
            )
        send(network, "a", "b", 0, last="end")
        return int(listening.stdout.readline())


def test_network_datagrams_are_lost_at_set_rate(network: Network) -> None:
    assert received(network, {}) == 400
    dropped = network.dropped
    assert received(network, {("a", "b"): 1.0}) == 0
    assert network.dropped >= dropped + 400
    assert 100 < received(network, {("a", "b"): 0.5}) < 300


def test_network_one_way_cut_keeps_other_way(network: Network) -> None:
    assert received(network, {("b", "a"): 1.0}) == 400
    assert sorted(network.around("a")) == [("a", "b"), ("b", "a")]


# --- what proxies carry comes late, in order, or its answer never comes --------------------------


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
