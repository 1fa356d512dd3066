"""Random polygons and the points that are hard for them."""

from __future__ import annotations

import numpy as np
import shapely


def drawn(random):
    """Hulls of a few points of a grid, with holes and further parts, in one place of the earth.

    None where they make no polygon, or one that leaves the map.
    """
    west = random.choice([-360, -190, -185, -181, -30, 0, 170, 175, 178, 180, 300])
    south = random.choice([-90, -12, 0, 33, 70])
    step = random.choice([0.125, 0.7, 1.40625, 2.5])
    parts = [hull(random, west, south, step) for _ in range(random.integers(1, 5))]
    shape = parts[0]
    for part in parts[1:]:
        shape = (shape | part) if random.random() < 0.5 else (shape - part)
    whole = shape.geom_type in ("Polygon", "MultiPolygon") and not shape.is_empty
    return shape if whole and shape.is_valid and shape.bounds[2] <= 360 else None


def hull(random, west, south, step):
    corners = np.column_stack([west + step * random.integers(0, 9, 5), np.zeros(5)])
    corners[:, 1] = np.minimum(south + step * random.integers(0, 9, 5), 90)
    return shapely.MultiPoint(corners).convex_hull


def points_about(shape, random):
    """Longitudes in [-180, 180] and latitudes: corners, middles of edges, and places around."""
    corners = shapely.get_coordinates(shape)
    middles = (corners[1:] + corners[:-1]) / 2
    west, south, east, north = shape.bounds
    around = random.uniform([west - 1, south - 1], [east + 1, north + 1], (40, 2))
    poles = np.array(
        [[shape.centroid.x, -90.0], [shape.centroid.x, 90.0], [-180, south], [180, south]]
    )
    longitude, latitude = np.concatenate([corners, middles, around, poles]).T
    longitude = np.where(longitude > 180, longitude - 360, longitude)
    longitude = np.where(longitude < -180, longitude + 360, longitude)
    return longitude, np.clip(latitude, -90, 90)
