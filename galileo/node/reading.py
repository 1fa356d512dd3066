"""Reading blocks: from row ranges of commits to observations, wherever they are kept."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from contextlib import aclosing

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import DataDropped, InputError, Unavailable
from galileo.node.catalog import Catalog
from galileo.node.peers import PARTS_SCHEMA, Peers, ReadTask
from galileo.node.shard import Shard
from galileo.query import Query, parse
from galileo.storage.row_ranges import RowRanges

ROWS_PER_PIECE = 65_536
"""Observations that are read together; a piece has less than twice as many."""


class Reading:
    """Reads observations of this node's partitions, and through peers those of others.

    Their order is that of partition, sequence and row, whichever node is asked and however the
    partitions are spread. So a reader whose stream broke can ask again, of another node, and skip
    as many rows as it has.
    """

    def __init__(
        self, name: str, topology: Topology, *, catalog: Catalog, peers: Peers, executor: Executor
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._executor = executor

    async def read(self, task: ReadTask) -> AsyncGenerator[pa.Table, None]:
        """The observations of all parts, a bounded piece at a time.

        Raises:
            Unavailable: a node that keeps some of them cannot be reached.
            DataDropped: retention has dropped some of them.
            DataDamaged: stored bytes fail their checksum.
        """
        schema = self._catalog.schema(task.dataset)
        loop = asyncio.get_running_loop()
        for node, share in await loop.run_in_executor(self._executor, self._shares, task):
            here = node == self._name
            asked = self.read_local(share) if here else self._peers.read(node, share, schema)
            async with aclosing(asked) as tables:
                async for table in tables:
                    yield table

    async def read_local(self, task: ReadTask) -> AsyncGenerator[pa.Table, None]:
        """The observations of parts that this node keeps, a bounded piece at a time.

        Raises:
            DataDropped: before the first piece, naming all that is gone; or amid them, where
                retention came in between.
        """
        shard = self._catalog.shard(task.dataset)
        _check_not_dropped(shard, task.parts)
        query = parse(task.query_json, shard.schema) if task.query_json else None
        loop = asyncio.get_running_loop()
        for piece in await loop.run_in_executor(self._executor, _pieces, task.parts):
            table = await loop.run_in_executor(self._executor, self._read, shard, piece, query)
            if table.num_rows:
                yield table

    def _read(self, shard: Shard, parts: pa.Table, query: Query | None) -> pa.Table:
        tables = []
        for partition, sequence, ranges in _commits(parts):
            last = shard.published()[partition]
            if not 1 <= sequence <= last:
                raise InputError(
                    f"expected labels of commits 1 to {last} of partition {partition}, "
                    f"got commit {sequence}; use labels of this cluster"
                )
            tables.append(shard.journals[partition].read(sequence, ranges=ranges))
        table = pa.concat_tables(tables)
        return table if query is None else table.filter(pa.array(query.match_observations(table)))

    def _shares(self, task: ReadTask) -> list[tuple[str, ReadTask]]:
        """What to ask of which node, in the order of partitions."""
        owners = placement.owners(self._topology)
        parts = _in_order(task.parts)
        partitions = parts.column("partition").to_numpy()
        known = np.unique(partitions).tolist()
        if not set(known) <= set(owners):
            raise InputError(f"expected partitions of this cluster, got {known}")
        shares: list[tuple[str, ReadTask]] = []
        for node, group in itertools.groupby(known, key=owners.__getitem__):
            alike = list(group)
            start, stop = np.searchsorted(partitions, [alike[0], alike[-1] + 1])
            share = parts.slice(start, stop - start)
            shares.append((node, ReadTask(task.dataset, share, task.query_json)))
        return shares


@contextlib.contextmanager
def found_now() -> Iterator[None]:
    """For reading what a scan has just found, where nobody asks for given commits.

    Raises:
        Unavailable: retention dropped it in between; a new scan will not find it.
    """
    try:
        yield
    except DataDropped as error:
        raise Unavailable(
            f"{error.message}. It was dropped after it was found; ask again", after_s=0.1
        ) from error


def _check_not_dropped(shard: Shard, parts: pa.Table) -> None:
    dropped = shard.dropped()
    places = parts.column("partition").to_numpy(), parts.column("sequence").to_numpy()
    gone = ~dropped.past(*places) if dropped else np.zeros(0, dtype=np.bool_)
    if not gone.any():
        return
    found = np.unique(places[0][gone]).tolist()
    named = ", ".join(f"{p} up to commit {dropped[p]}" for p in found)
    raise DataDropped(
        f"expected labels whose observations are stored, got {int(gone.sum())} that the retention "
        f"of dataset {shard.schema.name!r} has dropped, in partitions {named}; leave them out",
        partitions=found,
        until=[dropped[p] for p in found],
    )


def _in_order(parts: pa.Table) -> pa.Table:
    """By partition, sequence and row."""
    columns = [parts.column(name).to_numpy() for name in ("row", "sequence", "partition")]
    return parts.take(pa.array(np.lexsort(columns)))


def _pieces(parts: pa.Table) -> list[pa.Table]:
    """The parts in order, some at a time, so that their rows are bounded."""
    parts = _split(_in_order(parts))
    ends = np.cumsum(parts.column("rows").to_numpy().astype(np.int64))
    pieces = np.maximum(ends - 1, 0) // ROWS_PER_PIECE
    starts = np.flatnonzero(np.diff(pieces, prepend=-1))
    places = itertools.pairwise([*starts.tolist(), len(ends)])
    return [parts.slice(start, stop - start) for start, stop in places]


def _split(parts: pa.Table) -> pa.Table:
    """The same rows, at most `ROWS_PER_PIECE` in a part."""
    rows = parts.column("rows").to_numpy().astype(np.int64)
    times: npt.NDArray[np.int64] = np.maximum(-(-rows // ROWS_PER_PIECE), 1)
    if (times == 1).all():
        return parts
    number = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    parts = parts.take(pa.array(np.repeat(np.arange(len(times)), times)))
    skipped = number * ROWS_PER_PIECE
    # As 64 bits, so that rows which cannot be there are refused and do not wrap around.
    first = parts.column("row").to_numpy() + skipped
    count = np.minimum(np.repeat(rows, times) - skipped, ROWS_PER_PIECE)
    columns = [parts.column("partition"), parts.column("sequence"), first, count]
    return pa.table(columns, names=PARTS_SCHEMA.names)


def _commits(parts: pa.Table) -> Iterator[tuple[int, int, RowRanges]]:
    """The row ranges of each commit, of parts in order."""
    partitions, sequences, rows, counts = (
        parts.column(name).to_numpy() for name in PARTS_SCHEMA.names
    )
    changed = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(np.append(True, changed))
    for a, b in itertools.pairwise([*starts.tolist(), len(partitions)]):
        yield int(partitions[a]), int(sequences[a]), (rows[a:b], counts[a:b])
