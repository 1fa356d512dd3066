"""New rows, sorted by a feature or by their time.

A comparison with a parameter then is a range of this order, of which two binary searches find both
ends, for all groups at once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.query.columns import FeatureColumn, TextColumn
from galileo.query.feature_predicates import casefold
from galileo.query.index.prefixes import Places
from galileo.query.operands import DATETIME
from galileo.query.predicates import ObservationColumns

Spans: TypeAlias = tuple[Places, Places]
"""First positions and ends of ranges."""


class RowOrder:
    """Rows that have a value, sorted by it.

    Attributes:
        rows: in their order.
        positions: of each row in the order; -1 for one without a value.

    Args:
        values: of the rows that have one.
        rows: their numbers.
        count: of all rows.
    """

    __slots__ = ("positions", "rows", "values")

    def __init__(self, values: npt.NDArray[Any], rows: Places, *, count: int) -> None:
        order = np.argsort(values, kind="stable")
        self.rows, self.values = rows[order], values[order]
        self.positions: Places = np.full(count, -1, dtype=np.intp)
        self.positions[self.rows] = np.arange(len(order))

    def __len__(self) -> int:
        return len(self.rows)

    def spans(self, sign: str, constants: Any) -> Spans:
        """The ranges of rows whose value is in a relation to constants; of "<>" those of "=".

        Args:
            sign: one of `COMPARE`.
            constants: numbers, or times in microseconds.
        """
        first: Places = np.zeros(len(constants), dtype=np.intp)
        end: Places = np.full(len(constants), len(self), dtype=np.intp)
        if sign in ("=", "<>", ">=", ">"):
            first = self._search(constants, side="right" if sign == ">" else "left")
        if sign in ("=", "<>", "<=", "<"):
            end = self._search(constants, side="left" if sign == "<" else "right")
        return first, end

    def _search(self, constants: Any, side: Any) -> Places:
        positions: Places = np.searchsorted(self.values, constants, side=side)
        return positions


class TextOrder(RowOrder):
    """Rows sorted by a text.

    Args:
        column: of the feature.
        folded: whether texts are compared without regard to case.
    """

    __slots__ = ("_folded", "_texts")

    def __init__(self, column: TextColumn, *, folded: bool) -> None:
        texts = casefold(column.dictionary) if folded else column.dictionary
        self._texts = pc.unique(texts).sort()
        codes = pc.index_in(texts, value_set=self._texts).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(column.valid)
        super().__init__(codes[column.codes[rows]], rows, count=len(column))
        self._folded = folded

    def spans(self, sign: str, constants: pa.Array) -> Spans:
        """As of numbers; the constants are texts."""
        texts = casefold(constants) if self._folded else constants
        if sign in ("=", "<>"):
            codes = pc.index_in(texts, value_set=self._texts).fill_null(-1)
            return super().spans(sign, codes.to_numpy())
        ranks = pc.rank(pa.concat_arrays([self._texts, texts]), tiebreaker="dense").to_numpy()
        known, asked = np.split(ranks, [len(self._texts)])
        if sign in ("<", ">="):
            return super().spans(sign, np.searchsorted(known, asked, side="left"))
        codes = np.searchsorted(known, asked, side="right")
        return super().spans({"<=": "<", ">": ">="}[sign], codes)


def row_order(points: ObservationColumns, name: str, *, folded: bool) -> RowOrder:
    """The rows sorted by a feature, or by their time.

    Args:
        points: the rows.
        name: of the feature, or `DATETIME`.
        folded: whether texts are compared without regard to case.
    """
    if name == DATETIME:
        return RowOrder(points.time, np.arange(len(points)), count=len(points))
    column: FeatureColumn = points.features[name]
    if isinstance(column, TextColumn):
        return TextOrder(column, folded=folded)
    rows = np.flatnonzero(column.valid)
    return RowOrder(column.numbers[rows], rows, count=len(points))
