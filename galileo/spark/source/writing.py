"""Writes the rows of a task, as numbered batches of a producer for the task.

A task that Spark repeats sends the same batches with the same numbers, which nodes store once. This
requires the same rows in the same batches, but after a shuffle Spark guarantees no order of rows.
So rows are sorted first, unless the option `order` is `as_given`.

Rows of a table are sorted by their keys, each of which a task may have once then; in the order in
which they are given, the last row of a key counts.

A task reads the topology once and sends each owner its rows. A node forwards rows of others, so a
partition that moves meanwhile costs time alone. Where the ranges are cut anew, the task sends the
whole batch again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError, RangesChanged
from galileo.hashing import rows_digest
from galileo.model import keyed
from galileo.model.observations import normalise
from galileo.model.schema import DELETED, Schema
from galileo.model.table import Table, versions_of
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.options import SORTED
from galileo.wire.caller import CallOptions
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import Bulk, stream_of

BATCHES_IN_FLIGHT_MAX = 4
CALLS_IN_FLIGHT_MAX = 32
ROWS_SORTED_MAX = 8_000_000
"""Rows of a task that are sorted in memory."""
BATCHES_PER_EPOCH_MAX = 1 << 20
"""Batches of one task of a micro-batch."""
OPTIONS = CallOptions(patience_s=60.0)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task.

    Attributes:
        rows: sent rows.
        duplicate_rows: those of them that an earlier attempt had stored.
    """

    rows: int
    duplicate_rows: int


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """The parameters of all tasks of a write.

    Attributes:
        addresses: of the nodes.
        schema_json: of the dataset or table.
        order: "sorted" or "as_given".
        batch_rows: rows of a batch.
        keys: credentials for the nodes.
        is_table: whether it is a table.
    """

    addresses: tuple[str, ...]
    schema_json: str
    order: str
    batch_rows: int
    keys: TlsFiles = NO_TLS_FILES
    is_table: bool = False

    def schema(self) -> Schema | Table:
        return (Table if self.is_table else Schema).from_json(self.schema_json)

    @property
    def batches_in_flight_max(self) -> int:
        """One, where of two batches with a key the later one counts."""
        is_ordered = self.schema().is_keyed and self.order != SORTED
        return 1 if is_ordered else BATCHES_IN_FLIGHT_MAX


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """The producer of a task, and the number of its first batch."""

    producer: str
    task: int
    first: int


def send(rows: Iterable[pa.RecordBatch], spec: WriteSpec, numbers: BatchNumbers) -> Written:
    """Sends all rows and returns when they are durable.

    Raises:
        InvalidObservations: a row is invalid; other batches may be stored.
        BatchConflict: an earlier attempt sent other rows with these numbers.
        TransientError: a node could not be reached.
    """
    schema = spec.schema()
    tables = _tables(rows, spec, schema)
    first = numbers.task % len(spec.addresses)
    addresses = [*spec.addresses[first:], *spec.addresses[:first]]
    replies: list[storage_pb2.IngestReply] = []
    running: deque[_SentBatch] = deque()
    with (
        BlockingClient(addresses, options=OPTIONS, keys=spec.keys) as client,
        ThreadPoolExecutor(CALLS_IN_FLIGHT_MAX) as pool,
    ):
        for number, table in enumerate(tables, numbers.first):
            if number - numbers.first >= BATCHES_PER_EPOCH_MAX:
                raise InputError(
                    f"expected at most {BATCHES_PER_EPOCH_MAX:,} batches from one task; "
                    "repartition, or raise the option batch_rows"
                )
            if len(running) == spec.batches_in_flight_max:
                replies += running.popleft().results()
            sent = _SentBatch(client, pool, schema, _stored_rows(schema, table))
            sent.send(numbers.producer, number)
            running.append(sent)
        for sent in running:
            replies += sent.results()
    return Written(
        sum(reply.rows for reply in replies), sum(reply.duplicate_rows for reply in replies)
    )


