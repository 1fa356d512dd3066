"""The calls of `AsyncClient` that store, find and read observations."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Never

import pyarrow as pa

from galileo.client import completeness, pages, queries, reading
from galileo.client.arguments import check_progress, dataset_name, instance_of
from galileo.client.calls import SamplerLike
from galileo.client.deletions import Deletions
from galileo.client.ingestion import (
    Batches,
    Progress,
    Sending,
    in_thread,
    send_all,
)
from galileo.client.pages import LIMIT_MAX, Page
from galileo.client.queries import LabelBatches
from galileo.client.results import Labels, Receipt
from galileo.client.stored_rows import cursor_argument
from galileo.cursor import Cursor
from galileo.errors import InputError, UnknownDataset
from galileo.formats import Choice, CsvOptions, GridOptions, Source, open_source
from galileo.formats import Mapping as FileMapping
from galileo.formats.mapping import Sentinels, Sources
from galileo.formats.schema_suggestion import suggest
from galileo.formats.source import BATCH_ROWS
from galileo.labels import LabelSet, to_ipc
from galileo.model.enrichment import Step, check_steps, needed_columns, steps_of
from galileo.model.rows import check_limit, row_options
from galileo.model.schema import Schema, not_keyed
from galileo.model.times import Duration
from galileo.query.builder import QueryLike, query_text
from galileo.samplers import SamplerSpec
from galileo.wire.v1 import query_pb2, storage_pb2


class AsyncObservations(Deletions):
    """What is stored and asked once."""

    async def ingest(
        self,
        dataset: str,
        data: Batches,
        *,
        mapping: Sources | None = None,
        missing: Sentinels | None = None,
        csv: CsvOptions | None = None,
        grid: GridOptions | None = None,
        format: str | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
        replaces: Any = None,
    ) -> Receipt:
        """Stores observations; durable when it returns.

        In a keyed dataset each observation replaces the one with the same key, as a whole, and of
        one key the last observation counts.

        Args:
            dataset: its name.
            data: one of these, or an iterable (also an async one) of them:

                - a table: a pandas or polars DataFrame, a GeoDataFrame of points in any coordinate
                  reference system, a dict of arrays, an Arrow table, batch or reader, a DuckDB
                  relation, or another object with `__arrow_c_stream__`. Its columns are latitude,
                  longitude, time and the features; `lat`, `lon`, `datetime` and other usual names
                  of coordinates are recognised.
                - a grid: an xarray Dataset or DataArray, by the rules for NetCDF files. Points
                  without any value are skipped.
                - the path of a file, as for `ingest_file`.
            mapping: which columns and variables become features, such as
                `{"temperature": "fahrenheit_to_kelvin(tmpf)"}` or `["temperature=2t"]`; see
                docs/input.md. With a mapping, a table may have other columns, and rows without a
                place, a time or a value are skipped.
            missing: values that mean a missing one: `-9999`, a list of such, or by variable,
                `{"temp": -9999}`. They make a table be read as a mapping does.
            csv: how CSV files are written, such as `galileo.CsvOptions(separator=";")`.
            grid: which rows files and Datasets of grids, stations and profiles have, such as
                `galileo.GridOptions(rows=["N_LEVELS"])`.
            format: of files, where neither their first bytes nor their names say it.
            producer: name under which the batches are numbered. Ingesting the same data again
                under the same name and `batch_rows` stores nothing twice. By default files have
                names made of their content, so that a repetition stores nothing twice; data in
                memory, and files for a keyed dataset, get a fresh name, so that a repetition stores
                them again.
            first_batch: the number of the first batch, of a producer that numbers its batches
                itself over several calls.
            batch_rows: rows per batch; a table is cut into such pieces.
            progress: called with the rows of each batch that became durable.
            unchanged_since: a cursor of this keyed dataset. Observations are refused if one of
                their keys has changed after it. A partition stores all of its rows of a batch or
                none.
            replaces: observations of a keyed dataset, as of `delete`, that are deleted once `data`
                is durable: those whose place or time is corrected, so that they have another key.
                Keys that `data` has stay. Repeat the call after an error.

        Raises:
            InvalidObservations: a table does not fit; nothing of that table was stored.
            InputError: a file, grid or mapping does not fit; what came before is stored.
            ConfigError: a file needs a library that is not installed.
            Conflict: an observation has changed after `unchanged_since`; `details` name its `key`,
                and the `cursor` of the change.
            DuplicateKey: two rows of a conditional call have one key; nothing is stored.
            DataExpired, HistoryChanged: the cursor is too old to tell whether an observation has
                changed.
            TransientError: a node that must take rows was unreachable; ingest the same again later,
                under `details["producer"]`, or what was stored by then is stored twice.

        Example:
            >>> receipt = await client.ingest("weather", frame, producer="march-2014")
            >>> receipt.rows, receipt.duplicate_rows
            (4, 4)
        """
        check_progress(progress)
        if producer is not None:
            instance_of(str, producer, "the producer's name as a text")
        schema = await self._schema(dataset)
        if unchanged_since is not None:
            cursor_argument(unchanged_since, "unchanged_since")
        if not schema.is_keyed and (unchanged_since is not None or replaces is not None):
            raise not_keyed(schema)
        sending = Sending(
            schema,
            producer,
            unchanged_since=unchanged_since,
            keys=None if replaces is None else [],
            first_batch=first_batch,
            batch_rows=batch_rows,
            mapping=FileMapping.of(mapping, missing, csv, grid),
            format=format,
            read_schema=partial(self._read_schema, dataset),
        )
        receipt = await send_all(self._router, sending, data=data, progress=progress)
        if replaces is None:
            return receipt
        deleted = await self._delete_rows(sending.schema, replaces, besides=sending.keys or ())
        return replace(receipt, reached=receipt.reached.join(deleted.reached))

    async def ingest_file(
        self,
        dataset: str,
        path: str | os.PathLike[str] | Source,
        *,
        create: bool = False,
        mapping: Sources | None = None,
        missing: Sentinels | None = None,
        csv: CsvOptions | None = None,
        grid: GridOptions | None = None,
        format: str | None = None,
        index: Sequence[str] | None = None,
        precision: int | None = None,
        bucket: Duration | None = None,
        key: str | Sequence[str] = (),
        producer: str | None = None,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Stores the observations of a file, and creates the dataset if asked to.

        It does what `galileo ingest` does. Ingesting the same file in the same way again stores
        nothing twice, also after a failure, for the producer is made of the file's content.

        Args:
            dataset: its name.
            path: of a CSV, GeoJSON, JSON, Parquet, Arrow, NetCDF or GRIB file, or of a Zarr store;
                or what `galileo.formats.open_source` made of one, with its mapping.
            create: create the dataset from what the file offers where it does not exist. The first
                batch is read before that.
            mapping: as for `ingest`; without one, features are taken by name, and all of the
                largest grid in a new dataset.
            missing: as for `ingest`.
            csv: as for `ingest`.
            grid: as for `ingest`.
            format: as for `ingest`.
            index: with `create`, the features that queries can use; by default the mapped
                features; without a mapping the first 32, except features that give each row a path
                of its own.
            precision: with `create`, geohash characters of a block; None chooses them by the first
                rows, and `Receipt.choices` says why.
            bucket: with `create`, the width of a block in time; None chooses it in the same way.
            key: with `create`, the features of the key, which are indexed; none: observations are
                never replaced.
            producer: name under which the batches are numbered, in place of the file's own.
            progress: called with the rows of each batch that became durable.
            unchanged_since: as for `ingest`.

        Raises:
            InputError: the file is damaged, or does not fit the mapping or the dataset, or the
                dataset exists with another key than `key`.
            UnknownDataset: there is no such dataset, and `create` is false.
            ConfigError: the format needs a library that is not installed.
            TransientError: a node that must take rows stayed away; ingest the same again later.

        Example:
            >>> rows = "2014-03-01T06:00Z,278", "2014-03-02T06:00Z,-9999"
            >>> with open("tower.csv", "w") as file:
            ...     print("time,temp", *rows, sep=chr(10), file=file)
            >>> receipt = await client.ingest_file(
            ...     "tower",
            ...     "tower.csv",
            ...     create=True,
            ...     mapping={"temperature": "temp", "latitude": 40.5, "longitude": -105.1},
            ...     missing=-9999,
            ... )
            >>> receipt.rows, receipt.skipped
            (1, 1)
        """
        if isinstance(path, Source):
            source = path
        elif not isinstance(path, str | os.PathLike):
            raise InputError(
                f"expected the path of a file, got {type(path).__name__}; client.ingest(dataset, "
                "data) stores tables and DataFrames"
            )
        else:
            read_by = FileMapping.of(mapping, missing, csv, grid)
            source = await in_thread(
                partial(open_source, Path(path), mapping=read_by, format=format)
            )
        wanted_key = (key,) if isinstance(key, str) else tuple(key)
        created, choices = False, tuple[Choice, ...]()
        try:
            _check_key(await self._schema(dataset), wanted_key)
        except UnknownDataset:
            if not create:
                raise
            options: dict[str, Any] = {"precision": precision, "bucket": bucket, "index": index}
            schema, choices = await in_thread(
                partial(suggest, source, dataset, key=wanted_key, **options)
            )
            self._cache_schema(Schema.from_json(await self._create(schema)))
            created = True
        receipt = await self.ingest(
            dataset,
            source,
            producer=producer,
            progress=progress,
            unchanged_since=unchanged_since,
        )
        return replace(receipt, created=created, choices=choices)

    async def query(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        limit: int | None = None,
        sampler: SamplerLike | None = None,
        require_complete: bool = False,
        progress: Progress | None = None,
    ) -> Labels:
        """The labels of all paths that match a CQL2 query, of everything that is stored by now.

        Where nodes are away the answer is partial: `complete` is False, and `missing` names the
        partitions that could not be asked.

        Args:
            dataset: its name.
            query: CQL2.
            limit: labels at most, any of those that match; nodes stop once they are found. An
                answer that was cut by it has an empty `frontier`; partitions of nodes that cannot
                be reached are missing from it, too.
            sampler: `galileo.sampler(...)` or `galileo.sampler_archive(...)`, thins them where
                they are stored.
            require_complete: whether a partial answer is an error; it is asked for again as long
                as the client is patient.
            progress: called with the labels of each piece as it comes.

        Raises:
            IncompleteAnswer: a complete answer is required, and a node is down.
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            UnknownSampler: a node does not have the sampler.
            SamplerFailed: the sampler raised; `details["traceback"]` says where.
            NotPermitted, SandboxUnavailable, SamplerRevoked: it goes along, and is not run.

        Example:
            >>> labels = await client.query("weather", "temperature > 290")
            >>> len(labels), labels.complete
            (2, True)
        """
        check_limit(limit)
        check_progress(progress)
        request = _query_request(dataset, query, await self._upload_if_needed(sampler), limit=limit)
        return await queries.collect(
            self._caller, request, require_complete=require_complete, progress=progress
        )

    def query_batches(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        limit: int | None = None,
        sampler: SamplerLike | None = None,
        require_complete: bool = False,
    ) -> LabelBatches:
        """The same, a bounded set of labels at a time; memory stays bounded here and at the nodes.

        Its `end` says, once all labels were given, how far they go and which partitions are
        missing. What a node that is lost on the way had sent by then was given, too;
        `end.known(labels)` leaves it out.

        Args:
            dataset: its name.
            query: CQL2.
            limit: as in `query`.
            sampler: as in `query`.
            require_complete: whether a partial answer ends with an error, once all labels that
                could be found were given.

        Raises:
            IncompleteAnswer: while it is read, at its end: a complete answer is required, and a
                node is down.
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            Unavailable: while it is read: the node that answers was lost. Ask again then, and
                drop what was given.

        Example:
            >>> batches = client.query_batches("weather", galileo.f.station == "KDEN")
            >>> async for labels in batches:
            ...     print(len(labels))
            2
            >>> batches.end.complete
            True
        """

        async def request() -> query_pb2.QueryRequest:
            check_limit(limit)
            return _query_request(
                dataset, query, await self._upload_if_needed(sampler), limit=limit
            )

        return LabelBatches(self._caller, request, require_complete=require_complete)

    async def read(
        self,
        labels: LabelSet,
        *others: Never,
        exact: bool = True,
        columns: Sequence[str] = (),
        limit: int | None = None,
        order_by: str = "",
        require_complete: bool = False,
        progress: Progress | None = None,
    ) -> pa.Table:
        """The observations behind labels.

        Nodes send the named columns alone. A limit ends their work once it is reached; with an
        order each node reads all of its observations and sends its own first ones.

        Where the labels are a partial answer, so is the table: `galileo.missing` in the metadata
        of its schema is then a JSON list of the missing partitions.

        Args:
            labels: of this cluster.
            others: none; a dataset and a query are the arguments of `select`.
            exact: only observations that match the labels' query exactly; else all of their
                paths, of which some can lie just outside a polygon or an interval.
            columns: of the answer; all where none is named.
            limit: observations at most; None: all.
            order_by: a column, such as "time" (the earliest first) or, descending, "-time"; empty:
                ordered by partition, commit and row. Missing values are last, and the order of
                equal ones is not defined. Up to a limit of 1,000,000, if there is one.
            require_complete: whether labels of a partial answer are an error.
            progress: called with the observations of each piece as it comes.

        Raises:
            InputError: these are no labels, or there is no such column or order.
            IncompleteAnswer: a complete answer is required, and the labels are a partial one.
            Unavailable: a node that keeps some of the observations cannot be reached.

        Example:
            >>> labels = await client.query("weather", "temperature > 290")
            >>> table = await client.read(labels)
            >>> sorted(table["temperature"].to_pylist())
            [291.0, 292.5]
        """
        reading.check_labels(labels, *others)
        if require_complete:
            completeness.check_complete(labels)
        options = row_options(columns, limit, order_by)
        return await reading.read(
            self._router, labels, exact=exact, options=options, progress=progress
        )

    async def read_batches(
        self,
        labels: LabelSet,
        *others: Never,
        exact: bool = True,
        columns: Sequence[str] = (),
        limit: int | None = None,
        require_complete: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """The same in pieces, ordered by partition, commit and row; memory stays bounded.

        Where a connection breaks, the next piece comes from another node, and no row twice.
        Arguments and errors are those of `read`.

        Example:
            >>> rows = 0
            >>> async for table in client.read_batches(labels):
            ...     rows += table.num_rows
            >>> rows
            4
        """
        reading.check_labels(labels, *others)
        if require_complete:
            completeness.check_complete(labels)
        options = row_options(columns, limit, "")
        pieces = reading.read_batches(self._router, labels, exact=exact, options=options)
        async with aclosing(pieces) as tables:
            async for table in tables:
                yield table

    async def select(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        columns: Sequence[str] = (),
        limit: int | None = None,
        order_by: str = "",
        enrich: Sequence[Step] = (),
        require_complete: bool = True,
        progress: Progress | None = None,
        at: Cursor | None = None,
    ) -> pa.Table:
        """The observations that match a CQL2 query exactly, found and read in one call.

        What `query` and then `read` give, without the labels; all at once. Where there are too
        many for memory, use `query_batches` and `read_batches`.

        Args:
            dataset: its name.
            query: CQL2.
            columns: of the answer; all where none is named.
            limit: observations at most; None: all. A node that cannot be reached is reported also
                where the limit was reached without it.
            order_by: a column, such as "time" (the earliest first) or, descending, "-time"; empty:
                any order. Missing values are last, and the order of equal ones is not defined. Up
                to a limit of 1,000,000, if there is one.
            enrich: steps that add rows of tables, each of another table: `galileo.Lookup`,
                `Within`, `Near` and `Nearest`. The client joins the rows that are in a table when
                the observations have been read. It reads all rows of the table, but for a lookup
                without `as_of` those of the keys.
            require_complete: whether a partial answer is an error, which it is unless False is
                given. `galileo.missing` in the metadata of a partial table's schema is a JSON list
                of the missing partitions.
            progress: called with the observations of each piece as it comes.
            at: a cursor of this dataset, such as the `frontier` of labels: the observations as they
                were then, of the partitions that it names. None: as they are.

        Raises:
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            InputError: there is no such column or order, or a step does not fit.
            DataExpired: what was there at the cursor is not kept any more.
            HistoryChanged: commits up to the cursor were lost.
            UnknownDataset: there is no such dataset or table.
            IncompleteAnswer: a node that may keep some of them cannot be reached.
            Unavailable: a node that keeps rows of a table cannot be reached.

        Example:
            >>> table = await client.select("weather", "station = 'KDEN'", columns=["temperature"])
            >>> sorted(table["temperature"].to_pylist())
            [288.0, 291.0]
            >>> towns = galileo.Table("towns", {"station": "text", "town": "text"}, "station")
            >>> await client.create_table(towns)
            >>> receipt = await client.upsert("towns", {"station": ["KDEN"], "town": ["Denver"]})
            >>> lookup = galileo.Lookup("towns", on="station")
            >>> table = await client.select("weather", "temperature > 290", enrich=[lookup])
            >>> sorted(table["towns.town"].to_pylist(), key=str)
            ['Denver', None]
            >>> dropped = await client.drop_dataset("towns")
        """
        check_progress(progress)
        steps, options = steps_of(enrich), row_options(columns, limit, order_by)
        ordered = [options.ordered] if order_by else []
        schema = await self._schema_with(dataset, [*options.columns, *ordered])
        tables = {step.table: await self._table(step.table) for step in steps}
        check_steps(steps, schema.observation_schema, tables)
        names = options.columns
        if names:
            needed = (name for name in needed_columns(steps) if name not in names)
            options = replace(options, columns=(*names, *needed))
        observations = await queries.select(
            self._caller,
            schema,
            query_text(query),
            options=options,
            require_complete=require_complete,
            progress=progress,
            at=None if at is None else cursor_argument(at, "at"),
        )
        if not steps:
            return observations
        enriched = await self._enrich(observations, steps, tables)
        left_out = set(options.columns) - set(names)
        return enriched.select([name for name in enriched.column_names if name not in left_out])

    async def select_batches(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        columns: Sequence[str] = (),
        limit: int | None = None,
        at: Cursor | None = None,
    ) -> AsyncIterator[pa.Table]:
        """The same in pieces, in any order; memory stays bounded.

        Closing the iterator cancels the call at the node. Before the first piece the client retries
        at other nodes; an error after it ends the iterator, because rows were returned already.
        Arguments and errors are those of `select`, whose answer has to be complete.

        Raises:
            Unavailable: the answer broke off; drop its rows and repeat the call.

        Example:
            >>> rows = 0
            >>> async for table in client.select_batches("weather", "temperature > 290"):
            ...     rows += table.num_rows
            >>> rows
            2
        """
        options = row_options(columns, limit, "")
        schema = await self._schema_with(dataset, options.columns)
        if at is not None:
            cursor_argument(at, "at")
        pieces = queries.select_batches(
            self._caller, schema, query_text(query), options=options, at=at
        )
        async with aclosing(pieces) as tables:
            async for table in tables:
                yield table

    async def select_page(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        limit: int = 1_000,
        columns: Sequence[str] = (),
        after: str | None = None,
        require_complete: bool = True,
    ) -> Page:
        """Some of the observations that match exactly, with their ids, in the order of these.

        All pages together are what was committed when the first one was read: each observation
        once, whatever is ingested meanwhile. An id such as "p3.17.42" names partition, commit and
        row; it never changes, and `read_ids` reads its observation. In a keyed dataset it names the
        key of the observation, and stays when the observation is replaced.

        Args:
            dataset: its name.
            query: CQL2.
            limit: observations of the page, up to 10,000.
            columns: of the answer; all if none is named.
            after: `next` of the page before, of the same dataset and query; None for the first.
            require_complete: whether it is an error that the first page cannot ask every
                partition. Later pages ask the same partitions as the first one.

        Raises:
            InputError: there is no such column, or the token is of another query.
            IncompleteAnswer: a node that may keep some of them cannot be reached.
            DataExpired: retention has dropped some of them since the first page.
            HistoryChanged: some of them were lost since; `details["token"]` goes on without them.

        Example:
            >>> page = await client.select_page("weather", limit=3)
            >>> rest = await client.select_page("weather", limit=3, after=page.next)
            >>> len(page), len(rest), rest.next
            (3, 1, None)
        """
        check_limit(limit)
        named = row_options(columns, None, "").columns
        schema = await self._schema_with(dataset, named)
        return await pages.page(
            self._caller,
            schema,
            query_text(query),
            columns=named,
            limit=min(int(limit), LIMIT_MAX),
            after=after,
            require_complete=require_complete,
        )

    async def read_ids(
        self, dataset: str, ids: Sequence[str], *, columns: Sequence[str] = ()
    ) -> pa.Table:
        """The observations of ids, in their order, with a first column `id`.

        In a keyed dataset these are the observations that count now. One that was deleted is left
        out.

        Args:
            dataset: its name.
            ids: as pages have them, up to 10,000.
            columns: of the answer; all if none is named.

        Raises:
            InputError: an id is none, or names no observation.
            DataExpired: retention has dropped one of the observations.
            HistoryChanged: one of the observations was lost.

        Example:
            >>> page = await client.select_page("weather", limit=1)
            >>> ids = page.table["id"].to_pylist()
            >>> (await client.read_ids("weather", ids)).drop_columns("id").num_rows
            1
        """
        named = row_options(columns, None, "").columns
        schema = await self._schema_with(dataset, named)
        if not schema.is_keyed:
            return await pages.by_ids(self._router, schema, ids, columns=named)
        row_options(named, None, "").check(schema)
        keys = pages.sought_keys(ids)
        request = storage_pb2.ReadTableRequest(dataset=schema.key, keys=to_ipc(keys))
        rows = (await self._read_versions(schema, request, until=None, keys=keys)).rows
        return await pages.by_keys(self._router, schema, ids, rows=rows, columns=named)

    async def count(self, dataset: str, query: QueryLike = "") -> int:
        """How many observations match a CQL2 query exactly; always complete, errors as `select`.

        Example:
            >>> await client.count("weather", "temperature > 290")
            2
        """
        return await queries.count(self._caller, dataset_name(dataset), query_text(query))


def _check_key(schema: Schema, key: Sequence[str]) -> None:
    """Raises InputError if a dataset has another key than a call wants; an empty one fits all."""
    if not key or {*key} == {*schema.key_features}:
        return
    own = f"with the key {', '.join(schema.key_features)}" if schema.is_keyed else "without a key"
    raise InputError(
        f"expected the dataset {schema.name!r} with the key {', '.join(key)}, got one {own}; a "
        "dataset never changes its key, so leave it out, or create another dataset",
        expected="key",
        dataset=schema.name,
    )


def _query_request(
    dataset: str, query: QueryLike, sampler: SamplerSpec | None, *, limit: int | None
) -> query_pb2.QueryRequest:
    return query_pb2.QueryRequest(
        dataset=dataset_name(dataset),
        query=query_text(query),
        sampler_json=sampler.to_json() if sampler else "",
        limit=limit,
        accepts_endpoints=True,
    )
