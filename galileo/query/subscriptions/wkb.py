"""Points and boxes of well-known binary (WKB), read in arrays without an object for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import shapely

from galileo.geo.regions import Floats, Mask

Shapes: TypeAlias = npt.NDArray[np.object_]

_POINT = b"\x01\x01\x00\x00\x00"
"""Little-endian, two coordinates."""
_BOX = b"\x01\x03\x00\x00\x00\x01\x00\x00\x00\x05\x00\x00\x00"
"""Little-endian, a polygon of one ring of five vertices."""


@dataclass(frozen=True, slots=True, eq=False)
class Areas:
    """Geometries by their bounds, shape (k,); those that are no boxes have a shape, too.

    Attributes:
        west, south, east, north: degrees; the longitudes may exceed [-180, 180].
        shapes: None for a box.
    """

    west: Floats
    south: Floats
    east: Floats
    north: Floats
    shapes: Shapes

    def __len__(self) -> int:
        return len(self.west)


def read_points(values: pa.Array) -> Floats:
    """Longitude and latitude, shape (k, 2); NaN for a geometry that is no point.

    Args:
        values: WKB without nulls.
    """
    known, numbers = _numbers(values, _POINT, count=2)
    points = np.full((len(values), 2), np.nan)
    points[known] = numbers
    others = np.flatnonzero(~known)
    if len(others):
        shapes = shapely.from_wkb(values.take(pa.array(others)).to_numpy(zero_copy_only=False))
        is_point = shapely.get_type_id(shapes) == shapely.GeometryType.POINT
        points[others, 0] = np.where(is_point, shapely.get_x(shapes), np.nan)
        points[others, 1] = np.where(is_point, shapely.get_y(shapes), np.nan)
    return points


def read_areas(values: pa.Array) -> Areas:
    """Bounds, and shapes of what is no box.

    Args:
        values: WKB without nulls, of valid geometries.
    """
    bounds, shapes = np.empty((len(values), 4)), np.full(len(values), None, dtype=object)
    known, numbers = _numbers(values, _BOX, count=10)
    x, y = numbers[:, 0::2], numbers[:, 1::2]
    is_box = _are_boxes(x, y)
    boxes = np.flatnonzero(known)[is_box]
    x, y = x[is_box], y[is_box]
    bounds[boxes] = np.stack([x.min(axis=1), y.min(axis=1), x.max(axis=1), y.max(axis=1)], axis=1)
    known[:] = False
    known[boxes] = True
    others = np.flatnonzero(~known)
    if len(others):
        drawn = shapely.from_wkb(values.take(pa.array(others)).to_numpy(zero_copy_only=False))
        shapes[others], bounds[others] = drawn, shapely.bounds(drawn)
    west, south, east, north = np.ascontiguousarray(bounds.T)
    return Areas(west, south, east, north, shapes)


def _are_boxes(x: Floats, y: Floats) -> Mask:
    """Mask of closed rings of five vertices whose edges are a box."""
    across = (
        (y[:, 0] == y[:, 1]) & (x[:, 1] == x[:, 2]) & (y[:, 2] == y[:, 3]) & (x[:, 3] == x[:, 0])
    )
    along = (
        (x[:, 0] == x[:, 1]) & (y[:, 1] == y[:, 2]) & (x[:, 2] == x[:, 3]) & (y[:, 3] == y[:, 0])
    )
    mask: Mask = (across | along) & (x[:, 0] != x[:, 2]) & (y[:, 0] != y[:, 2])
    return mask


def _numbers(values: pa.Array, header: bytes, *, count: int) -> tuple[Mask, Floats]:
    """Which values are a header and so many doubles, and these, shape (of them, count)."""
    size = len(header) + 8 * count
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset :][: len(values) + 1]
    mask: Mask = np.diff(bounds) == size
    rows = np.flatnonzero(mask)
    if len(rows) == 0:
        return mask, np.empty((0, count))
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, dtype=np.uint8), size)
    whole = windows[bounds[rows]]
    is_headed = (whole[:, : len(header)] == np.frombuffer(header, dtype=np.uint8)).all(axis=1)
    mask[rows] = is_headed
    numbers = np.ascontiguousarray(whole[is_headed, len(header) :]).view("<f8")
    return mask, numbers.astype(np.float64, copy=False)
