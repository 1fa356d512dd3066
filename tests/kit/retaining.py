"""Retention at real nodes in this process, whose clock is moved by days."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from galileo.errors import Unavailable
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.peers import TablePart, TableTask
from galileo.node.reader_positions import ReaderPositions
from galileo.node.retention_runner import (
    Compared,
    Holds,
    RetentionRunner,
    RetentionRunnerOptions,
)
from galileo.node.storage_node import StorageNode
from galileo.node.table_reader import TableReader
from galileo.storage.retention import LogFile

DAY_S = 86_400.0


class Days:
    """A wall clock that is moved by days; the other one runs."""

    def __init__(self) -> None:
        self.now_s = 1_400_000_000.0

    def wall(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Checked:
    """A partition before and after its commits were dropped."""

    partition: int
    files: list[LogFile]
    before: int
    after: int


class UnreadableTables(TableReader):
    """The tables of a node, of which some cannot be read."""

    def __init__(self, reader: TableReader, unreadable: set[str]) -> None:
        self._reader, self._unreadable = reader, unreadable
        self._catalog = reader._catalog

    async def read(
        self, task: TableTask, *, is_partial: bool = False
    ) -> AsyncGenerator[TablePart, None]:
        if task.table in self._unreadable:
            raise Unavailable("the node that has some rows is away")
        async with aclosing(self._reader.read(task)) as parts:
            async for part in parts:
                yield part


def retention_of(node: StorageNode, clock: Days, unreadable: set[str]) -> RetentionRunner:
    """A runner that applies retention when it is called; stop it in a thread.

    Args:
        node: whose files are dropped.
        clock: of the ages.
        unreadable: keys of tables.
    """
    options = RetentionRunnerOptions(
        check_s=3600.0, min_age_s=0.0, wall=clock.wall, monotonic=clock.monotonic
    )
    tables = UnreadableTables(node.tables, unreadable)
    loop = asyncio.get_running_loop()
    cuts = ChannelCuts(node.catalog, node.channel_reader, loop=loop)
    positions = ReaderPositions(tables, cuts, loop=loop)
    return runner_of(node, options, holds=positions.read_from_thread, compared=lambda _: ())


def runner_of(
    node: StorageNode,
    options: RetentionRunnerOptions,
    *,
    holds: Holds = lambda _: (),
    compared: Compared | None = None,
) -> RetentionRunner:
    """A runner for a node without continuous queries; stop it in a thread.

    Args:
        node: whose files are dropped and tables are cleaned.
        options: when.
        holds: of readers and brokers.
        compared: up to where tables are compared; None: as channels have it.
    """
    if compared is None:
        loop = asyncio.get_running_loop()
        cuts = ChannelCuts(node.catalog, node.channel_reader, loop=loop)
        compared = cuts.compared_from_thread
    return RetentionRunner(
        node.catalog, options, readers=lambda _: (), holds=holds, compared=compared
    )
