"""New commits of this node and of others, as events of the machine of continuous queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from galileo.ccq.events import CommitsObserved
from galileo.node.shard import PublishedCommits
from galileo.node.storage_node import StorageNode


class CommitNews:
    """Notices commits, and wakes the system tables that have some.

    Args:
        node: whose shards and view it looks at.
    """

    def __init__(self, node: StorageNode) -> None:
        self._node = node
        self._published: dict[str, PublishedCommits] = {}
        self._take_changed = node.catalog.watch()

    def own(self) -> list[CommitsObserved]:
        """Events for the datasets to which this node has committed since the last call."""
        news: list[CommitsObserved] = []
        for dataset, shard in self._take_changed():
            published, before = shard.own_published(), self._published.get(dataset)
            if published is before:
                continue
            self._published[dataset] = published
            self._wake_table(dataset)
            if before is None or published.sequences != before.sequences:
                self._node.view.update_sequences(
                    dataset, published.sequences, deletions=published.deletions
                )
                self._node.view.update_event_clock(dataset, published.clock)
                news.append(self._observed(dataset))
        return news

    def reported(self, datasets: Iterable[str]) -> Iterator[CommitsObserved]:
        """Events for datasets whose commits other nodes have reported."""
        for dataset in datasets:
            self._wake_table(dataset)
            yield self._observed(dataset)

    def forget(self, datasets: Iterable[str]) -> None:
        """Forgets dropped datasets."""
        for dataset in datasets:
            self._published.pop(dataset, None)

    def _wake_table(self, dataset: str) -> None:
        if (table := self._node.system_tables.get(dataset)) is not None:
            table.wake()

    def _observed(self, dataset: str) -> CommitsObserved:
        view = self._node.view
        return CommitsObserved(dataset, view.sequences(dataset), view.event_clock(dataset))
