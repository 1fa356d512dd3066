"""The data source "galileo" of Spark."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from galileo.cursor import Cursor
from galileo.dht.topology import Topology
from galileo.errors import InputError, InternalError
from galileo.model.schema import Schema, dropped_dataset
from galileo.spark.source import columns, spark_to_cql, tables
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.options import (
    EARLIEST,
    FAIL,
    LATEST,
    PUSH_ALL,
    PUSH_NONE,
    SKIP,
    SourceOptions,
    cursor_of,
    cursor_of_text,
    generation_of,
    offset_of,
)
from galileo.spark.source.plan import (
    Split,
    StoredCommits,
    StreamTask,
    check_complete,
    limit_commits,
    merge_status,
    splits,
    stream_tasks,
)
from galileo.spark.source.reading import ReadSpec, batches
from galileo.spark.source.writing import (
    BATCHES_PER_EPOCH_MAX,
    BatchNumbers,
    WriteSpec,
    Written,
    send,
)
from galileo.wire.tls_credentials import TlsFiles

NAME = "galileo"
POLL_S = 0.1
"""Minimum interval between two checks for new commits, each of which calls all nodes."""

# Local properties of a streaming task.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatasetState:
    """The state of a dataset when a read or write was planned."""

    schema: Schema
    topology: Topology
    stored: StoredCommits

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.topology.nodes)


def discover(addresses: Sequence[str], dataset: str, *, keys: TlsFiles) -> DatasetState:
    """Requests the state of a dataset from the cluster.

    Raises:
        UnknownDataset: it does not exist.
        TransientError: no node could be reached.
    """
    with BlockingClient(addresses, keys=keys) as client:
        schema, topology = client.schema(dataset), client.topology()
        return DatasetState(
            schema, topology, merge_status(topology, client.status(), dataset=schema.key)
        )


class GalileoSource(DataSource):
    """`spark.read.format("galileo")`; docs/spark-data-source.md has the options."""

    _state: DatasetState | None = None
    _table_state: tables.TableState | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns. A batch read returns the commits that are stored at this call."""
        options = SourceOptions.from_spark(self.options)
        if options.table:
            self._table_state = tables.discover(options)
            return tables.spark_columns(self._table_state.table, options.columns)
        self._state = discover(options.addresses, options.dataset, keys=options.keys)
        return columns.spark_columns(self._state.schema, options.what, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.from_spark(self.options)
        if options.table:
            return self._table_reader(options, schema)
        kind = BatchReader if options.pushdown == PUSH_NONE else PushdownReader
        return kind(options, self._dataset_state(options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = _options_of_dataset(self.options)
        return StreamReader(options, self._dataset_state(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = _options_of_dataset(self.options)
        return BatchWriter(options, _write_spec(options, schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        options = _options_of_dataset(self.options)
        # Spark sets `overwrite` for its output mode "complete", which writes all rows each time.
        return StreamWriter(_write_spec(options, schema, overwrite=overwrite))

    def _table_reader(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        state = self._table_state
        if state is None or state.stored.missing:
            state = self._table_state = tables.discover(options)
        return tables.TableReader(options, state, schema)

    def _dataset_state(self, options: SourceOptions) -> DatasetState:
        """The state that `schema` requested; a new one if a node did not answer."""
        if self._state is None or self._state.stored.missing:
            self._state = discover(options.addresses, options.dataset, keys=options.keys)
        return self._state


class NoPushdownSource(GalileoSource):
    """The data source for sessions without pushdown of filters."""

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.from_spark(self.options)
        if options.table:
            return self._table_reader(options, schema)
        return BatchReader(options, self._dataset_state(options), schema)


class BatchReader(DataSourceReader):
    """Reads the commits of one moment, in repeatable tasks."""

    def __init__(self, options: SourceOptions, state: DatasetState, schema: StructType) -> None:
        self._options = options
        self._state = state
        self._arrow = columns.requested_columns(state.schema, options.what, schema)
        self._query_json = spark_to_cql.conjunction(options.query, (), state.schema)

    def partitions(self) -> Sequence[InputPartition]:
        stored = self._state.stored
        check_complete(stored)
        return splits(
            self._state.topology,
            after=stored.dropped,
            until=stored.published,
            weights=stored.rows_per_commit,
            weight_max=self._options.rows_per_task,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._read_spec())

    def _read_spec(self) -> ReadSpec:
        # Never skip: commits that are dropped during a read would be missing in part.
        return _read_spec(
            self._options, self._state, self._query_json, arrow=self._arrow, on_gap=FAIL
        )


class PushdownReader(BatchReader):
    """A batch read with pushdown: Spark does not evaluate the filters that nodes evaluate."""

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        schema, query, what = self._state.schema, self._options.query, self._options.what
        if self._options.pushdown == PUSH_ALL:
            pushed = spark_to_cql.push_all(filters_, schema, what=what)
            self._query_json = spark_to_cql.conjunction(query, pushed.conditions, schema)
        else:
            pushed = spark_to_cql.push_implied(filters_, schema, query=query, what=what)
        return pushed.remaining


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of new commits; its offsets are cursors.

    The commits between two cursors never change, so a repeated micro-batch has the same rows.
    """

    def __init__(self, options: SourceOptions, state: DatasetState, schema: StructType) -> None:
        self._options = options
        self._state = state
        self._target: Cursor | None = None
        self._refreshed_s = 0.0
        arrow = columns.requested_columns(state.schema, options.what, schema)
        query_json = spark_to_cql.conjunction(options.query, (), state.schema)
        self._spec = _read_spec(options, state, query_json, arrow=arrow, on_gap=options.on_gap)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        if self._options.starting not in (EARLIEST, LATEST):
            return self._offset(cursor_of_text(self._options.starting))
        stored = self._refresh()
        check_complete(stored)
        is_latest = self._options.starting == LATEST
        return self._offset(stored.published if is_latest else stored.dropped)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        begin = self._cursor(start)
        # The cursors of unreachable nodes do not change.
        end = begin.join(self._refresh().published)
        if self._target is not None:
            end = begin.join(end.meet(self._target))
        if isinstance(limit, ReadMaxFiles):
            end = limit_commits(begin, end, commits_max=limit.max_files)
        return self._offset(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """In commits; Spark has no such limit, so the one on files is used."""
        commits_max = self._options.commits_per_batch
        return ReadMaxFiles(commits_max) if commits_max else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return self._offset(self._state.stored.published)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        stored = self._refresh()
        check_complete(stored)
        self._target = stored.published

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return stream_tasks(
            self._state.topology,
            after=self._cursor(start),
            until=self._cursor(end),
            commits_max=self._options.commits_per_task,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._spec)

    def _refresh(self) -> StoredCommits:
        """The stored commits; waits if the last call was less than `POLL_S` ago."""
        time.sleep(max(0.0, self._refreshed_s + POLL_S - time.monotonic()))
        addresses = dict.fromkeys([*self._options.addresses, *self._state.addresses])
        state = discover(tuple(addresses), self._options.dataset, keys=self._options.keys)
        if state.schema.key != self._state.schema.key:
            raise dropped_dataset(self._options.dataset, is_again=True)
        self._state = state
        self._refreshed_s = time.monotonic()
        return self._state.stored

    def _offset(self, cursor: Cursor) -> dict[str, int]:
        return offset_of(cursor, generation=self._state.schema.generation)

    def _cursor(self, offset: dict[str, int]) -> Cursor:
        """The cursor of an offset. Refuses one from the checkpoint of a dropped dataset."""
        if generation_of(offset) != self._state.schema.generation:
            raise InputError(
                f"the checkpoint is of a dropped dataset with the name {self._options.dataset!r}; "
                "start with a new checkpoint"
            )
        return cursor_of(offset)


class BatchWriter(DataSourceArrowWriter):
    """Stores rows in batches whose numbers a repeated task uses again."""

    def __init__(self, options: SourceOptions, spec: WriteSpec) -> None:
        self._job = options.job or f"spark-{uuid.uuid4().hex}"
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task().partitionId()
        return send(iterator, self._spec, BatchNumbers(f"{self._job}-{task}", task, 0))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("job %s stored %d rows", self._job, _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning(
            "job %s failed; rows that its tasks stored remain. Repeat the write with the option "
            "job=%s, which stores nothing twice",
            self._job,
            self._job,
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """Stores micro-batches in batches whose numbers a repeated one uses again."""

    def __init__(self, spec: WriteSpec) -> None:
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        task = context.partitionId()
        query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if not query or batch is None:
            raise InternalError("a streaming task of Spark has no query id or batch id")
        first = int(batch) * BATCHES_PER_EPOCH_MAX
        return send(iterator, self._spec, BatchNumbers(f"spark-{query}-{task}", task, first))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.info("micro-batch %d stored %d rows", batchId, _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning(
            "micro-batch %d failed; rows that its tasks stored remain, and are not stored again "
            "when the query continues from its checkpoint",
            batchId,
        )


def _options_of_dataset(raw: Mapping[str, str]) -> SourceOptions:
    """The options of a write or a stream.

    Raises:
        InputError: they name a table.
    """
    options = SourceOptions.from_spark(raw)
    if options.table:
        raise InputError(
            "expected a dataset: tables can be read as a whole, and neither written nor followed; "
            "client.upsert and client.changes do that",
            option="table",
        )
    return options


def _write_spec(options: SourceOptions, schema: StructType, *, overwrite: bool) -> WriteSpec:
    if overwrite:
        raise InputError(
            "expected mode 'append': observations are never overwritten; let retention drop them"
        )
    if options.on_gap == SKIP or options.columns or options.query:
        raise InputError("expected no option of reads when writing (query, columns, on_gap)")
    state = discover(options.addresses, options.dataset, keys=options.keys)
    columns.check_writable(state.schema, schema)
    return WriteSpec(
        state.addresses,
        state.schema.to_json(),
        options.order,
        batch_rows=options.batch_rows,
        keys=options.keys,
    )


def _read_spec(
    options: SourceOptions, state: DatasetState, query_json: str, *, arrow: pa.Schema, on_gap: str
) -> ReadSpec:
    return ReadSpec(state.schema.to_json(), options.what, query_json, arrow, on_gap, options.keys)


def _read(partition: Any, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """The rows of a task; without any rows to read, Spark runs a task without a split."""
    task_splits = partition.splits if isinstance(partition, StreamTask) else (partition,)
    for split in task_splits:
        if isinstance(split, Split):
            yield from batches(spec, split)


def _task() -> Any:
    context = TaskContext.get()
    if context is None:
        raise InternalError("a write runs outside of a Spark task")
    return context


def _rows(messages: Iterable[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Written))
