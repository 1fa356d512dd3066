"""Finds the row of a mistake in a JSON file that Arrow refuses as a whole.

Arrow's parsers are fast and do not say where a mistake is. The functions here are slow and run only
after an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from galileo.errors import InvalidObservations
from galileo.formats.ndjson import is_json_array
from galileo.model.schema import FLOATS, Schema

SHOWN_MAX = 80
"""Characters of a value in a message."""
ROW_CHARACTERS_MAX = 1 << 20
"""Of a line or a feature, whose values in Python take many times as much memory. Messages about a
body name no row from the first larger one on. Also of the header of a CSV file."""
_CUT_MAX = 8
"""Characters before the end of a text at which a value that is cut off there is wrong."""
_FEATURES = re.compile(r'"features"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(FLOATS, (int, float)),
    "int": (int, float),
    "text": (str,),
    "bool": (bool,),
}


def first_mistake(path: Path, format: str, schema: Schema) -> InvalidObservations | None:
    """The error of the first row that does not fit a schema; None if no row is wrong alone.

    Args:
        path: of a file in a format that `open_source` refused.
        format: of the file; others than texts have no rows.
        schema: of the dataset for the rows.
    """
    if format not in ("geojson", "ndjson"):
        return None
    is_geojson, row = format == "geojson", 0
    check = _feature_mistake if is_geojson else _values_mistake
    try:
        for row, value in enumerate(_features(path) if is_geojson else _objects(path)):
            if found := check(value, schema):
                column, words = found
                place = f" in column {column!r}" if column else ""
                details = {"column": column} if column else {}
                return InvalidObservations(f"{words}{place} of row {row}", row=row, **details)
            row += 1
    except (ValueError, RecursionError) as error:
        return InvalidObservations(f"expected JSON: {error} of row {row}", row=row)
    return None


def _features(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8-sig")
    start = _FEATURES.search(text)
    if start is not None:
        yield from _elements(text, start.end())
    elif len(text) <= ROW_CHARACTERS_MAX:
        yield _DECODER.decode(text)


def _objects(path: Path) -> Iterator[Any]:
    if not is_json_array(path):
        return _lines(path)
    text = path.read_text(encoding="utf-8-sig")
    return _elements(text, text.index("[") + 1)


def _elements(text: str, start: int) -> Iterator[Any]:
    """The values of an array whose first one begins at a place."""
    place, begin, window = _place(text, start), 0, ""
    while text[place : place + 1] != "]":
        try:
            value, end = _DECODER.raw_decode(window, place - begin)
        except json.JSONDecodeError as error:
            if begin < place:  # It may be cut off, or wrong.
                begin, window = place, text[place : place + ROW_CHARACTERS_MAX]
                continue
            is_at_end = error.pos > len(window) - _CUT_MAX or error.msg.startswith("Unterminated")
            if len(window) == ROW_CHARACTERS_MAX and is_at_end:
                return
            raise
        yield value
        place = _place(text, begin + end)


def _place(text: str, place: int) -> int:
    """Where the next value begins."""
    between = _BETWEEN.match(text, place)
    assert between is not None, "it matches nothing, too"
    return between.end()


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        for line in lines:
            if len(line) > ROW_CHARACTERS_MAX:
                return
            if line.strip():
                yield _DECODER.decode(line.strip())


def _feature_mistake(value: Any, schema: Schema) -> tuple[str, str] | None:
    if not isinstance(value, dict) or value.get("type") != "Feature":
        return "", f"expected a GeoJSON Feature, got {_shown(value)}"
    geometry = value.get("geometry")
    place = geometry.get("coordinates") if isinstance(geometry, dict) else None
    is_point = isinstance(geometry, dict) and geometry.get("type") == "Point"
    if not is_point or not isinstance(place, list) or not 2 <= len(place) <= 3:
        return "geometry", f"expected a Point with longitude and latitude, got {_shown(geometry)}"
    if not all(_is_of(number, "float") for number in place):
        return "geometry", f"expected numbers as longitude and latitude, got {_shown(place)}"
    properties = value.get("properties")
    return None if properties is None else _values_mistake(properties, schema)


def _values_mistake(values: Any, schema: Schema) -> tuple[str, str] | None:
    if not isinstance(values, dict):
        return "", f"expected an object with a value for each column, got {_shown(values)}"
    for name, value in values.items():
        feature = schema.feature(name)
        if feature is not None and value is not None and not _is_of(value, feature.type):
            return name, f"expected a value of type {feature.type}, got {_shown(value)}"
        if isinstance(value, dict | list):
            return name, f"expected a single value, got {_shown(value)}"
    return None


def _is_of(value: Any, kind: str) -> bool:
    is_bool = isinstance(value, bool)
    return isinstance(value, _KINDS[kind]) and is_bool == (kind == "bool")


def _shown(value: Any) -> str:
    return json.dumps(value)[:SHOWN_MAX]
