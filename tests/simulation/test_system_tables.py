"""Seeded worlds of the system table of definitions, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from parameters import keep_quick, seeds_in_parts
from simulator.linearizability import Call, first_unexplained, has_order
from simulator.system_mutants import MANY_CONSUMERS, SYSTEM_MUTANTS
from simulator.system_world import run_system

SEEDS, PART = 600, 100
SEEDS_QUICK = (2, 3, 4, 6)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS = 300
CONVICTED_FROM = {
    "answers_before_it_has_read": 3,
    "answers_without_lease": 7,
    "creates_again": 395,
    "position_of_another_log": 10,
    "sets_again": 4,
}
"""The first seed to try with a mutant; 0 for others."""
QUICK_MUTANTS = (
    "history_not_raised",
    "jump_not_noted",
    "sequences_used_again",
)
EXPECTED = (
    *("Create Schema", "Create DatasetExists", "Drop dict", "Drop UnknownDataset"),
    *("Extend Schema", "Extend UnknownDataset", "LookUp Definition", "Retain NoneType"),
    *("Retain VersionedRetention", "Retain UnknownDataset", "recovered", "crash"),
    *("copies changed to 2", "copies changed to 1"),
)


def play(seed: int) -> Counter[str]:
    try:
        return run_system(seed)
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_system_tables_random_histories_are_those_of_one_node(seeds: Iterable[int]) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    assert not [name for name in EXPECTED if not counters[name]]


@pytest.mark.slow
def test_system_tables_same_seed_gives_same_history() -> None:
    histories: list[list[str]] = [[], []]
    for history in histories:
        run_system(1, trace=history.append)
    assert histories[0] == histories[1]


@pytest.mark.parametrize("mutant", keep_quick(SYSTEM_MUTANTS, *QUICK_MUTANTS))
def test_system_tables_mutant_is_convicted(mutant: str) -> None:
    first = CONVICTED_FROM.get(mutant, 0)
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            run_system(seed, mutate=SYSTEM_MUTANTS[mutant])
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS} worlds")


@pytest.mark.slow
def test_system_tables_two_consumers_keep_all_promises() -> None:
    """The journal refuses what another consumer has made obsolete (`Commit.unchanged_since`)."""
    for seed in range(40):
        run_system(seed, mutate=MANY_CONSUMERS)


# --- the judge ---------------------------------------------------------------------------------


def _register(call: Call[int | None], state: int) -> list[int]:
    """Effects at one number: a write of a number, or a read, whose outcome is the number."""
    if call.asked is None:
        return [state] if call.outcome == state else []
    return [call.asked]


def test_linearizability_of_a_number() -> None:
    wrote = Call[int | None](1, 0.0, 1.0, outcome=True)
    lost = Call[int | None](2, 0.0)
    before, after = (Call[int | None](None, 2.0, 3.0, outcome=n) for n in (1, 2))
    late = Call[int | None](None, 4.0, 5.0, outcome=1)
    assert has_order(0, [wrote, before], _register)
    assert has_order(0, [wrote, lost, after], _register)
    assert not has_order(0, [wrote, lost, after, late], _register)
    assert first_unexplained(0, [wrote, lost, after, late], _register) == 5.0
