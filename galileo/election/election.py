"""The election of the nodes that run a continuous query: a coordinator and its standbys (paper,
IV.B and IV.F).

Nodes are polled in rounds, each with twice as many as the one before. The nodes of groups that can
have matches come first, drawn by a hash of the query's id; a first round of a few nodes that are
drawn by chance spreads queries nearly as evenly as a poll of all (Mitzenmacher, "The power of two
choices in randomized load balancing", 2001). The best suitable node is the coordinator; where none
is suitable, the least loaded is. The next ones are the standbys, of other racks as far as there are
such.

An election makes no coordinator unique, and it need not be: the answers of two are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from galileo.election.ranking import (
    CPU_SHARE_MAX,
    MEMORY_RESERVE_BYTES,
    Candidate,
    is_suitable,
    rank,
)

POLLED_FIRST = 4
"""Nodes of the first round."""


@dataclass(frozen=True, slots=True)
class Candidacy:
    """What nodes are sought for.

    Attributes:
        key: the id of the CCQ.
        count: of the nodes.
        need_bytes: memory that the cache is expected to take.
        nearby: nodes whose groups are polled first.
        excluded: nodes that do not come into question.
        only_suitable: rather none than one that is not suitable.
        cpu_share: of the node that hands the CCQ off; one as busy is suitable.
    """

    key: str
    count: int
    need_bytes: int = 0
    nearby: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    only_suitable: bool = False
    cpu_share: float = 0.0


def draw(key: str, node: str) -> bytes:
    """A number that differs for each pair and is the same at every node."""
    return blake2b(f"{key}\0{node}".encode(), digest_size=8).digest()


def rounds(
    candidacy: Candidacy, groups: Sequence[Sequence[str]], out: Collection[str]
) -> Iterator[tuple[str, ...]]:
    """The nodes in the rounds in which they are polled.

    Args:
        candidacy: for what.
        groups: all nodes.
        out: nodes that count as dead.
    """
    excluded = {*candidacy.excluded, *out}
    wanted = {node for group in groups if {*group} & {*candidacy.nearby} for node in group}
    alive = [node for group in groups for node in group if node not in excluded]
    count = POLLED_FIRST
    for is_wanted in (True, False):
        left = [node for node in alive if (node in wanted) is is_wanted]
        left.sort(key=lambda node: draw(candidacy.key, node))
        while left:
            yield tuple(left[:count])
            left, count = left[count:], 2 * count


def is_decided(
    candidacy: Candidacy,
    candidates: Mapping[str, Candidate],
    *,
    reserve_bytes: int = MEMORY_RESERVE_BYTES,
) -> bool:
    """Whether the nodes that have answered are enough."""
    return len(candidates) >= candidacy.count and bool(_fit(candidacy, candidates, reserve_bytes))


def choose(
    candidacy: Candidacy,
    candidates: Mapping[str, Candidate],
    racks: Mapping[str, str],
    *,
    reserve_bytes: int = MEMORY_RESERVE_BYTES,
) -> tuple[str, ...]:
    """The elected nodes, the best first; fewer than wanted where fewer have answered.

    Args:
        candidacy: for what.
        candidates: the nodes that have answered.
        racks: of nodes; those without one are racks of their own.
        reserve_bytes: memory of a suitable node that stays free.
    """
    fit = _fit(candidacy, candidates, reserve_bytes)
    others = (
        {} if candidacy.only_suitable else {n: candidates[n] for n in candidates if n not in fit}
    )
    left = [
        node
        for some in (fit, others)
        for node in rank(some, need_bytes=candidacy.need_bytes)
        if not candidates[node].usage.is_draining
    ]
    chosen: list[str] = []
    while left and len(chosen) < candidacy.count:
        used = {racks.get(node, node) for node in chosen}
        node = next((node for node in left if racks.get(node, node) not in used), left[0])
        chosen.append(node)
        left.remove(node)
    return tuple(chosen)


def _fit(
    candidacy: Candidacy, candidates: Mapping[str, Candidate], reserve_bytes: int
) -> dict[str, Candidate]:
    return {
        node: one
        for node, one in candidates.items()
        if is_suitable(
            one.usage,
            need_bytes=candidacy.need_bytes,
            reserve_bytes=reserve_bytes,
            cpu_share_max=max(CPU_SHARE_MAX, candidacy.cpu_share),
        )
    }
