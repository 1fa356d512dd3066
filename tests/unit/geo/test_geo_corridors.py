"""Corridors against distances to points that lie close together on their arcs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import shapely
from expected_errors import raises

from galileo.errors import InputError
from galileo.geo.circles import EARTH_RADIUS_M, Circle, metres
from galileo.geo.corridors import Corridor
from galileo.geo.regions import Region

SAMPLES = 4_000
PATHS = {
    "equator": [(-1.0, 0.0), (1.0, 0.0)],
    "antimeridian": [(179.2, -17.0), (-179.5, -16.4), (-179.0, -17.9)],
    "turned": [(185.0, 3.0), (184.0, 3.5)],
    "over the pole": [(10.0, 89.7), (-170.0, 89.6), (-100.0, 89.0)],
    "to the pole": [(0.0, -89.5), (30.0, -90.0)],
    "with a vertex twice": [(5.0, 50.0), (5.0, 50.0), (5.5, 50.2), (5.5, 50.2)],
    "short": [(5.0, 50.0), (5.00001, 50.00001)],
    "long": [(-100.0, 10.0), (60.0, 45.0)],
}
RADII_M = {"equator": 10_000, "short": 300, "long": 2_000_000}


def unit_vectors(longitude, latitude):
    east, north = np.radians(longitude), np.radians(latitude)
    columns = np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)
    return np.stack(columns, axis=-1)


def samples(path):
    """Longitudes and latitudes of points on the arcs of a path."""
    vectors = unit_vectors(*np.array(path).T)
    part = np.linspace(0, 1, SAMPLES)[:, None]
    found = []
    for start, end in itertools.pairwise(vectors):
        angle = np.arctan2(np.linalg.norm(np.cross(start, end)), start @ end)
        mixed = start + (end - start) * part
        if angle > 1e-6:
            mixed = np.sin((1 - part) * angle) * start + np.sin(part * angle) * end
        found.append(mixed / np.linalg.norm(mixed, axis=1, keepdims=True))
    x, y, z = np.concatenate(found).T
    return np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(np.clip(z, -1, 1)))


def places_about(longitude, latitude, radius_m, random):
    """Places at up to twice the radius from some points of the path, and anywhere."""
    at = random.integers(0, len(longitude), 400)
    reach = np.degrees(2 * radius_m / EARTH_RADIUS_M)
    north = np.clip(latitude[at] + random.uniform(-reach, reach, 400), -90, 90)
    wide = reach / np.maximum(np.cos(np.radians(north)), 1e-3)
    east = longitude[at] + random.uniform(-1, 1, 400) * np.minimum(wide, 180)
    east = np.append(east, random.uniform(-180, 180, 50))
    return (east + 180) % 360 - 180, np.append(north, random.uniform(-90, 90, 50))


@pytest.mark.parametrize("name", PATHS)
def test_corridor_contains_what_is_near_to_points_of_its_arcs(name: str) -> None:
    random, radius_m = np.random.default_rng(5), RADII_M.get(name, 25_000)
    corridor = Corridor.along(shapely.LineString(PATHS[name]), radius_m)
    on_path = samples(PATHS[name])
    longitude, latitude = places_about(*on_path, radius_m, random)
    distance_m = np.array(
        [
            metres(Circle(north, east, 0.0).half_chords(on_path[1], on_path[0])).min()
            for east, north in zip(longitude.tolist(), latitude.tolist(), strict=True)
        ]
    )
    found = corridor.contains(latitude, longitude)
    # A place beside a gap between two points is nearer to the arc than to either.
    clear = np.abs(distance_m - radius_m) > radius_m * 1e-3 + 0.5
    assert (found == (distance_m <= radius_m))[clear].all()
    assert clear.sum() > 400
    assert 50 < found.sum() < len(found)
    assert Region(corridor.cover).intersects_points(latitude, longitude)[found].all()


def test_corridor_along_several_lines_is_that_of_each() -> None:
    lines = [[(0, 0), (1, 0)], [(3, 3), (4, 4)]]
    random = np.random.default_rng(6)
    longitude, latitude = random.uniform(-1, 5, (2, 5_000))
    found = Corridor.along(shapely.MultiLineString(lines), 30_000).contains(latitude, longitude)
    each = [Corridor.along(shapely.LineString(line), 30_000) for line in lines]
    one, other = (corridor.contains(latitude, longitude) for corridor in each)
    assert one.any()
    assert other.any()
    assert not (one & other).any()
    assert (found == (one | other)).all()
    assert len(each[0].contains(np.zeros(0), np.zeros(0))) == 0


def test_corridor_cover_is_not_much_larger() -> None:
    corridor = Corridor.along(shapely.LineString([(0, 0), (30, 0)]), 10_000)
    degrees = np.degrees(10_000 / EARTH_RADIUS_M)
    assert shapely.area(corridor.cover) < 3 * 30 * 2 * degrees


def test_corridor_between_opposite_vertices_is_refused() -> None:
    with raises(InputError, expected="coordinates"):
        Corridor.along(shapely.LineString([(10, 20), (-170, -20)]), 1_000)
