"""Observations as xarray: on their grid where they have one, else one after the other.

The store keeps observations by cell and time, so a grid comes back in no order of its own, and has
to be found in the positions: a *rectangular* grid has few latitudes and few longitudes and all
pairs of them; a *curvilinear* one, such as the Lambert grid of a weather model, is walked from
neighbour to neighbour (`galileo.client.curvilinear_grid`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.client.curvilinear_grid import Lattice, contiguous, walk
from galileo.errors import InputError
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.feature_metadata import FLAG_VALUES, attributes_of
from galileo.model.schema import COORDINATES, Schema
from galileo.model.times import column_micros
from galileo.optional_imports import library

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

FILLED_MIN = 0.5
"""Of a grid, the least share of points that must be there; with fewer, it is none."""
HOLES_VALUES_MAX = 1 << 24
"""Of an array, over all times, of which less than a tenth is there; 128 MB for each feature."""
HOLES_FOLD_MAX = 10

_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "latitude": {"units": "degrees_north", "standard_name": "latitude"},
    "longitude": {"units": "degrees_east", "standard_name": "longitude"},
    "time": {"standard_name": "time"},
}

_INTEGERS = {"dtype": "int64", "_FillValue": np.int64(-(1 << 63))}
"""How integers are written to files that are floats in memory, since some are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Where observations stand in an array.

    Attributes:
        dims: names of the dimensions of place.
        shape: their lengths.
        coordinates: of the grid: name, dimensions, values.
        places: index of each observation in the flattened grid.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    coordinates: tuple[tuple[str, tuple[str, ...], Floats], ...]
    places: Whole


def to_xarray(data: LabelSet | pa.Table, schema: Schema | None = None) -> Any:
    """Observations or labels as an xarray Dataset; what describes features becomes attributes (CF).

    If the positions form a grid and each has at most one observation at a time, the dimensions are
    `time` and `latitude`, `longitude`, or, on a curvilinear grid, `time`, `y` and `x` with latitude
    and longitude as two-dimensional coordinates. What is not there is NaN (NaT, None). Longitudes
    of a grid across the antimeridian go on beyond 180. Otherwise there is one dimension,
    `observation`.

    Args:
        data: observations with the columns latitude, longitude and time, as `read` and `select`
            give them; or labels, which stand in the middle of their cells, at the start of their
            time bucket, and have one column more, `observations`.
        schema: of the dataset; describes the features. Labels know it.

    Raises:
        InputError: a coordinate is missing.
        MissingExtra: xarray is not installed; it comes with `galileo-store[formats]`.

    Example:
        >>> array = galileo.to_xarray(client.select("weather"), client.schema("weather"))
        >>> array["temperature"].attrs["units"]
        'K'
    """
    xarray = library("xarray", purpose="a Dataset")
    table, schema = (_centred(data), data.schema) if isinstance(data, LabelSet) else (data, schema)
    if not isinstance(table, pa.Table):
        raise InputError(
            "expected labels or an Arrow table, as query, read and select give them, got a "
            f"{type(data).__name__}"
        )
    missing = [name for name in COORDINATES if name not in table.column_names]
    if missing:
        raise InputError(
            f"expected the columns {', '.join(COORDINATES)}, {', '.join(missing)} is missing; read "
            "them too"
        )
    grid = find_grid(table)
    columns, coordinates = _along(table) if grid is None else _gridded(table, grid)
    attributes = {"Conventions": "CF-1.11"} | ({"title": schema.name} if schema else {})
    if grid is None:
        attributes["featureType"] = "point"
    dataset = xarray.Dataset(columns, coords=coordinates, attrs=attributes)
    for name in map(str, dataset.variables):
        dataset[name].attrs.update(_attributes(name, schema))
        feature = schema.feature(name) if schema else None
        if feature and feature.type == "int" and dataset[name].dtype.kind == "f":
            dataset[name].encoding.update(_INTEGERS)
    return dataset


def _centred(labels: LabelSet) -> pa.Table:
    """Labels as if each were an observation in the middle of its cell."""
    west, south, east, north = geohash.bounds(labels.cells, labels.schema.geohash_precision)
    columns: dict[str, Any] = {"latitude": (south + north) / 2, "longitude": (west + east) / 2}
    columns["time"] = labels.table.column("bucket")
    columns |= {
        feature.name: labels.table.column(feature.name) for feature in labels.schema.indexed
    }
    return pa.table(columns | {"observations": labels.table.column("rows")})


