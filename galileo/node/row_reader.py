"""The row reader: from row ranges of commits to observations of all nodes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import within
from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import NAMED_MAX, DataExpired, InputError, Unavailable, listed
from galileo.labels import LabelSet
from galileo.model.rows import FirstRows, RowOptions
from galileo.model.schema import Schema, StoredSchema
from galileo.node import query_limits
from galileo.node.catalog import Catalog
from galileo.node.peers import (
    NUMBERED_PARTS_SCHEMA,
    PARTS_SCHEMA,
    Peers,
    ReadTask,
    Share,
    read_from_owners,
    retry_timeout_s,
)
from galileo.node.shard import Shard
from galileo.query import Query, parse_async
from galileo.samplers import LABEL, numbered_parts, observed_schema
from galileo.storage.commits import RowRanges

INLINE_PARTS = 1_024
"""Parts that are put in order without a thread, which would take longer."""
_T = TypeVar("_T")


class RowReader:
    """Reads observations of this node's partitions, and through peers those of others.

    Their order is that of partition, sequence and row, on every node and however the
    partitions are spread. So a reader whose stream broke can ask again, of another node, and skip
    as many rows as it has.
    """

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        peers: Peers,
        executor: Executor,
        retry_max_s: float = math.inf,
    ) -> None:
        self._retry_max_s = retry_max_s
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._executor = executor

    async def read(self, task: ReadTask) -> AsyncGenerator[pa.Table, None]:
        """The observations of all parts, a bounded piece at a time.

        With a limit and an order each node sends its own first observations.

        Raises:
            InputError: the options do not fit the dataset.
            Unavailable: a node that keeps some of them cannot be reached.
            DataExpired: retention has dropped some of them.
            CorruptData: stored bytes fail their checksum.
        """
        schema, options = self._catalog.narrowed(task.dataset, task.added), task.options
        options.check(schema)
        needed = dataclasses.replace(options, columns=options.needed(schema))
        tables = self._read_all(dataclasses.replace(task, options=needed), schema)
        async with aclosing(self._first_rows(tables, options)) as firsts:
            async for table in firsts:
                yield table if task.is_numbered else table.select(options.names(schema))

    async def _read_all(self, task: ReadTask, schema: Schema) -> AsyncGenerator[pa.Table, None]:
        tables = read_from_owners(
            task,
            split=lambda part: self._run(part.parts, self._shares, part),
            read_local=self.read_local,
            read=lambda node, part: self._peers.read(node, part, schema),
            name=self._name,
            live=self._topology,
            timeout_s=min(self._retry_max_s, retry_timeout_s(self._topology)),
        )
        async with aclosing(tables):
            async for table in tables:
                yield table

    async def read_local(self, task: ReadTask) -> AsyncGenerator[pa.Table, None]:
        """The observations of parts that this node keeps, a bounded piece at a time.

        Raises:
            DataExpired: before the first piece, naming all that is gone; or amid them, where
                retention came in between.
            HistoryChanged: before the first piece: some of the commits were lost.
            PartitionMoved: before the first piece; this node does not keep all of it.
        """
        shard = self._catalog.shard(task.dataset)
        named, after, until = await self._run(task.parts, self._range_of, task.parts)
        shard.check_readable(named, after=after, until=until)
        places = (task.parts.column(name).to_numpy() for name in ("partition", "sequence"))
        await self._run(task.parts, shard.check_commits, *places)
        _check_not_dropped(shard, task.parts)
        schema = shard.schema.narrowed(task.added)
        query = await parse_async(task.query_json, schema) if task.query_json else None
        tables = self._read_pieces(shard, task, schema, query)
        async with aclosing(self._first_rows(tables, task.options)) as firsts:
            async for table in firsts:
                yield table

    async def _read_pieces(
        self, shard: Shard, task: ReadTask, schema: Schema, query: Query | None
    ) -> AsyncGenerator[pa.Table, None]:
        loop = asyncio.get_running_loop()
        names = None if task.is_numbered else task.options.names(schema)
        rows_max = query_limits.ROWS_PER_PIECE
        for piece in await self._run(task.parts, pieces_of, task.parts, rows_max):
            table = await loop.run_in_executor(
                self._executor, read_parts, shard, piece, schema, query
            )
            if table.num_rows:
                yield table if names is None else table.select(names)

    async def _run(self, parts: pa.Table, function: Callable[..., _T], *arguments: Any) -> _T:
        """The result of a function that puts parts in order; in a thread if they are many."""
        if parts.num_rows <= INLINE_PARTS:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)

    def _first_rows(
        self, tables: AsyncGenerator[pa.Table, None], options: RowOptions
    ) -> AsyncGenerator[pa.Table, None]:
        head = FirstRows(options, held_min=query_limits.ROWS_HELD_MIN)
        return first_rows(tables, head, executor=self._executor)

    def _range_of(self, parts: pa.Table) -> tuple[list[int], Cursor, Cursor]:
        """The partitions of parts, and the commits (after, until] that they are of."""
        named = np.unique(parts.column("partition").to_numpy()).tolist()
        if not set(named) <= set(self._topology.current.partitions):
            raise InputError(
                f"expected partitions of this cluster, got {listed(named)}",
                partitions=named[:NAMED_MAX],
            )
        return named, *_commits_of(parts)

    def _shares(self, task: ReadTask) -> list[Share[ReadTask]]:
        """What to ask of which node, in the order of partitions: this one for all that it has."""
        parts = _in_order(task.parts)
        partitions = parts.column("partition").to_numpy()
        known, after, until = self._range_of(parts)
        nodes = {**placement.owners(self._topology.current)}
        shard = self._catalog.shards.get(task.dataset)
        if shard is not None:
            nodes |= dict.fromkeys(shard.readable(known, after=after, until=until), self._name)
        shares: list[Share[ReadTask]] = []
        for node, group in itertools.groupby(known, key=nodes.__getitem__):
            alike = list(group)
            start, stop = np.searchsorted(partitions, [alike[0], alike[-1] + 1])
            share = parts.slice(start, stop - start)
            shares.append(Share(node, frozenset(alike), dataclasses.replace(task, parts=share)))
        return shares


async def first_rows(
    tables: AsyncGenerator[pa.Table, None], first_rows: FirstRows, *, executor: Executor
) -> AsyncGenerator[pa.Table, None]:
    """Those rows of tables that are wanted; closes the tables as soon as no more are."""
    loop = asyncio.get_running_loop()
    async with aclosing(tables):
        if first_rows.left is None:
            async for table in tables:
                yield table
            return
        while first_rows.left and (table := await anext(tables, None)) is not None:
            certain = await loop.run_in_executor(executor, first_rows.add, table)
            if certain is not None:
                yield certain
    rest = await loop.run_in_executor(executor, first_rows.rest)
    if rest is not None:
        yield rest


def observed(shard: Shard, labels: LabelSet, *, query: Query) -> pa.Table:
    """The observations of labels of this node that match exactly, as a sampler gets them.

    Raises:
        Unavailable: retention has dropped some of them since the labels were found.
        CorruptData: stored bytes fail their checksum.
    """
    parts = numbered_parts(labels)
    with translate_dropped_to_retry():
        _check_not_dropped(shard, parts)
        schema, pieces = query.schema, pieces_of(parts, query_limits.ROWS_PER_PIECE)
        tables = [read_parts(shard, piece, schema, query) for piece in pieces]
    return pa.concat_tables([observed_schema(schema).empty_table(), *tables])


def read_parts(
    shard: Shard, parts: pa.Table, schema: StoredSchema, query: Query | None = None
) -> pa.Table:
    """The rows of parts of this node's commits that match a query, or all; in a thread.

    Args:
        shard: of the dataset or table.
        parts: in order, of `PARTS_SCHEMA` or `NUMBERED_PARTS_SCHEMA`.
        schema: whose columns the rows get.
        query: None for all rows.

    Raises:
        PartitionMoved: a partition has left this node.
        InputError: a commit is none of this cluster.
    """
    tables, names = [], schema.observation_schema.names
    for partition, sequence, ranges in _commits(parts):
        last = shard.published_sequence(partition)
        if partition not in shard.journals or sequence > last:
            shard.check_own([partition])
        if not 1 <= sequence <= last:
            raise InputError(
                f"expected labels of commits 1 to {last} of partition {partition}, "
                f"got commit {sequence}; use labels of this cluster",
                partition=partition,
                sequence=sequence,
            )
        table = shard.journal(partition).read(sequence, ranges=ranges)
        tables.append(table if table.num_columns == len(names) else table.select(names))
    table = pa.concat_tables(tables)
    matching = None if query is None else pa.array(query.match_observations(table))
    if LABEL in parts.column_names:
        numbers = np.repeat(parts.column(LABEL).to_numpy(), parts.column("rows").to_numpy())
        table = table.append_column(NUMBERED_PARTS_SCHEMA.field(LABEL), pa.array(numbers))
    return table if matching is None else table.filter(matching)


@contextlib.contextmanager
def translate_dropped_to_retry() -> Iterator[None]:
    """Turns `DataExpired` into `Unavailable` while rows of a scan are read.

    Raises:
        Unavailable: retention has dropped rows since the scan; a new scan does not find them.
    """
    try:
        yield
    except DataExpired as error:
        raise Unavailable(
            f"{error.message}. It was dropped during the query; try again", after_s=0.1
        ) from error


def _check_not_dropped(shard: Shard, parts: pa.Table) -> None:
    dropped = shard.removed()
    places = parts.column("partition").to_numpy(), parts.column("sequence").to_numpy()
    gone = ~dropped.past(*places) if dropped else np.zeros(0, dtype=np.bool_)
    if not gone.any():
        return
    partitions = np.unique(places[0][gone]).tolist()
    named = listed(partitions, text_of=lambda p: f"{p} up to commit {dropped[p]}")
    raise DataExpired(
        f"expected labels whose observations are stored, got {int(gone.sum())} that retention or "
        f"cleaning of dataset {shard.schema.name!r} has removed, in partitions {named}; leave them "
        "out",
        partitions=partitions,
        until=[dropped[p] for p in partitions],
    )


def _commits_of(parts: pa.Table) -> tuple[Cursor, Cursor]:
    """The commits (after, until] of which these are parts."""
    partitions, sequences = (parts.column(name).to_numpy() for name in ("partition", "sequence"))
    order = np.lexsort((sequences, partitions))
    partitions, sequences = partitions[order], np.maximum(sequences[order], 0)
    changed = np.diff(partitions) != 0
    named = partitions[np.append(True, changed)[: len(partitions)]].tolist()
    first = np.maximum(sequences[np.append(True, changed)[: len(partitions)]] - 1, 0).tolist()
    last = sequences[np.append(changed, True)[: len(partitions)]].tolist()
    after, until = (dict(zip(named, column, strict=True)) for column in (first, last))
    return Cursor(after), Cursor(until)


def _in_order(parts: pa.Table) -> pa.Table:
    """By partition, sequence and row."""
    columns = [parts.column(name).to_numpy() for name in ("row", "sequence", "partition")]
    return parts.take(pa.array(np.lexsort(columns)))


def pieces_of(parts: pa.Table, rows_max: int) -> list[pa.Table]:
    """The parts in order, some at a time, so that their rows are bounded."""
    parts = _split(_in_order(parts), rows_max)
    ends = np.cumsum(parts.column("rows").to_numpy().astype(np.int64))
    pieces = np.maximum(ends - 1, 0) // rows_max
    starts = np.flatnonzero(np.diff(pieces, prepend=-1))
    places = itertools.pairwise([*starts.tolist(), len(ends)])
    return [parts.slice(start, stop - start) for start, stop in places]


def _split(parts: pa.Table, rows_max: int) -> pa.Table:
    """The same rows, at most `rows_max` in a part."""
    rows = parts.column("rows").to_numpy().astype(np.int64)
    times: npt.NDArray[np.int64] = np.maximum(-(-rows // rows_max), 1)
    if (times == 1).all():
        return parts
    number = within(times)
    parts = parts.take(pa.array(np.repeat(np.arange(len(times)), times)))
    skipped = number * rows_max
    # As 64 bits, so that rows which cannot be there are refused and do not wrap around.
    first = parts.column("row").to_numpy() + skipped
    count = np.minimum(np.repeat(rows, times) - skipped, rows_max)
    columns = [parts.column("partition"), parts.column("sequence"), first, count]
    columns += [parts.column(name) for name in parts.column_names[len(PARTS_SCHEMA) :]]
    return pa.table(columns, names=parts.column_names)


def _commits(parts: pa.Table) -> Iterator[tuple[int, int, RowRanges]]:
    """The row ranges of each commit, of parts in order."""
    partitions, sequences, rows, counts = (
        parts.column(name).to_numpy() for name in PARTS_SCHEMA.names
    )
    changed = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(np.append(True, changed))
    for a, b in itertools.pairwise([*starts.tolist(), len(partitions)]):
        yield int(partitions[a]), int(sequences[a]), (rows[a:b], counts[a:b])
