"""The internal service between nodes of one process, without gRPC."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing

from galileo.election.ranking import UsageStatistics
from galileo.node.storage_node import StorageNode
from galileo.rpc.internal import Internal
from galileo.rpc.internal_calls import InternalCalls
from galileo.wire.typed_service import Answer, P, TypedCall


class InternalNetwork(InternalCalls):
    """Has the other node answer each call; requests and answers are encoded, as on a real wire."""

    @abstractmethod
    def reach(self, node: str, method: str) -> StorageNode:
        """The other node. Raises Unavailable if the call does not get there."""

    async def _ask(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> Answer:
        there = Internal(self.reach(node, call.name), UsageStatistics)
        request = call.decode(call.encode(*arguments, **named))
        answer = await getattr(there, call.name)(*request)
        return call.decode_answer(call.encode_answer(answer))

    async def _parts(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> AsyncGenerator[Answer, None]:
        there = Internal(self.reach(node, call.name), UsageStatistics)
        request = call.decode(call.encode(*arguments, **named))
        async with aclosing(getattr(there, call.name)(*request)) as parts:
            async for part in parts:
                yield call.decode_answer(call.encode_answer(part))
