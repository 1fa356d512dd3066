"""The cluster service: datasets, status, topology, and the machines' mail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from galileo.errors import GalileoError
from galileo.model.schema import Schema
from galileo.node.storage_node import StorageNode
from galileo.rpc.guard import Context, unary
from galileo.rpc.peers import GrpcPeers
from galileo.wire.pb import cluster_pb2, cluster_pb2_grpc


class MailFace(Protocol):
    """Where heartbeats and machines' messages arrive; `server.mail` implements it."""

    async def arrive(self, request: cluster_pb2.ExchangeRequest) -> cluster_pb2.ExchangeReply: ...


class ClusterServicer(cluster_pb2_grpc.ClusterServicer):
    def __init__(
        self,
        node: StorageNode,
        *,
        peers: GrpcPeers,
        mail: MailFace,
        own_status: Callable[[], Awaitable[cluster_pb2.NodeStatus]],
    ) -> None:
        self._node = node
        self._peers = peers
        self._mail = mail
        self._own_status = own_status

    @unary
    async def CreateDataset(  # noqa: N802
        self, request: cluster_pb2.CreateDatasetRequest, context: Context
    ) -> cluster_pb2.CreateDatasetReply:
        schema = Schema.from_json(request.schema_json)
        if request.replicate:
            self._node.catalog.adopt(schema)
        else:
            await self._node.create_dataset(schema)
        return cluster_pb2.CreateDatasetReply()

    @unary
    async def ListDatasets(  # noqa: N802
        self, request: cluster_pb2.ListDatasetsRequest, context: Context
    ) -> cluster_pb2.ListDatasetsReply:
        catalog = self._node.catalog
        schemas = [catalog.schema(name).to_json() for name in catalog.names]
        return cluster_pb2.ListDatasetsReply(schemas_json=schemas)

    @unary
    async def Status(  # noqa: N802
        self, request: cluster_pb2.StatusRequest, context: Context
    ) -> cluster_pb2.StatusReply:
        if request.local:
            return cluster_pb2.StatusReply(nodes=[await self._own_status()])
        names = [node.name for node in self._node.topology.nodes]
        statuses = await asyncio.gather(*(self._status_of(name) for name in names))
        return cluster_pb2.StatusReply(nodes=statuses)

    @unary
    async def Topology(  # noqa: N802
        self, request: cluster_pb2.TopologyRequest, context: Context
    ) -> cluster_pb2.TopologyReply:
        return cluster_pb2.TopologyReply(topology_json=self._node.topology.to_json())

    @unary
    async def Exchange(  # noqa: N802
        self, request: cluster_pb2.ExchangeRequest, context: Context
    ) -> cluster_pb2.ExchangeReply:
        return await self._mail.arrive(request)

    async def _status_of(self, name: str) -> cluster_pb2.NodeStatus:
        if name == self._node.name:
            return await self._own_status()
        try:
            return (await self._peers.status(name)).nodes[0]
        except GalileoError:
            topology = self._node.topology
            return cluster_pb2.NodeStatus(
                name=name,
                group=topology.group_of(name).name,
                address=topology.by_name[name].address,
                state="unreachable",
            )
