"""The rows of versions of tables and keyed datasets, as readers and the cleaner need them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.model.keyed import index_versions
from galileo.model.paths import buckets_from_table
from galileo.model.schema import DELETED, VERSION_SCHEMA, Schema
from galileo.node.row_reader import read_parts
from galileo.node.table_index import Versions, parts_of
from galileo.node.versioned_shard import VersionedShard


def rows_of(shard: VersionedShard, partition: int, versions: Versions) -> pa.Table:
    """The rows of versions, of `schema.version_schema`, in the order of storage; for a thread.

    Raises:
        DataExpired: some were cleaned meanwhile.
    """
    versions = _in_order(versions)
    rows = read_parts(shard, parts_of(partition, versions), shard.schema)
    if isinstance(shard.schema, Schema):
        return rows.append_column(VERSION_SCHEMA.field(DELETED), pa.array(versions.deleted))
    return rows


def copies(
    shard: VersionedShard, partition: int, versions: Versions, *, least_us: int | None = None
) -> tuple[pa.Table, pa.RecordBatch] | None:
    """The observations and paths of a commit that stores versions once more; for a thread.

    Args:
        shard: of a table or keyed dataset.
        partition: of the versions.
        versions: that count.
        least_us: observations whose time bucket has ended by then are left out, microseconds since
            1970. Deletions are not.

    Returns:
        None if nothing is left.

    Raises:
        DataExpired: some were cleaned meanwhile.
    """
    versions = _in_order(versions)
    rows, since = rows_of(shard, partition, versions), versions.since.astype(np.int64)
    if isinstance(shard.schema, Schema):

        def here(cells: npt.NDArray[np.uint64], _: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
            return np.full(len(cells), partition, dtype=np.int32)

        if least_us is not None:
            ends = buckets_from_table(shard.schema, rows) + shard.schema.time_bucket_us
            is_left = (ends > least_us) | versions.deleted
            rows, since = rows.filter(pa.array(is_left)), since[is_left]
        return index_versions(shard.schema, rows, place=here, since=since).get(partition)
    columns = [versions.high, versions.low, since, versions.deleted]
    arrays = list(map(pa.array, columns))
    return rows, pa.RecordBatch.from_arrays(arrays, schema=shard.schema.path_schema)


def _in_order(versions: Versions) -> Versions:
    return versions.take(np.lexsort((versions.row, versions.sequence)))
