"""The services of a cluster: datasets, status, topology, gossip, and moves of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from galileo.dht.topology import NodeInfo
from galileo.dht.topology_changes import known_node
from galileo.errors import Forbidden, GalileoError
from galileo.model.channel import Channel
from galileo.model.retention import Retention
from galileo.model.schema import SCHEMA_STEPS, Schema, StoredSchema, features_from_json
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.table import Table
from galileo.node.storage_node import StorageNode
from galileo.offload import offload
from galileo.rpc.access import Principal
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.identity import Identify, anonymous
from galileo.rpc.internal import check_protocol
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.quotas import QuotaResolver
from galileo.wire.alike import alike
from galileo.wire.codec import removed_to_pb, report_to_pb
from galileo.wire.v1 import cluster_pb2, partitions_pb2

SHOWN_TO_ALL = frozenset(
    {
        "name",
        "group",
        "address",
        "state",
        "cpu_share",
        "memory_bytes",
        "memory_free_bytes",
        "load",
        "uptime_s",
        "pid",
        "wall_s",
        "ccqs_coordinated",
        "ccqs_overloaded",
        "cache_bytes",
        "held_bytes",
        "spilled_bytes",
        "calls",
        "partitions",
        "under_replicated",
        "replica_lag",
        "topology_version",
    }
)
"""Fields of a node's status that name no dataset, so that every caller of `Status` may see them."""


class ClusterNodesApi(Protocol):
    """Implemented by `server.cluster_nodes.ClusterNodes`."""

    async def add(self, node: NodeInfo, *, group: str, is_new_group: bool) -> bytes: ...

    async def start(self, *, to: str = "") -> None: ...

    async def remove_lost(self, name: str) -> None: ...

    async def set_replicas(self, count: int) -> None: ...

    async def forget(self, name: str) -> list[int]: ...

    def move(self, partition: int, to: str) -> AsyncGenerator[str, None]: ...

    async def undo(self) -> None: ...

    def progress(self) -> AsyncGenerator[cluster_pb2.RemoveNodeProgress, None]: ...


