"""Requests of nodes about the graphs of others: values and one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.description import Description
from galileo.graph.explain import Explanation
from galileo.graph.newest import LatestKey
from galileo.graph.summary import Summary
from galileo.model.grouping import Grouping
from galileo.model.schema import Schema
from galileo.model.versions import PartitionVersion
from galileo.query import Query
from galileo.query.nearest import NearestTo


@dataclass(frozen=True, slots=True)
class PartitionScope:
    """The scope of a request to one node: the commits (after, until] of some of its partitions.

    `until` None means: up to what is committed when the work starts.
    """

    partitions: frozenset[int]
    after: Cursor = EMPTY_CURSOR
    until: Cursor | None = None


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """Which paths, which indexed feature, and the bins of a histogram as in `graph.summary`."""

    query: Query
    feature: str
    bins: int | tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class AggregateRequest:
    """Which observations, and how they are grouped."""

    query: Query
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class LatestRequest:
    """Of which observations, and of each of which cells or values, the newest one is wanted."""

    query: Query
    key: LatestKey


@dataclass(frozen=True, slots=True)
class ChildrenRequest:
    """A page of the children of a vertex; see `graph.drill_down`.

    Attributes:
        schema: of the dataset.
        prefix: values from the root to the vertex.
        order: of the levels.
        limit: children of the page.
        after: the last value of the page before; None for the first.
        partitions: to answer for; a node answers for those that it owns.
    """

    schema: Schema
    prefix: tuple[Any, ...]
    order: tuple[str, ...]
    limit: int
    after: Any = None
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ExplainResult:
    explanation: Explanation
    reached: Cursor


@dataclass(frozen=True, slots=True)
class SummaryResult:
    summary: Summary
    reached: Cursor


@dataclass(frozen=True, slots=True)
class PartialGroups:
    """The groups of one node, a table of `graph.groups.GroupMerger.partial`."""

    table: pa.Table
    reached: Cursor


@dataclass(frozen=True, slots=True)
class Children:
    """A table of `graph.drill_down.children`, and whether more follow."""

    table: pa.Table
    more: bool


@dataclass(frozen=True, slots=True)
class NearestRows:
    """Observations, nearest first, of the observation schema."""

    observations: pa.Table
    reached: Cursor


@dataclass(frozen=True, slots=True)
class LatestRows:
    """The newest observations of one node, of the observation schema."""

    observations: pa.Table
    reached: Cursor


@dataclass(frozen=True, slots=True)
class Described:
    """A description, and the bytes of the files behind it."""

    description: Description
    bytes: int
    reached: Cursor


@dataclass(frozen=True, slots=True)
class Versioned:
    """The version of each partition of one node, or of all that answered."""

    partitions: Mapping[int, PartitionVersion]


class AnalyticsPeer(Protocol):
    """Calls to another node by name; each raises `Unavailable` where it cannot be reached."""

    async def explain(self, node: str, query: Query, share: PartitionScope) -> ExplainResult: ...

    async def summarise(
        self, node: str, question: SummaryRequest, share: PartitionScope
    ) -> SummaryResult: ...

    async def aggregate(
        self, node: str, question: AggregateRequest, share: PartitionScope
    ) -> PartialGroups: ...

    async def children(self, node: str, question: ChildrenRequest) -> Children: ...

    async def nearest(self, node: str, sought: NearestTo, share: PartitionScope) -> NearestRows: ...

    async def latest(
        self, node: str, question: LatestRequest, share: PartitionScope
    ) -> LatestRows: ...

    async def describe(self, node: str, schema: Schema, share: PartitionScope) -> Described: ...

    async def version(self, node: str, schema: Schema, share: PartitionScope) -> Versioned: ...
