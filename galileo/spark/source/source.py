"""The data source that Spark knows by the name "galileo"."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
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
from galileo.spark.source import columns, filters
from galileo.spark.source.nodes import Nodes
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
    SteadyTask,
    Stored,
    bounded,
    check_whole,
    splits,
    steady_tasks,
    stored,
)
from galileo.spark.source.reading import Asked, batches
from galileo.spark.source.writing import BATCHES_PER_EPOCH_MAX, Numbering, Sending, Written, send
from galileo.wire.tls_credentials import TlsFiles

NAME = "galileo"
POLL_S = 0.1
"""A stream that waits looks no more often, since looking asks every node."""

# Spark's names for what a streaming task is told of its query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about a dataset when a read or write was planned."""

    schema: Schema
    topology: Topology
    stored: Stored

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.topology.nodes)


def find_out(addresses: Sequence[str], dataset: str, *, keys: TlsFiles) -> Known:
    """Asks the cluster about a dataset.

    Raises:
        UnknownDataset: there is none of that name.
        TransientError: no node could be reached.
    """
    with Nodes(addresses, keys=keys) as nodes:
        schema, topology = nodes.schema(dataset), nodes.topology()
        return Known(schema, topology, stored(topology, nodes.status(), dataset=schema.key))


class GalileoSource(DataSource):
    """`spark.read.format("galileo")`; docs/spark-data-source.md has the options."""

    _known: Known | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns; what is stored at this moment is what a batch read of them will give."""
        asked = SourceOptions.of(self.options)
        self._known = find_out(asked.addresses, asked.dataset, keys=asked.keys)
        return columns.spark_columns(self._known.schema, asked.what, asked.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = SourceOptions.of(self.options)
        kind = BatchReader if asked.pushdown == PUSH_NONE else PushingReader
        return kind(asked, self._found(asked), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        asked = SourceOptions.of(self.options)
        return StreamReader(asked, self._found(asked), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        asked = SourceOptions.of(self.options)
        return BatchWriter(asked, _sending(asked, schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        asked = SourceOptions.of(self.options)
        # Spark says `overwrite` for its output mode "complete", which gives all rows each time.
        return StreamWriter(_sending(asked, schema, overwrite=overwrite))

    def _found(self, asked: SourceOptions) -> Known:
        """What `schema` found out, unless a node was away then."""
        if self._known is None or self._known.stored.missing:
            self._known = find_out(asked.addresses, asked.dataset, keys=asked.keys)
        return self._known


class UnpushingSource(GalileoSource):
    """The same for sessions in which filters are not handed down."""

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = SourceOptions.of(self.options)
        return BatchReader(asked, self._found(asked), schema)


class BatchReader(DataSourceReader):
    """Reads what was stored at one moment, in tasks that can be repeated."""

    def __init__(self, options: SourceOptions, known: Known, schema: StructType) -> None:
        self._options = options
        self._known = known
        self._arrow = columns.asked_columns(known.schema, options.what, schema)
        self._query_json = filters.narrowed(options.query, (), known.schema)

    def partitions(self) -> Sequence[InputPartition]:
        found = self._known.stored
        check_whole(found)
        return splits(
            self._known.topology,
            after=found.dropped,
            until=found.published,
            weights=found.rows_per_commit,
            weight_max=self._options.rows_per_task,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._asked())

    def _asked(self) -> Asked:
        # What goes while a read is under way is never skipped: it would be there in part.
        return _asked(self._options, self._known, self._query_json, arrow=self._arrow, on_gap=FAIL)


class PushingReader(BatchReader):
    """The same; filters that nodes check are not checked again by Spark."""

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        schema, query, what = self._known.schema, self._options.query, self._options.what
        if self._options.pushdown == PUSH_ALL:
            found = filters.pushed(filters_, schema, what=what)
            self._query_json = filters.narrowed(query, found.conditions, schema)
        else:
            found = filters.implied(filters_, schema, query=query, what=what)
        return found.left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of what is committed; its offsets are cursors.

    What lies between two cursors never changes, so a micro-batch that is repeated after a restart
    is the same again.
    """

    def __init__(self, options: SourceOptions, known: Known, schema: StructType) -> None:
        self._options = options
        self._known = known
        self._target: Cursor | None = None
        self._looked_s = 0.0
        arrow = columns.asked_columns(known.schema, options.what, schema)
        query_json = filters.narrowed(options.query, (), known.schema)
        self._asked = _asked(options, known, query_json, arrow=arrow, on_gap=options.on_gap)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        if self._options.starting not in (EARLIEST, LATEST):
            return self._offset(cursor_of_text(self._options.starting))
        found = self._look()
        check_whole(found)
        is_latest = self._options.starting == LATEST
        return self._offset(found.published if is_latest else found.dropped)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        begin = self._cursor(start)
        # The partitions of nodes that are away stay where they are.
        end = begin.join(self._look().published)
        if self._target is not None:
            end = begin.join(end.meet(self._target))
        if isinstance(limit, ReadMaxFiles):
            end = bounded(begin, end, commits_max=limit.max_files)
        return self._offset(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """In commits. Spark knows no such limit; one on files is what comes nearest."""
        most = self._options.commits_per_batch
        return ReadMaxFiles(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return self._offset(self._known.stored.published)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        found = self._look()
        check_whole(found)
        self._target = found.published

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return steady_tasks(
            self._known.topology,
            after=self._cursor(start),
            until=self._cursor(end),
            commits_max=self._options.commits_per_task,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._asked)

    def _look(self) -> Stored:
        """What is stored now; waits a moment where it was asked just before."""
        time.sleep(max(0.0, self._looked_s + POLL_S - time.monotonic()))
        addresses = dict.fromkeys([*self._options.addresses, *self._known.addresses])
        known = find_out(tuple(addresses), self._options.dataset, keys=self._options.keys)
        if known.schema.key != self._known.schema.key:
            raise dropped_dataset(self._options.dataset, is_again=True)
        self._known = known
        self._looked_s = time.monotonic()
        return self._known.stored

    def _offset(self, cursor: Cursor) -> dict[str, int]:
        return offset_of(cursor, generation=self._known.schema.generation)

    def _cursor(self, offset: dict[str, int]) -> Cursor:
        """The cursor of an offset, which may come from the checkpoint of a dropped dataset."""
        if generation_of(offset) != self._known.schema.generation:
            raise InputError(
                f"expected a checkpoint of dataset {self._options.dataset!r} as it is, got one of "
                "a dropped dataset of this name; begin with a new checkpoint"
            )
        return cursor_of(offset)


class BatchWriter(DataSourceArrowWriter):
    """Stores rows under numbers that a repeated task uses again."""

    def __init__(self, options: SourceOptions, sending: Sending) -> None:
        self._job = options.job or f"spark-{uuid.uuid4().hex}"
        self._sending = sending

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task().partitionId()
        return send(iterator, self._sending, Numbering(f"{self._job}-{task}", task, 0))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("job %s stored %d rows", self._job, _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning(
            "job %s failed; what its tasks have stored stays. Write again with the option job=%s, "
            "and nothing is stored twice",
            self._job,
            self._job,
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """Stores micro-batches under numbers that a repeated one uses again."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        task = context.partitionId()
        query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if not query or batch is None:
            raise InternalError(
                "Spark told a streaming task neither its query's id nor its batch's"
            )
        first = int(batch) * BATCHES_PER_EPOCH_MAX
        return send(iterator, self._sending, Numbering(f"spark-{query}-{task}", task, first))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.info("micro-batch %d stored %d rows", batchId, _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning(
            "micro-batch %d failed; what its tasks have stored stays, and is not stored again "
            "when the query goes on from its checkpoint",
            batchId,
        )


def _sending(options: SourceOptions, schema: StructType, *, overwrite: bool) -> Sending:
    if overwrite:
        raise InputError(
            "expected mode 'append': observations are never overwritten; let retention drop them"
        )
    if options.on_gap == SKIP or options.columns or options.query:
        raise InputError("expected no option of reads when writing (query, columns, on_gap)")
    known = find_out(options.addresses, options.dataset, keys=options.keys)
    columns.check_writable(known.schema, schema)
    names = tuple(known.schema.observation_schema.names)
    return Sending(
        known.addresses,
        known.schema.key,
        names,
        options.order,
        batch_rows=options.batch_rows,
        keys=options.keys,
    )


def _asked(
    options: SourceOptions, known: Known, query_json: str, *, arrow: pa.Schema, on_gap: str
) -> Asked:
    return Asked(known.schema.to_json(), options.what, query_json, arrow, on_gap, options.keys)


def _read(partition: Any, asked: Asked) -> Iterator[pa.RecordBatch]:
    """The rows of a task; Spark makes a task without a split where there is nothing to read."""
    found = partition.splits if isinstance(partition, SteadyTask) else (partition,)
    for split in found:
        if isinstance(split, Split):
            yield from batches(asked, split)


def _task() -> Any:
    context = TaskContext.get()
    if context is None:
        raise InternalError("Spark has a task write that is none of its own")
    return context


def _rows(messages: Iterable[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Written))
