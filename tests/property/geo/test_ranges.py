"""Ranges of cells and of numbers, and patterns of texts."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import cover, geohash, ranges
from galileo.geo.cover import CellRelation
from galileo.geo.patterns import Pattern

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


# --- patterns ------------------------------------------------------------------------------------


letters = st.sampled_from("__09bxz")
patterns = st.builds(
    lambda head, last: Pattern("".join(head) + last),
    st.lists(letters, max_size=4),
    st.sampled_from("09bxz"),
)
CELLS = np.arange(32**3, dtype=np.uint64)[::7]
TEXTS = geohash.to_text(CELLS, 3).to_pylist()


def place(pattern, text):
    """By the texts: the part that both have must match; a longer pattern takes part of the cell."""
    if re.match(pattern.text[: len(text)].replace("_", "."), text) is None:
        return CellRelation.OUTSIDE
    return CellRelation.INSIDE if len(pattern.text) <= len(text) else CellRelation.BORDER


@given(patterns, st.sampled_from([33, 200, cover.CELLS_MAX]))
def test_cover_from_pattern_random_pattern_equals_texts(pattern, cells_max):
    made = cover.from_pattern(pattern, 3, cells_max=cells_max)
    expected = [place(pattern, text) for text in TEXTS]
    places = made.relations(CELLS)
    tested = places != CellRelation.UNTESTED
    assert (places[tested] == np.array(expected)[tested]).all()
    possible = ranges.contains(made.possible, CELLS)
    assert possible[np.array(expected) != CellRelation.OUTSIDE].all()
    assert (pattern.intersects(CELLS, 3) == (np.array(expected) != CellRelation.OUTSIDE)).all()
    assert (pattern.covers(CELLS, 3) == (np.array(expected) == CellRelation.INSIDE)).all()


@given(patterns, st.integers(0, 2**32 - 1))
def test_pattern_random_points_match_by_text(pattern, seed):
    random = np.random.default_rng(seed)
    latitude, longitude = random.uniform(-90, 90, 300), random.uniform(-180, 180, 300)
    texts = geohash.to_text(geohash.encode(latitude, longitude, 12), 12).to_pylist()
    wanted = [re.match(pattern.text.replace("_", "."), text) is not None for text in texts]
    assert pattern.intersects_points(latitude, longitude).tolist() == wanted


@pytest.mark.parametrize("text", ["", "_", "9x_", "9A", "9x!", "0" * 13])
def test_pattern_invalid_text_raises(text):
    with pytest.raises(InputError):
        Pattern(text)
