"""The query service: runs one query and streams its labels."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator

import pyarrow as pa

from galileo.errors import Overloaded
from galileo.node import query_limits
from galileo.node.cluster_scan import LargeAnswers, ScanEnd
from galileo.node.storage_node import StorageNode
from galileo.query import Query, parse_async
from galileo.rpc.error_mapping import Context, streaming
from galileo.rpc.quotas import QuotaResolver
from galileo.samplers import SamplerSpec
from galileo.wire.codec import cursor_to_pb, label_messages
from galileo.wire.v1 import query_pb2

RETRY_AFTER_S = 0.5
HELD_LABELS_MAX = 1_024
"""Labels up to this number, of several nodes, are combined into one message."""


class QueryServicer:
    def __init__(self, node: StorageNode, allowances: QuotaResolver | None = None) -> None:
        self._node = node
        self._allowances = allowances or QuotaResolver()
        self._streaming = 0

    @streaming
    async def Run(  # noqa: N802
        self, request: query_pb2.QueryRequest, context: Context
    ) -> AsyncGenerator[query_pb2.QueryPart, None]:
        if request.partitions:  # A part of an answer that another node has begun.
            schema = await self._node.narrowed(request.dataset, request.added)
            query = await parse_async(request.query, schema)
        else:
            schema = await self._node.named(request.dataset)
            query = await self._node.bind(request.query, schema)
        self._allowances.check_query(query, context)
        batches = self._found(query, request)
        if request.HasField("limit"):
            batches = self._node.scans.limited(query, batches, request.limit)
        with self._counted():
            head = query_pb2.QueryHead(
                schema_json=query.schema.to_json(), query_json=query.to_json()
            )
            message, held = query_pb2.QueryPart(head=head), list[pa.Table]()
            async with contextlib.aclosing(batches) as parts:
                async for part in parts:
                    if isinstance(part, ScanEnd):
                        tail = part
                        break
                    held.append(part)
                    if sum(table.num_rows for table in held) > HELD_LABELS_MAX:
                        for chunk in await label_messages(pa.concat_tables(held)):
                            message.labels = chunk
                            yield message
                            message = query_pb2.QueryPart()
                        held.clear()
            for chunk in await label_messages(pa.concat_tables(held)) if held else ():
                if message.labels:
                    yield message
                    message = query_pb2.QueryPart()
                message.labels = chunk
            message.tail.CopyFrom(self._tail(tail))
            yield message

    def _found(
        self, query: Query, request: query_pb2.QueryRequest
    ) -> AsyncGenerator[pa.Table | ScanEnd, None]:
        scans = self._node.scans
        if request.sampler_json:
            return scans.sampled(query, SamplerSpec.from_json(request.sampler_json))
        if request.partitions:
            named = frozenset(request.partitions)
            return scans.run(query, partitions=named, large=LargeAnswers.EXPECTED)
        is_left = request.accepts_endpoints and not request.HasField("limit")
        return scans.run(query, large=LargeAnswers.LEAVE if is_left else LargeAnswers.PASS_ON)

    def _tail(self, tail: ScanEnd) -> query_pb2.QueryTail:
        topology = self._node.topology
        nodes = topology.by_name
        # In place of a node that has left meanwhile; this one may have been removed itself.
        other = nodes.get(self._node.name, topology.nodes[0])
        endpoints = (
            query_pb2.QueryEndpoint(
                address=nodes.get(node, other).address, partitions=sorted(partitions)
            )
            for node, partitions in tail.left
        )
        return query_pb2.QueryTail(
            frontier=cursor_to_pb(tail.frontier), missing=sorted(tail.missing), endpoints=endpoints
        )

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        if self._streaming >= query_limits.ANSWERS_MAX:
            raise Overloaded(
                f"this node already answers {query_limits.ANSWERS_MAX} queries; try again shortly",
                after_s=RETRY_AFTER_S,
            )
        self._streaming += 1
        try:
            yield
        finally:
            self._streaming -= 1
