"""GeoJSON feature collections of points (RFC 7946): properties are columns.

A number as `time` is milliseconds since 1970, as in JavaScript and the USGS feeds. A third
coordinate becomes the column `elevation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from galileo.errors import InputError, InvalidObservations
from galileo.formats.columns import (
    ColumnReader,
    check_width,
    coordinates_of,
    is_identifier,
    typed_variables,
)
from galileo.formats.mapping import Mapping
from galileo.formats.variables import VariableInfo

FILE_BYTES_MAX = 1 << 30
NESTING_MAX = 64
"""Nested arrays and objects; deep nesting overflows the stack of Arrow's parser."""
SCAN_BYTES = 16 << 20
ELEVATION = "elevation"

_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]], _STEPS[[ord("]"), ord("}")]] = 1, -1


def open_geojson(path: Path, mapping: Mapping) -> ColumnReader:
    """A reader of a collection, which is parsed as a whole.

    Raises:
        InputError: the file is too large, not a collection, or has geometries other than points.
    """
    table = _flat(path, _features(path))
    names = table.column_names
    where = coordinates_of(mapping, names)
    if where.time in names and pa.types.is_integer(table.column(where.time).type):
        column = pc.cast(table.column(where.time), pa.timestamp("ms", tz="UTC"))
        table = table.set_column(names.index(where.time), where.time, column)

    def scan(columns: Sequence[str]) -> list[pa.Table]:
        return [table.select(list(columns))]

    return ColumnReader(where, _infos(table), table.num_rows, scan, mapping)


def _infos(table: pa.Table) -> tuple[VariableInfo, ...]:
    return tuple(
        VariableInfo(
            info.name,
            type=info.type,
            description=info.description,
            default=table.column(info.name).null_count < table.num_rows,
            identifier=is_identifier(table.column(info.name)),
        )
        for info in typed_variables(table.schema)
    )


def _features(path: Path) -> pa.StructArray:
    with pa.input_stream(str(path), compression="detect") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise InputError(
            f"expected GeoJSON of at most {FILE_BYTES_MAX} bytes, got more in {path}; "
            "split the file, or convert it to Parquet"
        )
    try:
        data.decode()  # Arrow accepts any bytes as texts
        _check_nesting(path, data)
        document = _parse(data)
        schema = pa.schema(_times_as_texts(field) for field in document.schema)
        if schema != document.schema:
            document = _parse(data, schema=schema)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            f"expected a GeoJSON collection of points with properties of one type each in "
            f"{path}: {error}",
            expected="properties_of_one_type",
        ) from error
    if "features" not in document.column_names or document.num_rows != 1:
        raise InputError(
            f"expected one GeoJSON FeatureCollection in {path}", expected="feature_collection"
        )
    try:
        features = document.column("features").combine_chunks().flatten()
    except pa.ArrowException as error:  # Arrow cannot concatenate lists of nulls
        raise InputError(
            f"expected features with places in {path}: {error}", expected="places"
        ) from error
    if not pa.types.is_struct(features.type):
        raise InputError(
            f"expected features with properties in {path}, got {features.type}",
            expected="properties",
        )
    return features


def _check_nesting(path: Path, data: bytes, *, scan_bytes: int = SCAN_BYTES) -> None:
    """Raises InputError for deep nesting, without parsing."""
    # Without escapes, a quotation mark begins or ends a text.
    plain = np.frombuffer(data.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    depth, is_text = 0, False
    for start in range(0, len(plain), scan_bytes):
        part = plain[start : start + scan_bytes]
        in_text = np.logical_xor.accumulate(part == ord('"')) ^ is_text
        steps = _STEPS[part]
        depths = depth + np.cumsum(steps[(steps != 0) & ~in_text], dtype=np.int64)
        if len(depths) and depths.max() > NESTING_MAX:
            raise InputError(
                f"expected at most {NESTING_MAX} nested arrays and objects in "
                f"{path}, got more; GeoJSON of points needs 5",
                expected="nesting",
                bound=NESTING_MAX,
            )
        depth, is_text = int(depths[-1]) if len(depths) else depth, bool(in_text[-1])


def _refuse_overflow(path: Path, columns: dict[str, pa.Array]) -> None:
    """Raises InvalidObservations for infinities, which are numbers beyond 64-bit floats in JSON."""
    for name, column in columns.items():
        if pa.types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
            row = pc.is_inf(column).index(pa.scalar(True)).as_py()
            raise InvalidObservations(
                f"expected numbers that 64-bit floats can hold in {name!r} of {path}, got a larger "
                f"one in feature {row}; correct the file",
                row=row,
                column=name,
            )


def _parse(data: bytes, *, schema: pa.Schema | None = None) -> pa.Table:
    # To Arrow one object is one row, so the whole file must be one block.
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, newlines_in_values=True),
    )


def _times_as_texts(field: pa.Field) -> pa.Field:
    """A field with texts in place of timestamps, which Arrow parses differently."""
    kind = field.type
    if pa.types.is_timestamp(kind):
        kind = pa.string()
    elif pa.types.is_struct(kind):
        kind = pa.struct([_times_as_texts(member) for member in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_times_as_texts(kind.value_field))
    return field.with_type(kind)


def _flat(path: Path, features: pa.StructArray) -> pa.Table:
    members = _members(features)
    geometry = members.get("geometry")
    if geometry is None or not pa.types.is_struct(geometry.type):
        raise InputError(f"expected features with a geometry in {path}", expected="geometry")
    columns = _members(members["properties"]) if "properties" in members else {}
    columns = {name: column for name, column in columns.items() if name not in ("", None)}
    if "id" in members:
        columns.setdefault("id", members["id"])
    columns |= _position(path, geometry)
    check_width(path, len(columns))
    _refuse_overflow(path, columns)
    return pa.table(columns)


def _members(array: pa.StructArray) -> dict[str, pa.Array]:
    """The fields of a struct, null where the struct itself is null."""
    if not pa.types.is_struct(array.type):
        return {}
    names = [field.name for field in array.type]
    return dict(zip(names, array.flatten(), strict=True))


def _position(path: Path, geometry: pa.StructArray) -> dict[str, pa.Array]:
    members = _members(geometry)
    types = members.get("type")
    if types is None or not pa.types.is_string(types.type):
        raise InputError(
            f"expected points in {path}, got geometries without a type that is a text",
            expected="geometry_type",
        )
    kinds = types.drop_null().unique().to_pylist()
    numbers = members.get("coordinates")
    if kinds != ["Point"] or numbers is None:
        raise InputError(
            f"expected points in {path}, got geometries of type {kinds}", expected="points"
        )
    if not pa.types.is_list(numbers.type) or not _is_number(numbers.type.value_type):
        raise InputError(
            f"expected longitude and latitude in every point of {path}", expected="coordinates"
        )
    lengths = pc.list_value_length(numbers)
    if (pc.min(lengths).as_py() or 0) < 2:
        raise InputError(
            f"expected longitude and latitude in every point of {path}", expected="coordinates"
        )
    columns = {"longitude": _nth(numbers, 0), "latitude": _nth(numbers, 1)}
    return columns | ({ELEVATION: _nth(numbers, 2)} if pc.max(lengths).as_py() > 2 else {})


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _nth(numbers: pa.ListArray, position: int) -> pa.Array:
    """One coordinate of every point, null where a point has fewer."""
    slices = pc.list_slice(numbers, position, position + 1, return_fixed_size_list=True)
    return pc.list_element(slices, 0)
