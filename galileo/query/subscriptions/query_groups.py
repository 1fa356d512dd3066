"""Groups of any template: a query for each.

The index of standing queries finds candidates, for which a row is a path of its own. Where the
query reads the place or the time, paths are coarser than observations, and its candidates are
tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from galileo.geo import geohash
from galileo.geo.regions import Mask
from galileo.model.sort_keys import differs
from galileo.query.columns import Columns
from galileo.query.index import CandidatePairs, StandingQueries
from galileo.query.predicates import ObservationColumns, leaves
from galileo.query.query import Query
from galileo.query.spatial_predicates import SpatialLeaf
from galileo.query.subscriptions.blocks import Numbers
from galileo.query.subscriptions.parameter_query import ParameterQuery
from galileo.query.subscriptions.row_index import RowIndex
from galileo.query.time_predicates import During

QUERY_BYTES = 2_000
"""About so many bytes are taken by a query, its key and its entries, besides those of the index."""


class QueryGroups:
    """Each group is a query of the index of standing queries, by its values.

    Args:
        query: the template.
    """

    def __init__(self, query: ParameterQuery) -> None:
        self._query = query
        self._numbers: dict[Hashable, int] = {}
        self._queries: list[Query] = []
        self._standing = StandingQueries(query.schema)
        self._of_slot: Numbers = np.empty(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._queries)

    @property
    def nbytes(self) -> int:
        return QUERY_BYTES * len(self) + self._standing.nbytes

    def numbers_of(self, values: Mapping[str, pa.Array]) -> Numbers:
        rows = pa.table(dict(values)).to_pylist()
        numbers = []
        for row in rows:
            key = tuple(row.values())
            if key not in self._numbers:
                self._add(key, self._query.bind_row(row))
            numbers.append(self._numbers[key])
        return np.array(numbers, dtype=np.int32)

    def keep(self, kept: Mask) -> None:
        for key, number in self._numbers.items():
            if not kept[number]:
                self._standing.remove(key)
        keys = [key for key, number in self._numbers.items() if kept[number]]
        self._queries = [self._queries[self._numbers[key]] for key in keys]
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._of_slot[self._standing.slots(keys)] = np.arange(len(keys), dtype=np.int32)

    def match(self, rows: RowIndex, alive: Mask) -> Iterator[CandidatePairs]:
        schema, points = self._query.schema, rows.points
        cells = geohash.encode(points.latitude, points.longitude, schema.geohash_precision)
        buckets = points.time - points.time % schema.time_bucket_us
        for pairs in self._standing.match(Columns(cells, buckets, points.features)):
            numbers = self._of_slot[pairs.slots]
            named = CandidatePairs(numbers, pairs.rows).where(alive[numbers])
            yield self._tested(named, points)

    def _add(self, key: Hashable, query: Query) -> None:
        self._standing.add(key, query)
        slot = int(self._standing.slots([key])[0])
        if slot >= len(self._of_slot):
            longer = np.zeros(self._standing.capacity, dtype=np.int32)
            longer[: len(self._of_slot)] = self._of_slot
            self._of_slot = longer
        self._of_slot[slot] = self._numbers[key] = len(self._queries)
        self._queries.append(query)

    def _tested(self, pairs: CandidatePairs, points: ObservationColumns) -> CandidatePairs:
        """The pairs of which the row matches."""
        order = np.argsort(pairs.slots, kind="stable")
        numbers, rows = pairs.slots[order], pairs.rows[order]
        starts = np.flatnonzero(differs(numbers)).tolist()
        mask = np.ones(len(rows), dtype=np.bool_)
        for start, stop in itertools.pairwise([*starts, len(rows)]):
            query = self._queries[int(numbers[start])]
            if not _is_exact(query):
                mask[start:stop] = query.match_points(points.take(rows[start:stop]))
        return CandidatePairs(numbers, rows).where(mask)


def _is_exact(query: Query) -> bool:
    """Whether paths match exactly if their observations do."""
    return not any(isinstance(leaf, SpatialLeaf | During) for leaf in leaves(query.tree))
