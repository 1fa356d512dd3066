"""The service of channels: decode, one call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

from galileo.errors import GalileoError, InputError
from galileo.node.peers import ChannelProgress, ExecutionsPart, ExecutionsTask
from galileo.node.storage_node import StorageNode
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.internal import channel_progress
from galileo.rpc.peers import GrpcPeers
from galileo.wire.alike import alike
from galileo.wire.codec import CHUNK_BYTES_MAX, cursor_from_pb, cursor_to_pb
from galileo.wire.v1 import channels_pb2

WAIT_MAX_S = 60.0


class ChannelsServicer:
    def __init__(self, node: StorageNode, peers: GrpcPeers) -> None:
        self._node = node
        self._peers = peers

    @streaming
    async def Follow(  # noqa: N802
        self, request: channels_pb2.FollowRequest, context: Context
    ) -> AsyncIterator[channels_pb2.FollowPart]:
        if not request.broker:
            raise InputError("expected the name of a broker, got ''", parameter="broker")
        channel = await self._node.stored_schema(request.dataset)
        task = ExecutionsTask(
            channel.key,
            request.broker,
            cursor_from_pb(request.after),
            frozenset(request.partitions),
        )
        answer = self._node.channel_reader.follow(task, wait_s=min(request.wait_s, WAIT_MAX_S))
        async with aclosing(answer) as parts:
            async for part in parts:
                for message in _messages(part):
                    yield message

    @unary
    async def DescribeChannel(  # noqa: N802
        self, request: channels_pb2.DescribeChannelRequest, context: Context
    ) -> channels_pb2.DescribeChannelReply:
        channel = await self._node.stored_schema(request.dataset)
        self._node.catalog.channel_shard(channel.key)
        nodes = [node.name for node in self._node.topology.nodes]
        replies = await asyncio.gather(*(self._ask(node, channel.key) for node in nodes))
        partitions = [_progress(one) for reply in replies for one in reply]
        partitions.sort(key=lambda one: one.partition)
        return channels_pb2.DescribeChannelReply(partitions=partitions)

    async def _ask(self, node: str, channel: str) -> Sequence[ChannelProgress]:
        """What a node says; nothing if it cannot be reached."""
        if node == self._node.name:
            return channel_progress(self._node, channel)
        try:
            return await self._peers.describe_channel(node, channel)
        except GalileoError:
            return ()


def _progress(one: ChannelProgress) -> channels_pb2.ChannelPartition:
    return alike(channels_pb2.ChannelPartition, one, cut=cursor_to_pb(one.cut))


def _messages(part: ExecutionsPart) -> Iterator[channels_pb2.FollowPart]:
    """A part of an answer in bounded messages."""
    execution = part.execution
    if execution is not None:
        for chunk in _chunks(execution.observations):
            yield channels_pb2.FollowPart(observations=chunk)
        for chunk in _chunks(execution.matches):
            yield channels_pb2.FollowPart(matches=chunk)
    yield channels_pb2.FollowPart(
        partition=0 if execution is None else execution.partition,
        execution=0 if execution is None else execution.number,
        reached=cursor_to_pb(part.reached),
        gone=cursor_to_pb(part.gone) if len(part.gone) else None,
    )


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES_MAX):
        yield data[start : start + CHUNK_BYTES_MAX]
