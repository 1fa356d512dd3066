"""Seeded worlds of replicated partitions, and the mutants that must not survive them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from parameters import keep_quick, seeds_in_parts
from simulator.replica_cluster import Stalled
from simulator.replica_mutants import REPLICA_MUTANTS
from simulator.replica_world import run_replicas

SEEDS, PART = 1_000, 200
SEEDS_QUICK = (1, 2, 6, 8, 9, 19, 24, 26, 28, 29, 47, 49)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS = 20
CONVICTED_FROM = {
    "acknowledges_unsynced": 292,
    "announces_appended": 75,
    "publishes_appended": 0,
    "counts_one_less": 0,
    "elects_with_one_less": 0,
    "takes_own_log": 0,
    "ignores_predecessor": 0,
    "acknowledges_appended": 0,
    "acknowledges_known": 6,
    "stores_batches_again": 0,
    "reports_sync_early": 10,
    "reports_save_early": 34,
    "takes_older_sets": 24,
    "alone_with_others": 0,
    "tells_nothing_written_alone": 2,
}
"""The first seed to try with each mutant."""
SLOW_MUTANTS = {"acknowledges_unsynced", "reports_sync_early"}
"""Mutants whose conviction takes longer than the others together."""
EXPECTED = (
    "batches repeated",
    "commits",
    "commits alone",
    "disks lost",
    "frames refused by full disks",
    "frames truncated",
    "leaders deposed",
    "learners promoted",
    "logs adopted",
    "logs damaged",
    "older sets refused",
    "reads under a lease",
    "suspects waited for",
    "syncs failed",
    "terms led",
)


def play(seed: int) -> Counter[str]:
    try:
        return run_replicas(seed)
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_replicas_random_worlds_keep_all_promises(seeds: Iterable[int]) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    never = [name for name in EXPECTED if not counters[name]]
    assert not never


@pytest.mark.parametrize(
    "mutant", keep_quick(CONVICTED_FROM, *(CONVICTED_FROM.keys() - SLOW_MUTANTS))
)
def test_replicas_mutant_is_convicted(mutant: str) -> None:
    first = CONVICTED_FROM[mutant]
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            run_replicas(seed, *REPLICA_MUTANTS[mutant])
        except Stalled:
            continue
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS} worlds")
