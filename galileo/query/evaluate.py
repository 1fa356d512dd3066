"""Walks over a predicate tree: verdicts per row or zone, bounds in space and time, JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from galileo.geo import ranges
from galileo.geo.ranges import Ranges
from galileo.query import temporal
from galileo.query.columns import Mask
from galileo.query.features import number_bounds
from galileo.query.tree import ALWAYS, All, Leaf, Node, Some, Span, leaves

NARROW = 4
"""A later part looks only at undecided rows once these are fewer than one in so many."""


class Rows(Protocol):
    def __len__(self) -> int: ...

    def take(self, rows: Any) -> Self: ...


R = TypeVar("R", bound=Rows)


def verdicts(node: Node, rows: R, test: Callable[[Leaf, R], Mask]) -> Mask:
    """For which rows the tree is true, given the test of a leaf on rows."""
    if not isinstance(node, All | Some):
        return test(node, rows)
    wanted = isinstance(node, All)
    found = np.full(len(rows), wanted, dtype=np.bool_)
    for part in sorted(node.parts, key=_cost):
        undecided = np.flatnonzero(found == wanted)
        if len(undecided) == 0:
            break
        if len(undecided) * NARROW < len(rows):
            found[undecided] = verdicts(part, rows.take(undecided), test)
        elif wanted:
            found &= verdicts(part, rows, test)
        else:
            found |= verdicts(part, rows, test)
    return found


def cells(node: Node) -> Ranges | None:
    """The cells outside of which nothing matches; None is no limit."""
    if not isinstance(node, All | Some):
        return node.cells()
    limits = [cells(part) for part in node.parts]
    known = [limit for limit in limits if limit is not None]
    if isinstance(node, All):
        return reduce(ranges.intersection, known) if known else None
    if len(known) < len(limits):
        return None
    return reduce(ranges.union, known, ranges.none())


def buckets(node: Node) -> Span:
    """The starts of buckets outside of which nothing matches."""
    if not isinstance(node, All | Some):
        return node.buckets()
    spans = [buckets(part) for part in node.parts]
    if isinstance(node, All):
        return reduce(temporal.overlap, spans, ALWAYS)
    return temporal.hull(spans)


def numbers(node: Node, name: str) -> tuple[float, float]:
    """Between which numbers a feature lies where the tree is true.

    Where it is true nowhere, the first number may be above the second.
    """
    if not isinstance(node, All | Some):
        return number_bounds(node, name)
    bounds = [numbers(part, name) for part in node.parts]
    if isinstance(node, All):
        low = max((low for low, _ in bounds), default=-math.inf)
        return low, min((high for _, high in bounds), default=math.inf)
    possible = [(low, high) for low, high in bounds if low <= high]
    low = min((low for low, _ in possible), default=math.inf)
    return low, max((high for _, high in possible), default=-math.inf)


def json_value(node: Node) -> Any:
    """CQL2 JSON that binds to an equal tree."""
    if not isinstance(node, All | Some):
        return node.json()
    if not node.parts:
        return isinstance(node, All)
    op = "and" if isinstance(node, All) else "or"
    return {"op": op, "args": [json_value(part) for part in node.parts]}


def _cost(node: Node) -> int:
    return max((leaf.cost for leaf in leaves(node)), default=0)
