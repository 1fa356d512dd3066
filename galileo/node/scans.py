"""Scans of this node's own partitions, and of the whole cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from galileo import spans
from galileo.cursor import ORIGIN, Cursor
from galileo.dht import placement
from galileo.dht.live import LiveTopology
from galileo.errors import (
    Cancelled,
    GalileoError,
    NotOwner,
    PartitionMoved,
    TransientError,
    UnknownDataset,
)
from galileo.labels import LabelSet, first_commits
from galileo.model.schema import Schema
from galileo.node import sampling
from galileo.node.catalog import Catalog
from galileo.node.cluster_view import ClusterView
from galileo.node.peers import Peers, ScanAnswer, ScanDone, ScanFailed, ScanLabels, ScanTask
from galileo.node.retry import RetryWhileMoving
from galileo.node.row_reader import observed
from galileo.node.sampler_store import SamplerStore
from galileo.node.shard import Shard
from galileo.query import Query, parse
from galileo.samplers import Sampler, SamplerSpec

LABELS_PER_PART = 32_768
PARTS_WAITING_MAX = 4
"""Parts of one answer that wait for its reader; the scans behind them wait with it."""
STEP_BYTES_MAX = 4 << 20
"""Of labels that one step of a scan makes; what an answer in flight takes is a few times this."""
STEP_S = 0.025
"""After so long a step ends with what it has, so that other scans get their turn."""
_TEXT_BYTES = 32
_PATH_BYTES = 36

log = logging.getLogger(__name__)


class LocalScans:
    """Answers scan tasks from this node's graphs.

    A task that comes alone and wants everything is answered in steps: the executor's threads are
    free between two of them, and the next is not made before the last is taken. Tasks that come
    together share one pass over what is new, and those with a bound are small by it.
    """

    def __init__(self, catalog: Catalog, *, executor: Executor, samplers: SamplerStore) -> None:
        self._catalog = catalog
        self._executor = executor
        self._samplers = samplers

    async def scan(self, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        """Each task's labels in parts, then its `ScanDone`, or a `ScanFailed` of its own."""
        span = spans.begun("scan", dataset=tasks[0].dataset, queries=len(tasks)) if tasks else None
        try:
            async with aclosing(self._scanned(tasks)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            if span is not None:
                span.end()

    async def _scanned(self, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]:
        loop = asyncio.get_running_loop()
        is_alone = len(tasks) == 1 and not tasks[0].labels_max
        for task in tasks:
            if is_alone or task.sampler_json:
                try:
                    stepwise = _IncrementalScan(
                        self._catalog, task, sampler=await self._sampler(task)
                    )
                except GalileoError as error:
                    yield ScanFailed(task.item, error)
                    continue
                while not stepwise.done:
                    for answer in await loop.run_in_executor(self._executor, stepwise.step):
                        yield answer
        together = [] if is_alone else [task for task in tasks if not task.sampler_json]
        for dataset in sorted({task.dataset for task in together}):
            group = [task for task in together if task.dataset == dataset]
            for answer in await loop.run_in_executor(self._executor, self._scan, dataset, group):
                yield answer

    async def _sampler(self, task: ScanTask) -> tuple[Sampler, SamplerSpec] | None:
        if not task.sampler_json:
            return None
        spec = SamplerSpec.from_json(task.sampler_json)
        await self._samplers.ready(spec)
        load = functools.partial(self._samplers.load, spec, owner=task.dataset)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, load), spec

    def _scan(self, dataset: str, tasks: Sequence[ScanTask]) -> list[ScanAnswer]:
        try:
            shard = self._catalog.shard(dataset)
        except GalileoError as error:
            return [ScanFailed(task.item, error) for task in tasks]
        refused: list[ScanAnswer] = []
        for partitions in {task.partitions for task in tasks}:
            try:
                shard.check_own(partitions)
            except GalileoError as error:
                moved = [task for task in tasks if task.partitions == partitions]
                refused += [ScanFailed(task.item, error) for task in moved]
                tasks = [task for task in tasks if task.partitions != partitions]
        # Published before the graph is read: the graph then holds at least this much.
        published = shard.published()
        alike: dict[tuple[Cursor | None, frozenset[int]], list[ScanTask]] = {}
        for task in tasks:
            alike.setdefault((task.until, task.partitions), []).append(task)
        answers = refused
        for (until, partitions), group in alike.items():
            reached = _reached(published, until=until, partitions=partitions)
            answers += _scan_alike(shard, group, partitions=partitions, reached=reached)
        return answers


