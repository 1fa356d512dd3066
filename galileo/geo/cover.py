"""Covers: the geohash cells of a region as ranges of inner, border and untested cells.

A descent over geohash prefixes, all cells of one length at a time: a prefix outside the region is
dropped, one wholly inside becomes one range, one on the border is split into its 32 children, until
the cells have their full length or `cells_max` is reached. It begins with the longest prefixes of
which few cover the extent of the region, so that a small region takes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.geo import geohash, ranges
from galileo.geo.circles import Circle
from galileo.geo.geohash import Cells
from galileo.geo.patterns import Pattern
from galileo.geo.ranges import Ranges
from galileo.geo.regions import Boxes, Extent, Mask, Region

CELLS_MAX = 4096
"""Bound on the cells that one step of the descent tests, and on the ranges of a cover."""
FIRST_CELLS_MAX = 128
"""Bound on the cells of the first step; so many cost little more than a few."""


class CellRelation(IntEnum):
    """Relation of a cell to a region."""

    OUTSIDE = 0
    BORDER = 1
    INSIDE = 2
    UNTESTED = 3


CellTest: TypeAlias = Callable[[Cells, int], tuple[Mask, Mask]]
"""Masks of the cells of a length that may intersect the region, and of those inside it.

A child of a cell outside is outside; a cell inside also intersects.
"""

_MANY, _SPARSE = 1024, 4
"""Of many cells, where few lie between the ends of a cover, only those are looked up."""

_RELATIONS = (CellRelation.BORDER, CellRelation.INSIDE, CellRelation.UNTESTED)


@dataclass(frozen=True, eq=False)
class Cover:
    """Ranges of cells that a region covers, at one precision.

    Attributes:
        inside: cells wholly in the region.
        border: cells partly in it.
        untested: cells near its border that must be tested one by one.
    """

    inside: Ranges
    border: Ranges
    untested: Ranges

    @cached_property
    def possible(self) -> Ranges:
        """Ranges of all cells that may share a point with the region."""
        return ranges.union(self.inside, ranges.union(self.border, self.untested))

    def relations(self, cells: Cells) -> npt.NDArray[np.int8]:
        """The `CellRelation` of each cell."""
        lows, highs, kinds = self._by_relation
        if len(lows) == 0:
            return np.zeros(len(cells), dtype=np.int8)
        if len(cells) > _MANY:
            if (cells[:-1] <= cells[1:]).all():
                return self._relations_of_sorted(cells)
            near = np.flatnonzero((cells >= lows[0]) & (cells < highs[-1]))
            if len(near) * _SPARSE < len(cells):
                spread = np.zeros(len(cells), dtype=np.int8)
                spread[near] = self.relations(cells[near])
                return spread
        at = np.searchsorted(lows, cells, side="right") - 1
        held = (at >= 0) & (cells < highs.take(at, mode="wrap"))
        relations: npt.NDArray[np.int8] = kinds.take(at, mode="wrap") * held
        return relations

    def _relations_of_sorted(self, cells: Cells) -> npt.NDArray[np.int8]:
        """`relations` of ascending cells, as runs have them: few ends are looked up among many."""
        lows, highs, kinds = self._by_relation
        ends = np.stack([np.searchsorted(cells, lows), np.searchsorted(cells, highs)], axis=1)
        lengths = np.diff(ends.ravel(), prepend=0, append=len(cells))
        between = np.zeros(len(lengths), dtype=np.int8)
        between[1::2] = kinds
        return between.repeat(lengths)

    @cached_property
    def _by_relation(self) -> tuple[Cells, Cells, npt.NDArray[np.int8]]:
        """All ranges, ascending: lower and upper ends, and the `CellRelation` of each."""
        parts = (self.border, self.inside, self.untested)
        lows, highs = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        kinds = np.repeat(np.array(_RELATIONS, dtype=np.int8), [len(part[0]) for part in parts])
        order = np.argsort(lows)
        return lows[order], highs[order], kinds[order]


def from_prefixes(prefixes: tuple[str, ...], precision: int) -> Cover:
    """The cover of geohash prefixes; one longer than `precision` makes its cell a border.

    Raises:
        InputError: a prefix has a character that geohash lacks.
    """
    spans = [(p, geohash.prefix_range(p[:precision], precision)) for p in prefixes]
    inside = [span for prefix, span in spans if len(prefix) <= precision]
    border = [span for prefix, span in spans if len(prefix) > precision]
    whole = ranges.normalise(*_columns(inside))
    partly = ranges.normalise(*_columns(border))
    outside = ranges.complement(whole, 1 << 5 * precision)
    return Cover(whole, ranges.intersection(partly, outside), ranges.none())


def from_region(
    region: Region, precision: int, *, interior: bool = False, cells_max: int = CELLS_MAX
) -> Cover:
    """The cover of a region.

    Args:
        region: to be covered.
        precision: characters of the cells.
        interior: whether inner cells must not touch the region's edge.
        cells_max: bound on cells tested at a step and on ranges.
    """

    def test(boxes: Boxes) -> tuple[Mask, Mask]:
        return region.relations(boxes, interior=interior)

    first = _first_cells(region.extents, precision, cells_max)
    return _descend(_by_box(test), first, precision=precision, cells_max=cells_max)


def from_circle(circle: Circle, precision: int, *, cells_max: int = CELLS_MAX) -> Cover:
    """The cover of a circle; cells in doubt because of rounding are on its border."""
    first = _first_cells(circle.extents, precision, cells_max)
    return _descend(_by_box(circle.relations), first, precision=precision, cells_max=cells_max)


def from_pattern(pattern: Pattern, precision: int, *, cells_max: int = CELLS_MAX) -> Cover:
    """The cover of all cells that match a pattern; one longer than `precision` has borders."""

    def test(cells: Cells, level: int) -> tuple[Mask, Mask]:
        return pattern.intersects(cells, level), pattern.covers(cells, level)

    return _descend(test, _ALL_CELLS, precision=precision, cells_max=cells_max)


_ALL_CELLS = (np.arange(32, dtype=np.uint64), 1)


def _first_cells(extents: Sequence[Extent], precision: int, cells_max: int) -> tuple[Cells, int]:
    """The cells that cover the extents, as long as they are few, and their length."""
    few = min(FIRST_CELLS_MAX, cells_max)
    for level in range(precision, 1, -1):
        if sum(geohash.count_cells_intersecting_bbox(*extent, level) for extent in extents) <= few:
            cells = [geohash.cells_intersecting_bbox(*extent, level) for extent in extents]
            return (cells[0] if len(cells) == 1 else np.unique(np.concatenate(cells))), level
    return _ALL_CELLS


def _descend(test: CellTest, first: tuple[Cells, int], *, precision: int, cells_max: int) -> Cover:
    """The cover that the test yields.

    Args:
        test: of the region.
        first: cells of one length that cover the region.
        precision: characters of the cells.
        cells_max: bound on cells tested at a step and on ranges.
    """
    cells, level = first
    inside: list[Ranges] = []
    while True:
        met, enclosed = test(cells, level)
        inside.append(_spans(cells[enclosed], precision - level))
        cells = cells[met & ~enclosed]
        count = sum(len(lo) for lo, _ in inside)
        if level == precision or len(cells) == 0 or count + 32 * len(cells) > cells_max:
            break
        cells, level = _children(cells), level + 1
    rest = ranges.normalise(*_spans(cells, precision - level))
    whole = ranges.normalise(*(np.concatenate(ends) for ends in zip(*inside, strict=True)))
    if level == precision:
        return Cover(whole, rest, ranges.none())
    return Cover(whole, ranges.none(), rest)


def _by_box(test: Callable[[Boxes], tuple[Mask, Mask]]) -> CellTest:
    return lambda cells, level: test(geohash.bounds(cells, level))


def _children(cells: Cells) -> Cells:
    digits = np.arange(32, dtype=np.uint64)
    return ((cells[:, None] << np.uint64(5)) | digits).ravel()


def _spans(cells: Cells, missing: int) -> Ranges:
    """Ranges of the descendants of cells that are `missing` characters longer."""
    shift = np.uint64(5 * missing)
    return cells << shift, (cells + np.uint64(1)) << shift


def _columns(pairs: list[tuple[int, int]]) -> Ranges:
    array = np.array(pairs, dtype=np.uint64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
