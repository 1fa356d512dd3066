"""Real storage nodes in this process; only the network between them is a stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from internal_network import InternalNetwork
from journals import RELAXED
from lone_nodes import founded

from galileo.dht import topology_changes
from galileo.dht.topology import SYSTEM, Topology
from galileo.errors import Unavailable
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import (
    CommitAnswer,
    ReadTask,
    ScanAnswer,
    ScanTask,
)
from galileo.node.replication.protocol import Envelope, LogRange, RangeDigest
from galileo.node.replication.replicas import ReplicasOptions
from galileo.node.storage_node import NodeCallbacks, NodeOptions, StorageNode
from galileo.query import parse
from galileo.replication.values import Member, ReplicationOptions
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

SCHEMA = Schema(
    "nam",
    [Feature("temperature", "K"), Feature("station", type="text", indexed=False)],
    geohash_precision=2,
    time_bucket="6h",
)
START_US = 1_330_560_000_000_000


REPLICATION = ReplicasOptions(
    machine=ReplicationOptions(
        dead_after_s=0.6,
        lease_s=0.4,
        stagger_s=0.1,
        campaign_s=0.4,
        beat_s=0.1,
        resend_s=0.1,
    ),
    tick_s=0.01,
    members_s=0.05,
    discard_s=0.2,
)
"""The system partition, which has several copies, soon gets another leader."""
MOVED_S = 60.0


class ManualClock:
    """Both clocks stand still until they are moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_400_000_000.0 + self.now


class Network(InternalNetwork):
    """Calls the other node's methods.

    Attributes:
        away: nodes that cannot be reached.
        cut_after: the streams of these nodes break after so many parts.
        calls: (node, method) of every call but the messages of replicas.
        scanned: every task that another node was asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, StorageNode] = {}
        self.away: set[str] = set()
        self.cut_after: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []
        self.scanned: list[ScanTask] = []

    def reach(self, node: str, method: str) -> StorageNode:
        self.calls.append((node, method))
        return self.find(node)

    def find(self, node: str) -> StorageNode:
        if node in self.away or node not in self.nodes:
            raise Unavailable(f"node {node} is away", node=node)
        return self.nodes[node]

    async def scan_small(self, node: str, task: ScanTask) -> Sequence[ScanAnswer] | None:
        self.scanned.append(task)
        if node in self.cut_after:
            self.reach(node, "scan_small")
            return None
        return await super().scan_small(node, task)

    async def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        self.scanned += tasks
        async with aclosing(super().scan(node, tasks)) as answers:
            count = 0
            async for answer in answers:
                if count == self.cut_after.get(node):
                    raise Unavailable(f"the line to {node} broke")
                count += 1
                yield answer


class Line:
    """Hands the messages of replicas over."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        return await self._network.find(node).replicas.receive(envelopes)

    async def digests(self, member: Member, ranges: Sequence[LogRange]) -> list[RangeDigest | None]:
        return self._network.find(member.node).replicas.comparison.digests(ranges)


