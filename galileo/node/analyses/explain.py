"""How a query is answered, found by answering it."""

from __future__ import annotations

import dataclasses

from galileo.node.analyses.analysis import Analysis, Facts, NodeOutcome, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.peers import Findings, PartitionScope
from galileo.query import Query
from galileo.query.questions import Explain


class ExplainAnalysis(Analysis[Explain]):
    """Each owner scans its graph, and sends an `Explanation` of that in place of the labels.

    The answer has an entry for each node: its "scan", or the "error" why it has none.
    """

    shows_failures = True

    def __init__(self, question: Explain, query: Query) -> None:
        super().__init__(question, query)
        self._scans: dict[str, Facts] = {}

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        shard, commits = graphs.begin(self.schema.key, scope)
        explanation = await graphs.run(
            lambda check: shard.graph.explain(
                self.query,
                after=commits.after,
                until=commits.until,
                partitions=commits.partitions,
                check=check,
            )
        )
        return Findings(dataclasses.asdict(explanation), reached=commits.until)

    def add(self, node: str, findings: Findings) -> None:
        self._scans[node] = findings.facts

    def answer(self, asked: Round) -> Findings:
        return Findings(
            {
                "groups": asked.groups,
                "pruned": dict(asked.scope.after),
                "plan_s": asked.plan_s,
                "total_s": asked.total_s,
                "nodes": [self._entry(o) for o in sorted(asked.outcomes, key=lambda o: o.node)],
            }
        )

    def _entry(self, outcome: NodeOutcome) -> Facts:
        entry = {
            "node": outcome.node,
            "group": outcome.group,
            "partitions": sorted(outcome.partitions),
            "seconds": outcome.seconds,
        }
        if outcome.error is not None:
            return {**entry, "error": f"{outcome.error.message} [{outcome.error.kind}]"}
        return {**entry, "scan": self._scans[outcome.node]}
