"""From observations to paths: cells, buckets, and one path per distinct feature tuple.

A block has as many paths as it has distinct tuples of indexed features (paper, Fig. 1), so the
observations of a commit are sorted by cell, bucket, tuple and time, and a path is one run of rows.

Producers often send the rows of a block together and in the order of time. Therefore *stretches*
are sorted: adjacent rows of one tuple whose times do not descend. If each block is one stretch,
sorting a batch takes time in proportion to its blocks, not its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.geo import geohash
from galileo.model.schema import FLOATS, Feature, Schema
from galileo.model.sort_keys import Key, differs, sort_order
from galileo.model.times import column_micros, times_from_micros

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Indexed: TypeAlias = tuple[pa.Table, pa.RecordBatch]
"""Sorted observations, and a batch of `schema.graph_schema` in the same order."""
Place: TypeAlias = Callable[[geohash.Cells, Ints], npt.NDArray[np.int32]]
"""The partitions of blocks, given their cells and the starts of their buckets."""

STRETCHES_MAX = 0.5
"""Stretches above which every row is its own stretch, since such stretches never overlap."""


def cells_from_table(schema: Schema, table: pa.Table) -> geohash.Cells:
    """The block cell of every observation."""
    latitude, longitude = table.column("latitude"), table.column("longitude")
    return geohash.encode(latitude.to_numpy(), longitude.to_numpy(), schema.geohash_precision)


def buckets_from_table(schema: Schema, table: pa.Table) -> Ints:
    """The start of every observation's time bucket, microseconds; floors before 1970 too."""
    return _buckets(schema, column_micros(table.column("time")))


def _buckets(schema: Schema, times: Ints) -> Ints:
    return times - times % schema.time_bucket_us


def index(schema: Schema, table: pa.Table) -> Indexed:
    """Sort the observations of one commit and derive their paths.

    Args:
        schema: of the dataset.
        table: normalised observations.
    """
    if table.num_rows == 0:
        return table, pa.RecordBatch.from_pylist([], schema=schema.graph_schema)
    return index_parts(schema, table, place=_one_place)[0]


def index_parts(schema: Schema, table: pa.Table, *, place: Place) -> dict[int, Indexed]:
    """`index` for each partition's rows of a batch, all at once.

    Args:
        schema: of the dataset.
        table: normalised observations; no rows make no parts.
        place: maps blocks to partitions.

    Returns:
        By partition. All parts share memory.
    """
    if table.num_rows == 0:
        return {}
    table = table.combine_chunks()
    stretches = _sorted_stretches(_Rows.of(schema, table), place)
    order = stretches.order_of_rows()
    table = table if order is None else table.take(pa.array(order))
    paths = np.flatnonzero(stretches.are_other_paths())
    parts = np.flatnonzero(differs(stretches.places[paths]))
    stops = np.append(parts[1:], len(paths))
    starts = np.append(stretches.new_starts[paths], table.num_rows)
    batch = _paths(schema, table, stretches, paths=paths, of_part=np.repeat(parts, stops - parts))
    return {
        int(stretches.places[paths[first]]): (
            table.slice(starts[first], starts[stop] - starts[first]),
            batch.slice(first, stop - first),
        )
        for first, stop in zip(parts.tolist(), stops.tolist(), strict=True)
    }


