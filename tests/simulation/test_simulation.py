"""Seeded worlds of the production machines, and the mutants that must not survive them."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from galileo.testing.simulator import VARIANTS, Outcome, run

SEEDS = 300
MUTANT_SEEDS_MAX = 120

SOMETIMES = (
    "answers cut",
    "answers ignored",
    "answers served again",
    "backfills",
    "batches answered from the log",
    "clients crashed",
    "coordinators deposed or ended",
    "crashes",
    "crashes within a step",
    "cycles abandoned",
    "cycles failed",
    "cycles lost",
    "deaths suspected",
    "fetches refused",
    "forged tokens refused",
    "partitions",
    "pauses",
    "records lost",
    "redirects",
    "resumptions",
    "take-overs",
    "tokens ahead",
    "torn tails",
)


def play(seed: int, variant: str = "production") -> Outcome:
    try:
        return run(seed, variant)
    except AssertionError as violation:
        again = f"scripts/sim --seeds {seed}:{seed + 1} --variant {variant} --trace"
        raise AssertionError(f"{violation}; repeat with: {again}") from violation


def test_all_promises_hold_in_every_world(capsys: pytest.CaptureFixture[str]) -> None:
    started, counters, delivered = time.process_time(), Counter[str](), 0
    for seed in range(SEEDS):
        outcome = play(seed)
        counters += outcome.counters
        delivered += outcome.delivered
    with capsys.disabled():
        seconds = time.process_time() - started
        print(f"\n{SEEDS} worlds, {delivered} deliveries, {seconds:.0f} s: {dict(counters)}")
    never = [name for name in SOMETIMES if counters[name] == 0]
    assert not never, f"these never happened, so nothing is proved about them: {never}"
    assert delivered > 100 * SEEDS


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_gives_the_same_run_every_time(seed: int) -> None:
    first, second = play(seed), play(seed)
    assert first == second
    assert first.trace_hash != play(seed + 1).trace_hash


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "production"])
def test_mutant_is_killed(variant: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            run(seed, variant)
        except AssertionError:
            return
    pytest.fail(f"{variant} survived {MUTANT_SEEDS_MAX} worlds")
