"""Drill-down: the children of a vertex of the logical tree, counted from the columns.

The tree is not stored, so its levels may be in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.graph.columns import Paths, StringDictionary, dtypes
from galileo.graph.run_scan import Check, never_cancelled
from galileo.graph.snapshot import LivePart
from galileo.model.schema import FLOATS, Feature, Schema
from galileo.model.times import TIME_TYPE, micros, times_from_micros
from galileo.query.columns import FeatureColumn, FloatColumn, IntColumn, Mask, TextColumn
from galileo.query.operands import DATETIME, GEOHASH


def default_order(schema: Schema) -> tuple[str, ...]:
    """Level 1 is the geohash, level 2 the time, then the features (paper, III.B)."""
    return (GEOHASH, DATETIME, *(feature.name for feature in schema.indexed))


def children(
    schema: Schema,
    parts: Sequence[LivePart],
    *,
    prefix: Sequence[Any],
    order: Sequence[str],
    texts: StringDictionary,
    check: Check = never_cancelled,
) -> pa.Table:
    """The values of the level below a vertex, with their numbers of paths and observations.

    Args:
        schema: of the dataset.
        parts: runs and memtable of one snapshot.
        prefix: values from the root to the vertex: geohash text at the schema's precision, start of
            the time bucket (an instant), feature values, None for a missing one. Empty: root.
        order: levels of the tree from the root down: "geohash", "datetime" and indexed features,
            all or some of them, each once.
        texts: of the graph.
        check: called between portions of work; raises to cancel it.

    Returns:
        Columns `value` (text, time or the feature's type), `paths` and `observations`, one row per
        child, ascending with null last.

    Raises:
        InputError: unknown levels, a prefix that is longer than the tree is deep, or a value that
            does not fit its level.
    """
    level = level_below(schema, prefix, order)
    above = _Vertex(schema, dict(zip(order, prefix, strict=False)), texts)
    kind = above.values_of(_empty(schema), level).type
    counted = [_none(kind)]
    for part in parts:
        check()
        below = above.below(part)
        values = above.values_of(below, level)
        ones = pa.array(np.ones(len(below), dtype=np.int64))
        columns = {"value": values, "paths": ones, "observations": pa.array(below.rows)}
        counted.append(add_counts([pa.table(columns)]))
    whole = add_counts(counted)
    shown = above.shown(whole.column("value").combine_chunks(), level)
    return whole.set_column(0, "value", shown)


def level_below(schema: Schema, prefix: Sequence[Any], order: Sequence[str]) -> str:
    """The level of the children of a vertex.

    Raises:
        InputError: unknown levels, or a prefix that is longer than the tree is deep.
    """
    _check(schema, prefix, order)
    return order[len(prefix)]


def add_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """Merge tables of children, adding the counts of equal values; ascending with null last."""
    together = pa.concat_tables(tables).group_by("value")
    counted = together.aggregate([("paths", "sum"), ("observations", "sum")])
    ordered = counted.rename_columns(["value", "paths", "observations"]).sort_by("value")
    return ordered.combine_chunks()


def page(table: pa.Table, *, after: Any, limit: int) -> tuple[pa.Table, bool]:
    """The first children after a value, and whether there are more.

    Args:
        table: of `children`.
        after: the last value of the page before; None for the first page (null is the last value).
        limit: children of a page.

    Raises:
        InputError: the value does not fit the level.
    """
    if after is not None:
        values = table.column("value")
        beyond = pc.or_kleene(pc.greater(values, _scalar(after, values.type)), pc.is_null(values))
        table = table.filter(beyond)
    return table.slice(0, limit), table.num_rows > limit


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(micros(value) if pa.types.is_timestamp(kind) else value, kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"expected a value of type {kind}, got {value!r}", expected=str(kind)
        ) from error


def place(
    schema: Schema, prefix: Sequence[Any], order: Sequence[str]
) -> tuple[int | None, int | None]:
    """The cell and the start of the time bucket that a vertex names; None for each that it does
    not.

    Raises:
        InputError: a value is no cell or no time.
    """
    above = dict(zip(order, prefix, strict=False))
    cell = _cell(schema, above[GEOHASH]) if GEOHASH in above else None
    return cell, micros(above[DATETIME]) if DATETIME in above else None


def empty_level(schema: Schema, level: str) -> pa.Table:
    """An empty table of children."""
    return _none({GEOHASH: pa.string(), DATETIME: TIME_TYPE}.get(level) or _type(schema, level))


def _type(schema: Schema, level: str) -> pa.DataType:
    return next(feature.arrow_type for feature in schema.indexed if feature.name == level)


def _none(kind: pa.DataType) -> pa.Table:
    counts = pa.array([], pa.int64())
    return pa.table({"value": pa.array([], kind), "paths": counts, "observations": counts})


def _check(schema: Schema, prefix: Sequence[Any], order: Sequence[str]) -> None:
    known = default_order(schema)
    if not order or len(set(order)) < len(order) or not set(order) <= set(known):
        raise InputError(
            f"expected levels of dataset {schema.name!r}, each once, of {', '.join(known)}, "
            f"got {', '.join(map(str, order)) or 'none'}",
            parameter="order",
            expected="levels",
            dataset=schema.name,
        )
    if len(prefix) >= len(order):
        raise InputError(
            f"expected at most {len(order) - 1} values above a level of dataset {schema.name!r}, "
            f"got {len(prefix)}",
            bound=len(order) - 1,
            expected="prefix",
            dataset=schema.name,
        )


class _Vertex:
    """One vertex, as the values of the levels on the way to it."""

    def __init__(self, schema: Schema, above: dict[str, Any], texts: StringDictionary) -> None:
        self._schema = schema
        self._texts = texts
        self._cell, self._bucket = place(schema, list(above.values()), list(above))
        named = [feature for feature in schema.indexed if feature.name in above]
        self._features = [(feature, _value(feature, above[feature.name])) for feature in named]

    def below(self, part: LivePart) -> Paths:
        """The live paths of a run that pass through the vertex."""
        paths, rows = part.run.paths, slice(0, len(part.run))
        if self._cell is not None and part.run.zone_map is not None:
            cells = np.array([self._cell, self._cell + 1], dtype=np.uint64)
            rows = slice(*np.searchsorted(paths.columns.cell, cells).tolist())
            paths = paths.take(rows)
        masks = [*self._masks(paths), *part.masks(rows)]
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
        if isinstance(column, FloatColumn):
            # -0.0 and 0.0 are equal: one child, whichever of them its paths have.
            return FloatColumn(column.values + 0.0).to_arrow()
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
            f"dataset {schema.name!r}, got {text!r}",
            level="geohash",
            expected="geohash",
        )
    return geohash.cell_from_text(text)


def _value(feature: Feature, value: Any) -> Any:
    kinds: dict[str, Any] = {
        **dict.fromkeys(FLOATS, (float, int, np.floating)),
        "int": (int, np.integer),
        "text": str,
        "bool": (bool, np.bool_),
    }
    if value is None:
        return None
    if not isinstance(value, kinds[feature.type]):
        raise InputError(
            f"expected a value of type {feature.type} or None for level {feature.name!r}, "
            f"got {value!r}",
            level=feature.name,
            expected=feature.type,
        )
    return np.float32(value) if feature.type == "float32" else value


def _empty(schema: Schema) -> Paths:
    from_nothing = [np.empty(0, dtype) for dtype in dtypes(schema)]
    return Paths.from_arrays(schema, from_nothing)
