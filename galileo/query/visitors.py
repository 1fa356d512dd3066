"""Visitors of predicate trees: evaluation on rows and zones, bounds in space and time, JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from galileo.geo import ranges
from galileo.geo.ranges import Ranges
from galileo.query import time_predicates
from galileo.query.columns import Mask
from galileo.query.feature_predicates import number_bounds
from galileo.query.predicates import ALWAYS, And, Leaf, Node, Or, Span, leaves

GATHER_BELOW_SHARE = 4
"""A later part tests only undecided rows once these are fewer than one in so many."""


class Selectable(Protocol):
    def __len__(self) -> int: ...

    def take(self, rows: Any) -> Self: ...


R = TypeVar("R", bound=Selectable)


def verdicts(node: Node, rows: R, test: Callable[[Leaf, R], Mask]) -> Mask:
    """Mask of rows for which the tree is true, given the test of a leaf on rows."""
    if not isinstance(node, And | Or):
        return test(node, rows)
    is_and = isinstance(node, And)
    mask = np.full(len(rows), is_and, dtype=np.bool_)
    for part in sorted(node.parts, key=_cost):
        undecided = np.flatnonzero(mask == is_and)
        if len(undecided) == 0:
            break
        if len(undecided) * GATHER_BELOW_SHARE < len(rows):
            mask[undecided] = verdicts(part, rows.take(undecided), test)
        elif is_and:
            mask &= verdicts(part, rows, test)
        else:
            mask |= verdicts(part, rows, test)
    return mask


def cell_ranges(node: Node) -> Ranges | None:
    """Ranges of cells outside of which nothing matches; None: no limit."""
    if not isinstance(node, And | Or):
        return node.cells()
    limits = [cell_ranges(part) for part in node.parts]
    known = [limit for limit in limits if limit is not None]
    if isinstance(node, And):
        return reduce(ranges.intersection, known) if known else None
    if len(known) < len(limits):
        return None
    return reduce(ranges.union, known, ranges.none())


def bucket_span(node: Node) -> Span:
    """Starts of buckets outside of which nothing matches."""
    if not isinstance(node, And | Or):
        return node.buckets()
    spans = [bucket_span(part) for part in node.parts]
    if isinstance(node, And):
        return reduce(time_predicates.overlap, spans, ALWAYS)
    return time_predicates.bounding_span(spans)


def number_range(node: Node, name: str) -> tuple[float, float]:
    """Closed interval of a feature where the tree is true.

    If it is never true, the first number may be above the second.
    """
    if not isinstance(node, And | Or):
        return number_bounds(node, name)
    bounds = [number_range(part, name) for part in node.parts]
    if isinstance(node, And):
        low = max((low for low, _ in bounds), default=-math.inf)
        return low, min((high for _, high in bounds), default=math.inf)
    possible = [(low, high) for low, high in bounds if low <= high]
    low = min((low for low, _ in possible), default=math.inf)
    return low, max((high for _, high in possible), default=-math.inf)


def json_value(node: Node) -> Any:
    """CQL2 JSON that binds to an equal tree."""
    if not isinstance(node, And | Or):
        return node.json()
    if not node.parts:
        return isinstance(node, And)
    op = "and" if isinstance(node, And) else "or"
    return {"op": op, "args": [json_value(part) for part in node.parts]}


def _cost(node: Node) -> int:
    return max((leaf.cost for leaf in leaves(node)), default=0)
