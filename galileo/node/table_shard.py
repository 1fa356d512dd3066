"""The shard of a table."""

from __future__ import annotations

from typing import Any

from galileo.model.table import Table, key_of
from galileo.node.table_index import TableIndex
from galileo.node.versioned_shard import VersionedShard
from galileo.storage.commits import Commit


class TableShard(VersionedShard):
    """The journals of one table on this node, and the index of its versions."""

    schema: Table
    index: TableIndex

    def __init__(self, table: Table, **options: Any) -> None:
        super().__init__(table, TableIndex(), **options)

    @property
    def version_index(self) -> TableIndex:
        """The index."""
        return self.index

    def _key_of(self, commit: Commit, row: int) -> Any:
        return key_of(self.schema, commit.observations, row)
