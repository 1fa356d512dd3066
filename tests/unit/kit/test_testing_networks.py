"""Packets between namespaces: carried, dropped in one direction, or a share of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from fault_injection.networks import Link, Network, network_missing
from waiting import wait_until

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
