"""The topology as a node knows it by now: what its file says, and what it has heard since.

Heard are the addresses of nodes that run elsewhere than the file says, and the moves of partitions.
Of each partition the move with the highest number counts. Only the node that has a partition gives
it away, and numbers that move; so nodes that know the same moves have the same map, in whatever
order they came.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from galileo.dht import placement
from galileo.dht.topology import Group, Move, Topology, is_address


class LiveTopology:
    """Thread-safe.

    Args:
        topology: of the file, with the moves that are known already.
    """

    def __init__(self, topology: Topology) -> None:
        self._now = topology
        self._owned = topology, placement.partitions_by_node(topology)
        self._epochs: dict[str, int] = {}
        self._changing = threading.Lock()

    @classmethod
    def of(cls, topology: Topology | LiveTopology) -> LiveTopology:
        """The same, or one that begins with what is given."""
        return topology if isinstance(topology, LiveTopology) else cls(topology)

    @property
    def current(self) -> Topology:
        return self._now

    def partitions(self, node: str) -> frozenset[int]:
        """The partitions that a node has."""
        now = self._now
        if self._owned[0] is not now:
            self._owned = now, placement.partitions_by_node(now)
        return self._owned[1].get(node, frozenset())

    def move_of(self, partition: int) -> Move | None:
        """The last move of a partition that is known."""
        return next((move for move in self._now.moved if move.partition == partition), None)

    def moves(self, moves: Iterable[Move]) -> list[Move]:
        """The last one of each partition that is not known, of nodes that the file names."""
        known = {move.partition: move.number for move in self._now.moved}
        names = self._now.by_name
        last = {move.partition: move for move in sorted(moves) if move.node in names}
        return [move for move in last.values() if move.number > known.get(move.partition, 0)]

    def adopt(self, moves: Iterable[Move]) -> None:
        """Takes moves in; what is older than what is known changes nothing."""
        with self._changing:
            last = {move.partition: move for move in self._now.moved}
            last |= {move.partition: move for move in self.moves(moves)}
            self._now = replace(self._now, moved=tuple(sorted(last.values())))

    def restore(self, moves: Iterable[Move]) -> None:
        """Takes in what this node had adopted before it was started.

        Raises:
            ConfigError: a partition was moved to a node that the file does not name.
        """
        moves = sorted(moves)
        if moves:
            self._now = replace(self._now, moved=tuple(moves))

    def relocate(self, node: str, address: str, *, epoch: int) -> bool:
        """Takes in where a node says that it runs, unless a later life of it said otherwise.

        Returns:
            Whether that is news.
        """
        with self._changing:
            if epoch < self._epochs.get(node, 0) or not is_address(address):
                return False
            self._epochs[node] = epoch
            known = self._now.by_name.get(node)
            if known is None or known.address == address or self._is_taken(address):
                return False
            groups = tuple(_with_address(group, node, address) for group in self._now.groups)
            self._now = replace(self._now, groups=groups)
            return True

    def _is_taken(self, address: str) -> bool:
        return any(node.address == address for node in self._now.nodes)


def _with_address(group: Group, node: str, address: str) -> Group:
    nodes = (replace(one, address=address) if one.name == node else one for one in group.nodes)
    return replace(group, nodes=tuple(nodes))
