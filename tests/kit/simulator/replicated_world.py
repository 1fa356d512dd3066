"""Continuous queries over replicated partitions: both worlds in one, with the faults of both.

The machines of continuous queries, their clients and the checker are those of `world`; machines of
replicas, their driver, disks, operators and judge those of `replica_world`. The log of a partition
that the checker knows is the first publication of each sequence by any node. Retention is not part
of this world.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from patches import patched

from galileo.dht.topology import Group, NodeInfo, Topology
from galileo.replication.messages import Message
from simulator.faults import FAULTS, Faults, Victim
from simulator.logs import Commit, Log
from simulator.loop import demand
from simulator.network import Network
from simulator.node import Node
from simulator.replica_cluster import (
    LOGS,
    Batch,
    Frame,
    ReplicaNode,
    Stalled,
)
from simulator.replica_faults import FaultyReplicas
from simulator.replica_world import Producer
from simulator.replicated_mutants import REPLICATED_VARIANTS, ReplicatedVariant
from simulator.replicated_node import LOG, ProcessReplicas, ReplicatedNode
from simulator.world import SHORT, Outcome, World

REPLICA_FAULT_MEAN_S = 0.9
CCQ_FAULT_MEAN_S = 1.5
"""Longer than in each world alone, because nodes have the faults of both."""
BOTH_FAULTS = ("strand", "strand")
"""Faults of this world alone, among those of continuous queries."""


class ProcessCluster(FaultyReplicas):
    """The replicas of all processes.

    Attributes:
        scans: mistakes of nodes that answer scans.
        terms: the last announced term by partition.
    """

    node_type = ProcessReplicas
    nodes: dict[str, ProcessReplicas]  # type: ignore[assignment]
    fault_mean_s = REPLICA_FAULT_MEAN_S

    def __init__(
        self,
        world: ReplicatedWorld,
        variant: ReplicatedVariant,
        *,
        size: int,
        without: Collection[str],
    ) -> None:
        super().__init__(
            world.loop,
            variant.machine,
            variant.conduct,
            count=len(world.nodes),
            partitions=world.logs,
            has_true_clocks=True,
            is_beyond=False,
            without=without,
        )
        self.scans, self.terms = variant.scans, dict[int, int]()
        self.hosts = self.hosts[: world.founders]
        self._world = world
        self._values: dict[tuple[int, Batch], tuple[int, ...]] = {}
        self.found_all(size)

    def send(
        self, sender: ReplicaNode, target: ReplicaNode, message: Message, arrive: Callable[[], None]
    ) -> None:
        network = self._world.network
        is_lost = self.loop.chance(network.loss)
        if not is_lost and not network.is_cut(sender.name, target.name):
            super().send(sender, target, message, arrive)

    def note_values(self, partition: int, batch: Batch, values: tuple[int, ...]) -> None:
        self.loop.counters["batches sent again"] += (partition, batch) in self._values
        self._values[partition, batch] = values

    def commit(self, partition: int, sequence: int, batch: Batch) -> Commit:
        """The commit of a frame."""
        name, number = str(batch[0]), batch[1]
        return Commit(partition, sequence, self._values[partition, batch], (name, number), 0.0)

    def judge_published(
        self,
        key: tuple[int, str],
        frames: list[Frame],
        *,
        first: int,
        until: int,
        node: ReplicaNode,
    ) -> None:
        super().judge_published(key, frames, first=first, until=until, node=node)
        partition, name = key
        if name == LOG:
            log = self._world.logs[partition]
            for batch in self.truth[key][log.end :]:
                log.commits.append(self.commit(partition, log.end + 1, batch))

    def judge_scan(self, node: str, log: Log) -> None:
        """What was acknowledged before a scan is in its answer."""
        acknowledged = self.acknowledged[log.partition, LOG].values()
        demand(log.end >= max(acknowledged, default=0), f"{node} scanned a stale log")


class _SharedNetwork(Network):
    """The network of processes, with the cuts and losses of their replicas."""

    def __init__(self, replicas: FaultyReplicas) -> None:
        super().__init__(replicas.loop)
        self.replicas = replicas

    def send(self, sender: str, to: str, deliver: Callable[[], None]) -> None:
        if not self.loop.chance(self.replicas.loss):
            super().send(sender, to, deliver)

    def is_cut(self, sender: str, to: str) -> bool:
        return super().is_cut(sender, to) or (sender, to) in self.replicas.cuts


class _BothFaults(Faults):
    mean_s = CCQ_FAULT_MEAN_S
    kinds = (*FAULTS, *BOTH_FAULTS)

    def __init__(
        self, world: Victim, replicas: ProcessCluster, *, without: Collection[str]
    ) -> None:
        super().__init__(world, without=without)
        self.replicas = replicas

    def start(self) -> None:
        super().start()
        self.replicas.break_something()

    def heal(self) -> None:
        super().heal()
        self.replicas.heal()
        self.replicas.is_over = True

    def _strand(self) -> None:
        """Cut a coordinator and the leader of a partition off from the others, both together."""
        up = [node for node in self._world.nodes if node.is_up]
        coordinators = [node for node in up if node.machine.coordinated]
        leaders = [node for node in up if self.replicas.nodes[node.name].announced]
        if coordinators and leaders:
            self._loop.counters["coordinators stranded with leaders"] += 1
            self._separate([self._random.choice(coordinators), self._random.choice(leaders)])


class ReplicatedWorld(World):
    """The world of continuous queries with one, three or five replicas of each partition."""

    def __init__(
        self,
        seed: int,
        variant: ReplicatedVariant,
        *,
        without: Collection[str] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(seed, variant="production", without=without, trace=trace)
        sizes = (1, 3, 3, 3, 5) if self.founders >= 5 else (1, 3, 3)
        size = Random(f"replicas {seed}").choice(sizes)
        self.topology = _topology([node.name for node in self.nodes], len(self.logs), size)
        self.replication = ProcessCluster(self, variant, size=size, without=without)
        self.network = _SharedNetwork(self.replication)
        self.faults = _BothFaults(self, self.replication, without=without)
        self.retention.past_readers = None
        self.checker.spares_readers = True
        self.processes = [node for node in self.nodes if isinstance(node, ReplicatedNode)]
        for node in self.processes:
            node.replicas = self.replication.nodes[node.name]
            node.replicas.process = node
        self.loop.counters[f"worlds with {size} replicas"] += 1

    def make_node(self, name: str) -> ReplicatedNode:
        return ReplicatedNode(name, self)

    def play(self) -> Outcome:
        for index, partition in enumerate(self.logs):
            for name in LOGS[1:]:
                self.loop.after(0.5, Producer(self.replication, (partition, name), index).begin)
        self.loop.after(0.1, self.replication.read)
        return super().play()

    def owner(self, partition: int) -> Node:
        """The owner by what a node knows that a client asks."""
        members = [node for node in self.processes if node.is_member]
        asked = self.loop.random.choice([node for node in members if node.serves] or members)
        return asked.owner(partition)

    def _is_quiet(self) -> bool:
        return super()._is_quiet() and self._is_settled()

    def _is_settled(self) -> bool:
        try:
            self.replication.judge_end()
        except Stalled:
            return False
        return True

    def _demand_all(self) -> None:
        super()._demand_all()
        self.replication.judge_end()


def _topology(names: list[str], partitions: int, size: int) -> Topology:
    nodes = tuple(NodeInfo(name, f"{name}:7701") for name in names)
    group = Group("all", nodes)
    return Topology("sim", (group,), (("", 0),), partitions, replicas=size)


def run_replicated(
    seed: int,
    variant: str = "production",
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Play the world of this seed, with a variant of `REPLICATED_VARIANTS`.

    Raises:
        Violation: a guarantee was broken; other assertions are those of the machines.
        Stalled: no promise about data was broken, but no progress was made.
    """
    with patched(SHORT):
        world = ReplicatedWorld(seed, REPLICATED_VARIANTS[variant], without=without, trace=trace)
        outcome = world.play()
    return Outcome(seed, outcome.seconds, outcome.delivered, outcome.trace_hash, outcome.counters)
