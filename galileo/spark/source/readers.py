"""Stores the position of a stream in the cluster, so that retention waits for it.

Each change of the row is a conditional write, as of `galileo.client.row_changes`.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import Conflict, Overloaded
from galileo.labels import from_ipc, to_ipc
from galileo.model.reader import POSITIONS, READER, TOKEN, reader_key
from galileo.model.schema import StoredSchema
from galileo.model.table import versions_of
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.options import SourceOptions
from galileo.wire import reader_rows
from galileo.wire.caller import CallOptions
from galileo.wire.v1 import common_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk, stream_of


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
        backoff = client.backoff()
        while True:
            row, read_until = _row(client, reader)
            now, hold_us = dt.datetime.now(dt.UTC), options.hold_us
            changes = reader_rows.advance(reader, row[TOKEN], cursor, hold_us=hold_us, now=now)
            rows = pa.Table.from_pylist([row | changes], schema=POSITIONS.arrow_schema)
            request = storage_pb2.IngestRequest(
                dataset=POSITIONS.key,
                producer=f"reader-{uuid.uuid4().hex}",
                unchanged_since=read_until,
            )
            try:
                client.ingest(Bulk(request, stream_of(versions_of(POSITIONS, rows))))
                return
            except Conflict:
                words = f"others change reader {options.reader!r} all the time; try again"
                time.sleep(backoff.pause_s(Overloaded(words)))


def _row(client: BlockingClient, reader: str) -> tuple[dict[str, Any], common_pb2.Cursor]:
    """The row of a reader, and up to where it was read."""
    keys = pa.table({READER: [reader]}, schema=POSITIONS.key_schema)
    request = storage_pb2.ReadTableRequest(dataset=POSITIONS.key, keys=to_ipc(keys))
    row = dict.fromkeys(POSITIONS.arrow_schema.names) | {READER: reader}
    read_until = common_pb2.Cursor()
    for part in client.read_table(request):
        if part.HasField("reached"):
            read_until = part.reached
        if part.rows:
            [row] = from_ipc(part.rows, POSITIONS.observation_schema).to_pylist() or [row]
    return row, read_until
