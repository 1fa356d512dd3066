"""Analytics over this node's graphs: explanations, summaries, children, nearest observations."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from typing import TypeVar

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import Cancelled, DataExpired, Overloaded, Unavailable
from galileo.graph import drill_down
from galileo.graph.group_merger import GroupMerger
from galileo.graph.groups import Groups
from galileo.graph.newest import NewestBuckets, NewestMerger
from galileo.graph.run_scan import Check
from galileo.model.grouping import Grouping
from galileo.node.analytics_protocol import (
    AggregateRequest,
    Children,
    ChildrenRequest,
    Described,
    ExplainResult,
    LatestRequest,
    LatestRows,
    NearestRows,
    PartialGroups,
    PartitionScope,
    SummaryRequest,
    SummaryResult,
    Versioned,
)
from galileo.node.catalog import Catalog
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import PARTS_SCHEMA, ReadTask
from galileo.node.query_options import QueryOptions
from galileo.node.row_reader import RowReader
from galileo.node.select import CursorRange, stored_rows
from galileo.query import Query
from galileo.query.nearest import (
    CountBlocks,
    NearestTo,
    Neighbours,
    Question,
    ReadObservations,
    first,
    search,
)

SEARCHES_MAX = 3
"""Times that a search is begun anew because retention took away what it had found."""

Answer = TypeVar("Answer")


class LocalAnalytics:
    """Answers from this node's graphs, in threads of `executor`.

    Cancelling a call stops its work between two pieces, of which each takes milliseconds.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        reading: RowReader,
        executor: Executor,
        options: QueryOptions,
    ) -> None:
        self._options = options
        self._catalog = catalog
        self._reading = reading
        self._executor = executor
        self._working = 0

    async def explain(self, query: Query, share: PartitionScope) -> ExplainResult:
        shard, reached = self._begin(query.schema.key, share)
        explanation = await self._run(
            lambda check: shard.graph.explain(
                query, after=share.after, until=reached, partitions=share.partitions, check=check
            )
        )
        return ExplainResult(explanation, reached)

    async def summarise(self, question: SummaryRequest, share: PartitionScope) -> SummaryResult:
        shard, reached = self._begin(question.query.schema.key, share)
        summary = await self._run(
            lambda check: shard.graph.summarise(
                question.query,
                question.feature,
                bins=question.bins,
                after=share.after,
                until=reached,
                partitions=share.partitions,
                check=check,
            )
        )
        return SummaryResult(summary, reached)

    async def aggregate(self, question: AggregateRequest, share: PartitionScope) -> PartialGroups:
        """The groups of this node's observations.

        Paths are counted where they determine the groups of their observations and whether these
        match; other observations are read.

        Raises:
            InputError: there are too many groups.
            Unavailable: again and again retention dropped what was about to be read.
        """
        for _ in range(SEARCHES_MAX - 1):
            with contextlib.suppress(Unavailable):
                return await self._aggregate(question, share)
        return await self._aggregate(question, share)

    async def _aggregate(self, question: AggregateRequest, share: PartitionScope) -> PartialGroups:
        schema = question.query.schema
        shard, reached = self._begin(schema.key, share)
        merger = GroupMerger(question.grouping, schema)
        commits = CursorRange(share.partitions, share.after, reached)
        work = _merge_all(merger, shard, question, commits=commits, options=self._options)
        step_s = self._options.step_s
        while await self._run(lambda check: _advance(work, step_s, check)):
            pass
        return PartialGroups(await self._run(lambda check: merger.partial()), reached)

    async def latest(self, question: LatestRequest, share: PartitionScope) -> LatestRows:
        """The newest of this node's observations, of each cell or value.

        Raises:
            InputError: there are too many.
            Unavailable: again and again retention dropped what was about to be read.
        """
        for _ in range(SEARCHES_MAX - 1):
            with contextlib.suppress(Unavailable):
                return await self._latest(question, share)
        return await self._latest(question, share)

    async def _latest(self, question: LatestRequest, share: PartitionScope) -> LatestRows:
        schema = question.query.schema
        shard, reached = self._begin(schema.key, share)
        merger = NewestMerger(question.key, schema)
        commits = CursorRange(share.partitions, share.after, reached)
        work = _merge_newest(merger, shard, question, commits=commits, options=self._options)
        step_s = self._options.step_s
        while await self._run(lambda check: _advance(work, step_s, check)):
            pass
        return LatestRows(await self._run(lambda check: merger.partial()), reached)

    async def children(self, question: ChildrenRequest) -> Children:
        shard = self._catalog.shard(question.schema.key)
        shard.check_own(question.partitions)

        def page(check: Check) -> Children:
            table = shard.graph.children(
                question.prefix,
                order=question.order,
                partitions=shard.own_partitions,
                check=check,
            )
            return Children(*drill_down.page(table, after=question.after, limit=question.limit))

        return await self._run(page)

    async def describe(self, dataset: str, share: PartitionScope) -> Described:
        shard, reached = self._begin(dataset, share)
        description = await self._run(
            lambda check: shard.graph.describe(share.partitions, check=check)
        )
        journals = [j for p, j in shard.journals.items() if p in share.partitions]
        return Described(description, sum(j.bytes_on_disk for j in journals), reached)

    async def version(self, dataset: str, share: PartitionScope) -> Versioned:
        shard = self._catalog.shard(dataset)
        shard.check_own(share.partitions)
        return Versioned(shard.versions(share.partitions))

    async def nearest(self, sought: NearestTo, share: PartitionScope) -> NearestRows:
        """The nearest of this node's observations, at most as many as are wanted.

        Raises:
            DataExpired: again and again retention dropped what was about to be read.
        """
        for _ in range(SEARCHES_MAX - 1):
            with contextlib.suppress(DataExpired):
                return await self._search(sought, share)
        return await self._search(sought, share)

    async def _search(self, sought: NearestTo, share: PartitionScope) -> NearestRows:
        shard, reached = self._begin(sought.schema.key, share)
        asking = search(sought)
        answer: pa.Table | None = None
        while True:
            question = await self._run(functools.partial(_step, asking, answer))
            if isinstance(question, Neighbours):
                return NearestRows(question.observations, reached)
            window = PartitionScope(share.partitions, share.after, reached)
            if isinstance(question, CountBlocks):
                answer = await self._count(question, shard, window)
            else:
                answer = await self._read(question, shard, window, sought=sought)

    async def _count(
        self, question: CountBlocks, shard: DatasetShard, share: PartitionScope
    ) -> pa.Table:
        return await self._run(
            lambda check: shard.graph.rows_by_cell(
                question.query,
                after=share.after,
                until=share.until,
                partitions=share.partitions,
                check=check,
            )
        )

    async def _read(
        self,
        question: ReadObservations,
        shard: DatasetShard,
        share: PartitionScope,
        *,
        sought: NearestTo,
    ) -> pa.Table:
        """The nearest observations, read commit by commit."""
        query = question.query

        def find(check: Check) -> ReadTask:
            labels = shard.graph.scan(
                query, after=share.after, until=share.until, partitions=share.partitions
            )
            return ReadTask.of(query, labels.select(PARTS_SCHEMA.names))

        task = await self._run(find)
        rows_max = sought.count + self._options.rows_held_min
        held = [query.schema.observation_schema.empty_table()]
        async with contextlib.aclosing(self._reading.read_local(task)) as tables:
            async for table in tables:
                held.append(table)
                if sum(table.num_rows for table in held) > rows_max:
                    held = [await self._nearest_of(held, sought)]
        return await self._nearest_of(held, sought)

    async def _nearest_of(self, tables: list[pa.Table], sought: NearestTo) -> pa.Table:
        return await self._run(lambda check: first(tables, sought).observations)

    def _begin(self, dataset: str, share: PartitionScope) -> tuple[DatasetShard, Cursor]:
        """The shard, and how far an answer that is begun now will go."""
        shard = self._catalog.shard(dataset)
        shard.check_own(share.partitions)
        # Published before the graph is read: the graph then holds at least this much.
        published = shard.published()
        bound = published if share.until is None else published.meet(share.until)
        return shard, Cursor({partition: bound[partition] for partition in share.partitions})

    async def _run(self, work: Callable[[Check], Answer]) -> Answer:
        """Does a piece of work in a thread; when this is cancelled the work's check raises."""
        if self._working >= self._options.analytics_waiting_max:
            raise Overloaded(
                f"{self._working} analytics requests are running at this node; try again later",
                after_s=0.5,
            )
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise Cancelled("the request was cancelled")

        self._working += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, work, check)
        finally:
            stopped.set()
            self._working -= 1


