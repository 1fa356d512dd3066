"""Analytics on the metadata graphs: questions, what their answers say, estimates and the tree."""

from __future__ import annotations

import json
import operator
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from galileo.client import completeness
from galileo.client.analytics_results import (
    Aggregates,
    Children,
    ConditionStep,
    DatasetVersion,
    Estimate,
    FeatureSummary,
    NodeExplanation,
    Quantile,
    QueryExplanation,
    Vertex,
)
from galileo.client.graph_path import levels_of, parse_vertex, value_texts
from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.schema import Schema
from galileo.model.versions import PartitionVersion
from galileo.packing.arrow_streams import read_stream
from galileo.query import questions
from galileo.query.questions import Question
from galileo.wire.caller import Caller, Connection
from galileo.wire.codec import cursor_from_pb
from galileo.wire.questions import question_to_pb
from galileo.wire.services import ANALYTICS
from galileo.wire.v1 import analytics_pb2
from galileo.wire.value_json import values_from_json, values_to_json

CHILDREN = 10_000
ANALYTICS_S = 120.0
"""Deadline of one attempt, after which the nodes stop working on it."""
"""Children of a page by default."""

Result = TypeVar("Result", bound=completeness.Partial)


@dataclass(frozen=True, slots=True, eq=False)
class AnalyticsAnswer:
    """The answer to a question.

    Attributes:
        tail: what its last part says; see `analytics.proto`.
        rows: None of an answer without rows.
    """

    tail: Mapping[str, Any]
    rows: pa.Table | None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the question asks for besides rows."""
        facts: Mapping[str, Any] = self.tail["facts"]
        return facts

    @property
    def frontier(self) -> Cursor:
        return cursor_of(self.tail["frontier"])

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(self.tail["missing"])

    @property
    def about(self) -> dict[str, Any]:
        """What results of queries have in common."""
        return {"query": self.tail["query"], "frontier": self.frontier, "missing": self.missing}


def cursor_of(positions: Mapping[str, int]) -> Cursor:
    """The cursor of an object in JSON."""
    return Cursor({int(partition): sequence for partition, sequence in positions.items()})


async def analyse(
    caller: Caller,
    dataset: str,
    query: str,
    question: Question,
    decode: Callable[[AnalyticsAnswer], Result],
    *,
    require_complete: bool,
    added: int = 0,
) -> Result:
    """The result of a question about what matches a query.

    Args:
        caller: calls nodes.
        dataset: its name or key.
        query: CQL2.
        question: it.
        decode: makes the result of the answer.
        require_complete: whether a partial answer is an error.
        added: added features that the dataset has at least.
    """
    request = question_to_pb(question)
    request.dataset, request.query, request.added = dataset, query, added

    async def attempt(node: Connection) -> Result:
        return decode(await _answer(node, request))

    return await completeness.call(caller, attempt, require_complete=require_complete)


async def _answer(node: Connection, request: analytics_pb2.AnalyseRequest) -> AnalyticsAnswer:
    tables = list[pa.Table]()
    with node.stream(ANALYTICS, "Analyse", request, timeout_s=ANALYTICS_S) as stream:
        while True:
            part: analytics_pb2.AnswerPart = await stream.next()
            if part.rows:
                tables.append(read_stream(part.rows))
            if part.tail_json:
                rows = pa.concat_tables(tables) if tables else None
                return AnalyticsAnswer(json.loads(part.tail_json), rows)


def explanation_of(answer: AnalyticsAnswer, dataset: str) -> QueryExplanation:
    facts = answer.facts
    return QueryExplanation(
        dataset=dataset,
        query=answer.tail["query"],
        groups=tuple(facts["groups"]),
        partitions=tuple(answer.tail["partitions"]),
        pruned=cursor_of(facts["pruned"]),
        nodes=tuple(_node(entry) for entry in facts["nodes"]),
        plan_s=facts["plan_s"],
        total_s=facts["total_s"],
    )


def _node(entry: Mapping[str, Any]) -> NodeExplanation:
    scan = dict(entry.get("scan", {}))
    steps = tuple(ConditionStep(**step) for step in scan.pop("steps", ()))
    return NodeExplanation(
        entry["node"],
        entry["group"],
        tuple(entry["partitions"]),
        error=entry.get("error"),
        seconds=entry["seconds"],
        steps=steps,
        **scan,
    )


def nearest_question(
    *, latitude: float, longitude: float, k: int, within_m: float | None
) -> questions.FindNearest:
    """Raises `InputError` for values that a message cannot hold; the node checks the rest."""
    if not isinstance(k, int | np.integer) or not 0 <= k < 1 << 32:
        raise InputError(f"expected a number k of observations, got {k!r}", parameter="k")
    east = _number(longitude, "a longitude")
    return questions.FindNearest(
        _number(latitude, "a latitude"),
        east - 360.0 if 180.0 < east <= 360.0 else east,
        int(k),
        None if within_m is None else _number(within_m, "a greatest distance in metres"),
    )


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


def summary_question(feature: str, bins: int | Sequence[float] | None) -> questions.Summarise:
    """Raises `InputError` for values that a message cannot hold; the node checks the rest."""
    if isinstance(bins, int | np.integer):
        if not 0 <= bins < 1 << 32:
            raise InputError(f"expected a number of bins, got {bins}", parameter="bins")
        return questions.Summarise(feature, bins=int(bins))
    if bins is None:
        return questions.Summarise(feature)
    edges = _numbers(bins, "a whole number of bins, or their edges")
    return questions.Summarise(feature, edges=tuple(edges))


def summary_of(answer: AnalyticsAnswer, feature: str) -> FeatureSummary:
    facts = answer.facts
    return FeatureSummary(
        feature=feature,
        paths=facts["paths"],
        observations=facts["observations"],
        nulls=facts["missing"],
        minimum=facts["minimum"],
        maximum=facts["maximum"],
        total=facts["total"],
        edges=tuple(facts["edges"] or ()),
        counts=tuple(facts["counts"] or ()),
        **answer.about,
    )


def aggregates_of(answer: AnalyticsAnswer) -> Aggregates:
    partitions = tuple(answer.tail["partitions"])
    return Aggregates(
        table=answer.rows,
        partitions=partitions,
        ranges=answer.tail["ranges"],
        rank_error=answer.facts["rank_error"],
        **answer.about,
    )


async def version(caller: Caller, dataset: str, *, require_complete: bool) -> DatasetVersion:
    question = questions.Version()
    return await analyse(
        caller, dataset, "", question, _version_of, require_complete=require_complete
    )


def _version_of(answer: AnalyticsAnswer) -> DatasetVersion:
    facts = answer.facts
    versions = {partition: PartitionVersion(*rest) for partition, *rest in facts["versions"]}
    schema = Schema.from_json(facts["schema"])
    return DatasetVersion(schema, versions, answer.tail["ranges"], answer.missing)


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
        reply = await node.unary(ANALYTICS, "Estimate", request, timeout_s=ANALYTICS_S)
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
        question = questions.ListChildren(
            prefix_json=values_to_json(prefix),
            order=self.order,
            limit=limit,
            after_json="" if after is None else values_to_json([after]),
        )

        def page(answer: AnalyticsAnswer) -> Children:
            return Children(
                schema=self.schema,
                order=self.order,
                prefix=values_from_json(question.prefix_json),
                table=answer.rows,
                more=answer.facts["more"],
                missing=answer.missing,
                above=self.text(prefix),
            )

        return await analyse(
            self.caller,
            self.schema.key,
            "",
            question,
            page,
            require_complete=self.require_complete,
            added=self.schema.added,
        )

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
