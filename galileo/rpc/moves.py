"""The partition services, and their client for calls between nodes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from galileo.dht.topology import Move
from galileo.dht.topology_changes import known_node
from galileo.errors import CorruptData
from galileo.node.migration.protocol import (
    DatasetManifest,
    File,
    Handoff,
    PartitionManifest,
    Progress,
)
from galileo.node.migration.target import PartitionTarget
from galileo.node.storage_node import StorageNode
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.peers import GrpcPeers
from galileo.storage.frame import checksum
from galileo.wire.internal.v1 import migration_pb2
from galileo.wire.v1 import partitions_pb2


class MovesServicer:
    def __init__(self, node: StorageNode, taking: PartitionTarget, *, peers: GrpcPeers) -> None:
        self._node = node
        self._taking = taking
        self._peers = peers

    @streaming
    async def Move(  # noqa: N802
        self, request: partitions_pb2.MoveRequest, context: Context
    ) -> AsyncGenerator[partitions_pb2.MoveProgress, None]:
        known_node(self._node.topology, request.to)
        if request.to != self._node.name:
            async with aclosing(self._peers.move(request.to, request)) as parts:
                async for part in parts:
                    yield part
            return
        async with aclosing(self._taking.take(request.partition)) as steps:
            async for step in steps:
                yield _progress_to_pb(step)

    @unary
    async def ListPartition(  # noqa: N802
        self, request: migration_pb2.ListPartitionRequest, context: Context
    ) -> migration_pb2.ListPartitionReply:
        return _listing_to_pb(await self._node.giving.listing(request.partition))

    @unary
    async def ReadFile(  # noqa: N802
        self, request: migration_pb2.ReadFileRequest, context: Context
    ) -> migration_pb2.ReadFileReply:
        data = await self._node.giving.piece(
            request.partition, _file(request.file), offset=request.offset, size=request.size
        )
        return migration_pb2.ReadFileReply(data=data, crc=checksum([data]))

    @unary
    async def Checksum(  # noqa: N802
        self, request: migration_pb2.ChecksumRequest, context: Context
    ) -> migration_pb2.ChecksumReply:
        checksum = await self._node.giving.checksum(request.partition, _file(request.file))
        return migration_pb2.ChecksumReply(crc=checksum)

    @unary
    async def Fence(  # noqa: N802
        self, request: migration_pb2.FenceRequest, context: Context
    ) -> migration_pb2.ListPartitionReply:
        return _listing_to_pb(await self._node.giving.fence(request.partition, to=request.to))

    @unary
    async def Release(  # noqa: N802
        self, request: migration_pb2.FenceRequest, context: Context
    ) -> migration_pb2.ReleaseReply:
        await self._node.giving.release(request.partition, to=request.to)
        return migration_pb2.ReleaseReply()

    @unary
    async def HandOver(  # noqa: N802
        self, request: migration_pb2.HandOverRequest, context: Context
    ) -> migration_pb2.HandOverReply:
        move = Move(request.partition, request.number, request.to)
        await self._node.giving.hand_over(Handoff(move, _contents(request.contents)))
        return migration_pb2.HandOverReply()


class GrpcMigrationPeer:
    """Implements `node.migration.protocol.MigrationPeer` over gRPC."""

    def __init__(self, peers: GrpcPeers) -> None:
        self._peers = peers

    async def listing(self, node: str, partition: int) -> PartitionManifest:
        request = migration_pb2.ListPartitionRequest(partition=partition)
        return _listing(await self._peers.moving(node, "ListPartition", request))

    async def piece(
        self, node: str, partition: int, file: File, *, offset: int, size: int
    ) -> bytes:
        request = migration_pb2.ReadFileRequest(
            partition=partition, file=_file_to_pb(file), offset=offset, size=size
        )
        reply = await self._peers.moving(node, "ReadFile", request)
        if checksum([reply.data]) != reply.crc:
            raise CorruptData(f"a piece of {file.name} changed on its way from node {node!r}")
        return bytes(reply.data)

    async def checksum(self, node: str, partition: int, file: File) -> int:
        request = migration_pb2.ChecksumRequest(partition=partition, file=_file_to_pb(file))
        return int((await self._peers.moving(node, "Checksum", request)).crc)

    async def fence(self, node: str, partition: int, *, to: str) -> PartitionManifest:
        request = migration_pb2.FenceRequest(partition=partition, to=to)
        return _listing(await self._peers.moving(node, "Fence", request))

    async def release(self, node: str, partition: int, *, to: str) -> None:
        request = migration_pb2.FenceRequest(partition=partition, to=to)
        await self._peers.moving(node, "Release", request)

    async def hand_over(self, node: str, asked: Handoff) -> Move:
        request = migration_pb2.HandOverRequest(
            partition=asked.move.partition,
            number=asked.move.number,
            to=asked.move.node,
            contents=[_contents_to_pb(manifest, b"") for manifest in asked.contents],
        )
        await self._peers.moving(node, "HandOver", request)
        return asked.move


def _progress_to_pb(step: Progress) -> partitions_pb2.MoveProgress:
    return partitions_pb2.MoveProgress(
        stage=step.stage, bytes_done=step.bytes_done, bytes_total=step.bytes_total
    )


def _file(value: migration_pb2.PartitionFile) -> File:
    return File(value.dataset, value.name, value.bytes)


def _file_to_pb(file: File) -> migration_pb2.PartitionFile:
    return migration_pb2.PartitionFile(dataset=file.dataset, name=file.name, bytes=file.bytes)


def _contents(values: Iterable[migration_pb2.DatasetContents]) -> tuple[DatasetManifest, ...]:
    return tuple(
        DatasetManifest(one.dataset, one.last_sequence, one.dropped, one.rows, one.paths, one.added)
        for one in values
    )


def _contents_to_pb(manifest: DatasetManifest, mark: bytes) -> migration_pb2.DatasetContents:
    return migration_pb2.DatasetContents(
        dataset=manifest.dataset,
        last_sequence=manifest.last_sequence,
        dropped=manifest.dropped,
        rows=manifest.rows,
        paths=manifest.paths,
        mark=mark,
        added=manifest.added,
    )


def _listing(reply: migration_pb2.ListPartitionReply) -> PartitionManifest:
    return PartitionManifest(
        partition=reply.partition,
        number=reply.number,
        files=tuple(_file(file) for file in reply.files),
        contents=_contents(reply.contents),
        marks=tuple((manifest.dataset, manifest.mark) for manifest in reply.contents),
    )


def _listing_to_pb(listing: PartitionManifest) -> migration_pb2.ListPartitionReply:
    marks = dict(listing.marks)
    return migration_pb2.ListPartitionReply(
        partition=listing.partition,
        number=listing.number,
        files=[_file_to_pb(file) for file in listing.files],
        contents=[
            _contents_to_pb(manifest, marks[manifest.dataset]) for manifest in listing.contents
        ],
    )
