"""Analytics over the graphs of the whole cluster, without a transfer of labels.

The node that receives a request sends each owner its share and merges the answers. A node that
cannot be reached makes its partitions missing: a partial answer is a value that names them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.errors import GalileoError, InputError, PartitionMoved
from galileo.graph import drill_down
from galileo.graph.description import merge_descriptions
from galileo.graph.explain import Explanation
from galileo.graph.feature_graph import PathBounds
from galileo.graph.group_merger import GroupMerger
from galileo.graph.newest import NewestMerger, check_key
from galileo.graph.quantiles import QuantileBounds, check_quantiles
from galileo.graph.summary import Summary, check_summary, equal_edges, merge_summaries
from galileo.model.schema import Schema
from galileo.node.analytics_protocol import (
    AggregateRequest,
    AnalyticsPeer,
    Children,
    ChildrenRequest,
    Described,
    LatestRequest,
    PartitionScope,
    SummaryRequest,
    Versioned,
)
from galileo.node.cluster_scan import UNREACHABLE_ERRORS
from galileo.node.local_analytics import LocalAnalytics
from galileo.node.peers import as_moved, while_owned
from galileo.node.storage_node import StorageNode
from galileo.query import Query
from galileo.query.nearest import NearestTo, Neighbours, first

THREADS = 2
"""Threads for analytics alone, so that commits and scans keep theirs."""
CHILDREN_MAX = 100_000
"""Children of one page."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The part of one node in an explanation, or its error.

    Attributes:
        node: its name.
        group: of the node.
        partitions: its share of the request.
        explanation: None where it did not answer.
        error: None where it did.
        seconds: until its answer was there.
    """

    node: str
    group: str
    partitions: frozenset[int]
    explanation: Explanation | None
    error: GalileoError | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ClusterExplanation:
    """The explanation of a query.

    Attributes:
        groups: that can hold a match, by placement.
        partitions: likewise.
        pruned: the commit of each partition up to which the feature graph excludes a match.
        nodes: the owners of these partitions.
        plan_s: seconds for finding out whom to ask.
        total_s: seconds for everything.
    """

    groups: tuple[str, ...]
    partitions: frozenset[int]
    pruned: Cursor
    nodes: tuple[NodeAnswer, ...]
    plan_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class ClusterResult(Generic[Answer]):
    """An answer of the cluster.

    Attributes:
        value: what it says.
        frontier: up to which commit of each partition it speaks.
        missing: partitions that could not be asked.
        candidates: partitions that could hold a match, where that is of interest.
        ranges: `placement.ranges_hash` of the topology that says so.
    """

    value: Answer
    frontier: Cursor
    missing: frozenset[int]
    candidates: frozenset[int] = frozenset()
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class ClusterEstimate:
    """An estimate from this node's feature graph.

    Attributes:
        count: bounds on the number of matching paths.
        quantiles: of a feature over them.
        behind: commits that are known to be there and not yet in the feature graph.
        unheard: partitions of nodes that have sent no report since this one started.
    """

    count: PathBounds
    quantiles: tuple[QuantileBounds, ...]
    behind: int
    unheard: frozenset[int]


class ClusterAnalytics:
    """Answers about the whole cluster, and through `local` about this node."""

    def __init__(self, node: StorageNode, *, peers: AnalyticsPeer) -> None:
        self._node = node
        self._peers = peers
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="exploration")
        self.local = LocalAnalytics(
            node.catalog,
            reading=node.reading,
            executor=self._executor,
            options=node.options.queries,
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

    async def explain(self, query: Query) -> ClusterExplanation:
        """Runs a query, and returns how it was answered in place of the labels."""
        started = time.perf_counter()
        scope = await self._node.scans.scope(query)
        shares = self._shares(scope)
        planned = time.perf_counter()
        answers, _ = await self._scatter_gather(
            shares, functools.partial(self._explain_node, query)
        )
        return ClusterExplanation(
            groups=tuple(sorted(self._groups_of(scope.partitions))),
            partitions=scope.partitions,
            pruned=scope.after,
            nodes=tuple(answers[node] for node in sorted(answers)),
            plan_s=planned - started,
            total_s=time.perf_counter() - started,
        )

    async def _explain_node(self, query: Query, node: str, share: PartitionScope) -> NodeAnswer:
        started, topology = time.perf_counter(), self._node.topology
        explanation: Explanation | None = None
        failed: GalileoError | None = None
        try:
            if node == self._node.name:
                explanation = (await self.local.explain(query, share)).explanation
            else:
                explanation = (await self._peers.explain(node, query, share)).explanation
        except PartitionMoved:
            raise
        except UNREACHABLE_ERRORS as error:
            failed = error
        return NodeAnswer(
            node=node,
            group=topology.group_of(node).name,
            partitions=share.partitions,
            explanation=explanation,
            error=failed,
            seconds=time.perf_counter() - started,
        )

    async def summarise(self, question: SummaryRequest) -> ClusterResult[Summary]:
        """The statistics of a feature over all partitions that answered.

        Bins by number need the extremes of all nodes, so their edges are found by a first round
        and everything is counted by a second one, which sees the same commits.

        Raises:
            InputError: the feature or the bins are none that can be summarised.
        """
        query = question.query
        check_summary(query.schema, question.feature, question.bins)
        share = await self._node.scans.scope(query)
        if not isinstance(question.bins, int):
            return await self._summarise_once(question, share)
        plain = dataclasses.replace(question, bins=None)
        whole = await self._summarise_once(plain, share)
        least, most = whole.value.minimum, whole.value.maximum
        if least is None or most is None:
            return whole
        edges = tuple(equal_edges(least, most, bins=question.bins).tolist())
        again = dataclasses.replace(question, bins=edges)
        same = PartitionScope(share.partitions - whole.missing, share.after, whole.frontier)
        counted = await self._summarise_once(again, same)
        return dataclasses.replace(counted, missing=counted.missing | whole.missing)

    async def _summarise_once(
        self, question: SummaryRequest, share: PartitionScope
    ) -> ClusterResult[Summary]:
        shares = self._shares(share)
        answers, errors = await self._scatter_gather(
            shares,
            lambda node, part: (
                self.local.summarise(question, part)
                if node == self._node.name
                else self._peers.summarise(node, question, part)
            ),
        )
        frontier = _join_cursors([answer.reached for answer in answers.values()]).join(
            _of(share.after, share.partitions - _missing(shares, errors))
        )
        value = merge_summaries([answer.summary for answer in answers.values()])
        return ClusterResult(value, frontier, _missing(shares, errors))

    async def aggregate(self, question: AggregateRequest) -> ClusterResult[pa.Table]:
        """The groups of all matching observations of the partitions that answered.

        Each owner sends its groups, which are merged as they come.

        Returns:
            A table of `GroupMerger.answer`.

        Raises:
            InputError: the dataset has no such keys or statistics, or there are too many groups.
        """
        query, grouping = question.query, question.grouping
        grouping.check(query.schema)
        ranges = placement.ranges_hash(self._node.topology)  # First: it may be older, never newer.
        share = await self._node.scans.scope(query)
        merger, merging = GroupMerger(grouping, query.schema), asyncio.Lock()
        loop = asyncio.get_running_loop()

        async def call(node: str, part: PartitionScope) -> Cursor:
            is_here = node == self._node.name
            groups = await (
                self.local.aggregate(question, part)
                if is_here
                else self._peers.aggregate(node, question, part)
            )
            async with merging:
                await loop.run_in_executor(self._executor, merger.add_table, groups.table)
            return groups.reached

        shares = self._shares(share)
        answers, errors = await self._scatter_gather(shares, call)
        missing = _missing(shares, errors)
        frontier = _join_cursors(list(answers.values())).join(
            _of(share.after, share.partitions - missing)
        )
        table = await loop.run_in_executor(self._executor, merger.answer)
        return ClusterResult(table, frontier, missing, share.partitions, ranges)

    async def latest(self, question: LatestRequest) -> ClusterResult[pa.Table]:
        """The newest matching observation of each cell or value in the partitions that answered.

        Returns:
            A table of `NewestMerger.answer`.

        Raises:
            InputError: the dataset has no such key, or there are too many observations.
        """
        query = question.query
        check_key(question.key, query.schema)
        share = await self._node.scans.scope(query)
        merger, merging = NewestMerger(question.key, query.schema), asyncio.Lock()
        loop = asyncio.get_running_loop()

        async def call(node: str, part: PartitionScope) -> Cursor:
            is_here = node == self._node.name
            newest = await (
                self.local.latest(question, part)
                if is_here
                else self._peers.latest(node, question, part)
            )
            async with merging:
                await loop.run_in_executor(self._executor, merger.add, newest.observations)
            return newest.reached

        shares = self._shares(share)
        answers, errors = await self._scatter_gather(shares, call)
        missing = _missing(shares, errors)
        frontier = _join_cursors(list(answers.values())).join(
            _of(share.after, share.partitions - missing)
        )
        table = await loop.run_in_executor(self._executor, merger.answer)
        return ClusterResult(table, frontier, missing)

    async def children(self, question: ChildrenRequest) -> ClusterResult[Children]:
        """A page of the children of a vertex, counted over all nodes that answered.

        The first children of all are among the first of each node, so pages can be put
        together. A vertex that names its cell asks one group, one that names time too one node.

        Raises:
            InputError: the order, a value or the limit makes no sense.
        """
        level = drill_down.level_below(question.schema, question.prefix, question.order)
        if not 1 <= question.limit <= CHILDREN_MAX:
            raise InputError(
                f"expected a limit from 1 to {CHILDREN_MAX:,} children, got {question.limit:,}",
                parameter="limit",
                bound=CHILDREN_MAX,
            )
        shares = self._shares(PartitionScope(self._holders(question)))
        answers, errors = await self._scatter_gather(
            shares,
            lambda node, part: (
                self.local.children(_about(question, part))
                if node == self._node.name
                else self._peers.children(node, _about(question, part))
            ),
        )
        none = drill_down.empty_level(question.schema, level)
        tables = [none, *(answer.table for answer in answers.values())]
        loop = asyncio.get_running_loop()
        table = await loop.run_in_executor(self._executor, drill_down.add_counts, tables)
        page, more = drill_down.page(table, after=None, limit=question.limit)
        more = more or any(answer.more for answer in answers.values())
        return ClusterResult(Children(page, more), EMPTY_CURSOR, _missing(shares, errors))

    async def nearest(self, sought: NearestTo) -> ClusterResult[Neighbours]:
        """The nearest observations of all partitions that answered, each node's own merged."""
        query = await asyncio.to_thread(sought.within(sought.limit_m).prepared)
        share = await self._node.scans.scope(query)
        shares = self._shares(share)
        answers, errors = await self._scatter_gather(
            shares,
            lambda node, part: (
                self.local.nearest(sought, part)
                if node == self._node.name
                else self._peers.nearest(node, sought, part)
            ),
        )
        tables = [answer.observations for answer in answers.values()]
        tables.append(sought.schema.observation_schema.empty_table())
        loop = asyncio.get_running_loop()
        neighbours = await loop.run_in_executor(self._executor, first, tables, sought)
        missing = _missing(shares, errors)
        frontier = _join_cursors([answer.reached for answer in answers.values()])
        return ClusterResult(
            neighbours, frontier.join(_of(share.after, share.partitions - missing)), missing
        )

    async def describe(self, schema: Schema) -> ClusterResult[Described]:
        """A description of the dataset, from all partitions that answered.

        Every node describes its own partitions in one call. It looks through what its metadata
        graph has gathered since the last call, and reads no observation.
        """
        shares = self._shares(PartitionScope(placement.readable_partitions(self._node.topology)))
        answers, errors = await self._scatter_gather(
            shares,
            lambda node, part: (
                self.local.describe(schema.key, part)
                if node == self._node.name
                else self._peers.describe(node, schema, part)
            ),
        )
        parts = list(answers.values())
        frontier = _join_cursors([part.reached for part in parts])
        whole = Described(
            merge_descriptions(schema, [part.description for part in parts]),
            sum(part.bytes for part in parts),
            frontier,
        )
        return ClusterResult(whole, frontier, _missing(shares, errors))

    async def version(self, schema: Schema) -> ClusterResult[Versioned]:
        """The versions of the partitions whose owners answered; each says what it knows at once."""
        ranges = placement.ranges_hash(self._node.topology)
        shares = self._shares(PartitionScope(placement.readable_partitions(self._node.topology)))
        answers, errors = await self._scatter_gather(
            shares,
            lambda node, part: (
                self.local.version(schema.key, part)
                if node == self._node.name
                else self._peers.version(node, schema, part)
            ),
        )
        versions = {p: v for part in answers.values() for p, v in part.partitions.items()}
        frontier = Cursor({p: version.last for p, version in versions.items()})
        missing = _missing(shares, errors)
        return ClusterResult(Versioned(versions), frontier, missing, ranges=ranges)

    async def estimate(
        self, query: Query, *, feature: str | None, shares: Sequence[float]
    ) -> ClusterEstimate:
        """Bounds from the feature graph, without asking any other node; takes milliseconds.

        Raises:
            InputError: the feature has no quantiles, or a share is not between 0 and 1.
        """
        check_quantiles(query.schema, feature, shares)
        view, candidates = self._node.view, self._node.scans.candidates(query)
        shard = self._node.catalog.shard(query.schema.key)
        for partition, synopsis in (await asyncio.to_thread(shard.synopses)).items():
            known = view.graph(query.schema).version(partition)
            if known != synopsis.version:
                view.apply_synopsis(synopsis.schema, synopsis.changes_since(known))
                await asyncio.sleep(0)  # One takes some milliseconds.
        graph = view.graph(query.schema)
        last = view.sequences(query.schema.key).join(shard.published())
        owners = placement.owners(self._node.topology)
        reporters = {
            node.name for node in self._node.topology.nodes if view.has_reported(node.name)
        }

        def bounds() -> tuple[PathBounds, tuple[QuantileBounds, ...]]:
            return (
                graph.estimate(query),
                graph.quantiles(query, feature, shares) if feature and shares else (),
            )

        loop = asyncio.get_running_loop()
        count, quantiles = await loop.run_in_executor(self._executor, bounds)
        return ClusterEstimate(
            count=count,
            quantiles=quantiles,
            behind=sum(max(last[p] - count.covered[p], 0) for p in candidates),
            unheard=frozenset(
                p for p in candidates if owners[p] not in reporters | {self._node.name}
            ),
        )

    def _shares(self, share: PartitionScope) -> dict[str, PartitionScope]:
        """The scope of each node: the partitions that it owns."""
        by_node = placement.partitions_by_node(self._node.topology)
        owned = {node: mine & share.partitions for node, mine in by_node.items()}
        return {
            node: dataclasses.replace(share, partitions=mine)
            for node, mine in owned.items()
            if mine
        }

    async def _scatter_gather(
        self,
        shares: Mapping[str, PartitionScope],
        call: Callable[[str, PartitionScope], Coroutine[Any, Any, Answer]],
    ) -> tuple[dict[str, Answer], dict[str, GalileoError]]:
        """The answers of the nodes, and the errors of unreachable ones; raises other errors.

        Raises:
            PartitionMoved: another node has a partition now; the caller repeats the request.
        """
        live = self._node.live

        async def call_node(node: str) -> Answer | GalileoError:
            share = shares[node]
            try:
                return await while_owned(call(node, share), live, node, share.partitions)
            except UNREACHABLE_ERRORS as error:
                moved = as_moved(error, live)
                if moved is not None:
                    raise moved from error
                return error

        tasks = {node: asyncio.create_task(call_node(node)) for node in shares}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        results = {node: task.result() for node, task in tasks.items()}
        answers = {n: r for n, r in results.items() if not isinstance(r, GalileoError)}
        return answers, {n: r for n, r in results.items() if isinstance(r, GalileoError)}

    def _holders(self, question: ChildrenRequest) -> frozenset[int]:
        """The partitions that can hold paths below a vertex."""
        topology, schema = self._node.topology, question.schema
        cell, bucket = drill_down.place(schema, question.prefix, question.order)
        if cell is None:
            return placement.readable_partitions(topology)
        cells = np.array([cell], dtype=np.uint64)
        candidates = placement.candidates(topology, schema, (cells, cells + np.uint64(1)))
        if bucket is None:
            return candidates
        buckets = np.array([bucket], dtype=np.int64)
        [now] = placement.partitions_from_cells(topology, schema, cells, buckets).tolist()
        count = topology.partitions_per_group  # The place within the group is that of all epochs.
        return frozenset(p for p in candidates if p % count == now % count)

    def _groups_of(self, partitions: frozenset[int]) -> set[str]:
        topology = self._node.topology
        return {topology.groups[p // topology.partitions_per_group].name for p in partitions}


def _about(question: ChildrenRequest, share: PartitionScope) -> ChildrenRequest:
    return dataclasses.replace(question, partitions=share.partitions)


def _missing(
    shares: Mapping[str, PartitionScope], errors: Mapping[str, GalileoError]
) -> frozenset[int]:
    return frozenset(p for node in errors for p in shares[node].partitions)


def _join_cursors(cursors: Sequence[Cursor]) -> Cursor:
    joined = EMPTY_CURSOR
    for cursor in cursors:
        joined = joined.join(cursor)
    return joined


def _of(cursor: Cursor, partitions: frozenset[int]) -> Cursor:
    return Cursor({p: cursor[p] for p in partitions})
