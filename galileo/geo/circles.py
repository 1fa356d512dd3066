"""Circles on the earth: great-circle distances from one point to points and to boxes.

The earth is a sphere of the mean radius R1 = (2a + b) / 3 of WGS 84 (IUGG). Distances are compared
as half chords, sin(angle / 2) in [0, 1], the haversine formula without its last step: they grow
with the distance and are accurate when it is small.

A box is a rectangle of longitude and latitude, edges included. The half chord to its nearest and
farthest point is exact: distance grows with the difference of longitudes, so both lie on one
meridian, and along a meridian the cosine of the distance is A·cos(latitude - peak), which has its
extremes at the ends, at `peak` or opposite of it. Results for boxes allow for rounding, on the safe
side.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from galileo.errors import InputError
from galileo.geo.geohash import Floats
from galileo.geo.regions import Boxes, Extent, Mask

EARTH_RADIUS_M = 6_371_008.8
HALFWAY_M = math.pi * EARTH_RADIUS_M
"""Distance of two antipodal points, the greatest possible."""

_UNITS_M = {"m": 1.0, "km": 1000.0}
_DISTANCE = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS_M)})?\s*")
_ROUNDING = 1e-12
"""Far above the rounding error of a half chord; 13 micrometres of distance."""
_POLAR = 89.999
"""Degrees from the equator beyond which the arc sine of a circle's reach is not accurate."""


