"""Up to which commits channels have read datasets and tables, by their last executions.

The last execution of each partition of a channel's log says it, on the node that has the partition.
Owners ask there before they drop what an execution may still need: commits of a dataset that are
not matched yet, and versions of the rows of a table with which a channel compares later ones
(`lookup`, where changes count as news). An answer that is late names an earlier execution, which
holds back more.

A partition that was not executed yet holds back all: its first execution may be under way. A
channel that this node has not heard of was created a moment ago; what it reads is younger than what
is dropped or cleaned. What cannot be read holds back all as well.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial, reduce

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError
from galileo.labels import from_ipc
from galileo.model.broker import HOLD_MAX_S
from galileo.model.channel import NO_BROKER, Channel
from galileo.model.schema import StoredSchema
from galileo.model.table import Table
from galileo.model.times import MICROS
from galileo.node.catalog import Catalog
from galileo.node.channel_executor import cut_of, references_of
from galileo.node.channel_reader import ChannelReader
from galileo.node.loop_calls import call_in_loop
from galileo.node.peers import ExecutionsTask
from galileo.node.retention_plan import Hold

READ_TIMEOUT_S = 10.0
"""Of the last executions of a channel."""

log = logging.getLogger(__name__)


class ChannelCuts:
    """Reads the last executions from the nodes that have them.

    Args:
        catalog: of the node.
        reader: likewise.
        loop: in which `compared` runs.
    """

    def __init__(
        self, catalog: Catalog, reader: ChannelReader, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._catalog = catalog
        self._reader = reader
        self._loop = loop

    async def holds(self, dataset: StoredSchema) -> list[Hold]:
        """The commits of a dataset that each of its channels has matched.

        A channel that stands still holds the others for as long as it keeps results.
        """
        channels = [
            channel
            for channel in self._catalog.channels.values()
            if channel.schema is not None and channel.schema.key == dataset.key
        ]
        return list(await asyncio.gather(*map(self._hold, channels)))

    async def _hold(self, channel: Channel) -> Hold:
        matched, start = EMPTY_CURSOR, Cursor(dict(channel.start))
        if (last := await self._read_last(channel)) is not None:
            cuts = [start if rows is None else cut_of(rows) for rows in last]
            matched = reduce(Cursor.meet, cuts)
        hold_s = min(channel.keep_us / MICROS, HOLD_MAX_S)
        return Hold(f"channel {channel.name}", matched, hold_s)

    def compared_from_thread(self, table: Table) -> list[Cursor]:
        """`compared`, called from another thread than that of the event loop."""
        if not self._comparing(table):
            return []
        return call_in_loop(
            self._loop,
            partial(self.compared, table),
            timeout_s=2 * READ_TIMEOUT_S,
            otherwise=[EMPTY_CURSOR],
        )

    async def compared(self, table: Table) -> list[Cursor]:
        """The commits of a table that last executions compare with, of each such execution."""
        last = await asyncio.gather(*map(self._read_last, self._comparing(table)))
        references = [
            {} if rows is None else references_of(rows)
            for of_one in last
            for rows in of_one or [None]
        ]
        return [read.get(table.name, EMPTY_CURSOR) for read in references]

    def _comparing(self, table: Table) -> list[Channel]:
        """The channels that look up rows of a table, and compare them."""
        return [
            channel
            for channel in self._catalog.channels.values()
            if channel.compares
            and any(channel.reference_tables[s.table].key == table.key for s in channel.lookup)
        ]

    async def _read_last(self, channel: Channel) -> list[pa.Table | None] | None:
        """The row with the cut of the last execution of each partition, None where there is none.

        None if they cannot be read.
        """
        last: list[pa.Table | None] = [None] * channel.partitions
        task = ExecutionsTask(channel.key, NO_BROKER, EMPTY_CURSOR)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), aclosing(self._reader.read(task)) as parts:
                async for part in parts:
                    if (execution := part.execution) is not None:
                        rows = from_ipc(execution.observations, channel.observation_schema)
                        last[execution.partition] = rows
        except (GalileoError, TimeoutError) as error:
            log.info("the executions of channel %s cannot be read: %s", channel.name, error)
            return None
        return last
