"""Observations in memory: DataFrames, grids of xarray, dicts of arrays, and Arrow streams.

Imports no optional library: the caller of an object of one has imported it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from galileo.errors import GalileoError, InvalidObservations
from galileo.formats.columns import find_columns, typed_reader
from galileo.formats.mapping import Mapping as FileMapping
from galileo.formats.netcdf import read_dataset
from galileo.formats.reader import Reader
from galileo.formats.type_conversion import one_array
from galileo.model.observations import Observations, as_table
from galileo.model.schema import COORDINATES
from galileo.optional_imports import LateModule, is_frame, is_series

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LateModule("pandas", purpose="a DataFrame")

WGS84 = 4326
DEGREES_TOLERANCE = 1e-6

Rows: TypeAlias = Iterator[pa.Table]


def comes_from(data: object, package: str) -> bool:
    """Whether the class of an object, or a base class, belongs to a package."""
    return any(cls.__module__.partition(".")[0] == package for cls in type(data).__mro__)


def is_grid(data: object) -> bool:
    """Whether it is an xarray Dataset or DataArray."""
    return comes_from(data, "xarray") and hasattr(data, "to_dataframe")


def is_table(data: object) -> bool:
    """Whether it is a table: of Arrow, pandas, polars or DuckDB, or a dict of arrays."""
    if is_series(data) or is_grid(data):
        return False
    streams = hasattr(type(data), "__arrow_c_stream__") or hasattr(type(data), "__arrow_c_array__")
    return is_frame(data) or isinstance(data, Mapping) or streams or _is_lazy(data)


def _is_lazy(data: object) -> bool:
    return comes_from(data, "polars") and type(data).__name__ == "LazyFrame"


def named_tables(data: Any) -> Iterator[Observations]:
    """The pieces of a table, with coordinates under their full names.

    Raises:
        InvalidObservations: its geometries or arrays cannot become columns.
        InputError: several columns have a usual name of one coordinate.
    """
    if is_frame(data):
        frame = _geometry_to_degrees(data)
        columns = find_columns([str(name) for name in frame.columns])
        yield frame.rename(columns={name: role for role, name in columns.items()})
        return
    for table in _stream(data)[1]:
        columns = find_columns(table.column_names)
        roles = {name: role for role, name in columns.items()}
        yield table.rename_columns([roles.get(name, name) for name in table.column_names])


def plain_tables(data: Any) -> Iterator[pa.Table]:
    """The pieces of a table as they are."""
    if is_frame(data):
        yield as_table(data)
        return
    yield from _stream(data)[1]


def open_table(data: Any, mapping: FileMapping) -> Reader:
    """A reader of a table; a stream can be read once."""
    if is_frame(data):
        frame = _geometry_to_degrees(data)
        levels = [name for name in frame.index.names if name is not None]
        data = as_table(frame.reset_index(levels) if levels else frame)
    schema, tables = _stream(data)
    rows = data.num_rows if isinstance(data, pa.Table | pa.RecordBatch) else None
    return typed_reader(
        schema, lambda columns: (t.select(list(columns)) for t in tables), mapping, rows=rows
    )


def open_grid(data: Any, mapping: FileMapping) -> Reader:
    """A reader of a Dataset or DataArray, with the rules for NetCDF files."""
    if not hasattr(data, "data_vars"):
        if data.name is None:
            raise InvalidObservations(
                "expected a DataArray with a name, which becomes that of its feature; write "
                ".rename('temperature')",
                expected="name",
            )
        data = data.to_dataset()
    return read_dataset(data, mapping)


# --- tables ----------------------------------------------------------------------------------


def _stream(data: Any) -> tuple[pa.Schema, Rows]:
    """The columns of a table, and its rows."""
    if _is_lazy(data):
        data = data.collect()
    if isinstance(data, Mapping):
        data = _table_of_arrays(data)
    if isinstance(data, pa.Table):
        return data.schema, iter([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, _batches(data)
    with _named_columns(data):
        if hasattr(type(data), "__arrow_c_array__"):
            batch = pa.record_batch(data)
            return batch.schema, iter([pa.Table.from_batches([batch])])
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, _batches(reader)


@contextmanager
def opened(data: Any) -> Iterator[Any]:
    """Data for the block; a stream of another library is closed if the block fails.

    DuckDB refuses further queries of a connection whose stream is open.
    """
    is_stream = hasattr(type(data), "__arrow_c_stream__") and not is_frame(data)
    if not is_stream or isinstance(data, pa.Table | pa.RecordBatchReader):
        yield data
        return
    with _named_columns(data):
        reader = pa.RecordBatchReader.from_stream(data)
    try:
        yield reader
    except (GalileoError, GeneratorExit):  # After others, a thread may still be reading.
        reader.close()
        raise


@contextmanager
def _named_columns(data: Any) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidObservations(
            f"expected a table with named columns, got {type(data).__name__}: {error}"
        ) from error


def _batches(reader: pa.RecordBatchReader) -> Rows:
    try:
        for batch in reader:
            yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise InvalidObservations(f"the stream of observations failed: {error}") from error


def _table_of_arrays(data: Mapping[Any, Any]) -> pa.Table:
    arrays = {str(name): _array(name, value) for name, value in data.items()}
    rows = {name: len(array) for name, array in arrays.items() if array is not None}
    if not rows:
        raise InvalidObservations(
            f"expected a dict of arrays, one for each column, got one of {len(data)} single "
            "values; turn records into a table with pandas.DataFrame(...)"
        )
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name} ({count})" for name, count in rows.items())
        raise InvalidObservations(f"expected arrays of the same length, got {listed}")
    count = next(iter(rows.values()))
    columns = [
        pa.repeat(pa.scalar(data[name]), count) if array is None else array
        for name, array in arrays.items()
    ]
    return pa.table(columns, names=list(arrays))


def _array(name: Any, value: Any) -> pa.Array | None:
    """A column; None for a single value, which all rows have."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return one_array(value)
    if np.ndim(value) == 0:
        return None
    try:
        if np.ndim(value) != 1:
            raise pa.ArrowInvalid(f"got {np.ndim(value)} dimensions")
        return one_array(pa.array(value, from_pandas=True))
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidObservations(
            f"expected an array of one dimension and type in column {name!r}: {error}"
        ) from error


