"""The calls of `AsyncClient` about tables."""

from __future__ import annotations

from typing import Any

from galileo.client.arguments import instance_of
from galileo.client.calls import Calls
from galileo.client.ingestion import Progress
from galileo.client.results import Receipt, TableRows
from galileo.client.stored_rows import Keys, cursor_argument, keyed
from galileo.cursor import Cursor
from galileo.formats import CsvOptions
from galileo.formats.source import BATCH_ROWS
from galileo.model.table import (
    Table,
    deleted_rows,
)
from galileo.wire.codec import cursor_to_pb
from galileo.wire.v1 import storage_pb2


class AsyncTables(Calls):
    """Keyed rows that are replaced and deleted."""

    async def create_table(self, table: Table) -> None:
        """Creates a table; it never changes, and `drop_dataset` drops it.

        Raises:
            DatasetExists: the name is taken; `details["same"]` says whether by this table.

        Example:
            >>> columns = {"id": "text", "beds": "int"}
            >>> await client.create_table(galileo.Table("clinics", columns, key="id"))
        """
        instance_of(
            Table, table, "a table, such as galileo.Table('shelters', {'id': 'text'}, 'id')"
        )
        await self._create(table)

    async def tables(self) -> list[Table]:
        """All tables.

        Example:
            >>> "shelters" in {table.name for table in await client.tables()}
            True
        """
        return await self._read_tables()

    async def upsert(
        self,
        table: str,
        rows: Any,
        *,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Stores rows in place of those with the same keys; durable when it returns.

        Of rows with the same key the last one counts. Each row is replaced as a whole: a column
        that is not given becomes null. Readers see each row at once, and the rows of one call
        perhaps not all at the same time.

        Args:
            table: its name.
            rows: a DataFrame of pandas or polars, a dict of arrays, an Arrow table, batch or
                reader, or another object with `__arrow_c_stream__`, of the table's columns; or the
                path of a Parquet, Arrow, CSV or JSON lines file. Geometries are WKB, WKT, shapely
                geometries, GeoJSON or boxes, as docs/tables.md says.
            csv: how a CSV file is written.
            producer: name under which the batches are numbered. The same rows again under the same
                name, number and `batch_rows` are stored once; by default the name is a fresh one.
            first_batch: the number of the first batch.
            batch_rows: rows of a batch at most.
            progress: called with the rows of each batch that became durable.
            unchanged_since: a cursor of this table. Rows are refused if one of their keys has
                changed after it. A partition stores all of its rows of a batch or none.

        Raises:
            UnknownDataset: there is no such table.
            InvalidObservations: a column is unknown or of a wrong type, a key is missing, or a
                geometry is none that queries accept.
            Conflict: a row has changed after `unchanged_since`; `details` name its `key`, and the
                `cursor` of the change.
            DuplicateKey: two rows of a conditional call have one key; nothing is stored.
            DataExpired, HistoryChanged: the cursor is too old to tell whether a row has changed;
                read the rows again.
            TransientError: a node that must take rows was unreachable. Some may be stored; repeat
                the call under `details["producer"]`.

        Example:
            >>> receipt = await client.upsert("shelters", {"id": ["a", "b"], "beds": [40, 25]})
            >>> receipt.rows
            2
            >>> seen = await client.table("shelters", keys=["a"])
            >>> row = {"id": ["a"], "beds": [seen.rows["beds"][0].as_py() - 1]}
            >>> receipt = await client.upsert("shelters", row, unchanged_since=seen.cursor)
            >>> try:
            ...     await client.upsert("shelters", row, unchanged_since=seen.cursor)
            ... except galileo.errors.Conflict as error:
            ...     print(error.details["key"])
            a
        """
        return await self._store(
            table,
            rows,
            csv=csv,
            producer=producer,
            first_batch=first_batch,
            batch_rows=batch_rows,
            progress=progress,
            unchanged_since=unchanged_since,
        )

    async def delete(
        self,
        table: str,
        keys: Keys,
        *,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Deletes the rows with some keys; unknown keys are ignored. Else as `upsert`.

        Args:
            table: its name.
            keys: rows, as of `upsert`, of which the columns of the key count; or a list of keys, if
                the key has one column.
            csv: as of `upsert`.
            producer: as of `upsert`.
            first_batch: as of `upsert`.
            batch_rows: as of `upsert`.
            progress: as of `upsert`.
            unchanged_since: as of `upsert`.

        Example:
            >>> receipt = await client.delete("shelters", ["b"])
            >>> (await client.table("shelters")).rows["id"].to_pylist()
            ['a']
        """
        return await self._store(
            table,
            keys,
            deleted_rows,
            rows_of=keyed,
            csv=csv,
            producer=producer,
            first_batch=first_batch,
            batch_rows=batch_rows,
            progress=progress,
            unchanged_since=unchanged_since,
        )

    async def table(
        self, table: str, *, at: Cursor | None = None, keys: Keys | None = None
    ) -> TableRows:
        """The rows of a table, in no particular order; all at once.

        Args:
            table: its name.
            at: the cursor of an earlier answer, perhaps joined with those of receipts: the rows as
                they were then. None: as they are.
            keys: only the rows with these keys; as of `delete`.

        Raises:
            UnknownDataset: there is no such table.
            InputError: the cursor or the keys are not of this table.
            Unavailable: a node that keeps some of the rows cannot be reached.
            HistoryChanged: commits up to the cursor were lost; `details["cursor"]` goes on.

        Example:
            >>> before = await client.table("shelters")
            >>> receipt = await client.upsert("shelters", {"id": ["a"], "beds": [38]})
            >>> (await client.table("shelters", keys=["a"])).rows["beds"].to_pylist()
            [38]
            >>> earlier = await client.table("shelters", at=before.cursor, keys=["a"])
            >>> earlier.rows["beds"].to_pylist()
            [40]
        """
        return await self._read_rows(table, at=at, keys=keys)

    async def changes(self, table: str, after: Cursor, *, until: Cursor | None = None) -> TableRows:
        """The keys whose rows changed between two cursors, each with its last row.

        Who applies them to the rows at the first cursor has the rows at the second: rows whose
        column `deleted` is true are removed, all others replaced. Of a deleted row only the key is
        there.

        Args:
            table: its name.
            after: the cursor of an earlier answer.
            until: of a later one; None: all that is committed.

        Raises:
            HistoryChanged: commits up to a cursor were lost. `details["cursor"]` goes on, but rows
                that the lost commits changed are not among the changes: read the table anew.

        Example:
            >>> before = (await client.table("shelters")).cursor
            >>> receipt = await client.delete("shelters", ["a"])
            >>> (await client.changes("shelters", before)).rows.to_pylist()
            [{'id': 'a', 'beds': None, 'deleted': True}]
        """
        known = await self._table(table)
        request = storage_pb2.ReadTableRequest(
            dataset=known.key, after=cursor_to_pb(cursor_argument(after, "after"))
        )
        return await self._read_versions(known, request, until=until)
