"""What a client does with the rows of tables: stores and reads them."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import split_by_bytes
from galileo.client.arguments import check_progress, instance_of, shown
from galileo.client.definitions import Definitions
from galileo.client.geometry_objects import with_wkb
from galileo.client.group_commit import CALL_ROWS_MAX, GroupCommit
from galileo.client.ingestion import Progress, in_thread, name_cursor
from galileo.client.lost_commits import naming_cursor
from galileo.client.results import Receipt, TableRows
from galileo.client.routing import Router
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Conflict, GalileoError, InputError
from galileo.formats import CsvOptions
from galileo.formats.memory import is_table, opened, plain_tables
from galileo.formats.source import BATCH_ROWS
from galileo.formats.table_files import open_rows
from galileo.geo import geoarrow
from galileo.labels import from_ipc, to_ipc
from galileo.model.enrichment import Lookup, Step
from galileo.model.keyed import placed_keys
from galileo.model.schema import DELETED, Schema
from galileo.model.table import (
    Table,
    deleted_rows,
    hashes_of,
    partitions_of,
    refuse_duplicates,
    versions_of,
)
from galileo.optional_imports import is_frame
from galileo.query import joins
from galileo.wire.caller import Connection
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.services import STORAGE
from galileo.wire.v1 import storage_pb2

Result = TypeVar("Result")
Keys: TypeAlias = Any
"""A table with the key's columns, or a list of keys if the key has one column."""
Runner: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a function with arguments, in a thread or not."""
SMALL_ROWS = 100
"""Rows that need no thread: to start one takes longer. As many keys are sought at their owner."""
KEYS_COUNTED_MAX = 10_000_000
"""Rows of a call whose keys are counted; their hashes take 8 bytes each."""


class StoredRows(Definitions):
    """Stores versions of rows at their owners, and reads them."""

    _router: Router
    _group_commit: GroupCommit

    async def _read_rows(
        self, table: str, *, at: Cursor | None = None, keys: Keys | None = None
    ) -> TableRows:
        """See `AsyncClient.table`."""

        async def read_rows(known: Table) -> TableRows:
            request, named = storage_pb2.ReadTableRequest(dataset=known.key), None
            if keys is not None:
                run = _runner_for(known, keys)
                named = await run(_read_keys, known, keys)
                request.keys = to_ipc(named)
            answer = await self._read_versions(known, request, until=at, keys=named)
            return TableRows(answer.rows.drop_columns([DELETED]), answer.cursor)

        return await self._with_table(table, read_rows, data=keys)

    async def _read_versions(
        self,
        table: Table | Schema,
        request: storage_pb2.ReadTableRequest,
        *,
        until: Cursor | None,
        keys: pa.Table | None = None,
    ) -> TableRows:
        """Rows or changes; those with a few `keys` from the node that has them all, if one has."""
        if until is not None:
            request.until.CopyFrom(cursor_to_pb(cursor_argument(until, "at")))
        request.added, columns = table.added, table.version_schema
        geometries = table.geometry_columns if isinstance(table, Table) else ()

        async def attempt(node: Connection) -> TableRows:
            rows, reached = [columns.empty_table()], EMPTY_CURSOR
            async for part in node.stream(STORAGE, "ReadTable", request):
                reached = reached.join(cursor_from_pb(part.reached))
                if part.rows:
                    rows.append(from_ipc(part.rows, columns))
            whole = geoarrow.with_metadata(pa.concat_tables(rows), geometries)
            return TableRows(whole, reached)

        with naming_cursor(cursor_from_pb(request.after), cursor_from_pb(request.until)):
            is_small = keys is not None and 0 < keys.num_rows <= SMALL_ROWS
            if is_small:
                owners = {*await self._router.owners({*placed_keys(table, keys)[0].tolist()})}
                if len(owners) == 1 and (owner := owners.pop()):
                    return await self._caller.call_owner(owner, attempt)
            return await self._caller.call(attempt)

    async def _enrich(
        self, observations: pa.Table, steps: Sequence[Step], tables: Mapping[str, Table]
    ) -> pa.Table:
        """Observations with what steps add."""
        references = {}
        for step in steps:
            table, keys = tables[step.table], None
            if isinstance(step, Lookup) and not step.as_of:
                keys = await in_thread(joins.keys_of, observations, step, table)
            if keys is not None and keys.num_rows == 0:
                rows = table.arrow_schema.empty_table()
            else:
                rows = (await self._read_rows(step.table, keys=keys)).rows
            references[step.table] = joins.Reference(table, rows)
        return await in_thread(joins.enrich, observations, steps, references)

    async def _with_table(
        self, name: str, work: Callable[[Table], Awaitable[Result]], *, data: Any
    ) -> Result:
        """The result of `work` for a table; once more if it is refused, and the table is another.

        A refusal by what this client has cached may be wrong, since another client may have dropped
        the table and created it again. Data that can be read only once is not sent again.
        """
        table = await self._table(name)
        try:
            return await work(table)
        except Conflict:
            raise
        except InputError:
            self._forget(table.name)
            present = await self._table(name)
            is_sized = hasattr(data, "__len__") or isinstance(data, os.PathLike) or data is None
            if present == table or not is_sized:
                raise
        return await work(present)

    async def _store(
        self,
        name: str,
        rows: Any,
        prepare: Callable[[Table, pa.Table], pa.Table] = lambda _, piece: piece,
        *,
        rows_of: Callable[[Table, Any], Any] = lambda _, rows: rows,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Stores rows, which `prepare` makes those that `versions_of` takes.

        Short calls may be sent together, unless they are conditional.
        """
        check_progress(progress)
        is_conditional = unchanged_since is not None
        if is_conditional:
            cursor_argument(unchanged_since, "unchanged_since")

        async def store(table: Table) -> Receipt:
            run = _runner_for(table, rows)
            with opened(rows_of(table, rows)) as data:
                read = _pieces(table, data, csv)
                pieces: Iterator[pa.Table] = (prepare(table, some) for some in read)
                if is_conditional:
                    pieces = iter(await run(_distinct, table, pieces))
                elif producer is None:
                    begun = await run(lambda: list(itertools.islice(pieces, 2)))
                    if len(begun) == 1 and begun[0].num_rows <= min(batch_rows, CALL_ROWS_MAX):
                        receipt = await self._group_commit.store(table, begun[0])
                        if progress is not None:
                            progress(receipt.rows)
                        return receipt
                    pieces = itertools.chain(begun, pieces)
                return await self._send(
                    table,
                    pieces,
                    producer=producer,
                    first_batch=first_batch,
                    batch_rows=batch_rows,
                    progress=progress,
                    unchanged_since=unchanged_since,
                    run=run,
                )

        return await self._with_table(name, store, data=rows)

    async def _send_group(self, table: Table, pieces: Sequence[pa.Table]) -> Receipt:
        """Stores the rows of several short calls."""
        is_small = sum(piece.num_rows for piece in pieces) <= SMALL_ROWS
        run = _at_once if is_small and not table.geometry_columns else in_thread
        return await self._send(table, iter(pieces), run=run)

    async def _send(
        self,
        table: Table,
        pieces: Iterator[pa.Table],
        *,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
        run: Runner = in_thread,
    ) -> Receipt:
        """Sends versions, a batch after the other, since of one key the last one counts."""
        versions = (versions_of(table, piece) for piece in pieces)
        sender = producer or f"client-{uuid.uuid4().hex}"
        number = stored = duplicates = 0
        hashes: list[npt.NDArray[np.uint64]] = []
        reached = EMPTY_CURSOR
        while (whole := await run(next, versions, None)) is not None:
            keys = await run(hashes_of, table, whole)
            if stored <= KEYS_COUNTED_MAX:
                hashes.append(keys[:, 0])
            places, sent = partitions_of(table, keys), 0
            for start in range(0, whole.num_rows, batch_rows):
                for batch in split_by_bytes(whole.slice(start, batch_rows)):
                    try:
                        replies = await self._router.ingest(
                            table,
                            batch,
                            producer=sender,
                            batch=first_batch + number,
                            is_named=producer is not None,
                            partitions=places[sent : sent + batch.num_rows],
                            unchanged_since=unchanged_since,
                        )
                    except GalileoError as error:
                        error.details.setdefault("producer", sender)
                        if isinstance(error, Conflict):
                            name_cursor(error)
                        raise
                    number, sent = number + 1, sent + batch.num_rows
                    for reply in replies:
                        stored, duplicates = stored + reply.rows, duplicates + reply.duplicate_rows
                        reached = reached.join(cursor_from_pb(reply.reached))
                    if progress is not None:
                        progress(batch.num_rows)
        is_counted = 0 < stored <= KEYS_COUNTED_MAX
        return Receipt(
            rows=stored,
            paths=0,
            batches=number,
            duplicate_rows=duplicates,
            reached=reached,
            producer=sender,
            keys=len(await run(np.unique, np.concatenate(hashes))) if is_counted else None,
        )


