"""Calls to other nodes over gRPC: implements `node.peers.Peers` and gossip."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from google.protobuf.descriptor import ServiceDescriptor

from galileo.cursor import EMPTY_CURSOR
from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.election.ranking import UsageStatistics
from galileo.errors import Unavailable
from galileo.grouped_calls import GroupedCalls
from galileo.labels import from_ipc, to_ipc
from galileo.model.retention import Removed, RetentionReport, VersionedRetention
from galileo.model.schema import Schema
from galileo.model.system_rows import Outcome, Page, Position, Row, RowChange
from galileo.model.table import Table
from galileo.node.peers import (
    BatchLookup,
    CommitAnswer,
    CommitTask,
    Execution,
    ExecutionsPart,
    ExecutionsTask,
    FoundBatch,
    ReadTask,
    ScanAnswer,
    ScanDone,
    ScanFailed,
    ScanLabels,
    ScanTask,
    TablePart,
    TableTask,
)
from galileo.packing.arrow_streams import read_stream
from galileo.rpc.internal import SERVICE, AnyChange, Internal
from galileo.samplers import observed_schema
from galileo.wire.caller import Caller, Connection, Stream
from galileo.wire.codec import cursor_from_pb, cursor_to_pb, report_from_pb
from galileo.wire.follow_parts import FollowParts
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.services import (
    ANALYTICS,
    CHANNELS,
    CLUSTER,
    CONTINUOUS,
    PEER_CLUSTER,
    PEER_CONTINUOUS,
    PEER_STORAGE,
    STORAGE,
)
from galileo.wire.status import error_from_pb
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.typed_service import Answer, P, TypedCall
from galileo.wire.v1 import (
    analytics_pb2,
    channels_pb2,
    cluster_pb2,
    continuous_pb2,
    storage_pb2,
)
from galileo.wire.zero_copy import Bulk, stream_of

SCAN_GROUP_WAIT_S = 0.2
"""The longest that small scans wait for those before them at the same node, which may be slow."""
DEAD_CHECK_S = 1.0
"""Pause between two looks at whether a node is dead that owes the next part of a stream."""
SCAN_GROUP_MAX = 64
"""Small scans of one call; their labels have to fit in one message."""


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Deadlines of calls between nodes, in seconds.

    Attributes:
        call_s: of a call by default.
        gossip_s: of an exchange of gossip.
        sampler_s: of a call that may bring the archive of a sampler.
        commit_s: of the commit of a batch.
        scan_s: of a call that reads or deletes data; for a stream, of its next part, without the
            time of a slow local reader.
        retention_s: of the retention of a dataset.
        frames_s: of messages of replicas with frames.
        removal_part_s: of the next progress message of a removal.
    """

    call_s: float = 5.0
    gossip_s: float = 1.0
    sampler_s: float = 10.0
    commit_s: float = 30.0
    scan_s: float = 60.0
    retention_s: float = 300.0
    frames_s: float = 10.0
    removal_part_s: float = 1_800.0