# --- geometries ------------------------------------------------------------------------------


def _geometry_to_degrees(frame: pd.DataFrame) -> pd.DataFrame:
    """Replaces the points of a GeoDataFrame with latitude and longitude."""
    if not comes_from(frame, "geopandas"):
        return frame
    geometries: Any = frame
    points = geometries.geometry
    kinds = set(points.geom_type.dropna())
    if kinds - {"Point"}:
        raise InvalidObservations(
            f"expected points, got geometries of type {', '.join(sorted(kinds))}; take a point of "
            "each, such as .set_geometry(frame.representative_point())",
            expected="points",
        )
    if points.crs is None:
        raise InvalidObservations(
            "expected a GeoDataFrame with a coordinate reference system, got one without; write "
            ".set_crs(4326) where the points are longitudes and latitudes in degrees",
            expected="crs",
        )
    points = points.to_crs(WGS84)
    plain = pd.DataFrame(frame.drop(columns=points.name))
    degrees = {"latitude": points.y, "longitude": points.x}
    # x and y may be distances on a map.
    degree_columns = [str(name) for name in plain.columns if str(name).lower() not in ("x", "y")]
    columns = find_columns(degree_columns, among=COORDINATES[:2])
    for role, name in columns.items():
        _check_same(plain[name], degrees[role])
    return plain.drop(columns=list(columns.values())).assign(**degrees)


def _check_same(column: pd.Series, degrees: pd.Series) -> None:
    """Raises InvalidObservations if a column of degrees contradicts the points."""
    stated = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    expected = degrees.to_numpy(np.float64)
    same = np.allclose(stated, expected, rtol=0, atol=DEGREES_TOLERANCE, equal_nan=True)
    if not same:
        raise InvalidObservations(
            f"the points of the GeoDataFrame and its column {column.name!r} contradict each other; "
            "drop the column, or drop the geometry",
            expected="same_points",
            column=str(column.name),
        )
