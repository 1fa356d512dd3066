"""Zone maps: bounds of many paths together, which exclude them without reading each.

A zone is a range of rows of a sorted run or a coarse vertex of the feature graph. The result of a
query for a zone is False only if certainly no path in it matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.query.columns import Columns, FeatureColumn, Mask, TextColumn

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class FeatureZones:
    """Bounds of one feature in k zones.

    Attributes:
        lo: least value that is not null, shape (k,); None where bounds are unknown (texts).
            Numbers and booleans as doubles; unread where `has_value` is false.
        hi: greatest value, likewise.
        has_null: whether the zone may hold a null.
        has_value: whether the zone may hold a value that is not null.
    """

    lo: npt.NDArray[np.float64] | None
    hi: npt.NDArray[np.float64] | None
    has_null: Mask
    has_value: Mask

    @classmethod
    def of(cls, column: FeatureColumn, starts: Starts) -> FeatureZones:
        """The zones of ranges of a column's rows, which begin at `starts` (sorted, the first 0)."""
        valid = column.valid
        has_value = np.logical_or.reduceat(valid, starts)
        has_null = np.logical_or.reduceat(~valid, starts)
        if isinstance(column, TextColumn):
            return cls(None, None, has_null, has_value)
        numbers = column.numbers
        lo = np.minimum.reduceat(np.where(valid, numbers, np.inf), starts)
        hi = np.maximum.reduceat(np.where(valid, numbers, -np.inf), starts)
        return cls(lo, hi, has_null, has_value)

    def take(self, rows: Any) -> FeatureZones:
        """The zones of an index array, a mask or a slice."""
        lo = None if self.lo is None else self.lo[rows]
        hi = None if self.hi is None else self.hi[rows]
        return FeatureZones(lo, hi, self.has_null[rows], self.has_value[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Zones:
    """Bounds of k zones; every bound is inclusive.

    Attributes:
        cell_lo: least cell at the schema's precision, shape (k,).
        cell_hi: greatest cell.
        bucket_lo: least start of a time bucket, microseconds.
        bucket_hi: greatest start of a time bucket, microseconds.
        features: of every indexed feature by name; an absent one is unknown.
    """

    cell_lo: npt.NDArray[np.uint64]
    cell_hi: npt.NDArray[np.uint64]
    bucket_lo: npt.NDArray[np.int64]
    bucket_hi: npt.NDArray[np.int64]
    features: Mapping[str, FeatureZones]

    def __len__(self) -> int:
        return len(self.cell_lo)

    @classmethod
    def of(cls, columns: Columns, starts: Starts) -> Zones:
        """The zones of ranges of rows, which begin at `starts` (sorted, the first 0)."""
        return cls(
            np.minimum.reduceat(columns.cell, starts),
            np.maximum.reduceat(columns.cell, starts),
            np.minimum.reduceat(columns.bucket, starts),
            np.maximum.reduceat(columns.bucket, starts),
            {name: FeatureZones.of(column, starts) for name, column in columns.features.items()},
        )

    def take(self, rows: Any) -> Zones:
        """The zones of an index array, a mask or a slice."""
        return Zones(
            self.cell_lo[rows],
            self.cell_hi[rows],
            self.bucket_lo[rows],
            self.bucket_hi[rows],
            {name: zones.take(rows) for name, zones in self.features.items()},
        )
