"""Match requests: pairs of a query and a cursor past which its matches are requested.

Many requests share the query or the cursor. Cursors are rows of a matrix, so that one comparison
serves all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.arrays import within
from galileo.cycle import NOT_REQUESTED
from galileo.query.columns import Mask
from galileo.query.index.candidates import CandidatePairs
from galileo.query.index.prefixes import Places, Slots

Sequences: TypeAlias = npt.NDArray[np.int64]
Partitions: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class MatchHits:
    """Pairs of a request and a matching row.

    Attributes:
        requests: number of the request, shape (k,).
        rows: shape (k,).
    """

    requests: npt.NDArray[np.int32]
    rows: Places

    def __len__(self) -> int:
        return len(self.requests)

    @classmethod
    def concat(cls, parts: Sequence[MatchHits]) -> MatchHits:
        requests = [np.empty(0, dtype=np.int32), *(part.requests for part in parts)]
        rows = [np.empty(0, dtype=np.intp), *(part.rows for part in parts)]
        return cls(np.concatenate(requests), np.concatenate(rows))


@dataclass(frozen=True, eq=False)
class MatchRequests:
    """n requests.

    Attributes:
        slots: of the query of each, shape (n,).
        cursors: row of `after` of each, shape (n,).
        partitions: requested ones, sorted, shape (p,).
        after: for each cursor and partition the last sequence that is not requested, or
            `NOT_REQUESTED`; shape (c, p).
    """

    slots: Slots
    cursors: npt.NDArray[np.int32]
    partitions: Partitions
    after: Sequences

    def __len__(self) -> int:
        return len(self.slots)

    def least_sequences(self) -> Sequences:
        """For each partition the least sequence after which commits are requested."""
        used = np.unique(self.cursors)
        if len(used) == 0:
            return np.full(len(self.partitions), NOT_REQUESTED, dtype=np.int64)
        least: Sequences = self.after[used].min(axis=0)
        return least

    def select(self, chosen: npt.NDArray[np.int32]) -> MatchRequests:
        """Some of the requests, by number."""
        return MatchRequests(self.slots[chosen], self.cursors[chosen], self.partitions, self.after)

    def resolve(
        self, pairs: CandidatePairs, *, partition: Partitions, sequence: Sequences
    ) -> MatchHits:
        """The requests to which the pairs belong.

        Args:
            pairs: of rows and of requested slots.
            partition: of every row.
            sequence: of every row.
        """
        asks, chosen = self._of_slots(pairs.slots)
        rows = pairs.rows if chosen is None else pairs.rows[chosen]
        column, known = self._columns(partition)
        at = column[rows]
        new = sequence[rows] > self.after[self.cursors[asks], at]
        if not known.all():
            new &= known[rows]
        if new.all():
            return MatchHits(asks, rows)
        return MatchHits(asks[new], rows[new])

    def _columns(self, partition: Partitions) -> tuple[Places, Mask]:
        """The column of each row's partition, and whether there is one."""
        at = np.minimum(np.searchsorted(self.partitions, partition), len(self.partitions) - 1)
        known: Mask = self.partitions[at] == partition
        return at, known

    @cached_property
    def _by_slot(self) -> tuple[npt.NDArray[np.int32], Places, Places]:
        """The requests in the order of slots; for each slot the first position and the count."""
        counts = np.bincount(self.slots)
        return np.argsort(self.slots, kind="stable").astype(np.int32), _starts(counts), counts

    def _of_slots(self, slots: Slots) -> tuple[npt.NDArray[np.int32], Places | None]:
        """The requests of each slot, and which of `slots` each belongs to; None: one of each."""
        order, first, counts = self._by_slot
        many = counts[slots]
        if (many == 1).all():
            return order[first[slots]], None
        chosen = np.repeat(np.arange(len(slots)), many)
        return order[np.repeat(first[slots], many) + within(many)], chosen


def _starts(counts: Places) -> Places:
    starts: Places = np.cumsum(counts) - counts
    return starts
