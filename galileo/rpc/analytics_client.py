"""Analytics calls between nodes over gRPC; implements `node.analytics_protocol.AnalyticsPeer`."""

from __future__ import annotations

import dataclasses
from contextlib import aclosing
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR
from galileo.errors import Unavailable
from galileo.graph import drill_down
from galileo.graph.description import Description, Extent, TextCounts
from galileo.graph.explain import Explanation, Step
from galileo.graph.summary import Histogram, Summary
from galileo.model.schema import Schema
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
from galileo.packing.arrow_streams import read_stream
from galileo.query import Query
from galileo.query.nearest import NearestTo
from galileo.rpc.peers import GrpcPeers
from galileo.wire.codec import (
    cursor_from_pb,
    cursor_to_pb,
    grouping_to_pb,
    key_to_pb,
    number_from_pb,
    number_to_pb,
    table_of,
    versions_from_pb,
)
from galileo.wire.v1 import analytics_pb2
from galileo.wire.value_json import values_to_json


class GrpcAnalyticsPeer:
    """Calls analytics of other nodes."""

    def __init__(self, peers: GrpcPeers) -> None:
        self._peers = peers

    async def explain(self, node: str, query: Query, share: PartitionScope) -> ExplainResult:
        request = analytics_pb2.ExplainRequest(
            dataset=query.schema.key, query=query.to_json(), share=share_to_pb(share, query.schema)
        )
        reply: analytics_pb2.ExplainReply = await self._peers.explore(node, "Explain", request)
        scan = reply.nodes[0].scan
        return ExplainResult(_explanation(scan), cursor_from_pb(reply.reached))

    async def summarise(
        self, node: str, question: SummaryRequest, share: PartitionScope
    ) -> SummaryResult:
        request = analytics_pb2.SummariseRequest(
            dataset=question.query.schema.key,
            query=question.query.to_json(),
            feature=question.feature,
            share=share_to_pb(share, question.query.schema),
        )
        if isinstance(question.bins, int):
            request.count = question.bins
        elif question.bins is not None:
            request.edges.edges.extend(question.bins)
        reply: analytics_pb2.SummariseReply = await self._peers.explore(node, "Summarise", request)
        return SummaryResult(_summary(reply), cursor_from_pb(reply.frontier))

    async def aggregate(
        self, node: str, question: AggregateRequest, share: PartitionScope
    ) -> PartialGroups:
        request = grouping_to_pb(question.grouping)
        request.dataset = question.query.schema.key
        request.query = question.query.to_json()
        request.share.CopyFrom(share_to_pb(share, question.query.schema))
        chunks, tail = await self._parts(node, "Aggregate", request)
        table = pa.concat_tables([read_stream(chunk) for chunk in chunks])
        return PartialGroups(table, cursor_from_pb(tail.frontier))

    async def children(self, node: str, question: ChildrenRequest) -> Children:
        request = analytics_pb2.ChildrenRequest(
            dataset=question.schema.key,
            prefix_json=values_to_json(question.prefix),
            order=question.order,
            limit=question.limit,
            after_json="" if question.after is None else values_to_json((question.after,)),
            local=True,
            partitions=sorted(question.partitions),
            added=question.schema.added,
        )
        chunks, tail = await self._parts(node, "Children", request)
        level = drill_down.level_below(question.schema, question.prefix, question.order)
        return Children(
            table_of(chunks, drill_down.empty_level(question.schema, level).schema), tail.more
        )

    async def nearest(self, node: str, sought: NearestTo, share: PartitionScope) -> NearestRows:
        request = analytics_pb2.NearestRequest(
            dataset=sought.schema.key,
            query=sought.among.to_json(),
            latitude=sought.latitude,
            longitude=sought.longitude,
            count=sought.count,
            within_m=sought.within_m,
            share=share_to_pb(share, sought.schema),
        )
        chunks, tail = await self._parts(node, "Nearest", request)
        table: pa.Table = table_of(chunks, sought.schema.observation_schema)
        return NearestRows(table, cursor_from_pb(tail.frontier))

    async def latest(self, node: str, question: LatestRequest, share: PartitionScope) -> LatestRows:
        request = analytics_pb2.LatestRequest(
            dataset=question.query.schema.key,
            query=question.query.to_json(),
            by=key_to_pb(question.key),
            share=share_to_pb(share, question.query.schema),
        )
        chunks, tail = await self._parts(node, "Latest", request)
        table: pa.Table = table_of(chunks, question.query.schema.observation_schema)
        return LatestRows(table, cursor_from_pb(tail.frontier))

    async def describe(self, node: str, schema: Schema, share: PartitionScope) -> Described:
        request = analytics_pb2.DescribeRequest(
            dataset=schema.key, share=share_to_pb(share, schema)
        )
        reply: analytics_pb2.DescribeReply = await self._peers.explore(node, "Describe", request)
        return described_from_pb(reply, schema)

    async def version(self, node: str, schema: Schema, share: PartitionScope) -> Versioned:
        request = analytics_pb2.VersionRequest(dataset=schema.key, share=share_to_pb(share, schema))
        reply: analytics_pb2.VersionReply = await self._peers.explore(node, "Version", request)
        return Versioned(versions_from_pb(reply))

    async def _parts(
        self, node: str, method: str, request: Any
    ) -> tuple[list[bytes], analytics_pb2.AnalyticsTail]:
        chunks: list[bytes] = []
        async with aclosing(self._peers.explore_parts(node, method, request)) as parts:
            async for part in parts:
                if part.HasField("tail"):
                    return chunks, part.tail
                if part.rows:
                    chunks.append(part.rows)
        raise Unavailable(f"the answer of node {node} is incomplete", node=node)


