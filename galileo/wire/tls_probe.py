"""Finds out whether TLS is why connections failed, for the error message."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping

from galileo.errors import ConfigError
from galileo.wire.status import HANDSHAKE_FAILED, REFUSED

TIMEOUT_S = 1.0
_RECORD_TYPES = (0x15, 0x16)  # of TLS: an alert, a handshake
_SETTINGS = 0x04  # of HTTP/2: the type of a server's first frame
_HEADER_BYTES = 5


async def check_tls(reasons: Mapping[str, str], *, is_tls: bool) -> None:
    """Raises ConfigError if TLS is why a node did not answer: no further attempt can help.

    A node uses TLS and the caller does not, or the reverse, or the caller does not trust the node's
    certificate.

    Args:
        reasons: by address why the connection failed.
        is_tls: whether the caller uses TLS.
    """
    addresses = [address for address, reason in reasons.items() if REFUSED not in reason]
    answers = await asyncio.gather(*map(speaks_tls, addresses))
    for address, node_is_tls in zip(addresses, answers, strict=True):
        if node_is_tls and not is_tls:
            problem, remedy = "expects TLS, and this client connects without", "tls"
        elif node_is_tls and reasons[address] == HANDSHAKE_FAILED:
            problem, remedy = (
                "has a certificate that this client does not trust: it has expired, names another "
                "host, or is of another authority than the client's authority.pem",
                "tls",
            )
        elif node_is_tls is False and is_tls:
            problem, remedy = "does not speak TLS, and this client expects it", "no_tls"
        else:
            continue
        raise ConfigError(f"the node at {address} {problem}", address=address, remedy=remedy)


async def speaks_tls(address: str) -> bool | None:
    """Whether the server at `host:port` uses TLS; None if it does not answer in time."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(_client_hello())
                header = await reader.readexactly(_HEADER_BYTES)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, EOFError, TimeoutError):
        return None
    if header[0] in _RECORD_TYPES and header[1] == 3:
        return True
    return False if header[3] == _SETTINGS else None


def _client_hello() -> bytes:
    """The ClientHello of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()
