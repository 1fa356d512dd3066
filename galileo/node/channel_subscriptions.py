"""The subscriptions of partitions of channels, as their executions match them.

An index is brought up to date with the table of subscriptions, and if these have rows of tables
(`galileo.query.lookup_index`), it is joined with these. Where changes count as news, it first gets
the subscriptions, and the rows, that the last execution has seen: what has changed since is matched
by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field

import pyarrow as pa

from galileo.cursor import Cursor, continued
from galileo.errors import DataExpired, HistoryChanged, Unavailable
from galileo.model.channel import Channel
from galileo.node.channel_observations import ChannelWork
from galileo.node.peers import TableTask
from galileo.node.reference_tables import References, ReferenceTables
from galileo.node.table_reader import TableReader
from galileo.query.lookup_index import LookupIndex
from galileo.query.subscriptions import SubscriptionIndex


@dataclass(slots=True)
class Progress:
    """How far a partition of a channel is.

    Attributes:
        index: of its subscriptions.
        indexed: the commit of the table up to which the index goes; -1: nothing is indexed.
        subscriptions: the commit of the table that the last execution has seen.
        sequence: the commit of the last execution; -1: to be read.
        execution: its number.
        cut: the commits of the dataset that were matched.
        joined, references: where rows of tables are compared, the commits of these, by name, up to
            which the index goes, and up to which the last execution has read them.
        due_us: when the last execution of a repetitive channel was due.
        at: seconds since 1970 of the last execution of this node; 0: none yet.
        took_s: how long it took.
        failure: why the last attempt failed; "" if it did not.
        is_transient: whether that may pass by itself.
    """

    index: SubscriptionIndex
    indexed: int = -1
    subscriptions: int = 0
    sequence: int = -1
    execution: int = 0
    cut: Cursor = field(default_factory=Cursor)
    joined: dict[str, Cursor] = field(default_factory=dict)
    references: dict[str, Cursor] = field(default_factory=dict)
    due_us: int = 0
    at: float = 0.0
    took_s: float = 0.0
    failure: str = ""
    is_transient: bool = False


class ChannelSubscriptions:
    """Reads the subscriptions of channels.

    Args:
        tables: reads their tables.
        references: keeps the rows of the tables that channels look up.
        executor: in whose threads it works.
    """

    def __init__(
        self, tables: TableReader, *, references: ReferenceTables, executor: Executor
    ) -> None:
        self._tables = tables
        self._references = references
        self._executor = executor

    async def update(
        self, work: ChannelWork, partition: int, progress: Progress
    ) -> pa.Table | None:
        """Brings the index of a partition up to date with the table of subscriptions.

        Returns:
            The changes, not yet applied, where they count as news, with those that are not
            readable; `indexed` is past them.

        Raises:
            PartitionMoved: another node has it.
        """
        loop = asyncio.get_running_loop()

        def apply_readable(rows: pa.Table) -> None:
            progress.index.apply(work.readable(rows))

        async def apply(rows: pa.Table) -> None:
            await loop.run_in_executor(self._executor, apply_readable, rows)

        if progress.indexed < 0:  # The index may have rows that were deleted since.
            progress.index = work.make_index()
        if not work.compares:
            try:
                progress.indexed = await self._read_changes(
                    work, partition, after=progress.indexed, take=apply
                )
            except DataExpired:  # Cleaned past what the index knows.
                progress.index, progress.indexed = work.make_index(), -1
                progress.indexed = await self._read_changes(work, partition, after=-1, take=apply)
            return None
        if progress.indexed < 0:
            await self._read_changes(
                work, partition, after=-1, take=apply, until=progress.subscriptions
            )
            progress.indexed = progress.subscriptions
        parts = [work.channel.subscriptions.observation_schema.empty_table()]

        async def collect(rows: pa.Table) -> None:
            parts.append(rows)

        progress.indexed = await self._read_changes(
            work, partition, after=progress.indexed, take=collect
        )
        return pa.concat_tables(parts)

    async def _read_changes(
        self,
        work: ChannelWork,
        partition: int,
        *,
        after: int,
        take: Callable[[pa.Table], Awaitable[None]],
        until: int | None = None,
    ) -> int:
        """Reads the subscriptions of a partition that changed past a commit; all for -1.

        Returns:
            The commit up to which it has read.
        """
        task = TableTask(
            work.table,
            after=None if after < 0 else Cursor({partition: after}),
            until=None if until is None else Cursor({partition: until}),
            partitions=frozenset([partition]),
        )
        reached = max(after, 0)
        if until == 0:  # An absent position of a cursor means that nothing is wanted.
            return 0
        async with work.reading, aclosing(self._tables.read_local(task)) as parts:
            async for part in parts:
                reached = max(reached, part.reached[partition])
                if part.rows.num_rows:
                    await take(part.rows)
        return reached

    async def join(
        self,
        work: ChannelWork,
        progress: Progress,
        changes: pa.Table | None,
        references: References,
    ) -> pa.Table | None:
        """Joins the index of a partition with the rows of tables.

        Args:
            work: the channel.
            progress: of the partition.
            changes: of the subscriptions, where they count as news.
            references: the rows of the tables.

        Returns:
            The changes of the subscriptions and of the rows; errors as `_join_changes`.
        """
        index = progress.index
        if not isinstance(index, LookupIndex):
            return changes
        if changes is not None:
            return await self._join_changes(work, progress, changes, references)
        async with self._references.joining:
            await asyncio.get_running_loop().run_in_executor(
                self._executor, index.join, references.rows
            )
        return None

    async def _join_changes(
        self, work: ChannelWork, progress: Progress, changes: pa.Table, references: References
    ) -> pa.Table:
        """The changes of subscriptions with rows of tables since the last execution.

        Args:
            work: a channel that compares.
            progress: of a partition, whose index has the subscriptions of the last execution.
            changes: of the subscriptions.
            references: the rows of the tables; `joined` is past their changes.

        Raises:
            DataExpired: the rows of the last execution are gone.
            GalileoError: they cannot be read now.
        """
        loop = asyncio.get_running_loop()
        index, before = progress.index, progress.references
        assert isinstance(index, LookupIndex)
        is_behind = not all(references.cursors[name].covers(before[name]) for name in before)
        changed = {table.name: table.key_schema.empty_table() for table in work.compared_tables}
        try:
            if len(index) and not is_behind and progress.joined != before:
                rows = {
                    table.name: await self._references.read_at(table, before[table.name])
                    for table in work.compared_tables
                }
                async with self._references.joining:
                    await loop.run_in_executor(self._executor, index.join, rows)
            if len(index) or is_behind:
                for table in work.compared_tables:
                    changed[table.name] = await self._references.changed_keys(
                        table, after=before[table.name], until=references.cursors[table.name]
                    )
        except HistoryChanged as error:  # Compares with the rows before those that were lost.
            progress.references = {
                table.name: continued(before[table.name], error) for table in work.compared_tables
            }
            if progress.references == before:
                raise
            return await self._join_changes(work, progress, changes, references)
        except DataExpired as error:
            raise _lost_rows(work.channel, error) from error
        if is_behind:
            raise Unavailable(
                f"the owners of the tables that channel {work.channel.name!r} looks up are behind "
                "its last execution; try again",
                after_s=1.0,
            )
        progress.joined = references.cursors

        def join() -> pa.Table:
            return index.joined_changes(work.readable(changes), references.rows, changed)

        async with self._references.joining:
            return await loop.run_in_executor(self._executor, join)


def _lost_rows(channel: Channel, error: DataExpired) -> DataExpired:
    return DataExpired(
        f"expected the rows of the tables that channel {channel.name!r} looks up as they were at "
        f"its last execution, got tables that are cleaned past there ({error.message}); drop the "
        "channel, and create it again",
        **error.details,
    )
