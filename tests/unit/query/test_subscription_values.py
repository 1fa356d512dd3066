"""Points and boxes of WKB are those that Shapely reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import shapely

from galileo.query.subscriptions.wkb import read_areas, read_points

BOX = shapely.box(1, 2, 4, 8)
GEOMETRIES = [
    shapely.Point(1.5, -2.5),
    shapely.Point(-180, 90),
    BOX,
    shapely.box(1, 2, 4, 8, ccw=False),
    shapely.Polygon(shapely.get_coordinates(BOX)[[2, 3, 0, 1, 2]]),
    shapely.Polygon([(0, 0), (2, 1), (1, 3), (-1, 2)]),
    shapely.Polygon([(0, 0), (2, 0), (2, 1), (0, 2)]),
    shapely.Polygon([(0, 0), (2, 0), (1, 1)]),
    shapely.box(0, 0, 9, 9) - shapely.box(1, 1, 2, 2),
    shapely.MultiPolygon([BOX]),
    shapely.LineString([(0, 0), (5, 5)]),
    shapely.MultiPoint([(1, 2)]),
]


@pytest.mark.parametrize("byte_order", [0, 1])
@pytest.mark.parametrize("start", [0, 1])
def test_areas_have_the_bounds_of_their_geometries(byte_order: int, start: int) -> None:
    shapes = np.array(GEOMETRIES[start:])
    areas = read_areas(_wkb(byte_order)[start:])

    bounds = np.stack([areas.west, areas.south, areas.east, areas.north], axis=1)
    assert (bounds == shapely.bounds(shapes)).all()
    is_box = shapely.is_missing(areas.shapes)
    assert shapely.equals_exact(areas.shapes[~is_box], shapes[~is_box]).all()
    boxes = shapely.box(*bounds[is_box].T)
    assert shapely.equals(boxes, shapes[is_box]).all()
    assert is_box.sum() == (3 if byte_order else 0)


@pytest.mark.parametrize("byte_order", [0, 1])
def test_points_are_told_from_other_geometries(byte_order: int) -> None:
    points = read_points(_wkb(byte_order))

    assert points[:2].tolist() == [[1.5, -2.5], [-180, 90]]
    assert np.isnan(points[2:]).all()


def _wkb(byte_order: int) -> pa.Array:
    return pa.array(shapely.to_wkb(np.array(GEOMETRIES), byte_order=byte_order), pa.binary())