class _IncrementalScan:
    """One task's answer, made step by step; a step runs in a thread, one at a time."""

    def __init__(
        self,
        catalog: Catalog,
        task: ScanTask,
        *,
        sampler: tuple[Sampler, SamplerSpec] | None,
    ) -> None:
        self.done = False
        self._catalog = catalog
        self._task = task
        self._sampler = sampler
        self._started: _Started | None = None

    def step(self) -> list[ScanAnswer]:
        """What comes next; the last step ends with `ScanDone` or `ScanFailed`."""
        try:
            if self._started is None:
                self._started = _start(self._catalog, self._task, self._sampler)
            batches, self.done = _taken(self._started)
        except GalileoError as error:
            self.done = True
            return [ScanFailed(self._task.item, error)]
        answers: list[ScanAnswer] = []
        if batches:
            table = pa.Table.from_batches(batches)
            answers += [ScanLabels(self._task.item, part) for part in _parts(table)]
        if self.done:
            answers.append(self._started.end(self._task))
        return answers


@dataclass(frozen=True, slots=True)
class _Started:
    shard: Shard
    pieces: Iterator[pa.RecordBatch | None]
    reached: Cursor
    labels_max: int

    def end(self, task: ScanTask) -> ScanDone:
        return _done(self.shard, task, reached=self.reached)


def _start(
    catalog: Catalog, task: ScanTask, sampler: tuple[Sampler, SamplerSpec] | None
) -> _Started:
    shard = catalog.shard(task.dataset)
    shard.check_own(task.partitions)
    query = parse(task.query_json, shard.schema)
    # Published before the graph is read, as above.
    published = shard.published()
    reached = _reached(published, until=task.until, partitions=task.partitions)
    labels_max = _labels_per_step(shard.schema)

    def scan(after: Cursor, until: Cursor) -> sampling.Pieces:
        return shard.graph.scan_pieces(
            query, labels_max=labels_max, after=after, until=until, partitions=task.partitions
        )

    if sampler is not None:
        pieces = sampling.sampled_pieces(
            scan,
            shard.schema,
            after=task.after,
            until=reached,
            sampler=sampler,
            observe=functools.partial(observed, shard, query=query),
        )
    else:
        pieces = scan(task.after, reached)
    return _Started(shard, pieces, reached, labels_max)


def _taken(started: _Started) -> tuple[list[pa.RecordBatch], bool]:
    """The labels of one step, and whether they are the last."""
    batches: list[pa.RecordBatch] = []
    labels, deadline = 0, time.monotonic() + STEP_S
    for piece in started.pieces:
        if piece is not None:
            batches.append(piece)
            labels += piece.num_rows
        if 2 * labels > started.labels_max or time.monotonic() > deadline:
            return batches, False
    return batches, True


