"""Binding of conditions on `datetime`: literals and temporal functions.

A timestamp is one microsecond, a date is its whole day in UTC, and an interval includes both
of its ends (OGC 21-065, "Temporal data types and instances"). `datetime` is an instant; for
T_DURING, which OGC defines between intervals only, it is one without extent.
"""

from __future__ import annotations

import re
from typing import Any

from galileo.errors import InputError, UnsupportedQuery
from galileo.model.schema import Schema
from galileo.model.times import DAY_US, MICROS, micros, seconds
from galileo.query import time_predicates
from galileo.query.operands import DATETIME, PropertyRef, is_property, mismatch, property_ref
from galileo.query.predicates import Span
from galileo.query.time_predicates import OPEN_END, Period

FUNCTIONS = (
    "t_after",
    "t_before",
    "t_contains",
    "t_disjoint",
    "t_during",
    "t_equals",
    "t_intersects",
)

_MIRRORED = {"t_after": "t_before", "t_before": "t_after"}
_WANTED = "TIMESTAMP('2012-03-01T06:00:00Z') or DATE('2012-03-01')"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?([Zz]|[+-]\d{2}:?\d{2})?)?"
)


def instant(raw: Any, about: PropertyRef) -> Period:
    """The period of a TIMESTAMP, a DATE or a text that is either, plus or minus a duration.

    Raises:
        UnsupportedQuery: another literal, or a text that is no time.
    """
    if isinstance(raw, dict):
        for kind in ("timestamp", "date"):
            if isinstance(raw.get(kind), str):
                return _period(raw[kind], kind, about)
    if isinstance(raw, dict) and raw.get("op") in ("+", "-") and not is_property(raw):
        return _shifted(raw, about)
    if isinstance(raw, str):
        return _period(raw, "date" if _DATE.fullmatch(raw) else "timestamp", about)
    raise mismatch(raw, about, _WANTED)


def bind_relation(function: str, args: list[Any], schema: Schema) -> list[Span]:
    """The times for which a temporal function of `datetime` and a literal is true.

    Raises:
        UnsupportedQuery: other operands.
    """
    left, right = args
    if function == "t_contains":
        left, right, function = right, left, "t_during"
    elif not is_property(left) and is_property(right) and function != "t_during":
        left, right, function = right, left, _MIRRORED.get(function, function)
    about = property_ref(left, schema)
    if about.name != DATETIME:
        raise UnsupportedQuery(
            f"{function.upper()} expects the property datetime, got {about.name!r}"
        )
    if isinstance(right, dict) and "interval" in right:
        span, one_instant = _interval(right["interval"], about)
        return time_predicates.related(function, span, one_instant=one_instant)
    if function == "t_during":
        raise mismatch(right, about, "INTERVAL('2012-03-01', '2012-03-07')")
    return time_predicates.related(function, instant(right, about), one_instant=True)


def _interval(raw: Any, about: PropertyRef) -> tuple[Span, bool]:
    """The time from the first to the last instant of an interval; whether these are one."""
    if not isinstance(raw, list) or len(raw) != 2:
        raise mismatch(raw, about, "INTERVAL of two times, or '..' for an open end,")
    first, last = (None if end == OPEN_END else instant(end, about) for end in raw)
    span = (None if first is None else first[0], None if last is None else last[1])
    if time_predicates.empty(span):
        raise mismatch(raw, about, "INTERVAL with its start before its end")
    return span, first is not None and first == last


def _shifted(raw: dict[str, Any], about: PropertyRef) -> Period:
    args = raw.get("args")
    if not isinstance(args, list) or len(args) != 2 or not isinstance(args[1], str):
        raise mismatch(raw, about, _WANTED)
    first, end = instant(args[0], about)
    try:
        width_us = round(seconds(args[1]) * MICROS)
    except InputError as error:
        raise mismatch(args[1], about, "a duration such as '1d'") from error
    width_us = width_us if raw["op"] == "+" else -width_us
    return first + width_us, end + width_us


def _period(text: str, kind: str, about: PropertyRef) -> Period:
    form = _DATE if kind == "date" else _TIMESTAMP
    if form.fullmatch(text) is None:
        raise mismatch(text, about, _WANTED)
    try:
        start = micros(text)
    except InputError as error:
        raise mismatch(text, about, _WANTED) from error
    return start, start + (DAY_US if kind == "date" else 1)
