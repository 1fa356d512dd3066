"""Reads tables and keyed datasets: the rows at a cursor, and the keys that changed between two.

The node that receives a request sends each owner its share. An owner finds the newest version of
each key in its index, and reads those from its journals.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import DataExpired, Unavailable
from galileo.model.keyed import placed_keys
from galileo.model.schema import StoredSchema
from galileo.node import query_limits
from galileo.node.catalog import Catalog
from galileo.node.peers import (
    Peers,
    Share,
    TablePart,
    TableTask,
    read_from_owners,
    retry_timeout_s,
)
from galileo.node.stored_versions import rows_of
from galileo.node.table_index import Versions
from galileo.node.versioned_shard import VersionedShard

CLEANED_MAX = 10
"""How often rows are looked for again that were cleaned while they were read."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Some versions of one partition, found among those since the commits (after, until]."""

    partition: int
    versions: Versions
    after: int
    until: int


@dataclass(frozen=True, slots=True)
class _Found:
    """The versions to read, and up to which commits they were sought."""

    pieces: list[_Piece]
    reached: Cursor


class TableReader:
    """Reads rows of this node's partitions, and through peers those of others."""

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        peers: Peers,
        executor: Executor,
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._executor = executor

    async def read(
        self, task: TableTask, *, is_partial: bool = False
    ) -> AsyncGenerator[TablePart, None]:
        """The rows of all partitions, a bounded piece at a time, in no particular order.

        Args:
            task: what to read.
            is_partial: whether partitions that cannot be reached are left out.

        Raises:
            InputError: it is no table, or the cursors are not of this cluster.
            Unavailable: a node that keeps some of them cannot be reached.
            CorruptData: stored bytes fail their checksum.
        """
        table = self._catalog.versioned_shard(task.table).schema.narrowed(task.added)
        parts = read_from_owners(
            dataclasses.replace(task, partitions=self._asked(table, task)),
            split=self._shares,
            read_local=self.read_local,
            read=lambda node, share: self._peers.read_table(node, share, table),
            name=self._name,
            live=self._topology,
            timeout_s=retry_timeout_s(
                self._topology, placement.placed(self._topology.current, table)
            ),
            is_partial=is_partial,
        )
        async with aclosing(parts):
            async for part in parts:
                yield part

    async def read_all(self, task: TableTask) -> TablePart:
        """The same as one part."""
        table = self._catalog.versioned_shard(task.table).schema.narrowed(task.added)
        rows, reached = [table.version_schema.empty_table()], EMPTY_CURSOR
        async with aclosing(self.read(task)) as parts:
            async for part in parts:
                rows.append(part.rows)
                reached = reached.join(part.reached)
        return TablePart(pa.concat_tables(rows), reached)

    async def read_local(self, task: TableTask) -> AsyncGenerator[TablePart, None]:
        """The rows of partitions that this node keeps; the first part says how far they go.

        Raises:
            PartitionMoved: before the first part: another node keeps some of them.
            InputError: a cursor is past the last commit.
            DataExpired: or it is too old.
            HistoryChanged: commits up to a cursor were lost.
        """
        shard, loop = self._catalog.versioned_shard(task.table), asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, self._find, shard, task)
        columns = shard.schema.narrowed(task.added).version_schema
        yield TablePart(columns.empty_table(), found.reached)
        for piece in found.pieces:
            for small in await loop.run_in_executor(self._executor, _split, shard, piece):
                rows = await loop.run_in_executor(self._executor, _read, shard, small)
                yield TablePart(rows.select(columns.names), EMPTY_CURSOR)

    def _find(self, shard: VersionedShard, task: TableTask) -> _Found:
        """Finds the rows in the index, in a thread."""
        after = EMPTY_CURSOR if task.after is None else task.after
        journals = shard.journals
        shard.check_readable(task.partitions, after=after, until=task.until)
        shard.check_history(task.partitions, task.after, task.until)
        published = shard.published(task.partitions)
        if not published.covers(_at(task.partitions, after)):
            shard.check_own(task.partitions)
            raise shard.past_end(task.partitions, after, parameter="after")
        until = published if task.until is None else _at(task.partitions, task.until)
        if not published.covers(until):
            shard.check_own(task.partitions)
            raise shard.past_end(task.partitions, until, parameter="at")
        sought = None if task.keys is None else placed_keys(shard.schema, task.keys)
        pieces = list[_Piece]()
        for partition in sorted(task.partitions):
            commits = {"after": after[partition], "until": until[partition]}
            if sought is None:
                versions = shard.version_index.newest(partition, **commits)
            else:
                places, hashes = sought
                of_partition = hashes[places == partition]
                versions = shard.version_index.find(partition, of_partition, **commits)
            if task.after is None:
                versions = versions.take(~versions.deleted)
            for some in versions.pieces(query_limits.ROWS_PER_PIECE):
                pieces.append(_Piece(partition, some, **commits))
        shard.check_unchanged(journals, task.partitions)
        if task.after is not None or task.until is not None:
            shard.check_kept(task.partitions, until if task.after is None else after)
        return _Found(pieces, until)

    def _asked(self, schema: StoredSchema, task: TableTask) -> frozenset[int]:
        """The partitions that can have rows of the answer."""
        asked = frozenset(placement.placed(self._topology.current, schema))
        if task.partitions:
            asked &= task.partitions
        if task.keys is not None:
            asked &= frozenset(placed_keys(schema, task.keys)[0].tolist())
        if task.until is not None:
            asked &= frozenset(partition for partition, last in task.until.items() if last)
        return asked

    async def _shares(self, task: TableTask) -> list[Share[TableTask]]:
        """What to ask of which node: this one for all that it can answer."""
        partitions = task.partitions
        nodes = {**placement.all_owners(self._topology.current)}
        after = EMPTY_CURSOR if task.after is None else task.after
        shard = self._catalog.versioned_shard(task.table)
        here = shard.readable(partitions, after=after, until=task.until)
        nodes |= dict.fromkeys(here, self._name)
        by_node = sorted(partitions, key=lambda partition: nodes[partition])
        groups = itertools.groupby(by_node, key=nodes.__getitem__)
        return [
            Share(node, frozenset(group), dataclasses.replace(task, partitions=frozenset(group)))
            for node, of_node in groups
            if (group := list(of_node))
        ]


def _at(partitions: frozenset[int], cursor: Cursor) -> Cursor:
    return Cursor({partition: cursor[partition] for partition in partitions})


def _split(shard: VersionedShard, piece: _Piece) -> list[_Piece]:
    """Pieces of bounded bytes; in a thread."""
    parts = shard.split_by_bytes(piece.partition, piece.versions)
    return [dataclasses.replace(piece, versions=versions) for versions in parts]


def _read(shard: VersionedShard, piece: _Piece) -> pa.Table:
    """The rows of a piece, wherever the cleaner has put them meanwhile; in a thread."""
    versions, index = piece.versions, shard.version_index
    for _ in range(CLEANED_MAX):
        try:
            return rows_of(shard, piece.partition, versions)
        except DataExpired:
            hashes = np.column_stack([versions.high, versions.low])
            versions = index.find(piece.partition, hashes, after=piece.after, until=piece.until)
            if len(versions) < len(piece.versions):
                raise
    raise Unavailable("the rows of a table were moved while they were read; try again")
