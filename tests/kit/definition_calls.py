"""Calls between nodes in this process that are about system tables, for a stand-in of `Peers`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from galileo.election.ranking import UsageStatistics
from galileo.model.retention import Removed
from galileo.model.system_rows import Outcome, Page, Position, Row, RowChange
from galileo.node.storage_node import StorageNode
from galileo.rpc.internal import Internal


class DefinitionCalls(ABC):
    """Has the other node's servicer answer each call."""

    @abstractmethod
    def reach(self, node: str, method: str) -> StorageNode:
        """The other node. Raises Unavailable if the call does not get there."""

    def _servicer(self, node: str, method: str) -> Internal:
        return Internal(self.reach(node, method), UsageStatistics)

    async def change_row(self, node: str, table: str, change: RowChange) -> Row:
        return await self._servicer(node, "change_row").change_row(table, change)

    async def change_rows(
        self, node: str, table: str, changes: Sequence[RowChange]
    ) -> Sequence[Outcome]:
        return await self._servicer(node, "change_rows").change_rows(table, changes)

    async def rows_after(self, node: str, table: str, position: Position, topic: str) -> Page:
        return await self._servicer(node, "rows_after").rows_after(table, position, topic)

    async def learn_row(self, node: str, table: str, row: Row) -> None:
        await self._servicer(node, "learn_row").learn_row(table, row)

    async def known_rows(self, node: str, table: str, after: str) -> Sequence[Row]:
        return await self._servicer(node, "known_rows").known_rows(table, after)

    async def known_row(self, node: str, table: str, name: str) -> Row:
        return await self._servicer(node, "known_row").known_row(table, name)

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed:
        return await self._servicer(node, "drop_generations").drop_generations(name, generations)

    async def sampler_archive(self, node: str, digest: str) -> pa.Buffer:
        return await self._servicer(node, "sampler_archive").sampler_archive(digest)
