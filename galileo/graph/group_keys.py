"""The keys of groups as columns of integers, and as Arrow columns.

The order of the integers is that of the values, null last; texts are their codes in a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.geo import geohash
from galileo.graph.columns import StringDictionary
from galileo.model.grouping import CellKey, FeatureKey, Key, WindowKey
from galileo.model.schema import ARROW_TYPES, Schema
from galileo.model.times import times_from_micros
from galileo.query.columns import (
    NULL_CODE,
    FeatureColumn,
    FloatColumn,
    IntColumn,
    TextColumn,
    from_arrow,
)

Ints: TypeAlias = npt.NDArray[np.int64]

_LAST = np.iinfo(np.int64).max
_MAGNITUDE = np.int64(_LAST)


def key_columns(column: FeatureColumn) -> tuple[Ints, ...]:
    """Integers in the order of the values, null last; those of texts in the order of codes."""
    if isinstance(column, FloatColumn):
        codes = _ordered_bits((column.numbers + 0.0).view(np.int64))  # There is one zero.
        return (np.where(column.valid, codes, _LAST),)
    if isinstance(column, IntColumn):
        return (~column.valid).astype(np.int64), column.values
    small = column.codes if isinstance(column, TextColumn) else column.values
    codes = small.astype(np.int64)
    return (np.where(codes >= 0, codes, _LAST),)


def _ordered_bits(bits: Ints) -> Ints:
    """The bits of doubles as integers of the same order; its own inverse."""
    return bits ^ ((bits >> 63) & _MAGNITUDE)


def key_width(key: Key, schema: Schema) -> int:
    """How many columns a key has."""
    return 2 if isinstance(key, FeatureKey) and type_of(key, schema) == "int" else 1


def type_of(key: FeatureKey, schema: Schema) -> str:
    feature = schema.feature(key.name)
    assert feature is not None, "the grouping was not checked"
    return feature.type


def key_array(
    key: Key, columns: Sequence[Ints], schema: Schema, texts: StringDictionary
) -> pa.Array:
    """The Arrow column of a key."""
    codes = columns[0]
    if isinstance(key, CellKey):
        cells = codes.astype(np.uint64)
        return pa.array(cells) if key.bits % 5 else geohash.to_text(cells, key.bits // 5)
    if isinstance(key, WindowKey):
        return times_from_micros(key.begins(codes))
    missing = codes == _LAST
    match type_of(key, schema):
        case "float" | "float32" as kind:
            doubles = pa.array(_ordered_bits(codes).view(np.float64), mask=missing)
            return doubles.cast(ARROW_TYPES[kind])
        case "int":
            return pa.array(columns[1], mask=codes == 1)
        case "bool":
            return pa.array(codes == 1, mask=missing)
        case _:
            coded = np.where(missing, NULL_CODE, codes).astype(np.int32)
            return texts.bound(TextColumn(coded, pa.array([], pa.string()))).to_arrow()


def sent_array(
    key: Key, columns: Sequence[Ints], schema: Schema, texts: StringDictionary
) -> pa.Array:
    """The Arrow column of a key between nodes: cells and windows as their numbers."""
    if isinstance(key, FeatureKey):
        return key_array(key, columns, schema, texts)
    return pa.array(columns[0])


def columns_from_array(key: Key, array: pa.Array, texts: StringDictionary) -> tuple[Ints, ...]:
    """The inverse of `sent_array`."""
    if not isinstance(key, FeatureKey):
        return (array.to_numpy(),)
    column = from_arrow(array)
    return key_columns(texts.encode(column) if isinstance(column, TextColumn) else column)
