"""These events, hence these instructions: processing cycles and fetches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from ccq_driver import CCQ, Driver, only, path
from simulator.logs import to_labels, to_paths

from galileo.ccq import cycles, fetches, machine
from galileo.ccq.events import (
    AbandonCycle,
    AnswerFetch,
    Backfill,
    BackfillFailed,
    BackfillFinished,
    CommitsObserved,
    ConfirmSequences,
    CycleFailed,
    CycleFinished,
    CycleResult,
    FetchAbandoned,
    FetchRequested,
    RefuseFetch,
    SequencesConfirmed,
    StartCycle,
)
from galileo.ccq.model import Record
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure

# --- cycles ----------------------------------------------------------------------------------


def test_cycle_no_news_is_not_started_and_one_serves_all():
    driver = Driver()
    driver.lead()
    driver.lead(replace(CCQ, id="r"))
    assert driver.tick(1.0) == []
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    assert driver.tick(1.5) == []
    (start,) = driver.tick(2.0)
    assert [item.ccq.id for item in start.items] == ["q", "r"]
    assert driver.tick(3.0) == []


def test_cycle_failed_is_retried_later():
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (start,) = driver.tick(1.0)
    assert driver.feed(CycleFailed(start.cycle_id, Failure("unavailable", "spark"))) == []
    assert driver.machine.coordinated["q"].evaluated == EMPTY_CURSOR
    assert driver.tick(1.4) == []
    assert only(driver.tick(1.5), StartCycle)[0].items == start.items


def test_cycle_abandoned_late_result_is_used():
    driver = Driver(cycle_timeout_s=5.0)
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (start,) = driver.tick(1.0)
    assert driver.tick(6.0) == [AbandonCycle(start.cycle_id)]
    (second,) = driver.tick(7.0)
    item = start.items[0]
    result = CycleResult("q", item.term, item.after, to_labels([path(0, 1)]), Cursor({0: 1}))
    driver.feed(CycleFinished(start.cycle_id, (result,)))
    driver.feed(CycleFinished(second.cycle_id, (result,)))
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert to_paths(answer.labels) == [path(0, 1)]


def test_cycle_result_of_other_term_is_ignored():
    driver = Driver()
    driver.lead()
    result = CycleResult("q", 7, EMPTY_CURSOR, to_labels([path(0, 1)]), Cursor({0: 1}))
    driver.feed(CycleFinished(1, (result,)))
    assert driver.machine.coordinated["q"].evaluated == EMPTY_CURSOR


def test_cycle_of_earlier_term_that_fails_leaves_the_running_one_alone():
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (first,) = driver.tick(1.0)
    driver.learn(Record(CCQ, 2, ("b", "a")))
    driver.lead(revision=3)
    (second,) = only(driver.tick(2.0), StartCycle)
    driver.feed(CycleFailed(first.cycle_id, Failure("unavailable", "spark")))
    assert driver.machine.coordinated["q"].cycles.running == second.cycle_id
    assert only(driver.tick(9.0), StartCycle) == []


FAILURE = Failure("sampler_failed", "division by zero")


def fail(driver: Driver, *, now: float) -> list:
    """One cycle in which the query itself fails."""
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (start,) = only(driver.tick(now), StartCycle)
    item = start.items[0]
    broken = CycleResult("q", item.term, item.after, None, EMPTY_CURSOR, FAILURE)
    return driver.feed(CycleFinished(start.cycle_id, (broken,)))


def test_cycle_sampler_failed_stops_its_ccq_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(cycles, "FAILURES_BEFORE_ERROR", 1)
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    assert fail(driver, now=1.0) == [RefuseFetch(1, FAILURE)]
    driver.cycle([path(0, 1)], {0: 1}, now=5.0)
    (answer,) = driver.feed(FetchRequested(2, "q", EMPTY_CURSOR))
    assert to_paths(answer.labels) == [path(0, 1)]


def test_cycle_sampler_recovered_answers_fetch():
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=500.0))
    assert [fail(driver, now=now) for now in (1.0, 5.0)] == [[], []]
    (answer,) = driver.cycle([path(0, 1)], {0: 1}, now=20.0)
    assert to_paths(answer.labels) == [path(0, 1)]


def test_fetch_after_repeated_sampler_failures_is_refused():
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=500.0))
    assert [fail(driver, now=now) for now in (1.0, 5.0)] == [[], []]
    assert fail(driver, now=20.0) == [RefuseFetch(1, FAILURE)]
    assert driver.feed(FetchRequested(2, "q", EMPTY_CURSOR)) == [RefuseFetch(2, FAILURE)]


def unanswered(driver: Driver, *, now: float, reached: Cursor = EMPTY_CURSOR) -> list:
    """One cycle in which a sampler is still at work; other partitions may have answered."""
    (start,) = only(driver.tick(now), StartCycle)
    item = start.items[0]
    result = CycleResult("q", item.term, item.after, to_labels([]), reached)
    return driver.feed(CycleFinished(start.cycle_id, (result,)))


def test_cycle_unanswered_between_failures_keeps_count():
    """A sent sampler that never ends: each failure takes it two cycles."""
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=500.0))
    responses = []
    for now in (10.0, 100.0, 200.0):
        responses += fail(driver, now=now)
        responses += unanswered(driver, now=now + 45.0)
    assert responses == [RefuseFetch(1, FAILURE)]


def test_cycle_retry_pause_grows_with_failures_only(monkeypatch):
    """A sampler took three cycles to fail: who waits for the next failure need not wait as long."""
    monkeypatch.setattr(cycles, "RETRY_S", 4.0)
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    unanswered(driver, now=10.0)
    unanswered(driver, now=14.0)
    unanswered(driver, now=22.0)
    fail(driver, now=38.0)
    assert driver.tick(41.0) == []
    fail(driver, now=42.0)
    assert driver.tick(49.0) == [], "the second pause in a row is twice as long"
    assert only(driver.tick(50.0), StartCycle)


def test_cycle_retry_pause_begins_anew_after_progress(monkeypatch):
    monkeypatch.setattr(cycles, "FAILURES_BEFORE_ERROR", 9)
    monkeypatch.setattr(cycles, "RETRY_S", 4.0)
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 2, 1: 1})))
    unanswered(driver, now=10.0)
    unanswered(driver, now=14.0)
    unanswered(driver, now=22.0, reached=Cursor({0: 1}))
    unanswered(driver, now=23.0)
    assert only(driver.tick(27.0), StartCycle)


def test_cycle_progress_of_other_partition_keeps_failure_count():
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=500.0))
    responses = []
    for number, now in enumerate((10.0, 20.0, 30.0), 1):
        driver.feed(CommitsObserved("d", Cursor({1: number})))
        responses += fail(driver, now=now)
        driver.feed(CommitsObserved("d", Cursor({1: number + 1})))
        unanswered(driver, now=now + 5.0, reached=Cursor({1: number + 1}))
    assert responses == [RefuseFetch(1, FAILURE)]


def test_cycle_long_without_failure_resets_count(monkeypatch):
    """Partition 0 is away; partition 1 goes on."""
    monkeypatch.setattr(cycles, "FAILURES_BEFORE_ERROR", 1)
    driver = Driver()
    driver.lead()
    fail(driver, now=10.0)
    for now, count in ((40.0, 1), (80.0, 0)):
        driver.feed(CommitsObserved("d", Cursor({1: int(now)})))
        unanswered(driver, now=now, reached=Cursor({1: int(now)}))
        refused = driver.feed(FetchRequested(int(now), "q", EMPTY_CURSOR))
        assert len(only(refused, RefuseFetch)) == count


# --- overload --------------------------------------------------------------------------------


def test_cycle_longer_than_interval_stretches_it():
    """Commits arrive each tenth of a second; a cycle of an interval of 1 s takes 3.5 s."""
    driver = Driver()
    driver.lead()
    ends, started = None, []
    for reached in range(1, 190):
        now = 1.0 + reached / 10
        driver.feed(CommitsObserved("d", Cursor({0: reached})), now=now)
        if ends is not None and ends[0] <= now:
            driver.feed(CycleFinished(ends[1], (ends[2],)), now=now)
            ends = None
        for start in only(driver.tick(now), StartCycle):
            assert ends is None, "one cycle at a time"
            started.append(now)
            item = start.items[0]
            paths = [path(0, s) for s in range(item.after[0] + 1, reached + 1)]
            cursor = Cursor({0: reached})
            result = CycleResult("q", item.term, item.after, to_labels(paths), cursor)
            ends = (now + 3.5, start.cycle_id, result)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    found = [sequence for _, sequence, *_ in to_paths(answer.labels)]
    assert found == list(range(1, answer.cursor[0] + 1))
    assert answer.interval_s == pytest.approx(3.5, abs=0.11)
    assert driver.machine.coordinated["q"].cycles.is_overloaded(driver.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert pauses == pytest.approx([3.5] * len(pauses), abs=0.11)


def test_fetch_during_long_cycle_reports_its_duration():
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    driver.tick(1.0)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR), now=8.5)
    assert answer.interval_s == 7.5


def test_cycle_quick_or_at_rest_is_not_overloaded():
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR), now=1.2)
    assert answer.interval_s == CCQ.interval_s
    driver.feed(CommitsObserved("d", Cursor({0: 2})))
    (start,) = driver.tick(2.0)
    driver.feed(CycleFailed(start.cycle_id, FAILURE), now=9.0)
    assert driver.machine.coordinated["q"].cycles.is_overloaded(9.0)
    driver.cycle([path(0, 2)], {0: 2}, now=11.0)
    driver.tick(12.0)
    assert not driver.machine.coordinated["q"].cycles.is_overloaded(40.0)


def test_fetch_labels_dropped_from_cache_are_backfilled():
    driver = Driver(cache_bytes_max=1)
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    led = driver.machine.coordinated["q"]
    assert (led.cache.bytes, led.cache.base, led.evaluated) == (0, Cursor({0: 1}), Cursor({0: 1}))
    (rescan,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert (rescan.after, rescan.until) == (EMPTY_CURSOR, Cursor({0: 1}))


# --- fetches ---------------------------------------------------------------------------------


def test_fetch_token_acknowledges_and_rest_is_answered():
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1), path(0, 2), path(1, 1)], {0: 2, 1: 3}, now=1.0)
    (answer,) = driver.feed(FetchRequested(1, "q", Cursor({0: 1})))
    assert to_paths(answer.labels) == [path(0, 2), path(1, 1)]
    assert (answer.after, answer.cursor) == (Cursor({0: 1}), Cursor({0: 2, 1: 3}))
    assert driver.feed(FetchRequested(2, "q", Cursor({0: 1})))[0].labels is not None
    assert driver.machine.coordinated["q"].retrieved == Cursor({0: 1})
    (empty,) = driver.feed(FetchRequested(3, "q", answer.cursor))
    assert (empty.labels, empty.cursor, empty.more) == (None, answer.cursor, False)


def test_fetch_waiting_is_answered_by_next_cycle():
    driver = Driver()
    driver.lead()
    assert driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0)) == []
    (answer,) = driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    assert to_paths(answer.labels) == [path(0, 1)]


def test_fetch_waiting_timeout_gives_empty_answer_with_token():
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=3.0))
    driver.cycle([], {0: 5}, now=1.0)
    (answer,) = driver.tick(3.0)
    assert (answer.labels, answer.cursor) == (None, Cursor({0: 5}))


def test_fetch_is_answered_without_labels_where_commits_may_withdraw_some():
    driver = Driver()
    driver.lead()

    def withdraws(after, until):
        return {0} if after[0] < 5 <= until[0] else set()

    request = FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0, withdraws=withdraws)
    assert driver.feed(request) == []
    assert driver.cycle([], {0: 4}, now=1.0) == []
    (answer,) = driver.cycle([], {0: 6}, now=2.0)
    assert (answer.labels, answer.cursor) == (None, Cursor({0: 6}))
    assert driver.feed(replace(request, request=2, cursor=answer.cursor)) == []
    assert driver.cycle([], {0: 9}, now=3.0) == []


def test_fetch_abandoned_is_not_answered():
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    driver.feed(FetchAbandoned(1))
    assert driver.cycle([path(0, 1)], {0: 1}, now=1.0) == []


def test_fetch_beyond_labels_max_is_cut_with_more():
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, s, row) for s in (1, 2) for row in (0, 1)], {0: 2}, now=1.0)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, labels_max=3))
    assert (len(answer.labels), answer.cursor, answer.more) == (2, Cursor({0: 1}), True)


def test_fetch_old_token_is_backfilled_and_joined_with_cache():
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4}))
    (rescan,) = driver.feed(FetchRequested(1, "q", Cursor({0: 2})))
    assert rescan == Backfill(1, CCQ, Cursor({0: 2}), Cursor({0: 4}), 100_000)
    driver.cycle([path(0, 5)], {0: 5}, now=1.0)
    found = BackfillFinished(1, to_labels([path(0, 3), path(0, 4)]), Cursor({0: 4}))
    (answer,) = driver.feed(found)
    assert to_paths(answer.labels) == [path(0, 3), path(0, 4), path(0, 5)]
    assert answer.cursor == Cursor({0: 5})
    assert driver.feed(found) == []


def test_backfill_short_of_cache_ends_answer():
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4, 1: 1}))
    driver.cycle([path(0, 5), path(1, 2)], {0: 5, 1: 2}, now=1.0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 2, 1: 1})))
    (answer,) = driver.feed(BackfillFinished(1, to_labels([path(0, 3)]), Cursor({0: 3})))
    assert to_paths(answer.labels) == [path(0, 3), path(1, 2)]
    assert (answer.cursor, answer.more) == (Cursor({0: 3, 1: 2}), True)


def test_backfill_beyond_cache_hides_no_label():
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4}))
    driver.cycle([path(0, 5)], {0: 5}, now=1.0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 3})))
    (answer,) = driver.feed(BackfillFinished(1, to_labels([path(0, 4)]), Cursor({0: 5})))
    assert to_paths(answer.labels) == [path(0, 4), path(0, 5)]


def test_backfill_missing_owner_names_partition():
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4}))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    (answer,) = driver.feed(BackfillFinished(1, None, EMPTY_CURSOR, missing=(0,)))
    assert (answer.cursor, answer.missing, answer.more) == (EMPTY_CURSOR, (0,), False)


def test_backfill_failed_or_timeout_refuses_fetch(monkeypatch):
    monkeypatch.setattr(fetches, "BACKFILL_TIMEOUT_S", 2.0)
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4}))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    failure = Failure("unavailable", "no evaluator")
    assert driver.feed(BackfillFailed(1, failure)) == [RefuseFetch(1, failure)]
    driver.feed(FetchRequested(2, "q", EMPTY_CURSOR))
    (refused,) = driver.tick(2.0)
    assert (refused.request, refused.failure.kind) == (2, "unavailable")


def test_fetch_token_ahead_of_cache_moves_it():
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 3})))
    (start,) = driver.tick(1.0)
    (answer,) = driver.feed(FetchRequested(1, "q", Cursor({0: 2})))
    assert (answer.labels, answer.cursor) == (None, Cursor({0: 2}))
    item, paths = start.items[0], [path(0, s) for s in (1, 2, 3)]
    result = CycleResult("q", item.term, item.after, to_labels(paths), Cursor({0: 3}))
    driver.feed(CycleFinished(start.cycle_id, (result,)))
    (answer,) = driver.feed(FetchRequested(2, "q", Cursor({0: 2})))
    assert to_paths(answer.labels) == [path(0, 3)]


def test_fetch_token_ahead_of_known_is_confirmed_or_refused():
    driver = Driver()
    driver.lead()
    asked = driver.feed(FetchRequested(1, "q", Cursor({0: 9, 1: 9})))
    assert asked == [ConfirmSequences(1, "d", (0, 1))]
    (answer,) = driver.feed(SequencesConfirmed(1, Cursor({0: 9, 1: 12})))
    assert answer.cursor == Cursor({0: 9, 1: 9})
    assert driver.machine.coordinated["q"].evaluated == Cursor({0: 9, 1: 9})
    driver.feed(FetchRequested(2, "q", Cursor({0: 10})))
    (refused,) = driver.feed(SequencesConfirmed(2, Cursor({0: 9})))
    assert refused.failure.kind == "invalid_token"
    assert driver.machine.coordinated["q"].evaluated == Cursor({0: 9, 1: 9})


def test_fetch_token_unconfirmed_withholds_its_partition():
    driver = Driver()
    driver.lead()
    driver.cycle([path(1, 1)], {1: 1}, now=1.0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 9})))
    (answer,) = driver.feed(SequencesConfirmed(1, EMPTY_CURSOR, unreachable=(0,)))
    assert to_paths(answer.labels) == [path(1, 1)]
    assert (answer.cursor, answer.missing) == (Cursor({0: 9, 1: 1}), (0,))
    assert driver.machine.coordinated["q"].evaluated == Cursor({1: 1})
    driver.feed(FetchRequested(2, "q", Cursor({0: 9, 1: 1})))
    (answer,) = driver.tick(2.0)
    assert (answer.labels, answer.missing) == (None, (0,))


def test_fetch_waiting_overtaken_by_reader_is_backfilled():
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    driver.feed(CommitsObserved("d", Cursor({0: 2})))
    effects = driver.feed(FetchRequested(2, "q", Cursor({0: 2})))
    assert [type(effect) for effect in effects] == [AnswerFetch, Backfill]
    assert (effects[1].request, effects[1].until) == (1, Cursor({0: 2}))


def test_fetch_beyond_fetches_max_is_overloaded(monkeypatch):
    monkeypatch.setattr(machine, "FETCHES_MAX", 1)
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    (refused,) = driver.feed(FetchRequested(2, "q", EMPTY_CURSOR))
    assert refused.failure.kind == "overloaded"


def test_age_of_answer_counts_from_begin_of_cycle():
    """What was committed while the cycle ran is not in it."""
    driver = Driver()
    driver.lead()
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (start,) = driver.tick(10.0)
    item = start.items[0]
    result = CycleResult("q", item.term, item.after, to_labels([path(0, 1)]), Cursor({0: 1}))
    driver.feed(CycleFinished(start.cycle_id, (result,)), now=13.0)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert answer.frontier_age_s == 3.0


def test_backfill_beyond_backfills_max_is_overloaded(monkeypatch):
    monkeypatch.setattr(fetches, "BACKFILLS_MAX", 2)
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4}))
    for request in (1, 2):
        assert only(driver.feed(FetchRequested(request, "q", EMPTY_CURSOR)), Backfill)
    (refused,) = driver.feed(FetchRequested(3, "q", EMPTY_CURSOR))
    assert (refused.request, refused.failure.kind) == (3, "overloaded")
    driver.feed(BackfillFinished(1, None, Cursor({0: 4})))
    assert only(driver.feed(FetchRequested(4, "q", EMPTY_CURSOR)), Backfill)
