"""Reads a table into a DataFrame: its rows when it was loaded, or its changes as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, InputError
from galileo.model.schema import DELETED
from galileo.model.table import Table
from galileo.spark.source import columns
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.cursor_stream import CursorStream, SourceState
from galileo.spark.source.options import CHANGES, SourceOptions
from galileo.spark.source.plan import (
    Split,
    StoredCommits,
    check_complete,
    merge_status,
    table_splits,
)
from galileo.wire.codec import cursor_to_pb
from galileo.wire.tls_credentials import TlsFiles
from galileo.wire.v1 import storage_pb2


def discover(addresses: Sequence[str], name: str, *, keys: TlsFiles) -> SourceState[Table]:
    """Requests the state of a table from the cluster.

    Raises:
        UnknownDataset: it does not exist.
        TransientError: no node could be reached.
    """
    with BlockingClient(addresses, keys=keys) as client:
        table, topology = client.table(name), client.topology()
        stored = merge_status(topology, client.status(), dataset=table.key)
    return SourceState(table, topology, stored)


def spark_columns(table: Table, what: str, names: Sequence[str]) -> StructType:
    """The columns of rows or changes as a schema of Spark; errors as `columns.selected_columns`."""
    available = table.observation_schema if what == CHANGES else table.arrow_schema
    return columns.selected_columns(available, names, of=_named(table))


def _named(table: Table) -> str:
    return f"table {table.name!r}"


class TableSourceReader(DataSourceReader):
    """Reads the rows at one cursor, in repeatable tasks."""

    def __init__(
        self, options: SourceOptions, state: SourceState[Table], schema: StructType
    ) -> None:
        if options.what == CHANGES:
            raise InputError(
                "expected rows: the changes of a table are a stream; use readStream", option="what"
            )
        self._arrow = _arrow_columns(options, state.schema, schema)
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


class ChangeReader(CursorStream[Table]):
    """A stream of the keys that changed: in a micro-batch each once, with its last row.

    A partition is read by one task, since two of them could both have a row of one key.
    """

    _cuts_partitions = False

    def __init__(
        self, options: SourceOptions, state: SourceState[Table], schema: StructType
    ) -> None:
        super().__init__(options, state)
        if options.what != CHANGES:
            raise InputError(
                "expected the option what=changes: a stream of a table has its changes, with the "
                f"column {DELETED!r}",
                option="what",
            )
        self._arrow = _arrow_columns(options, state.schema, schema)

    def _discover(self, addresses: tuple[str, ...]) -> SourceState[Table]:
        return discover(addresses, self._options.table, keys=self._options.keys)

    def _earliest(self, stored: StoredCommits) -> Cursor:
        return EMPTY_CURSOR

    def _rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        # A partition without commits before the split has no deletions that a reader has to apply.
        whole, later = (
            tuple(p for p in split.partitions if bool(split.after[p]) == is_later)
            for is_later in (False, True)
        )
        table, keys = self._state.schema, self._options.keys
        try:
            if whole:
                part = Split(split.addresses, whole, EMPTY_CURSOR, split.until)
                yield from _batches(table, part, self._arrow, keys=keys)
            if later:
                part = Split(split.addresses, later, split.after, split.until)
                yield from _batches(table, part, self._arrow, keys=keys, is_changes=True)
        except DataExpired as error:
            raise type(error)(
                f"{error.message}. A stream that was away for so long begins anew with a new "
                "checkpoint",
                **error.details,
            ) from error


def _arrow_columns(options: SourceOptions, table: Table, schema: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark expects."""
    stored = spark_columns(table, options.what, schema.fieldNames())
    return columns.checked_columns(stored, schema, of=_named(table))


def _batches(
    table: Table, split: Split, arrow: pa.Schema, *, keys: TlsFiles, is_changes: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a task at the end of its split, or those that changed in it."""
    request = storage_pb2.ReadTableRequest(
        dataset=table.key,
        partitions=split.partitions,
        after=cursor_to_pb(split.after) if is_changes else None,
        until=cursor_to_pb(split.until),
    )
    with BlockingClient(split.addresses, keys=keys) as client:
        for part in client.read_table(request):
            if part.rows:
                for batch in pa.ipc.open_stream(part.rows):
                    selected = batch.select(arrow.names)
                    yield pa.RecordBatch.from_arrays(selected.columns, schema=arrow)
