"""Columns of points, as GeoParquet and GeoArrow have them, as latitudes and longitudes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from galileo.arrays import plain_type
from galileo.errors import InputError, InvalidObservations
from galileo.formats.columns import find_columns
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Scan
from galileo.geo import geoarrow
from galileo.geo.points import positions
from galileo.geo.regions import Floats
from galileo.model.schema import COORDINATES


def with_places(
    path: Path, schema: pa.Schema, scan: Scan, mapping: Mapping
) -> tuple[pa.Schema, Scan]:
    """The columns of a file, in which latitudes and longitudes stand for its points.

    Columns of latitude or longitude that the file or the mapping names have priority; `x` and `y`
    beside geometries may be distances on a map.

    Raises:
        InputError: the points have another encoding or coordinate reference system. The scan
            raises it for other geometries, with their `row`.
    """
    name = geoarrow.place_column(schema)
    names = [each for each in schema.names if each.lower() not in ("x", "y")]
    if not name or mapping.latitude or mapping.longitude or find_columns(names, COORDINATES[:2]):
        return schema, scan
    if schema.names.count(name) != 1:
        _refuse(path, f"{schema.names.count(name)} columns {name!r}, which the file says it has")
    kind = plain_type(schema.field(name).type)
    is_struct = pa.types.is_struct(kind) and {"x", "y"} <= {one.name for one in kind}
    if not is_struct and not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        _refuse(path, f"geometries of the type {kind!s:.100} in column {name!r}")
    geoarrow.check_wgs84(schema, name)
    fields = [field for field in schema if field.name != name]
    degrees = [pa.field(coordinate, pa.float64()) for coordinate in COORDINATES[:2]]

    def scan_places(columns: Sequence[str]) -> Iterator[pa.Table]:
        others, first_row = [each for each in columns if each not in COORDINATES[:2]], 0
        for piece in scan([*others, name]):
            latitude, longitude = [], []
            for chunk in piece.column(name).chunks:
                x, y = _positions(path, chunk, first_row)
                latitude.append(pa.array(y, pa.float64(), from_pandas=True))
                longitude.append(pa.array(x, pa.float64(), from_pandas=True))
                first_row += len(chunk)
            table = piece.select(others)
            for field, arrays in zip(degrees, (latitude, longitude), strict=True):
                table = table.append_column(field, pa.chunked_array(arrays, field.type))
            yield table.select(list(columns))

    return pa.schema([*fields, *degrees], schema.metadata), scan_places


def _refuse(path: Path, got: str) -> NoReturn:
    raise InputError(
        f"expected points as WKB, or as structures of x and y, in {path}, got {got}",
        remedy="geometries",
        expected="points",
    )


def _positions(path: Path, column: pa.Array, first_row: int) -> tuple[Floats, Floats]:
    """Longitudes and latitudes, NaN where there is no point."""
    try:
        return positions(column)
    except InputError as error:
        details = {**error.details, "row": first_row + error.details["row"]}
        if details["expected"] == "points":
            details["remedy"] = "geometries"
        words = f"{error.message} in row {details['row']} of {path}"
        raise InvalidObservations(words, **details) from error
