"""The calls of `AsyncClient` about tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from galileo.client.arguments import check_progress, instance_of
from galileo.client.deletions import Deletions, condition_of, refuse_rows_alone
from galileo.client.ingestion import Progress
from galileo.client.results import Receipt, TableRows
from galileo.client.stored_rows import Keys, cursor_argument, keyed
from galileo.cursor import Cursor
from galileo.formats import CsvOptions
from galileo.formats.source import BATCH_ROWS
from galileo.model.schema import not_keyed
from galileo.model.table import (
    Table,
    deleted_rows,
)
from galileo.query.builder import QueryLike
from galileo.wire.codec import cursor_to_pb
from galileo.wire.v1 import storage_pb2


class AsyncTables(Deletions):
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
        name: str,
        what: Keys | QueryLike | Mapping[str, Any],
        *,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Deletes rows of a table, or observations of a dataset; else as `upsert`.

        Keys that are not there are ignored. A condition is for any dataset. What it deletes has not
        changed since it was evaluated; where it has, the condition is evaluated once more.

        Args:
            name: of the table or dataset.
            what: of a table, rows as of `upsert` whose columns of the key are read, or a list of
                keys if the key has one column. Of a keyed dataset, rows whose place, time and
                features of the key are read, or a `pathlib.Path` of a file with such rows. Of any
                dataset, a condition: CQL2 text, such as `"temperature > 400"`,
                `galileo.f.temperature > 400`, or CQL2 JSON. An empty text stands for all
                observations.
            csv: as of `upsert`.
            producer: as of `upsert`; not with a condition.
            first_batch: as of `upsert`.
            batch_rows: as of `upsert`.
            progress: as of `upsert`.
            unchanged_since: as of `upsert`; not with a condition.

        Returns:
            `rows` is the number of keys that were sent, also of keys that are not there. After a
            condition it is the number of deleted observations, and `evaluated` is the cursor at
            which the condition was evaluated.

        Raises:
            InputError: these are rows, and the dataset has no key.
            IncompleteAnswer: a node that may keep observations that match cannot be reached.
            Conflict: a row has changed after `unchanged_since`; or others change the observations
                of a condition until the patience of the client ends.
            UnknownDataset, InvalidObservations, DuplicateKey, TransientError: as of `upsert`.

        Example:
            >>> receipt = await client.delete("shelters", ["b"])
            >>> (await client.table("shelters")).rows["id"].to_pylist()
            ['a']
        """
        known = await self._kept(name)
        if isinstance(known, Table):
            return await self._store(
                name,
                what,
                deleted_rows,
                rows_of=keyed,
                csv=csv,
                producer=producer,
                first_batch=first_batch,
                batch_rows=batch_rows,
                progress=progress,
                unchanged_since=unchanged_since,
            )
        check_progress(progress)
        condition = condition_of(what)
        if condition is not None:
            refuse_rows_alone(known, csv=csv, producer=producer, unchanged_since=unchanged_since)
            delete = self._delete_matching if known.is_keyed else self._delete_behind_labels
            return await delete(known, condition, progress=progress)
        if not known.is_keyed:
            raise not_keyed(known)
        if unchanged_since is not None:
            cursor_argument(unchanged_since, "unchanged_since")
        return await self._delete_rows(
            known,
            what,
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

    async def changes(self, name: str, after: Cursor, *, until: Cursor | None = None) -> TableRows:
        """The keys whose rows changed between two cursors, each with its last row.

        Of a table or of a keyed dataset.

        Who applies them to the rows at the first cursor has the rows at the second: rows whose
        column `deleted` is true are removed, all others replaced. Of a deleted row only the key is
        there; of a deleted observation also the place and the time by which it was deleted.

        Args:
            name: of the table or dataset.
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
        known = await self._kept(name)
        if not known.is_keyed:
            raise not_keyed(known)
        request = storage_pb2.ReadTableRequest(
            dataset=known.key, after=cursor_to_pb(cursor_argument(after, "after"))
        )
        return await self._read_versions(known, request, until=until)
