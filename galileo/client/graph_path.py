"""Vertices of the metadata graph as texts: the beginning of a path label, without the dataset.

`9xjqb/2012-03-01T06:00:00Z/290.5` is a cell, a time bucket in it, and one temperature in that. In
another order of levels the values stand in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from galileo.errors import InputError
from galileo.labels import level_texts, level_value
from galileo.model.schema import Schema
from galileo.model.times import column_micros, iso_column
from galileo.query.operands import DATETIME, GEOHASH


def levels_of(schema: Schema) -> tuple[str, ...]:
    """The levels of the metadata graph from the root down."""
    return (GEOHASH, DATETIME, *(feature.name for feature in schema.indexed))


def parse_vertex(text: str, schema: Schema, *, order: Sequence[str]) -> tuple[Any, ...]:
    """The values of a vertex, from the root down; none for the empty text, which is the root.

    Raises:
        InputError: it is no vertex of a tree with these levels.
    """
    if not text:
        return ()
    parts = text.split("/")
    if len(parts) > len(order):
        raise InputError(
            f"expected a vertex of at most {len(order)} levels ({', '.join(order)}), got {text!r}",
            bound=len(order),
        )
    pairs = zip(parts, order, strict=False)
    return tuple(_value(part, level, schema) for part, level in pairs)


def _value(part: str, level: str, schema: Schema) -> Any:
    if level in (GEOHASH, DATETIME):
        return part
    feature = next((candidate for candidate in schema.indexed if candidate.name == level), None)
    if feature is None:
        raise InputError(
            f"expected levels of dataset {schema.name!r}, of {list(levels_of(schema))}, "
            f"got {level!r}",
            level=level,
        )
    try:
        return level_value(part, feature)
    except (ValueError, KeyError) as error:
        raise InputError(
            f"expected a value of type {feature.type} or '~' for level {level!r}, got {part!r}",
            level=level,
            expected=feature.type,
        ) from error


def value_texts(values: pa.Array, schema: Schema, *, level: str) -> pa.Array:
    """Values of a level as they stand in texts of vertices."""
    if level == GEOHASH:
        return values
    if level == DATETIME:
        return iso_column(column_micros(values))
    return level_texts(values, next(feature for feature in schema.indexed if feature.name == level))