def _labels_per_step(schema: Schema) -> int:
    """How many labels `STEP_BYTES_MAX` holds; texts are taken for short."""
    texts = sum(feature.type == "text" for feature in schema.indexed)
    width = _PATH_BYTES + 8 * len(schema.indexed) + (_TEXT_BYTES - 8) * texts
    return max(1, STEP_BYTES_MAX // width)


def _reached(published: Cursor, *, until: Cursor | None, partitions: frozenset[int]) -> Cursor:
    """How far an answer that is begun now will go."""
    bound = published if until is None else published.meet(until)
    return Cursor({partition: bound[partition] for partition in partitions})


def _scan_alike(
    shard: Shard, tasks: Sequence[ScanTask], *, partitions: frozenset[int], reached: Cursor
) -> list[ScanAnswer]:
    """Tasks that differ in query and cursor alone: one pass over what is new serves them all."""
    answers: list[ScanAnswer] = []
    parsed: list[tuple[ScanTask, Query]] = []
    for task in tasks:
        try:
            parsed.append((task, parse(task.query_json, shard.schema)))
        except GalileoError as error:
            answers.append(ScanFailed(task.item, error))
    tables = shard.graph.scan_many(
        [(query, task.after) for task, query in parsed], until=reached, partitions=partitions
    )
    for (task, _), table in zip(parsed, tables, strict=True):
        labels, until = LabelSet(shard.schema, table), reached
        if task.labels_max:
            labels, until = first_commits(labels, reached=reached, labels_max=task.labels_max)
        answers += [ScanLabels(task.item, part) for part in _parts(labels.table)]
        answers.append(_done(shard, task, reached=until))
    return answers


def _done(shard: Shard, task: ScanTask, *, reached: Cursor) -> ScanDone:
    """The end of an answer; names what was asked for and is gone, as it is after the scan."""
    dropped = shard.dropped().meet(reached)
    gone = {p: s for p, s in dropped.items() if s > task.after[p]}
    return ScanDone(task.item, reached, Cursor(gone))


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """How far an answer goes: the frontier of each partition asked, and those not reached.

    Attributes:
        gone: up to where retention has dropped what was asked for; labels up to there do not
            count. One-shot queries speak of what is stored and may leave it alone.
    """

    frontier: Cursor
    missing: frozenset[int]
    gone: Cursor = ORIGIN


# What makes a node's partitions missing: it is away, busy, or has not heard of the dataset yet.
# Any other error of a node is the answer's error, never a silent gap.
UNREACHABLE_ERRORS = (TransientError, NotOwner, Cancelled, UnknownDataset)

_Part: TypeAlias = pa.Table | ScanEnd | Exception
_Answer: TypeAlias = AsyncGenerator[pa.Table | ScanEnd, None]


class ClusterScans:
    """Answers a query from all partitions that could hold a match."""

    def __init__(
        self,
        name: str,
        topology: LiveTopology,
        *,
        local: LocalScans,
        peers: Peers,
        view: ClusterView,
        samplers: SamplerStore,
    ) -> None:
        self._name = name
        self._topology = topology
        self._local = local
        self._samplers = samplers
        self._peers = peers
        self._view = view

    def candidates(self, query: Query) -> frozenset[int]:
        """The partitions that placement allows to hold a match."""
        return placement.candidates(self._topology.current, query.schema, query.cell_ranges())

    async def sampled(self, query: Query, spec: SamplerSpec) -> _Answer:
        """What `run` finds, thinned by a sampler where it lies, and merged here if that is due.

        Raises:
            UnknownSampler: it is not installed here, or at another node.
            NotPermitted, SandboxUnavailable, SamplerRevoked: it was sent, and is not run.
            InputError: it refuses its options, or they do not fit the dataset.
            SamplerFailed: it raised, or gave no mask.
            MessageTooLarge: there is too much to merge.
        """
        await self._samplers.ready(spec)
        chosen = await asyncio.to_thread(self._samplers.load, spec, owner=query.schema.key)
        last = sampling.merging_at_last(query.schema, chosen, spec)
        async with aclosing(self.run(query, sampler=spec)) as parts:
            async for part in parts:
                if last is None:
                    yield part
                elif isinstance(part, ScanEnd):
                    labels = await asyncio.to_thread(last.result, until=part.frontier)
                    for table in _parts(labels.table):
                        yield table
                    yield part
                else:
                    last.add(part)

    async def run(
        self, query: Query, *, sampler: SamplerSpec | None = None
    ) -> AsyncGenerator[pa.Table | ScanEnd, None]:
        """The labels in parts, then how far they go; of everything committed when it was asked.

        Where the feature graph rules a match out up to some commit, only later ones are looked
        at, so what it spares is work and never an answer. A node that cannot be reached makes
        its partitions missing; labels that it had already sent lie past the tail's frontier and
        are for the caller to drop (`LabelSet.until`).
        """
        wanted = self.candidates(query)
        spared = self._view.spared(query, wanted)
        async with aclosing(
            self.between(query, partitions=wanted, after=spared, until=None, sampler=sampler)
        ) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    yield ScanEnd(part.frontier.join(spared), part.missing)
                else:
                    yield part

    async def limited(self, query: Query, answer: _Answer, labels_max: int) -> _Answer:
        """The first labels of an answer to the query, then its tail.

        An answer that is cut says of no commit that it is answered, and ends the work at all
        nodes. Its tail names the partitions of nodes that cannot be reached, asked or not.
        """
        async with aclosing(answer) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    yield part
                    return
                if part.num_rows > labels_max:
                    if labels_max:
                        yield part.slice(0, labels_max)
                    break
                labels_max -= part.num_rows
                yield part
        yield ScanEnd(ORIGIN, await self.unreachable(query, self.candidates(query)))

    async def unreachable(self, query: Query, partitions: frozenset[int]) -> frozenset[int]:
        """Those of the partitions whose nodes cannot be reached: asks for none of their commits."""
        missing = frozenset[int]()
        async with aclosing(
            self.between(query, partitions=partitions, after=ORIGIN, until=ORIGIN)
        ) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    missing |= part.missing
        return missing

    async def between(
        self,
        query: Query,
        *,
        partitions: frozenset[int],
        after: Cursor,
        until: Cursor | None,
        labels_max: int = 0,
        sampler: SamplerSpec | None = None,
    ) -> AsyncGenerator[pa.Table | ScanEnd, None]:
        """The labels of the commits (after, until] of some partitions, then their `ScanEnd`.

        With `labels_max` above 0 each node may stop behind that many. A sampler thins them at
        the nodes; samples of different nodes are not merged.
        """
        whole = ScanTask(0, query.schema.key, query.to_json(), after, until, partitions, labels_max)
        if sampler is not None:
            whole = dataclasses.replace(whole, sampler_json=sampler.to_json())
        shares = self._shares(whole)
        answers = [self._answer(node, share) for node, share in shares.items()]
        if list(shares) == [self._name]:
            # A small answer is a part and its tail: nothing that tasks and a queue could hasten.
            for _ in range(2):
                part = await anext(answers[0])
                yield part
                if isinstance(part, ScanEnd):
                    return
        async with aclosing(_together(answers)) as parts:
            async for part in parts:
                yield part

    def _shares(self, task: ScanTask) -> dict[str, ScanTask]:
        """The part of the task that each node has to answer."""
        by_node = placement.partitions_by_node(self._topology.current)
        shares = {node: owned & task.partitions for node, owned in by_node.items()}
        return {
            node: dataclasses.replace(task, partitions=share)
            for node, share in shares.items()
            if share
        }

    async def _answer(self, node: str, task: ScanTask) -> _Answer:
        """One node's labels, then its tail; raises what went wrong on our side.

        Where a partition moves meanwhile, whoever has it now is asked in the node's place.
        """
        patience, asked, tails = RetryWhileMoving(), [(node, task)], list[ScanEnd]()
        while asked:
            node, share = asked.pop()
            try:
                async with aclosing(self._told_by(node, share)) as parts:
                    async for part in parts:
                        if isinstance(part, ScanEnd):
                            tails.append(part)
                        else:
                            yield part
            except PartitionMoved as error:
                try:
                    await patience.after(error)
                except PartitionMoved:
                    tails.append(ScanEnd(ORIGIN, share.partitions))
                else:
                    asked += self._shares(share).items()
        yield _joined(tails)

    async def _told_by(self, node: str, task: ScanTask) -> _Answer:
        """The same, where nothing moves.

        Raises:
            PartitionMoved: the node does not have all of it; it has told nothing.
        """
        asked = self._local.scan([task]) if node == self._name else self._peers.scan(node, [task])
        tail, is_begun = ScanEnd(ORIGIN, task.partitions), False
        try:
            async with aclosing(asked) as answers:
                async for answer in answers:
                    if isinstance(answer, ScanLabels):
                        is_begun = True
                        yield answer.table
                    elif isinstance(answer, ScanDone):
                        tail = ScanEnd(answer.reached, frozenset(), answer.gone)
                    else:
                        raise answer.error
        except UNREACHABLE_ERRORS as error:
            if isinstance(error, PartitionMoved) and not is_begun:
                raise
            log.warning("node %s did not answer a scan: %s", node, error)
        yield tail


async def _together(answers: Sequence[_Answer]) -> _Answer:
    """The labels of several nodes as they come, then the one tail of them all."""
    queue: asyncio.Queue[_Part] = asyncio.Queue(PARTS_WAITING_MAX)
    running = [asyncio.create_task(_put(answer, queue)) for answer in answers]
    tails: list[ScanEnd] = []
    span = spans.begun("merge", nodes=len(answers))
    try:
        while len(tails) < len(running):
            part = await queue.get()
            if isinstance(part, Exception):
                raise part
            if isinstance(part, ScanEnd):
                tails.append(part)
            else:
                yield part
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if span is not None:
            span.end()
    yield _joined(tails)


async def _put(answer: _Answer, queue: asyncio.Queue[_Part]) -> None:
    """Puts what one node answers, or what went wrong on our side."""
    try:
        async with aclosing(answer) as parts:
            async for part in parts:
                await queue.put(part)
    except Exception as error:
        await queue.put(error)


def _joined(tails: Sequence[ScanEnd]) -> ScanEnd:
    frontier, missing, gone = ORIGIN, frozenset[int](), ORIGIN
    for tail in tails:
        frontier, missing = frontier.join(tail.frontier), missing | tail.missing
        gone = gone.join(tail.gone)
    return ScanEnd(frontier, missing, gone)


def _parts(table: pa.Table) -> list[pa.Table]:
    return [
        table.slice(start, LABELS_PER_PART) for start in range(0, table.num_rows, LABELS_PER_PART)
    ]
