"""The judge of deletions convicts what it has to."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest
from fault_injection.deletions import (
    SCHEMA,
    Call,
    Condition,
    Deleter,
    Ledger,
    Producer,
    observations,
)

from galileo.model.observations import normalise
from galileo.query import parse

LOW = Condition(level=0, since=-1, until=400, east=200.0)
CLEAN = {"repeated": 0, "foreign": 0, "lost": 0, "undeleted": 0}


def ledger_of(deletion: Call) -> Ledger:
    """Observations 0, 1 and 2, of which 1 has another level, and 2 is not acknowledged."""
    rows = {
        "number": np.array([0, 1, 2]),
        "level": np.array([0, 1, 0]),
        "micros": np.array([1, 2, 3]),
        "longitude": np.zeros(3),
    }
    calls = (Call(1.0, 1.0, 2.0), Call(1.0, 1.0, 2.0), Call(7.0, 7.0, inf))
    ledger = Ledger(deletions=[(LOW, deletion)])
    for number, call in enumerate(calls):
        part = {name: column[number : number + 1] for name, column in rows.items()}
        ledger.batches.append((part, call))
    return ledger


ACKNOWLEDGED, UNANSWERED = Call(3.0, 3.0, 4.0), Call(3.0, 3.0, inf)
REPEATED = Call(1.5, 3.0, 4.0)
"""It was sent again after the batches were acknowledged."""


@pytest.mark.parametrize(
    ("deletion", "numbers", "began", "wrong"),
    [
        (ACKNOWLEDGED, [1], 5.0, {}),
        (ACKNOWLEDGED, [0, 1], 5.0, {"undeleted": 1}),
        (ACKNOWLEDGED, [0, 1], 3.5, {}),
        (ACKNOWLEDGED, [], 5.0, {"lost": 1}),
        (ACKNOWLEDGED, [1, 1], 5.0, {"repeated": 1}),
        (ACKNOWLEDGED, [1, 2], 5.0, {"foreign": 1}),
        (ACKNOWLEDGED, [1, 2], 8.0, {}),
        (ACKNOWLEDGED, [1, 9], 5.0, {"foreign": 1}),
        (REPEATED, [0, 1], 5.0, {"undeleted": 1}),
        (UNANSWERED, [0, 1], 5.0, {}),
        (UNANSWERED, [1], 5.0, {}),
        (Call(9.0, 9.0, 10.0), [1], 5.0, {"lost": 1}),
    ],
)
def test_audit(deletion: Call, numbers: list[int], began: float, wrong: dict[str, int]) -> None:
    audit = ledger_of(deletion).audit(np.array(numbers, np.int64), began, began + 1.0)
    audit.pop("deleted")
    assert audit == CLEAN | wrong


def test_conditions_match_as_the_query_that_they_are_sent_as() -> None:
    chance, ledger, matching = random.Random(3), Ledger(), 0
    producer, deleter = Producer(ledger, 0, chance), Deleter(ledger, chance)
    for _ in range(200):
        rows, condition = producer.draw(), deleter.draw()
        table = normalise(SCHEMA, observations(rows))
        expected = condition.matches(rows)
        matching += int(expected.sum())
        assert parse(str(condition), SCHEMA).match_observations(table).tolist() == expected.tolist()
    assert matching > 50
