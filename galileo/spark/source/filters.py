"""Between the filters that Spark hands down and CQL2.

A filter is taken on where its CQL2 says exactly the same; what remains is for Spark. Bounds of
latitude and longitude become a box that holds all that can pass: they are taken on *and* remain.
Whether CQL2 means anything for the dataset is asked of the query language itself.

Spark (4.1 to 4.3) keeps what came of filters in one place for all queries on a DataFrame that was
loaded once: the last one planned decides what every other reads. So, unless told otherwise, only
filters are taken on that the query of the load says anyway; what is read is then always the same.
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
"""An end of an interval that there is none."""

# Beyond it, the query language compares integers with their nearest doubles.
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
class Pushed:
    """What became of filters.

    Attributes:
        conditions: what the nodes check; CQL2 JSON values, all of which have to hold.
        left: the filters that Spark still has to check.
    """

    conditions: tuple[Tree, ...]
    left: tuple[spark.Filter, ...]


def pushed(filters: Sequence[spark.Filter], schema: Schema, *, what: str) -> Pushed:
    """The filters as far as nodes can check them."""
    conditions, left = [], []
    for one in filters:
        condition = _condition(one, schema, labels=what == LABELS)
        if condition is None:
            left.append(one)
        elif condition is not True:
            conditions.append(condition)
    box = None if what == LABELS else _box(left)
    return Pushed((*conditions, *([] if box is None else [box])), tuple(left))


def implied(filters: Sequence[spark.Filter], schema: Schema, *, query: str, what: str) -> Pushed:
    """The filters that every row of a query passes, and the others; there is nothing to check."""
    parts = conjuncts(query, schema)
    said = set(map(json.dumps, parts))
    present = {_property(one) for one in parts if not _is_missing(one)}
    left = []
    for one in filters:
        condition = _condition(one, schema, labels=what == LABELS)
        is_present = isinstance(one, spark.IsNotNull) and one.attribute[-1] in present
        if condition is None or not (
            condition is True or is_present or _is_said(condition, said, schema)
        ):
            left.append(one)
    return Pushed((), tuple(left))


def conjuncts(query: str, schema: Schema) -> list[Tree]:
    """The conditions that a query joins by AND, in canonical form; intervals as their two ends.

    Raises:
        QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
    """
    tree = json.loads(parse(query, schema).to_json())
    trees = tree["args"] if isinstance(tree, dict) and tree["op"] == "and" else [tree]
    return [part for one in trees if one is not True for part in _ends(one)]


def _ends(tree: Tree) -> list[Tree]:
    """An interval of time as one from its beginning and one to its end; else the same."""
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


def _is_said(condition: Tree, said: set[str], schema: Schema) -> bool:
    return {*map(json.dumps, conjuncts(json.dumps(condition), schema))} <= said


def _property(tree: Tree) -> str | None:
    """The feature that a single condition is about, which is then there."""
    if not isinstance(tree, dict) or tree["op"] not in PLAIN:
        inner = tree["args"][0] if isinstance(tree, dict) and tree["op"] == "not" else None
        return None if inner is None else _property(inner)
    subject = tree["args"][0]
    name = subject.get("property") if isinstance(subject, dict) else None
    return name if isinstance(name, str) else None


def _is_missing(tree: Tree) -> bool:
    return isinstance(tree, dict) and tree["op"] == "isNull"


def narrowed(query: str, conditions: Sequence[Tree], schema: Schema) -> str:
    """A query that asks for what matches another one and all conditions; CQL2 JSON.

    Raises:
        QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
    """
    base = parse(query, schema)
    if not conditions:
        return base.to_json()
    trees = [*([] if base.everything else [json.loads(base.to_json())]), *conditions]
    whole = trees[0] if len(trees) == 1 else {"op": "and", "args": trees}
    return parse(json.dumps(whole), schema).to_json()


def _condition(one: spark.Filter, schema: Schema, *, labels: bool) -> Tree | None:
    """CQL2 that says the same, True where there is nothing to check, None where there is none."""
    negated = isinstance(one, spark.Not)
    inner: Any = one.child if isinstance(one, spark.Not) else one
    if len(inner.attribute) != 1 or (negated and isinstance(inner, spark.EqualNullSafe)):
        return None
    name = inner.attribute[0]
    if isinstance(inner, spark.IsNotNull) and not negated and name in COORDINATES:
        return True
    subject = _subject(name, inner, schema, labels=labels)
    made = None if subject is None else _said(inner, subject)
    if made is None:
        return None
    tree = {"op": "not", "args": [made]} if negated else made
    return tree if _is_understood(tree, schema) else None


def _subject(name: str, one: Any, schema: Schema, *, labels: bool) -> Tree | None:
    """What the query language calls a column, where it can say something exact about it."""
    if labels and name == GEOHASH:
        values = one.value if isinstance(one, spark.In) else (getattr(one, "value", None),)
        whole = isinstance(one, spark.EqualTo | spark.In)
        starts = isinstance(one, spark.StringStartsWith)
        fits = all(_is_cell(value, schema, whole=whole) for value in values)
        return {"property": CELL} if (whole or starts) and fits else None
    if name == "time":
        return None if labels else {"property": DATETIME}
    return None if schema.feature(name) is None else {"property": name}


def _is_cell(value: Any, schema: Schema, *, whole: bool) -> bool:
    """Whether a text names a cell of the dataset, or the beginning of one."""
    size = schema.geohash_precision
    return isinstance(value, str) and (len(value) == size if whole else 0 < len(value) <= size)


def _said(one: Any, subject: Tree) -> Tree | None:
    if isinstance(one, spark.IsNull | spark.IsNotNull):
        null = {"op": "isNull", "args": [subject]}
        return null if isinstance(one, spark.IsNull) else {"op": "not", "args": [null]}
    if isinstance(one, spark.In):
        values = [_literal(value) for value in one.value]
        return None if None in values or not values else {"op": "in", "args": [subject, values]}
    if type(one) in _COMPARISONS:
        value = _literal(one.value)
        op = _COMPARISONS[type(one)]
        return None if value is None else {"op": op, "args": [subject, value]}
    pattern = _pattern(one)
    return None if pattern is None else {"op": "like", "args": [subject, pattern]}


def _pattern(one: Any) -> str | None:
    text = getattr(one, "value", None)
    if not isinstance(text, str):
        return None
    plain = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    if isinstance(one, spark.StringStartsWith):
        return f"{plain}%"
    if isinstance(one, spark.StringEndsWith):
        return f"%{plain}"
    return f"%{plain}%" if isinstance(one, spark.StringContains) else None


def _literal(value: Any) -> Tree | None:
    """A value as CQL2 says it; None where it cannot say it exactly."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < EXACT_INT_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return {"timestamp": iso(micros(value))}
    return None


def _is_understood(tree: Tree, schema: Schema) -> bool:
    try:
        parse(json.dumps(tree), schema)
    except GalileoError:
        return False
    return True


def _box(filters: Sequence[spark.Filter]) -> Tree | None:
    """A box around all places that pass; a little larger, since edges are Spark's to judge."""
    low = {"latitude": -90.0, "longitude": -180.0}
    high = {"latitude": 90.0, "longitude": 180.0}
    bounded = False
    for one in filters:
        name, value = getattr(one, "attribute", ("",))[0], getattr(one, "value", None)
        if name not in low or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isnan(value):
            continue
        if isinstance(one, spark.EqualTo | spark.GreaterThan | spark.GreaterThanOrEqual):
            low[name], bounded = max(low[name], value - _MARGIN_DEG), True
        if isinstance(one, spark.EqualTo | spark.LessThan | spark.LessThanOrEqual):
            high[name], bounded = min(high[name], value + _MARGIN_DEG), True
    if not bounded:
        return None
    if any(low[name] > high[name] for name in low):
        return False
    box = [low["longitude"], low["latitude"], high["longitude"], high["latitude"]]
    return {"op": "s_intersects", "args": [{"property": GEOMETRY}, {"bbox": box}]}
