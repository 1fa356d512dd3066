"""The judge of continuous queries: what a reader was handed, against the log it was taken from.

A reader notes every answer with what it claimed: the cursor of its token (everything up to here was
handed out by now) and its frontier. Afterwards one query of everything that was committed tells
which of it was right. Labels are compared by partition, commit and row, which nothing shares.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from galileo.client import Update
from galileo.cursor import ORIGIN, Cursor
from galileo.labels import LabelSet

SEQUENCE_BITS, ROW_BITS = 26, 26
"""Of the number that stands for a label; the partition takes the rest of 63."""
NEVER = np.iinfo(np.int64).max

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a reader.

    Attributes:
        labels: keys of those that it brought.
        cursor: of its token.
        claimed: up to where all labels have been handed out by now, it says: its cursor, and its
            frontier where nothing more waits and nothing is missing.
    """

    labels: Keys
    cursor: Cursor
    claimed: Cursor


@dataclass(frozen=True, slots=True)
class DeliveryAudit:
    """What was wrong with what a reader was handed; all but the first two should be 0.

    Attributes:
        updates: answers with labels.
        labels: handed out.
        missed: committed, matching, and not handed out.
        repeated: beyond the first time.
        foreign: that were never committed or do not match.
        lied: partitions of answers that claimed more than had been handed out by then.
        disordered: labels at or before the cursor of the answer before, or past that of their own.
        receded: partitions in which a token was behind the one before.
    """

    updates: int
    labels: int
    missed: int
    repeated: int
    foreign: int
    lied: int
    disordered: int
    receded: int

    @property
    def wrong(self) -> dict[str, int]:
        """What is not 0 and should be."""
        found = {one.name: int(getattr(self, one.name)) for one in fields(self)[2:]}
        return {name: count for name, count in found.items() if count}


@dataclass(slots=True)
class Deliveries:
    """All answers to one reader of one CCQ, in order; thread-safe."""

    _answers: list[Answer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        """Labels so far."""
        return sum(len(answer.labels) for answer in self.answers)

    @property
    def answers(self) -> Sequence[Answer]:
        with self._lock:
            return tuple(self._answers)

    def begin(self, labels: LabelSet) -> None:
        """Notes the initial result; what is missing there is not claimed."""
        self._add(Answer(keys(labels), labels.frontier, labels.frontier))

    def take(self, update: Update) -> None:
        cursor = update.labels.frontier
        claimed = cursor if update.more else cursor.join(_without(update.labels, update.frontier))
        self._add(Answer(keys(update.labels), cursor, claimed))

    def take_stored(self, labels: LabelSet, cursor: Cursor) -> None:
        """Notes what a reader had stored together with a token."""
        self._add(Answer(keys(labels), cursor, cursor))

    def audit(self, wanted: LabelSet) -> DeliveryAudit:
        """Compares with all labels that were to be handed out."""
        answers = self.answers
        got = np.concatenate([np.zeros(0, np.int64), *(answer.labels for answer in answers)])
        counts = [len(answer.labels) for answer in answers]
        when = np.repeat(np.arange(len(answers)), counts)
        known, first = np.unique(got, return_index=True)
        right = np.unique(keys(wanted))
        return DeliveryAudit(
            updates=sum(count > 0 for count in counts),
            labels=len(got),
            missed=len(np.setdiff1d(right, known, assume_unique=True)),
            repeated=len(got) - len(known),
            foreign=len(np.setdiff1d(known, right, assume_unique=True)),
            lied=_lies(answers, right, arrived=_looked_up(right, known, when[first])),
            disordered=sum(_disordered(answers)),
            receded=sum(
                sequence > after.cursor[partition]
                for before, after in itertools.pairwise(answers)
                for partition, sequence in before.cursor.items()
            ),
        )

    def _add(self, answer: Answer) -> None:
        with self._lock:
            self._answers.append(answer)


def keys(labels: LabelSet) -> Keys:
    """One number for each label; sorts by partition, sequence and row."""
    partitions, rows = labels.partitions.astype(np.int64), labels.rows.astype(np.int64)
    if len(labels) and max(
        int(labels.sequences.max()) >> SEQUENCE_BITS, int(rows.max()) >> ROW_BITS
    ):
        raise ValueError("expected fewer than 67 million commits and rows of a partition")
    numbers = (partitions << SEQUENCE_BITS) | labels.sequences
    return (numbers << ROW_BITS) | rows


def _without(labels: LabelSet, frontier: Cursor) -> Cursor:
    return Cursor({p: s for p, s in frontier.items() if p not in labels.missing})


def _place(partition: int, sequence: int) -> int:
    """The key of the last label that a commit could have."""
    return (((partition << SEQUENCE_BITS) | sequence) << ROW_BITS) | ((1 << ROW_BITS) - 1)


def _looked_up(wanted: Keys, known: Keys, when: Keys) -> Keys:
    """With which answer each label came first; `NEVER` where it did not."""
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    if len(known) == 0:
        return np.full(len(wanted), NEVER)
    return np.where(known[at] == wanted, when[at], NEVER)


def _lies(answers: Sequence[Answer], wanted: Keys, *, arrived: Keys) -> int:
    """How many partitions of answers claim a label that had not come with them or before."""
    bounds: dict[int, tuple[int, Keys]] = {}
    lies = 0
    for number, answer in enumerate(answers):
        for partition, sequence in answer.claimed.items():
            if partition not in bounds:
                start, stop = np.searchsorted(
                    wanted, [_place(partition, 0) + 1, _place(partition + 1, 0)]
                )
                bounds[partition] = int(start), np.maximum.accumulate(arrived[start:stop])
            start, latest = bounds[partition]
            until = int(np.searchsorted(wanted, _place(partition, sequence), side="right")) - start
            lies += bool(until > 0 and latest[min(until, len(latest)) - 1] > number)
    return lies


def _disordered(answers: Sequence[Answer]) -> Iterator[int]:
    """For each answer, how many of its labels lie outside its stretch of the log."""
    before = ORIGIN
    for answer in answers:
        commits = answer.labels >> ROW_BITS
        partitions = (commits >> SEQUENCE_BITS).astype(np.int32)
        sequences = commits & ((1 << SEQUENCE_BITS) - 1)
        inside = before.past(partitions, sequences) & ~answer.cursor.past(partitions, sequences)
        yield int(np.count_nonzero(~inside))
        before = answer.cursor
