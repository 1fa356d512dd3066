"""Reads a table when it was loaded, and the changes of a table or keyed dataset as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, InputError
from galileo.model.schema import DELETED, StoredSchema
from galileo.model.table import Table
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.columns import requested_columns
from galileo.spark.source.cursor_stream import CursorStream, S, SourceState
from galileo.spark.source.options import CHANGES, SourceOptions
from galileo.spark.source.plan import Split, StoredCommits, check_complete, table_splits
from galileo.wire.codec import cursor_to_pb
from galileo.wire.tls_credentials import TlsFiles
from galileo.wire.v1 import storage_pb2


class TableSourceReader(DataSourceReader):
    """Reads the rows at one cursor, in repeatable tasks."""

    def __init__(
        self, options: SourceOptions, state: SourceState[Table], schema: StructType
    ) -> None:
        self._arrow = requested_columns(state.schema, options.what, schema)
        self._state = state
        self._rows_per_task = options.rows_per_task
        self._keys: TlsFiles = options.keys

    def partitions(self) -> Sequence[InputPartition]:
        stored = self._state.stored
        check_complete(stored)
        return table_splits(
            self._state.topology,
            until=stored.published,
            weights=stored.rows_per_commit,
            weight_max=self._rows_per_task,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Split):  # Without any rows, Spark runs a task without one.
            yield from _batches(self._state.schema, partition, self._arrow, keys=self._keys)


class ChangeReader(CursorStream[S]):
    """A stream of the keys that changed: in a micro-batch each once, with its last row.

    A partition is read by one task, since two of them could both have a row of one key.
    """

    _cuts_partitions = False

    def __init__(self, options: SourceOptions, state: SourceState[S], schema: StructType) -> None:
        super().__init__(options, state)
        if options.what != CHANGES:
            raise InputError(
                f"expected the option what=changes: a stream of {state.schema.name!r}, whose rows "
                f"are replaced, has its changes, with the column {DELETED!r}",
                option="what",
            )
        self._arrow = requested_columns(state.schema, options.what, schema)

    def _earliest(self, stored: StoredCommits) -> Cursor:
        return EMPTY_CURSOR

    def _rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        # A partition without commits before the split has no deletions that a reader has to apply.
        whole, later = (
            tuple(p for p in split.partitions if bool(split.after[p]) == is_later)
            for is_later in (False, True)
        )
        stored, keys = self._state.schema, self._options.keys
        try:
            if whole:
                part = Split(split.addresses, whole, EMPTY_CURSOR, split.until)
                yield from _batches(stored, part, self._arrow, keys=keys)
            if later:
                part = Split(split.addresses, later, split.after, split.until)
                yield from _batches(stored, part, self._arrow, keys=keys, is_changes=True)
        except DataExpired as error:
            raise type(error)(
                f"{error.message}. A stream that was away for so long begins anew with a new "
                "checkpoint",
                **error.details,
            ) from error


def _batches(
    stored: StoredSchema,
    split: Split,
    arrow: pa.Schema,
    *,
    keys: TlsFiles,
    is_changes: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task at the end of its split, or those that changed in it."""
    request = storage_pb2.ReadTableRequest(
        dataset=stored.key,
        partitions=split.partitions,
        after=cursor_to_pb(split.after) if is_changes else None,
        until=cursor_to_pb(split.until),
        added=stored.added,
    )
    with BlockingClient(split.addresses, keys=keys) as client:
        for part in client.read_table(request):
            if part.rows:
                for batch in pa.ipc.open_stream(part.rows):
                    selected = batch.select(arrow.names)
                    yield pa.RecordBatch.from_arrays(selected.columns, schema=arrow)
