"""Reads observations straight from the owners of their partitions.

The parts to read are in the order of partition, commit and row. Neighbouring partitions of one
owner are a *share*, which is asked of that owner in one call, or in several if it is long. Shares
are yielded one after the other, so the order is that of all parts. Where the whole answer is wanted
they are read at the same time.

An owner may have moved since the topology was read. The node that is asked reads the rows from
their new owner then, so a stale topology costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from galileo.client.ingestion import Progress
from galileo.client.interleaving import cancel_all
from galileo.client.queries import ENDPOINTS_AT_ONCE, PART_S, with_progress
from galileo.client.routing import Router
from galileo.cursor import joined_changes
from galileo.errors import HistoryChanged, InputError
from galileo.labels import LabelSet, from_ipc, marked
from galileo.model.rows import RowOptions, in_order, needed_columns
from galileo.wire.caller import Caller, Stream
from galileo.wire.codec import table_chunks
from galileo.wire.services import STORAGE
from galileo.wire.v1 import storage_pb2

Tables: TypeAlias = AsyncGenerator[pa.Table, None]
PARTS_PER_READ = 100_000
FEW_PARTS = 10_000
"""Up to so many parts, one node reads all if partitions have copies. It may have them all itself,
and calls to several nodes cost more than they save."""


async def read(
    router: Router,
    labels: LabelSet,
    *,
    exact: bool,
    options: RowOptions,
    progress: Progress | None,
) -> pa.Table:
    """The observations behind labels; see `AsyncClient.read`."""
    schema = labels.schema
    options.check(schema)
    needed = dataclasses.replace(
        options, columns=needed_columns(options.names(schema), options.ordered)
    )
    pieces = read_batches(router, labels, exact=exact, options=needed, at_once=ENDPOINTS_AT_ONCE)
    tables = [table async for table in with_progress(pieces, progress)]
    whole = pa.concat_tables([needed.described_schema(schema).empty_table(), *tables])
    first = in_order(whole, options).slice(0, options.limit)
    return marked(first.select(options.names(schema)), labels.missing)


async def read_batches(
    router: Router,
    labels: LabelSet,
    *,
    exact: bool,
    options: RowOptions,
    at_once: int = 1,
    parts_per_read: int = PARTS_PER_READ,
) -> Tables:
    """The observations behind labels in pieces; see `AsyncClient.read_batches`.

    With an order each piece is sorted, but not all of them together.
    """
    schema = labels.schema
    options.check(schema)
    request = storage_pb2.ReadRequest(
        dataset=schema.key,
        query_json=labels.query if exact else "",
        columns=options.columns,
        limit=options.limit,
        order_by=options.order_by,
        added=schema.added,
    )
    parts = await asyncio.to_thread(_parts, labels)
    pieces = read_parts(
        router,
        request,
        parts,
        columns=options.described_schema(schema),
        at_once=at_once,
        parts_per_read=parts_per_read,
    )
    async with aclosing(pieces) as tables:
        async for table in tables:
            yield table


def check_labels(labels: object, *others: object) -> None:
    """Raises InputError if the arguments of `read` are not labels."""
    if isinstance(labels, LabelSet) and not others:
        return
    types = " and ".join(f"a {type(argument).__name__}" for argument in (labels, *others))
    raise InputError(
        f"expected labels, as query returns them, got {types}; use "
        "client.select(dataset, query), which finds and reads observations in one call"
    )


def _parts(labels: LabelSet) -> pa.Table:
    """The commits and rows to read, in the order in which nodes send them."""
    order = np.lexsort((labels.rows, labels.sequences, labels.partitions))
    return labels.table.select(["partition", "sequence", "row", "rows"]).take(pa.array(order))


async def read_parts(
    router: Router,
    request: storage_pb2.ReadRequest,
    parts: pa.Table,
    *,
    columns: pa.Schema,
    at_once: int = ENDPOINTS_AT_ONCE,
    parts_per_read: int = PARTS_PER_READ,
) -> Tables:
    """The rows of parts, in the order of the parts.

    Args:
        router: of the nodes.
        request: what is asked of each owner, without its parts.
        parts: ordered by partition, sequence and row.
        columns: of the rows.
        at_once: shares that are read at the same time; then they wait in memory to be yielded.
        parts_per_read: of one call.
    """
    shares = await _shares(router, parts)
    wants_first = request.HasField("limit") and not request.order_by
    if wants_first or (router.has_copies and parts.num_rows <= FEW_PARTS):
        # The first owner reads from the others what it does not have.
        shares = [(owner, parts) for owner, _ in shares[:1]]
    answers = [
        _read_share(router.caller, owner, request, table_chunks(share, parts_per_read), columns)
        for owner, share in shares
    ]
    is_parallel = at_once > 1 and len(answers) > 1
    rows = _together(answers, at_once) if is_parallel else _one_by_one(answers)
    async with aclosing(rows) as tables:
        async for table in tables:
            yield table


async def _shares(router: Router, parts: pa.Table) -> list[tuple[str, pa.Table]]:
    """The parts of neighbouring partitions of one owner each, with the address of that owner."""
    partitions = parts.column("partition").to_numpy()
    starts = np.flatnonzero(np.append(True, np.diff(partitions) != 0)[: len(partitions)])
    owners = await router.owners(partitions[starts].tolist())
    stops = np.append(starts, len(partitions))[1:]
    places = zip(owners, starts.tolist(), stops.tolist(), strict=True)
    shares = []
    for owner, group in itertools.groupby(places, key=itemgetter(0)):
        alike = list(group)
        start, stop = alike[0][1], alike[-1][2]
        shares.append((owner, parts.slice(start, stop - start)))
    return shares


async def _read_share(
    caller: Caller,
    owner: str,
    request: storage_pb2.ReadRequest,
    chunks: Iterable[bytes],
    columns: pa.Schema,
) -> Tables:
    """The rows of a share, whose parts come in chunks."""
    left = request.limit if request.HasField("limit") else None
    for chunk in chunks:
        if left == 0:
            return
        asked = storage_pb2.ReadRequest()
        asked.CopyFrom(request)
        asked.parts = chunk
        if left is not None:
            asked.limit = left
        async with aclosing(_read_rows(caller, owner, asked, columns)) as tables:
            async for table in tables:
                if left is not None and not request.order_by:
                    left -= table.num_rows
                yield table


def _read_rows(
    caller: Caller, owner: str, request: storage_pb2.ReadRequest, columns: pa.Schema
) -> Tables:
    """All rows of a request once; resumes at another node after an error.

    All nodes send the same rows in the same order, so the number of rows read is the position.
    """
    rows_read = 0

    async def rest() -> Tables:
        nonlocal rows_read
        skip = rows_read
        stream, part = await caller.open(
            lambda node: node.stream(STORAGE, "Read", request, part_s=PART_S),
            Stream.read,
            owner=owner,
        )
        with stream:
            while part is not None:
                table = from_ipc(part.observations, columns)
                skip, fresh = max(0, skip - table.num_rows), table.slice(skip)
                if fresh.num_rows:
                    rows_read += fresh.num_rows
                    yield fresh
                part = await caller.while_live(stream.address, stream.read())

    return caller.resume(rest)


async def _one_by_one(answers: Sequence[Tables]) -> Tables:
    """The tables of all answers, read one answer after the other.

    Where commits were lost, the later answers begin, too, so that the error names all partitions.
    """
    changes = list[HistoryChanged]()
    for answer in answers:
        try:
            async with aclosing(answer) as tables:
                async for table in tables:
                    if changes:
                        break
                    yield table
        except HistoryChanged as error:
            changes.append(error)
    if changes:
        raise joined_changes(changes)


async def _together(answers: Sequence[Tables], at_once: int) -> Tables:
    """As `_one_by_one`, while later answers are read into memory."""
    slots = asyncio.Semaphore(at_once)
    queues = [asyncio.Queue[pa.Table | Exception | None]() for _ in answers]

    async def fill(queue: asyncio.Queue[Any], answer: Tables) -> None:
        try:
            async with slots, aclosing(answer) as tables:
                async for table in tables:
                    queue.put_nowait(table)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    async def read(queue: asyncio.Queue[Any]) -> Tables:
        while (table := await queue.get()) is not None:
            if isinstance(table, Exception):
                raise table
            yield table

    filling = [asyncio.create_task(fill(*pair)) for pair in zip(queues, answers, strict=True)]
    try:
        async with aclosing(_one_by_one([read(queue) for queue in queues])) as tables:
            async for table in tables:
                yield table
    finally:
        await cancel_all(filling)
