"""Holders keep what their records name, and coordinators read from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ccq_driver import CCQ, WALL, Driver, only, path
from simulator.logs import to_labels, to_paths

from galileo.ccq import cache_memory, handed_off_cache
from galileo.ccq.cache import LabelCache
from galileo.ccq.events import (
    AnswerCacheRead,
    AnswerFetch,
    Backfill,
    CacheReadAnswered,
    CacheReadFailed,
    CacheReadRequested,
    ChangeRecords,
    ElectNodes,
    FetchAbandoned,
    FetchRequested,
    LoadPacks,
    NodesElected,
    PacksLoaded,
    PacksSpilled,
    ReadHandedOffCache,
    RecordsChanged,
    RefuseCacheRead,
    SpillPacks,
)
from galileo.ccq.handed_off_cache import HandedOffCache
from galileo.ccq.model import Holder, Record
from galileo.ccq.records import decode
from galileo.cursor import EMPTY_CURSOR, Cursor

# --- at the holder -------------------------------------------------------------------------------

SMALL = {"cache_bytes_max": 400, "spill_bytes_max": 1}


@pytest.fixture(autouse=True)
def _often_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers come too often for any CCQ to be spilled."""
    monkeypatch.setattr(cache_memory, "SPILL_IDLE_S", 1e9)


TERM = 1
"""The first in which a coordinates."""


def overflowed(**options) -> Driver:
    """The machine of a, which has given q to b and holds the commits 1 to 4 of it."""
    driver = Driver(**(SMALL | options))
    driver.lead()
    effects: list = []
    for sequence in (1, 2, 3, 4):
        effects = driver.cycle([path(0, sequence)], {0: sequence}, now=float(sequence))
    assert [one.key for elect in only(effects, ElectNodes) for one in elect.candidacies] == ["q"]
    (effect,) = driver.feed(NodesElected({"q": ("b",)}))
    moved = decode(effect.changes[0].data)
    assert (moved.revision, moved.nodes) == (2, ("b", "c"))
    assert moved.holders == (Holder("a", TERM, EMPTY_CURSOR, Cursor({0: 4})),)
    driver.feed(RecordsChanged(("q",), (moved,)))
    return driver


def ask(driver: Driver, after: Cursor = EMPTY_CURSOR, *, term: int = TERM) -> list:
    return driver.feed(CacheReadRequested(1, "q", term, after, 100))


def test_cache_read_after_token_is_answered() -> None:
    driver = overflowed()
    (answer,) = ask(driver, Cursor({0: 1}))
    assert isinstance(answer, AnswerCacheRead)
    assert to_paths(answer.labels) == [path(0, 2), path(0, 3), path(0, 4)]
    assert answer.reached == Cursor({0: 4})
    assert driver.machine.usage.cache_bytes > 0
    assert ask(driver, Cursor({0: 4})) == [RefuseCacheRead(1)]
    assert ask(driver, term=TERM + 1) == [RefuseCacheRead(1)]


def test_cache_read_token_outside_range_is_refused() -> None:
    driver = overflowed()
    record = driver.machine.records[0]
    driver.learn(replace(record, retrieved=Cursor({0: 2})))
    assert ask(driver) == [RefuseCacheRead(1)]
    (answer,) = ask(driver, Cursor({0: 2}))
    assert to_paths(answer.labels) == [path(0, 3), path(0, 4)]


def test_handed_off_cache_retrieved_is_dropped() -> None:
    driver = overflowed()
    record = driver.machine.records[0]
    driver.learn(replace(record, retrieved=Cursor({0: 4})))
    assert driver.machine.usage.cache_bytes == 0
    assert ask(driver) == [RefuseCacheRead(1)]


def test_handed_off_cache_unnamed_or_ended_is_dropped() -> None:
    for change in ({"holders": ()}, {"ended": "expired", "ended_at": WALL}):
        driver = overflowed()
        driver.learn(replace(driver.machine.records[0], **change))
        assert driver.machine.usage.cache_bytes == 0


def test_handed_off_cache_ttl_passed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_off_cache, "TTL_S", 10.0)
    driver = overflowed()
    driver.tick(13.0)
    assert driver.machine.usage.cache_bytes > 0
    driver.tick(14.1)
    assert driver.machine.usage.cache_bytes == 0


def test_handed_off_cache_spilled_is_loaded_for_reads() -> None:
    driver = overflowed(spill_bytes_max=10_000)
    (spill,) = only(driver.tick(5.0), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 100))
    assert driver.machine.usage.cache_bytes == 0
    assert [type(one) for one in ask(driver)] == [LoadPacks]
    assert driver.feed(CacheReadRequested(2, "q", TERM, Cursor({0: 3}), 100)) == []
    driver.feed(CacheReadRequested(3, "q", TERM, EMPTY_CURSOR, 100))
    driver.feed(FetchAbandoned(3))
    first, second = driver.feed(PacksLoaded(spill.number, "q", spill.labels))
    assert (first.request, len(first.labels)) == (1, 4)
    assert (second.request, len(second.labels)) == (2, 1)


def test_cache_read_lost_spill_is_refused() -> None:
    driver = overflowed(spill_bytes_max=10_000)
    (spill,) = only(driver.tick(5.0), SpillPacks)
    driver.feed(PacksSpilled(spill.number, 100))
    ask(driver)
    assert RefuseCacheRead(1) in driver.feed(PacksLoaded(spill.number, "q", None))


