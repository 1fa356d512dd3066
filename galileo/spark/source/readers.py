"""Stores the position of a stream in the cluster, so that retention waits for it.

The row is a numbered one, as `galileo.client.numbered_rows` describes: each change is a batch of
its own number, of which a partition takes the first one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import BatchConflict, Overloaded
from galileo.labels import from_ipc, to_ipc
from galileo.model.reader import POSITIONS, READER, reader_key
from galileo.model.schema import StoredSchema
from galileo.model.table import row_producer
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.options import AS_GIVEN, SourceOptions
from galileo.spark.source.writing import BatchNumbers, WriteSpec, send
from galileo.wire import reader_rows
from galileo.wire.caller import CallOptions
from galileo.wire.v1 import storage_pb2


def advance_reader(
    addresses: Sequence[str],
    options: SourceOptions,
    dataset: StoredSchema,
    cursor: Cursor,
    *,
    patience_s: float,
) -> None:
    """Stores that the reader of the options has processed all up to a cursor.

    Args:
        addresses: of the nodes.
        options: of the stream.
        dataset: that it reads.
        cursor: up to which all is processed.
        patience_s: how long reads of the row are retried.

    Raises:
        Forbidden: the caller may not write the table of positions.
        TransientError: the no node leads the system partition.
    """
    reader = reader_key(dataset, options.reader)
    calls = CallOptions(patience_s=patience_s)
    with BlockingClient(addresses, options=calls, keys=options.keys) as client:
        spec = WriteSpec(
            tuple(addresses),
            POSITIONS.to_json(),
            AS_GIVEN,
            batch_rows=1,
            keys=options.keys,
            is_table=True,
        )
        backoff = client.backoff()
        while True:
            row = _row(client, reader)
            revision = (row["revision"] or 0) + 1
            changes = reader_rows.advance(row, reader, cursor, hold_us=options.hold_us)
            changed = row | changes | {"revision": revision}
            rows = pa.Table.from_pylist([changed], schema=POSITIONS.arrow_schema)
            numbers = BatchNumbers(row_producer(POSITIONS, rows), 0, revision)
            try:
                send(rows.to_batches(), spec, numbers)
                return
            except BatchConflict:
                words = f"others change reader {options.reader!r} all the time; try again"
                time.sleep(backoff.pause_s(Overloaded(words)))


def _row(client: BlockingClient, reader: str) -> dict[str, Any]:
    keys = pa.table({READER: [reader]}, schema=POSITIONS.key_schema)
    request = storage_pb2.ReadTableRequest(dataset=POSITIONS.key, keys=to_ipc(keys))
    parts = [part.rows for part in client.read_table(request) if part.rows]
    rows = [
        row for part in parts for row in from_ipc(part, POSITIONS.observation_schema).to_pylist()
    ]
    return rows[0] if rows else {READER: reader, "revision": 0}
