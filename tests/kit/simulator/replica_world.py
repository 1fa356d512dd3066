"""Seeded worlds of replicated partitions: clients, operators and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from galileo.replication.machine import Replica
from simulator.loop import Loop
from simulator.replica_cluster import ReplicaConduct, Stalled
from simulator.replica_faults import FaultyReplicas

FAULTS_UNTIL_S = 14.0
CALM_S = 11.0


class Producer:
    """Sends one batch after the other to a log, and repeats each until it is acknowledged."""

    def __init__(self, world: FaultyReplicas, key: tuple[int, str], number: int) -> None:
        self.world, self.key, self.number, self.batch = world, key, number, 0

    def begin(self) -> None:
        self.batch += 1
        self._send(self.batch)

    def _send(self, number: int) -> None:
        world = self.world
        if self.batch != number or world.is_over:
            return
        node = world.loop.random.choice(list(world.nodes.values()))
        if node.is_up and world.loop.chance(0.9):
            leader = node.replicas[self.key[0]].leader
            node = world.nodes[leader.node] if leader else node
        batch = (self.number, number)

        def acknowledged(sequence: int) -> None:
            world.judge_acknowledged(self.key, batch, sequence)
            if self.batch == number:
                self.batch = -number
                world.loop.after(world.loop.random.uniform(0.0, 0.3), lambda: self._next(number))

        target = node
        world.loop.after(
            world.loop.delay(0.005),
            lambda: target.receive(lambda: target.ingest(self.key, batch, acknowledged)),
        )
        world.loop.after(world.loop.random.uniform(0.3, 1.0), lambda: self._send(number))

    def _next(self, number: int) -> None:
        self.batch = number
        self.begin()


class ReplicaWorld(FaultyReplicas):
    """A seeded run."""

    def __init__(
        self,
        seed: int,
        machine: type[Replica] = Replica,
        conduct: ReplicaConduct | None = None,
        *,
        without: Collection[str] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        loop = Loop(seed, trace=trace)
        size = loop.random.choice((1, 2, 3, 3, 3, 3, 3, 5))
        count = loop.random.randint(max(3, size), 5)
        super().__init__(loop, machine, conduct, count=count, without=without)
        self.found_all(size)

    def run(self) -> Counter[str]:
        for node in self.nodes.values():
            node.boot()
        for index, key in enumerate(sorted(self.truth)):
            for number in range(2):
                Producer(self, key, 10 * index + number).begin()
        self.loop.after(0.8, self.break_something)
        self.loop.after(0.1, self.read)
        self.loop.run_until(FAULTS_UNTIL_S)
        self.heal()
        self.loop.run_until(FAULTS_UNTIL_S + CALM_S)
        self.is_over = True
        self.loop.run_until(FAULTS_UNTIL_S + CALM_S + 3.0)
        self._judge()
        return self.loop.counters

    def _judge(self) -> None:
        try:
            self.judge_end()
        except Stalled:
            if not self.is_beyond:
                raise
            self.loop.counters["partitions lost beyond a majority"] += 1


def run_replicas(
    seed: int,
    machine: type[Replica] = Replica,
    conduct: ReplicaConduct | None = None,
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Counter[str]:
    """Play a world; raises AssertionError where it breaks a promise."""
    return ReplicaWorld(seed, machine, conduct, without=without, trace=trace).run()
