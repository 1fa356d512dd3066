"""Calls to other nodes over gRPC: implements `node.peers.Peers` and gossip."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR
from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import DeadlineExceeded, GalileoError, Unavailable
from galileo.labels import from_ipc, to_ipc
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Schema
from galileo.node.peers import (
    CommitAnswer,
    CommitTask,
    ReadTask,
    Removed,
    RetentionReport,
    ScanAnswer,
    ScanDone,
    ScanFailed,
    ScanLabels,
    ScanTask,
    UploadedSampler,
)
from galileo.packing.arrow_streams import read_stream
from galileo.rpc.dataset_codec import removed_from_pb, report_from_pb
from galileo.rpc.samplers import sampler_from_pb, sampler_to_pb
from galileo.samplers import observed_schema
from galileo.wire.channel import Channels
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.internal.v1 import migration_pb2_grpc, peers_pb2, peers_pb2_grpc
from galileo.wire.status import error_from_pb, error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import (
    analytics_pb2,
    analytics_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    continuous_pb2,
    continuous_pb2_grpc,
    partitions_pb2,
    partitions_pb2_grpc,
    samplers_pb2,
    samplers_pb2_grpc,
    storage_pb2,
    storage_pb2_grpc,
)
from galileo.wire.zero_copy import Bulk, BulkStub, stream_of

COMMIT_TIMEOUT_S = 30.0
SCAN_TIMEOUT_S = 60.0
DROP_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0
"""Timeout of the next part of a stream, without the time of a slow local reader."""
STREAM_TIMEOUT_S = 86_400.0
"""Timeout of a whole stream."""
STAND_TIMEOUT_S = 60.0
EXPLORE_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 5.0
EXCHANGE_TIMEOUT_S = 2.0
RETENTION_TIMEOUT_S = 300.0
SAMPLER_TIMEOUT_S = 10.0
MOVE_TIMEOUT_S = 120.0
"""Timeout of one call of a move, such as the checksum of a large file."""
MOVE_SILENT_S = 1_800.0
"""Timeout between two progress messages of a move."""


class GrpcPeers:
    """Clients of the other nodes, one channel each; calls of dead nodes fail at once."""

    def __init__(
        self,
        topology: Topology | TopologyState,
        *,
        is_dead: Callable[[str], bool],
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        self._topology = TopologyState.of(topology)
        self._is_dead = is_dead
        self._channels = Channels(keys)

    async def close(self) -> None:
        await self._channels.close()

    def address(self, node: str) -> str:
        """The address of a node.

        Raises:
            Unavailable: this node's configuration does not name it, unlike that of others.
        """
        member = self._topology.current.by_name.get(node)
        if member is None:
            raise Unavailable(
                f"this node does not know the node {node}; give all nodes the same [cluster] table "
                "and restart this one, or ask another",
                node=node,
                after_s=1.0,
            )
        return member.address

    async def commit(self, node: str, task: CommitTask) -> CommitAnswer:
        head = peers_pb2.CommitRequest(
            dataset=task.dataset, partition=task.partition, producer=task.producer, batch=task.batch
        )
        request = Bulk(head, stream_of(task.observations))
        reply = await self._call(node, BulkStub, "Commit", request, COMMIT_TIMEOUT_S)
        return CommitAnswer(reply.sequence, reply.rows, reply.paths, reply.duplicate)

    async def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        request = storage_pb2.ScanRequest(items=[scan_task_to_pb(task) for task in tasks])
        stub = storage_pb2_grpc.StorageStub
        stream = self._stream(node, stub, "Scan", request, SCAN_TIMEOUT_S)
        async with aclosing(stream) as replies:
            async for reply in replies:
                for part in reply.parts:
                    yield _scan_answer(part)

    async def read(
        self, node: str, task: ReadTask, schema: Schema
    ) -> AsyncGenerator[pa.Table, None]:
        request = storage_pb2.ReadRequest(
            dataset=task.dataset,
            parts=to_ipc(task.parts.combine_chunks()),
            query_json=task.query_json,
            local=True,
            numbered=task.is_numbered,
            columns=task.options.columns,
            limit=task.options.limit,
            order_by=task.options.order_by,
        )
        whole = observed_schema(schema)
        columns = whole if task.is_numbered else task.options.arrow_schema(schema)
        stub = storage_pb2_grpc.StorageStub
        stream = self._stream(node, stub, "Read", request, READ_TIMEOUT_S)
        async with aclosing(stream) as parts:
            async for part in parts:
                yield from_ipc(part.observations, columns)

    async def register_queries(self, node: str, dataset: str, texts: Sequence[str]) -> None:
        """Registers continuous queries at a node."""
        request = peers_pb2.RegisterQueriesRequest(dataset=dataset, queries_json=texts)
        await self._call(
            node, peers_pb2_grpc.PeerStorageStub, "RegisterQueries", request, STAND_TIMEOUT_S
        )

    async def create_dataset(self, node: str, schema: Schema, *, replicate: bool) -> Schema:
        request = cluster_pb2.CreateDatasetRequest(
            schema_json=schema.to_json(), replicate=replicate
        )
        stub = cluster_pb2_grpc.ClusterStub
        reply = await self._call(node, stub, "CreateDataset", request, CALL_TIMEOUT_S)
        return Schema.from_json(reply.schema_json)

    async def drop_dataset(self, node: str, dataset: str) -> dict[str, Removed | GalileoError]:
        request = cluster_pb2.DropDatasetRequest(dataset=dataset)
        stub = cluster_pb2_grpc.ClusterStub
        reply = await self._call(node, stub, "DropDataset", request, DROP_TIMEOUT_S)
        return removed_from_pb(reply)

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed:
        request = cluster_pb2.DropDatasetRequest(dataset=name, generations=generations)
        stub = cluster_pb2_grpc.ClusterStub
        reply = await self._call(node, stub, "DropDataset", request, CALL_TIMEOUT_S)
        removed = removed_from_pb(reply)[node]
        if isinstance(removed, GalileoError):
            raise removed
        return removed

    async def datasets(self, node: str) -> list[Schema]:
        reply = await self._call(
            node,
            cluster_pb2_grpc.ClusterStub,
            "ListDatasets",
            cluster_pb2.ListDatasetsRequest(),
            CALL_TIMEOUT_S,
        )
        return [Schema.from_json(text) for text in reply.schemas_json]

    async def set_retention(
        self, node: str, dataset: str, retention: Retention | None
    ) -> VersionedRetention:
        request = cluster_pb2.SetRetentionRequest(
            dataset=dataset, retention_json=retention.to_json() if retention else ""
        )
        stub = cluster_pb2_grpc.ClusterStub
        reply = await self._call(node, stub, "SetRetention", request, CALL_TIMEOUT_S)
        return VersionedRetention.from_json(reply.numbered_json)

    async def apply_retention(
        self, node: str, dataset: str, retention: VersionedRetention
    ) -> RetentionReport:
        request = cluster_pb2.ApplyRetentionRequest(
            dataset=dataset, local=True, numbered_json=retention.to_json()
        )
        stub = cluster_pb2_grpc.ClusterStub
        reply = await self._call(node, stub, "ApplyRetention", request, RETENTION_TIMEOUT_S)
        return report_from_pb(reply.reports[0])

    async def get_sampler(self, node: str, digest: str) -> tuple[UploadedSampler, bytes]:
        request = peers_pb2.GetSamplerRequest(digest=digest, local=True)
        stub = peers_pb2_grpc.PeerSamplersStub
        reply = await self._call(node, stub, "Get", request, SAMPLER_TIMEOUT_S)
        return sampler_from_pb(reply.sampler), reply.archive

    async def keep_sampler(self, node: str, sampler: UploadedSampler, data: bytes) -> None:
        request = samplers_pb2.UploadSamplerRequest(archive=data, kept=sampler_to_pb(sampler))
        stub = samplers_pb2_grpc.SamplersStub
        await self._call(node, stub, "Upload", request, SAMPLER_TIMEOUT_S)

    async def revoke_sampler(self, node: str, digest: str) -> None:
        request = samplers_pb2.RevokeSamplerRequest(digest=digest, local=True)
        stub = samplers_pb2_grpc.SamplersStub
        await self._call(node, stub, "Revoke", request, SAMPLER_TIMEOUT_S)

    async def status(self, node: str) -> cluster_pb2.StatusReply:
        request = cluster_pb2.StatusRequest(local=True)
        reply: cluster_pb2.StatusReply = await self._call(
            node, cluster_pb2_grpc.ClusterStub, "Status", request, CALL_TIMEOUT_S
        )
        return reply

    async def drain(self, node: str, request: cluster_pb2.DrainRequest) -> cluster_pb2.DrainReply:
        reply: cluster_pb2.DrainReply = await self._call(
            node, cluster_pb2_grpc.ClusterStub, "Drain", request, CALL_TIMEOUT_S
        )
        return reply

    async def topology(self, node: str) -> Topology:
        request = cluster_pb2.TopologyRequest()
        stub = cluster_pb2_grpc.ClusterStub
        reply = await self._call(node, stub, "Topology", request, CALL_TIMEOUT_S)
        return Topology.from_json(reply.topology_json)

    async def move(
        self, node: str, request: partitions_pb2.MoveRequest
    ) -> AsyncGenerator[partitions_pb2.MoveProgress, None]:
        """Moves a partition to a node."""
        stream = self._stream(
            node, partitions_pb2_grpc.PartitionsStub, "Move", request, MOVE_SILENT_S
        )
        async with aclosing(stream) as parts:
            async for part in parts:
                yield part

    async def moving(self, node: str, method: str, request: Any) -> Any:
        """Calls a node about one of its partitions."""
        return await self._call(
            node, migration_pb2_grpc.MigrationStub, method, request, MOVE_TIMEOUT_S
        )

    async def exchange(self, node: str, request: peers_pb2.GossipRequest) -> peers_pb2.GossipReply:
        """Sends gossip, also to dead nodes, so that a restarted one is detected."""
        reply: peers_pb2.GossipReply = await self._call(
            node,
            peers_pb2_grpc.PeerClusterStub,
            "Gossip",
            request,
            EXCHANGE_TIMEOUT_S,
            even_dead=True,
        )
        return reply

    async def fetch(
        self, node: str, request: continuous_pb2.FetchRequest
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
        timeout_s = SCAN_TIMEOUT_S + request.wait_s
        stub = continuous_pb2_grpc.ContinuousStub
        async for part in self._stream(node, stub, "Fetch", request, timeout_s):
            yield part

    async def held(
        self, node: str, request: peers_pb2.ReadHandedOffCacheRequest
    ) -> AsyncIterator[peers_pb2.HandedOffCachePart]:
        """Reads a handed-off cache of a node."""
        stub = peers_pb2_grpc.PeerContinuousStub
        async for part in self._stream(node, stub, "ReadHandedOffCache", request, CALL_TIMEOUT_S):
            yield part

    async def explore(self, node: str, method: str, request: Any) -> Any:
        """Calls a unary method of the analytics service."""
        return await self._call(
            node, analytics_pb2_grpc.AnalyticsStub, method, request, EXPLORE_TIMEOUT_S
        )

    async def explore_parts(
        self, node: str, method: str, request: Any
    ) -> AsyncGenerator[analytics_pb2.AnalyticsPart, None]:
        """Calls a streaming method of the analytics service."""
        stub = analytics_pb2_grpc.AnalyticsStub
        stream = self._stream(node, stub, method, request, EXPLORE_TIMEOUT_S)
        async with aclosing(stream) as parts:
            async for part in parts:
                yield part

    async def _call(
        self,
        node: str,
        stub: Callable[[grpc.aio.Channel], Any],
        method: str,
        request: Any,
        timeout_s: float,
        *,
        even_dead: bool = False,
    ) -> Any:
        call = getattr(stub(self._channel(node, even_dead=even_dead)), method)
        try:
            return await call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=f"{node} at {self.address(node)}") from error

    async def _stream(
        self,
        node: str,
        stub: Callable[[grpc.aio.Channel], Any],
        method: str,
        request: Any,
        part_timeout_s: float,
    ) -> AsyncGenerator[Any, None]:
        call = getattr(stub(self._channel(node)), method)(request, timeout=STREAM_TIMEOUT_S)
        try:
            while True:
                async with asyncio.timeout(part_timeout_s):
                    part = await call.read()
                if part is grpc.aio.EOF:
                    return
                yield part
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=f"{node} at {self.address(node)}") from error
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"node {node} sent nothing for {part_timeout_s:g} s; try again", node=node
            ) from error
        finally:
            call.cancel()

    def _channel(self, node: str, *, even_dead: bool = False) -> grpc.aio.Channel:
        if not even_dead and self._is_dead(node):
            raise Unavailable(
                f"node {node} is unreachable; try again when it is back",
                node=node,
                after_s=1.0,
            )
        return self._channels.get(self.address(node))


def scan_task_to_pb(task: ScanTask) -> storage_pb2.ScanItem:
    return storage_pb2.ScanItem(
        item=task.item,
        dataset=task.dataset,
        query_json=task.query_json,
        after=cursor_to_pb(task.after),
        until=cursor_to_pb(task.until or EMPTY_CURSOR),
        bounded=task.until is not None,
        partitions=sorted(task.partitions),
        labels_max=task.labels_max,
        sampler_json=task.sampler_json,
    )


def scan_task_from_pb(item: storage_pb2.ScanItem) -> ScanTask:
    return ScanTask(
        item=item.item,
        dataset=item.dataset,
        query_json=item.query_json,
        after=cursor_from_pb(item.after),
        until=cursor_from_pb(item.until) if item.bounded else None,
        partitions=frozenset(item.partitions),
        labels_max=item.labels_max,
        sampler_json=item.sampler_json,
    )


def _scan_answer(part: storage_pb2.ScanPart) -> ScanAnswer:
    kind = part.WhichOneof("part")
    if kind == "labels":
        return ScanLabels(part.item, read_stream(part.labels))
    if kind == "reached":
        return ScanDone(part.item, cursor_from_pb(part.reached), cursor_from_pb(part.gone))
    return ScanFailed(part.item, error_from_pb(part.error))
