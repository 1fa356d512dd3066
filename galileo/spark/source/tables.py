"""Reads a table into a DataFrame: its rows at the cursor of the moment when it was loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from galileo.dht.topology import Topology
from galileo.model.table import Table
from galileo.spark.source import columns
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.options import SourceOptions
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


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table when a read was planned."""

    table: Table
    topology: Topology
    stored: StoredCommits


def discover(options: SourceOptions) -> TableState:
    """Requests the state of a table from the cluster.

    Raises:
        UnknownDataset: it does not exist.
        TransientError: no node could be reached.
    """
    with BlockingClient(options.addresses, keys=options.keys) as client:
        table, topology = client.table(options.table), client.topology()
        stored = merge_status(topology, client.status(), dataset=table.key)
    return TableState(table, topology, stored)


def spark_columns(table: Table, names: Sequence[str]) -> StructType:
    """The columns of a read as a schema of Spark; errors as `columns.selected_columns`."""
    return columns.selected_columns(table.arrow_schema, names, of=_named(table))


def _named(table: Table) -> str:
    return f"table {table.name!r}"


class TableReader(DataSourceReader):
    """Reads the rows at one cursor, in repeatable tasks."""

    def __init__(self, options: SourceOptions, state: TableState, schema: StructType) -> None:
        stored = spark_columns(state.table, schema.fieldNames())
        self._arrow = columns.checked_columns(stored, schema, of=_named(state.table))
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
        if not isinstance(partition, Split):  # Without any rows, Spark runs a task without one.
            return
        request = storage_pb2.ReadTableRequest(
            dataset=self._state.table.key,
            partitions=partition.partitions,
            until=cursor_to_pb(partition.until),
        )
        with BlockingClient(partition.addresses, keys=self._keys) as client:
            for part in client.read_table(request):
                if part.rows:
                    for batch in pa.ipc.open_stream(part.rows):
                        selected = batch.select(self._arrow.names)
                        yield pa.RecordBatch.from_arrays(selected.columns, schema=self._arrow)
