"""Checks what a reader of a continuous query received against the log.

A reader records every answer with its claims: the cursor of its token (everything up to here was
delivered) and its frontier. Afterwards one query of all commits shows which answer was right, by
the rules of `delivery_audit`, which the simulator shares.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from delivery_audit import Answer, DeliveryAudit, Keys, audited, keys_of

from galileo.client import Update
from galileo.cursor import Cursor
from galileo.labels import LabelSet


@dataclass(slots=True)
class Deliveries:
    """All answers to one reader of one CCQ, in order; thread-safe."""

    _answers: list[Answer] = field(default_factory=list)
    _updated: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        """Labels so far."""
        return sum(len(answer.labels) for answer in self.answers)

    @property
    def answers(self) -> Sequence[Answer]:
        with self._lock:
            return tuple(self._answers)

    @property
    def updated(self) -> Sequence[float]:
        """When each update with labels came, by the monotonic clock."""
        with self._lock:
            return tuple(self._updated)

    def begin(self, labels: LabelSet) -> None:
        """Record the initial result; missing partitions are not claimed."""
        self._add(Answer(keys(labels), labels.frontier, labels.frontier))

    def take(self, update: Update) -> None:
        cursor = update.labels.frontier
        claimed = cursor if update.more else cursor.join(_without(update.labels, update.frontier))
        self._add(Answer(keys(update.labels), cursor, claimed))

    def take_stored(self, labels: LabelSet, cursor: Cursor) -> None:
        """Record the labels that a reader had stored together with a token."""
        self._add(Answer(keys(labels), cursor, cursor))

    def longest_gap_s(self, since: float) -> float:
        """The longest time without an update that brought labels.

        Args:
            since: when to begin, by the monotonic clock; the end is now.
        """
        with self._lock:
            times = [since, *(at for at in self._updated if at > since), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))

    def audit(self, wanted: LabelSet) -> DeliveryAudit:
        """Compare with all expected labels."""
        return audited(self.answers, np.unique(keys(wanted)))

    def _add(self, answer: Answer) -> None:
        with self._lock:
            self._answers.append(answer)
            if len(answer.labels):
                self._updated.append(time.monotonic())


def keys(labels: LabelSet) -> Keys:
    """One number for each label; sorts by partition, sequence and row."""
    return keys_of(labels.partitions, labels.sequences, labels.rows)


def _without(labels: LabelSet, frontier: Cursor) -> Cursor:
    return Cursor({p: s for p, s in frontier.items() if p not in labels.missing})
