"""What an analysis is: how one question is answered, at one node and by all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, InputError
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.cluster_scan import ClusterScans
from galileo.node.peers import Findings, PartitionScope
from galileo.query import Query
from galileo.query.questions import Question

EVERYTHING = "true"
"""The query that matches everything, as CQL2 JSON."""

Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How a node was asked.

    Attributes:
        node: its name.
        group: of the node.
        partitions: that it was asked about.
        seconds: until its answer was there.
        error: why there is none; None where there is one.
    """

    node: str
    group: str
    partitions: frozenset[int]
    seconds: float
    error: GalileoError | None


@dataclass(frozen=True, slots=True)
class Round:
    """How all nodes were asked.

    Attributes:
        scope: what about.
        groups: that can hold a match, by placement.
        outcomes: of each node with some of the partitions.
        plan_s: seconds for finding out which nodes to ask.
        total_s: seconds for everything.
    """

    scope: PartitionScope
    groups: Sequence[str]
    outcomes: Sequence[NodeOutcome]
    plan_s: float
    total_s: float


class Analysis(ABC, Generic[Q]):
    """Answers one question once: each owner with `local`, the node that was asked with the rest.

    Args:
        question: it.
        query: of the observations that it is about.

    Attributes:
        has_rows: whether findings have rows, which are merged in a thread.
        shows_failures: whether the answer names the nodes that failed. Else it waits for the node
            that takes over from one of them.

    Raises:
        InputError: the dataset has no answer to it.
    """

    has_rows: ClassVar[bool] = False
    shows_failures: ClassVar[bool] = False

    def __init__(self, question: Q, query: Query) -> None:
        self.question = question
        self.query = query
        self.schema = query.schema

    async def scope(self, scans: ClusterScans, topology: Topology) -> PartitionScope:
        """The partitions that matter to the answer, and the commits up to which they do not."""
        return await scans.scope(self.query)

    @abstractmethod
    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        """What a node finds in some of its partitions."""

    @abstractmethod
    def add(self, node: str, findings: Findings) -> None:
        """Adds what a node has found, with `has_rows` in a thread; one at a time."""

    @abstractmethod
    def answer(self, asked: Round) -> Findings:
        """What all nodes have found, whose answers were added; with `has_rows` in a thread."""

    def next_round(self) -> Analysis[Q] | None:
        """What has to be asked next about the same commits, for the answer; None if nothing."""
        return None


class DatasetAnalysis(Analysis[Q]):
    """Answers a question about a whole dataset."""

    def __init__(self, question: Q, query: Query) -> None:
        super().__init__(question, query)
        if query.to_json() != EVERYTHING:
            raise InputError(
                "expected no query with a question about the whole dataset, got "
                f"{query.to_json()[:200]}",
                parameter="query",
            )

    async def scope(self, scans: ClusterScans, topology: Topology) -> PartitionScope:
        return PartitionScope(placement.readable_partitions(topology))


Facts = Mapping[str, Any]
"""Of findings, in the types of JSON."""
