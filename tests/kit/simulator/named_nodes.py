"""Nodes of a simulated cluster by name and by partition."""

from __future__ import annotations

from simulator.logs import SCHEMA
from simulator.loop import Loop
from simulator.node import Node


class NamedNodes:
    """Nodes n0, n1 and so on, to which partitions are dealt in turn.

    Attributes:
        loop: draws what is random.
        nodes: in the order of their names.
        datasets: all of which have the same commits.
    """

    loop: Loop
    nodes: list[Node]
    datasets: tuple[str, ...] = (SCHEMA.name,)
    _requests = 0

    def node(self, name: str) -> Node:
        return self.nodes[int(name[1:])]

    def any_node(self) -> Node:
        return self.loop.random.choice(self.nodes)

    def owner(self, partition: int) -> Node:
        return self.nodes[partition % len(self.nodes)]

    def next_request(self) -> int:
        self._requests += 1
        return self._requests