def test_restart_reads_from_own_holder_fail_and_are_rescanned() -> None:
    mine = Holder("a", 9, EMPTY_CURSOR, Cursor({0: 4}))
    driver = Driver()
    driver.learn(Record(CCQ, 3, ("a", "b", "c"), holders=(mine,)))
    (read,) = fetch(driver, 0)
    assert (read.node, read.term) == ("a", 9)
    assert ask(driver, term=9) == [RefuseCacheRead(1)]
    (rescan,) = driver.feed(CacheReadFailed(1))
    assert isinstance(rescan, Backfill)


# --- at the coordinator --------------------------------------------------------------------------

OLD = Holder("b", 5, Cursor({0: 2}), Cursor({0: 4}))
NEW = Holder("c", 2, Cursor({0: 6}), Cursor({0: 8}))


def succeeding(*named: Holder) -> Driver:
    driver = Driver()
    driver.learn(Record(CCQ, 3, ("a", "b", "c"), holders=named))
    return driver


def fetch(driver: Driver, at: int, request: int = 1) -> list:
    return driver.feed(FetchRequested(request, "q", Cursor({0: at})))


def test_takeover_with_holders_begins_at_last_range() -> None:
    driver = succeeding(OLD, NEW)
    led = driver.machine.coordinated["q"]
    assert (led.evaluated, led.retrieved) == (Cursor({0: 8}), EMPTY_CURSOR)


def test_fetch_token_is_answered_by_holder_of_range() -> None:
    driver = succeeding(OLD, NEW)
    (before,) = fetch(driver, 0, 1)
    assert isinstance(before, Backfill)
    assert before.until == Cursor({0: 2}), "a rescan ends where the first stretch begins"
    (held,) = fetch(driver, 2, 2)
    assert (held.node, held.term, held.after) == ("b", 5, Cursor({0: 2}))
    (between,) = fetch(driver, 5, 3)
    assert between.until == Cursor({0: 6})
    (newer,) = fetch(driver, 7, 4)
    assert isinstance(newer, ReadHandedOffCache)
    assert newer.node == "c"


def test_fetch_answer_of_holder_is_joined_with_cache() -> None:
    driver = succeeding(NEW)
    driver.cycle([path(0, 9)], {0: 9}, now=1.0)
    fetch(driver, 6)
    found = to_labels([path(0, 7), path(0, 8)])
    (answer,) = driver.feed(CacheReadAnswered(1, found, Cursor({0: 8})))
    assert isinstance(answer, AnswerFetch)
    assert to_paths(answer.labels) == [path(0, 7), path(0, 8), path(0, 9)]
    assert (answer.cursor, answer.more) == (Cursor({0: 9}), False)


def test_fetch_answer_of_holder_beyond_range_is_cut() -> None:
    driver = succeeding(OLD)
    driver.cycle([path(0, 5)], {0: 5}, now=1.0)
    fetch(driver, 2)
    found = to_labels([path(0, 3), path(0, 5, row=9)])
    (answer,) = driver.feed(CacheReadAnswered(1, found, Cursor({0: 9, 1: 9})))
    assert to_paths(answer.labels) == [path(0, 3), path(0, 5)]
    assert answer.cursor == Cursor({0: 5})


def test_fetch_answer_of_holder_short_of_range_ends_there() -> None:
    driver = succeeding(OLD)
    fetch(driver, 2)
    (answer,) = driver.feed(CacheReadAnswered(1, to_labels([path(0, 3)]), Cursor({0: 3})))
    assert (answer.cursor, answer.more) == (Cursor({0: 3}), True)


def test_fetch_failed_holder_is_backfilled() -> None:
    for failed in (CacheReadFailed(1), CacheReadAnswered(1, None, Cursor({0: 2}))):
        driver = succeeding(OLD)
        fetch(driver, 2)
        (rescan,) = driver.feed(failed)
        assert isinstance(rescan, Backfill)
        assert (rescan.after, rescan.until) == (Cursor({0: 2}), Cursor({0: 4}))
        assert [type(one) for one in fetch(driver, 3, 2)] == [Backfill]
        assert driver.machine.coordinated["q"].fetches.holders == ()


def test_fetch_silent_holder_is_backfilled() -> None:
    driver = succeeding(OLD)
    fetch(driver, 2)
    assert only(driver.tick(4.9), Backfill) == []
    assert len(only(driver.tick(5.0), Backfill)) == 1
    assert driver.feed(CacheReadAnswered(1, None, Cursor({0: 4}))) == []


def test_fetch_token_before_retrieved_is_backfilled() -> None:
    driver = succeeding(OLD)
    fetch(driver, 3, 1)
    (rescan,) = fetch(driver, 2, 2)
    assert isinstance(rescan, Backfill)
    assert rescan.until == Cursor({0: 3})


def test_failed_holder_is_told_to_the_leader() -> None:
    driver = succeeding(OLD, NEW)
    driver.machine._save_at = 0.0
    fetch(driver, 2)
    driver.feed(CacheReadFailed(1))
    (saved,) = only(driver.tick(1.0), ChangeRecords)[0].changes
    assert decode(saved.data).holders == (NEW,)


def test_closed_cache_refuses_reads_that_wait_for_its_files() -> None:
    cache = LabelCache(EMPTY_CURSOR)
    cache.append(to_labels([path(0, 1)]), reached=Cursor({0: 1}))
    assert cache.spill(1) is not None
    cache.apply_spilled(1, 77)
    held = HandedOffCache(CCQ, term=3, cache=cache, now=0.0)
    for request in (1, 2):
        held.read(CacheReadRequested(request, "q", 3, EMPTY_CURSOR, 100))
    assert held.close() == [RefuseCacheRead(1), RefuseCacheRead(2)]
    assert held.close() == []
