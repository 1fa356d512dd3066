"""Calls between nodes in this process that are about definitions, for a stand-in of `Peers`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from galileo.model.retention import Removed
from galileo.node.definitions import (
    AnyChange,
    Definition,
    DefinitionRow,
    DefinitionsPage,
    Position,
    decode,
)
from galileo.node.storage_node import StorageNode
from galileo.rpc.internal import Internal


class DefinitionCalls(ABC):
    """Has the other node's servicer answer each call."""

    @abstractmethod
    def reach(self, node: str, method: str) -> StorageNode:
        """The other node. Raises Unavailable if the call does not get there."""

    def _servicer(self, node: str, method: str) -> Internal:
        return Internal(self.reach(node, method))

    async def change_definition(self, node: str, change: AnyChange) -> DefinitionRow:
        return await self._servicer(node, "change_definition").change_definition(change)

    async def definitions_after(self, node: str, position: Position) -> DefinitionsPage:
        return await self._servicer(node, "definitions_after").definitions_after(position)

    async def learn_definition(self, node: str, row: DefinitionRow) -> None:
        await self._servicer(node, "learn_definition").learn_definition(row)

    async def known_definitions(self, node: str, after: str) -> Sequence[DefinitionRow]:
        return await self._servicer(node, "known_definitions").known_definitions(after)

    async def known_definition(self, node: str, name: str) -> Definition:
        row = await self._servicer(node, "known_definition").known_definition(name)
        return decode(row.data)

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed:
        return await self._servicer(node, "drop_generations").drop_generations(name, generations)
