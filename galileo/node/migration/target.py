"""The new owner's side of a partition move: copy, verify, switch.

Theory of operation. Everything is pulled, so the owner's part is to answer. While it takes commits,
its files are copied and verified, round by round, until little is left. Then its fence goes up:
commits wait, reads go on. The rest is copied and verified, made durable and opened, so that the
graph is built before the first request, and what the copy has to contain is recorded. Then the
owner is asked to hand over, which is the commit point (see `node.migration.moves`).

Whatever fails before leaves the owner what it was, with files here that the next attempt goes on
from; but a copy that fills the disk is deleted, for what the node has needs the room. Where the
answer to the hand-over is lost, the target asks again; where the owner is silent, its next
heartbeat decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable

from galileo.dht import placement
from galileo.dht.topology import Move
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    CorruptData,
    GalileoError,
    InputError,
    PartitionMoved,
    PartitionReadOnly,
    TransientError,
    Unavailable,
)
from galileo.node.catalog import Catalog
from galileo.node.migration.moves import Moves
from galileo.node.migration.protocol import (
    Handoff,
    MigrationOptions,
    MigrationPeer,
    PartitionManifest,
    Progress,
)
from galileo.node.migration.replica_copy import Copy
from galileo.storage.store import Store

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class PartitionTarget:
    """Takes partitions of other nodes over.

    Args:
        name: of this node.
        live: the topology.
        moves: what is adopted.
        catalog, store: of this node.
        movers: calls to the other nodes.
        learn: fetches from a node the datasets of these names that have so many added features.
        options: times and limits.
    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        moves: Moves,
        catalog: Catalog,
        store: Store,
        movers: MigrationPeer,
        learn: Callable[[str, dict[str, int]], Awaitable[None]],
        options: MigrationOptions,
    ) -> None:
        self._name = name
        self._live = live
        self._moves = moves
        self._catalog = catalog
        self._store = store
        self._movers = movers
        self._learn = learn
        self._options = options
        self._taking: set[int] = set()

    async def take(self, partition: int) -> AsyncGenerator[Progress, None]:
        """Brings a partition to this node; nothing happens where it is here.

        Closing the generator gives it up; what was copied stays for the next time.

        Raises:
            InputError: it is no partition of this node's group, or this node is leaving.
            Unavailable: a node cannot be reached, or the move has to be begun again.
            CorruptData: what the owner has is damaged.
            PartitionReadOnly: a disk refuses.
        """
        if self._live.current.is_replicated:
            raise InputError(
                "expected a cluster with one copy of each partition; where partitions are "
                "replicated, nodes place the copies by themselves",
                expected="one_replica",
            )
        self._check_group(partition)
        if partition in self._taking:
            raise Unavailable(f"partition {partition} is being moved here already", after_s=1.0)
        self._taking.add(partition)
        try:
            if not self._moves.is_own(partition):
                async with contextlib.aclosing(self._copy_and_switch(partition)) as steps:
                    async for step in steps:
                        yield step
        except OSError as error:
            if error.errno in FULL:
                await self._moves.abandon(partition)
            raise PartitionReadOnly(
                f"the disk of node {self._name!r} refuses a copy of partition {partition}: {error}",
                after_s=5.0,
                partition=partition,
                node=self._name,
            ) from error
        finally:
            self._taking.discard(partition)
        yield Progress("done", 0, 0)

    def _check_group(self, partition: int) -> None:
        topology = self._live.current
        group = topology.group_of(self._name)
        if topology.by_name[self._name].leaving:
            raise InputError(
                f"node {self._name!r} is being removed and takes no partitions; name another node",
                node=self._name,
            )
        count, number = topology.partitions_per_group, topology.groups.index(group)
        if not number * count <= partition < (number + 1) * count:
            raise InputError(
                f"expected a partition of group {group.name!r}, that is {number * count} to "
                f"{(number + 1) * count - 1}, since node {self._name!r} is of this group; "
                f"got {partition}",
                partition=partition,
                group=group.name,
            )

    async def _copy_and_switch(self, partition: int) -> AsyncGenerator[Progress, None]:
        owner = placement.owner(self._live.current, partition)
        listing = await self._start(owner, partition)
        copy = Copy(self._movers, self._store, owner=owner, partition=partition)
        for _ in range(self._options.rounds_max):
            async with contextlib.aclosing(copy.follow(listing)) as steps:
                async for step in steps:
                    yield step
            listing = await self._listing(owner, partition)
            if copy.missing(listing) <= self._options.tail_bytes:
                break
        yield Progress("switch", copy.done(listing), listing.bytes)
        await self._switch(owner, partition, copy)

    async def _start(self, owner: str, partition: int) -> PartitionManifest:
        """What there is to copy, once it is written down that it is coming."""
        listing = await self._listing(owner, partition)
        await self._moves.discard(partition)
        await asyncio.to_thread(
            self._moves.expect, Move(partition, listing.number, self._name), None
        )
        return listing

    async def _listing(self, owner: str, partition: int) -> PartitionManifest:
        """What the owner has; where that is another node by now, it is adopted and said."""
        try:
            listing = await self._movers.listing(owner, partition)
        except PartitionMoved as error:
            await self._adopt_named(error)
            raise
        await self._learn(owner, {one.dataset: one.added for one in listing.contents})
        return listing

    async def _adopt_named(self, error: PartitionMoved) -> Move | None:
        """Adopts the move that the details of an error name."""
        details = error.details
        if "node" not in details or "number" not in details:
            return None
        move = Move(int(details["partition"]), int(details["number"]), str(details["node"]))
        await self._moves.adopt([move])
        return move

    # --- the switch ----------------------------------------------------------------------------

    async def _switch(self, owner: str, partition: int, copy: Copy) -> None:
        """Fences the partition, copies the rest, and takes over."""
        renewing: asyncio.Task[None] | None = None
        try:
            listing = await self._movers.fence(owner, partition, to=self._name)
            renewing = asyncio.create_task(self._renew(owner, partition))
            await self._learn(owner, {one.dataset: one.added for one in listing.contents})
            for _ in range(self._options.fenced_rounds_max):
                async with contextlib.aclosing(copy.follow(listing)) as steps:
                    async for _ in steps:
                        pass
                if copy.is_whole(listing):
                    break
                listing = await self._movers.fence(owner, partition, to=self._name)
            await copy.put_marks(listing)
            await self._take_over(owner, listing)
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
            await asyncio.shield(asyncio.create_task(self._clean_up(owner, partition)))

    async def _renew(self, owner: str, partition: int) -> None:
        while True:
            await asyncio.sleep(self._options.renew_s)
            with contextlib.suppress(GalileoError):
                await self._movers.fence(owner, partition, to=self._name)

    async def _take_over(self, owner: str, listing: PartitionManifest) -> None:
        move = Move(listing.partition, listing.number, self._name)
        await asyncio.to_thread(self._moves.open, move, listing.contents)
        await asyncio.to_thread(self._moves.expect, move, listing.contents)
        try:
            await self._movers.hand_over(owner, Handoff(move, listing.contents))
        except TransientError as error:
            if not await self._was_handed_over(owner, move):
                raise Unavailable(
                    f"node {owner!r} did not hand partition {move.partition} over: "
                    f"{error.message}. Move it again",
                    after_s=0.0,
                    node=owner,
                    partition=move.partition,
                ) from error
        await self._moves.adopt([move])
        if not self._moves.is_own(move.partition):
            raise CorruptData(
                f"partition {move.partition} was given to node {self._name!r}, which cannot open "
                "it; see its log"
            )

    async def _was_handed_over(self, owner: str, move: Move) -> bool:
        """Whether the owner has stored the hand-over whose answer was lost."""
        for _ in range(self._options.questions_max):
            try:
                await self._movers.listing(owner, move.partition)
            except PartitionMoved as error:
                return await self._adopt_named(error) == move
            except TransientError:
                await asyncio.sleep(self._options.question_pause_s)
            else:
                return False
        return False

    async def _clean_up(self, owner: str, partition: int) -> None:
        """After a failed switch: closes the copy and releases the fence."""
        async with self._moves.lock:
            if self._moves.is_own(partition):
                return
            await asyncio.to_thread(self._catalog.close_partition, partition)
        with contextlib.suppress(GalileoError):
            await self._movers.release(owner, partition, to=self._name)
