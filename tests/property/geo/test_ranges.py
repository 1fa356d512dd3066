from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from galileo.geo import ranges

SIZE = 40
pairs = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=6)


def members(spans):
    return {cell for lo, hi in spans for cell in range(lo, hi)}


def built(spans):
    columns = np.array(spans, dtype=np.uint64).reshape(-1, 2)
    return ranges.normalise(columns[:, 0], columns[:, 1])


def spans_of(found):
    return [(int(lo), int(hi)) for lo, hi in zip(*found, strict=True)]


@given(pairs)
def test_normalise_random_ranges_are_sorted_and_disjoint(spans):
    found = spans_of(built(spans))
    assert members(found) == members(spans)
    assert all(lo < hi for lo, hi in found)
    assert all(left[1] < right[0] for left, right in pairwise(found))


@given(pairs, pairs)
def test_ranges_algebra_random_ranges_equals_sets(left, right):
    a, b = built(left), built(right)
    assert members(spans_of(ranges.union(a, b))) == members(left) | members(right)
    assert members(spans_of(ranges.intersection(a, b))) == members(left) & members(right)
    assert members(spans_of(ranges.complement(a, SIZE))) == set(range(SIZE)) - members(left)


@given(pairs, st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 5)), min_size=1))
def test_ranges_overlaps_and_holds_random_ranges_equal_sets(spans, stretches):
    held, cells = built(spans), members(spans)
    lows = np.array([lo for lo, _ in stretches], dtype=np.uint64)
    highs = np.array([lo + more for lo, more in stretches], dtype=np.uint64)
    wide = [set(range(lo, lo + more + 1)) for lo, more in stretches]
    assert ranges.overlaps(held, lows, highs).tolist() == [bool(w & cells) for w in wide]
    assert ranges.holds(held, lows, highs).tolist() == [w <= cells for w in wide]
    assert ranges.contains(held, lows).tolist() == [lo in cells for lo, _ in stretches]


def test_ranges_none_holds_nothing():
    cells = np.arange(3, dtype=np.uint64)
    assert not ranges.contains(ranges.none(), cells).any()
    assert not ranges.overlaps(ranges.none(), cells, cells).any()
    assert spans_of(ranges.intersection(ranges.none(), ranges.none())) == []
