"""JSON lines: one object with a value for each column in each line.

A number as time is milliseconds since 1970, as in GeoJSON.
"""

from __future__ import annotations

from pathlib import Path

from galileo.errors import InputError
from galileo.formats.columns import other_columns
from galileo.formats.geojson import columns_of_json, json_reader, read_json
from galileo.formats.mapping import Mapping
from galileo.formats.reader import NOWHERE, Reader


def open_ndjson(path: Path, mapping: Mapping) -> Reader:
    """A reader of JSON lines, which are parsed as a whole.

    Raises:
        InputError: the file is too large, or has a line that is no object, or with values of
            another type than before.
    """
    document = read_json(path, "JSON lines")
    if not document.column_names and not document.num_rows:
        return Reader(NOWHERE, (), 0, lambda columns: ())
    if not document.column_names:
        raise InputError(f"expected an object in each line of {path}", expected="json_lines")
    if {"type", "geometry", "properties"} <= {*document.column_names}:
        raise InputError(
            f"expected an object with a value for each column in each line of {path}, got GeoJSON "
            """features; jq -s '{type: "FeatureCollection", features: .}' FILE > FILE.geojson """
            "makes a collection of them",
            expected="json_lines",
        )
    others = other_columns(document.schema)  # Arrow's lists of nulls are damaged; none is read.
    names = [name for name in document.column_names if name not in others]
    table = columns_of_json(path, {name: document.column(name) for name in names})
    return json_reader(table, mapping, others)
