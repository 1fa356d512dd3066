"""Seeded worlds of workers that push to flaky endpoints, and mutants of their deliveries."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from parameters import keep_quick, seeds_in_parts
from simulator.delivery_mutants import DELIVERY_MUTANTS
from simulator.delivery_world import FAULTS, run_deliveries
from simulator.loop import Violation

SEEDS, PART = 300, 25
SEEDS_QUICK = 1
MUTANT_SEEDS = 3
CONVICTED_FROM = {
    "fence-ignored": 12,
    "lost-release": 36,
    "progress-forgotten": 3,
    "retries-end": 2,
}
"""The first seed to try with a mutant; 0 for the others."""
SLOW = {
    "chunks-together",
    "failure-is-success",
    "lost-release",
    "progress-forgotten",
    "retries-end",
}
SOMETIMES = (
    "accepted",
    "crashes",
    "dead letters",
    "denials",
    "endpoints down",
    "outages",
    "partitions away",
    "pauses",
    "positions",
    "positions in executions",
    "repeated",
    "replays",
    "resumed",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def convicts(seed: int, mutant: str) -> bool:
    try:
        run_deliveries(seed, mutant)
    except Violation:
        return True
    return False


@functools.cache
def play_one(seed: int) -> Counter[str]:
    return run_deliveries(seed)


def play(seeds: range) -> Counter[str]:
    return sum(map(play_one, seeds), Counter[str]())


@pytest.mark.parametrize("seeds", [range(SEEDS_QUICK), *seeds_in_parts(SEEDS, PART)])
def test_everything_is_delivered_in_order_whatever_fails(seeds: range) -> None:
    seen = play(seeds)
    assert seen["accepted"] > 300 * len(seeds)
    assert seen["repeated"] < seen["accepted"] / 4


@pytest.mark.slow(3_000)  # No turn has the time; the worlds before it are in the cache.
def test_many_worlds_have_all_kinds_of_events() -> None:
    seen = play(range(SEEDS))
    assert not [event for event in SOMETIMES if not seen[event]]


@pytest.mark.parametrize("mutant", keep_quick(DELIVERY_MUTANTS, *(DELIVERY_MUTANTS.keys() - SLOW)))
def test_mutants_are_convicted(mutant: str) -> None:
    first = CONVICTED_FROM.get(mutant, 0)
    assert any(convicts(seed, mutant) for seed in range(first, first + MUTANT_SEEDS))


@pytest.mark.slow
def test_a_world_without_faults_repeats_nothing() -> None:
    seen = run_deliveries(1, without=FAULTS)
    assert seen["accepted"] > 100
    assert seen["repeated"] == 0
