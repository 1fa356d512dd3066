"""Converts the filters that Spark pushes down to CQL2.

A filter is pushed down if CQL2 has an exact equivalent; Spark evaluates the others. Bounds of
latitude and longitude become a box that contains all matching points: nodes evaluate the box, and
Spark still evaluates the bounds. The query parser decides which CQL2 is valid for a dataset.

Spark (4.1 to 4.3) stores the pushed filters in one place for all queries on a loaded DataFrame: the
query that was planned last determines what all of them read. So by default only filters that the
query of the load implies are accepted, which does not change what is read.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import datasource as spark

from galileo.errors import GalileoError
from galileo.model.schema import COORDINATES, Schema
from galileo.model.times import iso, micros
from galileo.query import parse
from galileo.query.operands import DATETIME, GEOMETRY
from galileo.query.operands import GEOHASH as CELL
from galileo.spark.source.columns import GEOHASH
from galileo.spark.source.options import LABELS

Tree: TypeAlias = Any
"""CQL2 JSON values."""

PLAIN = ("=", "<>", "<", "<=", ">", ">=", "in", "like", "isNull")
"""Operators that compare one property with values."""
OPEN = ".."
"""An open end of an interval."""

# Queries compare larger integers as doubles.
EXACT_INT_MAX = 2**53
_MARGIN_DEG = 1e-9

_COMPARISONS: dict[type, str] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The result of a conversion.

    Attributes:
        conditions: CQL2 JSON values that nodes evaluate, joined by AND.
        remaining: the filters that Spark evaluates.
    """

    conditions: tuple[Tree, ...]
    remaining: tuple[spark.Filter, ...]


def push_all(filters: Sequence[spark.Filter], schema: Schema, *, what: str) -> PushedFilters:
    """Converts all filters that nodes can evaluate."""
    conditions, remaining = [], []
    for filter_ in filters:
        condition = _condition(filter_, schema, labels=what == LABELS)
        if condition is None:
            remaining.append(filter_)
        elif condition is not True:
            conditions.append(condition)
    box = None if what == LABELS else _box(remaining)
    return PushedFilters((*conditions, *([] if box is None else [box])), tuple(remaining))


def push_implied(
    filters: Sequence[spark.Filter], schema: Schema, *, query: str, what: str
) -> PushedFilters:
    """Accepts the filters that a query implies; nodes evaluate no further conditions."""
    parts = conjuncts(query, schema)
    query_conditions = set(map(json.dumps, parts))
    present = {_property(part) for part in parts if not _is_missing(part)}
    remaining = []
    for filter_ in filters:
        condition = _condition(filter_, schema, labels=what == LABELS)
        is_present = isinstance(filter_, spark.IsNotNull) and filter_.attribute[-1] in present
        if condition is None or not (
            condition is True or is_present or _is_implied(condition, query_conditions, schema)
        ):
            remaining.append(filter_)
    return PushedFilters((), tuple(remaining))


def conjuncts(query: str, schema: Schema) -> list[Tree]:
    """The conditions of a query joined by AND, in canonical form; intervals as two bounds.

    Raises:
        QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is invalid.
    """
    tree = json.loads(parse(query, schema).to_json())
    trees = tree["args"] if isinstance(tree, dict) and tree["op"] == "and" else [tree]
    return [
        part for condition in trees if condition is not True for part in _split_interval(condition)
    ]


def _split_interval(tree: Tree) -> list[Tree]:
    """Splits an interval of time into its two bounds; other conditions stay the same."""
    if not isinstance(tree, dict) or tree["op"] != "t_intersects":
        return [tree]
    subject, interval = tree["args"]
    if not isinstance(interval, dict) or "interval" not in interval:
        return [tree]
    start, end = interval["interval"]
    halves = [[start, OPEN], [OPEN, end]]
    return [
        {"op": "t_intersects", "args": [subject, {"interval": half}]}
        for half in halves
        if half != [OPEN, OPEN]
    ]


def _is_implied(condition: Tree, query_conditions: set[str], schema: Schema) -> bool:
    return {*map(json.dumps, conjuncts(json.dumps(condition), schema))} <= query_conditions


def _property(tree: Tree) -> str | None:
    """The feature of a single condition, which is not null where it holds."""
    if not isinstance(tree, dict) or tree["op"] not in PLAIN:
        inner = tree["args"][0] if isinstance(tree, dict) and tree["op"] == "not" else None
        return None if inner is None else _property(inner)
    subject = tree["args"][0]
    name = subject.get("property") if isinstance(subject, dict) else None
    return name if isinstance(name, str) else None


def _is_missing(tree: Tree) -> bool:
    return isinstance(tree, dict) and tree["op"] == "isNull"


