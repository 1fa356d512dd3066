"""Copies of partitions in different racks: how many each node has, and of which partitions.

A node without a rack counts as a rack of its own. The copies of a partition go around the racks: no
rack gets a second one before all have one, nor a third before all have two, as far as their nodes
suffice. Within that, each node gets its share of the copies by weight. Nodes of a small rack can
have more than that, up to a copy of each partition, and those of a large rack less; the others
share the rest by weight.

Copies are drawn rank by rank. The quota of a node is its share of all copies up to this rank,
rounded, less what it has. A partition goes to the node that scores highest among those with room.
Where racks leave a partition no node with room, partitions exchange nodes of this rank. Where that
does not suffice, all quotas grow by one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from galileo.dht.topology import Group, NodeInfo
from galileo.hashing import text64

Scores = npt.NDArray[np.uint64]
"""Of each partition (rows) and node (columns); 0 excludes a node."""
Columns = npt.NDArray[np.int64]
"""The node of each partition; `NONE` stands for no node."""
Room = npt.NDArray[np.int64]
"""How many partitions each node can still take."""
NONE = -1


def rank_nodes(
    nodes: Sequence[NodeInfo], scores: Scores, *, leaders: Columns, copies: int
) -> npt.NDArray[np.int64]:
    """The nodes that should have the copies of each partition (rows), its leader first.

    Args:
        nodes: of a group, in the order of the columns.
        scores: above zero.
        leaders: the first node of each partition.
        copies: of each partition, at most the number of nodes.
    """
    ranking = _Ranking(nodes, scores)
    ranking.append(leaders)
    for copy in range(2, copies + 1):
        quotas = _quotas(nodes, partitions=len(scores), copies=copy)
        ranking.append(_draw_all(ranking.allowed(), np.maximum(quotas - ranking.counts, 0)))
    return np.stack(ranking.ranks, axis=1)


class _Ranking:
    """The ranks so far; `counts` has the copies of each node."""

    def __init__(self, nodes: Sequence[NodeInfo], scores: Scores) -> None:
        domains = sorted({node.fault_domain for node in nodes})
        self._racks = np.array([domains.index(node.fault_domain) for node in nodes])
        self._scores = scores.copy()
        self._rows = np.arange(len(scores))
        self._left = np.tile(np.bincount(self._racks), (len(scores), 1))
        self._used = np.zeros_like(self._left)
        self.ranks: list[Columns] = []
        self.counts = np.zeros(len(nodes), dtype=np.int64)

    def allowed(self) -> Scores:
        """The scores of nodes that may come next: of racks with the fewest copies."""
        rounds = np.where(self._left > 0, self._used, len(self.counts))
        is_next = rounds == rounds.min(axis=1, keepdims=True)
        return np.where(is_next[:, self._racks], self._scores, np.uint64(0))

    def append(self, columns: Columns) -> None:
        self.ranks.append(columns)
        self._scores[self._rows, columns] = 0
        self._used[self._rows, self._racks[columns]] += 1
        self._left[self._rows, self._racks[columns]] -= 1
        self.counts += np.bincount(columns, minlength=len(self.counts))


def in_rounds(ranking: Sequence[str], domains: Mapping[str, str]) -> list[str]:
    """The nodes of a ranking in rounds: the first of each rack, then the second ones, and so on.

    Args:
        ranking: of nodes.
        domains: the fault domain of each node.
    """
    met: Counter[str] = Counter()
    rounds: dict[str, int] = {}
    for node in ranking:
        rounds[node] = met[domains[node]]
        met[domains[node]] += 1
    return sorted(ranking, key=rounds.__getitem__)


def draw_by_score(scores: Scores, room: Room) -> Columns:
    """The node of each partition, by descending score while nodes have room; some get none.

    Args:
        scores: of each partition and node.
        room: what is taken is subtracted from it.
    """
    drawn = np.full(len(scores), NONE, dtype=np.int64)
    order = np.argsort(~scores, axis=None, kind="stable")
    for row, column in zip(*np.unravel_index(order, scores.shape), strict=True):
        if drawn[row] < 0 and room[column] > 0 and scores[row, column]:
            drawn[row] = column
            room[column] -= 1
    return drawn


def _draw_all(scores: Scores, room: Room) -> Columns:
    """As `draw_by_score`, with exchanges and more room until every partition has a node."""
    drawn = draw_by_score(scores, room)
    while True:
        missing = [
            row
            for row in np.flatnonzero(drawn < 0).tolist()
            if not _exchange(row, drawn, scores, room)
        ]
        if not missing:
            return drawn
        room += 1


def _exchange(row: int, drawn: Columns, scores: Scores, room: Room) -> bool:
    """Gives a partition a node by the shortest chain of exchanges; whether there is one.

    Each partition of the chain takes the node of the next one, the last one a node with room.
    """
    taker = np.full(len(room), NONE, dtype=np.int64)
    waiting = deque([row])
    while waiting:
        asking = waiting.popleft()
        options = np.flatnonzero((scores[asking] > 0) & (taker < 0))
        taker[options] = asking
        with_room = options[room[options] > 0]
        if len(with_room):
            column = with_room[scores[asking, with_room].argmax()]
            room[column] -= 1
            while column >= 0:
                asking = taker[column]
                drawn[asking], column = column, drawn[asking]
            return True
        waiting.extend(np.flatnonzero(np.isin(drawn, options)).tolist())
    return False


# --- shares ----------------------------------------------------------------------------------


def copy_shares(nodes: Sequence[NodeInfo], copies: int) -> dict[str, Fraction]:
    """The copies of a partition that each node should have on average, at most 1.

    Args:
        nodes: of a group.
        copies: of each partition, at most the number of nodes.
    """
    return {
        name: share
        for domain, whole in _rack_shares(nodes, copies).items()
        for name, share in _node_shares(nodes, domain, whole).items()
    }


@dataclass(frozen=True, slots=True)
class RackSpread:
    """How the racks of a group suit its copies.

    Attributes:
        group: its name.
        racks: how many it has.
        copies: of each partition.
        busiest: the node that racks give the most copies, compared with its share without racks.
        relative_copies: its copies over that share.
    """

    group: str
    racks: int
    copies: int
    busiest: str
    relative_copies: float


def rack_spread(group: Group, *, replicas: int) -> RackSpread | None:
    """How the racks of a group suit its copies; None if there are no copies, or no racks."""
    nodes = group.present
    if replicas == 1 or not any(node.rack for node in nodes):
        return None
    copies = min(replicas, len(nodes))
    with_racks = copy_shares(nodes, copies)
    without = copy_shares([replace(node, rack="") for node in nodes], copies)
    relative = {name: float(share / without[name]) for name, share in with_racks.items()}
    busiest = max(relative, key=relative.__getitem__)
    racks = len({node.fault_domain for node in nodes})
    return RackSpread(group.name, racks, copies, busiest, relative[busiest])


def _quotas(nodes: Sequence[NodeInfo], *, partitions: int, copies: int) -> Room:
    """The copies of each node, rounded so that no rack has more than its nodes can have."""
    by_rack = {rack: partitions * one for rack, one in _rack_shares(nodes, copies).items()}
    by_node: dict[str, int] = {}
    for rack, count in rounded(by_rack).items():
        exact = _node_shares(nodes, rack, Fraction(count, partitions))
        by_node |= rounded({name: partitions * share for name, share in exact.items()})
    return np.array([by_node[node.name] for node in nodes])


def _rack_shares(nodes: Sequence[NodeInfo], copies: int) -> dict[str, Fraction]:
    sizes = Counter(node.fault_domain for node in nodes)
    weights = dict.fromkeys(sizes, Fraction(0))
    for node in nodes:
        weights[node.fault_domain] += Fraction(node.weight)
    rounds = next(
        n for n in range(copies + 1) if sum(min(size, n) for size in sizes.values()) >= copies
    )
    lowest = {rack: min(size, rounds - 1) for rack, size in sizes.items()}
    highest = {rack: min(size, rounds) for rack, size in sizes.items()}
    return _fill(weights, Fraction(copies), lowest=lowest, highest=highest)


def _node_shares(nodes: Sequence[NodeInfo], rack: str, whole: Fraction) -> dict[str, Fraction]:
    weights = {node.name: Fraction(node.weight) for node in nodes if node.fault_domain == rack}
    return _fill(
        weights, whole, lowest=dict.fromkeys(weights, 0), highest=dict.fromkeys(weights, 1)
    )


def _fill(
    weights: Mapping[str, Fraction],
    whole: Fraction,
    *,
    lowest: Mapping[str, int],
    highest: Mapping[str, int],
) -> dict[str, Fraction]:
    """Shares of a whole in proportion to weights, as far as bounds allow.

    Those that proportional shares put outside their bounds on the side that matters most get the
    bound; the others share the rest, again in proportion.
    """
    fixed: dict[str, Fraction] = {}
    while True:
        free = [name for name in weights if name not in fixed]
        total = sum((weights[name] for name in free), Fraction(0))
        rest = whole - sum(fixed.values())
        exact = {name: rest * weights[name] / total for name in free}
        bounded = {
            name: min(max(share, Fraction(lowest[name])), Fraction(highest[name]))
            for name, share in exact.items()
        }
        excess = sum(bounded.values(), Fraction(0)) - rest
        if not excess:
            return fixed | bounded
        fixed |= {
            name: bound for name, bound in bounded.items() if (bound - exact[name]) * excess > 0
        }


def rounded(exact: Mapping[str, Fraction]) -> dict[str, int]:
    """Shares of a whole number, each rounded down or up so that their sum stays.

    Args:
        exact: the share of each node or rack; those with the largest remainder are rounded up.
    """
    result = {name: int(share) for name, share in exact.items()}

    def precedence(name: str) -> tuple[Fraction, int, str]:
        return result[name] - exact[name], text64("quota", name), name

    left = int(sum(exact.values())) - sum(result.values())
    for name in sorted(result, key=precedence)[:left]:
        result[name] += 1
    return result
