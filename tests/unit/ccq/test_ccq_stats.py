"""Statistics of the caches and their readers."""

from __future__ import annotations

from ccq_driver import CCQ, Driver, path

from galileo.ccq.events import CommitsObserved, CycleFailed, FetchRequested
from galileo.ccq.model import Record
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure


def test_counts_labels_matched_and_delivered_are_counted() -> None:
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1), path(0, 2), path(1, 1)], {0: 2, 1: 3}, now=1.0)
    counts = driver.machine.coordinated["q"].counts
    assert (counts.matched, counts.delivered) == (3, 0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 1})))
    assert (counts.delivered, counts.served_again) == (2, 0)
    driver.feed(FetchRequested(2, "q", Cursor({0: 1})))
    assert (counts.delivered, counts.served_again) == (4, 2)
    driver.cycle([path(0, 3)], {0: 3, 1: 3}, now=2.0)
    driver.feed(FetchRequested(3, "q", Cursor({0: 1})))
    assert (counts.delivered, counts.served_again) == (7, 4), "one of three is new"
    driver.feed(FetchRequested(4, "q", Cursor({0: 3, 1: 3})))
    assert counts.delivered == 7


def test_counts_lag_begins_with_first_news() -> None:
    driver = Driver()
    driver.lead()
    driver.tick(1.0)
    driver.feed(CommitsObserved("d", Cursor({0: 1})), now=1.5)
    driver.cycle([path(0, 1)], {0: 1}, now=2.0)
    counts = driver.machine.coordinated["q"].counts
    assert counts.lag.count == 1
    assert counts.lag.sum_s == 0.5


def test_counts_moved_ccq_are_kept_by_node() -> None:
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    driver.machine.coordinated["q"].counts.record_late(1)
    driver.learn(Record(CCQ, 2, ("b", "a")))
    assert driver.machine.coordinated == {}
    labels = driver.machine.state.counts.labels
    assert (labels.matched, labels.delivered, labels.late, labels.lag.count) == (1, 1, 1, 1)


def test_counts_cycles_include_failures() -> None:
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (start,) = driver.tick(1.0)
    driver.feed(CycleFailed(start.cycle_id, Failure("unavailable", "spark")), now=1.25)
    cycles, counts = driver.machine.coordinated["q"].cycles, driver.machine.state.counts
    assert (cycles.over, cycles.failed, cycles.over_s) == (1, 1, 0.25)
    assert (counts.cycles.count, counts.cycles.sum_s, counts.cycles_failed) == (1, 0.25, 1)