def conjunction(query: str, conditions: Sequence[Tree], schema: Schema) -> str:
    """The conjunction of a query and conditions, as CQL2 JSON.

    Raises:
        QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is invalid.
    """
    base = parse(query, schema)
    if not conditions:
        return base.to_json()
    trees = [*([] if base.everything else [json.loads(base.to_json())]), *conditions]
    whole = trees[0] if len(trees) == 1 else {"op": "and", "args": trees}
    return parse(json.dumps(whole), schema).to_json()


def _condition(filter_: spark.Filter, schema: Schema, *, labels: bool) -> Tree | None:
    """The equivalent CQL2; True if the filter always holds, None if there is no equivalent."""
    negated = isinstance(filter_, spark.Not)
    inner: Any = filter_.child if isinstance(filter_, spark.Not) else filter_
    if len(inner.attribute) != 1 or (negated and isinstance(inner, spark.EqualNullSafe)):
        return None
    name = inner.attribute[0]
    if isinstance(inner, spark.IsNotNull) and not negated and name in COORDINATES:
        return True
    subject = _subject(name, inner, schema, labels=labels)
    converted = None if subject is None else _to_cql(inner, subject)
    if converted is None:
        return None
    tree = {"op": "not", "args": [converted]} if negated else converted
    return tree if _is_valid(tree, schema) else None


def _subject(name: str, filter_: Any, schema: Schema, *, labels: bool) -> Tree | None:
    """The CQL2 property of a column, if an exact condition on it is possible."""
    if labels and name == GEOHASH:
        values = (
            filter_.value if isinstance(filter_, spark.In) else (getattr(filter_, "value", None),)
        )
        whole = isinstance(filter_, spark.EqualTo | spark.In)
        starts = isinstance(filter_, spark.StringStartsWith)
        fits = all(_is_cell(value, schema, whole=whole) for value in values)
        return {"property": CELL} if (whole or starts) and fits else None
    if name == "time":
        return None if labels else {"property": DATETIME}
    return None if schema.feature(name) is None else {"property": name}


def _is_cell(value: Any, schema: Schema, *, whole: bool) -> bool:
    """Whether a text is a geohash of the dataset's precision, or a prefix of one."""
    size = schema.geohash_precision
    return isinstance(value, str) and (len(value) == size if whole else 0 < len(value) <= size)


def _to_cql(filter_: Any, subject: Tree) -> Tree | None:
    if isinstance(filter_, spark.IsNull | spark.IsNotNull):
        null = {"op": "isNull", "args": [subject]}
        return null if isinstance(filter_, spark.IsNull) else {"op": "not", "args": [null]}
    if isinstance(filter_, spark.In):
        values = [_literal(value) for value in filter_.value]
        return None if None in values or not values else {"op": "in", "args": [subject, values]}
    if type(filter_) in _COMPARISONS:
        value = _literal(filter_.value)
        op = _COMPARISONS[type(filter_)]
        return None if value is None else {"op": op, "args": [subject, value]}
    pattern = _pattern(filter_)
    return None if pattern is None else {"op": "like", "args": [subject, pattern]}


def _pattern(filter_: Any) -> str | None:
    text = getattr(filter_, "value", None)
    if not isinstance(text, str):
        return None
    plain = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    if isinstance(filter_, spark.StringStartsWith):
        return f"{plain}%"
    if isinstance(filter_, spark.StringEndsWith):
        return f"%{plain}"
    return f"%{plain}%" if isinstance(filter_, spark.StringContains) else None


def _literal(value: Any) -> Tree | None:
    """A value in CQL2; None if it has no exact form."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < EXACT_INT_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return {"timestamp": iso(micros(value))}
    return None


def _is_valid(tree: Tree, schema: Schema) -> bool:
    try:
        parse(json.dumps(tree), schema)
    except GalileoError:
        return False
    return True


def _box(filters: Sequence[spark.Filter]) -> Tree | None:
    """A box around all matching points, with a margin, since Spark evaluates the exact bounds."""
    low = {"latitude": -90.0, "longitude": -180.0}
    high = {"latitude": 90.0, "longitude": 180.0}
    bounded = False
    for filter_ in filters:
        name, value = (
            getattr(filter_, "attribute", ("",))[0],
            getattr(filter_, "value", None),
        )
        if name not in low or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isnan(value):
            continue
        if isinstance(filter_, spark.EqualTo | spark.GreaterThan | spark.GreaterThanOrEqual):
            low[name], bounded = max(low[name], value - _MARGIN_DEG), True
        if isinstance(filter_, spark.EqualTo | spark.LessThan | spark.LessThanOrEqual):
            high[name], bounded = min(high[name], value + _MARGIN_DEG), True
    if not bounded:
        return None
    if any(low[name] > high[name] for name in low):
        return False
    box = [low["longitude"], low["latitude"], high["longitude"], high["latitude"]]
    return {"op": "s_intersects", "args": [{"property": GEOMETRY}, {"bbox": box}]}
