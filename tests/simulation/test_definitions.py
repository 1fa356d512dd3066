"""Seeded worlds of agreed definitions of datasets, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter

import pytest
from parameters import seeds_in_parts
from simulator.definition_world import DEFINITION_MUTANTS, run_definitions

SEEDS, PART = 1_500, 500
SEEDS_QUICK = range(18, 28)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS_MAX = 400
SURVIVING_LONG = ("creates_again", "sets_again", "accepted_not_saved")
"""Mutants that the first worlds do not convict."""
CONVICTED_FROM = {"counts_any_directory": 73}
"""The first seed to try with some mutants."""


def play(seed: int) -> Counter[str]:
    try:
        return run_definitions(seed)
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_definitions_random_histories_are_those_of_one_node(seeds: range) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    expected = (
        *("create Definition", "create DatasetExists", "drop Definition", "drop UnknownDataset"),
        *("retain Definition", "retain Unavailable", "founded", "directories lost"),
        *("extend Definition", "extend InvalidSchema", "extend UnknownDataset"),
    )
    never = [name for name in expected if not counters[name]]
    assert not never


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SURVIVING_LONG else [])
        for name in DEFINITION_MUTANTS
    ],
)
def test_definitions_mutant_is_convicted(mutant: str) -> None:
    for seed in range(CONVICTED_FROM.get(mutant, 0), MUTANT_SEEDS_MAX):
        try:
            run_definitions(seed, mutant)
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS_MAX} worlds")
