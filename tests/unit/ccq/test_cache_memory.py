"""What a node does when its caches are too full: in order, and no more than is needed."""

from __future__ import annotations

from dataclasses import replace

from ccq_driver import CCQ, WALL, Driver, only, path
from simulator.logs import to_labels, to_paths

from galileo.ccq.events import (
    Backfill,
    CancelRequested,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    DrainRequested,
    DropSpills,
    FetchRequested,
    LoadPacks,
    PacksLoaded,
    PacksSpilled,
    Send,
    SpillPacks,
    StartCycle,
    UsageMeasured,
)
from galileo.ccq.messages import AssignCoordinator
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import PeerDied
from galileo.election.messages import Poll, PollAnswer, UsageStatistics

PACK = to_labels([path(0, 1)]).size  # type: ignore[union-attr]
"""Bytes of the cache after a cycle that found one label."""
SELDOM = {"cache_bytes_max": 5 * PACK, "spill_bytes_max": 100 * PACK, "spill_idle_s": 0.0}
OFTEN = {"cache_bytes_max": 5 * PACK, "spill_bytes_max": 100 * PACK, "spill_idle_s": 1e9}
NO_FILES = {"cache_bytes_max": 5 * PACK, "spill_bytes_max": 1, "spill_idle_s": 0.0}


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


def polled(effects: list) -> list[str]:
    return [one.to for one in only(effects, Send) if isinstance(one.message, Poll)]


def cached(driver: Driver) -> int:
    return driver.machine.usage.cache_bytes


def test_nothing_is_done_while_there_is_room_however_unequal_the_caches_are() -> None:
    driver = Driver(**NO_FILES)
    driver.lead()
    driver.lead(replace(CCQ, id="r", dataset="other"))
    assert fill(driver, 1, 2, 3, 4) == []
    assert driver.tick(9.0) == []
    assert cached(driver) == 4 * PACK


def test_readers_who_come_seldom_find_their_labels_in_a_file() -> None:
    driver = Driver(**SELDOM)
    driver.lead()
    effects = fill(driver, 1, 2, 3, 4, 5)
    (spill,) = only(effects, SpillPacks)
    assert to_paths(spill.labels) == [path(0, sequence) for sequence in range(1, 6)]
    assert polled(effects) == []
    assert cached(driver) == 5 * PACK, "until it is written"
    assert driver.feed(PacksSpilled(spill.number, 77)) == []
    assert (cached(driver), driver.machine.state.cache_usage.spilled_bytes) == (0, 77)


def test_what_is_fetched_often_is_given_away_instead() -> None:
    driver = Driver(**OFTEN)
    driver.lead()
    effects = fill(driver, 1, 2, 3, 4, 5)
    assert only(effects, SpillPacks) == []
    assert polled(effects) == ["b", "c"]
    assert polled(driver.tick(6.0)) == [], "one election is under way"


def refused_by_all(**options) -> Driver:
    """A machine that no one has relieved of its CCQ, for want of memory."""
    driver = Driver(**options, succession_pause_s=10.0)
    driver.lead()
    for poll in only(fill(driver, 1, 2, 3, 4, 5), Send):
        poor = UsageStatistics(memory_free_bytes=9)
        effects = driver.hear(poll.to, PollAnswer(poll.message.election, poor))
        assert not [
            one for one in only(effects, Send) if isinstance(one.message, AssignCoordinator)
        ]
    assert "q" in driver.machine.coordinated
    return driver


def test_only_a_node_with_room_is_offered_it_and_the_next_attempt_waits() -> None:
    driver = refused_by_all(**(OFTEN | {"spill_bytes_max": 1}))
    assert polled(driver.tick(14.9)) == []
    assert polled(driver.tick(15.5)) == ["b", "c"]


def test_what_no_one_takes_goes_to_files_though_it_is_fetched_often() -> None:
    driver = refused_by_all(**OFTEN)
    (spill,) = only(driver.tick(6.0), SpillPacks)
    assert len(spill.labels) == 5


def test_a_node_as_busy_as_this_one_may_take_it() -> None:
    driver = Driver(**OFTEN)
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=1 << 30, cpu_share=0.97)))
    driver.lead()
    busy = UsageStatistics(memory_free_bytes=1 << 30, cpu_share=1.0)
    effects: list = []
    for poll in only(fill(driver, 1, 2, 3, 4), Send):
        effects = driver.hear(poll.to, PollAnswer(poll.message.election, busy))
    assert [
        one.to for one in only(effects, Send) if isinstance(one.message, AssignCoordinator)
    ] == ["b"]


def test_no_one_is_asked_where_no_one_is_alive_or_holders_are_enough() -> None:
    alone = Driver(**OFTEN)
    for peer in ("b", "c"):
        alone.feed(PeerDied(peer))
    alone.lead()
    assert polled(fill(alone, 1, 2, 3, 4, 5)) == []
    held = Driver(**OFTEN, holders_max=0)
    held.lead()
    assert polled(fill(held, 1, 2, 3, 4, 5)) == []


