"""Storage nodes in this process behind real gRPC servers; which of them are held dead is chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pyarrow as pa
import pytest
from lone_nodes import lone_node

from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.election.ranking import UsageStatistics
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.node import query_limits
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.rpc.analytics import AnalyticsServicer
from galileo.rpc.call_log import CallTracker
from galileo.rpc.channels import ChannelsServicer
from galileo.rpc.cluster import ClusterServicer
from galileo.rpc.interceptor import CallInterceptor
from galileo.rpc.internal import Internal, add_internal
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.query import QueryServicer
from galileo.rpc.storage import StorageServicer
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions
from galileo.wire.channel import node_server_options, open_channel
from galileo.wire.services import (
    ANALYTICS,
    CHANNELS,
    CLUSTER,
    QUERY,
    STORAGE,
    add_service,
    stub_of,
)
from galileo.wire.v1 import (
    cluster_pb2,
)

SCHEMA = Schema(
    "nam",
    [Feature("temperature", "K"), Feature("station", type="text")],
    geohash_precision=2,
    time_bucket="1d",
)


@dataclass
class Served:
    """One node, its server, and stubs to call it with."""

    node: StorageNode
    peers: GrpcPeers
    server: grpc.aio.Server
    channel: grpc.aio.Channel

    @property
    def storage(self) -> Any:
        return stub_of(STORAGE, self.channel)

    @property
    def query(self) -> Any:
        return stub_of(QUERY, self.channel)

    @property
    def explore(self) -> Any:
        return stub_of(ANALYTICS, self.channel)

    @property
    def cluster(self) -> Any:
        return stub_of(CLUSTER, self.channel)

    async def close(self) -> None:
        await self.channel.close()
        await self.server.stop(None)
        await self.peers.close()
        await self.node.close()


@dataclass
class Company:
    """Nodes a and c in the west, b in the east; a leads the system partition.

    Attributes:
        dead: those that all nodes hold dead.
        known: the topology with what the nodes that have started found and lead.
    """

    topology: Topology
    schema: Schema = SCHEMA
    query_servicer: type[QueryServicer] = QueryServicer
    dead: set[str] = field(default_factory=set)
    members: dict[str, Served] = field(default_factory=dict)
    known: Topology = field(init=False)

    def __post_init__(self) -> None:
        self.known = self.topology

    def __getitem__(self, name: str) -> Served:
        return self.members[name]

    async def start(self, name: str, server: grpc.aio.Server, directory: Path) -> None:
        store = Store.open(directory, JournalOptions(durability="none"), wall=lambda: 0.0)
        peers = GrpcPeers(self.topology, is_dead=lambda node: node in self.dead)
        node = lone_node(name, self.known, store=store, peers=peers, options=NodeOptions())
        self.known = node.topology
        storage = StorageServicer(node)
        add_service(STORAGE, storage, server)
        add_service(QUERY, self.query_servicer(node), server)
        add_service(ANALYTICS, AnalyticsServicer(node), server)
        channels = ChannelsServicer(node, peers)
        add_service(CHANNELS, channels, server)
        cluster = ClusterServicer(
            node,
            peers=peers,
            own_status=_status_of(node),
            drain=lambda is_on: None,
        )
        add_service(CLUSTER, cluster, server)
        add_internal(Internal(node, UsageStatistics), server)
        await server.start()
        channel = open_channel(self.topology.by_name[name].address)
        self.members[name] = Served(node, peers, server, channel)


def _status_of(node: StorageNode) -> Callable[[], Awaitable[cluster_pb2.NodeStatus]]:
    async def status() -> cluster_pb2.NodeStatus:
        return cluster_pb2.NodeStatus(name=node.name, state="up")

    return status


@pytest.fixture
def limits() -> dict[str, float]:
    """Limits of queries with other values; tests override it."""
    return {}


@pytest.fixture
def query_servicer() -> type[QueryServicer]:
    """The query service of the company's nodes; tests override it."""
    return QueryServicer


@pytest.fixture
async def company(
    tmp_path: Path,
    limits: dict[str, float],
    query_servicer: type[QueryServicer],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Company]:
    for name, value in limits.items():
        monkeypatch.setattr(query_limits, name, value)
    servers = {
        name: grpc.aio.server(
            options=node_server_options(), interceptors=[CallInterceptor(CallTracker())]
        )
        for name in "abc"
    }
    ports = {name: server.add_insecure_port("127.0.0.1:0") for name, server in servers.items()}
    a, b, c = (NodeInfo(name, f"127.0.0.1:{port}") for name, port in ports.items())
    topology = Topology("test", (Group("west", (a, c)), Group("east", (b,))), even_ranges(2))
    made = Company(topology, query_servicer=query_servicer)
    for name, server in servers.items():
        await made.start(name, server, tmp_path / name)
    yield made
    for served in made.members.values():
        await served.close()


@pytest.fixture(scope="session")
def make_observations() -> Callable[..., pa.Table]:
    """`make_observations(rows, seed=0, station="s")`: all over the world, on one day."""

    def made(rows: int, seed: int = 0, station: str = "s") -> pa.Table:
        rng = np.random.default_rng(seed)
        return pa.table(
            [
                pa.array(rng.uniform(-90, 90, rows)),
                pa.array(rng.uniform(-180, 180, rows)),
                pa.array(np.full(rows, 1_330_560_000_000_000)).cast(TIME_TYPE),
                pa.array(rng.uniform(250, 310, rows)),
                pa.array([f"{station}-{number}" for number in range(rows)]),
            ],
            schema=SCHEMA.observation_schema,
        )

    return made
