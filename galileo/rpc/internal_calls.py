"""The calls of the internal service, as nodes make them: implements `node.peers.Peers`."""

from __future__ import annotations

import dataclasses
import functools
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import cast

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.election.ranking import UsageStatistics
from galileo.errors import MessageTooLarge, Unavailable
from galileo.grouped_calls import GroupedCalls
from galileo.labels import from_ipc
from galileo.model.retention import Removed, RetentionOutcome, VersionedRetention
from galileo.model.schema import Schema, StoredSchema
from galileo.model.system_rows import Outcome, Position, Row, RowChange, RowPage
from galileo.node.peers import (
    AnalysisTask,
    BatchLookup,
    ChannelProgress,
    CommitAnswer,
    CommitTask,
    ExecutionsPart,
    ExecutionsTask,
    Findings,
    FoundBatch,
    ReadTask,
    ScanAnswer,
    ScanFailed,
    ScanLabels,
    ScanTask,
    TablePart,
    TableTask,
)
from galileo.node.replication.protocol import HeldPartitions
from galileo.packing.arrow_streams import read_stream
from galileo.rpc.internal import SERVICE, AnyChange, CachedRange, Internal
from galileo.samplers import observed_schema
from galileo.wire.typed_service import Answer, P, TypedCall
from galileo.wire.v1 import continuous_pb2

SCAN_GROUP_WAIT_S = 0.2
"""The longest that small scans wait for those before them at the same node, which may be slow."""
SCAN_GROUP_MAX = 64
"""Small scans of one call; their labels have to fit in one message."""

COMMIT = SERVICE.call(Internal.commit)
FIND_BATCHES = SERVICE.call(Internal.find_batches)
SCAN = SERVICE.call(Internal.scan)
SCAN_SMALL = SERVICE.call(Internal.scan_small)
READ = SERVICE.call(Internal.read)
READ_TABLE = SERVICE.call(Internal.read_table)
READ_EXECUTIONS = SERVICE.call(Internal.read_executions)
FETCH = SERVICE.call(Internal.fetch)
HANDED_OFF_CACHE = SERVICE.call(Internal.handed_off_cache)
REMOVE_DRAINED = SERVICE.call(Internal.remove_drained)
DESCRIBE_CHANNEL = SERVICE.call(Internal.describe_channel)
APPLY_RETENTION = SERVICE.call(Internal.apply_retention)
CHANGE_ROW = SERVICE.call(Internal.change_row)
CHANGE_ROWS = SERVICE.call(Internal.change_rows)
USAGE = SERVICE.call(Internal.usage)
ROWS_AFTER = SERVICE.call(Internal.rows_after)
KNOWN_ROW = SERVICE.call(Internal.known_row)
LEARN_ROW = SERVICE.call(Internal.learn_row)
KNOWN_ROWS = SERVICE.call(Internal.known_rows)
ANALYSE = SERVICE.call(Internal.analyse)
OWN_SAMPLER_ARCHIVE = SERVICE.call(Internal.own_sampler_archive)
HELD_PARTITIONS = SERVICE.call(Internal.held_partitions)
DROP_GENERATIONS = SERVICE.call(Internal.drop_generations)
REGISTER_QUERIES = SERVICE.call(Internal.register_queries)


