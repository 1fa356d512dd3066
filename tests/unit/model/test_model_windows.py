"""Windows against a loop over labels, before 1970 and after, wide and narrow, late and in time."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise

import numpy as np
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError
from galileo.model import grouping
from galileo.model.times import TIME_MAX_US, TIME_MIN_US, micros
from galileo.model.windows import (
    OPEN_WINDOWS_MAX,
    Window,
    WindowProgress,
    advance_windows,
    array_to_runs,
    runs_to_array,
)

H = 3_600_000_000
WEEK = 7 * 24 * H
MONTH = 30 * 24 * H
MONDAY = micros("1969-12-29")


def late(window: Window, start: int, clock_us: int | None) -> bool:
    return clock_us is not None and start + window.size_us + window.lateness_us <= clock_us


class Naive:
    """A reader that keeps a dictionary of windows, and looks at label by label."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.first_us = 0 if window.slide_us % WEEK else MONDAY
        self.clock_us: int | None = None
        self.held: dict[int, list[int]] = {}

    def take(
        self, buckets: list[int], withdrawn: list[int], *, clock_us: int | None
    ) -> list[tuple[int, int, int, str]]:
        window, before = self.window, self.clock_us
        news, gone = self.counts(buckets), self.counts(withdrawn)
        begun = sorted({*self.held, *news, *gone})[-1:]
        known = [c for c in (before, clock_us, *buckets, *begun) if c is not None]
        self.clock_us = max(known, default=None)
        changes = []
        for start in sorted({*self.held, *news, *gone}):
            is_over = late(window, start, self.clock_us)
            counts = (news.get(start, 0), gone.get(start, 0))
            if late(window, start, before):
                changes.append((start, *counts, "reopened"))
            elif is_over:
                changes.append((start, *counts, "closed"))
            elif any(counts):
                changes.append((start, *counts, "open"))
            if is_over:
                self.held.pop(start, None)
            else:
                self.held[start] = []
        return changes

    def counts(self, buckets: list[int]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for bucket in buckets:
            start = bucket - (bucket - self.first_us) % self.window.slide_us
            while start + self.window.size_us > bucket:
                counts[start] = counts.get(start, 0) + 1
                start -= self.window.slide_us
        return counts


@st.composite
def shapes(draw: st.DrawFn) -> Window:
    slide = draw(st.sampled_from([1, 7, 60_000_000, H, 24 * H, WEEK, 2 * WEEK, MONTH]))
    overlap = draw(st.sampled_from([1, 1, 2, 6, 24]))
    lateness = draw(st.sampled_from([0, 1, slide // 3, slide, 30 * slide]))
    return Window("sliding", slide * overlap, slide, lateness)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Window, list[tuple[list[int], list[int], int | None]]]:
    """Windows, and answers: starts of buckets of some width, of labels and of withdrawn ones, and a
    clock that need not ascend.
    """
    window = draw(shapes())
    width = draw(st.sampled_from([1, window.slide_us, 3 * window.size_us, window.size_us // 2 + 1]))
    middle = draw(st.sampled_from([0, -1_000 * width, 50_000 * width]))
    moments = st.integers(-60, 60).map(lambda n: middle + n * width)
    buckets = st.lists(moments, max_size=8)
    answers = st.tuples(buckets, buckets, st.none() | moments)
    return window, draw(st.lists(answers, min_size=1, max_size=5))


@given(histories())
def test_advance_windows_random_answers_equals_loop_over_labels(history):
    window, answers = history
    naive, progress = Naive(window), WindowProgress()
    for buckets, withdrawn, clock_us in answers:
        expected = naive.take(buckets, withdrawn, clock_us=clock_us)
        progress, changes = advance_windows(
            window,
            progress,
            buckets=np.array(buckets, dtype=np.int64),
            withdrawn=np.array(withdrawn, dtype=np.int64),
            clock_us=clock_us,
            more=False,
        )
        assert [
            (one.start_us, one.labels, one.withdrawn, one.state) for one in changes.to_list()
        ] == expected
        assert changes.clock_us == progress.clock_us == naive.clock_us
        starts = naive.first_us + runs_to_array(progress.open) * window.slide_us
        assert starts.tolist() == sorted(naive.held)


@given(st.sets(st.integers(-1_000, 1_000)))
def test_array_to_runs_random_numbers_round_trip(numbers):
    ascending = np.array(sorted(numbers), dtype=np.int64)
    found = array_to_runs(ascending)
    assert runs_to_array(found).tolist() == ascending.tolist()
    assert all(end + count < start for (end, count), (start, _) in pairwise(found))


@pytest.mark.parametrize(
    ("window", "start"),
    [
        (Window.tumbling("1w"), "2014-03-10"),
        (Window.tumbling("7d"), "2014-03-10"),
        (Window.sliding("4w", slide="1w"), "2014-02-17"),
        (Window.sliding("7d", slide="1d"), "2014-03-07"),
    ],
)
def test_windows_of_whole_weeks_begin_on_mondays(window: Window, start: str) -> None:
    bucket_us = micros("2014-03-13T12:00Z")  # A Thursday.
    _, changes = advance_windows(
        window, WindowProgress(), buckets=np.array([bucket_us]), clock_us=None, more=False
    )
    assert changes.to_list()[0].start_us == micros(start)
    if window.kind == "tumbling":
        key = grouping.window(7 * 86_400)
        assert key.begins(key.numbers(np.array([bucket_us]))).tolist() == changes.starts.tolist()
    progress, _ = advance_windows(
        window, WindowProgress(), buckets=np.array([bucket_us]), clock_us=None, more=False
    )
    assert window.next_close_us(progress) == changes.to_list()[0].end_us
    assert window.is_reachable(progress)
    clock_us = changes.to_list()[0].end_us
    assert window.last_closed(clock_us) == progress.open[0][0]
    assert window.last_closed(clock_us - 1) == progress.open[0][0] - 1


def test_window_counts_wide_bucket_counts_at_its_start():
    """A day's bucket lies over 24 hours' windows, and counts for the first."""
    numbers, counts = Window.tumbling("1h").counts(np.array([24 * H, 24 * H, -24 * H]))
    assert numbers.tolist() == [-24, 24]
    assert counts.tolist() == [1, 2]


def test_advance_windows_more_pending_keeps_clock_and_windows():
    window, late_one = Window.tumbling("1h"), np.array([0])
    progress, changes = advance_windows(
        window, WindowProgress(), buckets=np.array([9 * H]), clock_us=9 * H, more=True
    )
    assert changes.clock_us is None
    progress, changes = advance_windows(
        window, progress, buckets=late_one, clock_us=9 * H, more=False
    )
    assert [(one.start_us, one.state) for one in changes.to_list()] == [(0, "closed")]
    progress, changes = advance_windows(
        window, progress, buckets=late_one, clock_us=9 * H, more=True
    )
    assert [(one.start_us, one.state) for one in changes.to_list()] == [(0, "reopened")]
    assert progress == WindowProgress(9 * H, ((9, 1),))


def test_advance_windows_after_pending_labels_moves_clock():
    """Even where no node has reported a clock that far yet."""
    window = Window.tumbling("1h")
    progress, _ = advance_windows(
        window, WindowProgress(), buckets=np.array([9 * H]), clock_us=None, more=True
    )
    progress, changes = advance_windows(
        window, progress, buckets=np.array([0]), clock_us=None, more=False
    )
    assert (changes.clock_us, progress.open) == (9 * H, ((9, 1),))
    assert [(one.start_us, one.state) for one in changes.to_list()] == [(0, "closed")]


def test_window_is_reachable_clock_outside_calendar_is_false():
    window = Window.tumbling("1h")
    progress, _ = advance_windows(
        window,
        WindowProgress(),
        buckets=np.array([TIME_MIN_US, TIME_MAX_US]),
        clock_us=None,
        more=True,
    )
    assert window.is_reachable(progress)
    assert window.is_reachable(WindowProgress(TIME_MAX_US))
    assert not window.is_reachable(WindowProgress(TIME_MAX_US + 1))
    assert not window.is_reachable(WindowProgress(0, ((2**50, 1),)))
    assert not window.is_reachable(WindowProgress(0, ((-(2**50), 1),)))


def test_advance_windows_open_windows_at_limit_moves_clock():
    count = OPEN_WINDOWS_MAX
    window, many = Window.tumbling("1h"), np.arange(count + 1) * H
    progress, changes = advance_windows(
        window, WindowProgress(), buckets=many[:count], clock_us=(count + 9) * H, more=True
    )
    assert (progress.clock_us, progress.open) == (None, ((0, count),))
    progress, changes = advance_windows(
        window, progress, buckets=many[count:], clock_us=3 * H, more=True
    )
    assert (progress.clock_us, progress.open) == (count * H, ((count, 1),))
    assert [one.state for one in changes.to_list()] == ["closed"] * count + ["open"]


def test_advance_windows_lateness_delays_close():
    window = Window.tumbling("1h", lateness="10m")
    progress, _ = advance_windows(
        window, WindowProgress(), buckets=np.array([0]), clock_us=None, more=False
    )
    assert window.next_close_us(progress) == H + H // 6
    progress, changes = advance_windows(
        window, progress, buckets=np.array([]), clock_us=H + H // 6 - 1, more=False
    )
    assert len(changes) == 0
    progress, changes = advance_windows(
        window, progress, buckets=np.array([]), clock_us=H + H // 6, more=False
    )
    assert [one.state for one in changes.to_list()] == ["closed"]
    assert window.next_close_us(progress) is None


def test_window_change_start_and_end_are_utc_times():
    (change,) = advance_windows(
        Window.tumbling("1h"), WindowProgress(), buckets=np.array([-H]), clock_us=5 * H, more=False
    )[1].to_list()
    assert (change.start, change.end) == (
        dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    )
    assert change.is_closed
    assert micros(change.start) == change.start_us


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("tumbling:1h", Window.tumbling("1h")),
        ("tumbling:90s", Window.tumbling(90.0)),
        ("sliding:6h/1h", Window.sliding("6h", slide="1h")),
        ("sliding:30d/1d", Window.sliding("30d", slide="1d")),
    ],
)
def test_window_parse_valid_text_round_trips(text, window):
    assert galileo.Window.parse(text) == window
    assert str(window) == text
    assert Window.from_json(window.to_json()) == window
    assert Window.parse(text, lateness="10m").lateness_us == H // 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1h",
        "tumbling",
        "tumbling:",
        "tumbling:6h/1h",
        "sliding:6h",
        "sliding:6h/",
        "hopping:1h",
    ],
)
def test_window_parse_invalid_text_raises(text):
    with raises(InputError, expected="window"):
        Window.parse(text)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Window.tumbling("1h", over="commit"), "event_time"),
        (lambda: Window.sliding("6h", slide="4h"), "multiple_of_slide"),
        (lambda: Window.sliding("1h", slide="2h"), "multiple_of_slide"),
        (lambda: Window.sliding("24h", slide="1m"), "overlap"),
        (lambda: Window.tumbling("1s", lateness="7d"), "open_windows"),
        (lambda: Window.tumbling("40000d"), "window_size"),
        (lambda: Window.tumbling(0), "positive_duration"),
        (lambda: Window.tumbling("1h", lateness=-1), "positive_duration"),
        (lambda: Window("hopping", H, H), "window_kind"),  # type: ignore[arg-type]
        (lambda: Window("tumbling", 2 * H, H), "no_slide"),
        (lambda: Window("tumbling", 1.5, 1.5), "microseconds"),  # type: ignore[arg-type]
        (lambda: Window.from_json("{"), "json"),
        (lambda: Window.from_json('{"size_us":1}'), "json"),
        (lambda: Window.from_json("7"), "json"),
    ],
)
def test_window_invalid_arguments_raises(make, expected):
    with raises(InputError, expected=expected):
        make()
