"""The analytics service: decode, one call, encode."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable

from galileo.node.storage_node import StorageNode
from galileo.query import Query
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.quotas import QuotaResolver
from galileo.wire.codec import cursor_to_pb, table_messages
from galileo.wire.questions import question_from_pb
from galileo.wire.v1 import analytics_pb2


class AnalyticsServicer:
    def __init__(self, node: StorageNode, allowances: QuotaResolver | None = None) -> None:
        self._node = node
        self._allowances = allowances or QuotaResolver()

    @streaming
    async def Analyse(  # noqa: N802
        self, request: analytics_pb2.AnalyseRequest, context: Context
    ) -> AsyncGenerator[analytics_pb2.AnswerPart, None]:
        question = question_from_pb(request)
        query = await self._query(
            request.dataset,
            request.query,
            context,
            names=question.features,
            added=request.added,
        )
        answer = await self._node.analytics.answer(query, question)
        rows = [] if answer.table is None else await table_messages(answer.table)
        for chunk in rows[:-1]:
            yield analytics_pb2.AnswerPart(rows=chunk)
        tail = {
            "facts": answer.facts,
            "query": query.to_json(),
            "frontier": dict(answer.frontier),
            "missing": sorted(answer.missing),
            "partitions": sorted(answer.partitions),
            "ranges": answer.ranges,
        }
        last = rows[-1] if rows else b""
        yield analytics_pb2.AnswerPart(rows=last, tail_json=json.dumps(tail))

    @unary
    async def Estimate(  # noqa: N802
        self, request: analytics_pb2.EstimateRequest, context: Context
    ) -> analytics_pb2.EstimateReply:
        query = await self._query(request.dataset, request.query, context, names=[request.feature])
        result = await self._node.estimates.estimate(
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

    async def _query(
        self, dataset: str, text: str, context: Context, *, names: Iterable[str], added: int = 0
    ) -> Query:
        """The query of a request that names some features besides."""
        schema = await self._node.named(dataset)
        if added > schema.added:
            schema = await self._node.schema(schema.key, added=added)
        schema = await self._node.schema_with(schema, filter(None, names))
        query = await self._node.bind(text, schema)
        self._allowances.check_query(query, context)
        return query
