"""What a node believes about the others: their commits and their synopses, from heartbeats.

A belief can be late, never wrong: a synopsis says up to which commit it speaks, and up to there
it may spare work, never an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from galileo.cursor import ORIGIN, Cursor
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.synopsis import SynopsisDelta, Version
from galileo.model.schema import Schema
from galileo.model.windows import ClockStep
from galileo.node.log_regression import LogRegressions
from galileo.query import Query


class ClusterView:
    """Sequences and feature graphs of all datasets, as last heard.

    Attributes:
        losses: commits that were told of, and are not there any more.
    """

    def __init__(self) -> None:
        self.losses = LogRegressions()
        self._sequences: dict[str, Cursor] = {}
        self._graphs: dict[str, FeatureGraph] = {}
        self._heard: set[str] = set()
        self._clocks: dict[str, dict[int, ClockStep]] = {}

    def hear_node(self, node: str) -> None:
        """Remembers that a node has told what it has committed, if anything."""
        self._heard.add(node)

    def heard(self, node: str) -> bool:
        """Whether a node has told anything since this one started."""
        return node in self._heard

    def forget(self, dataset: str) -> None:
        """Forgets a dataset that was dropped."""
        for known in (self._sequences, self._graphs, self._clocks):
            known.pop(dataset, None)
        self.losses.forget(dataset)

    @property
    def all_sequences(self) -> Mapping[str, Cursor]:
        """The last commits of all datasets."""
        return self._sequences

    def sequences(self, dataset: str) -> Cursor:
        return self._sequences.get(dataset, ORIGIN)

    def hear_sequences(self, dataset: str, sequences: Cursor) -> bool:
        """Takes a node's report; whether it told something new."""
        before = self.sequences(dataset)
        self._sequences[dataset] = before.join(sequences)
        return self._sequences[dataset] != before

    def event_clock(self, dataset: str) -> tuple[ClockStep, ...]:
        """The newest time bucket of each partition, and which commit brought it."""
        return tuple(self._clocks.get(dataset, {}).values())

    def hear_event_clock(self, dataset: str, steps: Iterable[ClockStep]) -> None:
        """Takes a node's report of its newest time buckets; of each partition the last one."""
        self._clocks.setdefault(dataset, {}).update({one.partition: one for one in steps})

    def hear_synopsis(self, schema: Schema, delta: SynopsisDelta) -> Version:
        """Takes a synopsis' changes; what is now known of it, for acknowledgement."""
        return self.graph(schema).apply(delta)

    def graph(self, schema: Schema) -> FeatureGraph:
        if schema.key not in self._graphs:
            self._graphs[schema.key] = FeatureGraph(schema)
        return self._graphs[schema.key]

    def spared(
        self, query: Query, partitions: frozenset[int], *, after: Cursor | None = None
    ) -> Cursor:
        """Up to which commit of each partition the feature graph rules a match out.

        Args:
            query: bound to its dataset's schema.
            partitions: those that placement allows.
            after: what every commit past this holds is asked for, those included that retention
                has dropped since, of which some synopses know nothing. None: what is stored.
        """
        found = self.graph(query.schema).candidates(query, partitions)
        if after is None:
            return Cursor(found.spared)
        return Cursor({p: s for p, s in found.spared.items() if found.since[p] <= after[p]})