@dataclass
class Cluster:
    """Three nodes in two groups, and what people would do with them.

    The first node that starts founds the system partition; replicas of it are at all nodes.

    Attributes:
        topology: with the directories of the nodes that have started.
        first: the topology before any has started.
    """

    directory: Path
    topology: Topology
    schema: Schema = SCHEMA
    network: Network = field(default_factory=Network)
    clock: ManualClock = field(default_factory=ManualClock)
    journals: JournalOptions = RELAXED
    options: NodeOptions = field(default_factory=NodeOptions)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    first: Topology = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.topology

    def start(self, name: str, *, is_founded: bool = True) -> StorageNode:
        store = Store.open(self.directory / name, self.journals, wall=self.clock.wall)
        before = self.topology
        if is_founded:
            self.topology = founded(self.topology, name, store)
        node = StorageNode(
            name,
            self.topology,
            store=store,
            peers=self.network,
            options=replace(self.options, replication=REPLICATION),
            callbacks=NodeCallbacks(on_led=self.tell_leaders),
        )
        self.network.nodes[name] = node
        replicas = node.connect_replicas(
            Line(self.network),
            identity_of=self.identity_of,
            is_alive=self.network.nodes.__contains__,
        )
        self.running[name] = asyncio.create_task(replicas.run())
        # A node that starts again may have an earlier topology than the others.
        for other in self.nodes if self.topology != before else ():
            other.live.replace_nodes(self.topology)
        self.tell_leaders()
        return node

    @property
    def leader(self) -> str:
        """The node that leads the system partition, or was the last to lead it."""
        moves = [move for node in self.nodes if (move := node.live.move_of(SYSTEM))]
        return max(moves).node

    @property
    def followers(self) -> list[str]:
        return [node.name for node in self.nodes if node.name != self.leader]

    async def follow(self, name: str) -> None:
        """Has a node learn what is agreed on about all names by now, as news of commits do."""
        await self[name].system._follow()

    def identity_of(self, name: str) -> str:
        node = self.network.nodes.get(name)
        return "" if node is None else node.store.identity

    def tell_leaders(self) -> None:
        """As heartbeats do."""
        leaders = {move for node in self.nodes for move in node.topology.moved}
        for node in self.nodes:
            node.live.adopt(leaders)

    async def move(self, partition: int, *, to: str) -> None:
        """Has another node lead a partition."""
        self.topology = topology_changes.pin_partitions(self.topology, [partition], to)
        for node in self.nodes:
            node.live.replace_nodes(replace(node.topology, pins=self.topology.pins))
        async with asyncio.timeout(MOVED_S):
            while partition not in self[to].partitions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def stop(self, name: str) -> None:
        if (running := self.running.pop(name, None)) is not None:  # A stop may have been cut off.
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await self.network.nodes.pop(name).close()

    async def restart(self, name: str) -> StorageNode:
        await self.stop(name)
        return self.start(name)

    async def reconfigure(self, **changes: Any) -> None:
        """Restarts all nodes with other options; what they store stays."""
        self.options = replace(self.options, **changes)
        for name in list(self.network.nodes):
            await self.restart(name)

    async def close(self) -> None:
        for name in list(self.network.nodes):
            await self.stop(name)

    @property
    def nodes(self) -> list[StorageNode]:
        return list(self.network.nodes.values())

    def __getitem__(self, name: str) -> StorageNode:
        return self.network.nodes[name]

    async def ingest(
        self, table: pa.Table, *, at: str = "a", producer: str = "radar", batch: int = 0
    ) -> CommitAnswer:
        return await self[at].ingest.ingest("nam", table, producer=producer, batch=batch)

    async def ask(self, query: str = "", *, at: str = "a") -> LabelSet:
        """The answer as a client would keep it: labels up to the frontier of the tail."""
        tables, tail = [], None
        async for part in self[at].scans.run(parse(query, self.schema)):
            if isinstance(part, ScanEnd):
                tail = part
            else:
                tables.append(part)
        assert tail is not None, "an answer ends with its tail"
        table = pa.concat_tables([self.schema.label_schema.empty_table(), *tables])
        labels = LabelSet(
            self.schema,
            table,
            frontier=tail.frontier,
            missing=tail.missing,
            query=parse(query, self.schema).to_json(),
        )
        return labels.until(tail.frontier)

    async def read(self, labels: LabelSet, *, exact: bool = True, at: str = "a") -> pa.Table:
        parts = labels.table.select(["partition", "sequence", "row", "rows"])
        task = ReadTask("nam", parts, labels.query if exact else "")
        tables = [table async for table in self[at].reading.read(task)]
        return pa.concat_tables([self.schema.observation_schema.empty_table(), *tables])


def make_observations(rows: int, seed: int = 0) -> pa.Table:
    """All over the world and two days; the station's name is unique in the table."""
    rng = np.random.default_rng(seed)
    times = START_US + rng.integers(0, 48, rows) * 3_600_000_000
    temperatures = np.round(rng.uniform(250, 310, rows), 1)
    return pa.table(
        [
            pa.array(np.round(rng.uniform(-90, 90, rows), 3)),
            pa.array(np.round(rng.uniform(-180, 180, rows), 3)),
            pa.array(times, pa.int64()).cast(TIME_TYPE),
            pa.array(temperatures, mask=rng.random(rows) < 0.1),
            pa.array([f"{seed}-{number}" for number in range(rows)]),
        ],
        schema=SCHEMA.observation_schema,
    )
