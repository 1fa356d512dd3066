"""Seeded worlds of the replicated register, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from parameters import seeds_in_parts
from simulator.register_world import REGISTER_MUTANTS, run_register

from galileo.dht.register import (
    NODES_MAX,
    Accept,
    Ballot,
    ChangeRequested,
    Effects,
    Entry,
    Prepare,
    Promise,
    Register,
    RegisterMessageArrived,
    Reject,
    SendTo,
    directory_of,
    first_state,
    node_of,
)

SEEDS, PART = 2_000, 500
SEEDS_QUICK = range(11, 21)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS_MAX = 1_500
CONVICTED_FROM = {"counts_any_directory": 27, "forgets_new": 40, "leaves_seats_open": 46}
"""The first seed to try with a mutant, where that is not the first of all."""
SURVIVING_LONG = ("promise_not_saved", "changes_unchosen", "shares_ballots")
"""Mutants that the first worlds do not convict."""


def play(seed: int) -> Counter[str]:
    try:
        return run_register(seed).counters
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_register_random_worlds_keep_all_invariants(seeds: range) -> None:
    counters = sum(map(play, seeds), Counter[str]())
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
    for seed in range(CONVICTED_FROM.get(mutant, 0), MUTANT_SEEDS_MAX):
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
    first = replace(first_state(["a", "b"], ""), promised=10_000_000)
    ballots = [
        _ballots(Register("c", 2, first, directory=one).step(ChangeRequested(1, _add), 0.0))
        for one in ("x", "y")
    ]
    assert not set(ballots[0]) & set(ballots[1])


@pytest.mark.parametrize(
    ("answering", "is_enough"),
    [
        (["a@1", "b@1"], True),
        (["a@2", "b@1"], True),
        (["a@1", "b@2"], True),
        (["a@2", "b@2"], False),
        (["a@1"], False),
    ],
)
def test_register_of_two_voters_needs_both_and_the_directory_of_one(
    answering: list[str], is_enough: bool
) -> None:
    asking = Register("c", 2, first_state(["a@1", "b@1"], ""))
    (ballot,) = set(_ballots(asking.step(ChangeRequested(1, _add), 0.0)))
    effects: Effects = []
    for seat in answering:
        promise = Promise(ballot, asking.state.accepted, directory_of(seat))
        effects += asking.step(RegisterMessageArrived(node_of(seat), promise), 0.0)
    proposed = [one for one in effects if isinstance(one, SendTo)]
    assert any(isinstance(one.message, Accept) for one in proposed) is is_enough


def test_register_whose_voters_are_all_replaced_learns_the_others_from_an_advisor() -> None:
    asking = Register("d", 3, first_state(["a@1"], ""))
    effects = asking.step(ChangeRequested(1, _add, ("b",)), 0.0)
    assert {one.to for one in effects if isinstance(one, SendTo)} == {"a", "b"}
    later = Ballot(1, Entry(7, ("b@1",), ("b@1",), ""))
    promise = Promise(_ballots(effects)[0], later, "1")
    effects = asking.step(RegisterMessageArrived("b", promise), 0.0)
    accepts = [one.message for one in effects if isinstance(one, SendTo)]
    assert [one.entry for one in accepts if isinstance(one, Accept)] == [later.entry]


def test_register_that_pauses_counts_no_answer_to_a_ballot_of_its_lost_directory() -> None:
    asking = Register("c", 2, first_state(["a", "b"], ""))
    (ballot,) = set(_ballots(asking.step(ChangeRequested(1, _add), 0.0)))
    other = ballot + 10 * NODES_MAX
    asking.step(RegisterMessageArrived("a", Reject(ballot, other)), 0.0)
    for voter in "ab":
        promise = Promise(other, asking.state.accepted)
        assert asking.step(RegisterMessageArrived(voter, promise), 0.0) == []


def _add(entry: Entry) -> Entry:
    return replace(entry, data="changed")


def _ballots(effects: Effects) -> list[int]:
    sent = [one.message for one in effects if isinstance(one, SendTo)]
    return [message.ballot for message in sent if isinstance(message, Prepare)]
