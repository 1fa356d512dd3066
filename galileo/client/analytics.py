"""Analytics on the metadata graphs: explain, statistics, children, estimates, nearest."""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.client import completeness
from galileo.client.analytics_results import (
    Aggregates,
    Children,
    ConditionStep,
    Estimate,
    FeatureSummary,
    LatestResult,
    NearestResult,
    NodeExplanation,
    Quantile,
    QueryExplanation,
    Vertex,
)
from galileo.client.graph_path import levels_of, parse_vertex, value_texts
from galileo.errors import InputError
from galileo.model.grouping import Grouping, Key
from galileo.model.schema import Schema
from galileo.model.versions import DatasetVersion
from galileo.packing.arrow_streams import read_stream
from galileo.wire.caller import Caller, Connection
from galileo.wire.codec import (
    cursor_from_pb,
    grouping_to_pb,
    key_to_pb,
    number_from_pb,
    versions_from_pb,
)
from galileo.wire.services import ANALYTICS
from galileo.wire.v1 import analytics_pb2
from galileo.wire.value_json import values_from_json, values_to_json

CHILDREN = 10_000
"""Children of a page by default."""


async def explain(
    caller: Caller, dataset: str, query: str, *, require_complete: bool
) -> QueryExplanation:
    request = analytics_pb2.ExplainRequest(dataset=dataset, query=query)

    async def attempt(node: Connection) -> QueryExplanation:
        reply = await analytics_of(node, "Explain", request)
        return QueryExplanation(
            dataset=dataset,
            query=reply.query_json,
            groups=tuple(reply.groups),
            partitions=tuple(reply.partitions),
            pruned=cursor_from_pb(reply.pruned),
            nodes=tuple(_node(value) for value in reply.nodes),
            plan_s=reply.plan_s,
            total_s=reply.total_s,
        )

    return await completeness.call(caller, attempt, require_complete=require_complete)


def _node(value: analytics_pb2.ExplainedNode) -> NodeExplanation:
    node = (value.node, value.group, tuple(value.partitions))
    if value.HasField("error"):
        failure = f"{value.error.message} [{value.error.kind}]"
        return NodeExplanation(*node, error=failure, seconds=value.seconds)
    scan = value.scan
    return NodeExplanation(
        *node,
        seconds=value.seconds,
        runs=scan.runs,
        runs_pruned=scan.runs_pruned,
        zones=scan.zones,
        zones_scanned=scan.zones_scanned,
        paths=scan.paths,
        paths_examined=scan.paths_examined,
        cells_tested=scan.cells_tested,
        found=scan.found,
        plan_s=scan.plan_s,
        sift_s=scan.sift_s,
        gather_s=scan.gather_s,
        steps=tuple(ConditionStep(s.condition, s.tested, s.passed) for s in scan.steps),
    )


async def nearest(
    caller: Caller, request: analytics_pb2.NearestRequest, *, require_complete: bool
) -> NearestResult:
    async def attempt(node: Connection) -> NearestResult:
        head, table, tail = await _collect(node, "Nearest", request)
        frontier = cursor_from_pb(tail.frontier)
        return NearestResult(table, head.query_json, frontier, tuple(tail.missing))

    return await completeness.call(caller, attempt, require_complete=require_complete)


def nearest_request(
    dataset: str,
    query: str,
    *,
    latitude: float,
    longitude: float,
    k: int,
    within_m: float | None,
) -> analytics_pb2.NearestRequest:
    """Raises `InputError` for values that the message cannot hold; the node checks the rest."""
    if not isinstance(k, int | np.integer) or not 0 <= k < 1 << 32:
        raise InputError(f"expected a number k of observations, got {k!r}", parameter="k")
    east = _number(longitude, "a longitude")
    request = analytics_pb2.NearestRequest(
        dataset=dataset,
        query=query,
        latitude=_number(latitude, "a latitude"),
        longitude=east - 360.0 if 180.0 < east <= 360.0 else east,
        count=int(k),
    )
    if within_m is not None:
        request.within_m = _number(within_m, "a greatest distance in metres")
    return request


