"""Streams whose offsets are cursors: of commits, or of the changes of tables and keyed datasets.

What is between two cursors never changes, so a repeated micro-batch has the same rows.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from galileo.cursor import Cursor
from galileo.dht.topology import Topology
from galileo.errors import InputError, TransientError
from galileo.model.schema import Schema, dropped_dataset
from galileo.model.table import Table
from galileo.model.times import MICROS
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.options import (
    EARLIEST,
    LATEST,
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
    stream_tasks,
)
from galileo.spark.source.readers import advance_reader

POLL_S = 0.1
"""Minimum interval between two checks for new commits, each of which calls all nodes."""

log = logging.getLogger(__name__)
REGISTER_S, ADVANCE_S = 30.0, 2.0
"""For so long a stream tries to store its first position, and later ones."""
HOLD_PARTS = 8
"""A stream without news stores its position so often within its hold."""

S = TypeVar("S", bound=Schema | Table)


@dataclass(frozen=True, slots=True)
class SourceState(Generic[S]):
    """The state of a dataset or table when a read or write was planned."""

    schema: S
    topology: Topology
    stored: StoredCommits

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.topology.nodes)


def discover(addresses: Sequence[str], options: SourceOptions) -> SourceState[Any]:
    """Requests the state of the dataset or table of the options from the cluster.

    Raises:
        UnknownDataset: it does not exist.
        TransientError: no node could be reached.
    """
    with BlockingClient(addresses, keys=options.keys) as client:
        schema = client.table(options.table) if options.table else client.schema(options.dataset)
        topology = client.topology()
        stored = merge_status(topology, client.status(), dataset=schema.key)
    return SourceState(schema, topology, stored)


class CursorStream(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[S]):
    """A stream of what is new after a cursor."""

    _cuts_partitions = True
    """Whether several tasks may share the commits of a partition."""

    def __init__(self, options: SourceOptions, state: SourceState[S]) -> None:
        self._options = options
        self._state: SourceState[S] = state
        self._target: Cursor | None = None
        self._refreshed_s = 0.0
        self._position: Cursor | None = None
        self._stored_s = 0.0

    def _discover(self, addresses: tuple[str, ...]) -> SourceState[S]:
        """Requests the state from the cluster."""
        return discover(addresses, self._options)

    @abstractmethod
    def _earliest(self, stored: StoredCommits) -> Cursor:
        """The cursor before everything that is stored."""

    @abstractmethod
    def _rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        if self._options.starting not in (EARLIEST, LATEST):
            return self._offset(cursor_of_text(self._options.starting))
        stored = self._refresh()
        check_complete(stored)
        is_latest = self._options.starting == LATEST
        return self._offset(stored.published if is_latest else self._earliest(stored))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        begin = self._cursor(start)
        self._advance_reader(begin)
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
            cuts_partitions=self._cuts_partitions,
        )

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StreamTask):  # Without any rows, Spark runs a task without one.
            for split in partition.splits:
                yield from self._rows(split)

    def _advance_reader(self, start: Cursor) -> None:
        """Stores that all before the next micro-batch is processed, if the stream has a reader.

        Spark plans a micro-batch when the one before is in its log of commits. It calls `commit` of
        a source later, if there is data for another micro-batch, so never for the last one.
        """
        if not self._options.reader or (start == self._position and not self._is_quiet_for_long):
            return
        options, schema, is_first = self._options, self._state.schema, self._position is None
        patience_s = REGISTER_S if is_first else ADVANCE_S
        try:
            advance_reader(self._addresses, options, schema, start, patience_s=patience_s)
        except TransientError as error:
            if is_first:
                raise
            # After the next micro-batch it is stored. Until then more is kept.
            log.warning("the position of reader %r is not stored: %s", options.reader, error)
        self._position, self._stored_s = start, time.monotonic()

    @property
    def _is_quiet_for_long(self) -> bool:
        """Whether the position was stored so long ago that the stream could seem to have ended."""
        return time.monotonic() - self._stored_s > self._options.hold_us / MICROS / HOLD_PARTS

    @property
    def _addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._options.addresses, *self._state.addresses]))

    def _refresh(self) -> StoredCommits:
        """The stored commits; waits if the last call was less than `POLL_S` ago."""
        time.sleep(max(0.0, self._refreshed_s + POLL_S - time.monotonic()))
        state = self._discover(self._addresses)
        if state.schema.key != self._state.schema.key:
            raise dropped_dataset(self._options.name, is_again=True)
        self._state = state
        self._refreshed_s = time.monotonic()
        return state.stored

    def _offset(self, cursor: Cursor) -> dict[str, int]:
        return offset_of(cursor, generation=self._state.schema.generation)

    def _cursor(self, offset: dict[str, int]) -> Cursor:
        """The cursor of an offset. Refuses one from the checkpoint of a dropped dataset."""
        if generation_of(offset) != self._state.schema.generation:
            raise InputError(
                "the checkpoint is of a dropped dataset or table with the name "
                f"{self._options.name!r}; start with a new checkpoint"
            )
        return cursor_of(offset)
