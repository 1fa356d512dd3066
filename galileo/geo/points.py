"""The positions of columns of points: WKB, and structures of x and y (GeoArrow)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import shapely

from galileo.arrays import plain
from galileo.errors import InputError
from galileo.geo.regions import Floats
from galileo.geo.wkb import WkbColumn, refuse

_KINDS = ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon")
"""Kinds of WKB from 1."""
_POINT = np.dtype([("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")])
_NOWHERE = np.array((1, 1, np.nan, np.nan), _POINT).tobytes()


def positions(column: pa.Array) -> tuple[Floats, Floats]:
    """The first two coordinates of each row, x and y; NaN where there is no point.

    Raises:
        InputError: a geometry is malformed, or no point; `details["row"]` is its row.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    values, rows = column, np.arange(len(column))
    if isinstance(column, pa.DictionaryArray):  # A few bytes can encode many geometries.
        values = column.dictionary
        rows = np.asarray(column.indices.cast(pa.int64()).fill_null(len(values)))
    values = plain(values)
    try:
        x, y = _of_structs(values) if pa.types.is_struct(values.type) else _of_wkb(values)
    except InputError as error:
        error.details["row"] = int(np.argmax(rows == error.details["row"]))
        raise
    return np.append(x, np.nan)[rows], np.append(y, np.nan)[rows]


def _of_structs(points: pa.StructArray) -> tuple[Floats, Floats]:
    fields = dict(zip((field.name for field in points.type), points.flatten(), strict=True))
    x, y = (fields[axis].cast(pa.float64()).to_numpy(zero_copy_only=False) for axis in ("x", "y"))
    return x, y


def _of_wkb(column: pa.Array) -> tuple[Floats, Floats]:
    wkb = WkbColumn(column)
    is_usual = (wkb.sizes == _POINT.itemsize) & (wkb.orders == 1) & (wkb.words == 1)
    if (is_usual | ~wkb.is_there).all():
        filled = column.fill_null(pa.scalar(_NOWHERE, column.type)).cast(pa.binary(len(_NOWHERE)))
        points = np.frombuffer(filled.buffers()[1], _POINT, len(column))
        return points["x"], points["y"]
    refuse(
        wkb.is_there & (wkb.kinds > 1) & (wkb.kinds <= len(_KINDS)),
        lambda row: f"expected a Point, got a {_KINDS[wkb.kinds[row] - 1]}",
        "points",
    )
    shapes = wkb.parse()
    return shapely.get_x(shapes), shapely.get_y(shapes)
