"""Which commits of a dataset readers see."""

from __future__ import annotations

from galileo.cursor import Cursor
from galileo.node.analyses.analysis import DatasetAnalysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.peers import Findings, PartitionScope
from galileo.query import Query
from galileo.query.questions import Version


class VersionAnalysis(DatasetAnalysis[Version]):
    """Each owner says at once what it has in memory: partition, epoch, dropped and last commit."""

    def __init__(self, question: Version, query: Query) -> None:
        super().__init__(question, query)
        self._versions: list[tuple[int, ...]] = []

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        versions = graphs.shard(self.schema.key, scope).versions(scope.partitions)
        rows = [(p, each.epoch, each.dropped, each.last) for p, each in versions.items()]
        reached = Cursor({p: each.last for p, each in versions.items()})
        return Findings({"versions": rows}, reached=reached)

    def add(self, node: str, findings: Findings) -> None:
        self._versions += [tuple(row) for row in findings.facts["versions"]]

    def answer(self, asked: Round) -> Findings:
        facts = {"schema": self.schema.to_json(), "versions": sorted(self._versions)}
        return Findings(facts)