CHANGE_ROW = SERVICE.call(Internal.change_row)
CHANGE_ROWS = SERVICE.call(Internal.change_rows)
USAGE = SERVICE.call(Internal.usage)
ROWS_AFTER = SERVICE.call(Internal.rows_after)
KNOWN_ROW = SERVICE.call(Internal.known_row)
LEARN_ROW = SERVICE.call(Internal.learn_row)
KNOWN_ROWS = SERVICE.call(Internal.known_rows)
SAMPLER_ARCHIVE = SERVICE.call(Internal.sampler_archive)
DROP_GENERATIONS = SERVICE.call(Internal.drop_generations)


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
        self._caller = Caller(keys=keys)
        self._small_scans: dict[str, GroupedCalls[ScanTask, list[ScanAnswer] | None]] = {}
        self.options = PeerOptions()

    async def close(self) -> None:
        await self._caller.close()

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
            dataset=task.dataset,
            producer=task.producer,
            batch=task.batch,
            range_epoch=task.range_epoch,
            first_epoch=task.first_epoch,
            added=task.added,
            brokers=task.brokers,
            digest=task.digest,
        )
        request = Bulk(head, stream_of(task.observations))
        reply = await self._call(node, PEER_STORAGE, "Commit", request, self.options.commit_s)
        reached = cursor_from_pb(reply.reached)
        return CommitAnswer(reply.rows, reply.paths, reply.duplicate_rows, reached)

    async def find_batches(self, node: str, lookup: BatchLookup) -> list[FoundBatch]:
        epochs, partitions = zip(*lookup.places, strict=True)
        request = peers_pb2.FindBatchesRequest(
            dataset=lookup.dataset,
            producer=lookup.producer,
            batch=lookup.batch,
            range_epoch=lookup.range_epoch,
            epochs=epochs,
            partitions=partitions,
        )
        reply = await self._call(node, PEER_STORAGE, "FindBatches", request, self.options.commit_s)
        pairs = zip(reply.sequences, reply.last_batches, strict=True)
        return [FoundBatch(sequence, last) for sequence, last in pairs]

    def scan_small(self, node: str, task: ScanTask) -> asyncio.Future[list[ScanAnswer] | None]:
        """Concurrent scans at one node share calls."""
        scans = self._small_scans.get(node)
        if scans is None:
            scans = self._small_scans[node] = GroupedCalls(
                functools.partial(self._scan_group, node),
                wait_s=SCAN_GROUP_WAIT_S,
                items_max=SCAN_GROUP_MAX,
            )
        return scans.begin(task)

    async def _scan_group(
        self, node: str, tasks: Sequence[ScanTask]
    ) -> list[list[ScanAnswer] | Exception | None]:
        request = storage_pb2.ScanRequest(items=[scan_task_to_pb(task) for task in tasks])
        timeout_s = self.options.scan_s
        reply = await self._call(node, PEER_STORAGE, "ScanSmall", request, timeout_s)
        return [_small_answer(scan, task) for scan, task in zip(reply.scans, tasks, strict=True)]

    async def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        request = storage_pb2.ScanRequest(items=[scan_task_to_pb(task) for task in tasks])
        async with aclosing(self._stream(node, STORAGE, "Scan", request)) as replies:
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
            added=schema.added,
        )
        whole = observed_schema(schema)
        columns = whole if task.is_numbered else task.options.arrow_schema(schema)
        async with aclosing(self._stream(node, STORAGE, "Read", request)) as parts:
            async for part in parts:
                yield from_ipc(part.observations, columns)

    async def read_table(
        self, node: str, task: TableTask, table: Table
    ) -> AsyncGenerator[TablePart, None]:
        request, columns = table_task_to_pb(task), table.observation_schema
        async with aclosing(self._stream(node, STORAGE, "ReadTable", request)) as parts:
            async for part in parts:
                rows = from_ipc(part.rows, columns) if part.rows else columns.empty_table()
                yield TablePart(rows, cursor_from_pb(part.reached))

    async def read_executions(
        self, node: str, task: ExecutionsTask
    ) -> AsyncGenerator[ExecutionsPart, None]:
        request = channels_pb2.FollowRequest(
            dataset=task.channel,
            broker=task.broker,
            after=cursor_to_pb(task.after),
            partitions=sorted(task.partitions),
            local=True,
        )
        pieces = FollowParts()
        async with aclosing(self._stream(node, CHANNELS, "Follow", request)) as messages:
            async for message in messages:
                if (part := pieces.take(message)) is not None:
                    yield _executions_part(part)

    async def describe_channel(self, node: str, channel: str) -> channels_pb2.DescribeChannelReply:
        """How far a node's own partitions of a channel are."""
        request = channels_pb2.DescribeChannelRequest(dataset=channel, local=True)
        reply: channels_pb2.DescribeChannelReply = await self._call(
            node, CHANNELS, "DescribeChannel", request
        )
        return reply

    async def register_queries(self, node: str, dataset: str, texts: Sequence[str]) -> None:
        """Registers continuous queries at a node."""
        request = peers_pb2.RegisterQueriesRequest(dataset=dataset, queries_json=texts)
        await self._call(node, PEER_STORAGE, "RegisterQueries", request, self.options.scan_s)

    async def change_row(self, node: str, table: str, change: RowChange) -> Row:
        self._check_live(node)
        request = CHANGE_ROW.encode(table, cast(AnyChange, change))
        return await self.ask(node, CHANGE_ROW, request, timeout_s=self.options.sampler_s)

    async def change_rows(
        self, node: str, table: str, changes: Sequence[RowChange]
    ) -> Sequence[Outcome]:
        return await self._ask_live(node, CHANGE_ROWS, table, cast(Sequence[AnyChange], changes))

    async def rows_after(self, node: str, table: str, position: Position, topic: str) -> Page:
        return await self._ask_live(node, ROWS_AFTER, table, position, topic)

    async def learn_row(self, node: str, table: str, row: Row) -> None:
        await self._ask_live(node, LEARN_ROW, table, row)

    async def known_rows(self, node: str, table: str, after: str) -> Sequence[Row]:
        return await self._ask_live(node, KNOWN_ROWS, table, after)

    async def known_row(self, node: str, table: str, name: str) -> Row:
        return await self._ask_live(node, KNOWN_ROW, table, name)

    async def usage(self, node: str) -> UsageStatistics:
        """The load of a node, for elections."""
        return await self._ask_live(node, USAGE)

    async def sampler_archive(self, node: str, digest: str) -> pa.Buffer:
        self._check_live(node)
        request = SAMPLER_ARCHIVE.encode(digest)
        return await self.ask(node, SAMPLER_ARCHIVE, request, timeout_s=self.options.sampler_s)

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed:
        return await self._ask_live(node, DROP_GENERATIONS, name, generations)

    async def apply_retention(
        self, node: str, dataset: str, retention: VersionedRetention
    ) -> RetentionReport:
        request = cluster_pb2.ApplyRetentionRequest(
            dataset=dataset, local=True, numbered_json=retention.to_json()
        )
        reply = await self._call(node, CLUSTER, "ApplyRetention", request, self.options.retention_s)
        return report_from_pb(reply.reports[0])

    async def status(self, node: str) -> cluster_pb2.StatusReply:
        request = cluster_pb2.StatusRequest(local=True)
        reply: cluster_pb2.StatusReply = await self._call(node, CLUSTER, "Status", request)
        return reply

    async def drain(self, node: str, request: cluster_pb2.DrainRequest) -> cluster_pb2.DrainReply:
        reply: cluster_pb2.DrainReply = await self._call(node, CLUSTER, "Drain", request)
        return reply

    async def remove_node(self, node: str, leaving: str) -> None:
        """Has a node remove another from the topology, which has no partitions any more."""
        request = cluster_pb2.RemoveNodeRequest(node=leaving, is_drained=True)
        async with aclosing(self._stream(node, CLUSTER, "RemoveNode", request)) as parts:
            async for _ in parts:
                pass

    def leave(
        self, node: str, request: cluster_pb2.RemoveNodeRequest
    ) -> AsyncGenerator[cluster_pb2.RemoveNodeProgress, None]:
        """Has a node leave the cluster."""
        return self._stream(node, CLUSTER, "RemoveNode", request, self.options.removal_part_s)

    async def ask(
        self, node: str, call: TypedCall[..., Answer], request: bytes, *, timeout_s: float
    ) -> Answer:
        """Makes an internal call with an encoded request, also of a dead node."""
        answer = await self._connection(node).exchange(call.path, request, timeout_s=timeout_s)
        return call.decode_answer(answer)

    async def _ask_live(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> Answer:
        """Makes an internal call of a node that is not dead."""
        request = call.encode(*arguments, **named)
        answer = await self._live(node).exchange(call.path, request, timeout_s=self.options.call_s)
        return call.decode_answer(answer)

    async def exchange(self, node: str, request: peers_pb2.GossipRequest) -> peers_pb2.GossipReply:
        """Sends gossip, also to dead nodes, so that a restarted one is detected."""
        reply: peers_pb2.GossipReply = await self._connection(node).unary(
            PEER_CLUSTER, "Gossip", request, timeout_s=self.options.gossip_s
        )
        return reply

    def fetch(
        self, node: str, request: continuous_pb2.FetchRequest
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
        part_s = self.options.scan_s + request.wait_s
        return self._stream(node, CONTINUOUS, "Fetch", request, part_s)

    def held(
        self, node: str, request: peers_pb2.ReadHandedOffCacheRequest
    ) -> AsyncIterator[peers_pb2.HandedOffCachePart]:
        """Reads a handed-off cache of a node."""
        part_s = self.options.call_s
        return self._stream(node, PEER_CONTINUOUS, "ReadHandedOffCache", request, part_s)

    async def explore(self, node: str, method: str, request: Any) -> Any:
        """Calls a unary method of the analytics service."""
        return await self._call(node, ANALYTICS, method, request, self.options.scan_s)

    def explore_parts(
        self, node: str, method: str, request: Any
    ) -> AsyncGenerator[analytics_pb2.AnalyticsPart, None]:
        """Calls a streaming method of the analytics service."""
        return self._stream(node, ANALYTICS, method, request)

    async def _call(
        self,
        node: str,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        timeout_s: float | None = None,
    ) -> Any:
        timeout_s = timeout_s or self.options.call_s
        return await self._live(node).unary(service, method, request, timeout_s=timeout_s)

    async def _stream(
        self,
        node: str,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        part_s: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        part_s = part_s or self.options.scan_s
        with self._live(node).stream(service, method, request, part_s=part_s) as stream:
            while (part := await self._next_part(node, stream)) is not None:
                yield part

    async def _next_part(self, node: str, stream: Stream) -> Any:
        """The next part of a stream; None at its end.

        Raises:
            Unavailable: the node was declared dead while it was waited for.
        """
        reading = asyncio.ensure_future(stream.read())
        try:
            while not (await asyncio.wait([reading], timeout=DEAD_CHECK_S))[0]:
                self._check_live(node)
            return reading.result()
        finally:
            reading.cancel()

    def _live(self, node: str) -> Connection:
        self._check_live(node)
        return self._connection(node)

    def _check_live(self, node: str) -> None:
        if self._is_dead(node):
            raise Unavailable(
                f"node {node} is unreachable; try again when it is back", node=node, after_s=1.0
            )

    def _connection(self, node: str) -> Connection:
        address = self.address(node)
        return self._caller.connection(address, asked=f"{node} at {address}", name=f"node {node}")


def table_task_to_pb(task: TableTask) -> storage_pb2.ReadTableRequest:
    """The inverse of `table_task_from_pb`."""
    request = storage_pb2.ReadTableRequest(
        dataset=task.table, partitions=sorted(task.partitions), local=True
    )
    if task.keys is not None:
        request.keys = to_ipc(task.keys.combine_chunks())
    if task.after is not None:
        request.after.CopyFrom(cursor_to_pb(task.after))
    if task.until is not None:
        request.until.CopyFrom(cursor_to_pb(task.until))
    return request


def _executions_part(part: channels_pb2.FollowPart) -> ExecutionsPart:
    execution = Execution(part.partition, part.execution, part.observations, part.matches)
    return ExecutionsPart(
        cursor_from_pb(part.reached),
        execution if part.execution else None,
        cursor_from_pb(part.gone),
    )


def table_task_from_pb(request: storage_pb2.ReadTableRequest, table: Table) -> TableTask:
    """The task of a request.

    Raises:
        InputError: the keys are not of the table.
    """
    return TableTask(
        table.key,
        from_ipc(request.keys, table.key_schema) if request.keys else None,
        cursor_from_pb(request.after) if request.HasField("after") else None,
        cursor_from_pb(request.until) if request.HasField("until") else None,
        frozenset(request.partitions),
    )


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
        added=task.added,
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
        added=item.added,
    )


def _small_answer(scan: peers_pb2.SmallScan, task: ScanTask) -> list[ScanAnswer] | Exception | None:
    if scan.HasField("error"):
        return error_from_pb(scan.error)
    if scan.is_large:
        return None
    labels = [ScanLabels(task.item, read_stream(scan.labels))] if scan.labels else []
    reached, gone = cursor_from_pb(scan.reached), cursor_from_pb(scan.gone)
    return [*labels, ScanDone(task.item, reached, gone)]


def _scan_answer(part: storage_pb2.ScanPart) -> ScanAnswer:
    kind = part.WhichOneof("part")
    if kind == "labels":
        return ScanLabels(part.item, read_stream(part.labels))
    if kind == "reached":
        return ScanDone(part.item, cursor_from_pb(part.reached), cursor_from_pb(part.gone))
    return ScanFailed(part.item, error_from_pb(part.error))
