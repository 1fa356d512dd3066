"""The client's side of the removal of a node from the cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from galileo.errors import InputError, Unavailable
from galileo.wire.caller import Caller, Stream
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2


@dataclass(frozen=True, slots=True)
class RemovalProgress:
    """The progress of the removal of a node.

    Attributes:
        node: that is removed.
        stage: "move" while partitions move to others, "drain" while continuous queries do, "done".
        partition: that moves.
        left: partitions that have not moved yet.
    """

    node: str
    stage: str
    partition: int = 0
    left: int = 0


def remove_node(
    caller: Caller, node: str, *, to: str, lost: bool
) -> AsyncGenerator[RemovalProgress, None]:
    """See `AsyncClient.remove_node`."""
    request = cluster_pb2.RemoveNodeRequest(node=node, to=to, lost=lost)
    caller.forget_addresses()  # Those of the other nodes are needed when the node is gone.
    shown: RemovalProgress | None = None

    def is_progress(progress: RemovalProgress) -> bool:
        nonlocal shown
        before, shown = shown, progress
        return before != progress

    async def rest() -> AsyncGenerator[RemovalProgress, None]:
        """The progress of the removal; a repeated request shows that of the same removal."""
        try:
            stream, part = await caller.open(
                lambda one: one.stream(CLUSTER, "RemoveNode", request), Stream.read
            )
        except InputError as error:
            if shown is None or error.details.get("node") != node:
                raise
            yield RemovalProgress(node, "done")  # It was removed while the client was away.
            return
        with stream:
            while part is not None:
                yield RemovalProgress(node, part.stage, part.partition, part.left)
                if part.stage == "done":
                    return
                part = await stream.read()
        raise Unavailable("the node closed the stream before it was removed")

    return caller.resume(rest, is_progress=is_progress)


async def keep_node(caller: Caller, node: str) -> None:
    """See `AsyncClient.keep_node`."""
    request = cluster_pb2.RemoveNodeRequest(node=node, undo=True)
    stream, _ = await caller.open(
        lambda one: one.stream(CLUSTER, "RemoveNode", request), Stream.read
    )
    stream.cancel()
