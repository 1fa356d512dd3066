"""Tables that channels join with observations and subscriptions, as this node reads them.

Rows that are found by their key are read from the owners, by the keys at hand: a table of any size
can be looked up.

For other joins all rows are needed. A node keeps a *replica* of such a table: all rows at one
cursor, in memory, for all channels. Before it is used it is brought up to date by the changes since
its cursor, of which the owners are asked then. Lookups of subscriptions need all rows, too, since
any of them may have changed.

An execution that compares needs the rows as the last one has seen them, when its index is made
anew, and then the keys that have changed since. A replica keeps the keys of its last changes for
that, so that these are read once.

Either way a row whose upsert has returned before the call is there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from galileo.clock import Clock
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, MessageTooLarge
from galileo.model.enrichment import Lookup, Step
from galileo.model.table import Table
from galileo.node.peers import TableTask
from galileo.node.table_reader import TableReader
from galileo.query.joins import Reference, keys_of

ROWS_MAX = 2_000_000
"""Rows of the replica of one table."""
BYTES_MAX = 256 << 20
"""Bytes of all replicas of a node, without the shapes of their geometries."""
CHANGES_MAX = 64
"""Ranges of commits of which a replica keeps the changed keys."""
IDLE_S = 600.0
"""Seconds after which a replica that is not used is freed, and a large table is tried again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """The keys with a version in the commits (after, until] of a table."""

    after: Cursor
    until: Cursor
    keys: pa.Table


@dataclass(slots=True, eq=False)
class _Replica:
    """The rows of a table.

    Attributes:
        reference: None: they are not read yet.
        cursor: of the rows.
        changes: the last ones.
        earlier: the rows at another cursor, until the replica is used again.
        too_large: why there can be no replica; None if there can.
        used_at: monotonic; of a table that is too large, when it was tried.
    """

    reference: Reference | None = None
    cursor: Cursor = EMPTY_CURSOR
    changes: list[_Changes] = field(default_factory=list)
    earlier: tuple[Cursor, Reference] | None = None
    too_large: MessageTooLarge | None = None
    used_at: float = 0.0
    updating: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class References:
    """Rows of the tables of some steps.

    Attributes:
        rows: by the names of the tables.
        cursors: up to which commits they were read, likewise.
    """

    rows: dict[str, Reference]
    cursors: dict[str, Cursor]


