"""The vertices below one of the metadata graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError
from galileo.graph import drill_down
from galileo.graph.run_scan import Check
from galileo.node.analyses.analysis import DatasetAnalysis, Round
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.cluster_scan import ClusterScans
from galileo.node.peers import Findings, PartitionScope
from galileo.query import Query
from galileo.query.questions import ListChildren
from galileo.wire.value_json import values_from_json

CHILDREN = 10_000
"""Children of a page, if its limit is not named."""
CHILDREN_MAX = 100_000
"""Children of one page."""


class ChildrenAnalysis(DatasetAnalysis[ListChildren]):
    """Each owner sends its first children, a table of `drill_down.children`, and if it has "more".

    The first children of all are among the first of each node, so pages can be put together. A
    vertex that names its cell asks one group, one that names time too one node.
    """

    has_rows = True

    def __init__(self, question: ListChildren, query: Query) -> None:
        """Raises InputError if the order, a value or the limit makes no sense."""
        order = question.order or drill_down.default_order(query.schema)
        question = replace(question, order=order, limit=question.limit or CHILDREN)
        super().__init__(question, query)
        self._prefix = values_from_json(question.prefix_json)
        after = values_from_json(question.after_json)
        self._after = after[0] if after else None
        level = drill_down.level_below(query.schema, self._prefix, order)
        if not 1 <= question.limit <= CHILDREN_MAX:
            raise InputError(
                f"expected a limit from 1 to {CHILDREN_MAX:,} children, got {question.limit:,}",
                parameter="limit",
                bound=CHILDREN_MAX,
            )
        self._tables = [drill_down.empty_level(query.schema, level)]
        self._has_more = False

    async def scope(self, scans: ClusterScans, topology: Topology) -> PartitionScope:
        """The partitions that can hold paths below the vertex."""
        cell, bucket = drill_down.place(self.schema, self._prefix, self.question.order)
        if cell is None:
            return await super().scope(scans, topology)
        cells = np.array([cell], dtype=np.uint64)
        candidates = placement.candidates(topology, self.schema, (cells, cells + np.uint64(1)))
        if bucket is None:
            return PartitionScope(candidates)
        buckets = np.array([bucket], dtype=np.int64)
        [now] = placement.partitions_from_cells(topology, self.schema, cells, buckets).tolist()
        count = topology.partitions_per_group  # The place within the group is that of all epochs.
        return PartitionScope(frozenset(p for p in candidates if p % count == now % count))

    async def local(self, graphs: LocalGraphs, scope: PartitionScope) -> Findings:
        shard = graphs.shard(self.schema.key, scope)

        def page(check: Check) -> Findings:
            table = shard.graph.children(
                self._prefix,
                order=self.question.order,
                partitions=shard.own_partitions,
                check=check,
            )
            table, more = drill_down.page(table, after=self._after, limit=self.question.limit)
            return Findings({"more": more}, table=table)

        return await graphs.run(page)

    def add(self, node: str, findings: Findings) -> None:
        self._tables.append(findings.table)
        self._has_more = self._has_more or findings.facts["more"]

    def answer(self, asked: Round) -> Findings:
        table = drill_down.add_counts(self._tables)
        page, more = drill_down.page(table, after=None, limit=self.question.limit)
        return Findings({"more": more or self._has_more}, table=page)
