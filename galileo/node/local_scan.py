"""Scans of this node's own partitions: the labels that match queries, from the metadata graphs."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from galileo import spans
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, Unavailable
from galileo.graph.versions import Choice
from galileo.model.schema import Schema
from galileo.node import query_limits, sampling
from galileo.node.catalog import Catalog
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import ScanAnswer, ScanDone, ScanFailed, ScanLabels, ScanTask
from galileo.node.row_reader import observed
from galileo.node.sampler_store import SamplerStore
from galileo.offload import INLINE_STEPS_MAX
from galileo.query import parse
from galileo.query.query import parse_steps
from galileo.samplers import Sampler, SamplerSpec
from galileo.storage.journal import PartitionJournal

_TEXT_BYTES = 32
_PATH_BYTES = 36


class LocalScans:
    """Answers scan tasks from this node's graphs, one after the other.

    Each task is answered in steps: between two steps the executor's threads are free, and a step
    begins only when the labels of the last one are taken.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        executor: Executor,
        samplers: SamplerStore,
    ) -> None:
        self._catalog = catalog
        self._executor = executor
        self._samplers = samplers

    def readable(self, task: ScanTask) -> frozenset[int]:
        """The partitions of a task about which this node can answer."""
        shard = self._catalog.dataset_shards.get(task.dataset)
        if shard is None:
            return frozenset()
        return shard.readable(task.partitions, after=task.after, until=task.needed)

    async def scan(self, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        """Each task's labels in parts, then its own `ScanDone` or `ScanFailed`."""
        with _traced(tasks):
            async with aclosing(self._scan_all(tasks)) as answers:
                async for answer in answers:
                    yield answer

    async def scan_small(self, task: ScanTask) -> list[ScanAnswer] | None:
        """The answer of `scan` to a task without bound and sampler, if it is small.

        A scan that takes less than `INLINE_S` needs no thread, unless its query has many steps.

        Returns:
            None if it has more than about `SMALL_BYTES_MAX` of labels, or takes longer than a step.

        Raises:
            GalileoError: the task failed.
        """
        scan = _IncrementalScan(self._catalog, task, bytes_max=query_limits.SMALL_BYTES_MAX)
        is_short = parse_steps(task.query_json) <= INLINE_STEPS_MAX
        with _traced([task]):
            answers = scan.advance(query_limits.INLINE_S) if is_short else []
            if not scan.done:
                loop = asyncio.get_running_loop()
                answers += await loop.run_in_executor(
                    self._executor, scan.advance, query_limits.STEP_S
                )
        return answers if scan.done else None

    async def _scan_all(self, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        loop = asyncio.get_running_loop()
        for task in tasks:
            try:
                sampler = await self._sampler(task)
            except GalileoError as error:
                yield ScanFailed(task.item, error)
                continue
            stepwise = _IncrementalScan(
                self._catalog, task, bytes_max=query_limits.STEP_BYTES_MAX, sampler=sampler
            )
            while not stepwise.done:
                for answer in await loop.run_in_executor(self._executor, stepwise.step):
                    yield answer

    async def _sampler(self, task: ScanTask) -> tuple[Sampler, SamplerSpec] | None:
        if not task.sampler_json:
            return None
        spec = SamplerSpec.from_json(task.sampler_json)
        return await self._samplers.load(spec, owner=task.dataset), spec


@contextmanager
def _traced(tasks: Sequence[ScanTask]) -> Iterator[None]:
    """A span around the search for the answers of some tasks."""
    span = spans.begun("scan", dataset=tasks[0].dataset, queries=len(tasks)) if tasks else None
    try:
        yield
    finally:
        if span is not None:
            span.end()


class _IncrementalScan:
    """The scan of one task in steps, one at a time; each makes about `bytes_max` of labels."""

    def __init__(
        self,
        catalog: Catalog,
        task: ScanTask,
        *,
        bytes_max: int,
        sampler: tuple[Sampler, SamplerSpec] | None = None,
    ) -> None:
        self.done = False
        self._bytes_max = bytes_max
        self._catalog = catalog
        self._task = task
        self._sampler = sampler
        self._started: _RunningScan | None = None
        self._reached = EMPTY_CURSOR

    def step(self) -> list[ScanAnswer]:
        """The next answers; the last step ends with `ScanDone` or `ScanFailed`."""
        try:
            return self.advance(query_limits.STEP_S)
        except GalileoError as error:
            self.done = True
            return [ScanFailed(self._task.item, error)]

    def advance(self, step_s: float) -> list[ScanAnswer]:
        """The answers of a step that takes about `step_s` at most; raises the task's error."""
        if self._started is None:
            self._started = self._start()
        batches, self.done = self._next_batches(self._started, step_s)
        answers: list[ScanAnswer] = []
        if batches:
            table = pa.Table.from_batches(batches)
            parts = split_table(table, query_limits.LABELS_PER_PART)
            answers += [ScanLabels(self._task.item, part) for part in parts]
        if self.done:
            answers.append(self._started.end(self._task, reached=self._reached))
        return answers

    def _start(self) -> _RunningScan:
        """Begins the scan.

        While copies of a keyed dataset take the place of what is dropped, they may be stored behind
        the frontier that was read before; then the scan begins once more.
        """
        shard = self._catalog.shard(self._task.dataset)
        while True:
            dropped = shard.graph.dropped
            started = self._begin(shard, dropped)
            if started.is_whole:
                return started

    def _begin(self, shard: DatasetShard, dropped: Cursor) -> _RunningScan:
        task = self._task
        journals = shard.journals
        shard.check_readable(task.partitions, after=task.after, until=task.needed)
        if task.until is not None:  # Else `after` is up to where there are no matches.
            shard.check_history(task.partitions, task.after, task.until)
        # Published before the graph is read: the graph then holds at least this much.
        published = shard.published(task.partitions)
        reached = _frontier(published, until=task.until, partitions=task.partitions)
        self._reached = reached
        if self._sampler is None and task.after.covers(reached):
            nothing = iter(())  # No new commit.
            return _RunningScan(shard, journals, nothing, labels_max=0)
        schema = shard.schema.narrowed(task.added)
        query = parse(task.query_json, schema)
        labels_max = _labels_per_step(schema, self._bytes_max)
        # `reached` names the partitions of the task and no others.
        scan_first = functools.partial(
            shard.graph.scan_first, query, piece_labels_max=labels_max, until=reached
        )
        if self._sampler is not None:
            pieces = sampling.sampled_pieces(
                scan_first,
                schema,
                after=task.after,
                until=reached,
                sampler=self._sampler,
                observe=functools.partial(observed, shard, query=query),
            )
        elif task.labels_max:
            pieces = self._first(scan_first(after=task.after, labels_max=task.labels_max))
        else:
            pieces = shard.graph.scan_pieces(
                query,
                labels_max=labels_max,
                after=task.after,
                until=reached,
                choice=Choice(task.choice),
                at=task.at,
            )
        # Cleaning waits for those that name the end of their range.
        checked = dropped if schema.is_keyed and task.until is None else None
        return _RunningScan(shard, journals, pieces, labels_max, checked)

    def _first(self, pieces: sampling.FirstPieces) -> sampling.Pieces:
        """The pieces of a bounded scan, which says at the end how far they go."""
        self._reached = yield from pieces

    def _next_batches(
        self, started: _RunningScan, step_s: float
    ) -> tuple[list[pa.RecordBatch], bool]:
        """The labels of one step, and whether they are the last."""
        batches: list[pa.RecordBatch] = []
        labels, deadline = 0, time.monotonic() + step_s
        for piece in started.pieces:
            if piece is not None:
                batches.append(piece)
                labels += piece.num_rows
            if 2 * labels > started.labels_max or time.monotonic() > deadline:
                return batches, False
        return batches, True


@dataclass(frozen=True, slots=True)
class _RunningScan:
    shard: DatasetShard
    journals: Mapping[int, PartitionJournal]
    pieces: Iterator[pa.RecordBatch | None]
    labels_max: int
    dropped: Cursor | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing was dropped of a keyed dataset since the scan began."""
        return self.dropped is None or self.shard.graph.dropped == self.dropped

    def end(self, task: ScanTask, *, reached: Cursor) -> ScanDone:
        """The end of the answer; errors as `DatasetShard.check_unchanged`.

        Raises:
            Unavailable: several snapshots were scanned, between which rows were stored again.
        """
        self.shard.check_unchanged(self.journals, task.partitions)
        if (task.sampler_json or task.labels_max) and not self.is_whole:
            raise Unavailable("rows were moved while they were scanned; try again", after_s=0.1)
        return _done(self.shard, task, reached=reached)


def _labels_per_step(schema: Schema, bytes_max: int) -> int:
    """How many labels fit into `bytes_max`; texts count as short ones."""
    texts = sum(feature.type == "text" for feature in schema.indexed)
    width = _PATH_BYTES + 8 * len(schema.indexed) + (_TEXT_BYTES - 8) * texts
    return max(1, bytes_max // width)


def _frontier(published: Cursor, *, until: Cursor | None, partitions: frozenset[int]) -> Cursor:
    """The frontier of an answer that begins now."""
    bound = published if until is None else published.meet(until)
    return Cursor({partition: bound[partition] for partition in partitions})


def _done(shard: DatasetShard, task: ScanTask, *, reached: Cursor) -> ScanDone:
    """The end of an answer, with the requested commits that retention has dropped by now.

    Versions that counted at `at` are gone if later commits are dropped.
    """
    counted = reached if task.at is None else task.at
    gone = shard.lacks(counted, after=task.after, choice=Choice(task.choice))
    return ScanDone(task.item, reached, gone.meet(reached))


def split_table(table: pa.Table, labels_max: int) -> list[pa.Table]:
    """The table in slices of up to `labels_max` labels."""
    return [table.slice(start, labels_max) for start in range(0, table.num_rows, labels_max)]
