"""Nodes of a simulated cluster by name and by partition."""

from __future__ import annotations

from simulator.logs import SCHEMA
from simulator.loop import Loop
from simulator.node import Node


class NamedNodes:
    """Nodes n0, n1 and so on, to which partitions are dealt in turn.

    Attributes:
        loop: draws what is random.
        nodes: in the order of their names; those that join later have no partitions.
        founders: the number of the others.
        datasets: all of which have the same commits.
    """

    loop: Loop
    nodes: list[Node]
    founders: int
    datasets: tuple[str, ...] = (SCHEMA.name,)
    _requests = 0

    def node(self, name: str) -> Node:
        return self.nodes[int(name[1:])]

    def any_node(self) -> Node:
        """A node that a client may ask; an address where none runs refuses it at once."""
        return self.loop.random.choice(self.members)

    @property
    def members(self) -> list[Node]:
        """The nodes of the cluster, up or not."""
        return [node for node in self.nodes if node.is_member]

    def owner(self, partition: int) -> Node:
        return self.nodes[partition % self.founders]

    def next_request(self) -> int:
        self._requests += 1
        return self._requests
