"""Loopback addresses, and `Host` headers that name them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_name(header: str) -> str:
    """The name in a `Host` header, "host" or "host:port", in lower case; "" if it has none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def names_this_machine(header: str, *, listening: str) -> bool:
    """Whether a `Host` header names the loopback address that a server listens on.

    This prevents DNS rebinding: a page of another site can map its name to a loopback address and
    send requests from a browser on this machine; they carry that name.

    Args:
        header: its value, "host" or "host:port".
        listening: the server's address.
    """
    return host_name(header) in LOOPBACK_NAMES | {listening}


def url_of(host: str, port: int, *, scheme: str = "http") -> str:
    """The URL of a server at an address, without a path."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
