"""Candidate pairs of a query and a row, made from ranges of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from galileo.arrays import within
from galileo.query.columns import Mask
from galileo.query.index.prefixes import CandidateRanges, Places, Slots

PAIRS_AT_ONCE = 1 << 18
"""About so many candidates are tested together; their columns fit the cache of the processor."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidatePairs:
    """Pairs of a query and a row.

    Attributes:
        slots: of the queries, shape (k,).
        rows: shape (k,).
    """

    slots: Slots
    rows: Places

    def __len__(self) -> int:
        return len(self.slots)

    def where(self, mask: Mask) -> CandidatePairs:
        if mask.all():
            return self
        places = np.flatnonzero(mask)
        return CandidatePairs(self.slots.take(places), self.rows.take(places))


def pairs_from_ranges(hits: CandidateRanges, order: Places | None) -> Iterator[CandidatePairs]:
    """Pair every query of the hits with every row of its range, in portions.

    Args:
        hits: of positions.
        order: the row at each position; None: positions are rows.
    """
    counts = hits.stop - hits.start
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE), side="left") + 1
    edges = np.unique(np.concatenate(([0], cuts, [len(hits)]))).tolist()
    for first, end in itertools.pairwise(edges):
        part = counts[first:end]
        places = np.repeat(hits.start[first:end], part) + within(part)
        rows = places if order is None else order.take(places)
        if len(rows):
            yield CandidatePairs(np.repeat(hits.slots[first:end], part), rows)
