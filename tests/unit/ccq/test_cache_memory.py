"""What a node does when its caches are too full: in order, and no more than is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ccq_driver import CCQ, WALL, Driver, only, path
from simulator.logs import to_labels, to_paths

from galileo.ccq import cache_memory, moves
from galileo.ccq.events import (
    Backfill,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    DropSpills,
    ElectNodes,
    FetchRequested,
    LoadPacks,
    NodesElected,
    PacksLoaded,
    PacksSpilled,
    SpillPacks,
    StartCycle,
    UsageMeasured,
)
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import PeerDied
from galileo.election.election import Candidacy
from galileo.election.ranking import UsageStatistics

PACK = to_labels([path(0, 1)]).size  # type: ignore[union-attr]
"""Bytes of the cache after a cycle that found one label."""
SMALL = {"cache_bytes_max": 5 * PACK, "spill_bytes_max": 100 * PACK}
NO_FILES = {"cache_bytes_max": 5 * PACK, "spill_bytes_max": 1}


@pytest.fixture(autouse=True)
def _seldom_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers come seldom enough for every CCQ to be spilled."""
    monkeypatch.setattr(cache_memory, "SPILL_IDLE_S", 0.0)


@pytest.fixture
def _often_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers come too often for any CCQ to be spilled."""
    monkeypatch.setattr(cache_memory, "SPILL_IDLE_S", 1e9)


def fill(driver: Driver, *sequences: int) -> list:
    """One cycle for each commit, which finds a label of each CCQ; what the last one led to."""
    effects: list = []
    for sequence in sequences:
        driver.feed(CommitsObserved("d", Cursor({0: sequence})))
        (start,) = only(driver.tick(float(sequence)), StartCycle)
        labels = to_labels([path(0, sequence)])
        results = [
            CycleResult(one.ccq.id, one.term, one.after, labels, Cursor({0: sequence}))
            for one in start.items
        ]
        effects = driver.feed(CycleFinished(start.cycle_id, tuple(results)))
    return effects


def sought(effects: list) -> list[Candidacy]:
    """What nodes are elected for."""
    return [candidacy for one in only(effects, ElectNodes) for candidacy in one.candidacies]


def cached(driver: Driver) -> int:
    return driver.machine.usage.cache_bytes


def test_cache_budget_not_reached_does_nothing() -> None:
    driver = Driver(**NO_FILES)
    driver.lead()
    driver.lead(replace(CCQ, id="r", dataset="other"))
    assert fill(driver, 1, 2, 3, 4) == []
    assert driver.tick(9.0) == []
    assert cached(driver) == 4 * PACK


def test_cache_budget_reached_idle_ccq_is_spilled() -> None:
    driver = Driver(**SMALL)
    driver.lead()
    effects = fill(driver, 1, 2, 3, 4, 5)
    (spill,) = only(effects, SpillPacks)
    assert to_paths(spill.labels) == [path(0, sequence) for sequence in range(1, 6)]
    assert sought(effects) == []
    assert cached(driver) == 5 * PACK, "until it is written"
    assert driver.feed(PacksSpilled(spill.number, 77)) == []
    assert (cached(driver), driver.machine.state.cache_usage.spilled_bytes) == (0, 77)


@pytest.mark.usefixtures("_often_read")
def test_cache_budget_reached_active_ccq_is_offered_to_peers() -> None:
    driver = Driver(**SMALL)
    driver.lead()
    effects = fill(driver, 1, 2, 3, 4, 5)
    assert only(effects, SpillPacks) == []
    (candidacy,) = sought(effects)
    assert (candidacy.need_bytes, candidacy.excluded) == (5 * PACK, ("a",))
    assert candidacy.only_suitable
    assert sought(driver.tick(6.0)) == [], "one election is under way"


def without_taker(**options) -> Driver:
    """A machine that no node relieves of its CCQ, for want of memory."""
    driver = Driver(**options)
    driver.lead()
    assert sought(fill(driver, 1, 2, 3, 4, 5))
    assert driver.feed(NodesElected({"q": ()})) == []
    return driver


@pytest.mark.usefixtures("_often_read")
def test_cache_overflow_without_a_taker_seeks_one_again_later() -> None:
    driver = without_taker(**(SMALL | {"spill_bytes_max": 1}))
    assert sought(driver.tick(14.9)) == []
    assert [candidacy.key for candidacy in sought(driver.tick(15.5))] == ["q"]


@pytest.mark.usefixtures("_often_read")
def test_cache_overflow_without_a_taker_is_spilled() -> None:
    driver = without_taker(**SMALL)
    (spill,) = only(driver.tick(6.0), SpillPacks)
    assert len(spill.labels) == 5


@pytest.mark.usefixtures("_often_read")
def test_cache_overflow_names_its_cpu_share_for_equally_busy_nodes() -> None:
    driver = Driver(**SMALL)
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=1 << 30, cpu_share=0.97)))
    driver.lead()
    (candidacy,) = sought(fill(driver, 1, 2, 3, 4))
    assert candidacy.cpu_share == 1.0


@pytest.mark.usefixtures("_often_read")
def test_cache_overflow_transfers_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for transfers in (1, 2):
        monkeypatch.setattr(moves, "SUCCESSIONS_MAX", transfers)
        driver = Driver(**SMALL)
        driver.lead()
        driver.lead(replace(CCQ, id="r"))
        driver.lead(replace(CCQ, id="s"))
        assert len(sought(fill(driver, 1, 2))) == transfers


@pytest.mark.usefixtures("_often_read")
def test_cache_overflow_no_live_peer_or_holder_left_elects_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Driver(**SMALL)
    for peer in ("b", "c"):
        alone.feed(PeerDied(peer))
    alone.lead()
    assert sought(fill(alone, 1, 2, 3, 4, 5)) == []
    monkeypatch.setattr(cache_memory, "HOLDERS_MAX", 0)
    held = Driver(**SMALL)
    held.lead()
    assert sought(fill(held, 1, 2, 3, 4, 5)) == []


def test_cache_beyond_budget_drops_oldest_labels_of_largest() -> None:
    driver = Driver(nodes=("a",), **NO_FILES)
    driver.lead()
    assert fill(driver, 1, 2, 3, 4, 5, 6) == []
    assert cached(driver) == 5 * PACK
    (rescan,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert isinstance(rescan, Backfill)
    assert rescan.until == Cursor({0: 1})


def test_cache_budget_little_free_memory_is_smaller() -> None:
    driver = Driver(nodes=("a",), **(NO_FILES | {"cache_bytes_max": 1 << 30}))
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=2 * PACK)))
    driver.lead()
    fill(driver, 1, 2, 3, 4)
    assert cached(driver) == 2 * PACK


def test_cache_budget_spill_failed_and_peers_refuse_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_memory, "SPILL_RETRY_S", 3.0)
    driver = Driver(**SMALL)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    effects = driver.feed(PacksSpilled(spill.number, None))
    assert only(effects, SpillPacks) == [], "the disk is left alone for a while"
    assert [candidacy.key for candidacy in sought(effects)] == ["q"]
    fill(driver, 6, 7)
    assert cached(driver) <= 5 * PACK
    assert only(driver.tick(8.1), SpillPacks)


def test_spill_beyond_spill_bytes_max_is_dropped() -> None:
    driver = Driver(nodes=("a",), **(SMALL | {"spill_bytes_max": 5 * PACK}))
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 5 * PACK))
    assert only(fill(driver, 6, 7, 8, 9, 10, 11), SpillPacks) == []
    assert cached(driver) <= 5 * PACK


def test_spilled_packs_fetched_twice_are_loaded_once() -> None:
    driver = Driver(nodes=("a",), **SMALL)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    assert driver.feed(FetchRequested(1, "q", EMPTY_CURSOR)) == [LoadPacks(spill.number, CCQ)]
    assert driver.feed(FetchRequested(2, "q", EMPTY_CURSOR)) == []
    first, second = driver.feed(PacksLoaded(spill.number, "q", spill.labels))
    assert (first.request, second.request) == (1, 2)
    assert to_paths(first.labels) == to_paths(second.labels) == to_paths(spill.labels)
    assert cached(driver) == 0


def test_fetch_spill_dropped_meanwhile_is_backfilled() -> None:
    driver = Driver(nodes=("a",), **SMALL)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    effects = driver.feed(FetchRequested(2, "q", Cursor({0: 5})))
    assert only(effects, DropSpills) == [DropSpills((spill.number,))]
    (rescan,) = only(effects, Backfill)
    assert (rescan.request, rescan.until) == (1, Cursor({0: 5}))
    assert driver.feed(PacksLoaded(spill.number, "q", None)) == []


def test_fetch_spill_not_loaded_is_unavailable() -> None:
    driver = Driver(nodes=("a",), **SMALL)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    (refusal,) = driver.tick(40.0)
    assert refusal.failure.kind == "unavailable"


def test_spilled_packs_before_next_fetch_are_loaded_ahead() -> None:
    driver = Driver(nodes=("a",), **SMALL)
    driver.lead()
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=1 << 30, cpu_share=1.0)))
    (spill,) = only(fill(driver, 1, 2, 3, 4), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    driver.tick(100.0)
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    driver.feed(PacksLoaded(spill.number, "q", spill.labels))
    driver.tick(130.0)
    driver.feed(FetchRequested(2, "q", EMPTY_CURSOR))
    driver.feed(PacksLoaded(spill.number, "q", spill.labels))
    assert cached(driver) == 0, "the next ones are expected at 160"
    assert driver.tick(156.0) == [], "there is no room"
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=1 << 30)))
    assert driver.tick(157.0) == [LoadPacks(spill.number, CCQ)]
    driver.feed(PacksLoaded(spill.number, "q", spill.labels))
    (answer,) = driver.feed(FetchRequested(3, "q", EMPTY_CURSOR), now=160.0)
    assert len(answer.labels) == 4


def test_cancel_ccq_drops_its_spills() -> None:
    driver = Driver(nodes=("a",), **SMALL)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    effects = driver.cancel()
    assert only(effects, DropSpills) == [DropSpills((spill.number,))]


def test_spill_written_after_end_of_ccq_is_dropped() -> None:
    driver = Driver(nodes=("a",), **SMALL)
    driver.lead(replace(CCQ, expires_at=WALL + 5.5))
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.tick(6.0)
    assert driver.feed(PacksSpilled(spill.number, 77)) == [DropSpills((spill.number,))]


def test_cache_budget_shared_by_another_ccq_spills() -> None:
    driver = Driver(nodes=("a",), **(SMALL | {"cache_bytes_max": 8 * PACK}))
    driver.lead()
    fill(driver, 1, 2, 3, 4, 5, 6)
    assert cached(driver) == 6 * PACK
    driver.lead(replace(CCQ, id="r"), retrieved=Cursor({0: 6}))
    (spill,) = only(fill(driver, 7), SpillPacks)
    assert spill.ccq.id == "q"


@pytest.mark.parametrize(("packs", "written"), [(8, 0), (100, 1)])
def test_spill_beside_file_being_written_keeps_within_spill_bytes_max(
    packs: int, written: int
) -> None:
    driver = Driver(nodes=("a",), **(SMALL | {"spill_bytes_max": packs * PACK}))
    driver.lead()
    assert len(only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)) == 1
    assert len(only(fill(driver, 6, 7, 8, 9, 10), SpillPacks)) == written
