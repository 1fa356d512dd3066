"""Two storage nodes in this process that share a wire on which messages can be lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lone_nodes import lone_node

from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import Unavailable
from galileo.model.schema import Feature, Schema
from galileo.model.system_rows import Row
from galileo.model.times import TIME_TYPE
from galileo.node.peers import CommitAnswer, CommitTask
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.rpc.gossip import GossipReply, GossipRequest
from galileo.rpc.peers import GOSSIP
from galileo.server.peer_messaging import PeerMessenger
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=2, time_bucket="1d")


@dataclass
class Wire:
    """Hands requests to the other node's mail room and methods.

    Attributes:
        away: nodes that cannot be reached.
        replies_lost: nodes whose replies are lost, after they took what came.
        sent: every request that was sent, also in vain.
    """

    nodes: dict[str, StorageNode] = field(default_factory=dict)
    rooms: dict[str, PeerMessenger] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    replies_lost: set[str] = field(default_factory=set)
    sent: list[tuple[str, GossipRequest]] = field(default_factory=list)

    async def exchange(self, node: str, request: GossipRequest) -> GossipReply:
        (arrived,) = GOSSIP.decode(GOSSIP.encode(request))
        self.sent.append((node, arrived))
        if node in self.away:
            raise Unavailable(f"{node} is away")
        reply = await self.rooms[node].receive(arrived)
        if node in self.replies_lost:
            raise Unavailable(f"the reply of {node} is lost")
        return GOSSIP.decode_answer(GOSSIP.encode_answer(reply))

    async def commit(self, node: str, task: CommitTask) -> CommitAnswer:
        return await self.nodes[node].ingest.commit(task)

    async def known_row(self, node: str, table: str, name: str) -> Row:
        return self.nodes[node].system_tables[table].known_row(name)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    made = Wire()
    members = tuple(NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate("ab", start=1))
    topology = Topology("test", (Group("g", members),), even_ranges(1), 8)
    for name in "ab":
        made.nodes[name] = lone_node(
            name,
            topology,
            store=Store.open(tmp_path / name, JournalOptions(durability="none"), wall=lambda: 0.0),
            peers=made,
            options=NodeOptions(),
        )
        topology = made.nodes[name].topology  # Of which the first leads the system partition.
    yield made
    for node in made.nodes.values():
        await node.close()


@pytest.fixture(scope="session")
def schema() -> Schema:
    return SCHEMA


@pytest.fixture(scope="session")
def make_observations() -> Callable[[int], pa.Table]:
    """`make_observations(rows)`: all over the world, on one day."""

    def made(rows: int) -> pa.Table:
        rng = np.random.default_rng(rows)
        return pa.table(
            [
                pa.array(rng.uniform(-90, 90, rows)),
                pa.array(rng.uniform(-180, 180, rows)),
                pa.array(np.full(rows, 1_330_560_000_000_000)).cast(TIME_TYPE),
                pa.array(rng.uniform(250, 310, rows)),
            ],
            schema=SCHEMA.observation_schema,
        )

    return made
