"""Rows of tables as JSON, nested ones."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import shapely

from galileo.client.json_lines import json_lines, json_values
from galileo.geo import geoarrow
from galileo.model.times import TIME_TYPE

MEMBERS = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("at", TIME_TYPE),
        pa.field("metres", pa.float64()),
        pa.field("tags", pa.list_(pa.int32())),
        pa.field("place", pa.binary(), metadata=geoarrow.FIELD_METADATA),
    ]
)
PLACE = shapely.to_wkb(shapely.Point(1, 2))
STRUCTS: list[Any] = [
    {"name": 'a"b', "at": 0, "metres": 1.5, "tags": [1, 2], "place": PLACE},
    None,
    {"name": None, "at": None, "metres": float("inf"), "tags": [], "place": None},
]
JSON: list[Any] = [
    {
        "name": 'a"b',
        "at": "1970-01-01T00:00:00Z",
        "metres": 1.5,
        "tags": [1, 2],
        "place": {"type": "Point", "coordinates": [1.0, 2.0]},
    },
    None,
    {"name": None, "at": None, "metres": None, "tags": [], "place": None},
]


@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 3), slice(2, 2)])
def test_structs_are_json_objects(part: slice) -> None:
    column = pa.array(STRUCTS, MEMBERS)[part]
    assert [json.loads(text) for text in json_values(column).to_pylist()] == JSON[part]


def test_lists_of_structs_are_arrays_of_objects() -> None:
    lists = pa.array([STRUCTS, None, [], STRUCTS[2:]], pa.list_(MEMBERS))
    table = pa.table({"near": lists.slice(1), "number": [1, 2, 3]})
    assert [json.loads(text) for text in json_lines(table).to_pylist()] == [
        {"near": None, "number": 1},
        {"near": [], "number": 2},
        {"near": JSON[2:], "number": 3},
    ]
