"""Which nodes keep the record of a CCQ: rendezvous hashing (Thaler, Ravishankar, 1998)."""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from hashlib import blake2b


def draw(key: str, node: str) -> bytes:
    """A number that differs for each pair and is the same at every node."""
    return blake2b(f"{key}\0{node}".encode(), digest_size=8).digest()


@functools.lru_cache(maxsize=4096)
def replicas_of(
    ccq_id: str, nodes: tuple[str, ...], count: int, racks: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The `count` nodes with the lowest draws, or all, from as many racks as there are.

    Without racks, a node more or less changes one of them at most.

    Args:
        ccq_id: of the CCQ.
        nodes: of the cluster.
        count: nodes that keep the record.
        racks: of each node; none: each node is a rack of its own.
    """
    drawn = sorted(zip(nodes, racks or nodes, strict=True), key=lambda one: draw(ccq_id, one[0]))
    before, rounds = Counter[str](), list[tuple[int, str]]()
    for node, rack in drawn:
        rounds.append((before[rack], node))
        before[rack] += 1
    first = heapq.nsmallest(count, rounds, key=lambda one: one[0])  # Stable, as sorted is.
    return tuple(node for _, node in first)