async def reachable_rows(client: StoredRows, name: str, *, known: pa.Table) -> tuple[pa.Table, int]:
    """The rows of a table, and how many of them were read.

    Rows of `known` follow for the partitions that cannot be reached.

    Raises:
        UnknownDataset: there is no such table.
    """
    table = await client._table(name)
    request = storage_pb2.ReadTableRequest(dataset=table.key, partial=True)
    answer = await client._read_versions(table, request, until=None)
    rows = answer.rows.drop_columns([DELETED])
    places = partitions_of(table, hashes_of(table, known))
    lacking = known.filter(pa.array(~np.isin(places, [*answer.cursor])))
    return pa.concat_tables([rows, lacking]), rows.num_rows


def _pieces(table: Table, rows: Any, csv: CsvOptions | None = None) -> Iterator[pa.Table]:
    """The rows of a table in memory or of a file."""
    if isinstance(rows, str | os.PathLike):
        return open_rows(Path(rows), table.arrow_schema, csv)
    if is_table(rows):
        return _tables(table, rows)
    raise InputError(
        "expected a DataFrame, an Arrow table, batch or reader, a dict of arrays, or the path of a "
        f"file, got {shown(rows)}"
    )


def _distinct(table: Table, pieces: Iterator[pa.Table]) -> list[pa.Table]:
    """Reads all rows of a conditional call, before the first one is sent.

    Raises:
        DuplicateKey: two of them have one key.
    """
    whole = [versions_of(table, piece) for piece in pieces]
    refuse_duplicates(table, pa.concat_tables(whole or [table.observation_schema.empty_table()]))
    return whole


