"""The storage service: decode, one call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import Forbidden, InputError, InvalidObservations
from galileo.labels import from_ipc
from galileo.model.reader import POSITIONS, READER, split_readers
from galileo.model.rows import RowOptions
from galileo.model.schema import Schema, StoredSchema, unknown_table
from galileo.model.table import versions_of
from galileo.node.peers import (
    PARTS_SCHEMA,
    ReadTask,
    ScanAnswer,
    ScanDone,
    ScanLabels,
    ScanTask,
    TableTask,
)
from galileo.node.select import CursorRange
from galileo.node.storage_node import StorageNode
from galileo.offload import offload
from galileo.packing.arrow_streams import read_stream
from galileo.query import parse_async
from galileo.rpc.access import check_positions, has_all_rows, usable_positions
from galileo.rpc.error_mapping import Context, redact_for, streaming, unary
from galileo.rpc.identity import CALLER
from galileo.rpc.internal import SCAN_ITEMS_MAX, STEP_BYTES
from galileo.rpc.quotas import QuotaResolver, check_vertices
from galileo.wire.codec import (
    cursor_from_pb,
    cursor_to_pb,
    label_messages,
    page_start_from_pb,
    page_start_to_pb,
    row_messages,
    row_streams,
)
from galileo.wire.services import STORAGE
from galileo.wire.status import error_to_pb
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import Bulk

_READ_TABLE = f"/{STORAGE.full_name}/ReadTable"
_NOTHING = pa.py_buffer(b"")
SCAN_REPLY_PARTS_MAX = 256
SCAN_REPLY_BYTES = 64 << 10


class StorageServicer:
    def __init__(self, node: StorageNode, allowances: QuotaResolver | None = None) -> None:
        self._node = node
        self._allowances = allowances or QuotaResolver()

    @unary
    async def Ingest(  # noqa: N802
        self, request: Bulk[storage_pb2.IngestRequest], context: Context
    ) -> storage_pb2.IngestReply:
        head = request.head
        schema = await self._node.stored_schema(head.dataset, added=head.added)
        data = request.observations
        table = await offload(data.size // STEP_BYTES, _observations, data)
        if isinstance(schema, Schema) and not head.deletes:
            await self._node.schema_with(schema, table.column_names)
        caller, brokers = CALLER.get(), await self._brokers("Ingest", schema)
        if schema.key == POSITIONS.key:  # More than one row is refused by the check of rows.
            rows = await asyncio.to_thread(versions_of, POSITIONS, table.slice(0, 1))
            await self._check_positions("Ingest", rows.column(READER))
        condition = await _condition(head)
        answer = await self._node.ingest.ingest(
            head.dataset,
            table,
            producer=head.producer,
            batch=head.batch,
            principal=caller.name if caller else "",
            range_epoch=head.range_epoch,
            first_epoch=head.first_epoch,
            check=await self._node.row_check(schema, is_conditional=condition is not None),
            brokers=brokers,
            digest=head.digest,
            unchanged_since=condition,
            deletes=head.deletes,
        )
        return storage_pb2.IngestReply(
            rows=answer.rows,
            paths=answer.paths,
            reached=cursor_to_pb(answer.reached),
            duplicate_rows=answer.duplicate_rows,
            forwarded_rows=answer.forwarded_rows,
        )

    @streaming
    async def Read(  # noqa: N802
        self, request: storage_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[storage_pb2.ReadPart]:
        await self._node.schema(request.dataset, added=request.added)
        await self._check_vertices([(request.dataset, request.query_json)], context)
        parts = await offload(
            len(request.parts) // STEP_BYTES, from_ipc, request.parts, PARTS_SCHEMA
        )
        options = _row_options(request, request.columns)
        task = ReadTask(request.dataset, parts, request.query_json, options, request.added)
        async with aclosing(self._node.reading.read(task)) as tables:
            async for table in tables:
                for chunk in await row_messages(table):
                    yield storage_pb2.ReadPart(observations=chunk)

    @streaming
    async def ReadTable(  # noqa: N802
        self, request: storage_pb2.ReadTableRequest, context: Context
    ) -> AsyncIterator[storage_pb2.ReadTablePart]:
        schema = await self._node.stored_schema(request.dataset, added=request.added)
        caller = CALLER.get()
        if brokers := await self._brokers("ReadTable", schema):
            raise _own_brokers_alone(schema, brokers)
        tables, shard = self._node.tables, self._node.catalog.versioned_shard(request.dataset)
        steps = len(request.keys) // STEP_BYTES
        task = await offload(steps, _table_task, request, shard.schema)
        is_filtered = schema.key == POSITIONS.key
        if is_filtered and task.keys is not None:
            await self._check_positions("ReadTable", pa.chunked_array([task.keys[READER]]))
        async with aclosing(tables.read(task, is_partial=request.partial)) as parts:
            async for part in parts:
                if len(part.reached):
                    yield storage_pb2.ReadTablePart(reached=cursor_to_pb(part.reached))
                rows = part.rows
                if is_filtered and caller is not None:
                    steps, keys = rows.num_rows, rows[READER]
                    rows = rows.filter(
                        await offload(steps, usable_positions, caller, _READ_TABLE, keys)
                    )
                for chunk in await row_messages(rows):
                    yield storage_pb2.ReadTablePart(rows=chunk)

    @streaming
    async def Select(  # noqa: N802
        self, request: storage_pb2.SelectRequest, context: Context
    ) -> AsyncGenerator[Bulk[storage_pb2.SelectPart], None]:
        schema = await (
            self._node.named(request.dataset)
            if request.count_only
            else self._node.schema(request.dataset, added=request.added)
        )
        schema = await self._node.schema_with(schema, request.columns)
        query = await self._node.bind(request.query, schema)
        self._allowances.check_query(query, context)
        if request.count_only:
            count = await self._node.selection.count(query)
            yield Bulk(storage_pb2.SelectPart(rows=count, last=True), _NOTHING)
            return
        waiting, missing = _NOTHING, set[int]()
        selected = self._node.selection.select(
            query,
            _row_options(request, _columns(request, query.schema)),
            commits=_commit_range(request),
            on_missing=missing.update if request.partial else None,
        )
        async with aclosing(selected) as tables:
            async for table in tables:
                async for stream in row_streams(table):
                    if waiting.size:
                        yield Bulk(storage_pb2.SelectPart(), waiting)
                    waiting = stream
        yield Bulk(storage_pb2.SelectPart(last=True, missing=sorted(missing)), waiting)

    @streaming
    async def Page(  # noqa: N802
        self, request: storage_pb2.PageRequest, context: Context
    ) -> AsyncIterator[storage_pb2.PagePart]:
        schema = await self._node.schema(request.dataset, added=request.added)
        schema = await self._node.schema_with(schema, request.columns)
        query = await self._node.bind(request.query, schema)
        self._allowances.check_query(query, context)
        page = await self._node.paging.page(
            query,
            limit=request.limit,
            columns=_columns(request, query.schema),
            start=page_start_from_pb(request.start) if request.HasField("start") else None,
            accepts_missing=request.partial,
        )
        for chunk in await row_messages(page.observations):
            yield storage_pb2.PagePart(rows=chunk)
        last = storage_pb2.PagePart(last=True, missing=sorted(page.missing))
        if page.following is not None:
            last.following.CopyFrom(page_start_to_pb(page.following))
        yield last

    @streaming
    async def Scan(  # noqa: N802
        self, request: storage_pb2.ScanRequest, context: Context
    ) -> AsyncIterator[storage_pb2.ScanReply]:
        _check_count(request.items)
        await self._check_vertices([(i.dataset, i.query_json) for i in request.items], context)
        for dataset, added in {(item.dataset, item.added) for item in request.items if item.added}:
            await self._node.schema(dataset, added=added)
        tasks = [_scan_task(item) for item in request.items]
        parts: list[storage_pb2.ScanPart] = []
        async with aclosing(self._node.local_scans.scan(tasks)) as answers:
            async for answer in answers:
                for part in await _scan_parts(answer, context):
                    parts.append(part)
                    if _is_full(parts):
                        yield storage_pb2.ScanReply(parts=parts)
                        parts = []
        if parts:
            yield storage_pb2.ScanReply(parts=parts)

    async def _brokers(self, method: str, table: StoredSchema) -> tuple[str, ...]:
        """Patterns of the brokers whose rows of a table the caller may use; none: all rows, or, of
        the table of positions, those by `usable_positions`.

        Raises:
            UnknownDataset: the caller may use tables of channels alone, and it is none.
        """
        caller, name = CALLER.get(), f"/{STORAGE.full_name}/{method}"
        if caller is None or table.key == POSITIONS.key or has_all_rows(caller, name, table.name):
            return ()
        if await self._node.channel_of(table) is not None:
            return caller.own_brokers
        if caller.has_other_role(name) and caller.may_use(table.name):
            return ()
        raise unknown_table(table.name, [])

    async def _check_positions(self, method: str, keys: pa.ChunkedArray) -> None:
        """Checks the keys of a request for rows of the table of positions.

        Raises:
            Forbidden: the caller may not use one.
            UnknownDataset: there is only one, and its dataset or channel does not exist.
        """
        caller = CALLER.get()
        if caller is not None:
            name = f"/{STORAGE.full_name}/{method}"
            await offload(len(keys), check_positions, caller, name, keys)
        if len(keys) == 1 and (owner := split_readers(keys)["owner"][0].as_py()) is not None:
            await self._node.stored_schema(owner)

    async def _check_vertices(self, queries: Iterable[tuple[str, str]], context: Context) -> None:
        """Checks quotas of the queries of a request, which have not been parsed yet."""
        quotas = self._allowances.bounds(context)
        if quotas is None:
            return
        for dataset, text in dict.fromkeys(queries):
            try:
                query = await parse_async(text, await self._node.schema(dataset))
            except InputError:
                continue
            check_vertices(query, quotas)


def _check_count(items: Sequence[storage_pb2.ScanItem]) -> None:
    if len(items) > SCAN_ITEMS_MAX:
        raise InputError(
            f"expected at most {SCAN_ITEMS_MAX} items in a scan, got {len(items)}",
            bound=SCAN_ITEMS_MAX,
        )


def _own_brokers_alone(table: StoredSchema, brokers: Sequence[str]) -> Forbidden:
    return Forbidden(
        f"expected a request for positions of your brokers ({', '.join(brokers)}), got one for "
        f"rows of {table.name!r}; ask an administrator of the cluster for a token without brokers",
        dataset=table.name,
    )


def _row_options(
    request: storage_pb2.ReadRequest | storage_pb2.SelectRequest, columns: Sequence[str]
) -> RowOptions:
    limit = request.limit if request.HasField("limit") else None
    return RowOptions(tuple(columns), limit, request.order_by)


def _columns(
    request: storage_pb2.SelectRequest | storage_pb2.PageRequest, schema: Schema
) -> tuple[str, ...]:
    """The columns of an answer; without names those of the schema that the sender knows."""
    if request.columns or request.added == schema.added:
        return tuple(request.columns)
    return tuple(schema.narrowed(request.added).observation_schema.names)


def _commit_range(request: storage_pb2.SelectRequest) -> CursorRange | None:
    if not request.HasField("commits"):
        return None
    named = request.commits
    after, until = cursor_from_pb(named.after), cursor_from_pb(named.until)
    return CursorRange(frozenset(named.partitions), after, until)


def _is_full(parts: list[storage_pb2.ScanPart]) -> bool:
    """Whether a message is large enough to send."""
    return len(parts) >= SCAN_REPLY_PARTS_MAX or len(parts[-1].labels) >= SCAN_REPLY_BYTES


def _observations(data: pa.Buffer) -> pa.Table:
    """Decodes any Arrow table; the node checks the schema."""
    try:
        table = read_stream(data)
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidObservations(
            f"expected observations as an Arrow IPC stream, got bytes that fail: {error}"
        ) from error
    return table


async def _condition(head: storage_pb2.IngestRequest) -> Cursor | None:
    """The cursor of a conditional write; None of one without a condition."""
    if not head.HasField("unchanged_since"):
        return None
    steps = len(head.unchanged_since.partitions)
    return await offload(steps, cursor_from_pb, head.unchanged_since)


def _table_task(request: storage_pb2.ReadTableRequest, schema: StoredSchema) -> TableTask:
    """The task of a request.

    Raises:
        InputError: the keys are not of the table or dataset.
    """
    return TableTask(
        schema.key,
        from_ipc(request.keys, schema.key_schema) if request.keys else None,
        cursor_from_pb(request.after) if request.HasField("after") else None,
        cursor_from_pb(request.until) if request.HasField("until") else None,
        frozenset(request.partitions),
        request.added,
    )


def _scan_task(item: storage_pb2.ScanItem) -> ScanTask:
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


async def _scan_parts(answer: ScanAnswer, context: Context) -> list[storage_pb2.ScanPart]:
    item = answer.item
    if isinstance(answer, ScanLabels):
        chunks = await label_messages(answer.table)
        return [storage_pb2.ScanPart(item=item, labels=chunk) for chunk in chunks]
    if isinstance(answer, ScanDone):
        reached, gone = cursor_to_pb(answer.reached), cursor_to_pb(answer.gone)
        return [storage_pb2.ScanPart(item=item, reached=reached, gone=gone)]
    return [storage_pb2.ScanPart(item=item, error=error_to_pb(redact_for(answer.error, context)))]
