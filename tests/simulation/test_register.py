"""Seeded worlds of the replicated register, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from simulator.register_world import REGISTER_MUTANTS, run_register

from galileo.dht.register import (
    ChangeRequested,
    Effects,
    Entry,
    Prepare,
    Register,
    SendTo,
    first_state,
)

SEEDS = 2_000
SEEDS_QUICK = 60
MUTANT_SEEDS_MAX = 600
SURVIVING_LONG = ("promise_not_saved", "changes_unchosen", "shares_ballots")
"""Mutants that the first worlds do not convict."""


def play(seed: int) -> Counter[str]:
    try:
        return run_register(seed).counters
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, pytest.param(SEEDS, marks=pytest.mark.slow)])
def test_register_random_worlds_keep_all_invariants(seeds: int) -> None:
    counters = sum(map(play, range(seeds)), Counter[str]())
    expected = (
        *("changes finished", "changes given up", "isolate"),
        *("directories lost", "seats changed"),
    )
    never = [name for name in expected if not counters[name]]
    assert not never


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SURVIVING_LONG else [])
        for name in REGISTER_MUTANTS
    ],
)
def test_register_mutant_is_convicted(mutant: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            run_register(seed, mutant)
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS_MAX} worlds")


def test_register_restart_mid_proposal_uses_a_higher_ballot() -> None:
    first = Register("c", 2, first_state(["a", "b"], ""))
    asked = first.step(ChangeRequested(1, _add), 0.0)
    again = Register("c", 2, first.state)
    assert _ballots(again.step(ChangeRequested(2, _add), 1.0)) > _ballots(asked)


def test_register_of_another_directory_uses_other_ballots() -> None:
    """Late messages of the lost directory would count for the other's entry."""
    directories = [first_state(["a", "b"], "", directory=one) for one in ("x", "y")]
    ballots = [
        _ballots(Register("c", 2, state).step(ChangeRequested(1, _add), 0.0))
        for state in directories
    ]
    assert not set(ballots[0]) & set(ballots[1])


def _add(entry: Entry) -> Entry:
    return replace(entry, data="changed")


def _ballots(effects: Effects) -> list[int]:
    sent = [one.message for one in effects if isinstance(one, SendTo)]
    return [message.ballot for message in sent if isinstance(message, Prepare)]
