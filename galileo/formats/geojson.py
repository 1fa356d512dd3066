"""GeoJSON feature collections of points, or a feature (RFC 7946): properties are columns.

A number as `time` is milliseconds since 1970, as in JavaScript and the USGS feeds. A third
coordinate becomes the column `elevation`.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from galileo.errors import InputError, InvalidObservations
from galileo.formats.columns import check_width, is_identifier, typed_reader
from galileo.formats.json_scan import SCAN_BYTES, check_json, lines_of_array
from galileo.formats.mapping import Mapping
from galileo.formats.memory_file import is_memory_file
from galileo.formats.reader import NOWHERE, Reader
from galileo.model.schema import COORDINATES

FILE_BYTES_MAX = 1 << 30
ELEVATION = "elevation"

_CRS84 = r"(?:urn:ogc:def:crs:|https?://www\.opengis\.net/def/crs/|\[)?OGC[:/][\d.]*[:/]?CRS84h?\]?"
_CRS_MEMBERS = {
    "crs": re.compile(rf"(?i)name|{_CRS84}|(?:urn:ogc:def:crs:)?EPSG:[\d.]*:?(?:4326|4979)"),
    "coordRefSys": re.compile(rf"(?i){_CRS84}"),
}
"""Members that name a reference system, of GeoJSON before RFC 7946 and of JSON-FG, and what may be
in them. Positions are longitude and latitude in a `crs`, whatever EPSG says of the order."""


def open_geojson(path: Path, mapping: Mapping) -> Reader:
    """A reader of a collection, which is parsed as a whole.

    Raises:
        InputError: the file is too large, not a collection, or has geometries other than points.
    """
    features = _features(path)
    if not len(features):
        return Reader(NOWHERE, (), 0, lambda columns: ())
    return json_reader(_flat(path, features), mapping)


def json_reader(table: pa.Table, mapping: Mapping, others: tuple[str, ...] = ()) -> Reader:
    """A reader of a table that was parsed, in which times that are numbers are milliseconds.

    Args:
        table: the columns that can be read.
        mapping: of the file.
        others: names of columns that are not in the table.
    """
    reader = typed_reader(
        table.schema, lambda names: [table.select(list(names))], mapping, rows=table.num_rows
    )
    where = reader.coordinates
    if where.time in table.column_names and _is_number(table.column(where.time).type):
        where = replace(where, time=f"epoch_ms({where.time})")
    infos = tuple(
        replace(info, identifier=is_identifier(table.column(info.name))) for info in reader.infos
    )
    return replace(reader, coordinates=where, infos=infos, others=(*reader.others, *others))


def read_json(path: Path, title: str, *, is_array_allowed: bool = False) -> pa.Table:
    """The objects of a file as rows, with times as texts.

    Args:
        path: of the file, plain or gzip by its name.
        title: of its format, for messages.
        is_array_allowed: whether the objects may be those of an array.

    Returns:
        The table; it has no columns if the file is empty or blank.

    Raises:
        InputError: the file is too large or no JSON, or values of a member have several types.
    """
    data = _data(path, title)
    try:
        _check_text(data)
        if len(data) <= SCAN_BYTES and not data.to_pybytes().strip():
            return pa.table({})
        data = lines_of_array(path, data) if is_array_allowed else data
        check_json(path, data)
        document = _parse(data)
        schema = pa.schema(_times_as_texts(field) for field in document.schema)
        return document if schema == document.schema else _parse(data, schema=schema)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            f"expected {title} with values of one type for each name in {path}: {error}",
            expected="properties_of_one_type",
        ) from error


def _data(path: Path, title: str) -> pa.Buffer:
    """The bytes of a file; those of a file in memory are not copied."""
    if is_memory_file(path) and path.stat().st_size:
        with pa.memory_map(str(path)) as mapped:
            data = mapped.read_buffer()
    else:
        with pa.input_stream(str(path), compression="detect") as file:
            data = pa.py_buffer(file.read(FILE_BYTES_MAX + 1))
    if len(data) > FILE_BYTES_MAX:
        raise InputError(
            f"expected {title} of at most {FILE_BYTES_MAX} bytes, got more in {path}; "
            "split the file, or convert it to Parquet"
        )
    return data


def _check_text(data: pa.Buffer) -> None:
    """Raises UnicodeDecodeError for other bytes than UTF-8, which Arrow takes as texts."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), SCAN_BYTES):
        decoder.decode(memoryview(data)[start : start + SCAN_BYTES])
    decoder.decode(b"", final=True)


