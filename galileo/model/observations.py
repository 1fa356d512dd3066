"""Converts observations of users to a schema, or refuses them and names the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import cast, plain, plain_type, run_of_rows
from galileo.errors import InputError, InvalidObservations
from galileo.model.feature_metadata import from_field
from galileo.model.schema import COORDINATES, DELETED, FLOATS, Feature, Schema, nearest_name
from galileo.model.times import (
    TIME_MAX_US,
    TIME_MIN_US,
    TIME_TYPE,
    column_micros,
    iso,
    time_column,
)
from galileo.model.units import converted, is_converted
from galileo.optional_imports import is_frame

if TYPE_CHECKING:
    import pandas as pd

Observations: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | pd.DataFrame"

ROUNDING_DEGREES = 1e-4
"""How far 32-bit floats of grids may lie beyond the bounds of coordinates."""
TEXT_BYTES_MAX = 256 << 20
"""Bytes of the texts of one column, counted for every row; codes and views may repeat long texts.
"""


def normalise(schema: Schema, data: Observations | Iterable[pa.RecordBatch]) -> pa.Table:
    """`data` as a table of `schema.version_schema`, rows in the same order.

    Values are converted where the metadata of their column names another unit than their feature.
    Longitudes from 180 to 360 become negative, coordinates that rounding put outside of their range
    are clipped to it, naive times are UTC, NaN is null. Unchanged columns
    keep their buffers. Features that were added to the dataset are null where their column is
    missing, so that producers of the earlier schema can go on. Rows that delete their keys have no
    other features.

    Raises:
        InvalidObservations: a column is missing, unknown or of a wrong type; a coordinate is null
            or out of range. The message names the column and the first row.
    """
    table = as_table(data)
    _check_names(schema, table.column_names, index=_index_names(data))
    columns = [_latitude(table), _longitude(table), _time(table, schema)]
    given = dict(zip(table.column_names, table.columns, strict=True))  # A look-up takes 0.1 ms.
    units = {field.name: from_field(field).unit for field in table.schema if field.metadata}
    for feature in schema.features if units else ():
        unit, source = units.get(feature.name, ""), f"column {feature.name!r}"
        if is_converted(unit, feature, source=source):
            values = _cast(plain(given[feature.name]), Feature(feature.name))
            numbers = converted(values.to_numpy(), unit, feature.unit)
            given[feature.name] = pa.chunked_array([pa.array(numbers, from_pandas=True)])
    columns += [_feature(given, feature, rows=table.num_rows) for feature in schema.features]
    if schema.is_keyed:
        deleted = _deleted(given, rows=table.num_rows)
        if pc.any(deleted).as_py():
            columns = [
                column
                if name in (*COORDINATES, *schema.key_features)
                else pc.if_else(deleted, pa.scalar(None, column.type), column)
                for name, column in zip(schema.observation_schema.names, columns, strict=True)
            ]
        columns.append(deleted)
    return pa.table(columns, schema=schema.version_schema)


def _deleted(given: Mapping[str, pa.ChunkedArray], *, rows: int) -> pa.ChunkedArray | pa.Array:
    """Whether each row deletes its key; none does where the column is missing."""
    if DELETED not in given:
        return pa.array(np.zeros(rows, dtype=np.bool_))
    column = plain(given[DELETED])
    if column.type != pa.bool_() or column.null_count:
        raise InvalidObservations(
            f"expected true or false in every row of column {DELETED!r}, got {column.type} with "
            f"{column.null_count} nulls",
            expected="bool",
            column=DELETED,
        )
    return column


def as_table(data: Any) -> pa.Table:
    """Observations as an Arrow table in memory."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if is_frame(data):
            return _from_pandas(data)
        if isinstance(data, pa.RecordBatchReader):
            return data.read_all()
        return pa.Table.from_batches(list(data))
    except (TypeError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise InvalidObservations(
            "expected an Arrow table, record batches of one schema or a pandas DataFrame, "
            f"got {type(data).__name__}: {error}",
            expected="table",
        ) from error


def _from_pandas(frame: pd.DataFrame) -> pa.Table:
    _refuse_geometries(frame)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except pa.ArrowException as error:
        raise InvalidObservations(
            f"a column of the DataFrame cannot be converted to Arrow: {'; '.join(error.args)}; "
            "convert the column first",
            expected="arrow_columns",
        ) from error


def _refuse_geometries(data: pd.DataFrame) -> None:
    for name, dtype in data.dtypes.items():
        if str(dtype) == "geometry":
            raise InvalidObservations(
                f"expected plain columns, got geometries in column {name!r}; write "
                ".assign(latitude=frame.geometry.y, longitude=frame.geometry.x)"
                f".drop(columns={name!r}) for points in degrees",
                expected="plain_column",
                column=str(name),
            )


def _index_names(data: Any) -> list[Any]:
    return list(data.index.names) if is_frame(data) else []


def _check_names(schema: Schema, names: list[str], *, index: list[Any]) -> None:
    expected = [*COORDINATES, *(feature.name for feature in schema.features)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidObservations(
            f"expected each column once, got {', '.join(twice)} again",
            expected="unique",
            column=twice[0],
        )
    required = expected[: len(expected) - schema.added]
    missing = [name for name in required if name not in names]
    unknown = [name for name in names if name not in expected]
    if schema.is_keyed and DELETED in unknown:
        unknown.remove(DELETED)
    if not missing and not unknown:
        return
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(_with_hint(name, missing) for name in unknown)}"] * bool(
        unknown
    )
    in_index = [name for name in missing if name in index]
    parts += [f"in the index: {', '.join(in_index)}, write .reset_index()"] * bool(in_index)
    raise InvalidObservations(
        f"expected the columns {', '.join(expected)} for dataset {schema.name!r}; "
        f"{'; '.join(parts)}. Rename or drop columns, or fill a missing feature with nulls",
        expected="columns_of_dataset",
        missing_columns=missing,
        unknown_columns=unknown,
    )


