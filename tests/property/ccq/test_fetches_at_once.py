"""Many fetches in one event are answered as if each had come alone."""

from __future__ import annotations

from dataclasses import replace

from ccq_driver import CCQ, Driver, path
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from simulator.logs import to_labels

from galileo.ccq.events import (
    AnswerFetch,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    FetchesRequested,
    FetchRequested,
    StartCycle,
)
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure

FAILURE = Failure("sampler_revoked", "it was taken back")
CURSORS = st.builds(Cursor, st.dictionaries(st.integers(0, 1), st.integers(0, 5), max_size=2))
CYCLES = st.tuples(st.just("cycle"), CURSORS, st.booleans(), st.integers(0, 5))
FETCHES = st.tuples(
    st.sampled_from(["fetch", "fetch inside", "fetch inside", "fetch inside"]),
    CURSORS,
    st.sampled_from([1, 2, 100]),
    st.sampled_from([None] * 6 + [0.0, 1e6]),
)


def evaluated(driver: Driver, known: Cursor, *, fails: bool, dropped: int) -> list:
    """A cycle that finds a label in each commit; those up to `dropped` are gone."""
    driver.feed(CommitsObserved("d", known))
    effects = driver.tick(driver.now + 40.0)
    for start in (one for one in effects if isinstance(one, StartCycle)):
        (item,) = start.items
        gone = {p: min(s, dropped) for p, s in known.items() if min(s, dropped) > item.after[p]}
        begin = item.after.join(gone)
        paths = [path(p, s) for p, last in known.items() for s in range(begin[p] + 1, last + 1)]
        result = CycleResult("q", item.term, item.after, to_labels(paths), known, gone=Cursor(gone))
        if fails:
            result = replace(
                result, labels=None, reached=EMPTY_CURSOR, gone=EMPTY_CURSOR, failure=FAILURE
            )
        effects = [*effects, *driver.feed(CycleFinished(start.cycle_id, (result,)))]
    return effects


def responses_of(effects: list) -> list:
    """With the labels as what they are."""
    return [
        replace(one, labels=one.labels and one.labels.labels().table.to_pylist())
        if isinstance(one, AnswerFetch)
        else one
        for one in effects
        if not isinstance(one, StartCycle)
    ]


@examples(150)
@given(steps=st.lists(st.one_of(CYCLES, FETCHES), max_size=12))
def test_fetches_requested_random_steps_equal_single_fetches(steps: list) -> None:
    alone, together = Driver(chunks_compacted=10**6), Driver(chunks_compacted=10**6)
    for driver in (alone, together):
        driver.lead(CCQ)
    for number, (kind, cursor, *how) in enumerate(steps):
        if kind == "cycle":
            found = [
                evaluated(one, cursor, fails=how[0] and how[1] == 0, dropped=how[1])
                for one in (alone, together)
            ]
            assert responses_of(found[0]) == responses_of(found[1])
            continue
        if kind == "fetch inside":
            cache = alone.machine.coordinated["q"].cache
            cursor = cursor.meet(cache.until).join(cache.base)
        asked = FetchRequested(number, "q", cursor, how[1], how[0])
        assert responses_of(alone.feed(asked)) == responses_of(
            together.feed(FetchesRequested((asked,)))
        )
