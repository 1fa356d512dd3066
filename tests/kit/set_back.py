"""Sets logs of real nodes back to what they were, and has their partitions begin a history."""

from __future__ import annotations

import shutil
from typing import Any

from galileo.dht.topology import SYSTEM
from galileo.model.forks import NUMBER_BITS


class EarlierLogs:
    """The logs of datasets as they were at a moment, like a backup of them.

    Args:
        cluster: of the nodes.
        *datasets: their keys; other logs stay as they are.
    """

    def __init__(self, cluster: Any, *datasets: str) -> None:
        self._cluster = cluster
        self._datasets = datasets
        self._copies: dict[str, dict[str, Any]] = {}

    async def save(self) -> None:
        """Copies the logs as they are now."""
        for name in list(self._cluster.network.nodes):
            await self._cluster.stop(name)
            for dataset in self._datasets:
                shutil.copytree(self._logs(name, dataset), self._copy(name, dataset))
            self._cluster.start(name)

    async def restore(self, *names: str, history: int) -> None:
        """Puts the copies in place of the logs of some nodes, whose partitions begin a history."""
        for name in names:
            await self._cluster.stop(name)
            for dataset in self._datasets:
                shutil.rmtree(self._logs(name, dataset))
                shutil.copytree(self._copy(name, dataset), self._logs(name, dataset))
            begin_history(self._cluster.start(name), history)

    def _logs(self, name: str, dataset: str) -> Any:
        return self._cluster.directory / name / "journals" / dataset

    def _copy(self, name: str, dataset: str) -> Any:
        return self._cluster.directory / "copies" / name / dataset


def begin_history(node: Any, history: int) -> None:
    """Has a node lead its partitions in a history, but not the system partition."""
    numbers = {p: term % (1 << NUMBER_BITS) for p, term in node.replicas.terms.items()}
    led = {p: (history << NUMBER_BITS) + number for p, number in numbers.items() if p != SYSTEM}
    node.replicas.terms = {**node.replicas.terms, **led}
    for shard in node.catalog.shards.values():
        for partition, term in led.items():
            shard.lead(partition, term)
