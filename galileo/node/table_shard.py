"""The shard of a table."""

from __future__ import annotations

from typing import Any

from galileo.model.table import Table
from galileo.node.shard import Shard
from galileo.node.table_index import TableIndex


class TableShard(Shard):
    """The journals of one table on this node, and the index of its versions."""

    schema: Table
    index: TableIndex

    def __init__(self, table: Table, **options: Any) -> None:
        super().__init__(table, TableIndex(), **options)
