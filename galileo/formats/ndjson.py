"""JSON lines: one object with a value for each column in each line; or an array of such objects.

A number as time is milliseconds since 1970, as in GeoJSON.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.columns import other_columns
from galileo.formats.geojson import columns_of_json, json_reader, read_json
from galileo.formats.json_scan import SCAN_BYTES, is_array
from galileo.formats.mapping import Mapping
from galileo.formats.reader import NOWHERE, Reader


def is_json_array(path: Path) -> bool:
    """Whether the first character of a file, plain or gzip by its name, begins an array."""
    try:
        with pa.input_stream(str(path), compression="detect") as file:
            return is_array(file.read(SCAN_BYTES))
    except OSError:  # It is damaged, as the reader of any format will say.
        return False


def open_ndjson(path: Path, mapping: Mapping) -> Reader:
    """A reader of JSON lines or of an array, which are parsed as a whole.

    Raises:
        InputError: the file is too large, or has a line or an element that is no object, or with
            values of another type than before.
    """
    document = read_json(path, "JSON objects", is_array_allowed=True)
    if not document.column_names and not document.num_rows:
        return Reader(NOWHERE, (), 0, lambda columns: ())
    if not document.column_names:
        raise InputError(
            f"expected objects with a value for each column in {path}", expected="json_lines"
        )
    if {"type", "geometry", "properties"} <= {*document.column_names}:
        raise InputError(
            f"expected objects with a value for each column in {path}, got GeoJSON features; "
            """jq -s '{type: "FeatureCollection", features: flatten(1)}' FILE > FILE.geojson """
            "makes a collection of them",
            expected="json_lines",
        )
    others = other_columns(document.schema)  # Arrow's lists of nulls are damaged; none is read.
    names = [name for name in document.column_names if name not in others]
    table = columns_of_json(path, {name: document.column(name) for name in names})
    return json_reader(table, mapping, others)
