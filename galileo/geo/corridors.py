"""Corridors on the earth: all points within a distance of a path of great-circle arcs.

The earth is the sphere of `circles`. The distance of a point to an arc is that to its great circle
if the point lies between the two planes through the ends of the arc, which stand upright on it;
otherwise it is the distance to the nearer end. Both come from products of unit vectors, in arrays.
Arcs are covered by boxes about pieces of them: a point is compared with the arcs of the boxes in
which it lies.
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

from galileo.arrays import within
from galileo.errors import InputError
from galileo.geo.circles import EARTH_RADIUS_M, Circle
from galileo.geo.geohash import Floats
from galileo.geo.regions import Mask

PIECES_MAX = 400
"""Pieces of the path, more than there are arcs, whose boxes cover the corridor."""
_PAIRS_AT_ONCE = 1 << 18
"""Pairs of points and boxes, at most, whose distances are compared at once."""
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
        vectors = _vectors(np.stack([longitude, latitude], axis=1))
        boxes, arcs = self._boxes
        tree, step = shapely.STRtree(boxes), max(1, _PAIRS_AT_ONCE // len(boxes))
        mask = np.zeros(len(latitude), dtype=np.bool_)
        for at in range(0, len(latitude), step):
            points = shapely.points(longitude[at : at + step], latitude[at : at + step])
            point, box = tree.query(points)
            mask[at + point[self._hold(vectors[at + point], arcs[box])]] = True
        return mask

    @cached_property
    def cover(self) -> BaseGeometry:
        """A region of boxes, somewhat larger than the corridor."""
        return shapely.union_all(self._boxes[0])

    @cached_property
    def _boxes(self) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.int64]]:
        """Boxes that cover the corridor, and the arc of each."""
        extents = [(box, arc) for circle, arc in self._circles() for box in circle.extents]
        edges = np.array([box for box, _ in extents]).T
        return shapely.box(*edges), np.array([arc for _, arc in extents], dtype=np.int64)

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

    def _hold(self, points: Floats, arcs: npt.NDArray[np.int64]) -> Mask:
        """Whether each point is near enough to an arc; both have the same length."""
        starts, ends, normals = (side[arcs] for side in (*self._sides, self._normals))
        angle = self.radius_m / EARTH_RADIUS_M
        chord = 2 * math.sin(min(angle, math.pi) / 2)
        from_start = points - starts
        is_near = _dot(from_start, from_start) <= chord * chord
        is_near |= _dot(points - ends, points - ends) <= chord * chord
        # Not the point itself: the normal of a short arc is not exact, and the point lies near.
        is_beside = np.abs(_dot(from_start, normals)) <= math.sin(min(angle, math.pi / 2))
        is_beside &= _dot(points, np.cross(normals, starts)) >= 0
        is_beside &= _dot(points, np.cross(normals, ends)) <= 0
        mask: Mask = is_near | (is_beside & normals.any(axis=1))
        return mask

    def _circles(self) -> Iterator[tuple[Circle, int]]:
        """Circles about pieces of the arcs, which cover the corridor, and the arc of each."""
        angles = self._angles
        step = max(self.radius_m / EARTH_RADIUS_M, float(angles.sum()) / PIECES_MAX, 1e-9)
        counts = np.maximum(np.ceil(angles / step), 1).astype(np.int64)
        arc = np.repeat(np.arange(len(counts)), counts)
        piece = within(counts)
        middles = self._along(arc, (piece + 0.5) / counts[arc])
        halves = angles[arc] / counts[arc] / 2
        radii = (halves * EARTH_RADIUS_M + self.radius_m) * _SLACK + 1e-3
        columns = middles.tolist(), radii.tolist(), arc.tolist()
        for (longitude, latitude), radius_m, number in zip(*columns, strict=True):
            yield Circle(latitude, longitude, radius_m), number

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


def _dot(left: Floats, right: Floats) -> Floats:
    products: Floats = np.einsum("ij,ij->i", left, right)
    return products


def _vectors(positions: Floats) -> Floats:
    """Unit vectors of longitudes and latitudes in degrees, shape (k, 3)."""
    longitude, latitude = np.radians(positions).T
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
