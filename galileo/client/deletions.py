"""How the client deletes observations, by rows or by a condition.

A condition is evaluated at a cursor. In a keyed dataset, what matches there is deleted unless it
has changed since: a correction that arrives meanwhile is not lost. Where something has, the
condition is evaluated again in the partitions concerned. In a dataset without a key, observations
do not change: the rows behind the labels that match are deleted, and what comes meanwhile stays.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import within
from galileo.client import analytics, queries, reading
from galileo.client.calls import Calls
from galileo.client.ingestion import Progress, Sending, TimeBounds, in_thread, send_all
from galileo.client.results import Receipt
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.errors import Conflict, InputError
from galileo.formats import CsvOptions
from galileo.formats.source import BATCH_ROWS
from galileo.formats.table_files import open_rows
from galileo.model import keyed
from galileo.model.deletions import STRETCHES_SCHEMA
from galileo.model.observations import normalise
from galileo.model.rows import RowOptions, needed_columns, row_options
from galileo.model.schema import COORDINATES, Schema
from galileo.query import Query, parse_async
from galileo.query.builder import Condition, Property, query_text
from galileo.wire.codec import cursor_from_pb
from galileo.wire.v1 import query_pb2, storage_pb2

LABELS_TOGETHER = 65_536
"""Labels whose rows are deleted in one commit of each partition, at least."""


class Deletions(Calls):
    """Deletes observations."""

    async def _delete_rows(
        self,
        schema: Schema,
        rows: Any,
        *,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
        besides: Iterable[npt.NDArray[np.uint64]] = (),
    ) -> Receipt:
        """Deletes the keys of some rows but for those of `besides`; see `AsyncClient.delete`."""
        if isinstance(rows, os.PathLike):
            rows = _file_rows(schema, Path(rows), csv)
        sending = Sending(
            schema,
            producer,
            first_batch=first_batch,
            batch_rows=batch_rows,
            unchanged_since=unchanged_since,
            deletes=True,
        )
        if left := list(besides):
            rows = _without(schema, rows, np.concatenate(left))
        return await send_all(self._router, sending, data=rows, progress=progress)

    async def _delete_matching(
        self, schema: Schema, query: str, *, progress: Progress | None = None
    ) -> Receipt:
        """Deletes what matches a query; see `AsyncClient.delete`."""
        backoff = self._caller.backoff(self._caller.options.ingest_patience_s)
        deletion, evaluated, asked = _Deletion(schema), EMPTY_CURSOR, None
        while asked is None or asked:
            at = await self._frontier(schema)
            at = at if asked is None else Cursor({partition: at[partition] for partition in asked})
            evaluated, refusals = Cursor({**evaluated, **at}), dict[int, Conflict]()
            columns = row_options([*COORDINATES, *schema.key_features], None, "")
            pieces = queries.select_batches(self._caller, schema, query, options=columns, at=at)
            async with aclosing(pieces) as tables:
                async for table in tables:
                    rows = normalise(schema, keyed.deleted_rows(schema, table))
                    refusals |= await self._delete_batch(deletion, rows, at)
                    if progress is not None:
                        progress(table.num_rows)
            asked = {*refusals}
            if refusals:
                await backoff.after(next(iter(refusals.values())))
        return deletion.receipt(evaluated)

    async def _delete_behind_labels(
        self, schema: Schema, query: str, *, progress: Progress | None = None
    ) -> Receipt:
        """Deletes what matches a query in a dataset without a key; see `AsyncClient.delete`."""
        deletion, waiting, labels_waiting = _Deletion(schema), list[pa.Table](), 0
        condition = await parse_async(query, schema)

        async def request() -> query_pb2.QueryRequest:
            return query_pb2.QueryRequest(dataset=schema.key, query=query, accepts_endpoints=True)

        batches = queries.LabelBatches(self._caller, request, require_complete=True)
        async with aclosing(batches):
            async for labels in batches:
                waiting.append(labels.table)
                labels_waiting += len(labels)
                if labels_waiting >= LABELS_TOGETHER:
                    await self._delete_labels(deletion, condition, waiting, progress)
                    waiting, labels_waiting = [], 0
        assert batches.end is not None, "the stream has ended"
        if waiting:
            await self._delete_labels(deletion, condition, waiting, progress)
        return deletion.receipt(batches.end.frontier)

    async def _delete_labels(
        self,
        deletion: _Deletion,
        query: Query,
        tables: Sequence[pa.Table],
        progress: Progress | None,
    ) -> None:
        """Deletes the rows behind labels that match."""
        certain, others = await in_thread(_by_certainty, query, tables)
        if others.num_rows:
            names = needed_columns([*COORDINATES, *query.features], "")
            read = storage_pb2.ReadRequest(
                dataset=query.schema.key, columns=names, added=query.schema.added
            )
            columns = RowOptions(names).arrow_schema(query.schema)
            pieces = reading.read_parts(self._router, read, others, columns=columns)
            rows = pa.concat_tables([columns.empty_table(), *[table async for table in pieces]])
            certain = await in_thread(_with_matching, query, certain, others, rows)
        if not certain.num_rows:
            return
        deletion.batches += 1
        replies = await self._router.ingest(
            deletion.schema,
            certain,
            producer=deletion.producer,
            batch=deletion.batches,
            partitions=certain.column("partition").to_numpy(),
            deletes=True,
        )
        before = deletion.rows
        deletion.times.note_buckets(tables, query.schema.time_bucket_us)
        deletion.note_replies(replies)
        if progress is not None:
            progress(deletion.rows - before)

    async def _frontier(self, schema: Schema) -> Cursor:
        """The last commit of each partition; raises IncompleteAnswer where a node is away."""
        version = await analytics.version(self._caller, schema.key, require_complete=True)
        return version.cursor

    async def _delete_batch(
        self, deletion: _Deletion, rows: pa.Table, at: Cursor
    ) -> dict[int, Conflict]:
        """Deletes rows that have not changed since a cursor.

        Returns:
            Of each partition that has refused its rows the error.
        """
        refusals = dict[int, Conflict]()
        deletion.batches += 1
        try:
            deletion.note(rows, await self._send_deletion(deletion, rows, at))
        except Conflict:  # Each partition has stored its rows or not; it knows those that it has.
            for part in await self._by_partition(deletion.schema, rows):
                try:
                    deletion.note(part, await self._send_deletion(deletion, part, at))
                except Conflict as error:
                    refusals[int(error.details["partition"])] = error
        return refusals

    async def _send_deletion(
        self, deletion: _Deletion, rows: pa.Table, at: Cursor
    ) -> list[storage_pb2.IngestReply]:
        return await self._router.ingest(
            deletion.schema,
            rows,
            producer=deletion.producer,
            batch=deletion.batches,
            unchanged_since=at,
        )

    async def _by_partition(self, schema: Schema, rows: pa.Table) -> list[pa.Table]:
        topology = await self._router.topology()
        places = placement.partitions_of_rows(topology, schema, rows)
        return [rows.take(pa.array(np.flatnonzero(places == p))) for p in np.unique(places)]


@dataclass(slots=True)
class _Deletion:
    """What a condition has deleted so far."""

    schema: Schema
    producer: str = field(default_factory=lambda: f"client-{uuid.uuid4().hex}")
    batches: int = 0
    rows: int = 0
    reached: Cursor = EMPTY_CURSOR
    times: TimeBounds = field(default_factory=TimeBounds)

    def note(self, rows: pa.Table, replies: Iterable[storage_pb2.IngestReply]) -> None:
        """Notes rows that are deleted."""
        self.times.note(rows)
        self.note_replies(replies)

    def note_replies(self, replies: Iterable[storage_pb2.IngestReply]) -> None:
        """Notes the answers to a deletion."""
        for reply in replies:
            self.rows += reply.rows
            self.reached = self.reached.join(cursor_from_pb(reply.reached))

    def receipt(self, evaluated: Cursor) -> Receipt:
        return Receipt(
            rows=self.rows,
            paths=self.rows,
            batches=self.batches,
            duplicate_rows=0,
            reached=self.reached,
            producer=self.producer,
            start_us=self.times.start_us,
            end_us=self.times.end_us,
            evaluated=evaluated,
        )


def _by_certainty(query: Query, tables: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """The stretches of labels whose rows all match, and those of the others in their order."""
    labels = pa.concat_tables(tables)
    certain = query.must_match_labels(labels)
    stretches = labels.select(STRETCHES_SCHEMA.names).cast(STRETCHES_SCHEMA)
    order = [(name, "ascending") for name in STRETCHES_SCHEMA.names[:3]]
    others = stretches.filter(pa.array(~certain)).sort_by(order)
    return stretches.filter(pa.array(certain)), others


def _with_matching(query: Query, certain: pa.Table, others: pa.Table, rows: pa.Table) -> pa.Table:
    """Stretches, and further ones of the rows behind others that match, one for each row."""
    counts = others.column("rows").to_numpy()
    matching = query.match_observations(rows)
    of_row = np.repeat(np.arange(len(counts)), counts)[matching]
    single = others.take(pa.array(of_row))
    place = single.column("row").to_numpy() + within(counts)[matching]
    columns = [
        single.column("partition"),
        single.column("sequence"),
        pa.array(place.astype(np.int32)),
        pa.array(np.ones(len(place), dtype=np.int32)),
    ]
    return pa.concat_tables([certain, pa.table(columns, schema=STRETCHES_SCHEMA)])


def condition_of(what: Any) -> str | None:
    """The CQL2 text of a condition, or of one in CQL2 JSON; None if these are rows or a path."""
    if isinstance(what, str | Condition | Property):
        return query_text(what)
    if isinstance(what, Mapping) and "op" in what:
        return query_text(Condition(dict(what)))
    return None


def refuse_rows_alone(schema: Schema, **given: object) -> None:
    """Raises InputError if options of rows are given with a condition."""
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise InputError(
            f"expected no {named[0]} with a condition, which deletes what has not changed since "
            f"it was evaluated; give rows of dataset {schema.name!r}, or leave it out",
            parameter=named[0],
        )


async def _file_rows(schema: Schema, path: Path, csv: CsvOptions | None) -> AsyncIterator[pa.Table]:
    """The rows of a file, a piece at a time."""
    tables = open_rows(path, schema.observation_schema, csv)
    while (table := await in_thread(next, tables, None)) is not None:
        yield table


async def _without(
    schema: Schema, rows: Any, besides: npt.NDArray[np.uint64]
) -> AsyncIterator[pa.Table]:
    """Rows to delete, but for those of some keys."""
    sending = Sending(schema, None, deletes=True)
    async with aclosing(sending.batches(rows)) as batches:
        async for batch in batches:
            hashes = await in_thread(keyed.hashes_of, schema, batch.table)
            is_kept = ~np.isin(hashes[:, 0], besides[:, 0])
            yield batch.table.filter(pa.array(is_kept))
