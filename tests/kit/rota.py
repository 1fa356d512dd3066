"""Tests that take long, by turns: each turn runs those that fit into a few minutes.

Where a turn begins is computed from its number alone. Turns that follow one another begin far from
one another, and after some hundred turns there was one at each file; inside of long files, too.
So no test waits for ever behind others that take all the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import TypeVar

import pytest

TURN_S = 300.0
"""A turn starts no test that is expected to end later than this after its begin."""
EXPECTED_S = 30.0
"""How long a test may take whose mark `slow` does not say more: `@pytest.mark.slow(90)`."""
LONG_EXPECTED_S = 120.0
"""The same where the test has a mark `timeout` of more than `TIMEOUT_S`."""
TIMEOUT_S = 240.0
"""The limit of tests in a turn that have no mark `timeout`; a test that hangs makes a turn so much
longer."""

STEP = 20
"""A turn begins at the first test of a file, or so many tests behind that."""

_GOLDEN, _SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1

Item = TypeVar("Item")


def in_turn(items: Sequence[Item], turn: int, *, file_of: Callable[[Item], Hashable]) -> list[Item]:
    """All items, from the one at which a turn begins to the one before it."""
    files = [list(group) for _, group in groupby(items, key=file_of)]
    if not files:
        return []
    # Multiples of an irrational number are spread evenly, however many there are.
    number = int(len(files) * (turn * _GOLDEN % 1))
    first = files[number]
    steps = math.ceil(len(first) / STEP)
    begin = sum(map(len, files[:number])) + STEP * int(steps * (turn * _SILVER % 1))
    return [*items[begin:], *items[:begin]]


class Turn:
    """The time of one turn."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._begun = monotonic()

    def has_time(self, expected_s: float) -> bool:
        """Whether a test that takes so long may start."""
        return self._monotonic() - self._begun + expected_s <= TURN_S


def pass_over(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends fixtures as the teardown of the test would, which does not run.

    The test before it left those that this one shares with it, and pytest starts no other test
    beside fixtures of a file that is not its own.
    """
    item.session._setupstate.teardown_exact(nextitem)
