"""Which addresses sinks may reach: public ones, and those that the operator of the worker names.

Who may create brokers would otherwise reach what the worker's host alone can reach, such as
services on its loopback address or the metadata of a cloud.

Public are the unicast addresses but for the ranges in the registries of IANA for special purposes
(RFC 6890; "IANA IPv4 Special-Purpose Address Registry" and "IANA IPv6 Special-Purpose Address
Registry", as of 2025-10) that are not globally reachable. The tables are here, since those of
`ipaddress` differ between patch versions of Python. An IPv6 address that leads to an IPv4 address
is judged by that one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias

from galileo.errors import ConfigError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
ADDRESSES_TRIED_MAX = 4
"""Of one host, until a connection has failed."""
Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a host for a port, as text."""


def _networks(text: str) -> tuple[Any, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


SPECIAL_V4 = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
    "224.0.0.0/4 240.0.0.0/4"
)
"""Not public. 192.0.0.0/24 is so as a whole: its two global addresses lead to the nearest NAT.

224.0.0.0/4 is multicast, and 240.0.0.0/4 includes broadcast.
"""
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""The only IPv6 range with global unicast addresses."""
SPECIAL_V6 = _networks("2001::/23 2001:db8::/32 3fff::/20")
"""Not public within `GLOBAL_V6`.

2001::/23 is for protocols: of its exceptions, ORCHIDs, drones, and anycast addresses of the nearest
NAT or relay, none is a server.
"""
_HOLDERS_OF_V4 = {  # By where the IPv4 address ends: how many bits lie behind it.
    ipaddress.IPv6Network("::ffff:0:0/96"): 0,  # mapped
    ipaddress.IPv6Network("::/96"): 0,  # compatible; :: and ::1 are in 0.0.0.0/8
    ipaddress.IPv6Network("64:ff9b::/96"): 0,  # NAT64
    ipaddress.IPv6Network("2002::/16"): 80,  # 6to4
}
_TEREDO = ipaddress.IPv6Network("2001::/32")


def judged(address: Address) -> tuple[Address, ...]:
    """The addresses to which packets to an address go: of IPv6 perhaps IPv4 addresses."""
    if isinstance(address, IPv4Address):
        return (address,)
    number = int(address)
    if address in _TEREDO:  # Its server, and its client with inverted bits.
        return IPv4Address(number >> 64 & 0xFFFFFFFF), IPv4Address(~number & 0xFFFFFFFF)
    for network, bits in _HOLDERS_OF_V4.items():
        if address in network:
            return (IPv4Address(number >> bits & 0xFFFFFFFF),)
    return (address,)


def is_public(address: Address) -> bool:
    """Whether an address is one of the public Internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in SPECIAL_V4)
    return address in GLOBAL_V6 and not any(address in network for network in SPECIAL_V6)


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host by the resolver of the system, without duplicates."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class AddressPolicy:
    """Which addresses may be reached.

    Args:
        allow: names of hosts, addresses and networks, as of `WorkerOptions.allow`.
        look_up: finds the addresses of a host.

    Raises:
        ConfigError: one has the form of a network, and is none.
    """

    def __init__(self, allow: Sequence[str], *, look_up: Lookup = look_up) -> None:
        self._networks, self._names = list[Network](), set[str]()
        self._look_up = look_up
        for text in allow:
            try:
                self._networks.append(ipaddress.ip_network(text))
            except ValueError as error:
                if "/" in text or not text:
                    raise ConfigError(
                        f"expected a host, or a network such as 10.0.0.0/8, got {text!r}: {error}",
                        expected="network",
                    ) from error
                self._names.add(text.lower())

    def check(self, host: str, addresses: Sequence[str]) -> None:
        """Raises ConfigError if a host may not be reached at one of these addresses."""
        if host.lower() in self._names:
            return
        for text in addresses:
            try:
                address = ipaddress.ip_address(text.partition("%")[0])
            except ValueError as error:
                raise ConfigError(
                    f"expected a name, or an address such as 192.0.2.7, got {host!r}: {error}",
                    expected="address",
                ) from error
            if self._is_named(address):
                continue
            for reached in judged(address):
                if not (is_public(reached) or self._is_named(reached)):
                    raise ConfigError(
                        f"expected a public address of host {host!r}, got {reached}; to let sinks "
                        "reach it, allow the host or its network where the worker is started",
                        expected="allowed_address",
                    )

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Some addresses of a host, all of which are checked.

        Who connects uses one of them: another look-up could give others.

        Raises:
            ConfigError: one may not be reached.
            OSError: the name has no address.
        """
        addresses = await self._look_up(host, port)
        self.check(host, addresses)
        return addresses[:ADDRESSES_TRIED_MAX]

    def _is_named(self, address: Address) -> bool:
        return any(address in network for network in self._networks)
