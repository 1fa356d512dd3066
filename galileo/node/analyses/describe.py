"""What a dataset holds."""

from __future__ import annotations

from galileo.graph.description import Description, merge_descriptions
from galileo.node.analyses.analysis import DatasetAnalysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.peers import Findings, PartitionScope
from galileo.query import Query
from galileo.query.questions import Describe


class DescribeAnalysis(DatasetAnalysis[Describe]):
    """Each owner describes its partitions; facts are those of `Description`, and bytes of files.

    An owner looks through what its metadata graph has gathered since the last call, and reads no
    observation.
    """

    def __init__(self, question: Describe, query: Query) -> None:
        super().__init__(question, query)
        self._parts: list[Description] = []
        self._bytes = 0

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        shard, commits = graphs.begin(self.schema.key, scope)
        description = await graphs.run(
            lambda check: shard.graph.describe(scope.partitions, check=check)
        )
        journals = [j for p, j in shard.journals.items() if p in scope.partitions]
        stored_bytes = sum(journal.bytes_on_disk for journal in journals)
        return Findings({**description.facts(), "bytes": stored_bytes}, reached=commits.until)

    def add(self, node: str, findings: Findings) -> None:
        self._parts.append(Description.of(findings.facts))
        self._bytes += findings.facts["bytes"]

    def answer(self, asked: Round) -> Findings:
        whole = merge_descriptions(self.schema, self._parts)
        return Findings({**whole.facts(), "bytes": self._bytes})
