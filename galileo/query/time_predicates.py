"""Conditions on time, each one or two of "the time lies in [lo, hi)".

A timestamp is one microsecond, a date is its whole day in UTC, and an interval includes both
of its ends (OGC 21-065, 7.8; clause "Temporal data types and instances").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from galileo.geo.ranges import Ranges
from galileo.model.times import iso, micros
from galileo.query.columns import Columns, Mask
from galileo.query.predicates import ALWAYS, EVERYTHING, Node, ObservationColumns, Span, disjunction
from galileo.query.zone_maps import Zones

OPEN_END = ".."
_CALENDAR = (micros("0001-01-01"), micros("9999-12-31T23:59:59.999999Z") + 1)
"""The times of ISO 8601 with four-digit years; all stored times are within."""

Period: TypeAlias = tuple[int, int]
"""Half-open microseconds of a timestamp (one) or a date (its day)."""


@dataclass(frozen=True, slots=True)
class During:
    """The time lies in [lo, hi), microseconds; None is open.

    Attributes:
        bucket_us: width of the schema's time buckets.
    """

    lo: int | None
    hi: int | None
    bucket_us: int

    cost: ClassVar[int] = 0
    features: ClassVar[tuple[str, ...]] = ()

    def may_match_paths(self, columns: Columns) -> Mask:
        return self._overlaps(columns.bucket, columns.bucket)

    def must_match_paths(self, columns: Columns) -> Mask:
        mask = np.ones(len(columns), dtype=np.bool_)
        if self.lo is not None:
            mask &= columns.bucket >= self.lo
        if self.hi is not None:
            mask &= columns.bucket <= self.hi - self.bucket_us
        return mask

    def matches_rows(self, points: ObservationColumns) -> Mask:
        mask = np.ones(len(points), dtype=np.bool_)
        if self.lo is not None:
            mask &= points.time >= self.lo
        if self.hi is not None:
            mask &= points.time < self.hi
        return mask

    def may_match_zones(self, zones: Zones) -> Mask:
        return self._overlaps(zones.bucket_lo, zones.bucket_hi)

    def cells(self) -> Ranges | None:
        return None

    def buckets(self) -> Span:
        return (None if self.lo is None else self.lo - self.bucket_us + 1), self.hi

    def _overlaps(self, first: Any, last: Any) -> Mask:
        """Mask of runs of buckets, by the starts of their first and last, that overlap [lo, hi)."""
        lo, hi = self.buckets()
        mask = np.ones(len(first), dtype=np.bool_)
        if lo is not None:
            mask &= last >= lo
        if hi is not None:
            mask &= first < hi
        return mask

    def json(self) -> Any:
        ends = [
            OPEN_END if self.lo is None else iso(self.lo),
            OPEN_END if self.hi is None else iso(self.hi - 1),
        ]
        return {"op": "t_intersects", "args": [{"property": "datetime"}, {"interval": ends}]}


def compared(sign: str, when: Period) -> list[Span]:
    """The times in relation `sign` to a timestamp or date."""
    first, end = when
    spans: dict[str, list[Span]] = {
        "=": [when],
        "<>": [(None, first), (end, None)],
        "<": [(None, first)],
        "<=": [(None, end)],
        ">": [(end, None)],
        ">=": [(first, None)],
    }
    return spans[sign]


def related(relation: str, when: Span, *, one_instant: bool) -> list[Span]:
    """The times in a CQL2 relation to an instant or a closed interval.

    Args:
        relation: name of the function, lower case.
        when: half-open; of an interval from its first to its last microsecond.
        one_instant: whether both ends of the interval are one instant.
    """
    first, end = when
    before: list[Span] = [] if first is None else [(None, first)]
    after: list[Span] = [] if end is None else [(end, None)]
    inner = (None if first is None else first + 1, None if end is None else end - 1)
    spans: dict[str, list[Span]] = {
        "t_before": before,
        "t_after": after,
        "t_disjoint": before + after,
        "t_intersects": [when],
        "t_during": [inner],
        "t_equals": [when] if one_instant else [],
    }
    return spans[relation]


def outside(spans: list[Span]) -> list[Span]:
    """The times in none of the spans."""
    rest: list[Span] = []
    done: int | None = None
    for lo, hi in sorted((span for span in spans if not empty(span)), key=_begin):
        if lo is not None and (done is None or lo > done):
            rest.append((done, lo))
        if hi is None:
            return rest
        done = hi if done is None else max(done, hi)
    return [*rest, (done, None)]


def _begin(span: Span) -> float:
    return -math.inf if span[0] is None else span[0]


def overlap(left: Span, right: Span) -> Span:
    """The intersection of both spans, perhaps empty."""
    lows = [lo for lo, _ in (left, right) if lo is not None]
    highs = [hi for _, hi in (left, right) if hi is not None]
    return max(lows, default=None), min(highs, default=None)


def bounding_span(spans: list[Span]) -> Span:
    """The shortest span around all; empty without spans."""
    full = [span for span in spans if not empty(span)]
    if not full:
        return 0, 0
    lows, highs = [lo for lo, _ in full], [hi for _, hi in full]
    lo = None if None in lows else min(low for low in lows if low is not None)
    return lo, None if None in highs else max(high for high in highs if high is not None)


def empty(span: Span) -> bool:
    lo, hi = span
    return lo is not None and hi is not None and lo >= hi


def leaf(spans: list[Span], bucket_us: int) -> Node:
    """The condition that the time is in any of the spans."""
    known = [overlap(span, _CALENDAR) for span in spans]
    opened = [_opened(span) for span in known if not empty(span)]
    return disjunction(
        EVERYTHING if span == ALWAYS else During(*span, bucket_us) for span in opened
    )


def _opened(span: Span) -> Span:
    """A span clipped to the calendar, open at its ends."""
    lo, hi = span
    return None if lo == _CALENDAR[0] else lo, None if hi == _CALENDAR[1] else hi
