"""Detects nodes whose log went backwards (lost or older disk).

A node whose disk was lost, was not mounted, or is an older copy starts without an error, and would
give the sequences of the lost commits to other ones. Other nodes detect this by comparing
sequences, and have the partition begin a later history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.topology import partition_name

log = logging.getLogger(__name__)

REPORTS_MIN = 3
"""Consecutive reports that have to agree, since a single one may be an old one that came late."""


@dataclass(frozen=True, slots=True)
class LogRegression:
    """A partition whose last commit is older than one that was reported before.

    Attributes:
        node: the owner of the partition.
        had: last commit that was reported before.
        has: last commit that is there now.
    """

    node: str
    dataset: str
    partition: int
    had: int
    has: int

    def __str__(self) -> str:
        name = partition_name(self.partition)
        return (
            f"partition {name} of dataset {self.dataset!r} at node {self.node} had "
            f"commit {self.had:,}, and came back with commit {self.has:,} as the last one"
        )


class LogRegressions:
    """The log regressions of other nodes that this node has detected since its start.

    Args:
        on_loss: called with each of them.
    """

    def __init__(self, *, on_loss: Callable[[LogRegression], None] = lambda _: None) -> None:
        self.on_loss = on_loss
        self._behind: dict[str, int] = {}
        self._retrieved: dict[str, Cursor] = {}
        self._regressions: dict[tuple[str, int], LogRegression] = {}
        self._compared: dict[tuple[str, str], tuple[object, ...]] = {}

    @property
    def behind(self) -> frozenset[str]:
        """Nodes whose last report lacked commits; their next reports decide."""
        return frozenset(node for node, reports in self._behind.items() if reports)

    @property
    def known(self) -> list[LogRegression]:
        return sorted(self._regressions.values(), key=lambda loss: (loss.dataset, loss.partition))

    def expect(self, dataset: str, retrieved: Cursor) -> None:
        """Adds the cursor that readers of a dataset have retrieved, from records on disk.

        With it a loss is also detected after a restart of every node.
        """
        self._retrieved[dataset] = self._retrieved.get(dataset, EMPTY_CURSOR).join(retrieved)

    def forget(self, dataset: str) -> None:
        """Removes a dropped dataset."""
        self._retrieved.pop(dataset, None)
        self._compared = {pair: of for pair, of in self._compared.items() if pair[1] != dataset}
        regressions = self._regressions.items()
        self._regressions = {key: loss for key, loss in regressions if loss.dataset != dataset}

    def check_own(
        self, node: str, partitions: Collection[int], *, reported: Mapping[str, Cursor]
    ) -> None:
        """Compares this node's last commits with what readers have retrieved; after recovery."""
        self._record(_behind(node, partitions, reported=reported, expected=self._retrieved))

    def check_report(
        self,
        node: str,
        partitions: Collection[int],
        *,
        reported: Mapping[str, Cursor],
        expected: Mapping[str, Cursor],
    ) -> None:
        """Compares a node's report with the last commits that are known.

        Args:
            node: the sender.
            partitions: the partitions that it owns.
            reported: its last commits, by dataset.
            expected: the last commits that any node has reported, by dataset.
        """
        behind = []
        for dataset in expected.keys() | self._retrieved.keys():
            last = expected.get(dataset, EMPTY_CURSOR), self._retrieved.get(dataset, EMPTY_CURSOR)
            compared = partitions, reported.get(dataset, EMPTY_CURSOR), *last
            before = self._compared.get((node, dataset), ())
            if compared == before:
                continue  # Nothing was missing when the same was compared.
            missing = _behind(
                node, partitions, reported=reported, expected={dataset: Cursor.join(*last)}
            )
            if missing:
                self._compared.pop((node, dataset), None)
            else:
                self._compared[node, dataset] = compared
            behind += missing
        self._behind[node] = self._behind.get(node, 0) + 1 if behind else 0
        if self._behind[node] >= REPORTS_MIN:
            self._record(behind)

    def _record(self, losses: Iterable[LogRegression]) -> None:
        for loss in losses:
            place = (loss.dataset, loss.partition)
            if place not in self._regressions:
                self._regressions[place] = loss
                log.error("commits are lost: %s", loss)
                self.on_loss(loss)


def _behind(
    node: str,
    partitions: Collection[int],
    *,
    reported: Mapping[str, Cursor],
    expected: Mapping[str, Cursor],
) -> list[LogRegression]:
    return [
        LogRegression(node, dataset, partition, last[partition], has)
        for dataset, last in expected.items()
        for partition in partitions
        if (has := reported.get(dataset, EMPTY_CURSOR)[partition]) < last[partition]
    ]
