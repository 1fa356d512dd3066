"""Histories of a store that is correct, and the same ones with one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from fault_injection.history import History, HistoryAudit, Read

ROWS = 3


def history(writes: dict[int, tuple[float, float]], reads: Sequence[Read]) -> History:
    made = History(ROWS)
    for batch, (began, ended) in writes.items():
        made.begin_write(batch, began)
        if ended < inf:
            made.end_write(batch, ended)
    for read in reads:
        made.add_read(read)
    return made


def random_operations(
    random: np.random.Generator,
) -> tuple[dict[int, tuple[float, float]], list[Read]]:
    """Of a correct store: each observation is set at a moment of its write, and read at others."""
    writes, sets = {}, []
    for batch in range(int(random.integers(1, 12))):
        began = float(random.uniform(0, 100))
        ended = inf if random.random() < 0.2 else began + float(random.exponential(10))
        writes[batch] = began, ended
        for _ in range(ROWS):
            is_never = ended == inf and random.random() < 0.3
            until = began + 30 if ended == inf else ended
            sets.append(inf if is_never else float(random.uniform(began, until)))
    reads = []
    for _ in range(int(random.integers(1, 20))):
        began = float(random.uniform(0, 150))
        moments = began + random.exponential(5, size=len(sets))  # Not a snapshot of them all.
        has = np.flatnonzero(np.array(sets) <= moments)
        is_complete = bool(random.random() < 0.9)
        numbers = has if is_complete else has[random.random(len(has)) < 0.5]
        reads.append(Read(began, float(moments.max()), random.permutation(numbers), is_complete))
    return writes, reads


def audit_simply(writes: dict[int, tuple[float, float]], reads: Sequence[Read]) -> HistoryAudit:
    """The definition, for one observation and one read after the other."""
    lacking = early = repeated = 0
    for number in range(ROWS * len(writes)):
        began, appeared = writes[number // ROWS]
        for read in reads:
            if number in read.numbers:
                appeared = min(appeared, read.ended)
        for read in reads:
            count = np.count_nonzero(read.numbers == number)
            repeated += max(count - 1, 0)
            early += bool(count) and began > read.ended
            lacking += not count and read.is_complete and appeared < read.began
    return HistoryAudit(
        writes=len(writes),
        unanswered=sum(ended == inf for _, ended in writes.values()),
        reads=len(reads),
        incomplete=sum(not read.is_complete for read in reads),
        lacking=int(lacking),
        early=int(early),
        repeated=int(repeated),
    )


@pytest.mark.parametrize("seed", range(50))
def test_history_of_correct_store_is_linearizable(seed: int) -> None:
    writes, reads = random_operations(np.random.default_rng(seed))
    audit = history(writes, reads).audit()
    assert audit.is_linearizable
    assert audit == audit_simply(writes, reads)


@pytest.mark.parametrize("seed", range(50))
def test_history_with_random_answers_equals_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    writes, reads = random_operations(random)
    known = ROWS * len(writes)
    wrong = [
        replace(read, numbers=random.integers(0, known, size=random.integers(0, 2 * known)))
        for read in reads
    ]
    assert history(writes, wrong).audit() == audit_simply(writes, wrong)


WRITES = {0: (1.0, 2.0), 1: (3.0, inf)}
ALL = np.arange(2 * ROWS)


@pytest.mark.parametrize(
    ("read", "kind", "count"),
    [
        (Read(2.5, 2.6, ALL[1:ROWS]), "lacking", 1),  # An acknowledged one.
        (Read(6.0, 7.0, ALL[:ROWS]), "lacking", ROWS),  # What the read before has.
        (Read(0.5, 0.9, ALL[:1]), "early", 1),
        (Read(6.0, 7.0, np.append(ALL, 99)), "early", 1),
        (Read(6.0, 7.0, np.append(ALL, 0)), "repeated", 1),
    ],
)
def test_history_wrong_read_is_counted(read: Read, kind: str, count: int) -> None:
    audit = history(WRITES, [Read(4.0, 5.0, ALL), read]).audit()
    assert not audit.is_linearizable
    assert getattr(audit, kind) == count
    assert audit.lacking + audit.early + audit.repeated == count


def test_history_incomplete_read_may_lack() -> None:
    partial = Read(6.0, 7.0, ALL[:1], is_complete=False)
    audit = history(WRITES, [Read(4.0, 5.0, ALL), partial]).audit()
    assert audit.is_linearizable
    assert audit.incomplete == audit.unanswered == 1
