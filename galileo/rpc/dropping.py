"""What nodes removed with a dropped dataset, as messages."""

from __future__ import annotations

from collections.abc import Mapping

from galileo.errors import GalileoError, Unavailable
from galileo.node.peers import Removed
from galileo.wire.v1 import cluster_pb2


def removed_to_pb(
    removed: Mapping[str, Removed | GalileoError], *, ccqs: int = 0
) -> cluster_pb2.DropDatasetReply:
    nodes = [
        cluster_pb2.DroppedAtNode(node=node, failure=one.message)
        if isinstance(one, GalileoError)
        else cluster_pb2.DroppedAtNode(node=node, rows=one.rows, bytes=one.bytes)
        for node, one in sorted(removed.items())
    ]
    return cluster_pb2.DropDatasetReply(nodes=nodes, ccqs=ccqs)


def removed_from_pb(reply: cluster_pb2.DropDatasetReply) -> dict[str, Removed | GalileoError]:
    return {
        one.node: Unavailable(one.failure) if one.failure else Removed(one.rows, one.bytes)
        for one in reply.nodes
    }
