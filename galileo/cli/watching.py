"""How `galileo ccq watch` looks on a terminal: the newest labels, redrawn with each update."""

from __future__ import annotations

from collections.abc import Sequence

from galileo.cli.live import Board, Part, Screen
from galileo.cli.output import Output
from galileo.client import Labels, Update

LABELS_SHOWN = 20
NOT_SHOWN = ["block", "partition", "sequence", "label"]
"""Columns that programs need, and that would leave people no room for the others."""


class Watching(Board):
    """A board with the newest labels of a continuous query, and how many came in all."""

    def __init__(self, output: Output, ccq_id: str) -> None:
        super().__init__(output)
        self._ccq_id = ccq_id
        self._newest: Labels | None = None
        self._labels = self._updates = self._gone = 0

    def update(self, update: Update, notices: Sequence[str]) -> None:
        """Shows what an update brought; its token stands below, to go on with."""
        self._updates += 1
        self._labels += len(update.labels)
        self._gone += sum(one.last - one.first + 1 for one in update.gone)
        held = [update.labels] if self._newest is None else [self._newest, update.labels]
        joined = Labels.concat(update.labels.schema, held)
        newest = joined.slice(max(0, len(joined) - LABELS_SHOWN), len(joined))
        self._newest = Labels(newest.schema, newest.table)
        rows = self._newest.to_arrow().drop_columns(NOT_SHOWN).to_pylist()
        words = "\n".join([self._told(update), *notices, f"token {update.token}"])
        self.show(Screen((Part(rows, title=self._ccq_id, words=words),), None))

    def _told(self, update: Update) -> str:
        gone = f", {self._gone:,} commits dropped by retention before they were fetched" * bool(
            self._gone
        )
        more = ", more to come" * update.more
        return (
            f"{self._labels:,} labels in {self._updates:,} updates, the newest "
            f"{min(self._labels, LABELS_SHOWN)} shown{gone}{more}"
        )
