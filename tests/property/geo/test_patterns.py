from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import cover, geohash, ranges
from galileo.geo.cover import CellRelation
from galileo.geo.patterns import Pattern

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
