from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import CALLS_MAX, Figure, Peer, Spread, calls_for, digits, in_turn, quantity
from benchmarks.processes import processor_seconds

SCALES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
runs_of = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9)


@given(runs_of)
def test_spread_random_values_equal_sorted(values):
    spread, ordered = Spread.of(values), sorted(values)
    middle = len(values) // 2
    wanted = ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    assert (spread.low, spread.high, spread.runs) == (ordered[0], ordered[-1], len(values))
    assert spread.median == pytest.approx(wanted)


def test_spread_no_values_raises_value_error():
    with pytest.raises(ValueError, match="at least one run"):
        Spread.of([])


def test_spread_per_second_is_rate_per_run():
    rate = Spread.of([0.5, 2.0, 1.0]).per_second(100)
    assert rate.values == (200.0, 50.0, 100.0)
    assert (rate.low, rate.median, rate.high) == (50.0, 100.0, 200.0)


def test_figure_ratio_is_of_medians():
    peer = Peer("floor", Spread.of([1.0, 4.0, 2.0]))
    assert Figure("it", "s", Spread.of([9.0, 5.0, 1.0]), (peer,)).ratio(peer) == 2.5


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00123, "s", "1.23 ms"),
        (12.34, "s", "12.3 s"),
        (75, "s", "75.0 s"),
        (42.4e-6, "s", "42.4 µs"),
        (2e-8, "s", "0.0200 µs"),
        (1_234_567, "paths/s", "1.23 M paths/s"),
        (987, "labels/s", "987 labels/s"),
        (25_300_000_000, "B", "25.3 GB"),
        (512, "B", "512 B"),
        (60.04, "B/path", "60.0 B/path"),
        (12_345, "labels", "12,345 labels"),
    ],
)
def test_quantity_any_unit_has_known_text(value, unit, text):
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.9996, "1.00"),
        (0.0112, "0.0112"),
        (0.271, "0.271"),
        (1234.5, "1,234"),
        (-2.5, "-2.50"),
        (0.000012, "0.00001"),
    ],
)
def test_digits_any_value_has_known_text(value, text):
    assert digits(value) == text


@given(st.floats(1e-6, 9e11), st.sampled_from(["s", "B", "paths/s"]))
def test_quantity_random_value_has_three_digits(value, unit):
    number, rest = re.fullmatch(r"([0-9.,]+) (.*)", quantity(value, unit)).groups()
    prefix = rest if unit == "s" else rest.removesuffix(unit).strip()
    small = unit != "s" and value < 1e-3  # fewer digits are left there
    said = float(number.replace(",", "")) * SCALES[prefix]
    assert said == pytest.approx(value, rel=0.0051, abs=1e-5 if small else 0)


@pytest.mark.parametrize(("warm_up", "rounds"), [(True, 4), (False, 3)])
def test_in_turn_subjects_alternate(warm_up, rounds):
    called: list[str] = []
    spreads = in_turn(
        lambda: called.append("a"), lambda: called.append("b"), runs=3, warm_up=warm_up
    )
    assert called == ["a", "b"] * rounds
    assert [spread.runs for spread in spreads] == [3, 3]


def test_in_turn_quick_subject_is_called_often():
    called: list[int] = []
    (spread,) = in_turn(lambda: called.append(1), runs=2, run_s=10.0)
    assert len(called) == 1 + 2 * CALLS_MAX
    assert spread.high < 1.0


@pytest.mark.parametrize(
    ("run_s", "call_s", "calls"),
    [(0.0, 1.0, 1), (0.02, 0.5, 1), (0.02, 0.005, 4), (0.02, 0.0, CALLS_MAX)],
)
def test_calls_for_run_and_call_gives_known_number(run_s, call_s, calls):
    assert calls_for(run_s, call_s) == calls


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1_000))


def test_processor_seconds_include_ended_threads():
    before = processor_seconds(os.getpid())
    for number in range(5):
        thread = threading.Thread(target=busy, args=(0.02,))
        thread.start()
        thread.join()
        assert processor_seconds(os.getpid()) - before >= 0.02 * (number + 1)
    assert processor_seconds(os.getpid()) <= time.process_time()


def test_processor_seconds_ended_process_raises():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ProcessLookupError, match=str(ended.pid)):
        processor_seconds(ended.pid)
