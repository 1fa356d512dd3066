"""The owner's side of a partition move: serves the files, fences writes and hands over."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from galileo.dht.topology import Move
from galileo.dht.topology_state import TopologyState
from galileo.errors import InputError, PartitionMoved, PartitionReadOnly, Unavailable
from galileo.node.catalog import Catalog
from galileo.node.migration.moves import Moves, dataset_manifest
from galileo.node.migration.protocol import (
    NEW_LIST,
    File,
    Handoff,
    MigrationOptions,
    PartitionManifest,
)
from galileo.storage.replica_files import file_checksum, read_piece
from galileo.storage.retention import log_start_path
from galileo.storage.store import Store

PIECE_BYTES_MAX = 8 << 20
"""Bytes of a file that one call reads."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Fence:
    """Commits are rejected. `expiry`: None once it stays until the partition is given away."""

    to: str
    expiry: asyncio.TimerHandle | None


class PartitionSource:
    """Answers the calls of `MigrationPeer` about this node's partitions.

    Args:
        name: of this node.
        live: the topology.
        moves: where a hand-over is written.
        catalog: of this node.
        store: of this node.
        options: times.
    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        moves: Moves,
        catalog: Catalog,
        store: Store,
        options: MigrationOptions,
    ) -> None:
        self._name = name
        self._live = live
        self._moves = moves
        self._catalog = catalog
        self._store = store
        self._options = options
        self._fences: dict[int, _Fence] = {}

    def close(self) -> None:
        for fence in self._fences.values():
            if fence.expiry is not None:
                fence.expiry.cancel()

    async def listing(self, partition: int) -> PartitionManifest:
        """Everything that this node has of a partition."""
        self._check(partition)
        return await asyncio.to_thread(self._build_manifest, partition)

    async def piece(self, partition: int, file: File, *, offset: int, size: int) -> bytes:
        """Some bytes of a file that a listing named.

        Raises:
            Unavailable: it was merged or dropped since.
        """
        path = await asyncio.to_thread(self._path, partition, file)
        if not (0 <= offset < file.bytes and 0 < size <= PIECE_BYTES_MAX):
            raise InputError(f"expected a piece of {file.bytes} bytes, got {size} from {offset}")
        size = min(size, file.bytes - offset)
        try:
            return await asyncio.to_thread(read_piece, path, offset=offset, size=size)
        except FileNotFoundError as error:
            raise _file_replaced(file) from error

    async def checksum(self, partition: int, file: File) -> int:
        """CRC-32C of a file that a listing named; errors as `piece`."""
        path = await asyncio.to_thread(self._path, partition, file)
        try:
            return await asyncio.to_thread(file_checksum, path, size=file.bytes)
        except FileNotFoundError as error:
            raise _file_replaced(file) from error

    async def fence(self, partition: int, *, to: str) -> PartitionManifest:
        """Takes no commits for a partition for `fence_s`; again, to make that longer.

        Raises:
            Unavailable: another node is taking it.
        """
        self._check(partition)
        fence = self._fences.get(partition)
        if fence is not None and fence.to != to:
            raise Unavailable(
                f"partition {partition} is being moved to node {fence.to!r}",
                after_s=self._options.fence_s,
                node=fence.to,
            )
        if fence is None or fence.expiry is not None:
            if fence is not None and fence.expiry is not None:
                fence.expiry.cancel()
            loop = asyncio.get_running_loop()
            expiry = loop.call_later(self._options.fence_s, self._expire, partition)
            self._fences[partition] = _Fence(to, expiry)
        await self._catalog.fence(partition)
        return await asyncio.to_thread(self._build_manifest, partition)

    async def release(self, partition: int, *, to: str) -> None:
        """Takes commits again; nothing where the fence is not that of `to`."""
        fence = self._fences.get(partition)
        if fence is not None and fence.to == to and fence.expiry is not None:
            fence.expiry.cancel()
            self._expire(partition)

    async def hand_over(self, handoff: Handoff) -> Move:
        """Gives a partition away, durably.

        Raises:
            Unavailable: its fence is not up any more, or the copy is not of all of it.
            PartitionReadOnly: the disk refuses. Where it is not known what the disk has, the
                partition takes no commits until this is repeated, or the node restarted.
        """
        # The caller may disconnect; a hand-over that has begun is completed.
        return await asyncio.shield(asyncio.create_task(self._hand_over(handoff)))

    async def _hand_over(self, handoff: Handoff) -> Move:
        move = handoff.move
        async with self._moves.lock:
            self._check(move.partition)
            fence = self._fences.get(move.partition)
            is_fenced = self._catalog.is_fenced(move.partition)
            if fence is None or fence.to != move.node or not is_fenced:
                raise Unavailable(
                    f"the fence of partition {move.partition} for node {move.node!r} is gone; "
                    "move it again",
                    after_s=0.0,
                    expected="fence",
                )
            manifest = dataset_manifest(self._catalog, move.partition)
            if manifest != handoff.contents or move.number != self._number(move.partition):
                raise Unavailable(
                    f"expected a copy of partition {move.partition} with {manifest}, got one with "
                    f"{handoff.contents}; move it again",
                    after_s=0.0,
                    expected="copy",
                )
            if fence.expiry is not None:
                fence.expiry.cancel()
                fence.expiry = None
            try:
                await self._moves.give(move)
            except PartitionReadOnly:
                if not await self._moves.may_be_given(move):
                    self._expire(move.partition)
                raise
            del self._fences[move.partition]
            return move

    def _expire(self, partition: int) -> None:
        del self._fences[partition]
        self._catalog.unfence(partition)
        log.warning("partition %d takes commits again; it was not moved", partition)

    def _check(self, partition: int) -> None:
        if self._moves.is_own(partition):
            return
        last = self._live.move_of(partition)
        move = {} if last is None else {"number": last.number, "node": last.node}
        raise PartitionMoved(
            f"node {self._name!r} does not have partition {partition}",
            after_s=0.1,
            partition=partition,
            **move,
        )

    def _number(self, partition: int) -> int:
        last = self._live.move_of(partition)
        return 1 if last is None else last.number + 1

    def _build_manifest(self, partition: int) -> PartitionManifest:
        """The files first, so that a mark is never older than they are."""
        files, contents = [], dataset_manifest(self._catalog, partition)
        for manifest in contents:
            journal = self._catalog.stored_shard(manifest.dataset).journals[partition]
            files += [File(manifest.dataset, path.name, size) for path, size in journal.files()]
        marks = tuple((one.dataset, self._mark(one.dataset, partition)) for one in contents)
        number = self._number(partition)
        return PartitionManifest(partition, number, tuple(files), contents, marks)

    def _mark(self, dataset: str, partition: int) -> bytes:
        path = log_start_path(self._store.partition_directory(dataset, partition))
        return path.read_bytes() if path.exists() else b""

    def _path(self, partition: int, file: File) -> Path:
        """Where a file is; it has to be one of the partition's, at least so long.

        Blocks until the journal has finished its current write; call it in a thread.
        """
        self._check(partition)
        journal = self._catalog.stored_shard(file.dataset).journals.get(partition)
        for path, size in journal.files() if journal is not None else ():
            if path.name == file.name and size >= file.bytes:
                return path
        raise _file_replaced(file)


def _file_replaced(file: File) -> Unavailable:
    return Unavailable(
        f"expected file {file.name} of dataset {file.dataset!r}, which was merged or dropped "
        "meanwhile; list the files again",
        **{NEW_LIST: True},
    )
