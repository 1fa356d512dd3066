"""HTTP/2 by hand: what no client of gRPC's would send, since it means no harm."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x9
END_HEADERS = 0x4
CANCEL = (8).to_bytes(4, "big")


def frame(kind: int, stream: int, content: bytes = b"", *, flags: int = 0) -> bytes:
    head = len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + content


def opening() -> bytes:
    """What a client says first."""
    return PREFACE + frame(SETTINGS, 0)


def call(method: str, stream: int) -> bytes:
    """The headers of a call; its request has yet to come."""
    named = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "node",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(header(name, value) for name, value in named.items())
    return frame(HEADERS, stream, block, flags=END_HEADERS)


def header(name: str, value: str) -> bytes:
    """One header that no table remembers; both texts have less than 127 bytes."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
