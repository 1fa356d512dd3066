from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.histogram import DISK_BOUNDS_S, LAG_BOUNDS_S, LOOP_BOUNDS_S, DurationHistogram


@given(st.lists(st.floats(-1.0, 4000.0), max_size=50))
def test_duration_histogram_random_durations_equal_counts(durations: list[float]) -> None:
    timings = DurationHistogram(LAG_BOUNDS_S)
    for duration_s in durations:
        timings.observe(duration_s)
    counted = [max(one, 0.0) for one in durations]
    expected = [float(sum(one <= bound for one in counted)) for bound in LAG_BOUNDS_S]
    assert [count for _, count in timings.cumulative()] == [*expected, float(len(counted))]
    assert timings.count == len(counted)
    assert timings.sum_s == pytest.approx(sum(counted))


@pytest.mark.parametrize("bounds", [DISK_BOUNDS_S, LAG_BOUNDS_S, LOOP_BOUNDS_S])
def test_duration_histogram_bounds_ascend_and_are_open_metrics(bounds: tuple[float, ...]) -> None:
    assert sorted(set(bounds)) == list(bounds)
    names = [name for name, _ in DurationHistogram(bounds).cumulative()]
    assert names[-1] == "+Inf"
    assert all("." in name and "e" not in name for name in names[:-1])
    assert bisect_left(bounds, bounds[0]) == 0