def _with_hint(name: str, wanted: list[str]) -> str:
    close = nearest_name(name, wanted)
    return f"{name} (did you mean {close}?)" if close else name


def _latitude(table: pa.Table) -> pa.ChunkedArray:
    values = table.column("latitude")
    if values.type == pa.float64() and _all_within(values, -90.0, 90.0):
        return values
    return _in_range(_coordinate(table, "latitude"), "latitude", -90.0, 90.0)


def _longitude(table: pa.Table) -> pa.ChunkedArray:
    values = table.column("longitude")
    if values.type == pa.float64() and _all_within(values, -180.0, 180.0):
        return values
    values = _in_range(_coordinate(table, "longitude"), "longitude", -180.0, 360.0)
    east = pc.less_equal(values, 180.0)
    if pc.all(east).as_py() in (True, None):
        return values
    return pc.if_else(east, values, pc.subtract(values, 360.0))


def _all_within(values: pa.ChunkedArray, low: float, high: float) -> bool:
    """Whether every row has a number from `low` to `high`; reads the column once."""
    if values.null_count:
        return False
    chunks = [chunk.to_numpy() for chunk in values.chunks if len(chunk)]
    # Where there is a NaN it is both least and greatest, and no comparison with it holds.
    return all(chunk.min() >= low and chunk.max() <= high for chunk in chunks)


def _coordinate(table: pa.Table, name: str) -> pa.ChunkedArray:
    values = plain(table.column(name))
    if not _is_number(values.type):
        raise InvalidObservations(
            f"expected degrees in column {name!r}, got {values.type}",
            expected="degrees",
            column=name,
        )
    values = values.cast(pa.float64(), safe=False)
    _refuse_missing(pc.is_null(values, nan_is_null=True), name)
    return values


def _in_range(values: pa.ChunkedArray, name: str, low: float, high: float) -> pa.ChunkedArray:
    """The values, clipped where they are outside by no more than rounding."""
    outside = pc.or_(
        pc.less(values, low - ROUNDING_DEGREES), pc.greater(values, high + ROUNDING_DEGREES)
    )
    if pc.any(outside).as_py():
        row = outside.index(pa.scalar(True)).as_py()
        raise InvalidObservations(
            f"expected a {name} from {low:g} to {high:g} degrees, got {values[row].as_py()!r} "
            f"in row {row}; nothing of this table was stored",
            row=row,
            expected="degrees",
            column=name,
        )
    return pc.max_element_wise(pc.min_element_wise(values, high), low)


