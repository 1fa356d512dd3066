from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import shapely
import shapely.geometry
from expected_errors import raises

from galileo.errors import InputError
from galileo.geo import regions


def polygon(*rings):
    return {"type": "Polygon", "coordinates": [list(ring) for ring in rings]}


SQUARE = [(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]
HOLE = [(4, 4), (6, 4), (6, 6), (4, 6), (4, 4)]


def meets(region, *points):
    longitude, latitude = np.array(points, dtype=np.float64).T
    return region.intersects_points(latitude, longitude).tolist()


def contains(region, *points):
    longitude, latitude = np.array(points, dtype=np.float64).T
    return region.contains_points(latitude, longitude).tolist()


def boxes(*bounds):
    return tuple(np.array(bounds, dtype=np.float64).T)


def test_region_polygon_with_hole_excludes_hole():
    region = regions.from_geojson(polygon(SQUARE, HOLE))
    assert meets(region, (1, 1), (5, 5), (4, 5), (10, 10), (11, 1)) == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert contains(region, (1, 1), (4, 5), (10, 10)) == [True, False, False]


def test_from_geojson_open_ring_is_closed():
    assert meets(regions.from_geojson(polygon(SQUARE[:-1])), (5, 5)) == [True]


def test_region_multipolygon_line_and_point_intersect_their_points():
    far = [(20, 0), (30, 0), (30, 10), (20, 0)]
    many = regions.from_geojson({"type": "MultiPolygon", "coordinates": [[SQUARE], [far]]})
    assert meets(many, (5, 5), (29, 5), (15, 5)) == [True, True, False]
    line = regions.from_geojson({"type": "LineString", "coordinates": [(0, 0), (10, 0)]})
    assert meets(line, (5, 0), (10, 0), (5, 1)) == [True, True, False]
    assert contains(line, (5, 0), (10, 0)) == [True, False]
    point = regions.from_geojson({"type": "Point", "coordinates": [1, 2, 300]})
    assert meets(point, (1, 2), (2, 1)) == [True, False]


def test_region_relations_of_boxes_are_exact():
    region = regions.from_geojson(polygon(SQUARE, HOLE))
    tried = boxes((1, 1, 2, 2), (0, 0, 2, 2), (3, 3, 5, 5), (10, 10, 12, 12), (11, 0, 12, 1))
    assert region.intersects(tried).tolist() == [True, True, True, True, False]
    assert region.covers(tried).tolist() == [True, True, False, False, False]
    assert region.contains_strictly(tried).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    "raw",
    [
        polygon([(170, -10), (190, -10), (190, 10), (170, 10)]),
        polygon([(-190, -10), (-170, -10), (-170, 10), (-190, 10)]),
    ],
)
def test_region_polygon_across_antimeridian_intersects_both_sides(raw):
    region = regions.from_geojson(raw)
    inside = [(175, 0), (-175, 0), (180, 0), (-180, 0), (170, 10)]
    assert meets(region, *inside, (0, 0), (160, 0)) == [True] * 5 + [False] * 2
    assert contains(region, *inside) == [True, True, True, True, False]
    assert region.covers(boxes((175, -5, 180, 5), (-180, -5, -175, 5))).all()


def test_from_box_west_above_east_crosses_antimeridian():
    region = regions.from_box([170, -10, -170, 10])
    assert meets(region, (175, 0), (-175, 0), (0, 0)) == [True, True, False]
    assert meets(regions.from_box([-10, -10, 10, 10]), (0, 0), (175, 0)) == [True, False]


def test_region_touching_antimeridian_intersects_both_sides():
    region = regions.from_box([-180, -10, -170, 10])
    assert meets(region, (-180, 0), (180, 0), (179.9, 0)) == [True, True, False]


def test_from_box_longitudes_to_360_are_folded():
    region = regions.from_box([200, 0, 210, 10])
    assert meets(region, (-155, 5), (155, 5)) == [True, False]


def test_region_at_pole_intersects_all_longitudes():
    cap = regions.from_box([-180, 80, 180, 90])
    assert meets(cap, (0, 90), (-180, 90), (180, 85), (0, 79)) == [True, True, True, False]
    south = regions.from_geojson(polygon([(-180, -90), (180, -90), (180, -80), (-180, -80)]))
    assert meets(south, (12, -90), (12, -79)) == [True, False]


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ((350, 0, -20, 10), (170, 5), (-15, 5)),
        ((270, 0, -180, 10), (0, 5), (-135, 5)),
        ((190, 0, -170, 10), (-170, 5), (0, 5)),
        ((181, 0, -350, 10), (-175, 5), (20, 5)),
        ((360, 0, -350, 10), (5, 5), (-5, 5)),
    ],
)
def test_from_box_west_above_180_and_negative_east_is_folded(bounds, inside, outside):
    west, south, east, north = bounds
    folded = regions.from_box([west - 360, south, east + 360 * (east < -180), north])
    points = [
        inside,
        outside,
        (west - 360, 5),
        (east + 360 * (east < -180), 5),
        (-180, 5),
        (180, 5),
    ]
    found = meets(regions.from_box(bounds), *points)
    assert found == meets(folded, *points)
    assert found[:4] == [True, False, True, True]


