"""Fetches of a query with windows: they get the event clock, and wait for it."""

from __future__ import annotations

from dataclasses import replace

from ccq_driver import CCQ, Driver, only, path

from galileo.ccq.events import (
    AnswerFetch,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    FetchRequested,
    StartCycle,
)
from galileo.ccq.model import Record
from galileo.ccq.records import decode, encode
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.windows import ClockStep, Window

WINDOWED = replace(CCQ, window=Window.tumbling("1h"))


def found_nothing(driver: Driver, reached: dict[int, int], *, now: float) -> list:
    """A cycle that looks at commits in which nothing matches."""
    (start,) = only(driver.tick(now), StartCycle)
    item = start.items[0]
    result = CycleResult("q", item.term, item.after, None, Cursor(reached))
    return driver.feed(CycleFinished(start.cycle_id, (result,)))


def test_fetch_windowed_has_clock_at_cursor():
    driver = Driver()
    driver.lead(WINDOWED)
    driver.feed(CommitsObserved("d", Cursor({0: 1}), (ClockStep(0, 1, 50),)))
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    driver.feed(CommitsObserved("d", Cursor({0: 2, 1: 1}), (ClockStep(0, 2, 80),)))
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert (answer.cursor, answer.clock_us) == (Cursor({0: 1}), 50)


def test_fetch_without_windows_has_no_clock():
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1}), (ClockStep(0, 1, 50),)))
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert answer.clock_us is None


def test_fetch_waiting_for_clock_ends_with_unmatched_commits():
    driver = Driver()
    driver.lead(WINDOWED)
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    waiting = FetchRequested(1, "q", Cursor({0: 1}), wait_until=60.0, until_clock_us=100)
    assert driver.feed(waiting) == []
    driver.feed(CommitsObserved("d", Cursor({0: 2}), (ClockStep(0, 2, 99),)))
    assert only(found_nothing(driver, {0: 2}, now=2.0), AnswerFetch) == []
    assert driver.feed(CommitsObserved("d", Cursor({0: 3}), (ClockStep(0, 3, 100),))) == []
    (answer,) = only(found_nothing(driver, {0: 3}, now=3.0), AnswerFetch)
    assert (answer.labels, answer.cursor, answer.clock_us) == (None, Cursor({0: 3}), 100)


def test_fetch_waiting_for_clock_ends_with_late_step():
    driver = Driver()
    driver.lead(WINDOWED)
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 1}), wait_until=60.0, until_clock_us=100))
    (answer,) = driver.feed(CommitsObserved("d", Cursor({0: 1}), (ClockStep(0, 1, 100),)))
    assert answer.clock_us == 100


def test_fetch_waiting_for_labels_ignores_clock():
    driver = Driver()
    driver.lead(WINDOWED)
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    assert driver.feed(FetchRequested(1, "q", Cursor({0: 1}), wait_until=60.0)) == []
    assert driver.feed(CommitsObserved("d", Cursor({0: 1}), (ClockStep(0, 1, 100),))) == []


def test_record_with_window_round_trips():
    record = Record(WINDOWED, 1, ("a", "b"))
    assert decode(encode(record)) == record
    assert not CCQ.asks_the_same(WINDOWED)
