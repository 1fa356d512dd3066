"""Estimates from this node's feature graph, without asking any other node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.graph.feature_graph import PathBounds
from galileo.graph.quantiles import QuantileBounds, check_quantiles
from galileo.node.catalog import Catalog
from galileo.node.cluster_scan import ClusterScans
from galileo.node.cluster_view import ClusterView
from galileo.query import Query


@dataclass(frozen=True, slots=True)
class ClusterEstimate:
    """An estimate from this node's feature graph.

    Attributes:
        count: bounds on the number of matching paths.
        quantiles: of a feature over them.
        behind: commits that are known to be there and not yet in the feature graph.
        unheard: partitions of nodes that have sent no report since this one started.
    """

    count: PathBounds
    quantiles: tuple[QuantileBounds, ...]
    behind: int
    unheard: frozenset[int]


class Estimates:
    """Bounds on matches in the whole cluster, as this node knows it."""

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        view: ClusterView,
        scans: ClusterScans,
        executor: Executor,
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._view = view
        self._scans = scans
        self._executor = executor

    async def estimate(
        self, query: Query, *, feature: str | None, shares: Sequence[float]
    ) -> ClusterEstimate:
        """Bounds from the feature graph; takes milliseconds.

        Raises:
            InputError: the feature has no quantiles, or a share is not between 0 and 1.
        """
        check_quantiles(query.schema, feature, shares)
        view, candidates = self._view, self._scans.candidates(query)
        shard = self._catalog.shard(query.schema.key)
        for partition, synopsis in (await asyncio.to_thread(shard.synopses)).items():
            known = view.graph(query.schema).version(partition)
            if known != synopsis.version:
                view.apply_synopsis(synopsis.schema, synopsis.changes_since(known))
                await asyncio.sleep(0)  # One takes some milliseconds.
        graph = view.graph(query.schema)
        # Synopses also count what was replaced and deleted.
        is_partial = query.schema.is_keyed or bool(view.deletions(query.schema.key))
        last = view.sequences(query.schema.key).join(shard.published())
        topology = self._topology.current
        owners = placement.owners(topology)
        reporters = {node.name for node in topology.nodes if view.has_reported(node.name)}

        def bounds() -> tuple[PathBounds, tuple[QuantileBounds, ...]]:
            count = graph.estimate(query)
            wanted = shares if feature else ()
            if is_partial:
                count, wanted = replace(count, low=0), [0.0, *wanted, 1.0] if wanted else ()
            quantiles = graph.quantiles(query, feature, wanted) if feature and wanted else ()
            return count, _of_any_part(quantiles) if is_partial else quantiles

        loop = asyncio.get_running_loop()
        count, quantiles = await loop.run_in_executor(self._executor, bounds)
        return ClusterEstimate(
            count=count,
            quantiles=quantiles,
            behind=sum(max(last[p] - count.covered[p], 0) for p in candidates),
            unheard=frozenset(p for p in candidates if owners[p] not in reporters | {self._name}),
        )


def _of_any_part(quantiles: Sequence[QuantileBounds]) -> tuple[QuantileBounds, ...]:
    """Bounds of quantiles that hold for whatever part of the paths matches.

    Args:
        quantiles: of all paths, the first one of the share 0, and the last one of 1.
    """
    if not quantiles:
        return ()
    low, high = quantiles[0].low, quantiles[-1].high
    return tuple(replace(one, low=low, high=high) for one in quantiles[1:-1])
