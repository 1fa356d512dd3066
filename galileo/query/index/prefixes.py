"""Geohash prefixes: ranges of cells as prefixes, and the index from prefixes to queries.

A prefix of length l is a cell of precision l. Each range of cells is the disjoint union of a few
prefixes, so a cell lies in a query's cells exactly when one of its own prefixes, from none to all
of its characters, is one of the query's. A batch of sorted cells therefore finds its queries by
one binary search for each length and distinct prefix, whatever the number of queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.arrays import within
from galileo.geo.geohash import Cells
from galileo.geo.ranges import Ranges

Slots: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = npt.NDArray[np.intp]

_BITS = np.uint64(5)
_FAN = np.uint64(31)
GROWTH = 4
"""New prefixes are merged with the others once they are more than one in so many."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """Disjoint prefixes.

    Attributes:
        precision: characters of a whole cell.
        by_length: for lengths 0 to `precision` the prefixes of that length.
    """

    precision: int
    by_length: tuple[Cells, ...]

    def __len__(self) -> int:
        return sum(len(cells) for cells in self.by_length)

    def shortened(self, most: int) -> Prefixes:
        """At most so many prefixes that cover these: the longest are cut first."""
        lengths = list(self.by_length)
        for length in range(self.precision, 0, -1):
            if sum(map(len, lengths)) <= most:
                break
            cut = np.unique(lengths[length] >> _BITS)
            lengths[length] = np.empty(0, dtype=np.uint64)
            lengths[length - 1] = np.union1d(lengths[length - 1], cut)
        return Prefixes(self.precision, tuple(lengths))


def prefixes_from_ranges(cells: Ranges, precision: int) -> Prefixes:
    """The fewest prefixes that cover exactly the sorted, disjoint ranges of cells."""
    lo, hi = cells
    matches: list[Cells] = []
    for _ in range(precision):
        if len(lo) == 0:
            break
        first, end = (lo + _FAN) >> _BITS, hi >> _BITS
        whole = first < end
        heads = np.where(whole, first << _BITS, hi)
        tails = end[whole] << _BITS
        matches.append(np.concatenate([_between(lo, heads), _between(tails, hi[whole])]))
        lo, hi = first[whole], end[whole]
    matches.append(_between(lo, hi))
    none = [lo[:0]] * (precision + 1 - len(matches))
    return Prefixes(precision, tuple(reversed([*matches, *none])))


def _between(lo: Cells, hi: Cells) -> Cells:
    """All cells of half-open ranges."""
    counts = (hi - lo).astype(np.intp)
    return np.repeat(lo, counts) + within(counts).astype(np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class CandidateRanges:
    """Queries and ranges of sorted rows.

    Attributes:
        slots: of the queries.
        start: first row of each range.
        stop: end of each range.
    """

    slots: Slots
    start: Places
    stop: Places

    def __len__(self) -> int:
        return len(self.slots)

    def where(self, mask: npt.NDArray[np.bool_]) -> CandidateRanges:
        return CandidateRanges(self.slots[mask], self.start[mask], self.stop[mask])


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The prefixes of one length: queries of `prefix[i]` are `slots[first[i]:first[i + 1]]`."""

    prefix: Cells
    first: Places
    slots: Slots

    @classmethod
    def of(cls, prefix: Cells, slots: Slots) -> _Table:
        order = np.argsort(prefix, kind="stable")
        prefix, slots = prefix[order], slots[order]
        starts = np.flatnonzero(np.append(True, prefix[1:] != prefix[:-1])[: len(prefix)])
        return cls(prefix[starts], np.append(starts, len(prefix)), slots)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        return int(self.prefix.nbytes + self.first.nbytes + self.slots.nbytes)

    def entries(self) -> tuple[Cells, Slots]:
        return np.repeat(self.prefix, np.diff(self.first)), self.slots

    def hits(self, prefix: Cells, start: Places, stop: Places) -> CandidateRanges:
        """The entries of distinct prefixes, each with its range of rows."""
        at = np.minimum(np.searchsorted(self.prefix, prefix), len(self.prefix) - 1)
        met = np.flatnonzero(self.prefix[at] == prefix)
        at = at[met]
        counts = self.first[at + 1] - self.first[at]
        slots = self.slots[np.repeat(self.first[at], counts) + within(counts)]
        return CandidateRanges(slots, np.repeat(start[met], counts), np.repeat(stop[met], counts))


class PrefixIndex:
    """From prefixes to the slots of queries; adding is amortised, as in an LSM tree.

    Args:
        precision: characters of a whole cell.
    """

    def __init__(self, precision: int) -> None:
        self._precision = precision
        self._old: dict[int, _Table] = {}
        self._new: dict[int, _Table] = {}
        self._pending: list[tuple[int, Prefixes]] = []

    def __len__(self) -> int:
        """Entries, including those of removed queries until `compact`."""
        tables = (*self._old.values(), *self._new.values())
        return sum(map(len, tables)) + sum(len(prefixes) for _, prefixes in self._pending)

    @property
    def nbytes(self) -> int:
        tables = (*self._old.values(), *self._new.values())
        return sum(table.nbytes for table in tables)

    def add(self, slot: int, prefixes: Prefixes) -> None:
        self._pending.append((slot, prefixes))

    def build(self) -> None:
        """Merge new entries into the tables."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        for length in range(self._precision + 1):
            parts = [(p.by_length[length], slot) for slot, p in pending if len(p.by_length[length])]
            if parts:
                sizes = [len(prefix) for prefix, _ in parts]
                slots = np.repeat(np.array([slot for _, slot in parts], dtype=np.int32), sizes)
                self._extend(length, np.concatenate([prefix for prefix, _ in parts]), slots)

    def compact(self, alive: npt.NDArray[np.bool_]) -> None:
        """Remove the entries of dead slots."""
        self.build()
        for tables in (self._old, self._new):
            for length, table in list(tables.items()):
                prefix, slots = table.entries()
                is_alive = alive[slots]
                if is_alive.any():
                    tables[length] = _Table.of(prefix[is_alive], slots[is_alive])
                else:
                    del tables[length]

    def hits(self, cells: Cells) -> Iterator[CandidateRanges]:
        """The queries of sorted cells; each pair of query and row occurs once at most."""
        self.build()
        for length in sorted({*self._old, *self._new}):
            prefix, start, stop = _stretches(cells >> _shift(self._precision - length))
            for tables in (self._old, self._new):
                if length in tables:
                    yield tables[length].hits(prefix, start, stop)

    def _extend(self, length: int, prefix: Cells, slots: Slots) -> None:
        old, new = self._old.get(length), self._new.pop(length, None)
        parts = [(prefix, slots)] if new is None else [new.entries(), (prefix, slots)]
        if old is None or sum(len(s) for _, s in parts) * GROWTH > len(old):
            parts = parts if old is None else [old.entries(), *parts]
            self._old[length] = _joined(parts)
        else:
            self._new[length] = _joined(parts)


def _joined(parts: Sequence[tuple[Cells, Slots]]) -> _Table:
    prefixes, slots = zip(*parts, strict=True)
    return _Table.of(np.concatenate(prefixes), np.concatenate(slots))


def _shift(characters: int) -> np.uint64:
    return np.uint64(5 * characters)


def _stretches(values: Cells) -> tuple[Cells, Places, Places]:
    """The distinct values of a sorted array, and where each begins and ends."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    return values[starts], starts, np.append(starts[1:], len(values))
