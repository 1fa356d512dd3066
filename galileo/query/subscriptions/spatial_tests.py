"""Regions and circles of many groups, tested against new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import shapely

from galileo.geo.circles import EARTH_RADIUS_M, HALFWAY_M, in_circles, longitude_reach
from galileo.geo.regions import Floats, Mask
from galileo.query.index.candidates import CandidatePairs
from galileo.query.predicates import ObservationColumns
from galileo.query.subscriptions.blocks import Numbers
from galileo.query.subscriptions.point_grid import GroupBoxes
from galileo.query.subscriptions.value_columns import FieldColumn, Vector

_TURN = 360.0
_SLACK = 1e-9
"""Degrees by which boxes are larger than what they bound, for rounding; a tenth of a millimetre."""


class SpatialTest(Protocol):
    """A condition on the place with parameters."""

    def boxes(self, groups: Numbers) -> GroupBoxes:
        """Boxes around what groups match."""
        ...

    def accepts(self, pairs: CandidatePairs, points: ObservationColumns) -> Mask:
        """Mask of the pairs for which the condition is true."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AreaTest:
    """Regions, on their edges or not.

    Attributes:
        fields: west, south, east, north and shapes of all groups.
        interior: whether edges are left out.
    """

    fields: Sequence[FieldColumn]
    interior: bool

    def boxes(self, groups: Numbers) -> GroupBoxes:
        west, south, east, north = (field.take(groups) for field in self.fields[:4])
        plain = GroupBoxes(groups, west, south, east, north)
        far = np.flatnonzero(_reaches_antimeridian(west, east))
        if len(far) == 0:
            return plain
        turned = [
            GroupBoxes(
                groups[far],
                west[far] - turn - _SLACK,
                south[far],
                east[far] - turn + _SLACK,
                north[far],
            )
            for turn in (-_TURN, _TURN)
        ]
        return _joined([plain, *turned])

    def accepts(self, pairs: CandidatePairs, points: ObservationColumns) -> Mask:
        areas = [field.take(pairs.slots) for field in self.fields]
        latitude, longitude = points.latitude[pairs.rows], points.longitude[pairs.rows]
        mask = self._contain(areas, latitude, longitude)
        far = np.flatnonzero(_reaches_antimeridian(areas[0], areas[2]))
        if len(far):
            areas = [field[far] for field in areas]
            for turn in (-_TURN, _TURN):
                mask[far] |= self._contain(areas, latitude[far], longitude[far] + turn)
        return mask

    def _contain(self, areas: Sequence[Any], latitude: Floats, longitude: Floats) -> Mask:
        """Mask of points in the areas, of which a box needs no shape."""
        west, south, east, north, shapes = areas
        mask: Mask = (west <= longitude) & (longitude <= east)
        mask &= (south <= latitude) & (latitude <= north)
        is_box = shapely.is_missing(shapes)
        if self.interior:
            mask &= ~is_box | (
                (west < longitude) & (longitude < east) & (south < latitude) & (latitude < north)
            )
        drawn = np.flatnonzero(mask & ~is_box)
        if len(drawn):
            test = shapely.contains_xy if self.interior else shapely.intersects_xy
            shapely.prepare(shapes[drawn])
            mask[drawn] = test(shapes[drawn], longitude[drawn], latitude[drawn])
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class CircleTest:
    """Distances from points.

    Attributes:
        longitude, latitude, radius_m: of all groups, or of each group the same.
        reach: how far the circles extend to the east and west, degrees, in single precision.
    """

    longitude: FieldColumn | float
    latitude: FieldColumn | float
    radius_m: FieldColumn | float
    reach: Vector

    def boxes(self, groups: Numbers) -> GroupBoxes:
        longitude, latitude, radius_m = self._circles(groups)
        high = np.degrees(radius_m / EARTH_RADIUS_M) + _SLACK
        wide = self.reach.take(groups).astype(np.float64)
        west, east = longitude - wide, longitude + wide
        plain = GroupBoxes(groups, west, latitude - high, east, latitude + high)
        far = np.flatnonzero(_reaches_antimeridian(west, east))
        if len(far) == 0:
            return plain
        south, north = plain.south[far], plain.north[far]
        turned = [
            GroupBoxes(groups[far], west[far] + turn, south, east[far] + turn, north)
            for turn in (-_TURN, _TURN)
        ]
        return _joined([plain, *turned])

    def accepts(self, pairs: CandidatePairs, points: ObservationColumns) -> Mask:
        longitude, latitude, radius_m = self._circles(pairs.slots)
        return in_circles(
            points.latitude[pairs.rows],
            points.longitude[pairs.rows],
            centre_latitude=latitude,
            centre_longitude=longitude,
            radius_m=radius_m,
        )

    def _circles(self, groups: Numbers) -> tuple[Floats, Floats, Floats]:
        longitude, latitude = _taken(self.longitude, groups), _taken(self.latitude, groups)
        return longitude, latitude, np.minimum(_taken(self.radius_m, groups), HALFWAY_M)


def circle_reach(latitude: Floats, radius_m: Floats) -> npt.NDArray[np.float32]:
    """Degrees of longitude that circles extend to either side, never too few."""
    reach = longitude_reach(latitude, np.minimum(radius_m, HALFWAY_M)) + _SLACK
    return np.nextafter(reach.astype(np.float32), np.float32(np.inf))


def _taken(field: FieldColumn | float, groups: Numbers) -> Floats:
    if isinstance(field, float):
        return np.full(len(groups), field)
    values: Floats = field.take(groups)
    return values


def _reaches_antimeridian(west: Floats, east: Floats) -> Mask:
    mask: Mask = (west <= -180.0) | (east >= 180.0)
    return mask


def _joined(parts: Sequence[GroupBoxes]) -> GroupBoxes:
    """The boxes of all parts, sorted by group."""
    groups = np.concatenate([part.groups for part in parts])
    order = np.argsort(groups, kind="stable")
    bounds = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("west", "south", "east", "north")
    )
    return GroupBoxes(groups[order], *bounds)
