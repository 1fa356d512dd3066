"""The query service: one query, asked once, its labels streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from galileo.node.scans import Tail
from galileo.node.storage_node import StorageNode
from galileo.query import parse
from galileo.rpc.guard import Context, streaming
from galileo.wire.codec import cursor_to_pb, label_chunks
from galileo.wire.pb import query_pb2, query_pb2_grpc


class QueryServicer(query_pb2_grpc.QueryServicer):
    def __init__(self, node: StorageNode) -> None:
        self._node = node

    @streaming
    async def Run(  # noqa: N802
        self, request: query_pb2.QueryRequest, context: Context
    ) -> AsyncIterator[query_pb2.QueryPart]:
        schema = await self._node.schema(request.dataset)
        query = parse(request.query, schema)
        yield query_pb2.QueryPart(
            head=query_pb2.QueryHead(schema_json=schema.to_json(), query_json=query.to_json())
        )
        async for part in self._node.scans.run(query):
            if isinstance(part, Tail):
                yield query_pb2.QueryPart(
                    tail=query_pb2.QueryTail(
                        frontier=cursor_to_pb(part.frontier), missing=sorted(part.missing)
                    )
                )
            else:
                for chunk in label_chunks(part):
                    yield query_pb2.QueryPart(labels=chunk)
