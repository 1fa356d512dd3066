"""The newest observation of each cell, or of each value of a feature."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from galileo.errors import Unavailable
from galileo.graph.newest import NewestBuckets, NewestMerger, check_key
from galileo.model.grouping import Grouping
from galileo.node import query_limits
from galileo.node.analyses.analysis import Analysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import Findings, PartitionScope
from galileo.node.select import CursorRange, stored_rows
from galileo.query import Query
from galileo.query.questions import Latest


class LatestAnalysis(Analysis[Latest]):
    """Each owner sends its newest observations; the answer is a table of `NewestMerger.answer`."""

    has_rows = True

    def __init__(self, question: Latest, query: Query) -> None:
        super().__init__(question, query)
        check_key(question.key, query.schema)
        self._merger = NewestMerger(question.key, query.schema)

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        """Raises Unavailable if retention dropped what was about to be read."""
        shard, commits = graphs.begin(self.schema.key, scope)
        merger = NewestMerger(self.question.key, self.schema)
        await graphs.run_steps(self._merge_newest(merger, shard, commits))
        table = await graphs.run(lambda check: merger.partial())
        return Findings(table=table, reached=commits.until)

    def _merge_newest(
        self, merger: NewestMerger, shard: DatasetShard, commits: CursorRange
    ) -> Iterator[None]:
        """Adds the newest observations of some commits, and others, a piece at each step.

        Raises:
            Unavailable: retention dropped commits meanwhile, so that others may have the newest.
        """
        query, key, graph = self.query, self.question.key, shard.graph
        dropped = _dropped(shard, commits)

        def labels() -> Iterator[pa.RecordBatch | None]:
            return graph.scan_pieces(
                query,
                labels_max=query_limits.LABELS_PER_PART,
                after=commits.after,
                until=commits.until,
                partitions=commits.partitions,
            )

        wanted: Iterator[pa.RecordBatch | None] | None = None
        if Grouping((key,)).is_in_graph(self.schema):
            buckets = NewestBuckets(key, query)
            for piece in labels():
                if piece is not None:
                    buckets.add(piece)
                yield
            wanted = (None if piece is None else buckets.wanted(piece) for piece in labels())
        columns = tuple(self.schema.observation_schema.names)
        for table in stored_rows(shard, query, columns=columns, commits=commits, labels=wanted):
            if table is not None:
                merger.add(table)
            yield
        if _dropped(shard, commits) != dropped:
            raise Unavailable(
                "retention dropped observations that were about to be read; try again"
            )

    def add(self, node: str, findings: Findings) -> None:
        """Raises InputError if there are too many observations."""
        self._merger.add(findings.table)

    def answer(self, asked: Round) -> Findings:
        return Findings(table=self._merger.answer())


def _dropped(shard: DatasetShard, commits: CursorRange) -> list[int]:
    return [version.dropped for version in shard.versions(sorted(commits.partitions)).values()]
