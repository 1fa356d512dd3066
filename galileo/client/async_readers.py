"""The calls of `AsyncClient` about named readers of datasets and tables.

Retention and cleaning wait for them.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from galileo.client.arguments import instance_of
from galileo.client.calls import Calls
from galileo.client.results import DatasetReader
from galileo.client.row_changes import KnownRow, change_row
from galileo.cursor import Cursor
from galileo.model.reader import (
    POSITIONS,
    READER,
    TOKEN,
    reader_hold_us,
    reader_key,
    readers_of,
    unknown_reader,
)
from galileo.model.schema import StoredSchema
from galileo.model.times import MICROS, Duration
from galileo.wire import reader_rows
from galileo.wire.codec import cursor_from_pb
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2


class AsyncReaders(Calls):
    """Readers that have a name in the cluster."""

    async def readers(self, dataset: str) -> list[DatasetReader]:
        """The named readers of a dataset or table, by name.

        Args:
            dataset: its name.

        Raises:
            UnknownDataset: there is no such dataset or table.

        Example:
            >>> [reader.name for reader in await client.readers("weather")]
            []
        """
        known = await self._read_kept(dataset)
        stored = await self._stored_readers(known)
        reply = await self._caller.unary(CLUSTER, "Status", cluster_pb2.StatusRequest())
        facts = (one for node in reply.nodes for one in node.datasets if one.dataset == known.key)
        published = Cursor.joined(cursor_from_pb(one.sequences) for one in facts)
        return [_reader(name, row, published) for name, row in stored.items()]

    async def advance_reader(
        self, dataset: str, name: str, cursor: Cursor, *, hold: Duration
    ) -> None:
        """Stores up to where a reader has processed a dataset or table; durable on return.

        Creates the reader if there is none of this name. Its position never goes back: what it was
        and the cursor are joined. What lies behind the position is kept until the reader has not
        called this for as long as the hold: by retention also until it is older than the age of the
        policy and the hold together, by cleaning until then alone.

        Args:
            dataset: its name, or that of a table.
            name: of the reader.
            cursor: up to which all commits are processed, such as `QueryEnd.frontier` or the cursor
                of `changes`.
            hold: how long the cluster waits, such as "7d"; at most 90 days.

        Raises:
            UnknownDataset: there is no such dataset or table.
            InputError: the name or the hold is none.
            Forbidden: the caller may not write the table of positions.

        Example:
            >>> cursor = (await client.query("weather")).frontier
            >>> await client.advance_reader("weather", "nightly", cursor, hold="7d")
            >>> [(one.name, one.behind) for one in await client.readers("weather")]
            [('nightly', 0)]
        """
        known = await self._read_kept(dataset)
        instance_of(Cursor, cursor, "a cursor up to which all commits are processed")
        reader, hold_us = reader_key(known, name), reader_hold_us(hold)

        def change(row: KnownRow) -> dict[str, Any]:
            now = dt.datetime.now(dt.UTC)
            return reader_rows.advance(reader, row[TOKEN], cursor, hold_us=hold_us, now=now)

        await change_row(self, POSITIONS, reader, change)

    async def drop_reader(self, dataset: str, name: str) -> None:
        """Removes a named reader; retention and cleaning do not wait for it any more.

        A stream of Spark that runs under this name creates it again.

        Raises:
            UnknownDataset: there is no such dataset or table.
            InputError: there is no such reader.

        Example:
            >>> cursor = (await client.query("weather")).frontier
            >>> await client.advance_reader("weather", "nightly", cursor, hold="7d")
            >>> await client.drop_reader("weather", "nightly")
        """
        known = await self._read_kept(dataset)
        names = await self._stored_readers(known)
        if name not in names:
            raise unknown_reader(name, [*names])
        changes = {"token": "", "hold_us": 0, "stored_at": dt.datetime.now(dt.UTC)}
        await change_row(self, POSITIONS, reader_key(known, name), lambda _: changes)

    async def _stored_readers(self, dataset: StoredSchema) -> dict[str, dict[str, Any]]:
        return readers_of(dataset, (await self._read_rows(POSITIONS.name)).rows)


def _reader(name: str, row: dict[str, Any], published: Cursor) -> DatasetReader:
    cursor = reader_rows.position_of(row[READER], row[TOKEN])
    return DatasetReader(
        name=name,
        cursor=cursor,
        hold_s=row["hold_us"] / MICROS,
        behind=sum(max(0, last - cursor[partition]) for partition, last in published.items()),
        stored_at=row["stored_at"] or dt.datetime.fromtimestamp(0, dt.UTC),
    )
