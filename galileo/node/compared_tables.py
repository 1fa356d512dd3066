"""Up to which commits channels compare rows of their subscriptions with later ones.

A channel with `lookup`, whose changes count as news, needs the tables as its last execution has
seen them. The last execution of each partition of its log names that, on the node that has the
partition. The owner of a table asks there before it cleans. An answer that is late names an earlier
execution, which holds back more.

A partition that was not executed yet holds back everything: its first execution may be under way.
There is one as soon as a row of the table is stored. A channel that this node has not heard of was
created a moment ago; what it reads is younger than what is cleaned. What cannot be read holds back
everything as well.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError
from galileo.labels import from_ipc
from galileo.model.channel import NO_BROKER, Channel
from galileo.model.table import Table
from galileo.node.catalog import Catalog
from galileo.node.channel_executor import references_of
from galileo.node.channel_reader import ChannelReader
from galileo.node.loop_calls import call_in_loop
from galileo.node.peers import ExecutionsTask

READ_TIMEOUT_S = 10.0
"""Of all channels that read a table."""

log = logging.getLogger(__name__)


class ComparedTables:
    """Reads the last executions from the nodes that have them.

    Args:
        catalog: of the node.
        reader: likewise.
        loop: in which `read` runs.
    """

    def __init__(
        self, catalog: Catalog, reader: ChannelReader, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._catalog = catalog
        self._reader = reader
        self._loop = loop

    def read_from_thread(self, table: Table) -> list[Cursor]:
        """`read`, called from another thread than that of the event loop."""
        if not self._channels(table):
            return []
        return call_in_loop(
            self._loop,
            partial(self.read, table),
            timeout_s=2 * READ_TIMEOUT_S,
            otherwise=[EMPTY_CURSOR],
        )

    async def read(self, table: Table) -> list[Cursor]:
        """The commits of a table that last executions compare with, of each such execution."""
        cursors = list[Cursor]()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                for channel in self._channels(table):
                    cursors += await self._read_last(channel, table)
        except (GalileoError, TimeoutError) as error:
            log.info("table %s is not cleaned now: %s", table.name, error)
            return [EMPTY_CURSOR]
        return cursors

    def _channels(self, table: Table) -> list[Channel]:
        """Those that look up rows of a table, and compare them."""
        return [
            channel
            for channel in self._catalog.channels.values()
            if channel.compares
            and any(channel.reference_tables[s.table].key == table.key for s in channel.lookup)
        ]

    async def _read_last(self, channel: Channel, table: Table) -> list[Cursor]:
        """Up to which commits of a table the last execution of each partition has read it."""
        known = dict.fromkeys(range(channel.partitions), EMPTY_CURSOR)
        task = ExecutionsTask(channel.key, NO_BROKER, EMPTY_CURSOR)
        async with aclosing(self._reader.read(task)) as parts:
            async for part in parts:
                if (last := part.execution) is not None:
                    cut = from_ipc(last.observations, channel.observation_schema)
                    known[last.partition] = references_of(cut).get(table.name, EMPTY_CURSOR)
        return [*known.values()]
