"""Digests of query texts, equal on all nodes, so that each text is sent once."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

DIGEST_BYTES = 16
_DIGEST: np.dtype[Any] = np.dtype(f"V{DIGEST_BYTES}")


def digest(text: str) -> bytes:
    """Digest of canonical CQL2 JSON; the chance of a collision is 2**-128."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def unpacked_digests(data: bytes) -> list[bytes]:
    """The digests of a multiple of `DIGEST_BYTES` bytes."""
    digests: list[bytes] = np.frombuffer(data, dtype=_DIGEST).tolist()
    return digests
