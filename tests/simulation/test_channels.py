"""Seeded worlds of channels on real nodes, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter

import pytest
from simulator.channel_mutants import CHANNEL_MUTANTS, run_channel_variant
from simulator.channel_world import MODES, REPLICATED_EVERY, run_channels

SEEDS = range(600)
SEEDS_QUICK = range(REPLICATED_EVERY - len(MODES), REPLICATED_EVERY)
"""One of each mode, the last one with copies."""
MUTANT_SEEDS = 20
CONVICTED_FROM = {
    "absent_subscriptions_skipped": 6,
    "cleaned_past_compared": 21,
    "index_ahead_of_log": 19,
    "subscriptions_before_frontier": 6,
}
"""The first seed to try with a mutant; 0 for others."""
SCENARIOS = {"last_execution_dropped", "own_cut", "unsubscribe_lost_in_take_over"}
"""Mutants that `test_node_channels.py` convicts."""
EXPECTED = (
    "calls repeated",
    "commits repeated",
    "executions",
    "fault crash",
    "gone for readers",
    "notifications due for certain",
    "tables cleaned",
)


def play(seed: int) -> Counter[str]:
    try:
        return run_channels(seed)
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, pytest.param(SEEDS, marks=pytest.mark.slow)])
def test_channels_random_worlds_keep_all_promises(seeds: range) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    assert not [name for name in EXPECTED if not counters[name]]


@pytest.mark.parametrize("seed", [1, REPLICATED_EVERY - 1])
def test_channels_same_seed_gives_same_history(seed: int) -> None:
    histories: list[list[str]] = [[], []]
    for history in histories:
        run_channels(seed, trace=history.append)
    assert histories[0] == histories[1]


@pytest.mark.parametrize("mutant", sorted(CHANNEL_MUTANTS.keys() - SCENARIOS))
def test_channels_mutant_is_convicted(mutant: str) -> None:
    first = CONVICTED_FROM.get(mutant, 0)
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            run_channel_variant(seed, mutant)
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS} worlds")
