from __future__ import annotations

import numpy as np
from expected_errors import raises
from hypothesis import assume, given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import cover, geohash, ranges, regions
from galileo.geo.cover import CellRelation

ALL_CELLS = np.arange(32**2, dtype=np.uint64)


@st.composite
def shapes(draw):
    """Triangles and boxes, large and small, on grid lines and off, also past ±180."""
    west = draw(st.integers(-360, 340) | st.floats(-360, 300))
    south = draw(st.integers(-90, 80) | st.floats(-90, 60))
    width = draw(st.sampled_from([0.5, 11.25, 20, 60]))
    height = min(draw(st.sampled_from([0.5, 5.625, 10, 30])), 90 - south)
    assume(west + width <= 360)
    ring = [(west, south), (west + width, south), (west, south + height)]
    if draw(st.booleans()):
        ring.insert(2, (west + width, south + height))
    return regions.from_geojson({"type": "Polygon", "coordinates": [[*ring, ring[0]]]})


@given(shapes(), st.booleans(), st.sampled_from([33, 200, cover.CELLS_MAX]))
def test_cover_from_region_random_region_equals_test_of_every_cell(region, interior, cells_max):
    made = cover.from_region(region, 2, interior=interior, cells_max=cells_max)
    places, boxes = made.relations(ALL_CELLS), geohash.bounds(ALL_CELLS, 2)
    meets = region.intersects(boxes)
    enclosed = region.contains_strictly(boxes) if interior else region.covers(boxes)
    expected = np.where(
        enclosed, CellRelation.INSIDE, np.where(meets, CellRelation.BORDER, CellRelation.OUTSIDE)
    )
    tested = places != CellRelation.UNTESTED
    assert (places[tested] == expected[tested]).all()
    assert ranges.contains(made.possible, ALL_CELLS[meets]).all()


@given(shapes())
def test_cover_from_region_cells_max_bounds_cells(region):
    few = cover.from_region(region, 6, cells_max=64)
    count = sum(len(part[0]) for part in (few.inside, few.border, few.untested))
    assert count <= 64
    assert len(cover.from_region(region, 2, cells_max=10**6).untested[0]) == 0


@given(shapes(), st.integers(0, 2**32 - 1))
def test_cover_from_region_points_of_region_lie_in_cover(region, seed):
    random = np.random.default_rng(seed)
    latitude, longitude = random.uniform(-90, 90, 500), random.uniform(-180, 180, 500)
    cells = geohash.encode(latitude, longitude, 5)
    places = cover.from_region(region, 5).relations(cells)
    inside = region.intersects_points(latitude, longitude)
    assert (places[inside] != CellRelation.OUTSIDE).all()
    assert inside[places == CellRelation.INSIDE].all()


@given(shapes(), st.integers(0, 2**32 - 1), st.integers(0, 8))
def test_cover_relations_do_not_depend_on_order_and_number(region, seed, precision_of_prefix):
    """Few cells, many in some order, and many in ascending order are looked up in three ways."""
    random = np.random.default_rng(seed)
    made, size = cover.from_region(region, 5), 32 ** min(5, precision_of_prefix)
    cells = random.integers(0, size, 3 * cover._MANY, dtype=np.uint64)
    expected = np.concatenate([made.relations(few) for few in np.split(cells, 3)])
    assert (made.relations(cells) == expected).all()
    order = np.argsort(cells)
    assert (made.relations(cells[order]) == expected[order]).all()


def test_cover_from_region_box_of_whole_cells_is_inside():
    west, south, east, north = (
        float(v[0]) for v in geohash.bounds([geohash.cell_from_text("9x")], 2)
    )
    made = cover.from_region(regions.from_box([west, south, east, north]), 4)
    lo, hi = geohash.prefix_range("9x", 4)
    cells = np.arange(lo, hi, dtype=np.uint64)
    assert (made.relations(cells) == CellRelation.INSIDE).all()
    inner = cover.from_region(regions.from_box([west, south, east, north]), 4, interior=True)
    assert {CellRelation.INSIDE, CellRelation.BORDER} == {
        CellRelation(place) for place in inner.relations(cells)
    }


def test_cover_from_prefixes_longer_prefixes_are_border():
    made = cover.from_prefixes(("9x", "9xj", "c2b25", "9y1234", "9x1234"), 5)
    names = ["9xjqb", "9x123", "c2b25", "c2b24", "9y123", "9y124"]
    places = made.relations(geohash.from_text(names)).tolist()
    inside, border, outside = CellRelation.INSIDE, CellRelation.BORDER, CellRelation.OUTSIDE
    assert places == [inside, inside, inside, outside, border, outside]


def test_cover_from_prefixes_invalid_geohash_raises():
    with raises(InputError, expected="geohash"):
        cover.from_prefixes(("9a",), 5)
