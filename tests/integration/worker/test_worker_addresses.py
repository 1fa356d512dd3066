"""Which addresses sinks may reach."""

from __future__ import annotations

import ipaddress

import pytest
from expected_errors import raises

from galileo.errors import ConfigError
from galileo.worker.addresses import AddressPolicy, is_public, judged


@pytest.mark.parametrize(
    ("allow", "host", "address", "is_allowed"),
    [
        ([], "example.org", "93.184.216.34", True),
        ([], "example.org", "2606:2800:220:1:248:1893:25c8:1946", True),
        ([], "example.org", "127.0.0.1", False),
        ([], "example.org", "10.1.2.3", False),
        ([], "example.org", "169.254.169.254", False),
        ([], "example.org", "fe80::1%eth0", False),
        ([], "example.org", "::ffff:127.0.0.1", False),
        ([], "example.org", "0.0.0.0", False),
        ([], "example.org", "224.0.0.1", False),
        ([], "example.org", "64:ff9b::a00:5", False),
        ([], "example.org", "64:ff9b::5db8:d822", True),
        ([], "example.org", "64:ff9b:1::5db8:d822", False),
        ([], "example.org", "2002:7f00:1::", False),
        ([], "example.org", "::127.0.0.1", False),
        ([], "example.org", "fec0::1", False),
        (["10.0.0.0/8"], "example.org", "64:ff9b::a00:5", True),
        (["64:ff9b:1::/48"], "example.org", "64:ff9b:1::a00:5", True),
        (["10.0.0.0/8"], "example.org", "10.1.2.3", True),
        (["10.0.0.0/8"], "example.org", "::ffff:10.1.2.3", True),
        (["10.0.0.0/8"], "example.org", "192.168.1.1", False),
        (["sink.internal"], "SINK.internal", "192.168.1.1", True),
        (["sink.internal"], "other.internal", "192.168.1.1", False),
        (["::1"], "localhost", "::1", True),
    ],
)
def test_public_and_named_addresses_are_allowed(
    allow: list[str], host: str, address: str, is_allowed: bool
) -> None:
    policy = AddressPolicy(allow)
    if is_allowed:
        policy.check(host, [address])
        return
    with pytest.raises(ConfigError):
        policy.check(host, [address])


# Of the two registries for special purposes and of the IPv6 address space: those that are not
# globally reachable, multicast, and all that no registry has given out. First and last address.
SPECIAL = """
0.0.0.0 0.255.255.255
10.0.0.0 10.255.255.255
100.64.0.0 100.127.255.255
127.0.0.0 127.255.255.255
169.254.0.0 169.254.255.255
172.16.0.0 172.31.255.255
192.0.0.0 192.0.0.255
192.0.2.0 192.0.2.255
192.88.99.0 192.88.99.255
192.168.0.0 192.168.255.255
198.18.0.0 198.19.255.255
198.51.100.0 198.51.100.255
203.0.113.0 203.0.113.255
224.0.0.0 255.255.255.255
:: ::ffff
::ffff:0:0 ::ffff:0.255.255.255
::ffff:127.0.0.0 ::ffff:127.255.255.255
64:ff9b:: 64:ff9b::ff:ffff
64:ff9b::a00:0 64:ff9b::aff:ffff
64:ff9b::7f00:0 64:ff9b::7fff:ffff
64:ff9b::e000:0 1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
2001:1:: 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff
2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff
2002:: 2002:ff:ffff:ffff:ffff:ffff:ffff:ffff
2002:a00:: 2002:aff:ffff:ffff:ffff:ffff:ffff:ffff
2002:7f00:: 2002:7fff:ffff:ffff:ffff:ffff:ffff:ffff
2002:c0a8:: 2002:c0a8:ffff:ffff:ffff:ffff:ffff:ffff
3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff
4000:: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
"""
EDGES = {"0.0.0.0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}
NEIGHBOURS_TOO = {"::ffff", "::ffff:0:0", "64:ff9b::", "2001:1::"}
"""Next to these another special range lies."""


def is_refused(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return not all(map(is_public, judged(address)))


@pytest.mark.parametrize("line", SPECIAL.strip().splitlines())
def test_special_ranges_are_refused_and_their_neighbours_are_not(line: str) -> None:
    first, last = map(ipaddress.ip_address, line.split())
    middle = type(first)((int(first) + int(last)) // 2)
    assert all(map(is_refused, (first, middle, last)))
    for edge, neighbour in ((first, -1), (last, 1)):
        if str(edge) not in EDGES:
            assert is_refused(edge + neighbour) == (str(edge) in NEIGHBOURS_TOO)


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::192.0.2.1", "192.0.2.1"),
        ("64:ff9b::192.0.2.1", "192.0.2.1"),
        ("2002:c000:201:1::7", "192.0.2.1"),
        # The example of RFC 4380, section 4.
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "65.54.227.120 192.0.2.45"),
        ("2606:2800::1", "2606:2800::1"),
        ("64:ff9b:1::1", "64:ff9b:1::1"),
    ],
)
def test_addresses_within_addresses_are_judged(address: str, reached: str) -> None:
    assert " ".join(map(str, judged(ipaddress.ip_address(address)))) == reached


@pytest.mark.parametrize(
    ("server", "client", "is_allowed"),
    [
        ("93.184.216.34", "93.184.216.35", True),
        ("93.184.216.34", "10.0.0.1", False),
        ("10.0.0.1", "93.184.216.34", False),
    ],
)
def test_server_and_client_of_teredo_are_judged(server: str, client: str, is_allowed: bool) -> None:
    number = 0x20010000 << 96 | int(ipaddress.IPv4Address(server)) << 64
    number |= ~int(ipaddress.IPv4Address(client)) & 0xFFFFFFFF
    assert is_refused(ipaddress.IPv6Address(number)) != is_allowed


async def test_connections_use_the_addresses_that_were_checked() -> None:
    async def look_up(host: str, port: int) -> list[str]:
        return answers.pop(0)

    answers = [["93.184.216.34"], ["93.184.216.34", "127.0.0.1"]]
    policy = AddressPolicy([], look_up=look_up)
    assert await policy.resolve("example.org", 443) == ["93.184.216.34"]
    with raises(ConfigError, expected="allowed_address"):
        await policy.resolve("example.org", 443)


def test_each_address_of_a_host_counts() -> None:
    with pytest.raises(ConfigError):
        AddressPolicy([]).check("example.org", ["93.184.216.34", "127.0.0.1"])


@pytest.mark.parametrize("text", ["10.0.0.0/99", "", "10.0.0.1/8"])
def test_what_looks_like_a_network_has_to_be_one(text: str) -> None:
    with pytest.raises(ConfigError):
        AddressPolicy([text])