class _SentBatch:
    """A batch under way to the owners of its rows."""

    def __init__(
        self, client: BlockingClient, pool: Executor, schema: Schema | Table, table: pa.Table
    ) -> None:
        self._client = client
        self._pool = pool
        self._schema = schema
        self._table = table
        self._calls: list[Future[storage_pb2.IngestReply]] = []
        self._head = storage_pb2.IngestRequest(dataset=schema.key)

    def send(self, producer: str, number: int) -> None:
        """Sends each owner its rows."""
        topology = self._client.routing_topology()
        self._head = storage_pb2.IngestRequest(
            dataset=self._schema.key,
            producer=producer,
            batch=number,
            range_epoch=topology.range_epoch,
            added=self._schema.added,
        )
        self._record(topology)
        parts = placement.split_by_owner(topology, self._schema, self._table)
        self._calls = [
            self._pool.submit(
                self._client.ingest,
                Bulk(self._head, stream_of(part)),
                first=topology.by_name[node].address,
            )
            for node, part in parts.items()
        ]

    def _record(self, topology: Topology) -> None:
        """Has the digest of the whole batch recorded before any of its rows is stored."""
        schema, record = self._schema, storage_pb2.IngestRequest()
        record.CopyFrom(self._head)
        record.digest = rows_digest(self._table)
        home = placement.home_of_producer(topology, schema, record.producer)
        owner = topology.by_name[placement.owner(topology, home)].address
        self._client.ingest(Bulk(record, stream_of(self._table.slice(0, 0))), first=owner)

    def results(self) -> list[storage_pb2.IngestReply]:
        """The replies of all owners; sends the batch again if the ranges were cut anew meanwhile.

        Raises:
            RangesChanged: the ranges went on changing until the client's patience ended.
            GalileoError: of a node.
        """
        backoff = self._client.backoff()
        while True:
            try:
                return [call.result() for call in self._calls]
            except RangesChanged as error:
                wait(self._calls)  # A late part of this split must not meet the next split.
                time.sleep(backoff.pause_s(error))
                self._client.learn_ranges(error, backoff)
                self.send(self._head.producer, self._head.batch)


def _stored_rows(schema: Schema | Table, rows: pa.Table) -> pa.Table:
    """Rows of a DataFrame as they are stored; of deleted ones the key alone."""
    if not isinstance(schema, Table):
        return normalise(schema, rows)
    if DELETED in rows.column_names:
        deleted = pc.fill_null(rows.column(DELETED), False)
        rows = rows.set_column(rows.column_names.index(DELETED), DELETED, deleted)
        for name in {*rows.column_names} - {*schema.key_columns, DELETED}:
            column = rows.column(name)
            kept = pc.if_else(deleted, pa.scalar(None, column.type), column)
            rows = rows.set_column(rows.column_names.index(name), name, kept)
    return versions_of(schema, rows)


def _tables(
    rows: Iterable[pa.RecordBatch],
    spec: WriteSpec,
    schema: Schema | Table,
    *,
    rows_sorted_max: int = ROWS_SORTED_MAX,
) -> Iterator[pa.Table]:
    """The rows in tables of `batch_rows`; only the last has fewer.

    Columns of features that were added to the dataset may be missing, and so may the one of
    deletions. Of a table, all columns but those of its key may be missing.
    """
    columns = schema.version_schema.names
    first = schema.key_columns if isinstance(schema, Table) else ("time",)
    buffer: list[pa.RecordBatch] = []
    count = 0
    limit = rows_sorted_max if spec.order == SORTED else spec.batch_rows
    for batch in rows:
        buffer.append(batch.select([name for name in columns if name in batch.schema.names]))
        count += batch.num_rows
        if count >= limit and spec.order == SORTED:
            raise InputError(
                f"expected fewer than {rows_sorted_max:,} rows in one task, which sorts them in "
                "memory; repartition, or, where rows come in the same order each time, set the "
                "option order=as_given"
            )
        if count >= limit:
            whole = pa.Table.from_batches(buffer)
            full = count - count % spec.batch_rows
            yield from _cut(whole.slice(0, full), spec.batch_rows)
            buffer = whole.slice(full).to_batches()
            count -= full
    if count:
        whole = pa.Table.from_batches(buffer)
        if spec.order == SORTED:
            _check_unique(schema, whole)
            others = [name for name in whole.column_names if name not in first]
            whole = whole.sort_by([(name, "ascending") for name in (*first, *others)])
        yield from _cut(whole, spec.batch_rows)


def _check_unique(schema: Schema | Table, rows: pa.Table) -> None:
    if isinstance(schema, Table):
        key = schema.key_columns
        distinct = rows.group_by(list(key)).aggregate([]).num_rows
    elif schema.is_keyed:
        key = ("cell", "time bucket", *schema.key_features)
        distinct = keyed.count_keys(schema, normalise(schema, rows))
    else:
        return
    if distinct < rows.num_rows:
        raise InputError(
            f"expected each key ({', '.join(key)}) in one row of a write, got one in several; keep "
            "the row that counts, or, where a task has rows in the order of changes, set the "
            "option order=as_given"
        )


def _cut(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)
