"""The current topology of a node: the last version that it learned, and updates from other nodes.

Updates are addresses of nodes that moved, and leaders of partitions. A `Move` names the leader of a
partition and its term, and the one with the highest term counts; so nodes that have heard of the
same leaders have the same map, in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from galileo.dht import placement
from galileo.dht.topology import Move, Topology, is_address


class TopologyState:
    """The current topology; thread-safe.

    Args:
        topology: of the file or the register, with known moves.
    """

    def __init__(self, topology: Topology) -> None:
        self._now = topology
        self._owned = topology, placement.partitions_by_node(topology)
        self._moved: tuple[Topology, dict[int, Move]] | None = None
        self._epochs: dict[str, int] = {}
        # A file may name later addresses than those with which nodes were added.
        self._relocated = {node.name: node.address for node in topology.nodes}
        self._changing = threading.Lock()

    @classmethod
    def of(cls, topology: Topology | TopologyState) -> TopologyState:
        """`topology` if it is a TopologyState, else a new one that begins with it."""
        return topology if isinstance(topology, TopologyState) else cls(topology)

    @property
    def current(self) -> Topology:
        return self._now

    def partitions(self, node: str) -> frozenset[int]:
        """The partitions of a node."""
        now = self._now
        if self._owned[0] is not now:
            self._owned = now, placement.partitions_by_node(now)
        return self._owned[1].get(node, frozenset())

    def move_of(self, partition: int) -> Move | None:
        """The last known move of a partition."""
        now, known = self._now, self._moved
        if known is None or known[0] is not now:
            known = self._moved = now, {move.partition: move for move in now.moved}
        return known[1].get(partition)

    def moves(self, moves: Iterable[Move]) -> list[Move]:
        """The last moves, between nodes of the file, that the file does not have."""
        known = {move.partition: move.number for move in self._now.moved}
        names = self._now.by_name
        last = {move.partition: move for move in sorted(moves) if move.node in names}
        return [move for move in last.values() if move.number > known.get(move.partition, 0)]

    def adopt(self, moves: Iterable[Move]) -> None:
        """Apply moves; older ones than the known ones change nothing."""
        with self._changing:
            if new := self.moves(moves):
                last = {move.partition: move for move in (*self._now.moved, *new)}
                self._now = replace(self._now, moved=tuple(sorted(last.values())))

    def replace_nodes(self, topology: Topology) -> None:
        """Take over a later version; moves and addresses that this node has learned remain."""
        with self._changing:
            before, self._now = self._now, topology
            last = {move.partition: move for move in topology.moved}
            last |= {move.partition: move for move in self.moves(before.moved)}
            self._now = replace(topology, moved=tuple(sorted(last.values())))
            for node, address in self._relocated.items():
                known = self._now.by_name.get(node)
                if known is not None and known.address != address and not self._is_taken(address):
                    self._now = _with_address(self._now, node, address)

    def relocate(self, node: str, address: str, *, epoch: int) -> bool:
        """Apply the address that a node reports, unless a later start of it reported another.

        Returns:
            Whether the address changed.
        """
        with self._changing:
            if epoch < self._epochs.get(node, 0) or not is_address(address):
                return False
            self._epochs[node] = epoch
            known = self._now.by_name.get(node)
            if known is None or (known.address != address and self._is_taken(address)):
                return False
            self._relocated[node] = address
            if known.address == address:
                return False
            self._now = _with_address(self._now, node, address)
            return True

    def _is_taken(self, address: str) -> bool:
        return any(node.address == address for node in self._now.nodes)


def _with_address(topology: Topology, node: str, address: str) -> Topology:
    groups = tuple(
        replace(
            group,
            nodes=tuple(
                replace(one, address=address) if one.name == node else one for one in group.nodes
            ),
        )
        for group in topology.groups
    )
    return replace(topology, groups=groups)
