"""Rows by 64-bit hashes of their keys, in sorted arrays."""

from __future__ import annotations

import numpy as np

from galileo.arrays import within
from galileo.geo.geohash import Cells
from galileo.model.sort_keys import sort_order
from galileo.query.index.prefixes import Places


class HashIndex:
    """Rows by their hashes; 12 bytes each. Rows of other keys can have the same hash.

    Args:
        hashes: of the rows, in their order.
    """

    __slots__ = ("_hashes", "_rows")

    def __init__(self, hashes: Cells) -> None:
        order = sort_order([hashes])
        self._rows = order.astype(np.int32)
        self._hashes = hashes[order]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes + self._hashes.nbytes)

    @property
    def hashes(self) -> Cells:
        """Those of the rows, in their order."""
        hashes = np.empty_like(self._hashes)
        hashes[self._rows] = self._hashes
        return hashes

    def find(self, hashes: Cells) -> tuple[Places, Places]:
        """All pairs of a position in `hashes`, best sorted, and a row of that hash."""
        if len(self) == 0:
            return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
        first = np.searchsorted(self._hashes, hashes, side="left")
        near = np.flatnonzero(self._hashes.take(first, mode="clip") == hashes)
        first = first[near]
        counts = np.searchsorted(self._hashes, hashes[near], side="right") - first
        rows = self._rows[np.repeat(first, counts) + within(counts)]
        return np.repeat(near, counts), rows.astype(np.intp)