@dataclass(frozen=True, slots=True)
class Circle:
    """All points within a distance of a centre.

    Attributes:
        latitude: of the centre, degrees in [-90, 90].
        longitude: of the centre, degrees in [-180, 180].
        radius_m: metres, along a great circle; not negative.
    """

    latitude: float
    longitude: float
    radius_m: float

    def intersects_points(self, latitude: Floats, longitude: Floats) -> Mask:
        """Mask of points in the circle or on its edge."""
        reach = math.degrees(self.radius_m / EARTH_RADIUS_M) + 1e-9
        near = np.flatnonzero(np.abs(latitude - self.latitude) <= reach)
        mask = np.zeros(len(latitude), dtype=np.bool_)
        mask[near] = self.half_chords(latitude[near], longitude[near]) <= self._reach
        return mask

    def intersects(self, boxes: Boxes) -> Mask:
        """Mask of boxes that share a point with the circle; in doubt true."""
        mask: Mask = self.nearest(boxes) <= self._reach + _ROUNDING
        return mask

    def covers(self, boxes: Boxes) -> Mask:
        """Mask of boxes wholly in the circle; in doubt false."""
        mask: Mask = self.farthest(boxes) <= self._reach - _ROUNDING
        return mask

    def relations(self, boxes: Boxes) -> tuple[Mask, Mask]:
        """`intersects` and `covers` of boxes."""
        met = self.intersects(boxes)
        return met, met & self.covers(boxes)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Bounding boxes of the circle: two across the antimeridian."""
        angle = self.radius_m / EARTH_RADIUS_M + _ROUNDING
        high = math.degrees(angle)
        south, north = self.latitude - high, self.latitude + high
        if south <= -90.0 or north >= 90.0:
            return ((-180.0, max(south, -90.0), 180.0, min(north, 90.0)),)
        wide = math.degrees(math.asin(math.sin(angle) / math.cos(math.radians(self.latitude))))
        west, east = self.longitude - wide, self.longitude + wide
        if west < -180.0:
            return (-180.0, south, east, north), (west + 360.0, south, 180.0, north)
        if east > 180.0:
            return (west, south, 180.0, north), (-180.0, south, east - 360.0, north)
        return ((west, south, east, north),)

    def half_chords(self, latitude: Floats, longitude: Floats) -> Floats:
        """Half chords from the centre to points in degrees."""
        return self._half_chords(latitude, _apart(longitude, self.longitude))

    def nearest(self, boxes: Boxes) -> Floats:
        """Half chords to the nearest point of boxes (west, south, east, north)."""
        west, south, east, north = boxes
        edge = np.minimum(_apart(west, self.longitude), _apart(east, self.longitude))
        apart = np.where((west <= self.longitude) & (self.longitude <= east), 0.0, edge)
        highest = np.clip(self._peak(apart), south, north)
        half_chords: Floats = self._half_chords(np.stack([south, north, highest]), apart).min(
            axis=0
        )
        return half_chords

    def farthest(self, boxes: Boxes) -> Floats:
        """Half chords to the farthest point of boxes (west, south, east, north)."""
        west, south, east, north = boxes
        opposite = self.longitude + (180.0 if self.longitude < 0 else -180.0)
        edge = np.maximum(_apart(west, self.longitude), _apart(east, self.longitude))
        apart = np.where((west <= opposite) & (opposite <= east), 180.0, edge)
        peak = self._peak(apart)
        lowest = np.clip(peak - np.copysign(180.0, peak), south, north)
        half_chords: Floats = self._half_chords(np.stack([south, north, lowest]), apart).max(axis=0)
        return half_chords

    @property
    def _reach(self) -> float:
        if self.radius_m >= HALFWAY_M:
            return 2.0
        return math.sin(self.radius_m / (2 * EARTH_RADIUS_M))

    @property
    def _cosine_of_centre(self) -> float:
        return math.sin(math.radians(90.0 - abs(self.latitude)))

    def _half_chords(self, latitude: Floats, apart: Floats) -> Floats:
        north = np.sin(np.radians(latitude - self.latitude) / 2)
        east = np.sin(np.radians(apart) / 2)
        shrunk = _cosine(latitude) * self._cosine_of_centre
        chords: Floats = np.sqrt(north**2 + shrunk * east**2)
        return chords

    def _peak(self, apart: Floats) -> Floats:
        """The latitude nearest to the centre on the great circle of a meridian, in (-180, 180].

        Beyond 90 it stands for a point of the opposite meridian.
        """
        up = math.sin(math.radians(self.latitude))
        along = self._cosine_of_centre * np.cos(np.radians(apart))
        return np.degrees(np.arctan2(up, along))


def in_circles(
    latitude: Floats,
    longitude: Floats,
    *,
    centre_latitude: Floats,
    centre_longitude: Floats,
    radius_m: Floats,
) -> Mask:
    """Mask of points in circles, one for each point, exactly as `Circle.intersects_points`.

    Args:
        latitude: of the points, degrees.
        longitude: of the points, degrees.
        centre_latitude: of the circles, degrees in [-90, 90].
        centre_longitude: of the circles, degrees in [-180, 180].
        radius_m: of the circles, metres.
    """
    chords = _pair_chords(latitude, longitude, centre_latitude, centre_longitude)
    reach = np.where(radius_m >= HALFWAY_M, 2.0, np.sin(radius_m / (2 * EARTH_RADIUS_M)))
    mask: Mask = chords <= reach
    # Sines of arrays and of single numbers may differ in the last bit, which decides here.
    for number in np.flatnonzero(np.abs(chords - reach) <= _ROUNDING).tolist():
        centre = float(centre_latitude[number]), float(centre_longitude[number])
        circle = Circle(*centre, float(radius_m[number]))
        point = slice(number, number + 1)
        mask[number] = circle.intersects_points(latitude[point], longitude[point])[0]
    return mask


def longitude_reach(latitude: Floats, radius_m: Floats) -> Floats:
    """How far circles extend to the east and west, degrees; 180 of one with a pole in it or near.

    Args:
        latitude: of the centres, degrees.
        radius_m: metres.
    """
    angle = radius_m / EARTH_RADIUS_M + _ROUNDING
    is_polar = np.abs(latitude) + np.degrees(angle) >= _POLAR
    narrow = np.where(is_polar, 0.0, angle)
    sine = np.sin(narrow) / np.cos(np.radians(np.where(is_polar, 0.0, latitude)))
    reach: Floats = np.where(is_polar, 180.0, np.degrees(np.arcsin(np.minimum(sine, 1.0))))
    return reach


def distance_m(distance: Any) -> int | float:
    """A distance in metres, given as such or as a text with a unit. Raises InputError."""
    written = _DISTANCE.fullmatch(distance) if isinstance(distance, str) else None
    if written:
        return float(written[1]) * _UNITS_M[written[2] or "m"]
    plain: Any = distance.item() if isinstance(distance, np.generic) else distance
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if not is_number or not math.isfinite(plain) or plain < 0:
        raise InputError(
            f"expected a distance in metres, or such as '50km', got {distance!r}",
            expected="distance",
        )
    metres: int | float = plain
    return metres


def distances_m(
    latitude: Floats, longitude: Floats, centre_latitude: Floats, centre_longitude: Floats
) -> Floats:
    """Distances of points, each from one centre, metres.

    Args:
        latitude: of the points, degrees.
        longitude: of the points, degrees.
        centre_latitude: degrees in [-90, 90].
        centre_longitude: degrees in [-180, 180].
    """
    return metres(_pair_chords(latitude, longitude, centre_latitude, centre_longitude))


def metres(half_chords: Floats) -> Floats:
    """Distances of half chords, metres."""
    distances_m: Floats = 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(half_chords, 1.0))
    return distances_m


def _pair_chords(
    latitude: Floats, longitude: Floats, centre_latitude: Floats, centre_longitude: Floats
) -> Floats:
    """Half chords from each centre to its point."""
    north = np.sin(np.radians(latitude - centre_latitude) / 2)
    east = np.sin(np.radians(_apart(longitude, centre_longitude)) / 2)
    chords: Floats = np.sqrt(north**2 + _cosine(latitude) * _cosine(centre_latitude) * east**2)
    return chords


def _apart(longitudes: Floats, centre: float | Floats) -> Floats:
    """Differences of longitude the short way round, degrees in [0, 180]."""
    apart = np.abs(longitudes - centre)
    return np.minimum(apart, 360.0 - apart)


def _cosine(latitude: Floats) -> Floats:
    """Cosine of degrees in [-90, 90], exactly 0 at the poles: all longitudes are one there."""
    sines: Floats = np.sin(np.radians(90.0 - np.abs(latitude)))
    return sines
