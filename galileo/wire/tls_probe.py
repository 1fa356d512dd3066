"""Detects whether a server uses TLS, for the error message after a failed connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

TIMEOUT_S = 1.0
_RECORD_TYPES = (0x15, 0x16)  # of TLS: an alert, a handshake
_SETTINGS = 0x04  # of HTTP/2: the type of a server's first frame
_HEADER_BYTES = 5


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
