"""Rows of a table as JSON texts, column by column."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.geo import geoarrow, geometry_columns
from galileo.model.times import column_micros, iso_column

_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x20)} | {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
}


def json_lines(table: pa.Table, constants: str = "") -> pa.StringArray:
    """Each row as a JSON object, which begins with constant members such as `"a":1`.

    Geometries are GeoJSON.
    """
    parts: list[pa.Array | str] = []
    for number, (name, texts) in enumerate(
        zip(table.column_names, json_columns(table), strict=True)
    ):
        begin = "," if number else f"{{{constants}," if constants else "{"
        parts += [f"{begin}{json.dumps(name, ensure_ascii=False)}:", texts]
    return pc.binary_join_element_wise(*parts, "}", "")


def json_columns(table: pa.Table) -> Iterator[pa.Array]:
    """The values of each column as JSON; geometries are GeoJSON."""
    geometries = geoarrow.geometry_columns(table.schema)
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        yield _geojson(column) if name in geometries else json_values(column)


def _geojson(column: pa.Array) -> pa.Array:
    return geometry_columns.to_geojson(column).fill_null("null")


def joined_texts(begin: str, texts: pa.Array, end: str) -> bytes:
    """Texts with commas and line ends between them, after and before others."""
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), ",\n")
    return b"".join([begin.encode(), joined[0].as_buffer(), end.encode()])


def json_values(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Each value as JSON; times as ISO 8601, what is missing or not finite as null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_string(column.type):
        texts = _quoted(column)
    elif pa.types.is_timestamp(column.type):
        there = column.fill_null(pa.scalar(0, column.type)) if column.null_count else column
        texts = pc.binary_join_element_wise('"', iso_column(column_micros(there)), '"', "")
        texts = pc.if_else(column.is_valid(), texts, None) if column.null_count else texts
    elif pa.types.is_floating(column.type):
        texts = column.cast(pa.string())
        if not np.isfinite(column.to_numpy(zero_copy_only=False)).all():
            texts = pc.if_else(pc.is_finite(column), texts, None)
    elif pa.types.is_list(column.type):
        texts = _lists(column)
    elif pa.types.is_struct(column.type):
        members = pa.Table.from_arrays(column.flatten(), schema=pa.schema(list(column.type)))
        texts = pc.if_else(column.is_valid(), json_lines(members), None)
    else:
        texts = column.cast(pa.string())
    return texts.fill_null("null") if texts.null_count else texts


def _lists(column: pa.ListArray) -> pa.Array:
    lengths = pc.list_value_length(column)
    ends = np.cumsum(np.asarray(lengths.fill_null(0)), dtype=np.int32)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), ends]))
    items = pa.ListArray.from_arrays(offsets, json_values(column.flatten()))
    texts = pc.binary_join_element_wise("[", pc.binary_join(items, ","), "]", "")
    return pc.if_else(lengths.is_valid(), texts, None) if column.null_count else texts


def _quoted(texts: pa.Array) -> pa.Array:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"')):
        texts = pc.replace_substring(texts, plain, escaped)
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        for code, escaped in _CONTROLS.items():
            texts = pc.replace_substring(texts, chr(code), escaped)
    return pc.binary_join_element_wise('"', texts, '"', "")
