"""Hashes that are stable across processes and versions, in contrast to `hash()`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16
_DIGEST: np.dtype[Any] = np.dtype(f"V{DIGEST_BYTES}")


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: a bijection of 64-bit numbers whose every output bit looks random.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def text64(*parts: object) -> int:
    """64 bits of a BLAKE2b digest over the texts of `parts`, kept apart by a zero byte."""
    joined = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")


def digest(text: str) -> bytes:
    """Digest of a text, such as canonical CQL2 JSON; the chance of a collision is 2**-128."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def split_digests(data: bytes) -> list[bytes]:
    """The digests of a multiple of `DIGEST_BYTES` bytes."""
    digests: list[bytes] = np.frombuffer(data, dtype=_DIGEST).tolist()
    return digests