def test_from_box_no_extent_is_line_or_point():
    assert meets(regions.from_box([1, 2, 1, 2]), (1, 2), (1, 2.1)) == [True, False]
    assert meets(regions.from_box([1, 2, 1, 4]), (1, 3), (1.1, 3)) == [True, False]


def test_from_box_heights_are_ignored():
    assert meets(regions.from_box([0, 0, -5, 10, 10, 5]), (5, 5), (11, 5)) == [True, False]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (polygon([(0, 0), (1, 1), (0, 1), (1, 0), (0, 0)]), "valid_geometry"),
        (polygon([(0, 0), (1, 1)]), "coordinates"),
        (polygon(SQUARE, [(20, 20), (21, 20), (21, 21)]), "valid_geometry"),
        (polygon([(0, 0), (1, "x"), (1, 1)]), "vertex"),
        (polygon([(0, 0), (1, float("nan")), (1, 1)]), "vertex"),
        (polygon([(0, 0), (1, 10**400), (1, 1)]), "vertex"),
        (polygon([(0, 0), (True, 1), (1, 1)]), "vertex"),
        (polygon([(0, 0), (361, 0), (1, 1)]), "degrees"),
        (polygon([(0, 0), (1, 91), (1, 1)]), "degrees"),
        ({"type": "Polygon", "coordinates": []}, "nonempty_geometry"),
        ({"type": "Polygon"}, "coordinates"),
        ({"type": "Point", "coordinates": [[1, 2], [3, 4]]}, "coordinates"),
        ({"type": "LineString", "coordinates": [[1, 2]]}, "coordinates"),
        ({"type": "MultiLineString", "coordinates": [[[1, 2], [3, 4]], []]}, "coordinates"),
        ({"type": "GeometryCollection", "geometries": []}, "geometry_type"),
    ],
)
def test_from_geojson_invalid_geometry_raises(raw, expected):
    with raises(InputError, expected=expected):
        regions.from_geojson(raw)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([1, 2, 3], "box"),
        ([1, 2, 3, "x"], "box"),
        ([0, 5, 1, 4], "south_below_north"),
        ([0, 5, 1, 95], "degrees"),
    ],
)
def test_from_box_invalid_box_raises(bounds, expected):
    with raises(InputError, expected=expected):
        regions.from_box(bounds)


def test_from_geojson_too_many_vertices_raises():
    angles = np.linspace(0, 2 * np.pi, regions.VERTICES_MAX + 1)
    ring = np.column_stack([10 * np.cos(angles), 10 * np.sin(angles)]).tolist()
    assert meets(regions.from_geojson(polygon(ring[::100])), (0, 0)) == [True]
    with raises(InputError, expected="vertices", bound=100000):
        regions.from_geojson(polygon(ring))


@pytest.mark.parametrize("seed", range(50))
def test_shape_from_geojson_is_that_of_shapely(seed: int) -> None:
    chance = random.Random(seed)
    width = chance.choice((2, 3))

    def drawn(levels: int) -> list[Any]:
        if not levels:
            numbers = (chance.uniform(-90, 90), chance.randrange(-90, 90))
            return [chance.choice(numbers) for _ in range(width)]
        return [drawn(levels - 1) for _ in range(chance.randrange(3, 6))]

    kinds = ("Point", "LineString", "MultiPoint", "Polygon", "MultiLineString", "MultiPolygon")
    kind, levels = chance.choice([*zip(kinds, (0, 1, 1, 2, 2, 3), strict=True)])
    raw = {"type": kind, "coordinates": drawn(levels)}
    expected = shapely.force_2d(shapely.geometry.shape(raw))
    assert shapely.to_wkb(regions.shape_from_geojson(raw)) == shapely.to_wkb(expected)


@pytest.mark.parametrize(
    "fault",
    [True, "1", None, float("nan"), float("inf"), 10**400],
    ids=lambda fault: str(fault)[:4],
)
def test_shape_from_geojson_with_something_else_amid_numbers_raises(fault: Any) -> None:
    line = [[0.5, 1.5]] * 10
    line[5] = [0.5, fault]
    with raises(InputError, expected="vertex"):
        regions.shape_from_geojson({"type": "LineString", "coordinates": line})