def find_grid(table: pa.Table) -> Grid | None:
    """The grid on which observations stand.

    None where there is none, one is there twice, or so little is there at each time that the array
    would be out of all proportion: points that were scanned one by one have as many times.
    """
    latitude = np.asarray(table.column("latitude").to_numpy(), dtype=np.float64)
    longitude = np.asarray(table.column("longitude").to_numpy(), dtype=np.float64)
    if len(latitude) < 4:
        return None
    pairs = np.empty(len(latitude), dtype=np.complex128)
    pairs.real, pairs.imag = latitude + 0.0, longitude + 0.0
    points, inverse = np.unique(pairs, return_inverse=True)
    times = column_micros(table.column("time"))
    if _twice(times, inverse):
        return None
    if len(points) * len(np.unique(times)) > max(HOLES_VALUES_MAX, HOLES_FOLD_MAX * len(times)):
        return None
    rectangular = _rectangular(points.real, points.imag, inverse)
    return rectangular or _curvilinear(points.real, points.imag, inverse)


def _twice(times: Whole, places: Whole) -> bool:
    """Whether a place has two observations at one time."""
    order = np.lexsort((places, times))
    same = (np.diff(times[order]) == 0) & (np.diff(places[order]) == 0)
    return bool(same.any())


def _rectangular(latitude: Floats, longitude: Floats, inverse: Whole) -> Grid | None:
    rows, row = np.unique(latitude, return_inverse=True)
    columns, column = np.unique(contiguous(longitude), return_inverse=True)
    shape = (len(rows), len(columns))
    if min(shape) < 2 or len(latitude) < FILLED_MIN * shape[0] * shape[1]:
        return None
    coordinates = (
        ("latitude", ("latitude",), rows),
        ("longitude", ("longitude",), columns),
    )
    places = (row * len(columns) + column)[inverse]
    return Grid(("latitude", "longitude"), shape, coordinates, places)


def _curvilinear(latitude: Floats, longitude: Floats, inverse: Whole) -> Grid | None:
    lattice: Lattice | None = walk(latitude, longitude)
    if lattice is None or len(latitude) < FILLED_MIN * lattice.rows * lattice.columns:
        return None
    places = lattice.row * lattice.columns + lattice.column
    dims, shape = ("y", "x"), (lattice.rows, lattice.columns)
    coordinates = tuple(
        (name, dims, _spread(values, places, lattice.rows * lattice.columns).reshape(shape))
        for name, values in (("latitude", latitude), ("longitude", contiguous(longitude)))
    )
    return Grid(dims, shape, coordinates, places[inverse])


def _gridded(table: pa.Table, grid: Grid) -> tuple[dict[str, Any], dict[str, Any]]:
    times, moment = np.unique(column_micros(table.column("time")), return_inverse=True)
    size = int(np.prod(grid.shape))
    dims, shape = ("time", *grid.dims), (len(times), *grid.shape)
    where = moment * size + grid.places
    columns = {
        name: (
            dims,
            _spread(values_of(table.column(name)), where, len(times) * size).reshape(shape),
        )
        for name in table.column_names
        if name not in COORDINATES
    }
    coordinates = {name: (along, values) for name, along, values in grid.coordinates}
    return columns, coordinates | {"time": ("time", times.astype("datetime64[us]"))}


def _along(table: pa.Table) -> tuple[dict[str, Any], dict[str, Any]]:
    values = {name: ("observation", values_of(table.column(name))) for name in table.column_names}
    coordinates = {name: values.pop(name) for name in COORDINATES}
    return values, coordinates


def _spread(values: Any, where: Whole, size: int) -> Any:
    """The values at their places, and what stands for nothing elsewhere."""
    if len(where) < size and values.dtype.kind in "iub":
        values = values.astype(object if values.dtype.kind == "b" else np.float64)
    if len(where) == size:
        spread = np.empty(size, dtype=values.dtype)
    else:
        nothing = {"f": np.nan, "M": np.datetime64("NaT", "us"), "O": None}[values.dtype.kind]
        spread = np.full(size, nothing, dtype=values.dtype)
    spread[where] = values
    return spread


def values_of(column: pa.ChunkedArray) -> Any:
    """A column as NumPy: times naive UTC, texts and bools with missing values as objects."""
    if pa.types.is_timestamp(column.type):
        return column_micros(column).astype("datetime64[us]")
    if pa.types.is_integer(column.type) and column.null_count:
        column = column.cast(pa.float64())
    return column.to_numpy()


def _attributes(name: str, schema: Schema | None) -> dict[str, Any]:
    feature = schema.feature(name) if schema else None
    if feature is None:
        return _ATTRIBUTES.get(name, {})
    attributes = attributes_of(feature)
    values = attributes.get(FLAG_VALUES)
    return attributes | ({} if values is None else {FLAG_VALUES: np.array(values, np.int64)})