def _step(
    asking: Generator[Question, pa.Table, Neighbours], answer: pa.Table | None, _: Check
) -> Question | Neighbours:
    """The next question of a search, or its result."""
    try:
        return next(asking) if answer is None else asking.send(answer)
    except StopIteration as done:
        neighbours: Neighbours = done.value
        return neighbours


def _merge_all(
    merger: GroupMerger,
    shard: DatasetShard,
    question: AggregateRequest,
    *,
    commits: CursorRange,
    options: QueryOptions,
) -> Iterator[None]:
    """Adds all groups of some commits to `merger`, a piece at each step."""
    query, grouping, graph = question.query, question.grouping, shard.graph

    def labels_to_read() -> Iterator[pa.RecordBatch | None]:
        for piece in graph.group_pieces(
            query,
            grouping,
            after=commits.after,
            until=commits.until,
            partitions=commits.partitions,
        ):
            if isinstance(piece, Groups):
                merger.add_paths(piece, graph.texts)
                yield None
            else:
                yield piece

    tables = stored_rows(
        shard,
        query,
        columns=grouping.columns(query.schema),
        commits=commits,
        options=options,
        labels=labels_to_read() if grouping.is_in_graph(query.schema) else None,
    )
    for table in tables:
        if table is not None:
            merger.add_observations(table)
        yield


