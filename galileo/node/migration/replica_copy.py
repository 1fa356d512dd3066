"""The copy of a partition that a node makes from what another one lists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from galileo.errors import Unavailable
from galileo.node.migration.protocol import (
    NEW_LIST,
    File,
    MigrationPeer,
    PartitionManifest,
    Progress,
)
from galileo.storage.replica_files import PartitionCopy
from galileo.storage.store import Store

PIECE_BYTES = 4 << 20

log = logging.getLogger(__name__)


class Copy:
    """What of a partition is here, and what of that is verified.

    Args:
        movers: calls to the owner.
        store: of this node.
        owner: the node that has the partition.
        partition: its number.
    """

    def __init__(self, movers: MigrationPeer, store: Store, *, owner: str, partition: int) -> None:
        self._movers = movers
        self._store = store
        self._owner = owner
        self._partition = partition
        self._verified: set[File] = set()
        self._places: dict[str, PartitionCopy] = {}

    def done(self, listing: PartitionManifest) -> int:
        """How many bytes of what is listed are here."""
        return sum(min(self._here(file), file.bytes) for file in listing.files)

    def missing(self, listing: PartitionManifest) -> int:
        return listing.bytes - self.done(listing)

    def is_whole(self, listing: PartitionManifest) -> bool:
        """Whether all that is listed is here and verified."""
        return self._verified.issuperset(listing.files)

    async def follow(self, listing: PartitionManifest) -> AsyncGenerator[Progress, None]:
        """Copies and verifies what is listed and not here, until a file is gone that was merged.

        Raises:
            CorruptData: what the owner has is damaged.
            Unavailable: the owner cannot be reached.
            OSError: the disk refuses.
        """
        await asyncio.to_thread(self._keep_only, listing)
        try:
            for file in listing.files:
                while (offset := self._here(file)) < file.bytes:
                    await self._fetch(file, offset)
                    yield Progress("copy", self.done(listing), listing.bytes)
                if file not in self._verified:
                    await self._verify(file, is_last=_is_last(file, listing))
                    yield Progress("verify", self.done(listing), listing.bytes)
        except Unavailable as error:
            if not error.details.get(NEW_LIST):
                raise
            log.info("of partition %d: %s", self._partition, error.message)

    async def put_marks(self, listing: PartitionManifest) -> None:
        """Writes what retention dropped, and sees that all that is listed is here.

        Raises:
            Unavailable: it is not.
            OSError: the disk refuses.
        """
        if not self.is_whole(listing):
            raise Unavailable(
                f"the files of partition {self._partition} change too fast; move it again",
                after_s=1.0,
            )
        for dataset, data in listing.marks:
            await asyncio.to_thread(self._place(dataset).write_log_start, data)

    async def _fetch(self, file: File, offset: int) -> None:
        size = min(PIECE_BYTES, file.bytes - offset)
        piece = await self._movers.piece(
            self._owner, self._partition, file, offset=offset, size=size
        )
        if not piece:
            raise Unavailable(f"node {self._owner!r} sent nothing of {file.name}; move it again")
        place = self._place(file.dataset)
        await asyncio.to_thread(place.write, file.name, piece, offset=offset)

    async def _verify(self, file: File, *, is_last: bool) -> None:
        """Compares the file on this disk with the owner's, and with the checksums in it."""
        place = self._place(file.dataset)
        await asyncio.to_thread(place.finish, file.name, size=file.bytes)
        mine, theirs = await asyncio.gather(
            asyncio.to_thread(place.checksum, file.name, size=file.bytes),
            self._movers.checksum(self._owner, self._partition, file),
        )
        if mine != theirs:  # It was here before, of another life of the partition.
            await asyncio.to_thread(place.delete, file.name)
            raise Unavailable(
                f"the copy of {file.name} is of something else; it is made anew", **{NEW_LIST: True}
            )
        await asyncio.to_thread(place.check, file.name, is_last=is_last)
        self._verified.add(file)

    def _keep_only(self, listing: PartitionManifest) -> None:
        for manifest in listing.contents:
            names = {file.name for file in listing.files if file.dataset == manifest.dataset}
            self._place(manifest.dataset).keep_only(names)

    def _here(self, file: File) -> int:
        return self._place(file.dataset).length(file.name)

    def _place(self, dataset: str) -> PartitionCopy:
        if dataset not in self._places:
            self._places[dataset] = self._store.partition_copy(dataset, self._partition)
        return self._places[dataset]


def _is_last(file: File, listing: PartitionManifest) -> bool:
    names = [one.name for one in listing.files if one.dataset == file.dataset]
    return file.name == names[-1]