def share_to_pb(share: PartitionScope, schema: Schema) -> analytics_pb2.PartitionScope:
    return analytics_pb2.PartitionScope(
        partitions=sorted(share.partitions),
        after=cursor_to_pb(share.after),
        until=cursor_to_pb(share.until or EMPTY_CURSOR),
        bounded=share.until is not None,
        added=schema.added,
    )


def share_from_pb(value: analytics_pb2.PartitionScope) -> PartitionScope:
    return PartitionScope(
        frozenset(value.partitions),
        cursor_from_pb(value.after),
        cursor_from_pb(value.until) if value.bounded else None,
    )


def _explanation(value: analytics_pb2.GraphScan) -> Explanation:
    return Explanation(
        runs=value.runs,
        runs_pruned=value.runs_pruned,
        zones=value.zones,
        zones_scanned=value.zones_scanned,
        paths=value.paths,
        paths_examined=value.paths_examined,
        cells_tested=value.cells_tested,
        steps=tuple(Step(step.condition, step.tested, step.passed) for step in value.steps),
        found=value.found,
        plan_s=value.plan_s,
        sift_s=value.sift_s,
        gather_s=value.gather_s,
    )


def _summary(value: analytics_pb2.SummariseReply) -> Summary:
    valued = value.observations - value.nulls
    return Summary(
        paths=value.paths,
        observations=value.observations,
        missing=value.nulls,
        minimum=number_from_pb(value.minimum),
        maximum=number_from_pb(value.maximum),
        total=value.total,
        mean=value.total / valued if valued else None,
        histogram=Histogram(
            np.array(value.edges, dtype=np.float64), np.array(value.counts, dtype=np.int64)
        )
        if value.edges
        else None,
    )


def described_to_pb(
    described: Described, schema: Schema, *, missing: frozenset[int] = frozenset()
) -> analytics_pb2.DescribeReply:
    description, extent = described.description, described.description.extent
    reply = analytics_pb2.DescribeReply(
        observations=description.observations,
        paths=description.paths,
        bytes=described.bytes,
        frontier=cursor_to_pb(described.reached),
        missing=sorted(missing),
    )
    if extent is not None:
        reply.extent.CopyFrom(analytics_pb2.Extent(**dataclasses.asdict(extent)))
    for feature in schema.indexed:
        value = reply.features.add(name=feature.name)
        if feature.type == "text":
            texts = description.texts[feature.name]
            value.nulls, value.many_values = texts.nulls, texts.has_more
            for text, count in texts.counts.items():
                value.values.add(value=text, observations=count)
            continue
        numbers = description.numbers[feature.name]
        value.nulls, value.total = numbers.missing, numbers.total
        value.minimum.CopyFrom(number_to_pb(numbers.minimum) or analytics_pb2.Number())
        value.maximum.CopyFrom(number_to_pb(numbers.maximum) or analytics_pb2.Number())
    return reply


def described_from_pb(reply: analytics_pb2.DescribeReply, schema: Schema) -> Described:
    extent = reply.extent
    values = {value.name: value for value in reply.features}
    description = Description(
        observations=reply.observations,
        paths=reply.paths,
        extent=Extent(
            extent.south, extent.west, extent.north, extent.east, extent.start_us, extent.end_us
        )
        if reply.HasField("extent")
        else None,
        numbers={
            feature.name: _numbers(values[feature.name], reply)
            for feature in schema.indexed
            if feature.type != "text"
        },
        texts={
            feature.name: TextCounts(
                values[feature.name].nulls,
                {counted.value: counted.observations for counted in values[feature.name].values},
                values[feature.name].many_values,
            )
            for feature in schema.indexed
            if feature.type == "text"
        },
    )
    return Described(description, reply.bytes, cursor_from_pb(reply.frontier))


def _numbers(value: analytics_pb2.FeatureStatistics, reply: analytics_pb2.DescribeReply) -> Summary:
    valued = reply.observations - value.nulls
    return Summary(
        paths=reply.paths,
        observations=reply.observations,
        missing=value.nulls,
        minimum=number_from_pb(value.minimum),
        maximum=number_from_pb(value.maximum),
        total=value.total,
        mean=value.total / valued if valued else None,
        histogram=None,
    )
