"""The client's side of a scrub: nodes read again what they store, and say what is damaged."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from galileo.client.cluster_caller import CONDITION_S, topology_of
from galileo.dht.topology import NodeInfo
from galileo.dht.topology_changes import known_node
from galileo.errors import GalileoError, NotPermitted
from galileo.wire.caller import Caller, Connection
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How much of its stored commits one node has read again.

    Attributes:
        node: its name.
        bytes_done, bytes_total: of its files.
        is_over: whether it has read all that was stored when it began.
        damages: a message for each damaged file that it found, at most 100; where other nodes have
            copies, the file is copied from them.
        failure: why the node did not answer; then all else is as it was last.
    """

    node: str
    bytes_done: int = 0
    bytes_total: int = 0
    is_over: bool = False
    damages: tuple[str, ...] = ()
    failure: str = ""


async def scrub(caller: Caller, names: Sequence[str]) -> AsyncGenerator[ScrubProgress, None]:
    """See `AsyncClient.scrub`."""
    topology = await caller.call(topology_of)
    nodes = [known_node(topology, name) for name in dict.fromkeys(names)] or list(topology.nodes)
    under_way = {node: ScrubProgress(node.name) for node in nodes}
    begin = True
    while under_way:
        replies = await asyncio.gather(
            *(_ask(caller, node, last, begin=begin) for node, last in under_way.items())
        )
        begin = False
        for node, progress in zip(list(under_way), replies, strict=True):
            if progress != under_way[node]:
                yield progress
            under_way[node] = progress
            if progress.is_over or progress.failure:
                del under_way[node]
        await asyncio.sleep(POLL_S if under_way else 0)


async def _ask(
    caller: Caller, node: NodeInfo, last: ScrubProgress, *, begin: bool
) -> ScrubProgress:
    try:
        reply = await caller.ask(node.address, functools.partial(_scrub, begin=begin))
    except NotPermitted:
        raise
    except GalileoError as error:
        return replace(last, failure=error.details.get("reason") or error.message)
    return ScrubProgress(
        node.name, reply.bytes_done, reply.bytes_total, reply.is_over, tuple(reply.damages)
    )


async def _scrub(node: Connection, *, begin: bool) -> cluster_pb2.ScrubReply:
    request = cluster_pb2.ScrubRequest(begin=begin)
    reply: cluster_pb2.ScrubReply = await node.unary(
        CLUSTER, "Scrub", request, timeout_s=CONDITION_S
    )
    return reply
