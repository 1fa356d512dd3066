"""Which nodes keep the record of a CCQ: rendezvous hashing (Thaler, Ravishankar, 1998)."""

from __future__ import annotations

import functools
import heapq
from hashlib import blake2b


def draw(key: str, node: str) -> bytes:
    """A number that differs for each pair and is the same at every node."""
    return blake2b(f"{key}\0{node}".encode(), digest_size=8).digest()


@functools.lru_cache(maxsize=4096)
def replicas_of(ccq_id: str, nodes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The `count` nodes with the lowest draws, or all; a node more or less changes one at most."""
    return tuple(heapq.nsmallest(count, nodes, key=lambda node: draw(ccq_id, node)))
