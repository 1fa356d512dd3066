"""Analytics over the graphs of the whole cluster, without a transfer of labels.

The node that receives a question asks each owner about its partitions and merges what they find.
The partitions of a node that cannot be reached are missing: a partial answer is a value that names
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import DataExpired, PartitionMoved, Unavailable
from galileo.node.analyses import analysis_of
from galileo.node.analyses.analysis import Analysis, NodeOutcome, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.cluster_scan import UNREACHABLE_ERRORS, ClusterScans
from galileo.node.peers import (
    AnalysisTask,
    Findings,
    PartitionScope,
    Peers,
    as_moved,
    while_owned,
)
from galileo.query import Query
from galileo.query.questions import Question

ATTEMPTS_MAX = 3
"""Times that local work is begun because retention takes away what it has found."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """An answer of the cluster.

    Attributes:
        facts: in the types of JSON.
        table: rows; None for an analysis without rows.
        frontier: up to which commit of each partition it speaks.
        missing: partitions that could not be asked.
        partitions: that matter to the answer.
        ranges: `placement.ranges_hash` of the topology that says so.
    """

    facts: Mapping[str, Any]
    table: pa.Table | None
    frontier: Cursor
    missing: frozenset[int]
    partitions: frozenset[int]
    ranges: int


class ClusterAnalytics:
    """Answers about the whole cluster, and for other nodes about this one.

    Args:
        name: of this node.
        topology: of the cluster.
        graphs: of this node.
        scans: says which partitions can hold a match.
        peers: the other nodes.
        executor: its threads merge.

    Attributes:
        graphs: of this node.
    """

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        graphs: LocalGraphs,
        scans: ClusterScans,
        peers: Peers,
        executor: Executor,
    ) -> None:
        self._name = name
        self._topology = topology
        self.graphs = graphs
        self._scans = scans
        self._peers = peers
        self._executor = executor

    async def answer(self, query: Query, question: Question) -> ClusterAnswer:
        """The answer to a question about what matches a query, from all nodes that answered.

        Raises:
            InputError: the dataset has no answer to it, or a too large one.
            PartitionMoved: another node has a partition now; the caller repeats the question.
        """
        started, topology = time.perf_counter(), self._topology.current
        ranges = placement.ranges_hash(topology)  # First: it may be older, never newer.
        analysis = analysis_of(question, query)
        scope = await analysis.scope(self._scans, topology)
        whole = await self._round(analysis, scope, started=started, ranges=ranges)
        again = analysis.next_round()
        if again is None:
            return whole
        same = PartitionScope(scope.partitions - whole.missing, scope.after, whole.frontier)
        counted = await self._round(again, same, started=started, ranges=ranges)
        return dataclasses.replace(counted, missing=counted.missing | whole.missing)

    async def local(self, query: Query, question: Question, scope: PartitionScope) -> Findings:
        """What this node finds in its partitions; errors as `Analysis.local`."""
        return await self._local(analysis_of(question, query), scope)

    async def _local(self, analysis: Analysis[Any], scope: PartitionScope) -> Findings:
        for _ in range(ATTEMPTS_MAX - 1):
            with contextlib.suppress(Unavailable, DataExpired):
                return await analysis.local(self.graphs, scope)
        return await analysis.local(self.graphs, scope)

    async def _round(
        self, analysis: Analysis[Any], scope: PartitionScope, *, started: float, ranges: int
    ) -> ClusterAnswer:
        """Asks the owners of all partitions once, and merges what they find as it comes."""
        topology, shares = self._topology.current, self._shares(scope)
        planned = time.perf_counter()
        reached: list[Cursor] = []
        adding = asyncio.Lock()

        async def ask(node: str) -> NodeOutcome:
            share, group = shares[node], topology.group_of(node).name
            began = time.perf_counter()
            try:
                findings = await self._ask(analysis, node, share)
            except PartitionMoved:
                raise
            except UNREACHABLE_ERRORS as error:
                seconds = time.perf_counter() - began
                return NodeOutcome(node, group, share.partitions, seconds, error)
            seconds = time.perf_counter() - began
            async with adding:
                await self._merge(analysis, lambda: analysis.add(node, findings))
            reached.append(findings.reached)
            return NodeOutcome(node, group, share.partitions, seconds, None)

        outcomes = await _gathered([ask(node) for node in shares])
        missing = frozenset(p for o in outcomes if o.error is not None for p in o.partitions)
        frontier = _join([*reached, _of(scope.after, scope.partitions - missing)])
        total_s = time.perf_counter() - started
        count = topology.partitions_per_group
        groups = sorted({topology.groups[p // count].name for p in scope.partitions})
        asked = Round(scope, groups, outcomes, planned - started, total_s)
        merged = await self._merge(analysis, lambda: analysis.answer(asked))
        return ClusterAnswer(
            merged.facts, merged.table, frontier, missing, scope.partitions, ranges
        )

    async def _ask(self, analysis: Analysis[Any], node: str, share: PartitionScope) -> Findings:
        """What a node finds in its share.

        Raises:
            PartitionMoved: another node has a partition now, or will have it.
            GalileoError: of the node.
        """
        live = self._topology
        query, schema = analysis.query.to_json(), analysis.schema
        task = AnalysisTask(schema.key, query, analysis.question, share, schema.added)
        call = (
            self._local(analysis, share) if node == self._name else self._peers.analyse(node, task)
        )
        try:
            return await while_owned(call, live, node, share.partitions)
        except UNREACHABLE_ERRORS as error:
            moved = None if analysis.shows_failures else as_moved(error, live)
            if moved is None or moved is error:
                raise
            raise moved from error

    async def _merge(self, analysis: Analysis[Any], work: Callable[[], Result]) -> Result:
        """Does work of an analysis, in a thread if that takes long."""
        if not analysis.has_rows:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _shares(self, scope: PartitionScope) -> dict[str, PartitionScope]:
        """The scope of each node: the partitions that it owns."""
        by_node = placement.partitions_by_node(self._topology.current)
        owned = {node: mine & scope.partitions for node, mine in by_node.items()}
        return {
            node: dataclasses.replace(scope, partitions=mine)
            for node, mine in owned.items()
            if mine
        }


async def _gathered(calls: Sequence[Coroutine[Any, Any, NodeOutcome]]) -> list[NodeOutcome]:
    """The results of all calls; ends the others when one has failed."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _join(cursors: Sequence[Cursor]) -> Cursor:
    joined = EMPTY_CURSOR
    for cursor in cursors:
        joined = joined.join(cursor)
    return joined


def _of(cursor: Cursor, partitions: frozenset[int]) -> Cursor:
    return Cursor({p: cursor[p] for p in partitions})
