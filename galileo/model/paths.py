"""From observations to paths: cells, buckets, and one path per distinct feature tuple.

A block has as many paths as it has distinct tuples of indexed features (paper, Fig. 1), so
the observations of a commit are sorted by cell, bucket and tuple, and a path is one run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.geo import geohash
from galileo.model.schema import Feature, Schema
from galileo.model.times import column_micros, times_from_micros

Ints = npt.NDArray[np.int64]


def cells_of(schema: Schema, table: pa.Table) -> geohash.Cells:
    """The block cell of every observation."""
    latitude, longitude = table.column("latitude"), table.column("longitude")
    return geohash.encode(latitude.to_numpy(), longitude.to_numpy(), schema.geohash_precision)


def buckets_of(schema: Schema, table: pa.Table) -> Ints:
    """The start of every observation's time bucket, microseconds; floors before 1970 too."""
    times = column_micros(table.column("time"))
    return times - times % schema.time_bucket_us


def index(schema: Schema, table: pa.Table) -> tuple[pa.Table, pa.RecordBatch]:
    """Sorts the observations of one commit and derives the paths into them.

    Args:
        schema: of the dataset.
        table: normalised observations, at least one row.

    Returns:
        The sorted observations, and a batch of `schema.path_schema` in the same order.
    """
    cells, buckets = cells_of(schema, table), buckets_of(schema, table)
    levels = [_order_key(table.column(feature.name), feature) for feature in schema.indexed]
    order = np.lexsort([column_micros(table.column("time")), *reversed(levels), buckets, cells])
    keys = [key[order] for key in (cells, buckets, *levels)]
    starts = _run_starts(keys)
    table = table.take(pa.array(order)).combine_chunks()
    return table, _paths(schema, table, keys, starts)


def _paths(schema: Schema, table: pa.Table, keys: list[Any], starts: Ints) -> pa.RecordBatch:
    first = pa.array(starts)
    features = [
        table.column(feature.name).combine_chunks().take(first) for feature in schema.indexed
    ]
    rows = np.diff(np.append(starts, table.num_rows))
    columns = [
        pa.array(keys[0][starts]),
        times_from_micros(keys[1][starts]),
        *[_one_array(column) for column in features],
        pa.array(starts.astype(np.int32)),
        pa.array(rows.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.path_schema)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _order_key(column: pa.ChunkedArray, feature: Feature) -> Any:
    """Numbers that sort and compare like the column's values, null apart from all of them."""
    if feature.type == "float":
        return column.to_numpy()
    codes = column.combine_chunks().dictionary_encode()
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    # Arrow sorts texts by their bytes; NumPy would take "a" and "a\0" for equal.
    ranks = np.argsort(pc.array_sort_indices(codes.dictionary).to_numpy())
    return np.where(
        codes.is_null().to_numpy(zero_copy_only=False),
        -1,
        np.append(ranks, -1)[codes.indices.fill_null(-1).to_numpy()],
    )


def _run_starts(keys: list[Any]) -> Ints:
    changed = np.zeros(len(keys[0]), dtype=np.bool_)
    changed[:1] = True
    for key in keys:
        differs = key[1:] != key[:-1]
        if key.dtype.kind == "f":
            differs &= ~(np.isnan(key[1:]) & np.isnan(key[:-1]))
        changed[1:] |= differs
    return np.flatnonzero(changed)
