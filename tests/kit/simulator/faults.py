"""Faults of the first part of a run, and their repair."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from simulator.clients import Reader
from simulator.evaluator import NO_TROUBLE, USUAL_TROUBLE, Trouble
from simulator.loop import Loop
from simulator.network import Network
from simulator.node import Node
from simulator.system_leader import SystemLeader

FAULT_MEAN_S = 0.9
FAULTS = (
    "crash",
    "crash_again",
    "pause",
    "cut_one_way",
    "isolate",
    "turn_clock",
    "vex_network",
    "vex_evaluators",
    "crash_client",
    "forge",
    "crash_leader",
    "drain",
    "outage",
    "suspect",
)
"""Faults at random times, equally frequent."""
ALWAYS = ("crash_in_step", "trouble", "stragglers")
"""Faults that happen at any time, at a low rate."""


class Victim(Protocol):
    """The interface of the world for faults."""

    loop: Loop
    network: Network
    trouble: Trouble
    nodes: list[Node]
    readers: list[Reader]
    mid_step_crashes: float
    is_calm: bool
    system: SystemLeader


class Faults:
    """Injects random faults until `heal`.

    Attributes:
        mean_s: between two faults.
        kinds: of faults at random times, equally frequent.

    Args:
        world: to inject into.
        without: kinds to leave out, of `FAULTS` and `ALWAYS`. The others come at the same times, as
            long as the world is the same.
    """

    mean_s = FAULT_MEAN_S
    kinds: tuple[str, ...] = FAULTS

    def __init__(self, world: Victim, *, without: Collection[str] = ()) -> None:
        self._world = world
        self._loop = world.loop
        self._random = world.loop.random
        self._without = frozenset(without)
        self._usual = NO_TROUBLE if "trouble" in without else USUAL_TROUBLE
        if "stragglers" in without:
            world.loop.stragglers = 0.0

    def start(self) -> None:
        self._world.mid_step_crashes = 0.0 if "crash_in_step" in self._without else 0.01
        self._world.trouble = self._usual
        self._again()

    def heal(self) -> None:
        """Repair everything; lost data stays lost."""
        world = self._world
        world.is_calm = True
        world.mid_step_crashes = 0.0
        world.trouble = NO_TROUBLE
        world.loop.stragglers = 0.0
        world.network.heal()
        world.system.end_outage()
        for node in world.nodes:
            node.wake()
            self._boot(node)
            node.drain(is_on=False)

    def _again(self) -> None:
        def strike() -> None:
            if not self._world.is_calm:
                kind = self._random.choice(self.kinds)
                if kind not in self._without:
                    getattr(self, f"_{kind}")()
                self._again()

        self._loop.after(self._random.expovariate(1.0 / self.mean_s), strike)

    def _for_a_while(self, longest_s: float, undo: Callable[[], None]) -> None:
        self._loop.after(self._random.uniform(0.2, longest_s), undo)

    def _crash(self) -> None:
        self._crash_node(self._random.choice(self._world.nodes))

    _crash_again = _crash

    def _crash_leader(self) -> None:
        leaders = [node for node in self._world.nodes if node.is_up and node.machine.coordinated]
        if leaders:
            self._crash_node(self._random.choice(leaders))

    def _crash_node(self, node: Node) -> None:
        node.crash()
        self._for_a_while(6.0, lambda: self._boot(node))

    @staticmethod
    def _boot(node: Node) -> None:
        if not node.is_up:
            node.boot()

    def _drain(self) -> None:
        """Drain a node."""
        node = self._random.choice(self._world.nodes)
        self._loop.counters["drains of coordinators"] += bool(
            node.is_up and node.machine.coordinated
        )
        node.drain(is_on=True)
        self._for_a_while(6.0, lambda: node.drain(is_on=False))

    def _outage(self) -> None:
        """Let no node lead the system partition for a while."""
        self._world.system.begin_outage(self._random.uniform(0.2, 5.0))

    def _suspect(self) -> None:
        """Have a node count a living one as dead for a while, which is harmless."""
        node, peer = self._random.sample(self._world.nodes, 2)
        if node.suspect(peer.name):
            self._loop.counters["living nodes suspected"] += 1
            self._for_a_while(3.0, lambda: node.trust(peer.name))

    def _pause(self) -> None:
        node = self._random.choice(self._world.nodes)
        node.pause()
        self._for_a_while(5.0, node.wake)

    def _cut_one_way(self) -> None:
        a, b = self._random.sample(self._world.nodes, 2)
        self._world.network.cut(a.name, b.name)
        self._for_a_while(5.0, self._mend)

    def _isolate(self) -> None:
        """Partition the network into two sides."""
        nodes = self._random.sample(self._world.nodes, len(self._world.nodes))
        self._separate(nodes[: self._random.randint(1, len(nodes) - 1)])

    def _separate(self, side: Collection[Node]) -> None:
        """Let nothing pass between some nodes and the others for a while."""
        for a in side:
            for b in self._world.nodes:
                if b not in side:
                    self._world.network.cut(a.name, b.name)
                    self._world.network.cut(b.name, a.name)
        self._loop.counters["partitions"] += 1
        self._for_a_while(6.0, self._mend)

    def _mend(self) -> None:
        self._world.network.cuts = None

    def _turn_clock(self) -> None:
        node = self._random.choice(self._world.nodes)
        node.skew_s = self._random.choice((-1.0, 1.0)) * self._random.uniform(0.1, 4.0)

    def _vex_network(self) -> None:
        network = self._world.network
        network.loss, network.repetition = self._random.choice(((0.05, 0.05), (0.3, 0.2)))

        def undo() -> None:
            network.loss = network.repetition = 0.0

        self._for_a_while(4.0, undo)

    def _vex_evaluators(self) -> None:
        self._world.trouble = Trouble(
            fails=self._random.choice((0.0, 0.5)),
            is_lost=self._random.choice((0.0, 0.3)),
            is_slow=self._random.choice((0.0, 0.5)),
            falls_short=0.5,
            spoils=0.3,
        )

        def undo() -> None:
            if not self._world.is_calm:
                self._world.trouble = self._usual

        self._for_a_while(4.0, undo)

    def _crash_client(self) -> None:
        self._random.choice(self._world.readers).crash()

    def _forge(self) -> None:
        self._random.choice(self._world.readers).forge()