def _number(value: Any, about: str) -> float:
    try:
        return float(operator.pos(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"expected a number as {about}, got {value!r}") from error


def _numbers(values: Any, expected: str) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise InputError(f"expected {expected}, got {values!r}") from error


async def summarise(
    caller: Caller,
    dataset: str,
    query: str,
    *,
    feature: str,
    bins: int | Sequence[float] | None,
    require_complete: bool,
) -> FeatureSummary:
    request = analytics_pb2.SummariseRequest(dataset=dataset, query=query, feature=feature)
    if isinstance(bins, int | np.integer):
        if not 0 <= bins < 1 << 32:
            raise InputError(f"expected a number of bins, got {bins}", parameter="bins")
        request.count = int(bins)
    elif bins is not None:
        request.edges.edges.extend(_numbers(bins, "a whole number of bins, or their edges"))

    async def attempt(node: Connection) -> FeatureSummary:
        reply = await analytics_of(node, "Summarise", request)
        return _summary(reply, feature)

    return await completeness.call(caller, attempt, require_complete=require_complete)


def _summary(reply: analytics_pb2.SummariseReply, feature: str) -> FeatureSummary:
    return FeatureSummary(
        feature=feature,
        query=reply.query_json,
        paths=reply.paths,
        observations=reply.observations,
        nulls=reply.nulls,
        minimum=number_from_pb(reply.minimum),
        maximum=number_from_pb(reply.maximum),
        total=reply.total,
        edges=tuple(reply.edges),
        counts=tuple(reply.counts),
        frontier=cursor_from_pb(reply.frontier),
        missing=tuple(reply.missing),
    )


async def aggregate(
    caller: Caller, dataset: str, query: str, *, grouping: Grouping, require_complete: bool
) -> Aggregates:
    request = grouping_to_pb(grouping)
    request.dataset, request.query = dataset, query

    async def attempt(node: Connection) -> Aggregates:
        head, table, tail = await _collect(node, "Aggregate", request)
        frontier = cursor_from_pb(tail.frontier)
        return Aggregates(
            table=table,
            query=head.query_json,
            frontier=frontier,
            missing=tuple(tail.missing),
            partitions=tuple(tail.partitions),
            ranges=tail.ranges,
        )

    return await completeness.call(caller, attempt, require_complete=require_complete)


async def latest(
    caller: Caller, dataset: str, query: str, *, by: Key, require_complete: bool
) -> LatestResult:
    request = analytics_pb2.LatestRequest(dataset=dataset, query=query, by=key_to_pb(by))

    async def attempt(node: Connection) -> LatestResult:
        head, table, tail = await _collect(node, "Latest", request)
        frontier = cursor_from_pb(tail.frontier)
        return LatestResult(table, head.query_json, frontier, tuple(tail.missing))

    return await completeness.call(caller, attempt, require_complete=require_complete)


async def version(caller: Caller, dataset: str, *, require_complete: bool) -> DatasetVersion:
    request = analytics_pb2.VersionRequest(dataset=dataset)

    async def attempt(node: Connection) -> DatasetVersion:
        reply: analytics_pb2.VersionReply = await analytics_of(node, "Version", request)
        schema = Schema.from_json(reply.schema_json)
        return DatasetVersion(schema, versions_from_pb(reply), reply.ranges, tuple(reply.missing))

    return await completeness.call(caller, attempt, require_complete=require_complete)


async def estimate(
    caller: Caller,
    dataset: str,
    query: str,
    *,
    feature: str | None,
    quantiles: Sequence[float],
    require_complete: bool,
) -> Estimate:
    request = analytics_pb2.EstimateRequest(
        dataset=dataset,
        query=query,
        feature=feature or "",
        quantiles=_numbers(quantiles, "a list of quantiles"),
    )

    async def attempt(node: Connection) -> Estimate:
        reply = await analytics_of(node, "Estimate", request)
        return Estimate(
            query=reply.query_json,
            low=reply.low,
            high=reply.high,
            feature=feature,
            quantiles=tuple(Quantile(q.share, q.low, q.high, q.value) for q in reply.quantiles),
            frontier=cursor_from_pb(reply.covered),
            behind=reply.behind,
            missing=tuple(reply.missing),
            node=reply.node,
        )

    return await completeness.call(caller, attempt, require_complete=require_complete)


@dataclass(frozen=True, slots=True)
class Tree:
    """The metadata graph of a dataset with its levels in some order."""

    caller: Caller
    schema: Schema
    order: tuple[str, ...]
    require_complete: bool = False

    @classmethod
    def of(
        cls,
        caller: Caller,
        schema: Schema,
        order: Sequence[str] | None,
        *,
        require_complete: bool,
    ) -> Tree:
        if isinstance(order, str):
            raise InputError(
                f"expected a list of levels, got the text {order!r}", parameter="order"
            )
        levels = levels_of(schema) if order is None else tuple(order)
        return cls(caller, schema, levels, require_complete)

    def values(self, vertex: str | Sequence[Any]) -> tuple[Any, ...]:
        """The values from the root to a vertex, which is such values or their text."""
        if isinstance(vertex, str):
            return parse_vertex(vertex, self.schema, order=self.order)
        return tuple(vertex)

    async def children(
        self, prefix: tuple[Any, ...], *, limit: int = CHILDREN, after: Any = None
    ) -> Children:
        """A page of the children of a vertex."""
        if not 1 <= limit < 1 << 32:
            raise InputError(
                f"expected a limit of at least 1 child, got {limit!r}", parameter="limit"
            )
        request = analytics_pb2.ChildrenRequest(
            dataset=self.schema.key,
            added=self.schema.added,
            prefix_json=values_to_json(prefix),
            order=self.order,
            limit=limit,
            after_json="" if after is None else values_to_json([after]),
        )

        async def attempt(node: Connection) -> Children:
            _, table, tail = await _collect(node, "Children", request)
            return Children(
                schema=self.schema,
                order=self.order,
                prefix=values_from_json(request.prefix_json),
                table=table,
                more=tail.more,
                missing=tuple(tail.missing),
                above=self.text(prefix),
            )

        return await completeness.call(self.caller, attempt, require_complete=self.require_complete)

    async def walk(
        self, prefix: tuple[Any, ...], *, depth: int | None
    ) -> AsyncGenerator[Vertex, None]:
        """All vertices below one, in preorder; fetches the pages on the way."""
        if depth is not None and (not isinstance(depth, int) or depth < 1):
            raise InputError(
                f"expected a depth of at least 1 level, got {depth!r}", parameter="depth"
            )
        deepest = len(self.order) if depth is None else min(len(self.order), len(prefix) + depth)
        pages = [await self.children(prefix)]
        waiting = [pages[0].vertices()]
        while waiting:
            vertex = next(waiting[-1], None)
            if vertex is not None:
                yield vertex
                if len(vertex.path) < deepest:
                    pages.append(await self.children(vertex.path))
                    waiting.append(pages[-1].vertices())
            elif pages[-1].more:
                pages[-1] = await self.children(pages[-1].prefix, after=pages[-1].last)
                waiting[-1] = pages[-1].vertices()
            else:
                pages.pop()
                waiting.pop()

    def text(self, path: tuple[Any, ...]) -> str:
        """The text of a vertex."""
        texts = [_text(v, self.schema, level) for v, level in zip(path, self.order, strict=False)]
        return "/".join(texts)


def _text(value: Any, schema: Schema, level: str) -> str:
    feature = schema.feature(level)
    if feature is None:
        [text] = values_from_json(values_to_json([value]))
        return str(text)
    column = pa.array([value], feature.arrow_type)
    return str(value_texts(column, schema, level=level)[0].as_py())


async def analytics_of(node: Connection, method: str, request: Any) -> Any:
    """The answer of a node's analytics service."""
    return await node.unary(ANALYTICS, method, request, timeout_s=node.options.analytics_s)


async def _collect(
    node: Connection, method: str, request: Any
) -> tuple[analytics_pb2.AnalyticsHead, pa.Table, analytics_pb2.AnalyticsTail]:
    """The parts of a streamed answer."""
    head, tables = analytics_pb2.AnalyticsHead(), []
    timeout_s = node.options.analytics_s
    with node.stream(ANALYTICS, method, request, timeout_s=timeout_s) as stream:
        while True:
            part = await stream.next()
            kind = part.WhichOneof("part")
            if kind == "head":
                head = part.head
            elif kind == "rows":
                tables.append(read_stream(part.rows))
            else:
                return head, pa.concat_tables(tables), part.tail
