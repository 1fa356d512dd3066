"""A node that joins the simulated cluster, and perhaps leaves it, amid the faults.

In some worlds one node without partitions is not of the cluster at first. The register is not part
of this world (see `register_world`): a version of the topology is known to a majority of the
founders at once, and to other nodes with the next message of a node that knows it. It has its own
random generator, as retention does.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from simulator.loop import Loop
from simulator.node import Node

JOINING_SHARE = 0.4
AGAIN_S = 0.3
DRAIN_S = 3.0

Groups = tuple[tuple[str, ...], ...]


class Joined(Protocol):
    """The interface of the world for joining."""

    loop: Loop
    nodes: list[Node]
    founders: int
    is_calm: bool


class Joining:
    """Adds the last node of the world, which drains and leaves again in half of the worlds.

    Attributes:
        is_due: whether a node joins in this world.
        versions: the groups of each version of the topology.
    """

    def __init__(self, world: Joined, seed: int) -> None:
        self._world = world
        self._random = Random(f"joining {seed}")
        self.is_due = self._random.random() < JOINING_SHARE
        self.versions: list[Groups] = []

    def start(self) -> None:
        if self.is_due:
            self._world.loop.after(self._random.uniform(0.3, 8.0), self._join)

    def _join(self) -> None:
        spare, first = self._world.nodes[-1], self.versions[0]
        number = self._random.randrange(len(first))
        groups = tuple(
            (*group, spare.name) if position == number else group
            for position, group in enumerate(first)
        )
        if not self._choose(groups):
            self._world.loop.after(AGAIN_S, self._join)
            return
        self._world.loop.counters["nodes joined"] += 1
        spare.version = 1
        spare.is_member = True
        spare.boot()
        if self._random.random() < 0.5:
            self._world.loop.after(self._random.uniform(1.0, 7.0), self._leave)

    def _leave(self) -> None:
        """Drain the node, and remove it when it coordinates nothing, or after a while."""
        spare, loop = self._world.nodes[-1], self._world.loop
        deadline = loop.now + DRAIN_S

        def drain() -> None:
            spare.drain(is_on=True)
            is_drained = spare.serves and not spare.machine.coordinated
            if (is_drained or loop.now > deadline) and self._choose(self.versions[0]):
                loop.counters["nodes left"] += 1
                spare.crash()
                spare.is_member = False
            else:
                loop.after(AGAIN_S, drain)

        drain()

    def _choose(self, groups: Groups) -> bool:
        """Have a majority of the founders know a new version, if so many are up."""
        founders = self._world.nodes[: self._world.founders]
        up = [node for node in founders if node.serves]
        count = len(founders) // 2 + 1
        if len(up) < count:
            return False
        self.versions.append(groups)
        for node in self._random.sample(up, count):
            node.learn_topology(len(self.versions) - 1)
        return True
