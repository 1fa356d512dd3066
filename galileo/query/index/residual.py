"""Residual filters: conditions that fit no bound column, evaluated once for all equal ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from galileo.geo.geohash import Cells
from galileo.query import visitors
from galileo.query.columns import Columns, Mask
from galileo.query.index.bound_columns import PathRows, grow
from galileo.query.index.candidates import CandidatePairs
from galileo.query.index.normal_form import by_cell_alone
from galileo.query.index.prefixes import Places
from galileo.query.predicates import Leaf, Node

NONE = -1
CELLS_REMEMBERED_MAX = 4_096
"""Cached results of one purely spatial condition."""


class _Condition:
    """One condition and its number of slots; results on cells are cached."""

    __slots__ = ("_cells", "_verdicts", "holders", "node", "placed")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.holders = 0
        self.placed = by_cell_alone(node)
        self._cells: Cells = np.empty(0, dtype=np.uint64)
        self._verdicts: Mask = np.empty(0, dtype=np.bool_)

    def accepts(self, columns: Columns) -> Mask:
        if not self.placed:
            return visitors.verdicts(self.node, columns, _test_paths)
        cells, inverse = np.unique(columns.cell, return_inverse=True)
        self._evaluate_cells(np.setdiff1d(cells, self._cells, assume_unique=True))
        known: Mask = self._verdicts[np.searchsorted(self._cells, cells)][inverse]
        if len(self._cells) > CELLS_REMEMBERED_MAX:
            self._cells, self._verdicts = self._cells[:0], self._verdicts[:0]
        return known

    def _evaluate_cells(self, cells: Cells) -> None:
        if len(cells) == 0:
            return
        buckets = np.zeros(len(cells), dtype=np.int64)
        fresh = visitors.verdicts(self.node, Columns(cells, buckets, {}), _test_paths)
        cells = np.concatenate([self._cells, cells])
        order = np.argsort(cells)
        self._cells = cells[order]
        self._verdicts = np.concatenate([self._verdicts, fresh])[order]

    @property
    def nbytes(self) -> int:
        return int(self._cells.nbytes + self._verdicts.nbytes)


class ResidualFilters:
    """The residual conditions of all slots; equal ones are shared."""

    def __init__(self, capacity: int) -> None:
        self._of: npt.NDArray[np.int32] = np.full(capacity, NONE, dtype=np.int32)
        self._conditions: dict[int, _Condition] = {}
        self._numbers: dict[Node, int] = {}
        self._next = 0

    @property
    def nbytes(self) -> int:
        return int(self._of.nbytes) + sum(
            condition.nbytes for condition in self._conditions.values()
        )

    def write(self, slot: int, node: Node | None) -> None:
        """Set the condition of a slot; None: none."""
        if slot >= len(self._of):
            self._of = grow(self._of, 2 * len(self._of), NONE)
        self._release(int(self._of[slot]))
        self._of[slot] = NONE if node is None else self._number(node)

    def filter(self, pairs: CandidatePairs, rows: PathRows) -> CandidatePairs:
        """The pairs whose row satisfies the condition."""
        numbers = self._of.take(pairs.slots)
        open_pairs = np.flatnonzero(numbers != NONE)
        if len(open_pairs) == 0:
            return pairs
        order = open_pairs[np.argsort(numbers[open_pairs], kind="stable")]
        mask = np.ones(len(pairs), dtype=np.bool_)
        starts = np.flatnonzero(np.diff(numbers[order], prepend=np.int32(NONE)))
        for places in np.split(order, starts[1:]):
            mask[places] = self._verdicts(int(numbers[places[0]]), pairs.rows[places], rows)
        return pairs.where(mask)

    def _verdicts(self, number: int, places: Places, rows: PathRows) -> Mask:
        distinct, inverse = np.unique(places, return_inverse=True)
        verdicts: Mask = self._conditions[number].accepts(rows.columns.take(distinct))[inverse]
        return verdicts

    def _number(self, node: Node) -> int:
        number = self._numbers.setdefault(node, self._next)
        if number == self._next:
            self._next += 1
            self._conditions[number] = _Condition(node)
        self._conditions[number].holders += 1
        return number

    def _release(self, number: int) -> None:
        if number == NONE:
            return
        condition = self._conditions[number]
        condition.holders -= 1
        if condition.holders == 0:
            del self._conditions[number]
            del self._numbers[condition.node]


def _test_paths(leaf: Leaf, columns: Columns) -> Mask:
    return leaf.may_match_paths(columns)
