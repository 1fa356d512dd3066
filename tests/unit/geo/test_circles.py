"""Circles against the chord of two vectors and against boxes that are sampled densely."""

from __future__ import annotations

import math

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.geo import circles, cover, geohash, ranges
from galileo.geo.circles import EARTH_RADIUS_M, HALFWAY_M, Circle
from galileo.geo.cover import CellRelation

latitudes = st.sampled_from([-90.0, -89.9, -45.0, 0.0, 0.02, 40.0, 89.99, 90.0]) | st.floats(
    -90, 90
)
longitudes = st.sampled_from([-180.0, -179.99, -45.0, 0.0, 90.0, 179.9, 180.0]) | st.floats(
    -180, 180
)
radii = st.sampled_from([0.0, 1.0, 5e4, 1e6, 1e7, HALFWAY_M / 2, HALFWAY_M]) | st.floats(0, 2.1e7)
made_circles = st.builds(Circle, latitudes, longitudes, radii)


def half_chord(circle, latitude, longitude):
    """Half of the straight line through the earth, by vectors."""
    return np.linalg.norm(vector(latitude, longitude) - vector(*centre(circle)), axis=-1) / 2


def centre(circle):
    return np.float64(circle.latitude), np.float64(circle.longitude)


def vector(latitude, longitude):
    up, around = np.radians(latitude), np.radians(longitude)
    flat = np.cos(up)
    return np.stack([flat * np.cos(around), flat * np.sin(around), np.sin(up)], axis=-1)


def sampled(boxes, steps=25):
    """Latitudes and longitudes all over boxes, edges and corners included; a row per box."""
    west, south, east, north = (edge[:, None, None] for edge in boxes)
    part = np.linspace(0, 1, steps)
    latitude = south + (north - south) * part[:, None] + 0 * west * part
    longitude = west + (east - west) * part + 0 * latitude
    return latitude.reshape(len(west), -1), longitude.reshape(len(west), -1)


@given(made_circles, st.integers(0, 2**32 - 1))
def test_half_chords_random_points_equals_vectors(circle, seed):
    random = np.random.default_rng(seed)
    latitude, longitude = random.uniform(-90, 90, 200), random.uniform(-180, 180, 200)
    found = circle.half_chords(latitude, longitude)
    assert np.abs(found - half_chord(circle, latitude, longitude)).max() < 1e-12


