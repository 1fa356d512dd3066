"""The shard of a table."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from galileo.model.table import Table
from galileo.node.shard import Shard
from galileo.node.table_index import TableIndex, Versions

PIECE_BYTES = 8 << 20
"""Bytes of rows of a table that are read together, unless one row has more."""


class TableShard(Shard):
    """The journals of one table on this node, and the index of its versions."""

    schema: Table
    index: TableIndex

    def __init__(self, table: Table, **options: Any) -> None:
        super().__init__(table, TableIndex(), **options)

    def split_by_bytes(self, partition: int, versions: Versions) -> list[Versions]:
        """As many versions together as have about `PIECE_BYTES`; in a thread.

        Rows of one commit, which has at most 64 MiB, count as if they were of one size.

        Args:
            partition: of the versions.
            versions: in the order in which they are stored.
        """
        sequences, places = np.unique(versions.sequence, return_inverse=True)
        sizes = np.array(self.journal(partition).row_sizes(sequences.tolist()), dtype=np.float64)
        pieces = (np.cumsum(sizes[places]) // PIECE_BYTES).astype(np.int64)
        starts = np.flatnonzero(np.diff(pieces, prepend=-1)).tolist()
        bounds = itertools.pairwise([*starts, len(versions)])
        return [versions.take(slice(start, stop)) for start, stop in bounds]
