"""Who holds the commits of a dataset or table, or the results of a channel, and up to where.

A dataset is held by named readers and by its channels (`galileo.node.channel_cuts`), a table by
named readers, the results of a channel by brokers. Positions and brokers are rows of system tables.
The leader of the system partition is asked before commits are dropped, not earlier: what a call of
`advance_reader`, `create_broker` or `acknowledge` has stored before counts.

What cannot be read is taken for what holds most. Without a position, a broker, reader or channel
holds everything up to its bound. Where the tables cannot be read, there may be a reader or broker
that holds as long as any can.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Sequence
from functools import partial

from galileo.cursor import EMPTY_CURSOR
from galileo.errors import GalileoError
from galileo.model.broker import BROKERS, HOLD_MAX_S, brokers_of
from galileo.model.channel import Channel
from galileo.model.reader import (
    POSITIONS,
    READER,
    TOKEN,
    positions_of,
    reader_of,
    readers_of,
)
from galileo.model.schema import StoredSchema
from galileo.model.table import Table
from galileo.model.times import MICROS
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.loop_calls import call_in_loop
from galileo.node.peers import TableTask
from galileo.node.retention_plan import Hold
from galileo.node.table_reader import TableReader
from galileo.wire.reader_rows import position_of

READ_TIMEOUT_S = 10.0
"""Of all tables; what is not read by then is unknown."""
UNKNOWN = Hold("", EMPTY_CURSOR, HOLD_MAX_S)
"""In place of readers or brokers that cannot be read."""

log = logging.getLogger(__name__)


class ReaderPositions:
    """Reads positions from the nodes that have them.

    Args:
        tables: of the node.
        cuts: likewise.
        loop: in which `read` runs.
    """

    def __init__(
        self,
        tables: TableReader,
        cuts: ChannelCuts,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tables = tables
        self._cuts = cuts
        self._loop = loop

    def read_from_thread(self, schema: StoredSchema) -> Sequence[Hold]:
        """`read`, called from another thread than that of the event loop."""
        return call_in_loop(
            self._loop,
            partial(self.read, schema),
            timeout_s=2 * READ_TIMEOUT_S,
            otherwise=[UNKNOWN],
        )

    async def read(self, schema: StoredSchema) -> Sequence[Hold]:
        """The named readers and channels of a dataset, the named readers of a table, or the brokers
        that hold results of a channel.
        """
        if isinstance(schema, Channel):
            return await self._of_channel(schema)
        if isinstance(schema, Table):
            return await self._of_dataset(schema)
        readers, channels = await asyncio.gather(self._of_dataset(schema), self._cuts.holds(schema))
        return [*readers, *channels]

    async def _of_dataset(self, schema: StoredSchema) -> list[Hold]:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                rows = (await self._tables.read_all(TableTask(POSITIONS.key))).rows
        except (GalileoError, TimeoutError) as error:
            log.info("the readers of %s cannot be read: %s", schema.name, error)
            return [UNKNOWN]
        readers = readers_of(schema, rows).values()
        return [
            _hold(row[READER], row[TOKEN], row["hold_us"], stored_at=row["stored_at"])
            for row in readers
        ]

    async def _of_channel(self, channel: Channel) -> list[Hold]:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                brokers = (await self._tables.read_all(TableTask(BROKERS.key))).rows
                stored = (await self._tables.read_all(TableTask(POSITIONS.key))).rows
        except (GalileoError, TimeoutError) as error:
            log.info("the brokers of %s cannot be read: %s", channel.name, error)
            return [UNKNOWN]
        positions = positions_of(channel, stored)
        return [
            _hold(reader_of(channel, one.name), positions.get(one.name, {}).get(TOKEN), one.hold_us)
            for one in brokers_of(brokers).values()
            if one.holds(channel.name, has_position=one.name in positions)
        ]


def _hold(
    reader: str, token: str | None, hold_us: int, *, stored_at: dt.datetime | None = None
) -> Hold:
    stored_us = None if stored_at is None else round(stored_at.timestamp() * MICROS)
    return Hold(reader.rpartition("/")[2], position_of(reader, token), hold_us / MICROS, stored_us)
