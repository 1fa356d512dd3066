"""Drops a dataset in the simulated world, with its CCQ.

In some worlds the third CCQ has a dataset of its own, with the same commits. One node, its home,
drops it at some moment, durably before other nodes are informed, by messages that may be lost or by
heartbeats. It has its own random generator, as retention does.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from simulator.loop import Loop
from simulator.network import Network
from simulator.node import Node

DROPPED = "brief"
DROPPED_SHARE = 0.7
"""Share of the worlds with a third CCQ."""
AGAIN_S = 0.5


class Dropped(Protocol):
    """The interface of the world for dropping."""

    loop: Loop
    network: Network
    nodes: list[Node]
    dropped: set[str]


class Dropping:
    """Drops the dataset once.

    Attributes:
        is_due: whether this world drops it.
    """

    def __init__(self, world: Dropped, seed: int) -> None:
        self._world = world
        self._random = Random(f"dropping {seed}")
        self.is_due = self._random.random() < DROPPED_SHARE

    def start(self) -> None:
        """Schedule the drop, often close to the submission of the CCQ, sometimes later."""
        first_s, last_s = self._random.choice(((0.5, 1.0), (2.5, 3.0), (2.5, 3.0), (3.0, 15.0)))
        self._world.loop.after(self._random.uniform(first_s, last_s), self._drop)

    def _drop(self) -> None:
        world, home = self._world, self._world.nodes[0]
        if not home.serves:
            world.loop.after(AGAIN_S, self._drop)
            return
        world.dropped.add(DROPPED)
        world.loop.counters["datasets dropped"] += 1
        home.drop(DROPPED, 1)
        for node in world.nodes[1:]:
            self._tell(home, node)

    def _tell(self, home: Node, node: Node) -> None:
        def hear() -> None:
            node.receive(lambda: node.drop(DROPPED, 1))

        self._world.network.send(home.name, node.name, hear)
