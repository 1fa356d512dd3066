"""The client's side of the move of a partition to another node."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from galileo.errors import Unavailable
from galileo.wire.caller import Caller, Stream
from galileo.wire.v1 import partitions_pb2
from galileo.wire.v1.partitions_pb2_grpc import PartitionsStub


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The progress of the move of a partition.

    Attributes:
        partition: that moves.
        stage: "copy", "verify", "switch", in which producers of the partition wait, or "done".
        bytes_done, bytes_total: of its files; both 0 at the end.
    """

    partition: int
    stage: str
    bytes_done: int
    bytes_total: int


def move(caller: Caller, partition: int, *, to: str) -> AsyncGenerator[MoveProgress, None]:
    """See `AsyncClient.move`."""
    request = partitions_pb2.MoveRequest(partition=partition, to=to)
    furthest = -1

    def is_progress(progress: MoveProgress) -> bool:
        nonlocal furthest
        before, furthest = furthest, max(furthest, progress.bytes_done)
        return furthest > before

    async def rest() -> AsyncGenerator[MoveProgress, None]:
        """The progress of the move; a repeated request continues it."""
        stream, part = await caller.open(
            lambda node: node.stream(PartitionsStub, "Move", request),
            Stream.read,
        )
        with stream:
            while part is not None:
                yield MoveProgress(partition, part.stage, part.bytes_done, part.bytes_total)
                if part.stage == "done":
                    return
                part = await stream.read()
        raise Unavailable("the node closed the stream before the partition had moved")

    return caller.resume(rest, is_progress=is_progress)
