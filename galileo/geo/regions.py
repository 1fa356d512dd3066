"""Regions of the earth: points, lines, polygons and boxes in degrees, tested in arrays.

A region is a planar shape whose longitudes may exceed [-180, 180], so that a shape across the
antimeridian is one piece. Points and cells, which lie in [-180, 180], are moved by whole turns to
the shape; moving a cell's edges is exact in double precision and moving a point keeps it between
them, so that a region that contains a point intersects every cell that contains it. Edges are
straight in longitude and latitude; a pole is the line of latitude ±90.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import shapely
import shapely.geometry
from shapely.errors import ShapelyError

from galileo.errors import InputError

VERTICES_MAX = 100_000
LONGITUDE_MAX = 360.0
LATITUDE_MAX = 90.0
KINDS = ("Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon")

_LEVELS = dict(zip(KINDS, (0, 1, 1, 2, 2, 3), strict=True))
"""Levels of lists around the vertices of each kind."""
_TURN = 360.0

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Boxes: TypeAlias = tuple[Floats, Floats, Floats, Floats]
Extent: TypeAlias = tuple[float, float, float, float]
"""West, south, east and north of one box, degrees in [-180, 180] and [-90, 90]."""


class Region:
    """An immutable shape, prepared for many tests; thread-safe.

    Attributes:
        shape: planar, in degrees, x is longitude.
        turns: the multiples of 360 that move [-180, 180] to the shape.
    """

    __slots__ = ("_lock", "shape", "turns")

    def __init__(self, shape: shapely.Geometry) -> None:
        west, _, east, _ = shapely.bounds(shape)
        first, last = int(np.ceil((west - 180) / _TURN)), int(np.floor((east + 180) / _TURN))
        self.turns = tuple(_TURN * turn for turn in range(first, last + 1))
        self.shape = shape
        shapely.prepare(shape)
        # GEOS builds and uses the indexes of a prepared geometry without regard to threads, and
        # Shapely lets go of the interpreter meanwhile: two threads at once end the process.
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Region], tuple[shapely.Geometry]]:
        return Region, (self.shape,)

    def intersects_points(self, latitude: Floats, longitude: Floats) -> Mask:
        """Mask of points in the region or on its edge."""
        return self._points(shapely.intersects_xy, latitude, longitude)

    def contains_points(self, latitude: Floats, longitude: Floats) -> Mask:
        """Mask of points in the region's interior, as OGC's `within` defines it."""
        return self._points(shapely.contains_xy, latitude, longitude)

    def intersects(self, boxes: Boxes) -> Mask:
        """Mask of boxes (west, south, east, north), edges included, that share a point with it."""
        return self._boxes(shapely.intersects, boxes)

    def covers(self, boxes: Boxes) -> Mask:
        """Mask of boxes wholly in the region or on its edge."""
        return self._boxes(shapely.covers, boxes)

    def contains_strictly(self, boxes: Boxes) -> Mask:
        """Mask of boxes wholly in the region's interior, touching no edge."""
        return self._boxes(shapely.contains_properly, boxes)

    def relations(self, boxes: Boxes, *, interior: bool) -> tuple[Mask, Mask]:
        """`intersects` and `covers` of boxes; with `interior`, `contains_strictly`."""
        west, south, east, north = boxes
        encloses = shapely.contains_properly if interior else shapely.covers
        met, enclosed = np.zeros((2, len(west)), dtype=np.bool_)
        for turn in self.turns:
            moved = shapely.box(west + turn, south, east + turn, north)
            with self._lock:
                near = shapely.intersects(self.shape, moved)
                open_ = np.flatnonzero(near & ~enclosed)
                enclosed[open_] = encloses(self.shape, moved[open_])
            met |= near
        return met, enclosed

    @property
    def vertices(self) -> int:
        return int(shapely.get_num_coordinates(self.shape))

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Bounding boxes of the region."""
        west, south, east, north = shapely.bounds(self.shape).tolist()
        return tuple(
            (max(west - turn, -180.0), south, min(east - turn, 180.0), north) for turn in self.turns
        )

    def _points(self, test: Callable[..., Any], latitude: Floats, longitude: Floats) -> Mask:
        mask = np.zeros(len(latitude), dtype=np.bool_)
        for turn in self.turns:
            moved = longitude + turn
            with self._lock:
                mask |= test(self.shape, moved, latitude)
        return mask

    def _boxes(self, test: Callable[..., Any], boxes: Boxes) -> Mask:
        west, south, east, north = boxes
        mask = np.zeros(len(west), dtype=np.bool_)
        for turn in self.turns:
            moved = shapely.box(west + turn, south, east + turn, north)
            with self._lock:
                mask |= test(self.shape, moved)
        return mask


def from_geojson(raw: dict[str, Any]) -> Region:
    """The region of a GeoJSON geometry; rings that are not closed are closed.

    Raises:
        InputError: malformed, empty, invalid, out of range or with too many vertices.
    """
    return Region(checked(shape_from_geojson(raw), raw["type"]))


def shape_from_geojson(raw: dict[str, Any]) -> shapely.Geometry:
    """The shape of a GeoJSON geometry, which `checked` has to check.

    Raises:
        InputError: malformed or with too many vertices.
    """
    kind = raw.get("type")
    if kind not in KINDS:
        raise InputError(
            f"expected a geometry of type {', '.join(KINDS)}; got {kind!r}",
            expected="geometry_type",
        )
    arrays = _arrays(raw.get("coordinates"), _LEVELS[kind])
    if arrays is None or _vertex_count(arrays) > VERTICES_MAX:
        _check_size(raw.get("coordinates"))
        arrays = raw["coordinates"]
    try:
        return shapely.force_2d(shapely.geometry.shape({"type": kind, "coordinates": arrays}))
    except (ValueError, TypeError, AttributeError, IndexError, ShapelyError) as error:
        raise InputError(
            f"expected coordinates of a {kind}; {_sentence(error)}", expected="coordinates"
        ) from error


def from_box(bounds: Sequence[float]) -> Region:
    """The region of a box: west, south, east, north, or six numbers with heights, ignored.

    A west above its east means that the box crosses the antimeridian.

    Raises:
        InputError: not four or six numbers, south above north, or out of range.
    """
    if len(bounds) not in (4, 6) or not all(_is_number(bound) for bound in bounds):
        raise InputError(
            f"expected a box of west, south, east, north in degrees, got {list(bounds)!r}",
            expected="box",
        )
    half = len(bounds) // 2
    west, south, east, north = (float(bounds[i]) for i in (0, 1, half, half + 1))
    _check_range(np.array([[west, south], [east, north]]))
    if south > north:
        raise InputError(
            f"expected south of a box below its north, got {south:g} and {north:g}",
            expected="south_below_north",
        )
    if west > east:
        east += _TURN
        # Of a west written from 180 to 360 and an east written below 0, the one is a turn too far.
        west -= _TURN * (west > east)
    return Region(_box(west, south, east, north))


def _box(west: float, south: float, east: float, north: float) -> shapely.Geometry:
    """A box, or the line or point to which it degenerates."""
    if west < east and south < north:
        return shapely.box(west, south, east, north)
    if west == east and south == north:
        return shapely.Point(west, south)
    return shapely.LineString([(west, south), (east, north)])


def checked(shape: shapely.Geometry, kind: str) -> shapely.Geometry:
    """The shape, if it is one of the earth. Raises InputError for an empty or invalid one."""
    check_place(shape, kind)
    if not shapely.is_valid(shape):
        raise InputError(
            f"expected a valid {kind}, got one with this fault: {shapely.is_valid_reason(shape)}; "
            "draw rings that neither cross themselves nor each other, parts apart",
            expected="valid_geometry",
        )
    return shape


def check_place(shape: shapely.Geometry, kind: str) -> None:
    """Raises InputError for an empty shape, or one out of range."""
    if shapely.is_empty(shape):
        raise InputError(
            f"expected a {kind} with coordinates, got an empty one", expected="nonempty_geometry"
        )
    _check_range(shapely.get_coordinates(shape))


def _check_range(coordinates: Floats) -> None:
    limits = np.array([LONGITUDE_MAX, LATITUDE_MAX])
    outside = ~(np.abs(coordinates) <= limits).all(axis=1)
    if outside.any():
        longitude, latitude = coordinates[int(np.argmax(outside))]
        raise InputError(
            f"expected longitudes from -{LONGITUDE_MAX:g} to {LONGITUDE_MAX:g} and latitudes from "
            f"-{LATITUDE_MAX:g} to {LATITUDE_MAX:g} degrees, longitude first; "
            f"got longitude {longitude:g}, latitude {latitude:g}",
            expected="degrees",
        )


def _arrays(coordinates: Any, levels: int) -> Any:
    """Coordinates with an array in the place of each list of vertices.

    None unless there are vertices throughout, as most geometries have them; `_check_size` has to
    say what is wrong, if it is anything.
    """
    if not isinstance(coordinates, list | tuple) or not levels:
        return None
    if levels == 1:
        return _vertex_array(coordinates)
    arrays = [_arrays(part, levels - 1) for part in coordinates]
    return None if any(array is None for array in arrays) else arrays


def _vertex_array(vertices: Sequence[Any]) -> Floats | None:
    """Rows of longitude, latitude and, in all or none, height; None unless all are numbers."""
    if not {*map(type, vertices)} <= {list, tuple} or {*map(len, vertices)} not in ({2}, {3}):
        return None
    numbers = [*chain.from_iterable(vertices)]
    if not {*map(type, numbers)} <= {int, float}:
        return None
    try:
        array = np.array(numbers, dtype=np.float64).reshape(len(vertices), -1)
    except OverflowError:
        return None
    return array if np.isfinite(array).all() else None


def _vertex_count(arrays: Any) -> int:
    return len(arrays) if isinstance(arrays, np.ndarray) else sum(map(_vertex_count, arrays))


def _check_size(coordinates: Any) -> None:
    """Refuse too many vertices before the geometry is built."""
    pending, count = [coordinates], 0
    while pending:
        item = pending.pop()
        if not isinstance(item, list | tuple):
            raise InputError(f"expected lists of coordinates, got {item!r}", expected="coordinates")
        if item and not isinstance(item[0], list | tuple):
            _check_vertex(item)
            count += 1
        else:
            pending.extend(item)
        if count > VERTICES_MAX or len(pending) > 2 * VERTICES_MAX:
            raise InputError(
                f"expected a geometry of at most {VERTICES_MAX:,} vertices; simplify it",
                expected="vertices",
                bound=VERTICES_MAX,
            )


def _check_vertex(item: Sequence[Any]) -> None:
    if len(item) not in (2, 3) or not all(_is_number(number) for number in item):
        raise InputError(
            f"expected a vertex of longitude and latitude, got {list(item)!r}", expected="vertex"
        )


def _is_number(value: object) -> bool:
    """Whether it is a finite number that a double holds."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _sentence(error: Exception) -> str:
    return str(error).strip().rstrip(".")