def _merge_newest(
    merger: NewestMerger,
    shard: DatasetShard,
    question: LatestRequest,
    *,
    commits: CursorRange,
    options: QueryOptions,
) -> Iterator[None]:
    """Adds the newest observations of some commits to `merger`, and others, a piece at each step.

    Raises:
        Unavailable: retention dropped commits meanwhile, so that others may have the newest.
    """
    query, schema, graph = question.query, question.query.schema, shard.graph
    dropped = _dropped(shard, commits)

    def labels() -> Iterator[pa.RecordBatch | None]:
        return graph.scan_pieces(
            query,
            labels_max=options.labels_per_part,
            after=commits.after,
            until=commits.until,
            partitions=commits.partitions,
        )

    wanted: Iterator[pa.RecordBatch | None] | None = None
    if Grouping((question.key,)).is_in_graph(schema):
        buckets = NewestBuckets(question.key, query)
        for piece in labels():
            if piece is not None:
                buckets.add(piece)
            yield
        wanted = (None if piece is None else buckets.wanted(piece) for piece in labels())
    columns = tuple(schema.observation_schema.names)
    for table in stored_rows(
        shard, query, columns=columns, commits=commits, options=options, labels=wanted
    ):
        if table is not None:
            merger.add(table)
        yield
    if _dropped(shard, commits) != dropped:
        raise Unavailable("retention dropped observations that were about to be read; try again")


def _dropped(shard: DatasetShard, commits: CursorRange) -> list[int]:
    return [version.dropped for version in shard.versions(sorted(commits.partitions)).values()]


def _advance(work: Iterator[None], step_s: float, check: Check) -> bool:
    """Does some of the work, for about `step_s`; whether there is more."""
    deadline = time.monotonic() + step_s
    for _ in work:
        check()
        if time.monotonic() > deadline:
            return True
    return False