def _time(table: pa.Table, schema: Schema) -> pa.ChunkedArray:
    times = table.column("time")
    refuse_long(times, "time")
    times = plain(times)
    # The first bucket that begins in year 1; an earlier one has a start that no calendar has.
    low = -(-TIME_MIN_US // schema.time_bucket_us) * schema.time_bucket_us
    if times.type == TIME_TYPE and not times.null_count and len(times):
        times_us = column_micros(times)
        if times_us.min() >= low and times_us.max() <= TIME_MAX_US:
            return times
    try:
        values = time_column(times)
    except InputError as error:
        raise InvalidObservations(error.message, **error.details) from error
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    _refuse_missing(pc.is_null(chunked), "time")
    numbers = pc.cast(chunked, pa.int64())
    outside = pc.or_(pc.less(numbers, TIME_MIN_US), pc.greater(numbers, TIME_MAX_US))
    _refuse(
        outside,
        "expected times of the years 1 to 9999 in column 'time', got another",
        expected="calendar_time",
        column="time",
    )
    _refuse(
        pc.less(numbers, low),
        f"expected times from {iso(low)} on in column 'time', where the first time bucket begins, "
        "got an earlier one",
        expected="calendar_bucket",
        column="time",
    )
    return chunked


def _refuse_missing(flags: pa.ChunkedArray, name: str) -> None:
    complaint = f"expected a value in every row of column {name!r}, got none"
    _refuse(flags, complaint, expected="no_nulls", column=name)


def _refuse(flags: pa.ChunkedArray, complaint: str, **details: str) -> None:
    if pc.any(flags).as_py():
        row = flags.index(pa.scalar(True)).as_py()
        raise InvalidObservations(
            f"{complaint} in row {row}; nothing of this table was stored", row=row, **details
        )


def _feature(given: dict[str, pa.ChunkedArray], feature: Feature, *, rows: int) -> pa.ChunkedArray:
    values = given.get(feature.name)
    if values is None or pa.types.is_null(kind := plain_type(values.type)):
        return pa.chunked_array([pa.nulls(rows, feature.arrow_type)])
    refuse_long(values, feature.name)
    if not _fits(kind, feature.type):  # It is not known how much memory other values would take.
        raise InvalidObservations(
            f"expected {feature.type} values in column {feature.name!r}, got {values.type}; "
            "convert the column first",
            expected=feature.type,
            column=feature.name,
        )
    return nan_to_null(_cast(plain(values), feature))


def refuse_long(values: pa.ChunkedArray, name: str) -> None:
    """Raises InvalidObservations about texts that are small only as equal ones are stored once."""
    size = sum(text_bytes(chunk) for chunk in values.chunks)
    if size > TEXT_BYTES_MAX:
        raise InvalidObservations(
            f"expected at most {TEXT_BYTES_MAX:,} bytes of texts in column {name!r}, got {size:,}; "
            "send fewer rows at a time",
            column=name,
            bound=TEXT_BYTES_MAX,
        )


def text_bytes(values: pa.Array) -> int:
    """Bytes of the texts of all rows; 0 if no text is shared by rows."""
    return 0 if is_text(values.type) else int(_lengths(values).sum())


def _lengths(values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each text, before it is decoded; 0 for other values."""
    if isinstance(values, pa.ExtensionArray):
        return _lengths(values.storage)
    if isinstance(values, pa.DictionaryArray):
        lengths = np.append(_lengths(values.dictionary), np.int64(0))
        each: np.ndarray[Any, np.dtype[np.int64]] = lengths[
            values.indices.cast(pa.int64()).fill_null(-1).to_numpy()
        ]
        return each
    if isinstance(values, pa.RunEndEncodedArray):
        return _lengths(values.values)[run_of_rows(values)]
    if pa.types.is_string_view(values.type):  # The first four of the 16 bytes of each view.
        words = np.frombuffer(values.buffers()[1], "<i4").reshape(-1, 4)
        lengths = words[values.offset : values.offset + len(values), 0].astype(np.int64)
        return np.where(np.asarray(values.is_valid()), lengths, 0)
    if is_text(values.type):
        return np.asarray(pc.binary_length(values).fill_null(0), dtype=np.int64)
    return np.zeros(len(values), dtype=np.int64)


def _cast(values: pa.ChunkedArray, feature: Feature) -> pa.ChunkedArray:
    if values.type == feature.arrow_type:
        return values
    try:
        return cast(values, feature.arrow_type)
    except pa.ArrowInvalid as error:
        raise InvalidObservations(
            f"expected {feature.type} values in column {feature.name!r}: {error}",
            expected=feature.type,
            column=feature.name,
        ) from error


def nan_to_null(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The column with null for NaN; the same object without NaN."""
    if not pa.types.is_floating(values.type) or _is_all_numbers(values):
        return values
    nan = pc.is_nan(values)
    if not pc.any(nan).as_py():
        return values
    return pc.if_else(nan, pa.scalar(None, values.type), values)


def _is_all_numbers(values: pa.ChunkedArray | pa.Array) -> bool:
    """Whether certainly no row is null or NaN."""
    if values.null_count or values.type == pa.float16():
        return False
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return not any(np.isnan(chunk.to_numpy().min()) for chunk in chunks if len(chunk))


def _fits(given: pa.DataType, wanted: str) -> bool:
    if wanted in FLOATS:
        return _is_number(given)
    if wanted == "int":
        return bool(pa.types.is_integer(given) or pa.types.is_decimal(given))
    if wanted == "bool":
        return bool(pa.types.is_boolean(given))
    return is_text(given)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )
