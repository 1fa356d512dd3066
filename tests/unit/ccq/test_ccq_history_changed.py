"""Coordinators whose logs lost commits begin again with an empty cache; readers are refused."""

from __future__ import annotations

from ccq_driver import CCQ, Driver, only, path
from simulator.logs import to_labels, to_paths

from galileo.ccq.events import (
    AnswerFetch,
    Backfill,
    BackfillFailed,
    BackfillFinished,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    FetchRequested,
    RecordsLearned,
    RefuseFetch,
    StartCycle,
)
from galileo.ccq.model import Holder, Record
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure
from galileo.model.forks import first_of

FIRST = 100
"""The first commit of a history, which begins when commits 3 and later of partition 0 are lost."""
CHANGED = Failure(
    "history_changed",
    "commits are lost",
    (("partitions", (0,)), ("sequences", (4,)), ("common", (2,)), ("until", (FIRST - 1,))),
)


def lose(driver: Driver, *, now: float) -> list:
    """A cycle whose owner says that commits that were evaluated are lost."""
    driver.feed(CommitsObserved("d", Cursor({0: FIRST})))
    (start,) = only(driver.tick(now), StartCycle)
    item = start.items[0]
    result = CycleResult("q", item.term, item.after, None, EMPTY_CURSOR, CHANGED)
    return driver.feed(CycleFinished(start.cycle_id, (result,)))


def loaded() -> Driver:
    """Labels of the commits 1 to 4 of partition 0, and one of partition 1, are in the cache."""
    driver = Driver()
    driver.lead()
    paths = [*(path(0, sequence) for sequence in range(1, 5)), path(1, 1)]
    driver.cycle(paths, {0: 4, 1: 1}, now=1.0)
    return driver


def test_cache_begins_again_behind_the_jump() -> None:
    driver = loaded()
    lose(driver, now=5.0)
    cache = driver.machine.coordinated["q"].cache
    assert (len(cache), cache.base) == (0, Cursor({0: FIRST - 1, 1: 1}))
    driver.cycle([path(0, FIRST)], {0: FIRST}, now=9.0)
    (answer,) = driver.feed(FetchRequested(1, "q", Cursor({0: FIRST - 1, 1: 1})))
    assert to_paths(answer.labels) == [path(0, FIRST)]


def test_cycle_after_the_loss_is_not_delayed_as_after_a_failure() -> None:
    driver = loaded()
    lose(driver, now=5.0)
    assert driver.machine.coordinated["q"].cycles.failure is None
    (start,) = only(driver.tick(6.0), StartCycle)
    assert start.items[0].after == Cursor({0: FIRST - 1, 1: 1})


def test_token_of_lost_commits_is_checked_and_refused() -> None:
    driver = loaded()
    lose(driver, now=5.0)
    (effect,) = driver.feed(FetchRequested(1, "q", Cursor({0: 4, 1: 1})))
    assert isinstance(effect, Backfill)
    assert (effect.after[0], effect.until) == (4, Cursor({0: FIRST - 1}))
    assert driver.feed(BackfillFailed(1, CHANGED)) == [RefuseFetch(1, CHANGED)]


def test_token_of_an_earlier_history_inside_the_cache_is_checked() -> None:
    """A coordinator that has evaluated everything anew does not know what the reader has."""
    driver, first = Driver(), first_of(7)
    driver.lead()
    driver.cycle([path(0, 1), path(0, 2)], {0: first + 1}, now=1.0)
    (answer,) = driver.feed(FetchRequested(3, "q", EMPTY_CURSOR))
    assert to_paths(answer.labels) == [path(0, 1), path(0, 2)]
    (effect,) = driver.feed(FetchRequested(1, "q", Cursor({0: 4})))
    assert isinstance(effect, Backfill)
    assert (effect.after, effect.until) == (Cursor({0: 4}), Cursor({0: first - 1}))
    assert driver.feed(BackfillFailed(1, CHANGED)) == [RefuseFetch(1, CHANGED)]
    (answer,) = driver.feed(FetchRequested(2, "q", Cursor({0: first - 1})))
    assert isinstance(answer, AnswerFetch)


def test_fetch_that_waits_is_checked_when_the_cache_begins_again() -> None:
    driver = loaded()
    assert driver.feed(FetchRequested(1, "q", Cursor({0: 4, 1: 1}), wait_until=90.0)) == []
    (effect,) = only(lose(driver, now=5.0), Backfill)
    assert effect.after == Cursor({0: 4, 1: 1})


def test_token_of_kept_commits_gets_what_a_rescan_finds() -> None:
    driver = loaded()
    lose(driver, now=5.0)
    (effect,) = driver.feed(FetchRequested(1, "q", Cursor({0: 1, 1: 1})))
    found = BackfillFinished(1, to_labels([path(0, 2)]), effect.until)
    (answer,) = only(driver.feed(found), AnswerFetch)
    assert to_paths(answer.labels) == [path(0, 2)]
    assert answer.cursor == Cursor({0: FIRST - 1, 1: 1})


def test_late_result_adds_no_labels_of_lost_commits() -> None:
    driver = Driver(cycle_timeout_s=5.0)
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 4})))
    (slow,) = driver.tick(1.0)
    driver.tick(6.0)
    lose(driver, now=20.0)
    found = to_labels([path(0, sequence) for sequence in range(1, 5)])
    result = CycleResult("q", slow.items[0].term, EMPTY_CURSOR, found, Cursor({0: 4}))
    driver.feed(CycleFinished(slow.cycle_id, (result,)))
    assert len(driver.machine.coordinated["q"].cache) == 0


def test_handed_off_caches_with_lost_commits_are_not_asked() -> None:
    driver = Driver()
    holder = Holder("c", 1, EMPTY_CURSOR, Cursor({0: 4}))
    record = Record(CCQ, 1, ("a",), EMPTY_CURSOR, holders=(holder,))
    driver.feed(RecordsLearned((record,)))
    lose(driver, now=5.0)
    (effect,) = driver.feed(FetchRequested(1, "q", Cursor({0: 2})))
    assert isinstance(effect, Backfill)
