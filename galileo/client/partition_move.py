"""The client's side of the move of a partition to another node."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from galileo.client.backoff import Backoff
from galileo.client.transport import Transport
from galileo.errors import GalileoError, TransientError, Unavailable
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import partitions_pb2, partitions_pb2_grpc

STREAM_TIMEOUT_S = 86_400.0


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


async def move(
    transport: Transport, partition: int, *, to: str
) -> AsyncGenerator[MoveProgress, None]:
    """See `AsyncClient.move`."""
    backoff = Backoff(transport.timing, patience_s=transport.patience_s)
    request = partitions_pb2.MoveRequest(partition=partition, to=to)
    furthest = -1
    while True:
        try:
            call, part = await transport.open(lambda channel: _open(channel, request))
            try:
                while part is not grpc.aio.EOF:
                    yield MoveProgress(partition, part.stage, part.bytes_done, part.bytes_total)
                    if part.stage == "done":
                        return
                    if part.bytes_done > furthest:
                        furthest = part.bytes_done
                        backoff = Backoff(transport.timing, patience_s=transport.patience_s)
                    part = await call.read()
                raise Unavailable("the node closed the stream before the partition had moved")
            finally:
                call.cancel()
        except (grpc.RpcError, TransientError) as error:
            failure = error if isinstance(error, GalileoError) else error_of_rpc(error, asked=to)
            if not isinstance(failure, TransientError):
                raise failure from error
            await backoff.after(failure)


async def _open(channel: grpc.aio.Channel, request: partitions_pb2.MoveRequest) -> tuple[Any, Any]:
    call = partitions_pb2_grpc.PartitionsStub(channel).Move(request, timeout=STREAM_TIMEOUT_S)
    try:
        return call, await call.read()
    except BaseException:
        call.cancel()
        raise
