"""Partition moves: the record of all moves that this node knows, and what follows from them.

Theory of operation. A partition has one owner, and only its owner gives it away. It does so by one
durable write, of the record of moves, when another node has a verified copy of all of it. Before
that write the old owner serves the partition, and after it never again; the new one serves it from
when it has learnt of the write: by the answer to its own call, or by a heartbeat. So at each moment
at most one node serves it, and whatever crashes when, the disk of one node says who is to.

Moves spread with heartbeats. Of each partition the move with the highest number counts, and only
its owner makes one, so nodes that know the same moves agree.

Files of a partition that this node gave away are deleted when the new owner has said itself that it
has it, and calls that began before have had time to end; so is an unfinished copy of a partition
that has gone elsewhere meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable

from galileo.dht.topology import Move
from galileo.dht.topology_state import TopologyState
from galileo.errors import CorruptData, GalileoError, PartitionReadOnly
from galileo.node.catalog import Catalog
from galileo.node.migration.protocol import DatasetManifest, MigrationOptions
from galileo.storage.partition_files import INCOMING_KIND
from galileo.storage.store import Store

TOPOLOGY_KIND, MOVED = "topology", "moved"

log = logging.getLogger(__name__)


def stored_moves(store: Store) -> tuple[Move, ...]:
    """The moves that a node has on disk."""
    data = store.load_record(TOPOLOGY_KIND, MOVED)
    return tuple(Move(p, number, node) for p, number, node in json.loads(data or b"[]"))


class Moves:
    """Adopts moves, brings in what was given to this node, and tidies up what it gave away.

    Args:
        name: of this node.
        live: the topology, with the stored moves.
        store: of this node.
        catalog: of this node.
        options: times.
        monotonic: seconds, of a clock that never jumps.

    Attributes:
        lock: held while the partitions of this node change.
        on_moved: called when moves were adopted, to announce them to the others.
    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        store: Store,
        catalog: Catalog,
        options: MigrationOptions,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = asyncio.Lock()
        self.on_moved: Callable[[], None] = lambda: None
        self._name = name
        self._live = live
        self._store = store
        self._catalog = catalog
        self._options = options
        self._monotonic = monotonic
        self._received: set[Move] = set()
        self._confirmed: set[Move] = set()
        self._working: asyncio.Task[None] | None = None
        is_replicated = live.current.is_replicated
        self._leaving = {} if is_replicated else dict.fromkeys(self._left_behind(), monotonic())

    @property
    def known(self) -> tuple[Move, ...]:
        return self._live.current.moved

    def is_own(self, partition: int) -> bool:
        return partition in self._live.partitions(self._name)

    # --- moves of other nodes-----------------------------------------------------------------

    def receive(self, sender: str, moves: Iterable[Move]) -> None:
        """Takes the moves of a heartbeat; a task adopts the new ones.

        Those of replicated partitions name leaders, and concern nothing that is stored.
        """
        if self._live.current.is_replicated:
            self._live.adopt(moves)
            return
        reported = set(moves)
        self._confirmed |= {move for move in reported if move.node == sender}
        self._received.update(self._live.moves(reported))
        if (self._received or self._due()) and (self._working is None or self._working.done()):
            self._working = asyncio.create_task(self._catch_up())

    async def settled(self) -> None:
        """Returns when all received moves have been adopted."""
        while self._working is not None and not self._working.done():
            await asyncio.wait([self._working])

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    async def _catch_up(self) -> None:
        try:
            received, self._received = self._received, set()
            await self.adopt(received)
            for partition in self._due():
                await self.discard(partition)
        except Exception:
            log.exception("received moves could not be adopted; the next heartbeat repeats them")

    # --- adopting ----------------------------------------------------------------------------

    async def adopt(self, moves: Iterable[Move]) -> None:
        """Stores moves; a partition that came to this node is served on return.

        Raises:
            PartitionReadOnly: the disk refuses; nothing was adopted.
        """
        async with self.lock:
            new = [move for move in self._live.moves(moves) if await self._has(move)]
            if new:
                await self._keep(new)

    def lead(self, partition: int, term: int) -> None:
        """Announces this node as the leader of a replicated partition."""
        self._live.adopt([Move(partition, term, self._name)])
        self.on_moved()

    async def give(self, move: Move) -> None:
        """Gives a partition away, durably; its fence is up, and the lock held by the caller.

        Raises:
            PartitionReadOnly: the disk refuses; see `may_be_given`.
        """
        await self._keep([move])

    async def may_be_given(self, move: Move) -> bool:
        """Whether the next start may find what could not be made durable.

        A record comes under its name at once or never: what is not there now, as when the disk
        was full, will not be.
        """
        return move in await asyncio.to_thread(stored_moves, self._store)

    async def _keep(self, moves: list[Move]) -> None:
        """Makes moves known here; a partition that leaves this node takes no commits before."""
        leaving = [move.partition for move in moves if self.is_own(move.partition)]
        leaving = [
            p for p in leaving if all(m.node != self._name for m in moves if m.partition == p)
        ]
        for partition in leaving:
            await self._catalog.fence(partition)
        last = {move.partition: move for move in (*self.known, *sorted(moves))}
        raw = [[move.partition, move.number, move.node] for move in sorted(last.values())]
        data = json.dumps(raw).encode()
        await asyncio.to_thread(self._store.save_record, TOPOLOGY_KIND, MOVED, data)
        self._live.adopt(moves)
        copied = await asyncio.to_thread(self._store.load_records, INCOMING_KIND)
        others = [m.partition for m in moves if m.node != self._name and str(m.partition) in copied]
        self._leaving |= dict.fromkeys([*leaving, *others], self._monotonic())
        for move in moves:
            if move.node == self._name:
                self._leaving.pop(move.partition, None)
                self._catalog.unfence(move.partition)
                await asyncio.to_thread(
                    self._store.delete_record, INCOMING_KIND, str(move.partition)
                )
            log.info("partition %d is at node %s now", move.partition, move.node)
        self.on_moved()

    async def _has(self, move: Move) -> bool:
        """Whether the move can be adopted: a partition that comes here is copied, and opens."""
        if move.node != self._name:
            return True
        expected = self.incoming(move)
        if expected is None:
            log.error("partition %d was given to this node, which lacks it", move.partition)
            return False
        try:
            await asyncio.to_thread(self.open, move, expected)
        except GalileoError as error:
            log.error("partition %d cannot be opened: %s", move.partition, error)
            return False
        return True

    def open(self, move: Move, expected: tuple[DatasetManifest, ...]) -> None:
        """Opens what was copied, in a thread, and compares it with what it has to be.

        Raises:
            CorruptData: it is something else.
            PartitionReadOnly, ConfigError: as `PartitionJournal.open`.
        """
        expected = tuple(one for one in expected if not self._catalog.is_dropped(one.dataset))
        names = [manifest.dataset for manifest in expected]
        self._catalog.open_partition(move.partition, names, moves=move.number)
        actual = dataset_manifest(self._catalog, move.partition)
        if actual != expected:
            raise CorruptData(
                f"expected a copy of partition {move.partition} with {expected}, got {actual}"
            )

    # --- records of copies -------------------------------------------------------------------

    def incoming(self, move: Move) -> tuple[DatasetManifest, ...] | None:
        """What a complete copy made for this move has to contain; None: there is none."""
        data = self._store.load_record(INCOMING_KIND, str(move.partition))
        raw = json.loads(data) if data else {}
        if raw.get("number") != move.number or raw.get("contents") is None:
            return None
        contents = tuple(DatasetManifest(*manifest) for manifest in raw["contents"])
        return tuple(one for one in contents if not self._catalog.is_dropped(one.dataset))

    def expect(self, move: Move, contents: tuple[DatasetManifest, ...] | None) -> None:
        """Says durably, in a thread, that a copy is being made (None) or is complete."""
        raw = (
            None
            if contents is None
            else [
                [one.dataset, one.last_sequence, one.dropped, one.rows, one.paths]
                for one in contents
            ]
        )
        data = json.dumps({"number": move.number, "contents": raw}).encode()
        self._store.save_record(INCOMING_KIND, str(move.partition), data)

    # --- what is left behind -----------------------------------------------------------------

    def _left_behind(self) -> set[int]:
        """Partitions on disk that are not this node's and are not coming."""
        coming = set()
        for name, data in self._store.load_records(INCOMING_KIND).items():
            last = self._live.move_of(int(name))
            if last is not None and last.number >= json.loads(data)["number"]:
                self._store.delete_record(INCOMING_KIND, name)  # It came, or is elsewhere.
            else:
                coming.add(int(name))
        on_disk = {partition for _, partition in self._store.partitions_on_disk()}
        return {p for p in on_disk - coming if not self.is_own(p)}

    def _due(self) -> list[int]:
        """Those that may be deleted by now."""
        before = self._monotonic() - self._options.grace_s
        moves = {move.partition: move for move in self.known}
        return [
            partition
            for partition, since in self._leaving.items()
            if since <= before and moves.get(partition) in self._confirmed
        ]

    async def discard(self, partition: int) -> None:
        """Deletes what is left here of a partition that another node has said to have."""
        async with self.lock:
            if not self.is_own(partition) and partition in self._leaving:
                await self._delete(partition)

    async def abandon(self, partition: int) -> None:
        """Deletes an unfinished copy, which the next attempt begins anew."""
        async with self.lock:
            if not self.is_own(partition):
                await self._delete(partition)

    async def _delete(self, partition: int) -> None:
        """The files first: as long as there are any, it is known why."""
        await asyncio.to_thread(self._catalog.close_partition, partition)
        try:
            await asyncio.to_thread(self._store.delete_partition, partition)
            await asyncio.to_thread(self._store.delete_record, INCOMING_KIND, str(partition))
        except (OSError, PartitionReadOnly) as error:
            log.error("what is left of partition %d cannot be deleted: %s", partition, error)
            return
        self._leaving.pop(partition, None)
        log.info("what was left of partition %d is deleted", partition)


def dataset_manifest(catalog: Catalog, partition: int) -> tuple[DatasetManifest, ...]:
    """What this node has of a partition, by dataset."""
    return tuple(
        DatasetManifest(
            dataset=dataset,
            last_sequence=journal.last_sequence,
            dropped=journal.dropped,
            rows=journal.rows_total,
            paths=journal.paths_total,
            added=shard.schema.added,
        )
        for dataset, shard in sorted(catalog.shards.items())
        if (journal := shard.journals.get(partition)) is not None
    )
