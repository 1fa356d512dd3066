"""Groups of a conjunction of comparisons, regions and circles, in columns.

The new rows are indexed, and the groups are scanned, some at a time: a grid counts the rows near
the box of each group, and each comparison leaves a range of the rows in their order. Groups without
any are left out; of the others the condition that leaves the fewest rows gives the candidates,
which the other conditions filter. So the scan reads a few numbers of each group, and what follows
depends on the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import pyarrow as pa

from galileo.geo.geohash import Cells
from galileo.geo.regions import Mask
from galileo.hashing import hash128
from galileo.model.sort_keys import differs
from galileo.query.index.candidates import CandidatePairs, pairs_from_ranges
from galileo.query.index.prefixes import CandidateRanges, Places
from galileo.query.subscriptions.blocks import Numbers
from galileo.query.subscriptions.conjuncts import InArea, InCircle, ParameterComparison
from galileo.query.subscriptions.hash_index import HashIndex
from galileo.query.subscriptions.parameter_query import ParameterQuery
from galileo.query.subscriptions.point_grid import GroupBoxes
from galileo.query.subscriptions.row_index import RowIndex
from galileo.query.subscriptions.row_orders import RowOrder
from galileo.query.subscriptions.spatial_tests import (
    AreaTest,
    CircleTest,
    SpatialTest,
    circle_reach,
)
from galileo.query.subscriptions.value_columns import (
    Field,
    FieldColumn,
    Vector,
    column_of,
    equal_fields,
    fields_of,
    hashed,
)

GROUPS_AT_ONCE = 1 << 16
"""Groups that are scanned together; their columns fit the cache of the processor."""
RUNS = 8
"""Indexes of hashes that are merged, if the oldest of them is not larger than the others."""


class ColumnGroups:
    """Each group is a row of the columns of its values.

    Args:
        query: a template of simple parts.
    """

    def __init__(self, query: ParameterQuery) -> None:
        assert query.simple is not None, "only simple parts have columns"
        self._query, self._parts = query, query.simple
        self._columns: dict[str, list[FieldColumn]] = {}
        self._reach: dict[InCircle, Vector] = {}
        self._runs: list[HashIndex] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def nbytes(self) -> int:
        columns = sum(column.nbytes for column in self._flat_columns())
        reach = sum(column.nbytes for column in self._reach.values())
        return columns + reach + sum(run.nbytes for run in self._runs)

    def numbers_of(self, values: Mapping[str, pa.Array]) -> Numbers:
        fields = {
            name: fields_of(column, self._query.places[name]) for name, column in values.items()
        }
        flat = [field for several in fields.values() for field in several]
        hashes = hash128([hashed(field) for field in flat])[:, 0]
        numbers = self._known(flat, hashes)
        firsts, codes = _first_of_equal(flat, hashes)
        new = firsts[numbers[firsts] < 0]
        numbers[new] = len(self) + np.arange(len(new), dtype=np.int32)
        self._append({name: _take(several, new) for name, several in fields.items()}, hashes[new])
        return numbers[firsts][codes]

    def keep(self, kept: Mask) -> None:
        hashes = np.concatenate([run.hashes for run in self._runs])
        for columns in self._columns.values():
            for column in columns:
                column.keep(kept)
        for reach in self._reach.values():
            reach.keep(kept)
        self._runs = [HashIndex(hashes[kept])]

    def match(self, rows: RowIndex, alive: Mask) -> Iterator[CandidatePairs]:
        scan = _Scan(rows, self._comparisons(), self._spatial_tests())
        for start in range(0, len(alive), GROUPS_AT_ONCE):
            groups = np.flatnonzero(alive[start : start + GROUPS_AT_ONCE]) + start
            yield from scan.match(groups.astype(np.int32))

    def _known(self, fields: Sequence[Field], hashes: Cells) -> Numbers:
        """The number of each row; -1 of a new one."""
        numbers: Numbers = np.full(len(hashes), -1, dtype=np.int32)
        order, before = np.argsort(hashes), 0
        for run in self._runs:
            rows, found = run.find(hashes[order])
            rows = order[rows]
            stored = [column.take(found + before) for column in self._flat_columns()]
            equal = equal_fields(_take(fields, rows), stored)
            numbers[rows[equal]] = found[equal] + before
            before += len(run)
        return numbers

    def _flat_columns(self) -> list[FieldColumn]:
        return [column for columns in self._columns.values() for column in columns]

    def _append(self, fields: Mapping[str, Sequence[Field]], hashes: Cells) -> None:
        if len(hashes) == 0:
            return
        for name, several in fields.items():
            if name not in self._columns:
                self._columns[name] = [column_of(field) for field in several]
            else:
                for column, field in zip(self._columns[name], several, strict=True):
                    column.extend(field)
        for part in self._parts:
            if isinstance(part, InCircle):
                self._append_reach(part, fields, len(hashes))
        self._runs.append(HashIndex(hashes))
        self._merge()

    def _append_reach(
        self, part: InCircle, fields: Mapping[str, Sequence[Field]], count: int
    ) -> None:
        centre, radius = part.centre, part.radius
        latitude = fields[centre][1] if isinstance(centre, str) else np.full(count, centre[1])
        radius_m = fields[radius][0] if isinstance(radius, str) else np.full(count, radius)
        reach = circle_reach(latitude, radius_m)
        if part in self._reach:
            self._reach[part].extend(reach)
        else:
            self._reach[part] = Vector(reach)

    def _merge(self) -> None:
        while len(self._runs) >= RUNS:
            oldest, *others = self._runs[-RUNS:]
            if len(oldest) > sum(map(len, others)):
                return
            merged = HashIndex(np.concatenate([run.hashes for run in (oldest, *others)]))
            self._runs[-RUNS:] = [merged]

    def _comparisons(self) -> list[tuple[ParameterComparison, FieldColumn]]:
        return [
            (part, self._columns[part.parameter][0])
            for part in self._parts
            if isinstance(part, ParameterComparison)
        ]

    def _spatial_tests(self) -> list[SpatialTest]:
        tests: list[SpatialTest] = []
        for part in self._parts:
            if isinstance(part, InArea):
                tests.append(AreaTest(self._columns[part.parameter], part.interior))
            elif isinstance(part, InCircle):
                centre, radius = part.centre, part.radius
                longitude, latitude = self._columns[centre] if isinstance(centre, str) else centre
                radius_m = self._columns[radius][0] if isinstance(radius, str) else radius
                tests.append(CircleTest(longitude, latitude, radius_m, self._reach[part]))
        return tests


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """For each group a range of an order of rows; `excluded`: what is not in it matches."""

    order: RowOrder
    start: Places
    stop: Places
    excluded: bool = False

    def take(self, places: Places) -> _Spans:
        return _Spans(self.order, self.start[places], self.stop[places], self.excluded)

    def accepts(self, pairs: CandidatePairs) -> Mask:
        """Mask of the pairs whose row is as the group demands; slots are places of groups."""
        position = self.order.positions[pairs.rows]
        mask = position >= self.start[pairs.slots]
        mask &= position < self.stop[pairs.slots]
        return (position >= 0) & ~mask if self.excluded else mask


class _Scan:
    """Matches groups with new rows."""

    def __init__(
        self,
        rows: RowIndex,
        comparisons: Sequence[tuple[ParameterComparison, FieldColumn]],
        spatial_tests: Sequence[SpatialTest],
    ) -> None:
        self._rows, self._comparisons, self._tests = rows, comparisons, spatial_tests

    def match(self, groups: Numbers) -> Iterator[CandidatePairs]:
        """The pairs of these groups, `GROUPS_AT_ONCE` numbers or fewer, and rows that match."""
        near: list[tuple[GroupBoxes, Places]] = []
        for test in self._tests:
            near.append(self._rows.grid.near(test.boxes(groups)))
            boxes = near[-1][0]
            groups = boxes.groups[differs(boxes.groups)]
        spans = self._spans(groups)
        full = np.ones(len(groups), dtype=np.bool_)
        for one in spans:
            full &= one.excluded | (one.start < one.stop)
        places = np.flatnonzero(full)
        groups, spans = groups[places], [one.take(places) for one in spans]
        for pairs in self._candidates(groups, spans, near):
            for one in spans:
                pairs = pairs.where(one.accepts(pairs))
            matches = CandidatePairs(groups[pairs.slots], pairs.rows)
            for test in self._tests:
                matches = matches.where(test.accepts(matches, self._rows.points))
            yield matches

    def _spans(self, groups: Numbers) -> list[_Spans]:
        """The ranges of each comparison, of which those of one order are one."""
        common: dict[int, _Spans] = {}
        excluded = []
        for part, column in self._comparisons:
            order = self._rows.order(part.name, folded=part.folded)
            start, stop = order.spans(part.operator, column.take(groups))
            if part.operator == "<>":
                excluded.append(_Spans(order, start, stop, excluded=True))
                start, stop = np.zeros_like(start), np.full_like(stop, len(order))
            if (known := common.get(id(order))) is not None:
                start, stop = np.maximum(start, known.start), np.minimum(stop, known.stop)
            common[id(order)] = _Spans(order, start, stop)
        return [*common.values(), *excluded]

    def _candidates(
        self,
        groups: Numbers,
        spans: Sequence[_Spans],
        near: Sequence[tuple[GroupBoxes, Places]],
    ) -> Iterator[CandidatePairs]:
        """The pairs that the most selective condition leaves; slots are places of groups."""
        if len(groups) == 0:
            return
        ways: list[tuple[int, _Spans | GroupBoxes]] = [
            (int((one.stop - one.start).sum()), one) for one in spans if not one.excluded
        ]
        places = np.full(GROUPS_AT_ONCE, -1, dtype=np.int32)
        places[groups % GROUPS_AT_ONCE] = np.arange(len(groups))
        for boxes, counts in near:
            there = replace(boxes, groups=places[boxes.groups % GROUPS_AT_ONCE])
            is_left = there.groups >= 0
            ways.append((int(counts[is_left].sum()), there.where(is_left)))
        _, way = min(ways, key=itemgetter(0))
        if isinstance(way, GroupBoxes):
            grid = self._rows.grid
            for ranges in grid.ranges(way):
                yield from pairs_from_ranges(ranges, grid.rows)
        else:
            everyone = np.arange(len(groups), dtype=np.int32)
            ranges = CandidateRanges(everyone, way.start, way.stop)
            yield from pairs_from_ranges(ranges, way.order.rows)


def _take(fields: Sequence[Field], rows: Places) -> list[Field]:
    return [
        field.take(pa.array(rows)) if isinstance(field, pa.Array) else field[rows]
        for field in fields
    ]


def _first_of_equal(fields: Sequence[Field], hashes: Cells) -> tuple[Places, Places]:
    """Rows of which no two are equal, and for each row which of these it equals."""
    _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    equal = equal_fields(fields, _take(fields, first[codes]))
    own = np.where(equal, first[codes], np.arange(len(hashes)))
    return np.unique(own, return_inverse=True)
