"""Which addresses sinks may reach: public ones, and those that the operator of the worker names.

Who may create brokers would otherwise reach what the worker's host alone can reach, such as
services on its loopback address or the metadata of a cloud.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import TypeAlias

from galileo.errors import ConfigError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressPolicy:
    """Which addresses may be reached.

    Args:
        allow: names of hosts, addresses and networks, as of `WorkerOptions.allow`.

    Raises:
        ConfigError: one has the form of a network, and is none.
    """

    def __init__(self, allow: Sequence[str]) -> None:
        self._networks, self._names = list[Network](), set[str]()
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
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            if address.is_global and not address.is_multicast:
                continue
            if not any(address in network for network in self._networks):
                raise ConfigError(
                    f"expected a public address of host {host!r}, got {address}; to let sinks "
                    "reach it, allow the host or its network where the worker is started",
                    expected="allowed_address",
                )

    async def resolve(self, host: str, port: int) -> None:
        """Checks all addresses of a host.

        Raises:
            ConfigError: one may not be reached.
            OSError: the name has no address.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.check(host, [str(sockaddr[0]) for *_, sockaddr in found])
