"""The last commits and synopses of all nodes, as this node knows them from heartbeats.

The view may be late, but is never wrong: a synopsis covers commits up to a sequence, and prunes
partitions only up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.synopsis import SynopsisDelta, SynopsisVersion
from galileo.model.schema import Schema
from galileo.model.windows import ClockStep
from galileo.node.log_regression import LogRegression, LogRegressions
from galileo.query import Query


class ClusterView:
    """Sequences and feature graphs of all datasets, as last reported.

    Args:
        on_loss: called with each log regression that is detected.

    Attributes:
        losses: nodes whose log went backwards.
    """

    def __init__(self, *, on_loss: Callable[[LogRegression], None] = lambda _: None) -> None:
        self.losses = LogRegressions(on_loss=on_loss)
        self._sequences: dict[str, Cursor] = {}
        self._graphs: dict[str, FeatureGraph] = {}
        self._reporters: set[str] = set()
        self._clocks: dict[str, dict[int, ClockStep]] = {}
        self._deletions: dict[str, tuple[Cursor, Cursor]] = {}

    def record_report(self, node: str) -> None:
        """Records that a node has reported its commits."""
        self._reporters.add(node)

    def has_reported(self, node: str) -> bool:
        """Whether a node has reported its commits since this one started."""
        return node in self._reporters

    def forget(self, dataset: str) -> None:
        """Removes a dropped dataset."""
        for known in (self._sequences, self._graphs, self._clocks, self._deletions):
            known.pop(dataset, None)
        self.losses.forget(dataset)

    @property
    def all_sequences(self) -> Mapping[str, Cursor]:
        """The last commits of all datasets."""
        return self._sequences

    def sequences(self, dataset: str) -> Cursor:
        return self._sequences.get(dataset, EMPTY_CURSOR)

    def update_sequences(
        self, dataset: str, sequences: Cursor, *, deletions: Cursor = EMPTY_CURSOR
    ) -> bool:
        """Joins reported sequences into the view; returns whether they changed it.

        Args:
            dataset: its key.
            sequences: the last commit of each partition.
            deletions: the last deletion of each partition that has one.
        """
        # First: who sees the commits looks for deletions up to there.
        self.update_deletions(dataset, deletions, until=sequences)
        before = self.sequences(dataset)
        self._sequences[dataset] = before.join(sequences)
        return self._sequences[dataset] != before

    def deletions(self, dataset: str) -> Cursor:
        """The last known deletion of each partition that has one."""
        return self._deletions.get(dataset, (EMPTY_CURSOR, EMPTY_CURSOR))[0]

    def with_deletions(self, dataset: str, after: Cursor, until: Cursor) -> frozenset[int]:
        """The partitions that may have a deletion between two cursors."""
        deletions, known = self._deletions.get(dataset, (EMPTY_CURSOR, EMPTY_CURSOR))
        changed = after.news(until)
        return frozenset(p for p in changed if deletions[p] > after[p] or known[p] < until[p])

    def deletions_within(self, dataset: str, until: Cursor) -> Cursor:
        """Up to where each partition may have deletions among the commits up to a cursor."""
        deletions, known = self._deletions.get(dataset, (EMPTY_CURSOR, EMPTY_CURSOR))
        return Cursor({p: min(deletions[p] if known[p] >= s else s, s) for p, s in until.items()})

    def update_deletions(self, dataset: str, deletions: Cursor, *, until: Cursor) -> None:
        """Joins reported deletions into the view.

        Args:
            dataset: its key.
            deletions: the last one of each partition that has one.
            until: commits up to which none is left out.
        """
        mine, known = self._deletions.get(dataset, (EMPTY_CURSOR, EMPTY_CURSOR))
        self._deletions[dataset] = mine.join(deletions), known.join(until)

    def event_clock(self, dataset: str) -> tuple[ClockStep, ...]:
        """The newest time bucket of each partition, and the commit that contains it."""
        return tuple(self._clocks.get(dataset, {}).values())

    def update_event_clock(self, dataset: str, steps: Iterable[ClockStep]) -> None:
        """Sets the newest time bucket of each reported partition."""
        self._clocks.setdefault(dataset, {}).update({step.partition: step for step in steps})

    def apply_synopsis(self, schema: Schema, delta: SynopsisDelta) -> SynopsisVersion:
        """Applies the changes of a synopsis; returns its version now, for the acknowledgement."""
        return self.graph(schema).apply(delta)

    def graph(self, schema: Schema) -> FeatureGraph:
        """The feature graph of a dataset, with the features of a schema at least."""
        graph = self._graphs.get(schema.key)
        if graph is None:
            graph = self._graphs[schema.key] = FeatureGraph(schema)
        elif graph.schema.added < schema.added:
            graph = self._graphs[schema.key] = graph.with_features(schema)
        return graph

    def pruned_until(
        self, query: Query, partitions: frozenset[int], *, after: Cursor | None = None
    ) -> Cursor:
        """The commit of each partition up to which the feature graph excludes a match.

        Args:
            query: bound to its dataset's schema.
            partitions: the candidates by placement.
            after: the caller needs every commit past this cursor, also those that retention has
                dropped since and that some synopses do not cover. None: only stored commits.
        """
        candidates = self.graph(query.schema).candidates(query, partitions)
        if after is None:
            return Cursor(candidates.pruned)
        return Cursor(
            {p: s for p, s in candidates.pruned.items() if candidates.since[p] <= after[p]}
        )
