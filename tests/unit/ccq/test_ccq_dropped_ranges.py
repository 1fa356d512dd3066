"""What retention dropped before it was evaluated: remembered, reported once, reported in time."""

from __future__ import annotations

import itertools

from ccq_driver import Driver, only, path
from hypothesis import given
from hypothesis import strategies as st
from simulator.logs import to_labels, to_paths

from galileo.ccq.dropped_ranges import DroppedRanges, ranges_between, within
from galileo.ccq.events import (
    AnswerFetch,
    Backfill,
    BackfillFinished,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    FetchRequested,
    StartCycle,
)
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor

PARTITIONS = (0, 3)
cursors = st.builds(lambda a, b: Cursor({0: a, 3: b}), st.integers(0, 12), st.integers(0, 12))


def commits(found: tuple[CommitRange, ...]) -> set[tuple[int, int]]:
    """Every single commit; fails where one is named twice."""
    named = [(s.partition, n) for s in found for n in range(s.first, s.last + 1)]
    assert len(named) == len(set(named))
    return set(named)


def between(after: Cursor, until: Cursor) -> set[tuple[int, int]]:
    return {(p, n) for p in PARTITIONS for n in range(after[p] + 1, until[p] + 1)}


@given(st.lists(st.tuples(cursors, cursors), max_size=6), cursors, cursors, cursors)
def test_dropped_ranges_random_steps_equal_sets(
    steps: list[tuple[Cursor, Cursor]], base: Cursor, after: Cursor, until: Cursor
) -> None:
    """Steps as the cache takes them: each (until so far, gone], then on to what was reached."""
    gone, truth, at = DroppedRanges(), set(), EMPTY_CURSOR
    for lost, reached in steps:
        reached = at.join(reached)
        lost = lost.meet(reached)
        gone.add(at, lost)
        truth |= between(at, lost)
        at = reached
    gone.check(EMPTY_CURSOR, at)
    everything = gone.between(EMPTY_CURSOR, at)
    assert commits(everything) == truth
    assert commits(gone.between(after, until)) == truth & between(after, until)
    assert commits(within(everything, after=after)) == truth & between(after, at)
    for one, other in itertools.pairwise(everything):
        assert one.partition < other.partition or one.last + 1 < other.first, "neighbours are one"
    gone.discard_before(base)
    assert commits(gone.between(EMPTY_CURSOR, at)) == truth - between(EMPTY_CURSOR, base)
    assert commits(ranges_between(after, until)) == between(after, until)


def cycle(driver: Driver, paths: list, reached: dict, gone: dict, *, now: float) -> list:
    driver.feed(CommitsObserved("d", Cursor(reached)))
    (start,) = only(driver.tick(now), StartCycle)
    item = start.items[0]
    found = to_labels(paths), Cursor(reached)
    result = CycleResult("q", item.term, item.after, *found, gone=Cursor(gone))
    return driver.feed(CycleFinished(start.cycle_id, (result,)))


def test_fetch_dropped_range_is_reported_once() -> None:
    driver = Driver()
    driver.lead()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    (answer,) = only(cycle(driver, [], {0: 4}, {0: 4}, now=1.0), AnswerFetch)
    assert (answer.labels, answer.gone) == (None, (CommitRange(0, 1, 4),))
    assert answer.cursor == Cursor({0: 4})
    driver.feed(FetchRequested(2, "q", answer.cursor, wait_until=50.0))
    (answer,) = only(cycle(driver, [path(0, 6)], {0: 6}, {}, now=2.0), AnswerFetch)
    assert (to_paths(answer.labels), answer.gone) == ([path(0, 6)], ())


def test_fetch_cached_labels_of_dropped_commits_are_delivered() -> None:
    driver = Driver()
    driver.lead()
    cycle(driver, [path(0, 2)], {0: 3}, {}, now=1.0)
    cycle(driver, [path(0, 9)], {0: 9}, {0: 7}, now=2.0)  # 1 to 7 were dropped in between
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert to_paths(answer.labels) == [path(0, 2), path(0, 9)]
    assert answer.gone == (CommitRange(0, 4, 7),)


def test_fetch_cut_answer_names_ranges_within_it() -> None:
    driver = Driver()
    driver.lead()
    cycle(driver, [path(0, 1)], {0: 1}, {}, now=1.0)
    cycle(driver, [path(0, 5)], {0: 5, 1: 3}, {0: 4, 1: 2}, now=2.0)
    token, gone, got = EMPTY_CURSOR, [], []
    for request in (1, 2):
        (answer,) = driver.feed(FetchRequested(request, "q", token, labels_max=1))
        token, got = answer.cursor, got + to_paths(answer.labels)
        gone += answer.gone
        assert answer.more is (request == 1)
    assert got == [path(0, 1), path(0, 5)]
    assert commits(tuple(gone)) == {(0, 2), (0, 3), (0, 4), (1, 1), (1, 2)}


def test_backfill_of_dropped_commits_names_range() -> None:
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 6}))
    cycle(driver, [path(0, 8)], {0: 8}, {0: 7}, now=1.0)
    (rescan,) = driver.feed(FetchRequested(1, "q", Cursor({0: 2})))
    assert isinstance(rescan, Backfill)
    found = to_labels([path(0, 6)])
    done = BackfillFinished(1, found, Cursor({0: 6}), gone=Cursor({0: 5}))
    (answer,) = driver.feed(done)
    assert to_paths(answer.labels) == [path(0, 6), path(0, 8)]
    assert answer.gone == (CommitRange(0, 3, 5), CommitRange(0, 7, 7))
    assert answer.cursor == Cursor({0: 8})


def test_dropped_ranges_acknowledged_are_forgotten() -> None:
    driver = Driver()
    driver.lead()
    cycle(driver, [], {0: 4}, {0: 4}, now=1.0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 4})))
    cache = driver.machine.coordinated["q"].cache
    assert cache.gone.between(EMPTY_CURSOR, cache.until) == ()
