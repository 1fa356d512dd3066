"""Groups of observations, and their statistics."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from galileo.graph.group_merger import GroupMerger
from galileo.graph.groups import Groups
from galileo.node.analyses.analysis import Analysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import Findings, PartitionScope
from galileo.node.select import CursorRange, stored_rows
from galileo.query import Query
from galileo.query.questions import Aggregate


class AggregateAnalysis(Analysis[Aggregate]):
    """Each owner sends its groups, tables of `GroupMerger.partial`, which are merged as they come.

    Paths are counted where they determine the groups of their observations and whether these match;
    other observations are read. The answer is a table of `GroupMerger.answer`.
    """

    has_rows = True

    def __init__(self, question: Aggregate, query: Query) -> None:
        super().__init__(question, query)
        question.grouping.check(query.schema)
        self._merger = GroupMerger(question.grouping, query.schema)

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        """Raises Unavailable if retention dropped what was about to be read."""
        shard, commits = graphs.begin(self.schema.key, scope)
        merger = GroupMerger(self.question.grouping, self.schema)
        await graphs.run_steps(self._merge_all(merger, shard, commits))
        table = await graphs.run(lambda check: merger.partial())
        return Findings(table=table, reached=commits.until)

    def _merge_all(
        self, merger: GroupMerger, shard: DatasetShard, commits: CursorRange
    ) -> Iterator[None]:
        """Adds all groups of some commits to `merger`, a piece at each step."""
        query, grouping, graph = self.query, self.question.grouping, shard.graph

        def labels_to_read() -> Iterator[pa.RecordBatch | None]:
            for piece in graph.group_pieces(
                query,
                grouping,
                after=commits.after,
                until=commits.until,
                partitions=commits.partitions,
            ):
                if isinstance(piece, Groups):
                    merger.add_paths(piece, graph.texts)
                    yield None
                else:
                    yield piece

        tables = stored_rows(
            shard,
            query,
            columns=grouping.columns(query.schema),
            commits=commits,
            labels=labels_to_read() if grouping.is_in_graph(query.schema) else None,
        )
        for table in tables:
            if table is not None:
                merger.add_observations(table)
            yield

    def add(self, node: str, findings: Findings) -> None:
        """Raises InputError if there are too many groups."""
        self._merger.add_table(findings.table)

    def answer(self, asked: Round) -> Findings:
        table = self._merger.answer()
        return Findings(table=table, facts={"rank_error": self._merger.rank_error})