class RangeChangesApi(Protocol):
    """Implemented by `server.range_changes.RangeChanges`."""

    def change(
        self, ranges: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[tuple[str, ...], None]: ...

    async def undo(self) -> None: ...


class ClusterServicer:
    def __init__(
        self,
        node: StorageNode,
        *,
        peers: GrpcPeers,
        nodes: ClusterNodesApi | None = None,
        ranges: RangeChangesApi | None = None,
        own_status: Callable[[], Awaitable[cluster_pb2.NodeStatus]],
        drain: Callable[[bool], None],
        identify: Identify = anonymous,
        condition: Callable[[], Awaitable[cluster_pb2.NodeCondition]] | None = None,
        describe: Callable[[Principal, bool], Awaitable[cluster_pb2.Caller]] | None = None,
        ccqs_of: Callable[[str], Awaitable[int]] | None = None,
        allowances: QuotaResolver | None = None,
    ) -> None:
        self._allowances = allowances or QuotaResolver()
        self._node = node
        self._peers = peers
        self._nodes = nodes
        self._ranges = ranges
        self._own_status = own_status
        self._drain = drain
        self._identify = identify
        self._condition = condition
        self._describe = describe or _name_of
        self._ccqs_of = ccqs_of

    @unary
    async def CreateDataset(  # noqa: N802
        self, request: cluster_pb2.CreateDatasetRequest, context: Context
    ) -> cluster_pb2.CreateDatasetReply:
        schema = stored_schema_from_json(request.schema_json)
        caller, quotas = self._identify(context), self._allowances.bounds(context)
        if quotas is None or not caller.name:
            schema = await self._node.create_dataset(schema)
        else:
            schema = await self._node.create_dataset(
                schema, creator=caller.name, names_max=quotas.datasets_max
            )
        return cluster_pb2.CreateDatasetReply(schema_json=schema.to_json())

    @unary
    async def AddFeatures(  # noqa: N802
        self, request: cluster_pb2.AddFeaturesRequest, context: Context
    ) -> cluster_pb2.AddFeaturesReply:
        features = features_from_json(request.features_json)
        schema = await self._node.add_features(request.dataset, features)
        return cluster_pb2.AddFeaturesReply(schema_json=schema.to_json())

    @unary
    async def DropDataset(  # noqa: N802
        self, request: cluster_pb2.DropDatasetRequest, context: Context
    ) -> cluster_pb2.DropDatasetReply:
        ccqs = await self._ccqs_of(request.dataset) if self._ccqs_of else 0
        removed = await self._node.drop_dataset(request.dataset)
        return removed_to_pb(removed, ccqs=ccqs)

    @unary
    async def ListDatasets(  # noqa: N802
        self, request: cluster_pb2.ListDatasetsRequest, context: Context
    ) -> cluster_pb2.ListDatasetsReply:
        caller, catalog = self._identify(context), self._node.catalog
        known = map(catalog.stored_schema, catalog.visible_keys)
        schemas = [
            schema
            for schema in known
            if request.name in ("", schema.name) and caller.may_list(schema)
        ]
        return await offload(SCHEMA_STEPS * len(schemas), _listed, schemas)

    @unary
    async def Status(  # noqa: N802
        self, request: cluster_pb2.StatusRequest, context: Context
    ) -> cluster_pb2.StatusReply:
        caller = self._identify(context)
        if request.caller:
            known = await self._describe(caller, not request.without_quotas)
            return cluster_pb2.StatusReply(caller=known)
        if request.condition:
            _check_admin(caller)
        if request.local:
            statuses = [await self._own_status()]
            if request.condition and self._condition is not None:
                statuses[0].condition.CopyFrom(await self._condition())
        else:
            names = [node.name for node in self._node.topology.nodes]
            statuses = await asyncio.gather(*(self._status_of(name) for name in names))
        return cluster_pb2.StatusReply(nodes=[visible(status, caller) for status in statuses])

    @unary
    async def Topology(  # noqa: N802
        self, request: cluster_pb2.TopologyRequest, context: Context
    ) -> cluster_pb2.TopologyReply:
        return cluster_pb2.TopologyReply(topology_json=self._node.topology.to_json())

    @unary
    async def AddNode(  # noqa: N802
        self, request: cluster_pb2.AddNodeRequest, context: Context
    ) -> cluster_pb2.AddNodeReply:
        if request.identity:
            check_protocol(request.protocol, node=request.name)
        assert self._nodes is not None
        node = NodeInfo(
            request.name,
            request.address,
            request.weight or 1.0,
            identity=request.identity,
            rack=request.rack,
        )
        topology = await self._nodes.add(node, group=request.group, is_new_group=request.new_group)
        return cluster_pb2.AddNodeReply(topology=topology)

    @streaming
    async def RemoveNode(  # noqa: N802
        self, request: cluster_pb2.RemoveNodeRequest, context: Context
    ) -> AsyncGenerator[cluster_pb2.RemoveNodeProgress, None]:
        assert self._nodes is not None
        if request.lost:
            await self._nodes.remove_lost(request.node)
            yield cluster_pb2.RemoveNodeProgress(stage="done")
        elif known_node(self._node.topology, request.node).name != self._node.name:
            async with aclosing(self._peers.leave(request.node, request)) as parts:
                async for part in parts:
                    yield part
        elif request.undo:
            await self._nodes.undo()
        else:
            await self._nodes.start(to=request.to)
            async with aclosing(self._nodes.progress()) as parts:
                async for part in parts:
                    yield part

    @unary
    async def SetReplicas(  # noqa: N802
        self, request: cluster_pb2.SetReplicasRequest, context: Context
    ) -> cluster_pb2.SetReplicasReply:
        assert self._nodes is not None
        await self._nodes.set_replicas(request.replicas)
        return cluster_pb2.SetReplicasReply()

    @unary
    async def ForgetNode(  # noqa: N802
        self, request: cluster_pb2.ForgetNodeRequest, context: Context
    ) -> cluster_pb2.ForgetNodeReply:
        assert self._nodes is not None
        return cluster_pb2.ForgetNodeReply(partitions=await self._nodes.forget(request.node))

    @streaming
    async def Move(  # noqa: N802
        self, request: partitions_pb2.MoveRequest, context: Context
    ) -> AsyncGenerator[partitions_pb2.MoveProgress, None]:
        assert self._nodes is not None
        async with aclosing(self._nodes.move(request.partition, request.to)) as stages:
            async for stage in stages:
                yield partitions_pb2.MoveProgress(stage=stage)

    @streaming
    async def SetRanges(  # noqa: N802
        self, request: cluster_pb2.SetRangesRequest, context: Context
    ) -> AsyncGenerator[cluster_pb2.SetRangesProgress, None]:
        assert self._ranges is not None
        if request.undo:
            await self._ranges.undo()
        else:
            ranges = [(one.geohash, one.group) for one in request.ranges]
            async with aclosing(self._ranges.change(ranges)) as steps:
                async for waiting in steps:
                    yield cluster_pb2.SetRangesProgress(stage="announce", waiting=waiting)
        yield cluster_pb2.SetRangesProgress(stage="done")

    @unary
    async def Drain(  # noqa: N802
        self, request: cluster_pb2.DrainRequest, context: Context
    ) -> cluster_pb2.DrainReply:
        if request.node == self._node.name:
            self._drain(not request.undo)
            return cluster_pb2.DrainReply()
        known_node(self._node.topology, request.node)
        return await self._peers.drain(request.node, request)

    @unary
    async def Scrub(  # noqa: N802
        self, request: cluster_pb2.ScrubRequest, context: Context
    ) -> cluster_pb2.ScrubReply:
        assert self._node.scrub is not None
        if request.begin:
            self._node.scrub.request()
        return alike(cluster_pb2.ScrubReply, self._node.scrub.progress())

    @unary
    async def SetRetention(  # noqa: N802
        self, request: cluster_pb2.SetRetentionRequest, context: Context
    ) -> cluster_pb2.RetentionReply:
        text = request.retention_json
        policy = Retention.from_json(text) if text else None
        numbered = await self._node.set_retention(request.dataset, policy)
        return cluster_pb2.RetentionReply(numbered_json=numbered.to_json())

    @unary
    async def GetRetention(  # noqa: N802
        self, request: cluster_pb2.GetRetentionRequest, context: Context
    ) -> cluster_pb2.RetentionReply:
        numbered = await self._node.retention(request.dataset)
        return cluster_pb2.RetentionReply(numbered_json=numbered.to_json())

    @unary
    async def ApplyRetention(  # noqa: N802
        self, request: cluster_pb2.ApplyRetentionRequest, context: Context
    ) -> cluster_pb2.ApplyRetentionReply:
        reports = await self._node.apply_retention(request.dataset)
        return cluster_pb2.ApplyRetentionReply(
            reports=[report_to_pb(node, report) for node, report in reports.items()]
        )

    @streaming
    async def CleanDataset(  # noqa: N802
        self, request: cluster_pb2.CleanDatasetRequest, context: Context
    ) -> AsyncGenerator[cluster_pb2.CleanDatasetProgress, None]:
        async with aclosing(self._node.clean(request.dataset)) as steps:
            async for step in steps:
                yield alike(cluster_pb2.CleanDatasetProgress, step)

    async def _status_of(self, name: str) -> cluster_pb2.NodeStatus:
        topology = self._node.topology  # The node may be removed meanwhile.
        if name == self._node.name:
            return await self._own_status()
        try:
            return (await self._peers.status(name)).nodes[0]
        except GalileoError:
            return cluster_pb2.NodeStatus(
                name=name,
                group=topology.group_of(name).name,
                address=topology.by_name[name].address,
                state="unreachable",
            )


def _listed(schemas: Sequence[StoredSchema]) -> cluster_pb2.ListDatasetsReply:
    return cluster_pb2.ListDatasetsReply(
        schemas_json=[one.to_json() for one in schemas if isinstance(one, Schema)],
        tables_json=[one.to_json() for one in schemas if isinstance(one, Table)],
        channels_json=[one.to_json() for one in schemas if isinstance(one, Channel)],
    )


def _check_admin(caller: Principal) -> None:
    """Diagnostics are costly, and show continuous queries of all owners and datasets."""
    if not (caller.is_admin and caller.may_use_all):
        raise Forbidden(
            "expected the role admin and grants on all datasets to examine a node, "
            f"{caller.name!r} does not have them; ask an administrator of the cluster",
            roles=["admin"],
        )


async def _name_of(caller: Principal, _: bool) -> cluster_pb2.Caller:
    return cluster_pb2.Caller(name=caller.name)


def visible(status: cluster_pb2.NodeStatus, caller: Principal) -> cluster_pb2.NodeStatus:
    """What a caller may see of the status of a node.

    Without grants on all datasets these are the fields `SHOWN_TO_ALL` and the datasets with a
    grant. All else is left out, also what a newer node adds to its status.
    """
    if caller.may_use_all:
        return status
    shown = cluster_pb2.NodeStatus()
    shown.CopyFrom(status)
    shown.DiscardUnknownFields()
    for field, _ in status.ListFields():
        if field.name not in SHOWN_TO_ALL:
            shown.ClearField(field.name)  # type: ignore[arg-type]
    shown.datasets.extend(dataset for dataset in status.datasets if caller.may_use(dataset.dataset))
    return shown
