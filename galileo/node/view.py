"""What a node believes about the others: their commits and their synopses, from heartbeats.

A belief can be late, never wrong: a synopsis says up to which commit it speaks, and it may
spare a partition a question only up to there.
"""

from __future__ import annotations

from galileo.clock import Clock
from galileo.cursor import ORIGIN, Cursor
from galileo.graph.feature import FeatureGraph
from galileo.graph.synopsis import SynopsisDelta, Version
from galileo.model.schema import Schema
from galileo.query import Query

SYNOPSIS_AGE_MAX_S = 2.0


class ClusterView:
    """Sequences and feature graphs of all datasets, as last heard."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sequences: dict[str, Cursor] = {}
        self._graphs: dict[str, FeatureGraph] = {}
        self._heard: dict[tuple[str, int], float] = {}

    def sequences(self, dataset: str) -> Cursor:
        return self._sequences.get(dataset, ORIGIN)

    def hear_sequences(self, dataset: str, sequences: Cursor) -> bool:
        """Takes a node's report; whether it told something new."""
        before = self.sequences(dataset)
        self._sequences[dataset] = before.join(sequences)
        now = self._clock.monotonic()
        for partition in sequences:
            self._heard[dataset, partition] = now
        return self._sequences[dataset] != before

    def hear_synopsis(self, schema: Schema, delta: SynopsisDelta) -> Version:
        """Takes a synopsis' changes; what is now known of it, for acknowledgement."""
        return self.graph(schema).apply(delta)

    def graph(self, schema: Schema) -> FeatureGraph:
        if schema.name not in self._graphs:
            self._graphs[schema.name] = FeatureGraph(schema)
        return self._graphs[schema.name]

    def spared(self, query: Query, partitions: frozenset[int], *, at_least: Cursor) -> Cursor:
        """Partitions that need not be asked, each with the commit up to which that is certain.

        Args:
            query: bound to its dataset's schema.
            partitions: those that placement allows.
            at_least: commits that the answer must speak about.
        """
        found = self.graph(query.schema).candidates(query, partitions).spared
        oldest = self._clock.monotonic() - SYNOPSIS_AGE_MAX_S
        return Cursor(
            {
                partition: sequence
                for partition, sequence in found.items()
                if sequence >= at_least[partition]
                and self._heard.get((query.schema.name, partition), float("-inf")) >= oldest
            }
        )
