"""Rules for checking deliveries, in runs of real processes and of the simulator.

Pure functions of the answers and the expected labels. A label is a number made of partition, commit
and row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from galileo.cursor import EMPTY_CURSOR, Cursor

SEQUENCE_BITS, ROW_BITS = 26, 26
"""Of the number that stands for a label; the partition takes the rest of 63."""
NEVER = np.iinfo(np.int64).max

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a reader.

    Attributes:
        labels: keys of its labels.
        cursor: of its token.
        claimed: up to where it claims that all labels were delivered: its cursor, or its frontier
            if nothing more is available and nothing is missing.
    """

    labels: Keys
    cursor: Cursor
    claimed: Cursor


@dataclass(frozen=True, slots=True)
class DeliveryAudit:
    """Errors in the deliveries to a reader; all but the first two should be 0.

    Attributes:
        updates: answers with labels.
        labels: delivered ones.
        missed: committed, matching, and not delivered.
        repeated: delivered again.
        foreign: never committed or not matching.
        lied: partitions of answers that claimed undelivered labels.
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
        """The fields that should be 0 and are not."""
        found = {one.name: int(getattr(self, one.name)) for one in fields(self)[2:]}
        return {name: count for name, count in found.items() if count}


def keys_of(partitions: npt.ArrayLike, sequences: npt.ArrayLike, rows: npt.ArrayLike) -> Keys:
    """One number for each label; sorts by partition, sequence and row.

    Raises:
        ValueError: a sequence or a row is too large for its bits.
    """
    commits, places = np.asarray(sequences, np.int64), np.asarray(rows, np.int64)
    if len(commits) and max(int(commits.max()) >> SEQUENCE_BITS, int(places.max()) >> ROW_BITS):
        raise ValueError("expected fewer than 67 million commits and rows of a partition")
    numbers = (np.asarray(partitions, np.int64) << SEQUENCE_BITS) | commits
    return (numbers << ROW_BITS) | places


def audited(answers: Sequence[Answer], right: Keys) -> DeliveryAudit:
    """Compare all answers to one reader, in order, with the expected labels.

    Args:
        answers: the first of them is the initial result.
        right: expected keys, sorted, distinct.
    """
    got = np.concatenate([np.zeros(0, np.int64), *(answer.labels for answer in answers)])
    counts = [len(answer.labels) for answer in answers]
    when = np.repeat(np.arange(len(answers)), counts)
    known, first = np.unique(got, return_index=True)
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


def _place(partition: int, sequence: int) -> int:
    """The greatest possible key of a commit."""
    return (((partition << SEQUENCE_BITS) | sequence) << ROW_BITS) | ((1 << ROW_BITS) - 1)


def _looked_up(wanted: Keys, known: Keys, when: Keys) -> Keys:
    """Index of the first answer with each label; `NEVER` without one."""
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    if len(known) == 0:
        return np.full(len(wanted), NEVER)
    return np.where(known[at] == wanted, when[at], NEVER)


def _lies(answers: Sequence[Answer], wanted: Keys, *, arrived: Keys) -> int:
    """Number of partitions of answers that claim an undelivered label."""
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
    """For each answer, how many of its labels lie outside its range of the log."""
    before = EMPTY_CURSOR
    for answer in answers:
        commits = answer.labels >> ROW_BITS
        partitions = (commits >> SEQUENCE_BITS).astype(np.int32)
        sequences = commits & ((1 << SEQUENCE_BITS) - 1)
        inside = before.past(partitions, sequences) & ~answer.cursor.past(partitions, sequences)
        yield int(np.count_nonzero(~inside))
        before = answer.cursor
