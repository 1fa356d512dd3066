"""Seeded worlds of continuous queries over replicated partitions, and mutants of them."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from parameters import seeds_in_parts
from simulator import Outcome
from simulator.__main__ import main
from simulator.replica_cluster import Stalled
from simulator.replicated_mutants import REPLICATED_VARIANTS
from simulator.replicated_world import run_replicated

SEEDS, PART = 300, 30
SEEDS_QUICK = 1
MUTANT_SEEDS = 10
CONVICTED_FROM = {
    "scans_uncommitted": 4,
    "advances_to_end_of_log": 4,
    "scans_without_lease": 6,
    "completes_stale_answers": 11,
    "scans_other_epochs": 10,
    "follows_uncommitted": 1,
    "completes_ranges": 5,
    "leads_before_it_is_open": 14,
    "forgets_batches": 1,
    "stores_batches_again": 1,
    "publishes_appended": 5,
    "takes_own_log": 2,
    "counts_one_less": 2,
}
"""The first seed to try with each mutant, of a short world that convicts it."""
SLOW_MUTANTS = {
    "completes_ranges",
    "counts_one_less",
    "leads_before_it_is_open",
    "publishes_appended",
    "scans_other_epochs",
    "scans_without_lease",
}
"""Mutants whose conviction takes longer than half a second."""
SOMETIMES = (
    "answers served again",
    "backfills",
    "batches sent again",
    "clients crashed",
    "coordinators stranded with leaders",
    "crashes within a step",
    "cycles abandoned",
    "datasets dropped",
    "disks lost",
    "forged tokens refused",
    "frames refused by full disks",
    "frames truncated",
    "frames truncated where scans were answered",
    "leader changes amid a cycle",
    "leaders deposed",
    "leaders that coordinate crash",
    "learners promoted",
    "listings",
    "logs adopted",
    "logs damaged",
    "nodes joined",
    "nodes left",
    "older sets refused",
    "owners changed",
    "offers",
    "packs loaded",
    "partitions",
    "pauses",
    "replicas too far behind",
    "resumptions",
    "scans at other replicas",
    "scans refused by leaders without a lease",
    "scans refused by others",
    "scans under a lease",
    "stretches from holders",
    "successions by overflow",
    "syncs failed",
    "take-overs",
    "tokens ahead",
    "windows closed",
    "windows reopened",
    "worlds with 1 replicas",
    "worlds with 3 replicas",
    "worlds with 5 replicas",
)


@functools.cache  # A test below says that a seed gives the same run every time.
def play(seed: int) -> Outcome:
    try:
        return run_replicated(seed)
    except AssertionError as violation:
        again = f"scripts/sim --world replicated-ccqs --seeds {seed}:{seed + 1} --trace"
        raise AssertionError(f"{violation}; repeat with: {again}") from violation


@pytest.mark.parametrize("seeds", [range(SEEDS_QUICK), *seeds_in_parts(SEEDS, PART)])
def test_replicated_ccqs_random_worlds_keep_all_promises(seeds: range) -> None:
    assert sum(play(seed).delivered for seed in seeds) > 20 * len(seeds)


@pytest.mark.slow(3_000)  # No turn has the time; the worlds before it are in the cache.
@pytest.mark.timeout(1_800)  # seconds of CPU time, which many may share
def test_replicated_ccqs_worlds_have_all_kinds_of_events() -> None:
    outcomes = [play(seed) for seed in range(SEEDS)]
    counters = sum((outcome.counters for outcome in outcomes), Counter[str]())
    never = [name for name in SOMETIMES if not counters[name]]
    assert not never, f"these never happened, so nothing is proved about them: {never}"


@pytest.mark.slow
def test_replicated_ccqs_same_seed_gives_the_same_run() -> None:
    first = play(1)
    assert first == run_replicated(1)
    assert first.trace_hash != play(0).trace_hash


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        pytest.param(*one, marks=pytest.mark.slow if one[0] in SLOW_MUTANTS else ())
        for one in CONVICTED_FROM.items()
    ],
)
def test_replicated_ccqs_mutant_is_convicted(mutant: str, first: int) -> None:
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            run_replicated(seed, mutant)
        except Stalled:
            continue
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS} worlds")


def test_replicated_ccqs_every_mutant_is_tried() -> None:
    assert {"production", *CONVICTED_FROM} == set(REPLICATED_VARIANTS)


def test_sim_command_prints_how_to_repeat_a_world_of_replicated_ccqs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["scripts/sim", "--world", "replicated-ccqs", "--variant", "stores_batches_again"]
    monkeypatch.setattr("sys.argv", [*words, "--seeds", "0:1", "--without", "rot"])
    assert main() == 1
    again = "--world replicated-ccqs --seeds 0:1 --variant stores_batches_again --without rot"
    assert again in capsys.readouterr().out


def test_sim_command_unknown_variant_names_those_of_the_world(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["scripts/sim", "--variant", "takes_own_log"])
    with pytest.raises(SystemExit):
        main()
    assert "expected one of production, " in capsys.readouterr().err
