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
SEEDS_QUICK = (1, 2, 31, 35, 44, 49, 55, 58, 126)
"""Short worlds that together have everything that is expected."""
MUTANT_SEEDS = 20
CONVICTED_FROM = {
    "acknowledges_unsynced": 158,
    "announces_appended": 27,
    "publishes_appended": 5,
    "counts_one_less": 0,
    "elects_with_one_less": 3,
    "takes_own_log": 3,
    "ignores_predecessor": 0,
    "acknowledges_appended": 0,
    "acknowledges_known": 7,
    "stores_batches_again": 0,
    "reports_sync_early": 7,
    "reports_save_early": 7,
    "takes_older_sets": 1,
    "drops_itself": 9,
    "alone_with_others": 0,
    "tells_nothing_written_alone": 0,
}
"""The first seed to try with each mutant."""
SLOW_MUTANTS = {"acknowledges_unsynced", "reports_sync_early"}
"""Mutants whose conviction takes longer than the others together."""
EXPECTED = (
    "batches repeated",
    "commits",
    "commits alone",
    "copies given up",
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
