"""Statistics of one feature, and its histogram."""

from __future__ import annotations

from dataclasses import replace

from galileo.graph.summary import Summary, check_summary, equal_edges, merge_summaries
from galileo.node.analyses.analysis import Analysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.peers import Findings, PartitionScope
from galileo.query import Query
from galileo.query.questions import Summarise


class SummariseAnalysis(Analysis[Summarise]):
    """Each owner summarises its paths; facts are those of `Summary`.

    Bins by number need the extremes of all nodes, so their edges are found by a first round and
    everything is counted by a second one, which sees the same commits.
    """

    def __init__(self, question: Summarise, query: Query) -> None:
        super().__init__(question, query)
        bins = question.bins if question.edges is None else question.edges
        check_summary(query.schema, question.feature, bins)
        self._parts: list[Summary] = []

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        shard, commits = graphs.begin(self.schema.key, scope)
        summary = await graphs.run(
            lambda check: shard.graph.summarise(
                self.query,
                self.question.feature,
                bins=self.question.edges,
                after=commits.after,
                until=commits.until,
                partitions=commits.partitions,
                check=check,
            )
        )
        return Findings(summary.facts(), reached=commits.until)

    def add(self, node: str, findings: Findings) -> None:
        self._parts.append(Summary.of(findings.facts))

    def answer(self, asked: Round) -> Findings:
        return Findings(merge_summaries(self._parts).facts())

    def next_round(self) -> SummariseAnalysis | None:
        """Raises InputError if bins of equal width would have to be infinite."""
        whole, bins = merge_summaries(self._parts), self.question.bins
        if bins is None or self.question.edges is not None:
            return None
        if whole.minimum is None or whole.maximum is None:
            return None
        edges = tuple(equal_edges(whole.minimum, whole.maximum, bins=bins).tolist())
        return SummariseAnalysis(replace(self.question, bins=None, edges=edges), self.query)
