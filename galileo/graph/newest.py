"""The newest observation of each place, or of each value of a feature.

Of observations with the same time the one farther south is taken, then the one farther west, then
that with the lesser values of features in schema order, missing ones last. What is left are equal
observations. So the newest of parts' newest observations are those of the whole, in any order.

Paths need not be read that are older than others with the same value: if all observations of a path
match, no path with an earlier time bucket has the newest one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.errors import InputError
from galileo.geo import geohash
from galileo.model.grouping import CellKey, FeatureKey, Grouping
from galileo.model.schema import Schema
from galileo.model.times import column_micros
from galileo.query.query import Query
from galileo.query.questions import LatestKey

NEWEST_MAX = 100_000
"""Observations of one answer."""
MERGE_ROWS = 1 << 18
"""Observations that wait before the newest are taken, unless more are left than a half of these."""
CELL = "geohash"
"""The column of cells in an answer."""
_KEY = "key"


def check_key(key: LatestKey, schema: Schema) -> None:
    """Raises `InputError` unless the dataset has this key."""
    if not isinstance(key, CellKey | FeatureKey) or (isinstance(key, CellKey) and key.bits % 5):
        raise InputError(
            f"expected a cell such as cell:5, or the name of a feature, got {key}",
            parameter="by",
        )
    Grouping((key,)).check(schema)


class NewestMerger:
    """Takes the newest observations of tables as they come; of one thread at a time."""

    def __init__(self, key: LatestKey, schema: Schema) -> None:
        self._key = key
        self._schema = schema
        self._waiting = [schema.observation_schema.empty_table()]
        self._rows = 0
        self._newest = 0

    def add(self, table: pa.Table) -> None:
        """Adds observations of the observation schema."""
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows > max(MERGE_ROWS, 2 * self._newest):
            self._merge()

    def _merge(self) -> pa.Table:
        newest = _newest(pa.concat_tables(self._waiting).combine_chunks(), self._key)
        self._waiting = [newest]
        self._rows = self._newest = newest.num_rows
        if self._newest > NEWEST_MAX:
            raise InputError(
                f"expected at most {NEWEST_MAX:,} values of {self._key}, got more; choose larger "
                "cells, or narrow the query",
                parameter="by",
                bound=NEWEST_MAX,
            )
        return newest

    def partial(self) -> pa.Table:
        """The newest observations, for `add` of another node."""
        return self._merge()

    def answer(self) -> pa.Table:
        """The newest observations ascending by the key, null last; cells are the first column."""
        newest = self._merge()
        keys = _keys(newest, self._key)
        order = pc.sort_indices(pa.table({_KEY: keys}), sort_keys=[(_KEY, "ascending")])
        newest, keys = newest.take(order), keys.take(order)
        if isinstance(self._key, CellKey):
            texts = geohash.to_text(keys.to_numpy(), self._key.bits // 5)
            newest = newest.add_column(0, CELL, texts)
        return newest


def _newest(table: pa.Table, key: LatestKey) -> pa.Table:
    if table.num_rows == 0:
        return table
    keys = _keys(table, key).dictionary_encode(null_encoding="encode")
    codes, times = keys.indices.to_numpy(), column_micros(table.column("time"))
    latest = np.full(len(keys.dictionary), np.iinfo(np.int64).min)
    np.maximum.at(latest, codes, times)
    rows = np.flatnonzero(times == latest[codes])
    table, codes = table.take(pa.array(rows)), codes[rows]
    if len(rows) == len(latest):
        return table
    names = ["latitude", "longitude", *table.column_names[3:]]
    columns = [pa.array(codes), *(table.column(name) for name in names)]
    numbered = {str(number): column for number, column in enumerate(columns)}
    order = pc.sort_indices(
        pa.table(numbered), sort_keys=[(name, "ascending") for name in numbered]
    ).to_numpy()
    is_first = np.diff(codes[order], prepend=-1) != 0
    return table.take(pa.array(order[is_first]))


def _keys(table: pa.Table, key: LatestKey) -> pa.Array:
    """The key of each observation; cells as numbers."""
    if isinstance(key, CellKey):
        latitude, longitude = (table.column(name).to_numpy() for name in ("latitude", "longitude"))
        return pa.array(geohash.encode(latitude, longitude, key.bits // 5))
    return _feature(table.column(key.name))


def _feature(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Values of a feature; there is one zero."""
    if isinstance(column, pa.ChunkedArray):
        column = one_array(column)
    return pc.add(column, 0.0) if pa.types.is_floating(column.type) else column


class NewestBuckets:
    """The newest time bucket of each key in which an observation matches for certain.

    Args:
        key: that paths determine (`Grouping.is_in_graph`).
        query: whose matches are wanted.
    """

    def __init__(self, key: LatestKey, query: Query) -> None:
        self._key = key
        self._query = query
        self._buckets = pa.table({_KEY: self._keys_of(_no_labels(query.schema)), "bucket": _NONE})

    def add(self, labels: pa.RecordBatch) -> None:
        """Adds labels of matching paths."""
        buckets = column_micros(labels.column("bucket"))
        certain = pa.array(self._query.must_match_labels(labels))
        more = pa.table({_KEY: self._keys_of(labels), "bucket": buckets}).filter(certain)
        both = pa.concat_tables([self._buckets, more]).group_by(_KEY).aggregate([("bucket", "max")])
        self._buckets = both.select([_KEY, "bucket_max"]).rename_columns([_KEY, "bucket"])

    def wanted(self, labels: pa.RecordBatch) -> pa.RecordBatch:
        """The labels behind which the newest observation of a key may be."""
        known = self._buckets.combine_chunks()
        at = pc.index_in(self._keys_of(labels), value_set=_feature(known.column(_KEY)))
        newest = known.column("bucket").take(at).fill_null(np.iinfo(np.int64).min)
        is_old = column_micros(labels.column("bucket")) < newest.to_numpy()
        return labels.filter(pa.array(~is_old))

    def _keys_of(self, labels: pa.RecordBatch) -> pa.Array:
        if isinstance(self._key, CellKey):
            shift = np.uint64(5 * self._query.schema.geohash_precision - self._key.bits)
            return pa.array(labels.column("cell").to_numpy() >> shift)
        column = labels.column(self._key.name)
        is_coded = pa.types.is_dictionary(column.type)
        return _feature(column.dictionary_decode() if is_coded else column)


_NONE: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)


def _no_labels(schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema.label_schema)
