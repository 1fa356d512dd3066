"""The analytics service: decode, one call, encode."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InputError
from galileo.graph.drill_down import default_order
from galileo.graph.explain import Explanation
from galileo.graph.summary import Summary
from galileo.labels import to_ipc
from galileo.model.grouping import WindowKey
from galileo.model.schema import Schema
from galileo.node.analytics_protocol import (
    AggregateRequest,
    ChildrenRequest,
    LatestRequest,
    SummaryRequest,
)
from galileo.node.cluster_analytics import ClusterAnalytics, NodeAnswer
from galileo.node.storage_node import StorageNode
from galileo.query import Query, parse_async
from galileo.query.nearest import NearestTo, Neighbours
from galileo.query.operands import DATETIME, GEOHASH
from galileo.rpc.analytics_client import described_to_pb, share_from_pb
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.quotas import QuotaResolver
from galileo.wire.codec import (
    cursor_to_pb,
    grouping_from_pb,
    key_from_pb,
    number_to_pb,
    row_messages,
    versions_to_pb,
)
from galileo.wire.status import error_to_pb
from galileo.wire.v1 import analytics_pb2
from galileo.wire.value_json import values_from_json

CHILDREN = 10_000
"""Default number of children of a page."""
DISTANCE = "distance_m"

_Asking: TypeAlias = (
    analytics_pb2.ExplainRequest
    | analytics_pb2.AggregateRequest
    | analytics_pb2.LatestRequest
    | analytics_pb2.SummariseRequest
    | analytics_pb2.EstimateRequest
    | analytics_pb2.NearestRequest
)
_Parts = AsyncGenerator[analytics_pb2.AnalyticsPart, None]


class AnalyticsServicer:
    def __init__(
        self,
        node: StorageNode,
        exploration: ClusterAnalytics,
        allowances: QuotaResolver | None = None,
    ) -> None:
        self._node = node
        self._exploration = exploration
        self._allowances = allowances or QuotaResolver()

    @unary
    async def Explain(  # noqa: N802
        self, request: analytics_pb2.ExplainRequest, context: Context
    ) -> analytics_pb2.ExplainReply:
        query = await self._query(request, context)
        if request.HasField("share"):
            share = share_from_pb(request.share)
            local = await self._exploration.local.explain(query, share)
            alone = analytics_pb2.ExplainedNode(node=self._node.name, scan=_scan(local.explanation))
            return analytics_pb2.ExplainReply(nodes=[alone], reached=cursor_to_pb(local.reached))
        result = await self._exploration.explain(query)
        return analytics_pb2.ExplainReply(
            query_json=query.to_json(),
            groups=result.groups,
            partitions=sorted(result.partitions),
            pruned=cursor_to_pb(result.pruned),
            plan_s=result.plan_s,
            total_s=result.total_s,
            nodes=[_explained(node) for node in result.nodes],
        )

    @unary
    async def Summarise(  # noqa: N802
        self, request: analytics_pb2.SummariseRequest, context: Context
    ) -> analytics_pb2.SummariseReply:
        query = await self._query(request, context, names=[request.feature])
        question = SummaryRequest(query, request.feature, _bins(request))
        if request.HasField("share"):
            local = await self._exploration.local.summarise(question, share_from_pb(request.share))
            return _summary(local.summary, query, frontier=local.reached)
        result = await self._exploration.summarise(question)
        return _summary(result.value, query, frontier=result.frontier, missing=result.missing)

    @streaming
    async def Aggregate(  # noqa: N802
        self, request: analytics_pb2.AggregateRequest, context: Context
    ) -> _Parts:
        grouping = grouping_from_pb(request)
        query = await self._query(request, context, names=grouping.features)
        question = AggregateRequest(query, grouping)
        if request.HasField("share"):
            local = await self._exploration.local.aggregate(question, share_from_pb(request.share))
            table = local.table
            tail = analytics_pb2.AnalyticsTail(frontier=cursor_to_pb(local.reached))
        else:
            result = await self._exploration.aggregate(question)
            table = result.value
            tail = analytics_pb2.AnalyticsTail(
                frontier=cursor_to_pb(result.frontier),
                missing=sorted(result.missing),
                partitions=sorted(result.candidates),
                ranges=result.ranges,
            )
        yield _head(query.schema, query_json=query.to_json())
        async for part in _rows(table):
            yield part
        yield analytics_pb2.AnalyticsPart(tail=tail)

    @unary
    async def Describe(  # noqa: N802
        self, request: analytics_pb2.DescribeRequest, context: Context
    ) -> analytics_pb2.DescribeReply:
        if request.HasField("share"):
            share = share_from_pb(request.share)
            schema = await self._node.narrowed(request.dataset, request.share.added)
            return described_to_pb(
                await self._exploration.local.describe(schema.key, share), schema
            )
        schema = await self._node.schema(request.dataset)
        result = await self._exploration.describe(schema)
        return described_to_pb(result.value, schema, missing=result.missing)

    @unary
    async def Version(  # noqa: N802
        self, request: analytics_pb2.VersionRequest, context: Context
    ) -> analytics_pb2.VersionReply:
        if request.HasField("share"):
            schema = await self._node.schema(request.dataset)
            local = await self._exploration.local.version(schema.key, share_from_pb(request.share))
            return versions_to_pb(local.partitions, schema)
        schema = await self._node.named(request.dataset)
        result = await self._exploration.version(schema)
        reply = versions_to_pb(result.value.partitions, schema)
        reply.ranges = result.ranges
        reply.missing.extend(sorted(result.missing))
        return reply

    @unary
    async def Estimate(  # noqa: N802
        self, request: analytics_pb2.EstimateRequest, context: Context
    ) -> analytics_pb2.EstimateReply:
        query = await self._query(request, context, names=[request.feature])
        result = await self._exploration.estimate(
            query, feature=request.feature or None, shares=list(request.quantiles)
        )
        return analytics_pb2.EstimateReply(
            query_json=query.to_json(),
            low=result.count.low,
            high=result.count.high,
            quantiles=[
                analytics_pb2.Quantile(share=q.share, low=q.low, high=q.high, value=q.value)
                for q in result.quantiles
            ],
            covered=cursor_to_pb(result.count.covered),
            behind=result.behind,
            missing=sorted(result.unheard),
            node=self._node.name,
        )

    @streaming
    async def Children(  # noqa: N802
        self, request: analytics_pb2.ChildrenRequest, context: Context
    ) -> _Parts:
        schema = await self._node.schema(request.dataset, added=request.added)
        schema = await self._node.schema_with(schema, set(request.order) - {GEOHASH, DATETIME})
        question = _children_of(schema, request)
        if request.local:
            page, missing = await self._exploration.local.children(question), frozenset[int]()
        else:
            result = await self._exploration.children(question)
            page, missing = result.value, result.missing
        yield _head(schema, order=question.order)
        async for part in _rows(page.table):
            yield part
        tail = analytics_pb2.AnalyticsTail(missing=sorted(missing), more=page.more)
        yield analytics_pb2.AnalyticsPart(tail=tail)

    @streaming
    async def Nearest(  # noqa: N802
        self, request: analytics_pb2.NearestRequest, context: Context
    ) -> _Parts:
        query = await self._query(request, context)
        sought = NearestTo(
            request.latitude,
            request.longitude,
            request.count,
            query,
            within_m=request.within_m if request.HasField("within_m") else math.inf,
        )
        missing = frozenset[int]()
        if request.HasField("share"):
            local = await self._exploration.local.nearest(sought, share_from_pb(request.share))
            table, frontier = local.observations, local.reached
        else:
            result = await self._exploration.nearest(sought)
            table, frontier, missing = _measured(result.value), result.frontier, result.missing
        yield _head(query.schema, query_json=query.to_json())
        async for part in _rows(table):
            yield part
        tail = analytics_pb2.AnalyticsTail(frontier=cursor_to_pb(frontier), missing=sorted(missing))
        yield analytics_pb2.AnalyticsPart(tail=tail)

    @streaming
    async def Latest(  # noqa: N802
        self, request: analytics_pb2.LatestRequest, context: Context
    ) -> _Parts:
        query = await self._query(request, context, names=[request.by.feature])
        key = key_from_pb(request.by)
        if isinstance(key, WindowKey):
            raise InputError("expected a cell or a feature, got a window", parameter="by")
        question, missing = LatestRequest(query, key), frozenset[int]()
        if request.HasField("share"):
            local = await self._exploration.local.latest(question, share_from_pb(request.share))
            table, frontier = local.observations, local.reached
        else:
            result = await self._exploration.latest(question)
            table, frontier, missing = result.value, result.frontier, result.missing
        yield _head(query.schema, query_json=query.to_json())
        async for part in _rows(table):
            yield part
        tail = analytics_pb2.AnalyticsTail(frontier=cursor_to_pb(frontier), missing=sorted(missing))
        yield analytics_pb2.AnalyticsPart(tail=tail)

    async def _query(
        self, request: _Asking, context: Context, *, names: Iterable[str] = ()
    ) -> Query:
        """The query of a request that names some features besides."""
        if not isinstance(request, analytics_pb2.EstimateRequest) and request.HasField("share"):
            schema = await self._node.narrowed(request.dataset, request.share.added)
            query = await parse_async(request.query, schema)
        else:
            schema = await self._node.named(request.dataset)
            schema = await self._node.schema_with(schema, filter(None, names))
            query = await self._node.bind(request.query, schema)
        self._allowances.check_query(query, context)
        return query


def _head(
    schema: Schema, *, query_json: str = "", order: Sequence[str] = ()
) -> analytics_pb2.AnalyticsPart:
    head = analytics_pb2.AnalyticsHead(
        schema_json=schema.to_json(), query_json=query_json, order=order
    )
    return analytics_pb2.AnalyticsPart(head=head)


async def _rows(table: pa.Table) -> _Parts:
    """Chunks of a table; at least one, which carries the columns."""
    for chunk in await row_messages(table) if len(table) else [to_ipc(table)]:
        yield analytics_pb2.AnalyticsPart(rows=chunk)


def _measured(neighbours: Neighbours) -> pa.Table:
    """Adds the distances as last column, under a name that no feature has."""
    name = DISTANCE
    while name in neighbours.observations.column_names:
        name += "_"
    distances = pa.field(name, pa.float64(), nullable=False)
    return neighbours.observations.append_column(distances, pa.array(neighbours.distance_m))


def _children_of(schema: Schema, request: analytics_pb2.ChildrenRequest) -> ChildrenRequest:
    after = values_from_json(request.after_json)
    return ChildrenRequest(
        schema,
        values_from_json(request.prefix_json),
        tuple(request.order) or default_order(schema),
        request.limit or CHILDREN,
        after[0] if after else None,
        frozenset(request.partitions),
    )


def _bins(request: analytics_pb2.SummariseRequest) -> int | tuple[float, ...] | None:
    kind = request.WhichOneof("bins")
    if kind is None:
        return None
    return request.count if kind == "count" else tuple(request.edges.edges)


def _explained(answer: NodeAnswer) -> analytics_pb2.ExplainedNode:
    reply = analytics_pb2.ExplainedNode(
        node=answer.node,
        group=answer.group,
        partitions=sorted(answer.partitions),
        seconds=answer.seconds,
    )
    if answer.explanation is not None:
        reply.scan.CopyFrom(_scan(answer.explanation))
    if answer.error is not None:
        reply.error.CopyFrom(error_to_pb(answer.error))
    return reply


def _scan(explanation: Explanation) -> analytics_pb2.GraphScan:
    return analytics_pb2.GraphScan(
        runs=explanation.runs,
        runs_pruned=explanation.runs_pruned,
        zones=explanation.zones,
        zones_scanned=explanation.zones_scanned,
        paths=explanation.paths,
        paths_examined=explanation.paths_examined,
        cells_tested=explanation.cells_tested,
        found=explanation.found,
        plan_s=explanation.plan_s,
        sift_s=explanation.sift_s,
        gather_s=explanation.gather_s,
        steps=[
            analytics_pb2.ExplainStep(condition=s.condition, tested=s.tested, passed=s.passed)
            for s in explanation.steps
        ],
    )


def _summary(
    summary: Summary,
    query: Query,
    *,
    frontier: Cursor = EMPTY_CURSOR,
    missing: frozenset[int] = frozenset(),
) -> analytics_pb2.SummariseReply:
    histogram = summary.histogram
    return analytics_pb2.SummariseReply(
        query_json=query.to_json(),
        paths=summary.paths,
        observations=summary.observations,
        nulls=summary.missing,
        minimum=number_to_pb(summary.minimum),
        maximum=number_to_pb(summary.maximum),
        total=summary.total,
        edges=[] if histogram is None else histogram.edges.tolist(),
        counts=[] if histogram is None else histogram.counts.tolist(),
        frontier=cursor_to_pb(frontier),
        missing=sorted(missing),
    )