@given(made_circles, st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_circle_nearest_and_farthest_random_boxes_bound_sampled_points(circle, seed, precision):
    random = np.random.default_rng(seed)
    cells = random.integers(0, 32**precision, 20, dtype=np.uint64)
    boxes = geohash.bounds(cells, precision)
    chords = circle.half_chords(*(v.ravel() for v in sampled(boxes))).reshape(20, -1)
    nearest, farthest = circle.nearest(boxes), circle.farthest(boxes)
    assert (nearest <= chords.min(axis=1) + 1e-13).all()
    assert (farthest >= chords.max(axis=1) - 1e-13).all()
    step = math.radians(45 / 24) / 2
    assert (chords.min(axis=1) - nearest <= step).all()
    assert (farthest - chords.max(axis=1) <= step).all()


@examples(200)
@given(made_circles, st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_circle_intersects_boxes_of_its_points_is_true(circle, seed, precision):
    """Points from all over and from the edge itself, in cells of every size."""
    latitude, longitude = edge_points(circle, np.random.default_rng(seed))
    inside = circle.intersects_points(latitude, longitude)
    boxes = geohash.bounds(geohash.encode(latitude, longitude, precision), precision)
    assert circle.intersects(boxes)[inside].all()
    assert not circle.covers(boxes)[~inside].any()


def test_circle_through_the_farthest_corner_of_a_box_is_in_doubt():
    """Half chords are rounded, so a box is covered, or outside, only beyond the rounding."""
    box = tuple(np.array([edge]) for edge in (3.0, 1.0, 4.0, 2.0))
    inner, outer = Circle(0.0, 0.0, 0.0).nearest(box), Circle(0.0, 0.0, 0.0).farthest(box)
    near_m, far_m = (float(circles.metres(chord)[0]) for chord in (inner, outer))
    assert not Circle(0.0, 0.0, far_m).covers(box).any()
    assert not Circle(0.0, 0.0, far_m + 1e-6).covers(box).any()
    assert Circle(0.0, 0.0, far_m + 1e-4).covers(box).all()
    assert Circle(0.0, 0.0, near_m - 1e-6).intersects(box).all()
    assert not Circle(0.0, 0.0, near_m - 1e-4).intersects(box).any()


def edge_points(circle, random):
    """Points at the radius from the centre, give or take, in all directions; the poles too."""
    angle = circle.radius_m / EARTH_RADIUS_M * random.choice([0.5, 1 - 1e-12, 1, 1 + 1e-12, 2], 300)
    bearing, (up, around) = random.uniform(0, 2 * np.pi, 300), np.radians(centre(circle))
    sine = np.sin(up) * np.cos(angle) + np.cos(up) * np.sin(angle) * np.cos(bearing)
    latitude = np.arcsin(np.clip(sine, -1, 1))
    east = np.sin(bearing) * np.sin(angle) * np.cos(up)
    longitude = np.degrees(around + np.arctan2(east, np.cos(angle) - np.sin(up) * sine))
    longitude = (longitude + 180) % 360 - 180
    corners = np.array([[90, 0], [-90, 50], [circle.latitude, circle.longitude]])
    latitude = np.append(np.degrees(latitude), corners[:, 0])
    return latitude, np.append(longitude, corners[:, 1])


@given(made_circles, st.sampled_from([33, 200, cover.CELLS_MAX]))
def test_cover_from_circle_random_circle_equals_test_of_every_cell(circle, cells_max):
    cells = np.arange(32**2, dtype=np.uint64)
    made = cover.from_circle(circle, 2, cells_max=cells_max)
    places, boxes = made.relations(cells), geohash.bounds(cells, 2)
    meets, covered = circle.intersects(boxes), circle.covers(boxes)
    expected = np.where(
        covered, CellRelation.INSIDE, np.where(meets, CellRelation.BORDER, CellRelation.OUTSIDE)
    )
    tested = places != CellRelation.UNTESTED
    assert (places[tested] == expected[tested]).all()
    assert ranges.contains(made.possible, cells[meets]).all()


def test_circle_around_pole_intersects_all_longitudes():
    pole = Circle(90.0, 0.0, 111_000)
    longitude = np.linspace(-180, 180, 50)
    assert pole.intersects_points(np.full(50, 89.1), longitude).all()
    assert not pole.intersects_points(np.full(50, 88.9), longitude).any()
    assert Circle(90.0, 12.0, 0.0).intersects_points(np.full(50, 90.0), longitude).all()


def test_circle_over_antimeridian_intersects_both_sides():
    circle = Circle(0.0, 179.9, 30_000)
    longitude = np.array([180.0, -180.0, -179.9, -179.8, 179.7, 179.6, 0.0])
    found = circle.intersects_points(np.zeros(7), longitude)
    assert found.tolist() == [True, True, True, False, True, False, False]
    cells = geohash.encode(np.zeros(7), longitude, 6)
    assert (
        cover.from_circle(circle, 6).relations(cells) != CellRelation.OUTSIDE
    ).tolist() == found.tolist()


def test_circle_over_pole_intersects_opposite_longitude():
    circle = Circle(89.0, 0.0, 200_000)
    latitude, longitude = np.array([89.3, 89.1, 88.0]), np.full(3, 180.0)
    assert circle.intersects_points(latitude, longitude).tolist() == [True, False, False]
    boxes = geohash.bounds(geohash.encode(latitude, longitude, 7), 7)
    assert circle.intersects(boxes).tolist() == [True, False, False]
    assert circle.covers(boxes).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("here", "there", "distance_m"),
    [
        ((0, 0), (0, 1), 111_195.08),
        ((90, 0), (0, 77), HALFWAY_M / 2),
        ((0, 0), (0, 180), HALFWAY_M),
        ((51.4700, -0.4543), (40.6413, -73.7781), 5_540_000),
    ],
)
def test_metres_known_places_gives_published_distance(here, there, distance_m):
    circle = Circle(*(float(degrees) for degrees in here), 0.0)
    chords = circle.half_chords(*(np.array([float(degrees)]) for degrees in there))
    assert circles.metres(chords)[0] == pytest.approx(distance_m, rel=1e-3)


def test_cover_from_circle_half_circumference_is_whole_earth():
    everywhere = cover.from_circle(Circle(-12.0, 34.0, HALFWAY_M), 5)
    assert [end.tolist() for end in everywhere.inside] == [[0], [32**5]]


@examples(100)
@given(many=st.lists(made_circles, min_size=1, max_size=20), seed=st.integers(0, 1_000))
def test_points_in_many_circles_equals_each_circle(many, seed):
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(many), 60)
    longitude, latitude = rng.uniform(-180, 180, 60), rng.uniform(-90, 90, 60)
    # Some at the centre, on the edge, and on the other side of the earth.
    for row in range(40):
        circle = many[chosen[row]]
        angle = math.degrees(circle.radius_m / EARTH_RADIUS_M) * (row % 3 == 0)
        latitude[row] = np.clip(circle.latitude + angle, -90, 90) * (1 if row % 4 else -1)
        longitude[row] = circle.longitude if row % 4 else (circle.longitude + 360) % 360 - 180
    values = np.array([(one.latitude, one.longitude, one.radius_m) for one in many])[chosen]
    mask = circles.in_circles(
        latitude,
        longitude,
        centre_latitude=values[:, 0],
        centre_longitude=values[:, 1],
        radius_m=values[:, 2],
    )
    expected = [
        bool(many[number].intersects_points(latitude[row : row + 1], longitude[row : row + 1])[0])
        for row, number in enumerate(chosen)
    ]
    assert mask.tolist() == expected
    reach = circles.longitude_reach(values[:, 0], values[:, 2])
    apart = np.abs(longitude - values[:, 1])
    assert (np.minimum(apart, 360 - apart) <= reach + 1e-9)[mask].all()
