"""Seeded worlds of a duty that does next to nothing, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter

import pytest
from parameters import seeds_in_parts
from simulator.duty_world import DUTY_MUTANTS, run_duties

SEEDS, PART = 1_500, 500
SEEDS_QUICK = range(28, 38)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS_MAX = 400
SURVIVING_LONG = ("forget_first",)
"""Mutants that the first worlds do not convict."""
CONVICTED_FROM = {"never_drain": 6, "never_take_over": 6, "save_last": 20}
"""The first seed to try with some mutants."""


def play(seed: int) -> Counter[str]:
    try:
        return run_duties(seed)
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_duties_random_histories_are_those_of_the_oracle(seeds: range) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    expected = ("submitted", "ended", "crash", "suspect", "drain", "cut", "loss", "terms")
    assert not [name for name in expected if not counters[name]]


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SURVIVING_LONG else [])
        for name in DUTY_MUTANTS
        if name
    ],
)
def test_duties_mutant_is_convicted(mutant: str) -> None:
    for seed in range(CONVICTED_FROM.get(mutant, 0), MUTANT_SEEDS_MAX):
        try:
            run_duties(seed, mutant)
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS_MAX} worlds")
