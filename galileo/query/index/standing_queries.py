"""The index of many continuous queries of one dataset, and the pass that matches all of them.

Each query has a slot. Its cells are in an index of geohash prefixes, its constants in columns;
candidates are pairs of a slot and a row, found by prefixes or, for a query without spatial
conditions, by its most selective condition, and filtered by comparing gathered constants with
gathered values. Only residual conditions (`rest`) are evaluated one by one, once for all queries
that share the condition.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from galileo.model.schema import Schema
from galileo.query.columns import Columns, Mask
from galileo.query.index.access_path import candidates_by_access_path
from galileo.query.index.bound_columns import BoundColumns, PathRows, grow
from galileo.query.index.candidates import CandidatePairs, pairs_from_ranges
from galileo.query.index.normal_form import PREFIXES_MAX, normal_form
from galileo.query.index.prefixes import CandidateRanges, Places, PrefixIndex, Slots
from galileo.query.index.residual import ResidualFilters
from galileo.query.query import Query

DEAD_MAX = 0.5
"""Share of slots of removed queries above which their entries are removed."""
DEAD_MIN = 64
"""Number of slots of removed queries up to which nothing is removed."""


class StandingQueries:
    """Many queries of one dataset by key; not thread-safe.

    Args:
        schema: of the dataset.
        dead_min: number of removed queries up to which their entries stay.
        prefixes_max: most prefixes of one query; see `normal_form`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        dead_min: int = DEAD_MIN,
        prefixes_max: int = PREFIXES_MAX,
    ) -> None:
        self.schema = schema
        self._prefixes_max = prefixes_max
        self._dead_min = dead_min
        self._slots: dict[Hashable, int] = {}
        self._features: dict[int, tuple[str, ...]] = {}
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._free: list[int] = []
        self._dead: list[int] = []
        self._used = 0
        self._constants = BoundColumns.empty()
        self._alive: Mask = np.zeros(self._constants.capacity, dtype=np.bool_)
        self._placed: Mask = np.zeros(self._constants.capacity, dtype=np.bool_)
        self._prefixes = PrefixIndex(schema.geohash_precision)
        self._rest = ResidualFilters(self._constants.capacity)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    @property
    def capacity(self) -> int:
        """Upper bound of slots, exclusive."""
        return self._constants.capacity

    @property
    def nbytes(self) -> int:
        """Size of the columns and the prefixes, without keys and residual conditions."""
        masks = int(self._alive.nbytes + self._placed.nbytes)
        return self._constants.nbytes + self._prefixes.nbytes + self._rest.nbytes + masks

    def add(self, key: Hashable, query: Query) -> None:
        """Add a query; a known key keeps its query.

        Args:
            key: of the query.
            query: of the dataset of this index.
        """
        if key in self._slots:
            return
        slot = self._free.pop() if self._free else self._used
        self._used = max(self._used, slot + 1)
        form = normal_form(query, prefixes_max=self._prefixes_max)
        self._constants.write(slot, form)
        self._rest.write(slot, form.rest)
        self._widen()
        self._alive[slot], self._placed[slot] = True, form.prefixes is not None
        if form.prefixes is not None:
            self._prefixes.add(slot, form.prefixes)
        self._slots[key] = slot
        self._features[slot] = self._shared.setdefault(query.features, query.features)

    def remove(self, key: Hashable) -> None:
        """Remove a query if it is there."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        self._alive[slot] = False
        self._rest.write(slot, None)
        del self._features[slot]
        self._dead.append(slot)
        if len(self._dead) > max(self._dead_min, DEAD_MAX * self._used):
            self._compact()

    def slots(self, keys: Sequence[Hashable]) -> Slots:
        """The slot of each key, valid until the next `remove`; -1 for unknown keys."""
        slots = map(self._slots.get, keys, (-1 for _ in keys))
        return np.fromiter(slots, dtype=np.int32, count=len(keys))

    def features(self) -> frozenset[str]:
        """The features that any query reads."""
        return frozenset(name for names in set(self._features.values()) for name in names)

    def match(self, columns: Columns, *, slots: Slots | None = None) -> Iterator[CandidatePairs]:
        """All pairs of a query and a row that matches it, each once, in no particular order.

        Args:
            columns: of the rows, with at least the features that the queries read; fastest if they
                are sorted by cell.
            slots: of the requested queries; None: all.
        """
        requested = self._wanted(slots)
        if len(columns) == 0 or not requested.any():
            return
        order = _cell_order(columns)
        rows = PathRows(columns if order is None else columns.take(order))
        for hits, way in self._candidates(rows, requested):
            for pairs in pairs_from_ranges(hits, way):
                matches = self._rest.filter(self._constants.filter(pairs, rows), rows)
                if len(matches):
                    yield (
                        matches
                        if order is None
                        else CandidatePairs(matches.slots, order[matches.rows])
                    )

    def _wanted(self, slots: Slots | None) -> Mask:
        if slots is None:
            return self._alive
        requested = np.zeros(self.capacity, dtype=np.bool_)
        requested[slots] = True
        return requested & self._alive

    def _candidates(
        self, rows: PathRows, requested: Mask
    ) -> Iterator[tuple[CandidateRanges, Places | None]]:
        buckets = rows.columns.bucket
        timely = requested & (self._constants.first <= buckets.max())
        timely &= self._constants.last >= buckets.min()
        for hits in self._prefixes.hits(rows.columns.cell):
            yield hits.where(timely[hits.slots]), None
        unplaced = np.flatnonzero(timely & ~self._placed).astype(np.int32)
        yield from candidates_by_access_path(unplaced, self._constants, rows)

    def _compact(self) -> None:
        """Remove the entries of removed queries, and reuse their slots."""
        self._prefixes.compact(self._alive)
        self._constants.compact(self._alive)
        self._free += self._dead
        self._dead = []

    def _widen(self) -> None:
        if len(self._alive) < self.capacity:
            self._alive = grow(self._alive, self.capacity, False)
            self._placed = grow(self._placed, self.capacity, False)


def _cell_order(columns: Columns) -> Places | None:
    """The order of the rows by cell; None if they are sorted."""
    cells = columns.cell
    if bool(np.all(cells[1:] >= cells[:-1])):
        return None
    return np.argsort(cells, kind="stable")