class ReferenceTables:
    """Reads the tables of steps; belongs to one event loop.

    Attributes:
        joining: held while rows are joined: channels share tables, which one thread at a time
            joins.
    """

    def __init__(self, tables: TableReader, *, executor: Executor, clock: Clock) -> None:
        self._tables = tables
        self._executor = executor
        self._clock = clock
        self._replicas = defaultdict[str, _Replica](_Replica)
        self.joining = asyncio.Lock()

    @property
    def nbytes(self) -> int:
        """Size of the replicas in memory, about."""
        return sum(r.reference.nbytes for r in self._replicas.values() if r.reference is not None)

    def forget_idle(self) -> None:
        """Frees replicas that were not used for a while."""
        oldest = self._clock.monotonic() - IDLE_S
        for key, replica in list(self._replicas.items()):
            if replica.used_at < oldest and not replica.updating.locked():
                del self._replicas[key]

    async def read(
        self, steps: Sequence[Step], tables: Mapping[str, Table], observations: pa.Table
    ) -> References:
        """The rows that steps need, with all that was committed before the call.

        Args:
            steps: to be carried out.
            tables: of the steps, by name.
            observations: that are to be joined.

        Raises:
            Unavailable: a node that has some of the rows cannot be reached.
            MessageTooLarge: a step needs all rows of a table, and there are too many.
            UnknownDataset: the table was dropped.
        """
        references = References({}, {})
        for step in steps:
            table = tables[step.table]
            if isinstance(step, Lookup) and not step.as_of:
                rows, cursor = await self._read_keys(step, table, observations)
            else:
                rows, cursor = await self._read_replica(table)
            references.rows[table.name] = rows
            references.cursors[table.name] = cursor
        return references

    async def read_whole(self, tables: Sequence[Table]) -> References:
        """All rows of some tables, with all that was committed before; errors as `read`."""
        references = References({}, {})
        for table in tables:
            rows, cursor = await self._read_replica(table)
            references.rows[table.name], references.cursors[table.name] = rows, cursor
        return references

    async def read_at(self, table: Table, cursor: Cursor) -> Reference:
        """All rows of a table at a cursor.

        Raises:
            DataExpired: it is cleaned past the cursor.
            GalileoError: as of `read`.
        """
        replica = self._replicas[table.key]
        async with replica.updating:
            if replica.reference is not None and replica.cursor == cursor:
                return replica.reference
            if replica.earlier is None or replica.earlier[0] != cursor:
                replica.earlier = None
                rows, _ = await self._read_rows(table, TableTask(table.key, until=cursor))
                make, loop = partial(Reference, table, rows), asyncio.get_running_loop()
                replica.earlier = cursor, await loop.run_in_executor(self._executor, make)
            return replica.earlier[1]

    async def changed_keys(self, table: Table, *, after: Cursor, until: Cursor) -> pa.Table:
        """The keys with a version in the commits (after, until] of a table; some may be twice.

        Raises:
            DataExpired: it is cleaned past `after`.
            GalileoError: as of `read`.
        """
        replica = self._replicas[table.key]
        async with replica.updating:
            parts, reached = [table.key_schema.empty_table()], after
            for one in replica.changes:
                if reached != until and one.after == reached:
                    parts.append(one.keys)
                    reached = one.until
            if reached == until:
                return pa.concat_tables(parts)
            task = TableTask(table.key, after=after, until=until)
            rows, _ = await self._read_rows(table, task)
            return _note_changes(replica, after, until, rows.select(table.key_columns)).keys

    async def _read_replica(self, table: Table) -> tuple[Reference, Cursor]:
        """All rows of a table."""
        replica = self._replicas[table.key]
        async with replica.updating:
            replica.earlier = None
            if replica.too_large is not None:
                raise replica.too_large
            replica.used_at = self._clock.monotonic()
            try:
                if replica.reference is not None:
                    try:
                        return await self._update(table, replica)
                    except DataExpired:  # Cleaned past what the replica has.
                        replica.reference, replica.cursor = None, EMPTY_CURSOR
                return await self._update(table, replica)
            except MessageTooLarge as error:
                replica.reference, replica.cursor, replica.too_large = None, EMPTY_CURSOR, error
                raise

    async def _update(self, table: Table, replica: _Replica) -> tuple[Reference, Cursor]:
        """Brings a replica up to date; it stays as it is if that fails."""
        known, before = replica.reference, self.nbytes
        task = TableTask(table.key, after=None if known is None else replica.cursor)
        changes, reached = await self._read_rows(table, task, before=before)
        cursor = replica.cursor.join(reached)
        reference = Reference(table, table.arrow_schema.empty_table()) if known is None else known
        if changes.num_rows:
            loop = asyncio.get_running_loop()
            reference = await loop.run_in_executor(self._executor, reference.updated, changes)
            self._check(table, rows=len(reference), size=before + reference.nbytes)
        if known is not None and cursor != replica.cursor:
            _note_changes(replica, replica.cursor, cursor, changes.select(table.key_columns))
        replica.reference, replica.cursor = reference, cursor
        return reference, cursor

    async def _read_rows(
        self, table: Table, task: TableTask, *, before: int = 0
    ) -> tuple[pa.Table, Cursor]:
        """What a task asks for, and up to which commits that goes.

        Args:
            table: its table.
            task: what to read.
            before: bytes that count as read already.

        Raises:
            MessageTooLarge: there are more rows, or with `before` more bytes, than a node keeps.
        """
        parts, cursor = [table.observation_schema.empty_table()], EMPTY_CURSOR
        rows, size = 0, before
        async with aclosing(self._tables.read(task)) as answer:
            async for part in answer:
                cursor = cursor.join(part.reached)
                parts.append(part.rows)
                rows, size = rows + part.rows.num_rows, size + part.rows.nbytes
                self._check(table, rows=rows, size=size)
        return pa.concat_tables(parts), cursor

    def _check(self, table: Table, *, rows: int, size: int) -> None:
        if rows > ROWS_MAX or size > BYTES_MAX:
            raise MessageTooLarge(
                f"table {table.name!r} is too large to be joined by places or times, or with "
                f"subscriptions: expected at most {ROWS_MAX:,} rows, and "
                f"{BYTES_MAX:,} bytes in all such tables of a node; galileo.Lookup without "
                "as_of, in enrich=, takes larger ones",
                bound=ROWS_MAX,
            )

    async def _read_keys(
        self, step: Lookup, table: Table, observations: pa.Table
    ) -> tuple[Reference, Cursor]:
        """The rows of the keys that observations have."""
        loop = asyncio.get_running_loop()
        find = partial(keys_of, observations, step, table)
        keys = await loop.run_in_executor(self._executor, find)
        rows, cursor = table.observation_schema.empty_table(), EMPTY_CURSOR
        if keys.num_rows:
            answer = await self._tables.read_all(TableTask(table.key, keys=keys))
            rows, cursor = answer.rows, answer.reached
        return await loop.run_in_executor(self._executor, Reference, table, rows), cursor


def _note_changes(replica: _Replica, after: Cursor, until: Cursor, keys: pa.Table) -> _Changes:
    """Keeps changes, and of earlier ones as many as do not take more than the table."""
    new = _Changes(after, until, keys.combine_chunks())  # Copied, without the other columns.
    rows_max = 0 if replica.reference is None else len(replica.reference)
    kept = [*replica.changes[1 - CHANGES_MAX :], new]
    while len(kept) > 1 and sum(one.keys.num_rows for one in kept) > rows_max:
        del kept[0]
    replica.changes = kept
    return new
