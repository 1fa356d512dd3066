"""A client that submits more continuous queries than it may have.

In some worlds, it submits small CCQs of short life, which no client reads, and cancels some. The
judge of the system partition counts those that live. It has its own random generator, as retention
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from galileo.ccq.model import CcqDefinition, Record
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import GalileoError
from simulator.logs import EPOCH_WALL, SCHEMA, query
from simulator.loop import Loop, demand
from simulator.network import Network
from simulator.node import Node

CROWDED_SHARE = 0.25
CCQS_MAX, OWNED_MAX = 8, 3
"""CCQs that may live in the cluster, and those of one owner."""
PAUSE_MEAN_S = 0.5
LIFE_MAX_S = 7.0
REFUSALS = ("ccq_cancelled", "ccq_expired", "overloaded", "quota_exceeded", "unavailable")


class Crowded(Protocol):
    """The interface of the world for crowding."""

    loop: Loop
    network: Network
    is_calm: bool

    def any_node(self) -> Node: ...


class Crowding:
    """Submits CCQs until the world is calm."""

    def __init__(self, world: Crowded, seed: int) -> None:
        self._world = world
        self._random = Random(f"crowding {seed}")
        self._count = 0
        self.is_due = self._random.random() < CROWDED_SHARE

    def start(self) -> None:
        if self.is_due and not self._world.is_calm:
            self._world.loop.after(self._random.expovariate(1.0 / PAUSE_MEAN_S), self._submit)

    def _submit(self) -> None:
        self._count += 1
        world, node = self._world, self._world.any_node()
        expires_at = EPOCH_WALL + world.loop.now + self._random.uniform(1.0, LIFE_MAX_S)
        ccq = CcqDefinition(
            f"x{self._count}", SCHEMA.name, query(29, 0), 2.0, expires_at, owner="crowd"
        )

        def take(outcomes: Sequence[Record | GalileoError]) -> None:
            outcome = outcomes[0]
            if isinstance(outcome, GalileoError):
                demand(outcome.kind in REFUSALS, f"{ccq.id} is refused: {outcome}")
            elif self._random.random() < 0.5:
                node.receive(lambda: node.end(ccq.id, "cancelled", lambda _: None))

        def place() -> None:
            node.place([(ccq, EMPTY_CURSOR)], take)

        world.network.send("crowd", node.name, lambda: node.receive(place))
        self.start()
