"""Sends the messages of replicas to other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from galileo.errors import MessageTooLarge
from galileo.node.replication.protocol import Envelope, LogRange, RangeDigest
from galileo.replication.values import Member
from galileo.rpc.admission import SMALL_REQUEST_BYTES_MAX
from galileo.rpc.internal import SERVICE, Internal
from galileo.rpc.peers import FRAMES_S, GOSSIP_S, GrpcPeers

REPLICATE = SERVICE.call(Internal.replicate)
REPLICATE_FRAMES = SERVICE.call(Internal.replicate_frames)
DIGESTS = SERVICE.call(Internal.digests)


class GrpcReplicaLink:
    """Implements `node.replication.protocol.ReplicaLink` over gRPC."""

    def __init__(self, peers: GrpcPeers) -> None:
        self._peers = peers

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        answers = list[Envelope]()
        for request in encoded(envelopes):
            if len(request) > SMALL_REQUEST_BYTES_MAX:
                call, timeout_s = REPLICATE_FRAMES, FRAMES_S
            else:
                call, timeout_s = REPLICATE, GOSSIP_S
            answered = await self._peers.ask(node, call, request, timeout_s=timeout_s)
            answers += answered
        return answers

    async def digests(
        self, member: Member, ranges: Sequence[LogRange]
    ) -> Sequence[RangeDigest | None]:
        request, timeout_s = DIGESTS.encode(member, ranges), GOSSIP_S
        return await self._peers.ask(member.node, DIGESTS, request, timeout_s=timeout_s)


def encoded(envelopes: Sequence[Envelope]) -> list[bytes]:
    """Requests with the messages, in their order: one, unless they are too many for it."""
    try:
        return [REPLICATE_FRAMES.encode(envelopes)]  # As REPLICATE encodes them.
    except MessageTooLarge:
        if len(envelopes) == 1:
            raise
    middle = len(envelopes) // 2
    return encoded(envelopes[:middle]) + encoded(envelopes[middle:])