def _features(path: Path) -> pa.StructArray:
    document = read_json(path, "a GeoJSON collection")
    names = document.column_names
    named = [name for name in _CRS_MEMBERS if name in names]
    _check_crs(path, {name: document.column(name).combine_chunks() for name in named})
    if document.num_rows == 1 and "features" not in names and "geometry" in names:
        return document.to_struct_array().combine_chunks()
    collection = document.column("features") if "features" in names else None
    if collection is None or not pa.types.is_list(collection.type) or document.num_rows != 1:
        raise InputError(
            f"expected one GeoJSON FeatureCollection, or one Feature, in {path}",
            expected="feature_collection",
        )
    try:
        features = collection.combine_chunks().flatten()
    except pa.ArrowException as error:  # Arrow cannot concatenate lists of nulls
        raise InputError(
            f"expected features with places in {path}: {error}", expected="places"
        ) from error
    if len(features) and not pa.types.is_struct(features.type):
        raise InputError(
            f"expected features with properties in {path}, got {features.type}",
            expected="properties",
        )
    return features


def _parse(data: pa.Buffer, *, schema: pa.Schema | None = None) -> pa.Table:
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
    if geometry is None or not (
        pa.types.is_struct(geometry.type) or pa.types.is_null(geometry.type)
    ):
        raise InputError(f"expected features with a geometry in {path}", expected="geometry")
    _check_crs(path, members)
    columns = _members(members["properties"]) if "properties" in members else {}
    columns = {name: column for name, column in columns.items() if name not in ("", None)}
    if "id" in members:
        columns.setdefault("id", members["id"])
    return columns_of_json(path, columns | _position(path, geometry))


def _check_crs(path: Path, members: dict[str, pa.Array]) -> None:
    """Raises InputError if members name another reference system than longitude and latitude."""
    for name, accepted in _CRS_MEMBERS.items():
        named = _values(members[name]) if name in members else set()
        others = sorted(text for text in named if not accepted.fullmatch(text))
        if others:
            raise InputError(
                f"expected longitudes and latitudes in degrees in {path}, got {name!r} with "
                f"{', '.join(others):.100}; convert the file, such as by ogr2ogr -t_srs OGC:CRS84 "
                "-lco RFC7946=YES",
                expected="crs",
            )


def _values(array: pa.Array) -> set[str]:
    """The texts and numbers within values of any type."""
    if pa.types.is_struct(array.type):
        return set().union(*map(_values, array.flatten()))
    if pa.types.is_list(array.type):
        return _values(array.flatten())
    return set(map(str, array.drop_null().unique().to_pylist()))


def columns_of_json(path: Path, columns: dict[str, pa.Array]) -> pa.Table:
    """The table of columns, each with a name.

    Raises:
        InputError: there are too many, or a number is too large.
    """
    check_width(path, len(columns))
    for name, column in columns.items():
        # In JSON, infinities are numbers beyond 64-bit floats.
        row = pc.is_inf(column).index(True).as_py() if pa.types.is_floating(column.type) else -1
        if row >= 0:
            raise InvalidObservations(
                f"expected numbers that 64-bit floats can hold in {name!r} of {path}, got a larger "
                f"one in feature {row}; correct the file",
                row=row,
                column=name,
            )
    return pa.table(columns)


def _members(array: pa.StructArray) -> dict[str, pa.Array]:
    """The fields of a struct, null where the struct itself is null."""
    if not pa.types.is_struct(array.type):
        return {}
    names = [field.name for field in array.type]
    return dict(zip(names, array.flatten(), strict=True))


def _position(path: Path, geometry: pa.StructArray) -> dict[str, pa.Array]:
    if pa.types.is_null(geometry.type):
        return dict.fromkeys(COORDINATES[1::-1], geometry.cast(pa.float64()))
    members = _members(geometry)
    _check_crs(path, members)
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
