"""Drill-down: the vertices of the logical tree below one, counted from the same columns."""

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


def children(
    schema: Schema, parts: Sequence[Run], *, prefix: Sequence[Any], texts: Texts
) -> pa.Table:
    """The values of the level below a vertex, with what hangs under each.

    Level 1 is the geohash, level 2 the time, then come the indexed features in schema order
    (paper, III.B).

    Args:
        schema: of the dataset.
        parts: runs and head of one snapshot.
        prefix: values from the root to the vertex: geohash text at the schema's precision, start of
            the time bucket (an instant), feature values, None for a missing one. Empty: root.
        texts: of the graph.

    Returns:
        Columns `value` (text, time or the feature's type), `paths` and `observations`, one row
        per child, ascending with null last.

    Raises:
        InputError: the prefix is longer than the tree is deep, or a value does not fit its level.
    """
    depth = 1 + len(schema.indexed)
    if len(prefix) > depth:
        raise InputError(
            f"expected at most {depth} values above a level of dataset {schema.name!r}, "
            f"got {len(prefix)}"
        )
    wanted = _Vertex(schema, prefix, texts)
    kind = wanted.values_of(_empty(schema)).type
    chunks = [wanted.below(run) for run in parts]
    table = pa.concat_tables(
        [
            pa.table({"value": pa.array([], kind), "rows": pa.array([], pa.int32())}),
            *(pa.table({"value": wanted.values_of(p), "rows": p.rows}) for p in chunks),
        ]
    )
    counted = table.group_by("value").aggregate([([], "count_all"), ("rows", "sum")])
    ordered = counted.sort_by("value")
    return pa.table(
        {
            "value": wanted.shown(ordered.column("value").combine_chunks()),
            "paths": ordered.column("count_all"),
            "observations": ordered.column("rows_sum"),
        }
    )


class _Vertex:
    """One vertex, as the values on the way to it."""

    def __init__(self, schema: Schema, prefix: Sequence[Any], texts: Texts) -> None:
        self._schema = schema
        self._texts = texts
        self._level = len(prefix)
        self._cell = _cell(schema, prefix[0]) if prefix else None
        self._bucket = micros(prefix[1]) if len(prefix) > 1 else None
        above = zip(schema.indexed, prefix[2:], strict=False)
        self._features = [(feature, _value(feature, value)) for feature, value in above]

    def below(self, run: Run) -> Paths:
        """The paths of a run that pass through the vertex."""
        paths = run.paths
        if self._cell is None:
            return paths
        if run.zone_map is not None:
            cells = np.array([self._cell, self._cell + 1], dtype=np.uint64)
            start, stop = np.searchsorted(paths.columns.cell, cells)
            paths = paths.take(slice(int(start), int(stop)))
        mask: Mask = paths.columns.cell == np.uint64(self._cell)
        if self._bucket is not None:
            mask = mask & (paths.columns.bucket == self._bucket)
        for feature, value in self._features:
            mask = mask & self._equal(paths.columns.features[feature.name], value)
        return paths.take(mask)

    def values_of(self, paths: Paths) -> pa.Array:
        """The values of the level below, one per path; cells as numbers."""
        if self._level == 0:
            return pa.array(paths.columns.cell)
        if self._level == 1:
            return times_from_micros(paths.columns.bucket)
        name = self._schema.indexed[self._level - 2].name
        return self._texts.bind(paths.columns).features[name].to_arrow()

    def shown(self, values: pa.Array) -> pa.Array:
        if self._level > 0:
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
            f"expected a geohash of {schema.geohash_precision} characters as first level of "
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