def _tables(table: Table, rows: Any) -> Iterator[pa.Table]:
    yield from plain_tables(with_wkb(rows, table.geometry_columns))


def _read_keys(table: Table, keys: Keys) -> pa.Table:
    """The columns of the key."""
    rows = pa.concat_tables(_pieces(table, keyed(table, keys)), promote_options="default")
    named = versions_of(table, deleted_rows(table, rows))
    return named.select(list(table.key_columns)).combine_chunks()


async def _at_once(call: Callable[..., Result], *args: Any) -> Result:
    """As `in_thread`, but in the event loop."""
    return call(*args)


def _runner_for(table: Table, rows: Any) -> Runner:
    """What works on rows or keys: a thread, unless they are a few in memory without geometries."""
    if isinstance(rows, Mapping):
        columns = [*rows.values()]
    elif isinstance(rows, list | tuple | pa.Table | pa.RecordBatch) or is_frame(rows):
        columns = [rows]
    else:  # The length of others, such as relations of DuckDB, may take long.
        return in_thread
    is_small = all(hasattr(one, "__len__") and len(one) <= SMALL_ROWS for one in columns)
    return _at_once if is_small and not table.geometry_columns else in_thread


def cursor_argument(value: Any, name: str) -> Cursor:
    return instance_of(Cursor, value, f"a cursor of an earlier answer as {name}")


def keyed(table: Table, keys: Keys) -> Any:
    """Keys as rows."""
    if is_table(keys) or isinstance(keys, str | os.PathLike):
        return keys
    if len(table.key_columns) > 1:
        raise InputError(
            f"expected a table of the columns {', '.join(table.key_columns)}, or a list of keys if "
            f"the key has one column, got {shown(keys)}",
            parameter="keys",
        )
    column = table.key_schema.field(0)
    try:
        values = pa.array(list(keys), column.type)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InputError(
            f"expected keys of the type {column.type}, got {shown(keys)}: {error}",
            parameter="keys",
        ) from error
    return pa.table([values], names=[column.name])
