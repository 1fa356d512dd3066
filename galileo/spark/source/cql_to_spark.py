"""Converts CQL2 to conditions of Spark, where Spark has an equivalent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, FloatType, LongType

from galileo.model.times import micros
from galileo.query import cql_syntax
from galileo.query.operands import DATETIME
from galileo.spark.source.spark_to_cql import EXACT_INT_MAX

_COMPARED: dict[str, Callable[[Any, Any], Column]] = {
    "=": lambda subject, value: subject == value,
    "<>": lambda subject, value: subject != value,
    "<": lambda subject, value: subject < value,
    "<=": lambda subject, value: subject <= value,
    ">": lambda subject, value: subject > value,
    ">=": lambda subject, value: subject >= value,
}
_FLOAT32_MAX = 3.4e38
# Spark refuses a backslash before other characters.
_PATTERN = re.compile(r"(?:[^\\]|\\[%_\\])*")


def spark_conditions(query: str, frame: DataFrame) -> list[Column]:
    """Conditions on columns of a DataFrame that all rows of a query satisfy.

    Converts top-level conditions joined by AND; omits those without an equivalent, such as
    conditions on places and cells.

    Raises:
        QuerySyntaxError: the query does not parse.
    """
    tree = cql_syntax.read(query)
    trees = tree["args"] if isinstance(tree, dict) and tree.get("op") == "and" else [tree]
    conditions = (_condition(tree, frame) for tree in trees)
    return [condition for condition in conditions if condition is not None]


def _condition(tree: Any, frame: DataFrame) -> Column | None:
    if not isinstance(tree, dict) or not tree.get("args"):
        return None
    op, args = tree["op"], tree["args"]
    if op == "not":
        inner = _condition(args[0], frame)
        return None if inner is None else ~inner
    subject = _subject(args[0], frame)
    if subject is None:
        return None
    if op == "isNull":
        return subject.isNull()
    kind = frame.schema[_name(args[0])].dataType
    values = [_value(raw, kind) for raw in (args[1] if op == "in" else args[1:])]
    return None if any(value is None for value in values) else _compare(op, subject, values)


def _compare(op: str, subject: Column, values: list[Any]) -> Column | None:
    if op == "in":
        return subject.isin(values)
    if op == "between":
        return subject.between(*values)
    if op == "like":
        return subject.like(values[0]) if _PATTERN.fullmatch(values[0]) else None
    return _COMPARED[op](subject, values[0]) if op in _COMPARED else None


def _subject(raw: Any, frame: DataFrame) -> Column | None:
    """The column of a condition."""
    name = _name(raw)
    return frame[name] if isinstance(name, str) and name in frame.columns else None


def _name(raw: Any) -> Any:
    """The name of the column of an operand; no text if it is no property."""
    name = raw.get("property") if isinstance(raw, dict) else None
    return "time" if name == DATETIME else name


def _value(raw: Any, kind: DataType) -> Any:
    """A literal that is compared with a column; None if Spark would compare it differently."""
    if isinstance(raw, str) and isinstance(kind, LongType):  # It is the meaning of a flag.
        return None
    if isinstance(raw, int | float) and isinstance(kind, FloatType):
        return F.lit(float(raw)).cast(kind) if abs(raw) < _FLOAT32_MAX else None
    if isinstance(raw, dict) and set(raw) == {"timestamp"}:
        return F.timestamp_micros(F.lit(micros(raw["timestamp"])))
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) >= EXACT_INT_MAX:
        return None
    return raw if isinstance(raw, bool | int | float | str) else None
