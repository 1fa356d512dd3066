"""The storage service: decode, one call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa

from galileo.errors import InputError, InvalidObservations
from galileo.labels import from_ipc
from galileo.node.peers import (
    PARTS_SCHEMA,
    CommitTask,
    ReadTask,
    ScanAnswer,
    ScanDone,
    ScanLabels,
)
from galileo.node.storage_node import StorageNode
from galileo.rpc.guard import Context, streaming, unary
from galileo.rpc.peers import scan_task_from_pb
from galileo.wire.codec import ROWS_PER_MESSAGE, cursor_to_pb, label_chunks, table_chunks
from galileo.wire.pb import storage_pb2, storage_pb2_grpc
from galileo.wire.status import error_to_pb

SCAN_ITEMS_MAX = 100_000
SCAN_REPLY_PARTS_MAX = 256
SCAN_REPLY_BYTES = 64 << 10


class StorageServicer(storage_pb2_grpc.StorageServicer):
    def __init__(self, node: StorageNode) -> None:
        self._node = node

    @unary
    async def Ingest(  # noqa: N802
        self, request: storage_pb2.IngestRequest, context: Context
    ) -> storage_pb2.IngestReply:
        await self._node.schema(request.dataset)
        answer = await self._node.ingest.ingest(
            request.dataset,
            _observations(request.observations),
            producer=request.producer,
            batch=request.batch,
        )
        return storage_pb2.IngestReply(
            rows=answer.rows,
            paths=answer.paths,
            reached=cursor_to_pb(answer.reached),
            duplicate_rows=answer.duplicate_rows,
        )

    @unary
    async def Commit(  # noqa: N802
        self, request: storage_pb2.CommitRequest, context: Context
    ) -> storage_pb2.CommitReply:
        schema = await self._node.schema(request.dataset)
        task = CommitTask(
            dataset=request.dataset,
            partition=request.partition,
            producer=request.producer,
            batch=request.batch,
            observations=from_ipc(request.observations, schema.observation_schema),
        )
        answer = await self._node.ingest.commit(task)
        return storage_pb2.CommitReply(
            sequence=answer.sequence,
            rows=answer.rows,
            paths=answer.paths,
            duplicate=answer.duplicate,
        )

    @streaming
    async def Read(  # noqa: N802
        self, request: storage_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[storage_pb2.ReadPart]:
        await self._node.schema(request.dataset)
        task = ReadTask(request.dataset, from_ipc(request.parts, PARTS_SCHEMA), request.query_json)
        read = self._node.reading.read_local if request.local else self._node.reading.read
        async for table in read(task):
            for chunk in table_chunks(table, ROWS_PER_MESSAGE):
                yield storage_pb2.ReadPart(observations=chunk)

    @streaming
    async def Scan(  # noqa: N802
        self, request: storage_pb2.ScanRequest, context: Context
    ) -> AsyncIterator[storage_pb2.ScanReply]:
        if len(request.items) > SCAN_ITEMS_MAX:
            raise InputError(
                f"expected at most {SCAN_ITEMS_MAX} items in a scan, got {len(request.items)}"
            )
        tasks = [scan_task_from_pb(item) for item in request.items]
        parts: list[storage_pb2.ScanPart] = []
        async for answer in self._node.local_scans.scan(tasks):
            for part in _scan_parts(answer):
                parts.append(part)
                if _is_full(parts):
                    yield storage_pb2.ScanReply(parts=parts)
                    parts = []
        if parts:
            yield storage_pb2.ScanReply(parts=parts)


def _is_full(parts: list[storage_pb2.ScanPart]) -> bool:
    """Whether one message holds enough; a part of labels alone is large."""
    return len(parts) >= SCAN_REPLY_PARTS_MAX or len(parts[-1].labels) >= SCAN_REPLY_BYTES


def _observations(data: bytes) -> pa.Table:
    """Any Arrow table; whether it fits the schema is the node's to say."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidObservations(
            f"expected observations as an Arrow IPC stream, got bytes that fail: {error}"
        ) from error
    return table


def _scan_parts(answer: ScanAnswer) -> list[storage_pb2.ScanPart]:
    item = answer.item
    if isinstance(answer, ScanLabels):
        chunks = label_chunks(answer.table)
        return [storage_pb2.ScanPart(item=item, labels=chunk) for chunk in chunks]
    if isinstance(answer, ScanDone):
        return [storage_pb2.ScanPart(item=item, reached=cursor_to_pb(answer.reached))]
    return [storage_pb2.ScanPart(item=item, error=error_to_pb(answer.error))]
