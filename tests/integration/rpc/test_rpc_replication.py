"""The messages of replicas on their way between nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.election.ranking import UsageStatistics
from galileo.errors import MessageTooLarge, Unavailable
from galileo.node.replication.protocol import Envelope, LogRange, RangeDigest
from galileo.replication import messages
from galileo.replication.values import Epochs, Member
from galileo.rpc import replication
from galileo.rpc.access import ANONYMOUS
from galileo.rpc.admission import SMALL_REQUEST_BYTES_MAX
from galileo.rpc.call_log import CallRecord, CallTracker
from galileo.rpc.interceptor import CallInterceptor
from galileo.rpc.internal import REPLICATE_HEAD_BYTES_MAX, Internal, add_internal
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.replication import REPLICATE, GrpcReplicaLink, encoded
from galileo.wire.channel import node_server_options

A, B = Member("a", "disk of a"), Member("b", "disk of b")
SUPPORT = Envelope(1, B, A, messages.Support(7, 1.5))


class Received(Internal):
    """A node that keeps the messages of replicas it gets, answers beats, and knows each second
    range.
    """

    def __init__(self) -> None:
        no_node: Any = None
        super().__init__(no_node, UsageStatistics)
        self.envelopes: list[Envelope] = []
        self.calls: list[str] = []

    async def replicate(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        self.envelopes += envelopes
        return [SUPPORT] if any(isinstance(one.message, messages.Beat) for one in envelopes) else []

    async def replicate_frames(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        return await self.replicate(envelopes)

    async def digests(
        self, member: Member, ranges: Sequence[LogRange]
    ) -> Sequence[RangeDigest | None]:
        if member != B:
            raise Unavailable("another directory", node=member.node)
        return [RangeDigest(one.after, 2**64 - 1) if one.partition % 2 else None for one in ranges]

    def ended(self, call: CallRecord) -> None:
        self.calls.append(call.name)


@pytest.fixture
async def received() -> Received:
    return Received()


@pytest.fixture
async def link(received: Received) -> AsyncIterator[GrpcReplicaLink]:
    interceptor = CallInterceptor(CallTracker(on_end=received.ended), lambda context: ANONYMOUS)
    server = grpc.aio.server(options=node_server_options(), interceptors=[interceptor])
    add_internal(received, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    nodes = (NodeInfo("b", f"127.0.0.1:{port}"),)
    peers = GrpcPeers(
        Topology("test", (Group("west", nodes),), even_ranges(1)), is_dead=lambda node: True
    )
    yield GrpcReplicaLink(peers)
    await peers.close()
    await server.stop(None)


def appended(frames: Any) -> Envelope:
    epochs = Epochs(((2, 7),), 5)
    return Envelope(3, A, B, messages.Append(7, "nam", 1, 7, epochs, 1, 1), frames, b"begins", 2)


async def test_link_sends_messages_in_order(link: GrpcReplicaLink, received: Received) -> None:
    sent = [
        Envelope(1, A, B, messages.Beat(7, 1.5)),
        appended(pa.py_buffer(b"frames")),
        Envelope(2, A, B, messages.PreVote(7)),
    ]
    assert await link.send("b", sent) == [SUPPORT]
    assert received.envelopes == sent
    assert received.calls == ["internal/replicate"]


async def test_link_sends_large_frames_apart_from_heartbeats(
    link: GrpcReplicaLink, received: Received
) -> None:
    frames = bytes(range(256)) * (3 * SMALL_REQUEST_BYTES_MAX // 256)
    await link.send("b", [appended(frames)])
    [envelope] = received.envelopes
    assert envelope.frames is not None
    assert envelope.frames.to_pybytes() == frames
    assert received.calls == ["internal/replicate_frames"]


async def test_link_asks_for_digests(link: GrpcReplicaLink) -> None:
    ranges = [LogRange(partition, "nam", partition, 9) for partition in range(3)]
    assert await link.digests(B, ranges) == (None, RangeDigest(1, 2**64 - 1), None)
    with pytest.raises(Unavailable, match="another directory"):
        await link.digests(Member("b", "earlier"), ranges)


def test_encoded_divides_what_is_too_much_for_one_request() -> None:
    logs = {f"{number}": number for number in range(REPLICATE_HEAD_BYTES_MAX // 40)}
    sent = [
        Envelope(partition, A, B, messages.Acknowledged(7, (7, 1), True, True, logs, {}))
        for partition in range(9)
    ]
    requests = encoded(sent)
    assert len(requests) > 1
    assert [envelope for one in requests for envelope in REPLICATE.decode(one)[0]] == sent


def test_encoded_raises_where_one_message_is_too_much() -> None:
    long = Envelope(1, A, B, messages.Fetch(7, "n" * REPLICATE_HEAD_BYTES_MAX, 1, 2))
    with pytest.raises(MessageTooLarge):
        encoded([long, Envelope(2, A, B, messages.PreVote(7))])


async def test_node_refuses_a_long_head_of_messages_of_replicas(
    link: GrpcReplicaLink, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop would stand still while the head is decoded."""
    many = [Envelope(1, A, B, messages.PreVote(7))] * 20_000
    monkeypatch.setattr(replication, "encoded", lambda many: [REPLICATE.encode(many)])
    with raises(MessageTooLarge, bound=REPLICATE_HEAD_BYTES_MAX):
        await link.send("b", many)
    assert received.envelopes == []
