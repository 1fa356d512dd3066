"""Seeded worlds of the production machines, and the mutants that must not survive them."""

from __future__ import annotations

import functools
import time
from collections import Counter

import pytest
from parameters import keep_quick, seeds_in_parts
from simulator import ALWAYS, FAULTS, VARIANTS, Outcome, run, shrunk
from simulator.__main__ import main

SEEDS, PART = 300, 50
SEEDS_QUICK = 3
MUTANT_SEEDS_MAX = 160
CONVICTED_FROM = {
    "accept_stale_reply": 6,
    "advance_before_store": 7,
    "advance_on_failure": 11,
    "answer_uncommitted": 10,
    "begin_past_holder": 3,
    "begin_past_saved": 2,
    "boundary_inclusive": 2,
    "drop_past_readers": 12,
    "ends_untold": 3,
    "forget_early": 14,
    "forget_held": 6,
    "forget_windows": 1,
    "hold_halfway": 92,
    "ignore_drops": 10,
    "lazy_fsync": 7,
    "lose_spills": 24,
    "move_anyway": 2,
    "no_producer_dedup": 15,
    "offer_nothing": 21,
    "once_always": 6,
    "overlook_names": 6,
    "paper": 3,
    "resume_from_evaluated": 3,
    "revive_by_merge": 19,
    "run_unnamed": 11,
    "skip_when_late": 9,
    "stay_named": 13,
    "take_dropped": 29,
    "token_unchecked": 2,
    "topics_of_now": 14,
}
"""The first seed to try with some mutants, of a short world that convicts it."""
SLOW_MUTANTS = {
    "accept_stale_reply",
    "advance_on_failure",
    "answer_uncommitted",
    "begin_past_saved",
    "boundary_inclusive",
    "conceal_what_is_gone",
    "ends_untold",
    "forget_early",
    "forget_held",
    "hold_halfway",
    "lazy_fsync",
    "offer_nothing",
    "revive_by_merge",
    "run_unnamed",
    "skip_when_late",
    "stay_named",
    "take_all",
    "token_unchecked",
    "topics_of_now",
}
"""Mutants whose conviction takes longest."""

SOMETIMES = (
    "answers cut",
    "answers ignored",
    "answers served again",
    "answers that name what is gone",
    "backfills",
    "batches answered",
    "batches answered from the log",
    "batches repeated",
    "changes without an answer",
    "clients crashed",
    "commits lost for good",
    "coordinators deposed or ended",
    "crashes",
    "crashes within a step",
    "cycles abandoned",
    "cycles failed",
    "cycles lost",
    "datasets dropped",
    "deaths suspected",
    "drains of coordinators",
    "drops",
    "drops held back by readers",
    "drops put off",
    "fetches refused",
    "forged tokens refused",
    "hints without a leader",
    "holders lost",
    "intervals stretched",
    "leaders of the system partition",
    "listings",
    "living nodes suspected",
    "nodes joined",
    "nodes left",
    "offers",
    "outages of the system partition",
    "packs loaded",
    "packs spilled",
    "pages that are not the last",
    "partitions",
    "pauses",
    "placements over a limit",
    "records without living nodes",
    "redirects",
    "resumptions",
    "rows restored",
    "spill files damaged",
    "stretches from holders",
    "successions by overflow",
    "sweeps that forget",
    "take-overs",
    "tokens ahead",
    "torn tails",
    "windows closed",
    "windows reopened",
)


@functools.cache  # A test below says that a seed gives the same run every time.
def play(seed: int, variant: str = "production") -> Outcome:
    try:
        return run(seed, variant)
    except AssertionError as violation:
        again = f"scripts/sim --seeds {seed}:{seed + 1} --variant {variant} --trace"
        raise AssertionError(f"{violation}; repeat with: {again}") from violation


@pytest.mark.parametrize("seeds", [range(SEEDS_QUICK), *seeds_in_parts(SEEDS, PART)])
def test_simulator_random_worlds_keep_all_promises(seeds: range) -> None:
    assert sum(play(seed).delivered for seed in seeds) > 100 * len(seeds)


@pytest.mark.slow(3_000)  # No turn has the time; the worlds before it are in the cache.
@pytest.mark.timeout(1_800)  # seconds of CPU time, which many may share
def test_simulator_worlds_have_all_kinds_of_events(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("seed", [3, pytest.param(11, marks=pytest.mark.slow)])
def test_simulator_same_seed_gives_the_same_run(seed: int) -> None:
    first = play(seed)
    assert first == run(seed, "production")
    assert first.trace_hash != play(seed + 1).trace_hash


@pytest.mark.parametrize(
    "variant",
    keep_quick(
        [name for name in VARIANTS if name != "production"],
        *(VARIANTS.keys() - SLOW_MUTANTS - {"production"}),
    ),
)
def test_simulator_mutant_is_convicted(variant: str) -> None:
    first = CONVICTED_FROM.get(variant, 0)
    if not any(_fails(seed, variant) for seed in range(first, first + MUTANT_SEEDS_MAX)):
        pytest.fail(f"{variant} survived {MUTANT_SEEDS_MAX} worlds")


@pytest.mark.slow
def test_simulator_violation_is_shrunk_to_the_faults_it_needs() -> None:
    seeds = range(MUTANT_SEEDS_MAX)
    seed = next(seed for seed in seeds if "not there" in _violation(seed, "lazy_fsync"))
    without, found = shrunk(seed, "lazy_fsync")
    needed = {*FAULTS, *ALWAYS} - without
    # An acknowledged commit is lost, and with it perhaps the newest time.
    assert "not there" in str(found) or "event clock" in str(found)
    assert needed
    assert needed & {"crash", "crash_again", "crash_leader", "crash_in_step"}
    assert len(needed) < len(FAULTS)
    assert _fails(seed, "lazy_fsync", without=without)
    assert not any(_fails(seed, "lazy_fsync", without=without | {kind}) for kind in needed)


@pytest.mark.slow
def test_shrink_world_without_violation_raises_value_error() -> None:
    with pytest.raises(ValueError, match="all is well"):
        shrunk(0, "production")


def _violation(seed: int, variant: str) -> str:
    try:
        run(seed, variant)
    except AssertionError as violation:
        return str(violation)
    return ""


@functools.cache  # a seed gives the same run every time, as a test above says
def _fails(seed: int, variant: str, *, without: frozenset[str] = frozenset()) -> bool:
    try:
        run(seed, variant, without=without)
    except AssertionError:
        return True
    return False


@pytest.mark.slow
def test_sim_command_prints_seeds_for_each_mutant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["scripts/sim", "--mutants", "--variant", "lazy_fsync", "--seeds"]
    outcomes = [_fails(seed, "lazy_fsync") for seed in range(30)]
    survived = outcomes.index(False)
    monkeypatch.setattr("sys.argv", [*words, "0:30"])
    assert main() == 0
    assert f"{outcomes.index(True) + 1} seeds to kill lazy_fsync" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*words, f"{survived}:{survived + 1}"])
    assert main() == 1
    assert "lazy_fsync survived 1 seeds" in capsys.readouterr().out


@pytest.mark.slow
def test_sim_command_shrinks_and_prints_how_to_repeat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["scripts/sim", "--variant", "lazy_fsync", "--seeds", "0:30", "--shrink"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 1
    output = capsys.readouterr().out
    assert "needs no more than" in output
    assert "--variant lazy_fsync --without" in output
