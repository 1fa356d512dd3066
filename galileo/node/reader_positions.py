"""Who holds the commits of a dataset or the results of a channel, and up to where each has come.

A dataset is held by named readers and by its channels (`galileo.node.channel_cuts`), the results of
a channel by brokers. Named readers are rows of one table. Brokers are rows of another, and their
positions rows of a table of each channel. So other nodes have most of them. The owners are asked
before commits are dropped, not earlier: what a call of `advance_reader`, `create_broker` or
`acknowledge` has stored before counts.

What cannot be read is taken for what holds most. Without a position, a broker, reader or channel
holds everything up to its bound. Without the list of brokers or readers, there may be one that
holds as long as any can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR
from galileo.errors import GalileoError
from galileo.model.broker import BROKERS, HOLD_MAX_S, Broker, brokers_of
from galileo.model.channel import BROKER, TOKEN, Channel, reader_of
from galileo.model.reader import READERS, reader_key, readers_of
from galileo.model.schema import StoredSchema
from galileo.model.times import MICROS
from galileo.node.catalog import Catalog
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
        catalog: of the node.
        tables: likewise.
        cuts: likewise.
        loop: in which `read` runs.
    """

    def __init__(
        self,
        catalog: Catalog,
        tables: TableReader,
        cuts: ChannelCuts,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._catalog = catalog
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
        """The named readers and channels of a dataset, or the brokers that hold results of a
        channel.
        """
        if isinstance(schema, Channel):
            return await self._of_channel(schema)
        readers, channels = await asyncio.gather(self._of_dataset(schema), self._cuts.holds(schema))
        return [*readers, *channels]

    async def _of_dataset(self, schema: StoredSchema) -> list[Hold]:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._readers(schema)
        except (GalileoError, TimeoutError) as error:
            log.info("the readers of %s cannot be read: %s", schema.name, error)
            return [UNKNOWN]

    async def _of_channel(self, channel: Channel) -> list[Hold]:
        brokers = None
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                brokers = await self._brokers(channel)
                return await self._holds(channel, brokers) if brokers else []
        except (GalileoError, TimeoutError) as error:
            log.info("the brokers of %s cannot be read: %s", channel.name, error)
        if brokers is None:
            return [UNKNOWN]
        return [_hold(channel, broker, "") for broker in brokers]

    async def _readers(self, dataset: StoredSchema) -> list[Hold]:
        key = self._catalog.key_of(READERS.name)
        if key is None:
            return []
        rows = await self._rows(TableTask(key))
        return [
            Hold(
                reader.name,
                position_of(reader_key(dataset, reader.name), reader.token),
                reader.hold_us / MICROS,
            )
            for reader in readers_of(dataset, rows)
        ]

    async def _brokers(self, channel: Channel) -> list[Broker]:
        """Those that may hold results of a channel."""
        key = self._catalog.key_of(BROKERS.name)
        if key is None:
            return []
        rows = await self._rows(TableTask(key))
        brokers = brokers_of(rows).values()
        return [broker for broker in brokers if broker.holds(channel.name, has_position=True)]

    async def _holds(self, channel: Channel, brokers: Sequence[Broker]) -> list[Hold]:
        key = self._catalog.key_of(channel.position_table)
        positions = dict[str, str]()
        if key is not None:
            names = pa.table(
                {BROKER: [broker.name for broker in brokers]}, schema=channel.positions.key_schema
            )
            rows = await self._rows(TableTask(key, keys=names))
            columns = (rows.column(name).to_pylist() for name in (BROKER, TOKEN))
            positions = {name: token or "" for name, token in zip(*columns, strict=True)}
        return [
            _hold(channel, broker, positions.get(broker.name, ""))
            for broker in brokers
            if broker.holds(channel.name, has_position=broker.name in positions)
        ]

    async def _rows(self, task: TableTask) -> pa.Table:
        parts = [self._catalog.table_shard(task.table).schema.observation_schema.empty_table()]
        async with aclosing(self._tables.read(task)) as answer:
            parts += [part.rows async for part in answer]
        return pa.concat_tables(parts)


def _hold(channel: Channel, broker: Broker, token: str) -> Hold:
    position = position_of(reader_of(channel, broker.name), token)
    return Hold(broker.name, position, broker.hold_us / MICROS)
