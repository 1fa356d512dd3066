"""Conditions on place: a region of the earth, a distance from a point, or geohash prefixes.

Each has a cover of the geohash curve, which decides whole ranges of cells; only untested cells of
the cover are compared with the shape.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from galileo.geo import cover, geohash, ranges
from galileo.geo.circles import Circle
from galileo.geo.cover import CellRelation, Cover
from galileo.geo.geohash import Cells
from galileo.geo.patterns import Pattern
from galileo.geo.ranges import Ranges
from galileo.geo.regions import Region
from galileo.query.columns import Columns, Mask
from galileo.query.predicates import ALWAYS, ObservationColumns, Span, negation
from galileo.query.zone_maps import Zones


class SpatialLeaf(ABC):
    """A condition on the place, perhaps negated.

    Attributes:
        precision: characters of the schema's cells.
        negated: whether the observation must be elsewhere.
    """

    precision: int
    negated: bool
    cost: ClassVar[int] = 3
    features: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def cover(self) -> Cover: ...

    @abstractmethod
    def matches_rows(self, points: ObservationColumns) -> Mask: ...

    @abstractmethod
    def json(self) -> Any: ...

    @abstractmethod
    def test_cells(self, cells: Cells) -> Mask:
        """Test distinct cells that the cover leaves open."""

    def may_match_paths(self, columns: Columns) -> Mask:
        places = self.cover.relations(columns.cell)
        bounds = (
            (CellRelation.OUTSIDE, CellRelation.BORDER)
            if self.negated
            else (CellRelation.INSIDE, CellRelation.BORDER)
        )
        mask: Mask = (places == bounds[0]) | (places == bounds[1])
        unclear = np.flatnonzero(places == CellRelation.UNTESTED)
        if len(unclear):
            cells, inverse = np.unique(columns.cell[unclear], return_inverse=True)
            mask[unclear] = self.test_cells(cells)[inverse]
        return mask

    def must_match_paths(self, columns: Columns) -> Mask:
        relation = CellRelation.OUTSIDE if self.negated else CellRelation.INSIDE
        mask: Mask = self.cover.relations(columns.cell) == relation
        return mask

    def may_match_zones(self, zones: Zones) -> Mask:
        if self.negated:
            return ~ranges.holds(self.cover.inside, zones.cell_lo, zones.cell_hi)
        return ranges.overlaps(self.cover.possible, zones.cell_lo, zones.cell_hi)

    def cells(self) -> Ranges:
        if self.negated:
            return ranges.complement(self.cover.inside, 1 << 5 * self.precision)
        return self.cover.possible

    def buckets(self) -> Span:
        return ALWAYS


@dataclass(frozen=True)
class InRegion(SpatialLeaf):
    """The observation lies in a region or on its edge; `interior` leaves the edge out.

    A path matches where its cell shares a point with the region; negated, where the cell is
    not covered by it.

    Attributes:
        source: the geometry as JSON text, by which two such conditions are equal.
    """

    source: str
    region: Region = field(compare=False, repr=False)
    precision: int
    interior: bool = False
    negated: bool = False

    @cached_property
    def cover(self) -> Cover:
        return cover.from_region(self.region, self.precision, interior=self.interior)

    def test_cells(self, cells: Cells) -> Mask:
        boxes = geohash.bounds(cells, self.precision)
        if not self.negated:
            return self.region.intersects(boxes)
        enclosed = (
            self.region.contains_strictly(boxes) if self.interior else self.region.covers(boxes)
        )
        return ~enclosed

    def matches_rows(self, points: ObservationColumns) -> Mask:
        test = self.region.contains_points if self.interior else self.region.intersects_points
        mask: Mask = test(points.latitude, points.longitude) != self.negated
        return mask

    def json(self) -> Any:
        name = "s_within" if self.interior else "s_intersects"
        args = [{"property": "geometry"}, json.loads(self.source)]
        return negation({"op": name, "args": args}, self.negated)


@dataclass(frozen=True)
class WithinDistance(SpatialLeaf):
    """The observation lies within a great-circle distance of a point.

    A path matches where its cell may hold such a place; negated, where the cell may hold one
    that is farther away.
    """

    circle: Circle
    precision: int
    negated: bool = False

    @cached_property
    def cover(self) -> Cover:
        return cover.from_circle(self.circle, self.precision)

    def test_cells(self, cells: Cells) -> Mask:
        boxes = geohash.bounds(cells, self.precision)
        return ~self.circle.covers(boxes) if self.negated else self.circle.intersects(boxes)

    def matches_rows(self, points: ObservationColumns) -> Mask:
        mask: Mask = (
            self.circle.intersects_points(points.latitude, points.longitude) != self.negated
        )
        return mask

    def json(self) -> Any:
        centre = [self.circle.longitude, self.circle.latitude]
        point = {"type": "Point", "coordinates": centre}
        args = [{"property": "geometry"}, point, self.circle.radius_m]
        return negation({"op": "dwithin", "args": args}, self.negated)


@dataclass(frozen=True)
class InCells(SpatialLeaf):
    """The observation lies in one of the cells named by geohash prefixes.

    Attributes:
        prefixes: sorted and distinct; one longer than `precision` is exact for observations
            and accepts the cell around it for paths.
    """

    prefixes: tuple[str, ...]
    precision: int
    negated: bool = False

    @cached_property
    def cover(self) -> Cover:
        return cover.from_prefixes(self.prefixes, self.precision)

    def test_cells(self, cells: Cells) -> Mask:
        raise AssertionError(f"the cover of prefixes is complete, yet {len(cells)} cells are open")

    def matches_rows(self, points: ObservationColumns) -> Mask:
        mask = np.zeros(len(points), dtype=np.bool_)
        for length in {len(prefix) for prefix in self.prefixes}:
            named = geohash.from_text([p for p in self.prefixes if len(p) == length])
            mask |= np.isin(geohash.encode(points.latitude, points.longitude, length), named)
        verdict: Mask = mask != self.negated
        return verdict

    def json(self) -> Any:
        likes = [
            {"op": "like", "args": [{"property": "geohash"}, f"{prefix}%"]}
            for prefix in self.prefixes
        ]
        either = likes[0] if len(likes) == 1 else {"op": "or", "args": likes}
        return negation(either, self.negated)


@dataclass(frozen=True)
class InPattern(SpatialLeaf):
    """The observation's geohash begins as a pattern with characters that may be any.

    A pattern longer than `precision` is exact for observations; a path matches where its cell
    begins as the pattern does, and negated always.
    """

    pattern: Pattern
    precision: int
    negated: bool = False

    @cached_property
    def cover(self) -> Cover:
        return cover.from_pattern(self.pattern, self.precision)

    def test_cells(self, cells: Cells) -> Mask:
        if self.negated:
            return ~self.pattern.covers(cells, self.precision)
        return self.pattern.intersects(cells, self.precision)

    def matches_rows(self, points: ObservationColumns) -> Mask:
        mask = self.pattern.intersects_points(points.latitude, points.longitude)
        verdict: Mask = mask != self.negated
        return verdict

    def json(self) -> Any:
        like = {"op": "like", "args": [{"property": "geohash"}, f"{self.pattern.text}%"]}
        return negation(like, self.negated)
