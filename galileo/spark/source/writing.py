"""What a task writes: its rows in numbered batches of a producer that is its own.

A task that Spark runs again sends the same rows under the same numbers, and what is stored is not
stored twice. That takes the same rows in the same batches, while Spark promises a task the same
rows, yet after a shuffle not their order. So they are sorted first, unless told otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from galileo.errors import InputError
from galileo.spark.source.nodes import Nodes
from galileo.spark.source.options import SORTED
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import Bulk, stream_of

BATCHES_IN_FLIGHT_MAX = 4
ROWS_SORTED_MAX = 8_000_000
"""Of one task, since they are all in memory then."""
BATCHES_PER_EPOCH_MAX = 1 << 20
"""Of one task of a micro-batch."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task stored.

    Attributes:
        rows: that it sent.
        duplicate_rows: of these, those that an earlier attempt had stored.
    """

    rows: int
    duplicate_rows: int


@dataclass(frozen=True, slots=True)
class Sending:
    """How all tasks of a write send.

    Attributes:
        addresses: of the nodes.
        dataset: its name.
        columns: of the dataset.
        order: "sorted" or "as_given".
        batch_rows: rows of a batch.
        keys: what is proved to nodes.
    """

    addresses: tuple[str, ...]
    dataset: str
    columns: tuple[str, ...]
    order: str
    batch_rows: int
    keys: TlsFiles = NO_TLS_FILES


@dataclass(frozen=True, slots=True)
class Numbering:
    """Who sends, and the number of its first batch."""

    producer: str
    task: int
    first: int


def send(rows: Iterable[pa.RecordBatch], sending: Sending, numbering: Numbering) -> Written:
    """Sends all rows; they are durable when it returns.

    Raises:
        InvalidObservations: a row does not fit; rows of other batches may be stored.
        BatchConflict: an earlier attempt sent other rows under these numbers.
        TransientError: a node that must take rows stayed away.
    """
    tables = _tables(rows, sending)
    turn = numbering.task % len(sending.addresses)
    addresses = [*sending.addresses[turn:], *sending.addresses[:turn]]
    replies: list[storage_pb2.IngestReply] = []
    running: deque[Future[storage_pb2.IngestReply]] = deque()
    with (
        Nodes(addresses, patience_s=PATIENCE_S, keys=sending.keys) as nodes,
        ThreadPoolExecutor(BATCHES_IN_FLIGHT_MAX) as pool,
    ):
        for number, table in enumerate(tables, numbering.first):
            if number - numbering.first >= BATCHES_PER_EPOCH_MAX:
                raise InputError(
                    f"expected at most {BATCHES_PER_EPOCH_MAX:,} batches from one task; "
                    "repartition, or raise the option batch_rows"
                )
            head = storage_pb2.IngestRequest(
                dataset=sending.dataset, producer=numbering.producer, batch=number
            )
            if len(running) == BATCHES_IN_FLIGHT_MAX:
                replies.append(running.popleft().result())
            running.append(pool.submit(nodes.ingest, Bulk(head, stream_of(table))))
        replies += [one.result() for one in running]
    return Written(
        sum(reply.rows for reply in replies), sum(reply.duplicate_rows for reply in replies)
    )


def _tables(rows: Iterable[pa.RecordBatch], sending: Sending) -> Iterator[pa.Table]:
    """The rows in tables of `batch_rows`; only the last has fewer."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    limit = ROWS_SORTED_MAX if sending.order == SORTED else sending.batch_rows
    for batch in rows:
        waiting.append(batch.select(sending.columns))
        count += batch.num_rows
        if count >= limit and sending.order == SORTED:
            raise InputError(
                f"expected fewer than {ROWS_SORTED_MAX:,} rows in one task, which sorts them in "
                "memory; repartition, or, where rows come in the same order each time, set the "
                "option order=as_given"
            )
        if count >= limit:
            whole = pa.Table.from_batches(waiting)
            full = count - count % sending.batch_rows
            yield from _cut(whole.slice(0, full), sending.batch_rows)
            waiting = whole.slice(full).to_batches()
            count -= full
    if count:
        whole = pa.Table.from_batches(waiting)
        if sending.order == SORTED:
            others = [name for name in whole.column_names if name != "time"]
            whole = whole.sort_by([(name, "ascending") for name in ("time", *others)])
        yield from _cut(whole, sending.batch_rows)


def _cut(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)