class InternalCalls(ABC):
    """What a node asks others; how a call gets there is left to subclasses."""

    def __init__(self) -> None:
        self._small_scans: dict[str, GroupedCalls[ScanTask, Sequence[ScanAnswer] | None]] = {}

    @abstractmethod
    async def _ask(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> Answer:
        """Makes a call of a node. Raises Unavailable where it cannot be reached."""

    @abstractmethod
    def _parts(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> AsyncGenerator[Answer, None]:
        """Makes a call whose answer comes in parts; errors as `_ask`."""

    async def commit(self, node: str, task: CommitTask) -> CommitAnswer:
        return await self._ask(node, COMMIT, task)

    async def find_batches(self, node: str, lookup: BatchLookup) -> Sequence[FoundBatch]:
        return await self._ask(node, FIND_BATCHES, lookup)

    def scan_small(self, node: str, task: ScanTask) -> Awaitable[Sequence[ScanAnswer] | None]:
        """Concurrent scans at one node share calls."""
        scans = self._small_scans.get(node)
        if scans is None:
            scans = self._small_scans[node] = GroupedCalls(
                functools.partial(self._scan_group, node),
                wait_s=SCAN_GROUP_WAIT_S,
                items_max=SCAN_GROUP_MAX,
            )
        return scans.begin(task)

    async def _scan_group(
        self, node: str, tasks: Sequence[ScanTask]
    ) -> list[Sequence[ScanAnswer] | Exception | None]:
        try:
            scans = await self._ask(node, SCAN_SMALL, tasks)
        except MessageTooLarge:
            if (middle := len(tasks) // 2) == 0:
                raise
            first = await self._scan_group(node, tasks[:middle])
            return first + await self._scan_group(node, tasks[middle:])
        return [answers and _small_answer(answers) for answers in scans]

    async def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        async with aclosing(self._parts(node, SCAN, tasks)) as parts:
            async for answers in parts:
                for answer in answers:
                    yield _read_labels(answer)

    async def read(
        self, node: str, task: ReadTask, schema: Schema
    ) -> AsyncGenerator[pa.Table, None]:
        whole = observed_schema(schema)
        columns = whole if task.is_numbered else task.options.arrow_schema(schema)
        sent = dataclasses.replace(task, parts=task.parts.combine_chunks())
        async with aclosing(self._parts(node, READ, sent, task.is_numbered)) as parts:
            async for part in parts:
                yield from_ipc(part, columns)

    async def read_table(
        self, node: str, task: TableTask, table: StoredSchema
    ) -> AsyncGenerator[TablePart, None]:
        columns = table.version_schema
        async with aclosing(self._parts(node, READ_TABLE, task)) as parts:
            async for part in parts:
                rows = from_ipc(part.rows, columns) if part.rows.size else columns.empty_table()
                yield TablePart(rows, part.reached)

    async def read_executions(
        self, node: str, task: ExecutionsTask
    ) -> AsyncGenerator[ExecutionsPart, None]:
        observations, matches = list[pa.Buffer](), list[pa.Buffer]()
        async with aclosing(self._parts(node, READ_EXECUTIONS, task)) as pieces:
            async for piece in pieces:
                observations.append(piece.observations)
                matches.append(piece.matches)
                if (part := piece.part) is None:
                    continue
                if part.execution is not None:
                    whole = dataclasses.replace(
                        part.execution,
                        observations=b"".join(observations),
                        matches=b"".join(matches),
                    )
                    part = dataclasses.replace(part, execution=whole)
                observations, matches = [], []
                yield part

    async def analyse(self, node: str, task: AnalysisTask) -> Findings:
        tables = list[pa.Table]()
        async with aclosing(self._parts(node, ANALYSE, task)) as parts:
            async for part in parts:
                if part.rows.size:
                    tables.append(read_stream(part.rows))
                if part.facts_json:
                    table = pa.concat_tables(tables) if tables else None
                    return Findings(json.loads(part.facts_json), table, part.reached)
        raise Unavailable(f"the answer of node {node} is incomplete", node=node)

    async def change_row(self, node: str, table: str, change: RowChange) -> Row:
        return await self._ask(node, CHANGE_ROW, table, cast(AnyChange, change))

    async def change_rows(
        self, node: str, table: str, changes: Sequence[RowChange]
    ) -> Sequence[Outcome]:
        return await self._ask(node, CHANGE_ROWS, table, cast(Sequence[AnyChange], changes))

    async def rows_after(self, node: str, table: str, position: Position, topic: str) -> RowPage:
        return await self._ask(node, ROWS_AFTER, table, position, topic)

    async def learn_row(self, node: str, table: str, row: Row) -> None:
        await self._ask(node, LEARN_ROW, table, row)

    async def known_rows(self, node: str, table: str, after: str) -> Sequence[Row]:
        return await self._ask(node, KNOWN_ROWS, table, after)

    async def known_row(self, node: str, table: str, name: str) -> Row:
        return await self._ask(node, KNOWN_ROW, table, name)

    async def usage(self, node: str) -> UsageStatistics:
        """The load of a node, for elections."""
        return await self._ask(node, USAGE)

    async def held_partitions(self, node: str) -> HeldPartitions:
        """What a node has of partitions."""
        return await self._ask(node, HELD_PARTITIONS)

    async def own_sampler_archive(self, node: str, digest: str) -> pa.Buffer:
        return await self._ask(node, OWN_SAMPLER_ARCHIVE, digest)

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed:
        return await self._ask(node, DROP_GENERATIONS, name, generations)

    async def remove_drained(self, node: str, leaving: str) -> None:
        """Has a node remove another from the topology, which has no partitions any more."""
        await self._ask(node, REMOVE_DRAINED, leaving)

    async def describe_channel(self, node: str, channel: str) -> Sequence[ChannelProgress]:
        """How far a node's own partitions of a channel are."""
        return await self._ask(node, DESCRIBE_CHANNEL, channel)

    async def apply_retention(
        self, node: str, dataset: str, retention: VersionedRetention
    ) -> RetentionOutcome:
        return await self._ask(node, APPLY_RETENTION, dataset, retention.to_json())

    async def fetch(
        self, node: str, ccq_id: str, *, token: str, wait_s: float, labels_max: int
    ) -> AsyncGenerator[continuous_pb2.FetchPart, None]:
        """An update of a continuous query from its coordinator, as a client gets it."""
        async with aclosing(self._parts(node, FETCH, ccq_id, token, wait_s, labels_max)) as parts:
            async for part in parts:
                yield continuous_pb2.FetchPart.FromString(part.to_pybytes())

    def handed_off_cache(
        self, node: str, ccq_id: str, *, term: int, after: Cursor, labels_max: int
    ) -> AsyncGenerator[CachedRange, None]:
        """Reads a handed-off cache of a node."""
        return self._parts(node, HANDED_OFF_CACHE, ccq_id, term, after, labels_max)


def _small_answer(answers: Sequence[ScanAnswer]) -> Sequence[ScanAnswer] | Exception:
    """The answer to one task of a group; why it failed, if it did."""
    if isinstance(answers[0], ScanFailed):
        return answers[0].error
    return [_read_labels(answer) for answer in answers]


def _read_labels(answer: ScanAnswer) -> ScanAnswer:
    """An answer whose labels are read from their stream."""
    if not isinstance(answer, ScanLabels):
        return answer
    return dataclasses.replace(answer, table=read_stream(answer.table))
