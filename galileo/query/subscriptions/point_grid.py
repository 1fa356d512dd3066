"""A grid over new rows, which finds those near many boxes at once.

Each coordinate is cut into columns (or rows) of the grid with about as many points each, so that it
serves points that lie close together as well as those of the whole earth. A bin of equal width has
one column; as a box, a point belongs to the column of its bin, so that a point in the box is never
missed, however numbers are rounded. A table of sums (Crow, "Summed-area tables for texture
mapping", SIGGRAPH 1984) has the points of all cells from the first on, so that four of its entries
count those of a box.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.arrays import within
from galileo.geo.regions import Floats, Mask
from galileo.query.index.candidates import PAIRS_AT_ONCE
from galileo.query.index.prefixes import CandidateRanges, Places
from galileo.query.subscriptions.blocks import Numbers

BINS = 1 << 16
COLUMNS_MAX = 1_024
COLUMNS_PER_ROOT = 6.0
"""Columns for each unit of the square root of the number of points."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupBoxes:
    """Boxes outside of which groups have no matches, sorted by group; a group can have several.

    Attributes:
        groups: their numbers.
        west, south, east, north: degrees; what lies beyond ±180 has no points.
    """

    groups: Numbers
    west: Floats
    south: Floats
    east: Floats
    north: Floats

    def __len__(self) -> int:
        return len(self.groups)

    def where(self, mask: Mask) -> GroupBoxes:
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def take(self, places: Places) -> GroupBoxes:
        return GroupBoxes(*(getattr(self, field.name).take(places) for field in fields(self)))


class _Axis:
    """One coordinate, cut into columns."""

    __slots__ = ("_columns", "_low", "_scale", "high")

    def __init__(self, values: Floats, columns: int) -> None:
        self._low, self.high = float(values.min()), float(values.max())
        width = self.high - self._low
        self._scale = (BINS - 1) / width if width > 0 else 0.0
        counts = np.bincount(self._bins(values), minlength=BINS)
        before = np.cumsum(counts) - counts
        self._columns: Places = np.minimum(before * columns // len(values), columns - 1)

    @property
    def low(self) -> float:
        return self._low

    def columns(self, values: Floats) -> Places:
        """The column of each value; those outside are in the first and in the last one."""
        return self._columns.take(self._bins(values))

    def _bins(self, values: Floats) -> npt.NDArray[Any]:
        scaled = (values - self._low) * self._scale
        return np.clip(scaled, 0, BINS - 1, out=scaled).astype(np.intp)


class PointGrid:
    """Points by cells.

    Attributes:
        rows: the points, those of one cell after those of another.

    Args:
        latitude, longitude: of the points, at least one.
    """

    __slots__ = ("_first", "_size", "_sums", "_x", "_y", "rows")

    def __init__(self, latitude: Floats, longitude: Floats) -> None:
        size = int(np.clip(COLUMNS_PER_ROOT * np.sqrt(len(latitude)), 1, COLUMNS_MAX))
        self._x, self._y, self._size = _Axis(longitude, size), _Axis(latitude, size), size
        cells = self._y.columns(latitude) * size + self._x.columns(longitude)
        self.rows: Places = np.argsort(cells)
        counts = np.bincount(cells, minlength=size * size)
        self._first = np.zeros(size * size + 1, dtype=np.intp)
        np.cumsum(counts, out=self._first[1:])
        sums = np.zeros((size + 1, size + 1), dtype=np.int32)
        inner = sums[1:, 1:]
        counts.reshape(size, size).cumsum(axis=1, dtype=np.int32, out=inner)
        inner.cumsum(axis=0, out=inner)
        self._sums = sums.ravel()

    def near(self, boxes: GroupBoxes) -> tuple[GroupBoxes, Places]:
        """The boxes with points in their cells, and how many each has."""
        x, y = self._x, self._y
        met = (boxes.west <= x.high) & (boxes.east >= x.low)
        met &= (boxes.south <= y.high) & (boxes.north >= y.low)
        boxes = boxes.where(met)
        west, south, east, north = self._cells(boxes)
        width = self._size + 1
        low, high = south * width, (north + 1) * width
        sums = self._sums
        counts = sums.take(high + east + 1) - sums.take(high + west)
        counts -= sums.take(low + east + 1) - sums.take(low + west)
        full = counts > 0
        return boxes.where(full), counts[full].astype(np.intp)

    def ranges(self, boxes: GroupBoxes) -> Iterator[CandidateRanges]:
        """For each box the ranges of `rows` in its cells, one for each row of the grid."""
        west, south, east, north = self._cells(boxes)
        heights = north - south + 1
        ends = np.cumsum(heights)
        total = int(ends[-1]) if len(ends) else 0
        cuts = (
            np.searchsorted(ends, np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE), side="left") + 1
        )
        edges = np.unique([0, *cuts.tolist(), len(boxes)]).tolist()
        for start, stop in itertools.pairwise(edges):
            part = heights[start:stop]
            cells = (np.repeat(south[start:stop], part) + within(part)) * self._size
            first = self._first.take(cells + np.repeat(west[start:stop], part))
            last = self._first.take(cells + np.repeat(east[start:stop], part) + 1)
            groups = np.repeat(boxes.groups[start:stop], part)
            yield CandidateRanges(groups, first, last).where(first < last)

    def _cells(self, boxes: GroupBoxes) -> tuple[Places, Places, Places, Places]:
        x, y = self._x, self._y
        west, east = x.columns(boxes.west), x.columns(boxes.east)
        return west, y.columns(boxes.south), east, y.columns(boxes.north)
