"""Drill-down: the vertices of the logical tree below one, counted from the same columns.

The tree is only a way to look at the columns, so its levels may be asked for in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.graph.columns import Paths, Texts, dtypes
from galileo.graph.runs import Run
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query.columns import FeatureColumn, IntColumn, Mask, TextColumn
from galileo.query.operands import DATETIME, GEOHASH


def default_order(schema: Schema) -> tuple[str, ...]:
    """Level 1 is the geohash, level 2 the time, then come the features (paper, III.B)."""
    return (GEOHASH, DATETIME, *(feature.name for feature in schema.indexed))


def children(
    schema: Schema,
    parts: Sequence[tuple[Run, Mask | None]],
    *,
    prefix: Sequence[Any],
    order: Sequence[str],
    texts: Texts,
) -> pa.Table:
    """The values of the level below a vertex, with what hangs under each.

    Args:
        schema: of the dataset.
        parts: runs and head of one snapshot, each with which of its commits count; None: all.
        prefix: values from the root to the vertex: geohash text at the schema's precision, start of
            the time bucket (an instant), feature values, None for a missing one. Empty: root.
        order: levels of the tree from the root down: "geohash", "datetime" and indexed features,
            all or some of them, each once.
        texts: of the graph.

    Returns:
        Columns `value` (text, time or the feature's type), `paths` and `observations`, one row
        per child, ascending with null last.

    Raises:
        InputError: these are no levels, the prefix is longer than the tree is deep, or a value
            does not fit its level.
    """
    _check(schema, prefix, order)
    wanted = _Vertex(schema, dict(zip(order, prefix, strict=False)), texts)
    level = order[len(prefix)]
    kind = wanted.values_of(_empty(schema), level).type
    chunks = [wanted.below(run, held) for run, held in parts]
    table = pa.concat_tables(
        [
            pa.table({"value": pa.array([], kind), "rows": pa.array([], pa.int32())}),
            *(pa.table({"value": wanted.values_of(p, level), "rows": p.rows}) for p in chunks),
        ]
    )
    counted = table.group_by("value").aggregate([([], "count_all"), ("rows", "sum")])
    ordered = counted.sort_by("value")
    return pa.table(
        {
            "value": wanted.shown(ordered.column("value").combine_chunks(), level),
            "paths": ordered.column("count_all"),
            "observations": ordered.column("rows_sum"),
        }
    )


def _check(schema: Schema, prefix: Sequence[Any], order: Sequence[str]) -> None:
    known = default_order(schema)
    if not order or len(set(order)) < len(order) or not set(order) <= set(known):
        raise InputError(
            f"expected levels of dataset {schema.name!r}, each once, of {list(known)}, "
            f"got {list(order)}"
        )
    if len(prefix) >= len(order):
        raise InputError(
            f"expected at most {len(order) - 1} values above a level of dataset {schema.name!r}, "
            f"got {len(prefix)}"
        )


class _Vertex:
    """One vertex, as the values of the levels on the way to it."""

    def __init__(self, schema: Schema, above: dict[str, Any], texts: Texts) -> None:
        self._schema = schema
        self._texts = texts
        self._cell = _cell(schema, above[GEOHASH]) if GEOHASH in above else None
        self._bucket = micros(above[DATETIME]) if DATETIME in above else None
        named = [feature for feature in schema.indexed if feature.name in above]
        self._features = [(feature, _value(feature, above[feature.name])) for feature in named]

    def below(self, run: Run, held: Mask | None) -> Paths:
        """The paths of a run that pass through the vertex."""
        paths = run.paths
        if self._cell is not None and run.zone_map is not None:
            cells = np.array([self._cell, self._cell + 1], dtype=np.uint64)
            start, stop = np.searchsorted(paths.columns.cell, cells)
            paths = paths.take(slice(int(start), int(stop)))
        masks = self._masks(paths)
        if held is not None:
            masks.append(held.take(paths.commit))
        return paths.take(np.logical_and.reduce(masks)) if masks else paths

    def _masks(self, paths: Paths) -> list[Mask]:
        masks: list[Mask] = []
        if self._cell is not None:
            masks.append(paths.columns.cell == np.uint64(self._cell))
        if self._bucket is not None:
            masks.append(paths.columns.bucket == self._bucket)
        for feature, value in self._features:
            masks.append(self._equal(paths.columns.features[feature.name], value))
        return masks

    def values_of(self, paths: Paths, level: str) -> pa.Array:
        """The values of a level, one per path; cells as numbers."""
        if level == GEOHASH:
            return pa.array(paths.columns.cell)
        if level == DATETIME:
            return times_from_micros(paths.columns.bucket)
        column = paths.columns.features[level]
        bound = self._texts.bound(column) if isinstance(column, TextColumn) else column
        return bound.to_arrow()

    def shown(self, values: pa.Array, level: str) -> pa.Array:
        if level != GEOHASH:
            return values
        return geohash.to_text(values.to_numpy(), self._schema.geohash_precision)

    def _equal(self, column: FeatureColumn, value: Any) -> Mask:
        if value is None:
            return ~column.valid
        if isinstance(column, TextColumn):
            same: Mask = column.codes == self._texts.code(value)
            return same
        equal: Mask = column.values == value
        return equal & column.valid if isinstance(column, IntColumn) else equal


def _cell(schema: Schema, text: Any) -> int:
    if not isinstance(text, str) or len(text) != schema.geohash_precision:
        raise InputError(
            f"expected a geohash of {schema.geohash_precision} characters for level 'geohash' of "
            f"dataset {schema.name!r}, got {text!r}"
        )
    return geohash.cell_of_text(text)


def _value(feature: Feature, value: Any) -> Any:
    kinds: dict[str, type | tuple[type, ...]] = {
        "float": (float, int, np.floating),
        "int": (int, np.integer),
        "text": str,
        "bool": (bool, np.bool_),
    }
    if value is not None and not isinstance(value, kinds[feature.type]):
        raise InputError(
            f"expected a value of type {feature.type} or None for level {feature.name!r}, "
            f"got {value!r}"
        )
    return value


def _empty(schema: Schema) -> Paths:
    from_nothing = [np.empty(0, dtype) for dtype in dtypes(schema)]
    return Paths.of_arrays(schema, from_nothing)
