"""Pauses between tries: doubled up to a bound, spread by chance, never past the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.client.backoff import PAUSE_MAX_S, PAUSE_MIN_S, PAUSE_S, SPREAD, Backoff, BackoffClock
from galileo.errors import Overloaded, TransientError, Unavailable


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)
        self.now += wait_s


def timing(clock: Clock, chance: float = 0.5) -> BackoffClock:
    return BackoffClock(clock.monotonic, clock.sleep, lambda: chance)


async def tried(
    clock: Clock, error: TransientError, *, patience_s: float, chance: float = 0.5
) -> None:
    """Fails with the same error again and again, until that is no longer waited for."""
    pauses = Backoff(timing(clock, chance), patience_s=patience_s)
    with pytest.raises(type(error)) as raised:
        await for_ever(pauses, error)
    assert raised.value is error


async def for_ever(pauses: Backoff, error: TransientError) -> None:
    while True:
        await pauses.after(error)


async def test_pauses_double_up_to_a_bound() -> None:
    clock = Clock()
    await tried(clock, Unavailable("away"), patience_s=6.0)
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0])


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 20))
async def test_chance_spreads_pauses_and_never_past_the_end(
    chance: float, patience_s: float
) -> None:
    clock = Clock()
    await tried(clock, Unavailable("away"), patience_s=patience_s, chance=chance)
    plain = [min(PAUSE_S * 2**n, PAUSE_MAX_S) for n in range(len(clock.slept))]
    factor = 1 + SPREAD * (2 * chance - 1)
    assert clock.slept == pytest.approx([factor * pause for pause in plain])
    assert clock.now <= 1000.0 + patience_s + 1e-9
    following = factor * min(PAUSE_S * 2 ** len(plain), PAUSE_MAX_S)
    assert clock.now + following > 1000.0 + patience_s


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 3))
async def test_nobody_comes_back_before_the_time_that_was_advised(
    chance: float, advised_s: float
) -> None:
    clock = Clock()
    await tried(clock, Overloaded("busy", after_s=advised_s), patience_s=10.0, chance=chance)
    assert all(wait >= max(advised_s, PAUSE_MIN_S) for wait in clock.slept)
    assert all(wait <= max(advised_s, PAUSE_MIN_S) * (1 + SPREAD) for wait in clock.slept)
    assert clock.slept


async def test_advice_does_not_lengthen_the_pauses_after_it() -> None:
    clock = Clock()
    pauses = Backoff(timing(clock), patience_s=60.0)
    for error in (
        Unavailable("away"),
        *[Overloaded("busy", after_s=2.0)] * 5,
        Unavailable("away"),
    ):
        await pauses.after(error)
    assert clock.slept[0] == pytest.approx(0.1)
    assert clock.slept[-1] == pytest.approx(0.2)


async def test_advice_beyond_the_end_is_not_waited_for() -> None:
    clock = Clock()
    await tried(clock, Overloaded("busy", after_s=60.0), patience_s=5.0)
    assert clock.slept == []


async def test_chances_differ_unless_they_are_handed_in() -> None:
    first, second = BackoffClock(), BackoffClock()
    assert len({first.random() for _ in range(50)} | {second.random() for _ in range(50)}) > 90


def test_chances_leave_alone_the_generator_that_a_program_has_seeded() -> None:
    before = random.getstate()
    BackoffClock().random()
    assert random.getstate() == before
