"""Seeded worlds of membership and gossip, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter

import pytest
from parameters import keep_quick, seeds_in_parts
from simulator.gossip_world import GOSSIP_MUTANTS, measure_gossip, run_gossip

SEEDS, PART = 2_000, 250
SEEDS_QUICK = range(18, 24)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS_MAX = 200
CONVICTED_FROM = {
    "answers_without_deltas": 1,
    "drops_entries": 1,
    "ignores_gaps": 25,
    "ignores_own_lag": 3,
    "ignores_runs": 2,
    "never_dead": 7,
    "never_outruns": 18,
    "no_relay": 14,
    "repeats_revive": 3,
    "short_timeout": 10,
    "takes_older_runs": 9,
    "takes_versions_of_digests": 1,
}
"""The first seed to try with a mutant, where that is not the first of all."""
CONVICTED = [name for name in GOSSIP_MUTANTS if name]
SLOW_MUTANTS = {"ignores_gaps", "leaves_the_dead", "short_timeout", "takes_older_runs"}
"""Mutants whose conviction takes longer than half a second."""


def play(seed: int) -> Counter[str]:
    try:
        return run_gossip(seed).counters
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_gossip_random_worlds_keep_all_invariants(seeds: range) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    never = [name for name in ("deaths", "disk", "isolate", "leave") if not counters[name]]
    assert not never


@pytest.mark.parametrize(
    "mutant", keep_quick(CONVICTED, *(name for name in CONVICTED if name not in SLOW_MUTANTS))
)
def test_gossip_mutant_is_convicted(mutant: str) -> None:
    for seed in range(CONVICTED_FROM.get(mutant, 0), MUTANT_SEEDS_MAX):
        try:
            run_gossip(seed, mutant)
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS_MAX} worlds")


def test_gossip_same_seed_plays_the_same_world() -> None:
    assert run_gossip(7).trace_hash == run_gossip(7).trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [24, 100])
def test_gossip_of_large_clusters_has_bounded_work(nodes: int) -> None:
    measured = measure_gossip(nodes, loss=0.05)
    assert measured.false_deaths == 0
    assert measured.exchanges_s < 1.2 * 2 * 2, "begun and answered, twice a second"
    assert measured.noticed_s[-1] < 10.0
    assert measured.spread_s[-1] < 6.0
