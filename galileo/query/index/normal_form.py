"""The normal form of a query: the conditions that fit bound columns, and the residual filter.

A path matches exactly when its cell is in the cells, its bucket in the times, every named number in
its interval, every named text equal, and the residual filter is true. So each further query costs a
few constants in columns (as NiagaraCQ groups queries by signature: Chen, DeWitt, Tian, Wang, SIGMOD
2000).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

import numpy as np

from galileo.geo import ranges
from galileo.geo.ranges import Ranges
from galileo.query import visitors
from galileo.query.feature_predicates import BoolIs, NumberIs, TextIs
from galileo.query.index.prefixes import Prefixes, prefixes_from_ranges
from galileo.query.predicates import And, Node, conjunction
from galileo.query.query import Query
from galileo.query.spatial_predicates import SpatialLeaf
from galileo.query.time_predicates import During

PREFIXES_MAX = 8_192
"""Most prefixes of one query; a query with more is indexed by shorter ones, and its cells are
tested, too.
"""

Interval: TypeAlias = tuple[float, float]
"""Closed; empty where the first is above the second."""
TextKey: TypeAlias = tuple[str, bool]
"""A text feature, and whether it is compared in lower case."""

UNBOUNDED: Interval = (-math.inf, math.inf)
_EMPTY: Interval = (math.inf, -math.inf)
_TIMES = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class NormalForm:
    """A query as constants and a residual filter.

    Attributes:
        prefixes: the cells, as geohash prefixes; None: all cells.
        first: least start of a bucket, microseconds.
        last: greatest start of a bucket, inclusive.
        numbers: for each feature the interval; a missing value is in none.
        texts: for each text feature the required value.
        rest: the residual filter; None: none.
    """

    prefixes: Prefixes | None
    first: int
    last: int
    numbers: dict[str, Interval] = field(default_factory=dict)
    texts: dict[TextKey, str] = field(default_factory=dict)
    rest: Node | None = None


def normal_form(query: Query, *, prefixes_max: int = PREFIXES_MAX) -> NormalForm:
    """The normal form of a query."""
    tree = query.tree
    parts = tree.parts if isinstance(tree, And) else (tree,)
    numbers: dict[str, Interval] = {}
    texts: dict[TextKey, str] = {}
    rest = [part for part in parts if not _fits(part, numbers=numbers, texts=texts)]
    prefixes, tests = _placed(parts, query.schema.geohash_precision, prefixes_max)
    rest += [part for part in tests if part not in rest]
    first, last = _times(tree)
    return NormalForm(prefixes, first, last, numbers, texts, conjunction(rest) if rest else None)


def _fits(part: Node, *, numbers: dict[str, Interval], texts: dict[TextKey, str]) -> bool:
    """Whether constants express all of the part; they are collected."""
    if isinstance(part, During):
        return True
    if isinstance(part, SpatialLeaf):
        return len(part.cover.untested[0]) == 0
    if isinstance(part, BoolIs):
        value = float(part.value)
        numbers[part.name] = _intersect(numbers.get(part.name, UNBOUNDED), (value, value))
        return True
    if isinstance(part, NumberIs) and part.operator != "<>":
        interval = _interval(part.operator, part.value)
        numbers[part.name] = _intersect(numbers.get(part.name, UNBOUNDED), interval)
        return True
    if isinstance(part, TextIs) and part.operator == "=":
        return texts.setdefault((part.name, part.folded), part.value) == part.value
    return False


def _interval(sign: str, value: float) -> Interval:
    """The doubles in a relation to a value."""
    if math.isnan(value):
        return _EMPTY
    above, below = math.nextafter(value, math.inf), math.nextafter(value, -math.inf)
    known: dict[str, Interval] = {
        "=": (value, value),
        ">=": (value, math.inf),
        "<=": (-math.inf, value),
        ">": (above, math.inf) if above > value else _EMPTY,
        "<": (-math.inf, below) if below < value else _EMPTY,
    }
    return known[sign]


def _intersect(one: Interval, other: Interval) -> Interval:
    return max(one[0], other[0]), min(one[1], other[1])


def _placed(
    parts: tuple[Node, ...], precision: int, prefixes_max: int
) -> tuple[Prefixes | None, list[Node]]:
    """The prefixes of the cells, and the spatial conditions that they are too coarse for."""
    limits = [_cells(part) for part in parts]
    known = [limit for limit in limits if limit is not None]
    if not known:
        return None, []
    prefixes = prefixes_from_ranges(reduce(ranges.intersection, known), precision)
    if len(prefixes) <= prefixes_max:
        return prefixes, []
    tests: list[Node] = [part for part in parts if isinstance(part, SpatialLeaf)]
    return prefixes.shortened(prefixes_max), tests


def _cells(part: Node) -> Ranges | None:
    """The cells that a part accepts; a superset if it is not purely spatial."""
    if not isinstance(part, SpatialLeaf) or len(part.cover.untested[0]):
        return visitors.cell_ranges(part)
    cover = part.cover
    if part.negated:
        return ranges.complement(cover.inside, 1 << 5 * part.precision)
    return ranges.union(cover.inside, cover.border)


def _times(tree: Node) -> tuple[int, int]:
    lo, hi = visitors.bucket_span(tree)
    first = _TIMES.min if lo is None else max(lo, _TIMES.min)
    last = _TIMES.max if hi is None else min(hi - 1, _TIMES.max)
    return int(first), int(last)


def by_cell_alone(node: Node) -> bool:
    """Whether a condition reads nothing but the cell."""
    parts: tuple[Node, ...] = node.parts if isinstance(node, And) else (node,)
    return all(isinstance(part, SpatialLeaf) for part in parts)
