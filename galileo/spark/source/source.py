"""The data source "galileo" of Spark."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
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
from pyspark.sql.types import StructType

from galileo.cursor import Cursor
from galileo.errors import InputError, InternalError
from galileo.model.schema import DELETED, Schema
from galileo.model.table import check_names
from galileo.spark.source import columns, spark_to_cql, tables
from galileo.spark.source.cursor_stream import CursorStream, SourceState, discover
from galileo.spark.source.options import (
    CHANGES,
    FAIL,
    PUSH_ALL,
    PUSH_NONE,
    SKIP,
    SourceOptions,
)
from galileo.spark.source.plan import (
    Split,
    StoredCommits,
    check_complete,
    splits,
    table_splits,
)
from galileo.spark.source.reading import ReadSpec, batches
from galileo.spark.source.writing import (
    BATCHES_PER_EPOCH_MAX,
    BatchNumbers,
    WriteSpec,
    Written,
    send,
)

NAME = "galileo"

# Local properties of a streaming task.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

log = logging.getLogger(__name__)


class GalileoSource(DataSource):
    """`spark.read.format("galileo")`; docs/spark-data-source.md has the options."""

    _state: SourceState[Any] | None = None
    _pushes_filters = True

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns. A batch read returns the commits that are stored at this call."""
        options = SourceOptions.from_spark(self.options)
        self._state = discover(options.addresses, options)
        return columns.spark_columns(self._state.schema, options.what, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.from_spark(self.options)
        options.check_not_stream()
        state = self._known_state(options)
        if options.table:
            return tables.TableSourceReader(options, state, schema)
        pushes = self._pushes_filters and options.pushdown != PUSH_NONE
        return (PushdownReader if pushes else BatchReader)(options, state, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = SourceOptions.from_spark(self.options)
        state = self._known_state(options)
        if state.schema.is_keyed or options.what == CHANGES:
            return tables.ChangeReader(options, state, schema)
        return StreamReader(options, state, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = SourceOptions.from_spark(self.options)
        return BatchWriter(options, _write_spec(options, schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        options = SourceOptions.from_spark(self.options)
        # Spark sets `overwrite` for its output mode "complete", which writes all rows each time.
        return StreamWriter(_write_spec(options, schema, overwrite=overwrite))

    def _known_state(self, options: SourceOptions) -> SourceState[Any]:
        """The state that `schema` requested; a new one if a node did not answer."""
        if self._state is None or self._state.stored.missing:
            self._state = discover(options.addresses, options)
        return self._state


class NoPushdownSource(GalileoSource):
    """The data source for sessions without pushdown of filters."""

    _pushes_filters = False


class BatchReader(DataSourceReader):
    """Reads the commits of one moment, in repeatable tasks."""

    def __init__(
        self, options: SourceOptions, state: SourceState[Schema], schema: StructType
    ) -> None:
        self._options = options
        self._state = state
        self._arrow = columns.requested_columns(state.schema, options.what, schema)
        self._query_json = spark_to_cql.conjunction(options.query, (), state.schema)

    def partitions(self) -> Sequence[InputPartition]:
        stored = self._state.stored
        check_complete(stored)
        if self._state.schema.is_keyed:  # What counts is known for whole partitions.
            return table_splits(
                self._state.topology,
                until=stored.published,
                weights=stored.rows_per_commit,
                weight_max=self._options.rows_per_task,
            )
        return splits(
            self._state.topology,
            after=stored.dropped,
            until=stored.published,
            weights=stored.rows_per_commit,
            weight_max=self._options.rows_per_task,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Split):  # Without any rows, Spark runs a task without one.
            yield from batches(self._read_spec(), partition)

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


class StreamReader(CursorStream[Schema]):
    """A stream of new commits."""

    def __init__(
        self, options: SourceOptions, state: SourceState[Schema], schema: StructType
    ) -> None:
        super().__init__(options, state)
        arrow = columns.requested_columns(state.schema, options.what, schema)
        query_json = spark_to_cql.conjunction(options.query, (), state.schema)
        self._spec = _read_spec(options, state, query_json, arrow=arrow, on_gap=options.on_gap)

    def _earliest(self, stored: StoredCommits) -> Cursor:
        return stored.dropped

    def _rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        return batches(self._spec, split)


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


def _write_spec(options: SourceOptions, schema: StructType, *, overwrite: bool) -> WriteSpec:
    options.check_not_stream()
    if overwrite:
        raise InputError(
            "expected mode 'append': rows of tables and keyed datasets are replaced by their keys, "
            f"and other observations never; delete by the column {DELETED!r}, and let retention "
            "drop observations"
        )
    if options.on_gap == SKIP or options.columns or options.query:
        raise InputError("expected no option of reads when writing (query, columns, what, on_gap)")
    state = discover(options.addresses, options)
    if options.table:
        check_names(state.schema, schema.fieldNames())
    else:
        columns.check_writable(state.schema, schema)
    return WriteSpec(
        state.addresses,
        state.schema.to_json(),
        options.order,
        batch_rows=options.batch_rows,
        keys=options.keys,
        is_table=bool(options.table),
    )


def _read_spec(
    options: SourceOptions,
    state: SourceState[Schema],
    query_json: str,
    *,
    arrow: pa.Schema,
    on_gap: str,
) -> ReadSpec:
    return ReadSpec(state.schema.to_json(), options.what, query_json, arrow, on_gap, options.keys)


def _task() -> Any:
    context = TaskContext.get()
    if context is None:
        raise InternalError("a write runs outside of a Spark task")
    return context


def _rows(messages: Iterable[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Written))
