"""Replicas whose messages, writes and clocks a script moves one by one.

The nodes, their driver, their disks and the judge are those of the random worlds. Nothing happens
by itself: clocks stand until `elapse`, machines get no ticks but those of `tick`, and messages and
writes that are not held arrive and end in the order in which they began. Crashes keep nothing that
was not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from galileo.replication.machine import Replica
from galileo.replication.messages import (
    HandOverRequested,
    Message,
    ReplicaTicked,
)
from galileo.replication.values import ReplicationOptions
from simulator.loop import Loop
from simulator.replica_cluster import (
    LOGS,
    PartitionDisk,
    ReplicaCluster,
    ReplicaConduct,
    ReplicaNode,
    expect_progress,
)

A, B, C, D, E = (f"n{index}" for index in range(5))
X, Y = LOGS


class Derailed(Exception):
    """A script did not come where it was meant to; says nothing about promises."""


class _Lowest(Random):
    """Draws the lowest number, so that crashes keep the least."""

    def random(self) -> float:
        return 0.9999

    def randint(self, a: int, b: int) -> int:
        return a


@dataclass(slots=True)
class _Flight:
    sender: str
    target: str
    message: Message
    arrive: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Pattern:
    sender: str
    target: str
    types: tuple[type, ...]
    log: str | None

    def matches(self, flight: _Flight) -> bool:
        return (
            (self.sender, self.target) == (flight.sender, flight.target)
            and isinstance(flight.message, self.types)
            and self.log in (None, getattr(flight.message, "log", None))
        )


class _ScriptedNode(ReplicaNode):
    """A node whose writes end when the script runs, unless they are held."""

    def __init__(self, name: str, ordinal: int, world: ReplicaCluster) -> None:
        super().__init__(name, ordinal, world)
        self.rate = 1.0
        self.holds_saves = self.holds_syncs = False
        self.saves: list[Callable[[], None]] = []
        self.syncs: list[Callable[[], None]] = []

    def when_saved(self, disk: PartitionDisk, saved: Callable[[], None]) -> None:
        self.saves.append(saved)

    def when_synced(self, synced: Callable[[], None]) -> None:
        self.syncs.append(synced)

    def crash(self) -> None:
        super().crash()
        self.saves, self.syncs = [], []

    def end_write(self) -> bool:
        """End the oldest write that is not held."""
        if self.saves and not self.holds_saves:
            self.saves.pop(0)()
        elif self.syncs and not self.holds_syncs:
            self.syncs.pop(0)()
        else:
            return False
        return True


class Scenario(ReplicaCluster):
    """One partition on nodes A, B, ..., of which the first `voters` are its members.

    All clocks show the same time. A scenario begins when every node has just started.
    """

    node_type = _ScriptedNode
    nodes: dict[str, _ScriptedNode]  # type: ignore[assignment]

    def __init__(
        self,
        machine: type[Replica] = Replica,
        conduct: ReplicaConduct | None = None,
        *,
        voters: int = 3,
        nodes: int = 5,
    ) -> None:
        loop = Loop(0)
        loop.random, loop.now = _Lowest(), 100.0
        super().__init__(loop, machine, conduct, options=ReplicationOptions(), count=nodes)
        self.flights: list[_Flight] = []
        self.held: list[_Pattern] = []
        self.batches = 0
        self.found(0, [A, B, C, D, E][:voters])
        for node in self.nodes.values():
            node.boot()
        self.run()

    # --- messages ------------------------------------------------------------------------------

    def send(
        self, sender: ReplicaNode, target: ReplicaNode, message: Message, arrive: Callable[[], None]
    ) -> None:
        if (sender.name, target.name) not in self.cuts:
            self.flights.append(_Flight(sender.name, target.name, message, arrive))

    def cut(self, sender: str, target: str) -> None:
        """Lose what will be sent from one node to another; what is under way arrives."""
        self.cuts.add((sender, target))

    def isolate(self, name: str) -> None:
        for other in self.nodes.keys() - {name}:
            self.cuts |= {(name, other), (other, name)}

    def connect(self, *names: str) -> None:
        """End the cuts among these nodes."""
        self.cuts -= {(one, other) for one in names for other in names}

    def hold(self, sender: str, target: str, *types: type, log: str | None = None) -> None:
        """Let messages of some types, or all, wait under way."""
        self.held.append(_Pattern(sender, target, types or (object,), log))

    def release(self) -> None:
        """Let everything arrive that waits."""
        self.held.clear()
        self.run()

    def drop(self) -> None:
        """Lose everything that waits."""
        self.held.clear()
        self.flights.clear()

    def run(self) -> None:
        """Deliver messages and end writes until all that is left is held."""
        for _ in range(10_000):
            if any(node.end_write() for node in self.nodes.values()):
                continue
            flight = next((one for one in self.flights if not self._is_held(one)), None)
            if flight is None:
                return
            self.flights.remove(flight)
            self.nodes[flight.target].receive(flight.arrive)
        raise Derailed("messages do not end")

    def _is_held(self, flight: _Flight) -> bool:
        return any(pattern.matches(flight) for pattern in self.held)

    # --- time ----------------------------------------------------------------------------------

    def elapse(self, seconds: float) -> None:
        self.loop.now += seconds

    def tick(self, *names: str) -> None:
        """Let nodes see the time, then run; machines that are alone get no ticks."""
        for name in names:
            if self.nodes[name].is_up and 0 not in self.nodes[name].alone:
                self.nodes[name].step(0, ReplicaTicked())
        self.run()

    def campaign(self, name: str) -> None:
        """Let a voter campaign, after all leaders have been silent for long enough."""
        for _ in range(4):
            if self.replica(name).leadership is None:
                self.elapse(2 * self.options.dead_after_s)
                self.tick(name)

    def elect(self, name: str) -> None:
        """Let a voter campaign, and win."""
        self.depose(name)
        self.campaign(name)
        self.expect(self.replica(name).leadership is not None, f"{name} does not lead")

    def depose(self, name: str) -> None:
        """Let a leader resign that has heard no member for long."""
        self.elapse(2 * self.options.dead_after_s)
        self.tick(name)

    def beat(self, name: str) -> None:
        """Let a leader beat, and send again what is late."""
        self.elapse(self.options.beat_s)
        self.tick(name)

    # --- nodes ---------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        self.nodes[name].crash()
        self.nodes[name].boot()
        self.run()

    def rot(self, name: str, log: str, sound: int) -> None:
        """Restart a node that finds no more than `sound` frames of a log."""
        node = self.nodes[name]
        node.crash()
        node.damage(node.disks[0], log, sound)
        node.boot()
        self.run()

    def write(self, name: str, log: str = X) -> None:
        """Have a leader take a batch."""
        self.expect(self.replica(name).is_open, f"{name} takes no batches")
        self.try_write(name, log)

    def try_write(self, name: str, log: str = X) -> None:
        """Send a batch to a node, which may not lead."""
        self.batches += 1
        key, batch = (0, log), (0, self.batches)
        self.nodes[name].ingest(
            key, batch, lambda sequence: self.judge_acknowledged(key, batch, sequence)
        )
        self.run()

    def want(self, *names: str) -> None:
        """Let the topology name other members."""
        self.wanted[0] = set(names)
        for node in self.nodes.values():
            if node.is_up:
                node.step(0, self.wanted_members(0))
        self.run()

    def hand_over(self, name: str, successor: str) -> None:
        self.nodes[name].step(0, HandOverRequested(self.nodes[successor].me))
        self.run()

    # --- expectations --------------------------------------------------------------------------

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Derailed(otherwise)

    def replica(self, name: str) -> Replica:
        return self.nodes[name].replicas[0]

    def expect_committed(self, name: str, count: int, log: str = X) -> None:
        """Without these commits there is no progress."""
        committed = self.nodes[name].published.get((0, log), 0)
        expect_progress(committed >= count, f"{name} has committed {committed}, not {count}")

    def voters(self, name: str) -> set[str]:
        current = self.replica(name).state.set
        return {member.node for member in current.voters} if current else set()

    def finish(self) -> None:
        """End all faults, let time pass until a leader is settled, and judge what is there."""
        self.cuts.clear()
        self.held.clear()
        for node in self.nodes.values():
            node.holds_saves = node.holds_syncs = False
            node.boot()
        self.want(*self.wanted[0])
        self._calm()
        for name in self.nodes:
            if self.replica(name).is_open:
                self.write(name)
        self._calm()
        self.judge_end()

    def _calm(self) -> None:
        for _ in range(100):
            self.elapse(0.1)
            self.tick(*self.nodes)
            self.judge_reads()