def test_a_node_that_drains_gives_everything_away_as_ever() -> None:
    driver = Driver(**OFTEN)
    driver.lead()
    fill(driver, 1)
    assert polled(driver.feed(DrainRequested())) == ["b", "c"]


def test_over_the_budget_the_oldest_labels_of_the_largest_cache_go() -> None:
    driver = Driver(nodes=("a",), **NO_FILES)
    driver.lead()
    assert fill(driver, 1, 2, 3, 4, 5, 6) == []
    assert cached(driver) == 5 * PACK
    (rescan,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert isinstance(rescan, Backfill)
    assert rescan.until == Cursor({0: 1})


def test_little_free_memory_is_a_smaller_budget() -> None:
    driver = Driver(nodes=("a",), **(NO_FILES | {"cache_bytes_max": 1 << 30}))
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=2 * PACK)))
    driver.lead()
    fill(driver, 1, 2, 3, 4)
    assert cached(driver) == 2 * PACK


def test_the_budget_holds_whatever_disks_and_peers_do() -> None:
    driver = Driver(**SELDOM, spill_retry_s=3.0)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    effects = driver.feed(PacksSpilled(spill.number, None))
    assert only(effects, SpillPacks) == [], "the disk is left alone for a while"
    assert polled(effects) == ["b", "c"]
    fill(driver, 6, 7)
    assert cached(driver) <= 5 * PACK
    assert only(driver.tick(8.1), SpillPacks)


def test_files_keep_to_their_budget() -> None:
    driver = Driver(nodes=("a",), **(SELDOM | {"spill_bytes_max": 5 * PACK}))
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 5 * PACK))
    assert only(fill(driver, 6, 7, 8, 9, 10, 11), SpillPacks) == []
    assert cached(driver) <= 5 * PACK


def test_files_are_loaded_once_for_all_who_wait_and_let_go_of_when_there_is_no_room() -> None:
    driver = Driver(nodes=("a",), **SELDOM)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    assert driver.feed(FetchRequested(1, "q", EMPTY_CURSOR)) == [LoadPacks(spill.number, CCQ)]
    assert driver.feed(FetchRequested(2, "q", EMPTY_CURSOR)) == []
    first, second = driver.feed(PacksLoaded(spill.number, "q", spill.labels))
    assert (first.request, second.request) == (1, 2)
    assert to_paths(first.labels) == to_paths(second.labels) == to_paths(spill.labels)
    assert cached(driver) == 0


def test_a_fetch_for_a_file_that_is_dropped_meanwhile_is_rescanned() -> None:
    driver = Driver(nodes=("a",), **SELDOM)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    effects = driver.feed(FetchRequested(2, "q", Cursor({0: 5})))
    assert only(effects, DropSpills) == [DropSpills((spill.number,))]
    (rescan,) = only(effects, Backfill)
    assert (rescan.request, rescan.until) == (1, Cursor({0: 5}))
    assert driver.feed(PacksLoaded(spill.number, "q", None)) == []


def test_a_file_that_is_never_loaded_ends_the_fetch_in_time() -> None:
    driver = Driver(nodes=("a",), **SELDOM)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    (refusal,) = driver.tick(40.0)
    assert refusal.failure.kind == "unavailable"


def test_files_come_back_before_the_readers_do_as_far_as_there_is_room() -> None:
    driver = Driver(nodes=("a",), **SELDOM, load_ahead_s=5.0)
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


def test_the_end_of_a_ccq_takes_its_files_with_it() -> None:
    driver = Driver(nodes=("a",), **SELDOM)
    driver.lead()
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 77))
    effects = driver.feed(CancelRequested(1, "q"))
    assert only(effects, DropSpills) == [DropSpills((spill.number,))]


def test_a_file_that_is_written_for_a_ccq_that_has_ended_is_deleted() -> None:
    driver = Driver(nodes=("a",), **SELDOM)
    driver.lead(replace(CCQ, expires_at=WALL + 5.5))
    (spill,) = only(fill(driver, 1, 2, 3, 4, 5), SpillPacks)
    driver.tick(6.0)
    assert driver.feed(PacksSpilled(spill.number, 77)) == [DropSpills((spill.number,))]


def test_one_ccq_more_makes_the_others_overflow() -> None:
    driver = Driver(nodes=("a",), **(SELDOM | {"cache_bytes_max": 8 * PACK}))
    driver.lead()
    fill(driver, 1, 2, 3, 4, 5, 6)
    assert cached(driver) == 6 * PACK
    driver.lead(replace(CCQ, id="r"), retrieved=Cursor({0: 6}))
    (spill,) = only(fill(driver, 7), SpillPacks)
    assert spill.ccq.id == "q"
