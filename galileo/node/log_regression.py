"""Detects nodes whose log went backwards (lost or older disk).

A node whose disk was lost, was not mounted, or is an older copy starts as if nothing had happened,
and gives the numbers of what it lost to other commits. Who has heard of the lost ones can tell.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from galileo.cursor import ORIGIN, Cursor

log = logging.getLogger(__name__)

HEARD_TIMES = 3
"""Reports in a row that have to agree: one may have been under way for long."""


@dataclass(frozen=True, slots=True)
class LogRegression:
    """A partition of a dataset, the last commit of it that was told of, and the one that is there.

    Attributes:
        node: which keeps the partition.
    """

    node: str
    dataset: str
    partition: int
    had: int
    has: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} of dataset {self.dataset!r} at node {self.node}: it had "
            f"told of commit {self.had:,}, and came back with {self.has:,}"
        )


class LogRegressions:
    """What other nodes have lost, as far as it was heard of here; it is known until a restart."""

    def __init__(self) -> None:
        self._behind: dict[str, int] = {}
        self._retrieved: dict[str, Cursor] = {}
        self._known: dict[tuple[str, int], LogRegression] = {}
        self._compared: dict[tuple[str, str], tuple[object, ...]] = {}

    @property
    def known(self) -> list[LogRegression]:
        return sorted(self._known.values(), key=lambda one: (one.dataset, one.partition))

    def expect(self, dataset: str, retrieved: Cursor) -> None:
        """Takes what readers have retrieved of a dataset, as records on disk say.

        So a loss is found, too, where every node was restarted since.
        """
        self._retrieved[dataset] = self._retrieved.get(dataset, ORIGIN).join(retrieved)

    def forget(self, dataset: str) -> None:
        """Forgets a dataset that was dropped."""
        self._retrieved.pop(dataset, None)
        self._compared = {pair: of for pair, of in self._compared.items() if pair[1] != dataset}
        self._known = {place: one for place, one in self._known.items() if one.dataset != dataset}

    def check_own(
        self, node: str, partitions: Collection[int], *, told: Mapping[str, Cursor]
    ) -> None:
        """Compares what this node has with what readers have retrieved, once it has recovered."""
        self._note(_behind(node, partitions, told=told, heard=self._retrieved))

    def hear(
        self,
        node: str,
        partitions: Collection[int],
        *,
        told: Mapping[str, Cursor],
        heard: Mapping[str, Cursor],
    ) -> None:
        """Takes a node's report.

        Args:
            node: whose.
            partitions: that it keeps.
            told: its last commits, by dataset.
            heard: the last ones that anybody has told of.
        """
        behind = []
        for dataset in heard.keys() | self._retrieved.keys():
            expected = heard.get(dataset, ORIGIN), self._retrieved.get(dataset, ORIGIN)
            compared = partitions, told.get(dataset, ORIGIN), *expected
            before = self._compared.get((node, dataset), ())
            if before and all(map(operator.is_, compared, before)):
                continue  # Nothing was missing when the same objects were compared.
            missing = _behind(node, partitions, told=told, heard={dataset: Cursor.join(*expected)})
            if missing:
                self._compared.pop((node, dataset), None)
            else:
                self._compared[node, dataset] = compared
            behind += missing
        self._behind[node] = self._behind.get(node, 0) + 1 if behind else 0
        if self._behind[node] >= HEARD_TIMES:
            self._note(behind)

    def _note(self, losses: Iterable[LogRegression]) -> None:
        for loss in losses:
            place = (loss.dataset, loss.partition)
            if place not in self._known:
                self._known[place] = loss
                log.error("commits are lost: %s", loss)


def _behind(
    node: str,
    partitions: Collection[int],
    *,
    told: Mapping[str, Cursor],
    heard: Mapping[str, Cursor],
) -> list[LogRegression]:
    return [
        LogRegression(node, dataset, partition, last[partition], has)
        for dataset, last in heard.items()
        for partition in partitions
        if (has := told.get(dataset, ORIGIN)[partition]) < last[partition]
    ]