def _one_place(cells: geohash.Cells, buckets: Ints) -> npt.NDArray[np.int32]:
    return np.zeros(len(cells), dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Sort keys of observations: cell, bucket, levels, time; arrays of one length."""

    cells: geohash.Cells
    buckets: Ints
    levels: Sequence[Key]
    times: Ints

    @classmethod
    def of(cls, schema: Schema, table: pa.Table) -> _Rows:
        features = [table.column(feature.name) for feature in schema.indexed]
        keys = zip(features, schema.indexed, strict=True)
        levels = [key for column, feature in keys for key in _order_keys(column, feature)]
        times = column_micros(table.column("time"))
        return cls(cells_from_table(schema, table), _buckets(schema, times), levels, times)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def tuples(self) -> list[Key]:
        """Most significant first; rows that are equal in all of them belong to one path."""
        return [self.cells, self.buckets, *self.levels]

    def take(self, rows: Any) -> _Rows:
        levels = [level[rows] for level in self.levels]
        return _Rows(self.cells[rows], self.buckets[rows], levels, self.times[rows])

    def stretch_starts(self) -> Ints:
        """Mask of rows of another path than the row before, or with an earlier time."""
        starts = _any_differs(self.tuples)
        starts[1:] |= self.times[1:] < self.times[:-1]
        return np.flatnonzero(starts)


@dataclass(frozen=True, slots=True, eq=False)
class _Stretches:
    """Stretches of rows, in the order in which they will be stored.

    Attributes:
        first: sort keys of their first rows.
        places: their partitions.
        starts, sizes: their rows in the table.
        last_times: of their last rows.
    """

    first: _Rows
    places: npt.NDArray[np.int32]
    starts: Ints
    sizes: Ints
    last_times: Ints

    @property
    def new_starts(self) -> Ints:
        """The first row of each after sorting."""
        return np.cumsum(self.sizes) - self.sizes

    def are_other_paths(self) -> Flags:
        """Mask of stretches of another path than the one before."""
        return _any_differs([self.places, *self.first.tuples])

    def overlap(self) -> bool:
        """Whether rows of two stretches must be interleaved."""
        same = ~self.are_other_paths()[1:]
        before, after = self.last_times[:-1], self.first.times[1:]
        late = (before > after) | ((before == after) & (self.starts[:-1] > self.starts[1:]))
        return bool((same & late).any())

    def order_of_rows(self) -> Ints | None:
        """The source row of each sorted row; None if the order is unchanged."""
        moved = self.starts - self.new_starts
        if not moved.any():
            return None
        return np.repeat(moved, self.sizes) + np.arange(self.sizes.sum())


def _sorted_stretches(rows: _Rows, place: Place) -> _Stretches:
    starts = rows.stretch_starts()
    if len(starts) <= STRETCHES_MAX * len(rows):
        columns = _sorted(rows, starts, place)
        if not columns.overlap():
            return columns
    return _sorted(rows, np.arange(len(rows)), place)


def _sorted(rows: _Rows, starts: Ints, place: Place) -> _Stretches:
    every = len(starts) == len(rows)
    first = rows if every else rows.take(starts)
    places = place(first.cells, first.buckets)
    stops = np.append(starts[1:], len(rows))
    order = sort_order([places, *first.tuples, first.times])
    return _Stretches(
        first.take(order),
        places[order],
        starts[order],
        (stops - starts)[order],
        rows.times[stops - 1][order],
    )


def _any_differs(keys: Sequence[Key]) -> Flags:
    changed = differs(keys[0])
    for key in keys[1:]:
        changed |= differs(key)
    return changed


def _paths(
    schema: Schema, table: pa.Table, stretches: _Stretches, *, paths: Ints, of_part: Ints
) -> pa.RecordBatch:
    """The paths of all parts.

    Args:
        schema: of the dataset.
        table: sorted.
        stretches: of the table.
        paths: the first stretch of each path.
        of_part: for each path the number of the first path of its part.
    """
    starts = stretches.new_starts[paths]
    rows = np.diff(np.append(starts, table.num_rows))
    at = pa.array(starts)
    features = [one_array(table.column(feature.name)).take(at) for feature in schema.indexed]
    columns = [
        pa.array(stretches.first.cells[paths]),
        times_from_micros(stretches.first.buckets[paths]),
        *features,
        pa.array((starts - starts[of_part]).astype(np.int32)),
        pa.array(rows.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.graph_schema)


def _order_keys(column: pa.ChunkedArray, feature: Feature) -> list[Key]:
    """Numbers that sort and compare like the column's values; null differs from all of them."""
    if feature.type in FLOATS:
        return [column.to_numpy()]
    values = one_array(column)
    if feature.type == "text":
        return [_text_ranks(values)]
    numbers = values.cast(pa.int8() if feature.type == "bool" else pa.int64())
    if not values.null_count:
        return [numbers.to_numpy()]
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return [valid, numbers.fill_null(0).to_numpy()]


def _text_ranks(values: pa.Array) -> Ints:
    codes = values.dictionary_encode()
    # Arrow sorts texts by their bytes; NumPy would take "a" and "a\0" for equal.
    ranks = np.append(np.argsort(pc.array_sort_indices(codes.dictionary).to_numpy()), -1)
    return np.asarray(ranks[codes.indices.fill_null(-1).to_numpy()], dtype=np.int64)
