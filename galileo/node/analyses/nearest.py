"""The observations nearest to a point."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Generator

import pyarrow as pa

from galileo.dht.topology import Topology
from galileo.graph.run_scan import Check
from galileo.node import query_limits
from galileo.node.analyses.analysis import Analysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.cluster_scan import ClusterScans
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import PARTS_SCHEMA, Findings, PartitionScope, ReadTask
from galileo.node.select import CursorRange
from galileo.query import Query
from galileo.query.nearest import CountBlocks, NearestTo, Neighbours, Question, first, search
from galileo.query.questions import FindNearest

DISTANCE = "distance_m"
"""The last column of an answer, with as many underscores behind it as no feature has."""


class NearestAnalysis(Analysis[FindNearest]):
    """Each owner sends its nearest observations, at most as many as are wanted.

    The answer has the nearest of all, with their distances in metres.

    Attributes:
        sought: parameters of the search.
    """

    has_rows = True

    def __init__(self, question: FindNearest, query: Query) -> None:
        super().__init__(question, query)
        within_m = math.inf if question.within_m is None else question.within_m
        self.sought = NearestTo(
            question.latitude, question.longitude, question.count, query, within_m=within_m
        )
        self._tables = [self.schema.observation_schema.empty_table()]

    async def scope(self, scans: ClusterScans, topology: Topology) -> PartitionScope:
        sought = self.sought
        return await scans.scope(await asyncio.to_thread(sought.within(sought.limit_m).prepared))

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        """Raises DataExpired if retention dropped what was about to be read."""
        shard, commits = graphs.begin(self.schema.key, scope)
        searching = search(self.sought)
        answer: pa.Table | None = None
        while True:
            request = await graphs.run(functools.partial(_step, searching, answer))
            if isinstance(request, Neighbours):
                return Findings(table=request.observations, reached=commits.until)
            if isinstance(request, CountBlocks):
                answer = await self._count(request.query, graphs, shard, commits)
            else:
                answer = await self._read(request.query, graphs, shard, commits)

    async def _count(
        self, query: Query, graphs: LocalGraphs, shard: DatasetShard, commits: CursorRange
    ) -> pa.Table:
        return await graphs.run(
            lambda check: shard.graph.rows_by_cell(
                query,
                after=commits.after,
                until=commits.until,
                partitions=commits.partitions,
                check=check,
            )
        )

    async def _read(
        self, query: Query, graphs: LocalGraphs, shard: DatasetShard, commits: CursorRange
    ) -> pa.Table:
        """The nearest observations, read commit by commit."""

        def find(check: Check) -> ReadTask:
            labels = shard.graph.scan(
                query, after=commits.after, until=commits.until, partitions=commits.partitions
            )
            return ReadTask.of(query, labels.select(PARTS_SCHEMA.names))

        task = await graphs.run(find)
        rows_max = self.sought.count + query_limits.ROWS_HELD_MIN
        held = [query.schema.observation_schema.empty_table()]
        async with contextlib.aclosing(graphs.reading.read_local(task)) as tables:
            async for table in tables:
                held.append(table)
                if sum(table.num_rows for table in held) > rows_max:
                    held = [await self._nearest_of(held, graphs)]
        return await self._nearest_of(held, graphs)

    async def _nearest_of(self, tables: list[pa.Table], graphs: LocalGraphs) -> pa.Table:
        return await graphs.run(lambda check: first(tables, self.sought).observations)

    def add(self, node: str, findings: Findings) -> None:
        self._tables.append(findings.table)

    def answer(self, asked: Round) -> Findings:
        neighbours = first(self._tables, self.sought)
        name = DISTANCE
        while name in neighbours.observations.column_names:
            name += "_"
        distances = pa.field(name, pa.float64(), nullable=False)
        table = neighbours.observations.append_column(distances, pa.array(neighbours.distance_m))
        return Findings(table=table)


def _step(
    searching: Generator[Question, pa.Table, Neighbours], answer: pa.Table | None, _: Check
) -> Question | Neighbours:
    """The next request of a search, or its result."""
    try:
        return next(searching) if answer is None else searching.send(answer)
    except StopIteration as done:
        neighbours: Neighbours = done.value
        return neighbours
