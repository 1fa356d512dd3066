"""The event clock at a cursor: never ahead of the log, and there once the steps are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq.event_clock import STEPS_MAX, EventClock
from galileo.cursor import Cursor
from galileo.model.windows import ClockStep

logs = st.lists(st.lists(st.integers(-50, 50), max_size=8), min_size=1, max_size=3)


def newest(log: list[int], until: int) -> int | None:
    return max(log[:until], default=None)


def steps_of(logs: list[list[int]]) -> list[ClockStep]:
    return [
        ClockStep(partition, sequence, max(log[:sequence]))
        for partition, log in enumerate(logs)
        for sequence in range(1, len(log) + 1)
    ]


@given(logs, st.data())
def test_event_clock_random_steps_is_never_ahead(logs, data):
    clock = EventClock()
    steps = steps_of(logs)
    for one in data.draw(st.lists(st.sampled_from(steps), max_size=12) if steps else st.just([])):
        clock.observe([one])
        clock.check()
    cursor = Cursor({p: data.draw(st.integers(0, len(log))) for p, log in enumerate(logs)})
    truth = max(
        (m for p, log in enumerate(logs) if (m := newest(log, cursor[p])) is not None), default=None
    )
    found = clock.at(cursor)
    assert found is None or (truth is not None and found <= truth)


@given(logs)
def test_event_clock_all_steps_is_newest_bucket(logs):
    clock = EventClock()
    clock.observe(steps_of(logs))
    end = Cursor({p: len(log) for p, log in enumerate(logs)})
    assert clock.at(end) == max((max(log) for log in logs if log), default=None)


def test_event_clock_late_or_repeated_step_is_no_news():
    clock = EventClock()
    assert clock.observe([ClockStep(0, 5, 100)])
    assert not clock.observe([ClockStep(0, 5, 100), ClockStep(0, 3, 90), ClockStep(0, 7, 100)])
    assert clock.observe([ClockStep(0, 8, 101), ClockStep(1, 1, 7)])
    assert [clock.at(Cursor({0: s})) for s in (4, 5, 7, 8)] == [None, 100, 100, 101]


def test_event_clock_many_steps_keeps_newest():
    clock = EventClock()
    clock.observe([ClockStep(0, sequence, sequence) for sequence in range(1, STEPS_MAX + 3)])
    assert [clock.at(Cursor({0: s})) for s in (2, 3, 4)] == [None, 3, 4]
