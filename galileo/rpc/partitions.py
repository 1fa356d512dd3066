"""The service that moves partitions between nodes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from galileo.rpc.error_mapping import Context, streaming
from galileo.wire.v1 import partitions_pb2


class PartitionMoves(Protocol):
    """Implemented by `server.cluster_nodes.ClusterNodes`."""

    def move(self, partition: int, to: str) -> AsyncGenerator[str, None]: ...


class PartitionsServicer:
    def __init__(self, moves: PartitionMoves) -> None:
        self._moves = moves

    @streaming
    async def Move(  # noqa: N802
        self, request: partitions_pb2.MoveRequest, context: Context
    ) -> AsyncGenerator[partitions_pb2.MoveProgress, None]:
        async with aclosing(self._moves.move(request.partition, request.to)) as stages:
            async for stage in stages:
                yield partitions_pb2.MoveProgress(stage=stage)
