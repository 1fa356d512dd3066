"""Corridors on the earth: all points within a distance of a path of great-circle arcs.

The earth is the sphere of `circles`. The distance of a point to an arc is that to its great circle
if the point lies between the two planes through the ends of the arc, which stand upright on it;
otherwise it is the distance to the nearer end. Both come from products of unit vectors, for all
points and arcs at once. They are exact to about a centimetre.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import shapely
from shapely.geometry.base import BaseGeometry

from galileo.errors import InputError
from galileo.geo.circles import EARTH_RADIUS_M, Circle
from galileo.geo.geohash import Floats
from galileo.geo.regions import Mask

PIECES_MAX = 400
"""Pieces of the path, more than there are arcs, whose boxes cover the corridor."""
_PAIRS_AT_ONCE = 1 << 20
"""Pairs of points and arcs that are compared at once."""
_SLACK = 1 + 1e-6
"""The cover is larger than the corridor by this factor, and by a millimetre."""


@dataclass(frozen=True)
class Corridor:
    """All points within a distance of a path.

    Attributes:
        starts: longitude and latitude of the first end of each arc, degrees, shape (k, 2).
        ends: of the other end.
        radius_m: metres to each side of the path, and around its ends.
    """

    starts: Floats
    ends: Floats
    radius_m: float

    @staticmethod
    def along(path: shapely.Geometry, radius_m: float) -> Corridor:
        """The corridor along a line or several lines, in degrees.

        Raises:
            InputError: two vertices that follow each other are opposite on the earth.
        """
        lines = [shapely.get_coordinates(line) for line in shapely.get_parts(path)]
        starts = np.concatenate([line[:-1] for line in lines])
        ends = np.concatenate([line[1:] for line in lines])
        corridor = Corridor(starts, ends, radius_m)
        if (corridor._angles > math.pi - 1e-6).any():
            raise InputError(
                "expected an arc of less than half of the earth between two vertices; add a vertex",
                expected="coordinates",
            )
        return corridor

    def contains(self, latitude: Floats, longitude: Floats) -> Mask:
        """Mask of points in the corridor or on its edge."""
        points = _vectors(np.stack([longitude, latitude], axis=1))
        step = max(1, _PAIRS_AT_ONCE // len(self.starts))
        parts = [self._contain(points[at : at + step]) for at in range(0, len(points), step)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)

    @cached_property
    def cover(self) -> BaseGeometry:
        """A region of boxes, somewhat larger than the corridor."""
        boxes = [shapely.box(*extent) for circle in self._circles() for extent in circle.extents]
        return shapely.union_all(boxes)

    @cached_property
    def _sides(self) -> tuple[Floats, Floats]:
        return _vectors(self.starts), _vectors(self.ends)

    @cached_property
    def _normals(self) -> Floats:
        """Unit vectors that stand on the planes of the arcs; 0 for an arc without length."""
        normals = np.cross(*self._sides)
        length = np.linalg.norm(normals, axis=1, keepdims=True)
        unit: Floats = np.divide(normals, length, out=np.zeros_like(normals), where=length > 0)
        return unit

    @cached_property
    def _angles(self) -> Floats:
        chords = np.linalg.norm(self._sides[1] - self._sides[0], axis=1)
        angles: Floats = 2 * np.arcsin(np.minimum(chords / 2, 1.0))
        return angles

    def _contain(self, points: Floats) -> Mask:
        starts, ends = self._sides
        angle = self.radius_m / EARTH_RADIUS_M
        chord = 2 * math.sin(min(angle, math.pi) / 2)
        nearest = np.maximum(points @ starts.T, points @ ends.T)
        is_near = np.any(2 - 2 * nearest <= chord * chord, axis=1)
        normals = self._normals
        # Subtracted, since the normal of a short arc is not exact and the point lies near to it.
        aside = points @ normals.T - np.einsum("ij,ij->i", starts, normals)
        between = points @ np.cross(normals, starts).T >= 0
        between &= points @ np.cross(normals, ends).T <= 0
        between &= normals.any(axis=1)
        beside = np.abs(aside) <= math.sin(min(angle, math.pi / 2))
        mask: Mask = is_near | np.any(beside & between, axis=1)
        return mask

    def _circles(self) -> Iterator[Circle]:
        """Circles that cover the corridor, about pieces of the arcs."""
        angles = self._angles
        step = max(self.radius_m / EARTH_RADIUS_M, float(angles.sum()) / PIECES_MAX, 1e-9)
        counts = np.maximum(np.ceil(angles / step), 1).astype(np.int64)
        arc = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(arc)) - np.repeat(np.cumsum(counts) - counts, counts)
        middles = self._along(arc, (piece + 0.5) / counts[arc])
        halves = angles[arc] / counts[arc] / 2
        radii = (halves * EARTH_RADIUS_M + self.radius_m) * _SLACK + 1e-3
        for (longitude, latitude), radius_m in zip(middles.tolist(), radii.tolist(), strict=True):
            yield Circle(latitude, longitude, radius_m)

    def _along(self, arc: npt.NDArray[np.int64], part: Floats) -> Floats:
        """Longitude and latitude of points on arcs, at parts of their lengths."""
        starts, ends = (side[arc] for side in self._sides)
        angles = self._angles[arc]
        is_point = angles < 1e-12
        sines = np.where(is_point, 1.0, np.sin(angles))
        first = np.where(is_point, 1.0, np.sin((1 - part) * angles) / sines)
        second = np.where(is_point, 0.0, np.sin(part * angles) / sines)
        x, y, z = (starts * first[:, None] + ends * second[:, None]).T
        radians = np.stack([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))], axis=1)
        positions: Floats = np.degrees(radians)
        return positions


def _vectors(positions: Floats) -> Floats:
    """Unit vectors of longitudes and latitudes in degrees, shape (k, 3)."""
    longitude, latitude = np.radians(positions).T
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
