"""Seeded worlds of channels on real nodes, and the mutants that must not survive them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from parameters import keep_quick, seeds_in_parts
from patches import patched
from replica_nodes import topology_of, until
from simulator.channel_mutants import CHANNEL_MUTANTS, run_channel_variant
from simulator.channel_world import (
    KEYED_FROM,
    OF_QUERIES,
    REPLICATED_EVERY,
    Plan,
    SimulatedWorld,
    run_channels,
)
from simulator.virtual_time import SimulatedLoop, run_simulated

from galileo.cursor import Cursor
from galileo.dht.topology import Topology
from galileo.node.query_limits import FAILOVER_RETRY_S

SEEDS, PART = 600, 50
SEEDS_QUICK = (11, 14, 15, 16, 17, 19, 20)
"""Short worlds, one of each mode: the first one with rows of tables, one with copies."""
KEYED_SEEDS = 280
KEYED_QUICK = (1, 9, 11)
"""With histories: one whose pairs leave, and one of a repetitive channel, with copies."""
LAST_ONE_GONE = 3954
"""The last subscription of a partition of a repetitive channel goes after its last execution."""
MUTANT_SEEDS = 20
CONVICTED_FROM = {
    "absent_subscriptions_skipped": 8,
    "cleaned_past_compared": 40,
    "copies_as_new": 6,
    "index_ahead_of_log": 26,
    "matched_by_one_dropped": 10,
    **dict.fromkeys((one for one in CHANNEL_MUTANTS if one.startswith("repeats")), 6),
    "replaced_stay": KEYED_FROM + 1,
    "replaced_unread": KEYED_FROM + 1,
    "replaced_with_changed": KEYED_FROM + 4,
    "replaced_without_successors": KEYED_FROM + 4,
    "repeats_after_take_over": 35,
    "rows_cleaned_past_compared": 10,
    "rows_newer_than_cut": 12,
    "rows_not_followed": 8,
    "rows_read_anew_as_new": 8,
    "subscriptions_before_frontier": 7,
    "unknown_as_matched": 10,
    "unmatched_dropped": 10,
    "versions_copied_as_new": KEYED_FROM + 1,
    "versions_not_held": KEYED_FROM + 18,
}
"""The first seed to try with a mutant; 0 for others."""
SCENARIOS = {
    "deletions_dropped_alone",
    "last_execution_dropped",
    "own_cut",
    "rows_ahead_of_log",
    "unsubscribe_lost_in_take_over",
}
"""Mutants that `test_node_channels.py` and `test_node_table_cleaner.py` convict."""
SLOW_MUTANTS = {
    "absent_as_matched",
    "absent_subscriptions_skipped",
    "closed_at_the_beginning",
    "copies_as_new",
    "history_not_extended",
    "index_ahead_of_log",
    "matched_by_one_dropped",
    "rows_newer_than_cut",
    "rows_not_followed",
    "rows_read_anew_as_new",
    "subscriptions_as_heard",
    "subscriptions_before_frontier",
    "unknown_as_matched",
    "unmatched_dropped",
    *(
        one
        for one in CHANNEL_MUTANTS
        if one.startswith(("cleaned", "repeats", "replaced", "rows_cleaned", "versions"))
    ),
}
"""Mutants whose conviction takes longest."""
EXPECTED = (
    "calls repeated",
    "commits repeated",
    "executions",
    "fault crash",
    "gone for readers",
    "looked-up tables cleaned",
    "matched observations dropped",
    "notifications due for certain",
    "tables cleaned",
)


def play(seed: int) -> Counter[str]:
    try:
        return run_channels(seed)
    except AssertionError as violation:
        raise AssertionError(f"seed {seed}: {violation}") from violation


def test_repetitive_channel_without_subscriptions_is_not_executed() -> None:
    play(LAST_ONE_GONE)


@pytest.mark.parametrize("seeds", [SEEDS_QUICK, *seeds_in_parts(SEEDS, PART)])
def test_channels_random_worlds_keep_all_promises(seeds: Sequence[int]) -> None:
    counters = sum(map(play, seeds), Counter[str]())
    assert not [name for name in EXPECTED if not counters[name]]


@pytest.mark.parametrize("seeds", [KEYED_QUICK, *seeds_in_parts(KEYED_SEEDS, PART)])
def test_channels_over_keyed_datasets_keep_all_promises(seeds: Sequence[int]) -> None:
    counters = sum((play(KEYED_FROM + seed) for seed in seeds), Counter[str]())
    assert counters["notifications due for certain"]
    assert counters["observations cleaned"]


@pytest.mark.parametrize("seed", [1, REPLICATED_EVERY - 1])
@pytest.mark.slow
def test_channels_same_seed_gives_same_history(seed: int) -> None:
    histories: list[list[str]] = [[], []]
    for history in histories:
        run_channels(seed, trace=history.append)
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    "mutant",
    keep_quick(
        sorted(CHANNEL_MUTANTS.keys() - SCENARIOS),
        *(CHANNEL_MUTANTS.keys() - SCENARIOS - SLOW_MUTANTS),
    ),
)
def test_channels_mutant_is_convicted(mutant: str) -> None:
    first = CONVICTED_FROM.get(mutant, 0)
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            run_channel_variant(seed, mutant)
        except AssertionError:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS} worlds")


# --- a part of the dataset that has no leader ----------------------------------------------------


class _TwoGroups(Plan):
    """Each group has half of the partitions, with three copies."""

    @property
    def topology(self) -> Topology:
        return topology_of(["abc", "def"])


def test_channels_do_not_wait_for_partitions_without_a_leader(tmp_path: Path) -> None:
    """They are left out after a second, and matched when there is one again."""

    async def play(loop: SimulatedLoop) -> float:
        world = SimulatedWorld(tmp_path, 0, _TwoGroups(is_kept=True), loop=loop)
        await world.begin()
        try:
            await until(world, world.is_settled)
            versions = world.audit.change({f"s{n}": ("east", -1.0) for n in range(12)})
            await world.store({f"s{n}": ("east", -1.0) for n in range(12)}, producer="s", batch=0)
            world.audit.settle(versions)
            await world.send(0)
            reached = world.published("nam")
            for name in "def":
                await world.crash(name, is_lost=False)
            begun = loop.time()
            for host in world.hosts.values():
                host.node.view.update_sequences("nam", reached)
            here = Cursor({p: s for p, s in reached.items() if p < 2})
            assert 0 < len(here) < len(reached)

            def are_matched() -> bool:
                logs = [world.audit.log[p] for p in range(2)]
                return all(log and Cursor(log[max(log)].until).covers(here) for log in logs)

            await until(world, are_matched)
            took_s = loop.time() - begun
            gossip = asyncio.create_task(world.gossip())
            await world.settle()
            await world.catch_up()
            world.judge()
            gossip.cancel()
        finally:
            await world.close()
        return took_s

    # Queries wait for leaders as long as by default.
    with patched({**OF_QUERIES, "galileo.node.query_limits.FAILOVER_RETRY_S": FAILOVER_RETRY_S}):
        assert run_simulated(0, play) < 5.0
