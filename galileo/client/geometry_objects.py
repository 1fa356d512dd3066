"""Geometries that are objects of Python become columns of WKB, before rows become an Arrow table.

What Arrow can hold stays as it is: WKB, WKT and boxes are converted with the other columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import shapely

from galileo.errors import InputError, InvalidObservations
from galileo.formats.memory import WGS84
from galileo.geo import geometry_columns, regions
from galileo.geo.wkb import Shapes
from galileo.optional_imports import LateModule, is_frame
from galileo.query.builder import geometry_json

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LateModule("pandas", purpose="a DataFrame")


def with_wkb(rows: Any, names: Collection[str]) -> Any:
    """The rows, with WKB in place of objects.

    Args:
        rows: a DataFrame or a dict of arrays; anything else is returned as it is.
        names: of the columns of geometries. Those of GeoPandas are converted in any case.

    Raises:
        InvalidObservations: a value is no geometry, or one is not in degrees.
    """
    if is_frame(rows):
        return _frame_with_wkb(rows, names)
    if not isinstance(rows, Mapping):
        return rows
    return {
        name: _array(value, str(name)) if name in names or _is_of_geopandas(value) else value
        for name, value in rows.items()
    }


def _frame_with_wkb(frame: pd.DataFrame, names: Collection[str]) -> pd.DataFrame:
    if not frame.columns.is_unique:  # It is refused elsewhere.
        return frame
    plain = pd.DataFrame(frame).copy(deep=False)
    for name, column in frame.items():
        if _is_of_geopandas(column) or (name in names and column.dtype == object):
            plain[name] = _array(column.array, str(name)).to_numpy(zero_copy_only=False)
    return plain


def _is_of_geopandas(values: Any) -> bool:
    return str(getattr(values, "dtype", "")) == "geometry"


def _array(values: Any, name: str) -> Any:
    """A column that Arrow can hold; a single value, which all rows have, stays single."""
    if _is_of_geopandas(values):
        return _encoded(np.asarray(_in_degrees(values, name), dtype=object))
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        shape = values if values is None else _shapes([values], name)[0]
        return shapely.to_wkb(shape)
    if isinstance(values, str | bytes | pa.Array | pa.ChunkedArray):
        return values
    listed = list(values)
    try:
        array = pa.array(listed, from_pandas=True)
        if not pa.types.is_struct(array.type):
            return array
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        pass  # These are objects that Arrow does not know.
    return _encoded(_shapes(listed, name))


def _encoded(shapes: Shapes) -> pa.Array:
    return pa.array(shapely.to_wkb(shapes, output_dimension=2), pa.large_binary())


def _in_degrees(values: Any, name: str) -> Any:
    """The geometries of GeoPandas in longitudes and latitudes."""
    geometries = getattr(values, "array", values)
    if geometries.crs is None:
        raise InvalidObservations(
            f"expected a coordinate reference system of column {name!r}, got none; write "
            ".set_crs(4326) where it has longitudes and latitudes in degrees",
            expected="crs",
            column=name,
        )
    return geometries.to_crs(WGS84)


def _shapes(values: list[Any], name: str) -> Shapes:
    """The shapes of any objects that describe one."""
    shapes: Shapes = np.fromiter(values, dtype=object, count=len(values))
    for row in np.flatnonzero(~shapely.is_geometry(shapes)).tolist():
        try:
            shapes[row] = None if _is_missing(shapes[row]) else _shape(shapes[row])
        except InputError as error:
            raise InvalidObservations(
                f"the geometry in row {row} of column {name!r} cannot be stored: {error.message}",
                **(error.details | {"column": name, "row": row}),
            ) from error
    return shapes


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ == "NAType"


def _shape(value: Any) -> shapely.Geometry:
    """The shape of what queries take as a region; errors as `geometry_json`."""
    raw = geometry_json(value)
    if "bbox" in raw:
        return geometry_columns.box_shape(raw["bbox"])
    return regions.shape_from_geojson(raw)
