"""Selecting observations: those that match a query exactly, found and read in one call.

What this node keeps is scanned and read in the same step of a thread; labels do not leave it. Of
other nodes the labels are asked for, then the observations behind them. Where a path's cell and
bucket lie wholly within what is asked for, its observations match without being tested.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Iterator, Sequence, Set
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import ORIGIN, Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError, Unavailable
from galileo.model.schema import Schema
from galileo.model.times import column_micros
from galileo.node.catalog import Catalog
from galileo.node.peers import PARTS_SCHEMA, ReadTask
from galileo.node.reading import Reading, found_now
from galileo.node.scans import ClusterScans, Tail
from galileo.node.shard import Shard
from galileo.query import Query

LABELS_PER_PIECE = 32_768
ROWS_PER_TABLE = 65_536
"""Rows that are read together, unless one commit alone has more."""
STEP_S = 0.025
"""After so long a step ends with what it has, so that others get their turn."""

_PLACE_AND_TIME = ("latitude", "longitude", "time")
_Mask: TypeAlias = npt.NDArray[np.bool_]
_T = TypeVar("_T")


class Selection:
    """Answers from this node's partitions, and through scans and reads from those of others."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        *,
        catalog: Catalog,
        scans: ClusterScans,
        reading: Reading,
        executor: Executor,
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._scans = scans
        self._reading = reading
        self._executor = executor

    async def select(
        self, query: Query, columns: Sequence[str] = ()
    ) -> AsyncGenerator[pa.Table, None]:
        """The observations that match, of everything committed when it was asked, in any order.

        Args:
            query: bound to its dataset's schema.
            columns: of the observation schema; all where none is named.

        Raises:
            InputError: there is no such column.
            Unavailable: a node that may keep some of them cannot be reached, or retention dropped
                what was just found.
        """
        names = checked_columns(query.schema, columns)
        own, others = self._shares(query)
        if own:
            pieces = _Pieces(self._catalog.shard(query.schema.name), query, own, names).tables()
            async for table in self._stepwise(pieces):
                yield table
        async with aclosing(self._of_others(query, others)) as tables:
            async for table in tables:
                yield table.select(names)

    async def count(self, query: Query) -> int:
        """How many observations match; errors as `select`. What certainly matches is not read."""
        own, others = self._shares(query)
        found = 0
        if own:
            pieces = _Pieces(self._catalog.shard(query.schema.name), query, own, ()).counts()
            async for count in self._stepwise(pieces):
                found += count
        async with aclosing(self._of_others(query, others)) as tables:
            async for table in tables:
                found += table.num_rows
        return found

    def _shares(self, query: Query) -> tuple[frozenset[int], frozenset[int]]:
        """The partitions that may hold a match: this node's, and those of others."""
        wanted = self._scans.candidates(query)
        own = placement.partitions_by_node(self._topology)[self._name] & wanted
        return own, wanted - own

    async def _stepwise(self, pieces: Iterator[_T | None]) -> AsyncGenerator[_T, None]:
        """What comes out of an iterator that works in a thread for a while, then is asked again."""
        loop, done = asyncio.get_running_loop(), False
        while not done:
            step = functools.partial(_step, pieces)
            found, done = await loop.run_in_executor(self._executor, step)
            for one in found:
                yield one

    async def _of_others(
        self, query: Query, partitions: frozenset[int]
    ) -> AsyncGenerator[pa.Table, None]:
        if not partitions:
            return
        parts = self._scans.between(query, partitions=partitions, after=ORIGIN, until=None)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Tail):
                    _check_whole(part)
                    continue
                named = part.select(PARTS_SCHEMA.names).cast(PARTS_SCHEMA)
                task = ReadTask(query.schema.name, named, query.to_json())
                with found_now():
                    async for table in self._reading.read(task):
                        yield table


def checked_columns(schema: Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of an answer; all of the observation schema where none is named.

    Raises:
        InputError: there is no such column, or it is named twice.
    """
    known = schema.observation_schema.names
    unknown = [name for name in columns if name not in known]
    if unknown or len(set(columns)) < len(columns):
        raise InputError(
            f"expected columns of dataset {schema.name!r}, each once, of {', '.join(known)}; "
            f"got {', '.join(columns)}"
        )
    return tuple(columns) or tuple(known)


def _check_whole(tail: Tail) -> None:
    if tail.missing:
        raise Unavailable(
            f"a node that keeps partitions {sorted(tail.missing)} could not be asked; try again "
            "when it is back, or ask for labels, which say what is missing",
            missing=sorted(tail.missing),
        )


def _step(pieces: Iterator[_T | None]) -> tuple[list[_T], bool]:
    """What comes within a while, and whether it was the last; at least one where there is one."""
    found: list[_T] = []
    deadline = time.monotonic() + STEP_S
    for piece in pieces:
        if piece is not None:
            found.append(piece)
        if time.monotonic() > deadline:
            return found, False
    return found, True


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """What some partitions of a shard hold, piece by piece; None comes where there was nothing."""

    shard: Shard
    query: Query
    partitions: frozenset[int]
    columns: tuple[str, ...]

    def tables(self) -> Iterator[pa.Table | None]:
        for found in self._found():
            yield None if found is None else self._read(found)

    def counts(self) -> Iterator[int | None]:
        for found in self._found():
            if found is None:
                yield None
            else:
                rest = found.take(np.flatnonzero(~found.certain))
                known = int(found.rows[found.certain].sum(dtype=np.int64))
                yield known + (self._count(rest) if len(rest.row) else 0)

    def _found(self) -> Iterator[_Found | None]:
        """Labels that match, as many together as have `ROWS_PER_TABLE` rows or more."""
        # Published before the graph is read: all of that is in the journals.
        published = self.shard.published()
        until = Cursor({partition: published[partition] for partition in self.partitions})
        pieces = self.shard.graph.scan_pieces(self.query, labels_max=LABELS_PER_PIECE, until=until)
        waiting: list[_Found] = []
        for piece in pieces:
            if piece is not None:
                waiting.append(_Found.of(piece, self.query))
            if sum(one.size for one in waiting) >= ROWS_PER_TABLE:
                yield from _Found.joined(waiting).groups()
                waiting = []
            else:
                yield None
        if waiting:
            yield from _Found.joined(waiting).groups()

    def _read(self, found: _Found) -> pa.Table:
        """The observations behind labels that match exactly."""
        near = self._near(found, {*self.columns, *_PLACE_AND_TIME, *self.query.features})
        keep = self._matching(near, np.repeat(found.certain, found.rows))
        table = near if keep is None else near.filter(pa.array(keep))
        return table.select(self.columns)

    def _count(self, found: _Found) -> int:
        """How many observations behind labels match exactly."""
        near = self._near(found, {*_PLACE_AND_TIME, *self.query.features})
        return int(np.count_nonzero(self.query.match_observations(near)))

    def _matching(self, near: pa.Table, certain: _Mask) -> _Mask | None:
        """Which of the observations match; None: all of them."""
        if certain.all():
            return None
        open_ = np.flatnonzero(~certain)
        tested = near if len(open_) == len(certain) else near.take(pa.array(open_))
        certain[open_] = self.query.match_observations(tested)
        return certain

    def _near(self, found: _Found, columns: Set[str]) -> pa.Table:
        """Some columns of all observations behind labels."""
        numbers, commits = found.row_numbers()
        tables = []
        for partition, sequence, start, stop in commits:
            with found_now():
                whole = self.shard.journals[partition].read(sequence)
            names = whole.column_names
            if len(columns) < len(names):
                whole = whole.select([name for name in names if name in columns])
            tables.append(_rows(whole, numbers[start:stop]))
        # Put together here, since testing, filtering and encoding would do it column by column.
        return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def _rows(table: pa.Table, numbers: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of ascending numbers; not copied where they are adjacent."""
    first, last = int(numbers[0]), int(numbers[-1])
    assert 0 <= first <= last < table.num_rows, "a path names rows that its commit has not"
    if last - first + 1 == len(numbers):
        return table.slice(first, len(numbers))
    return table.take(pa.array(numbers))


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Labels and what is known of them; each array has shape (k,).

    Attributes:
        partition, sequence, row, rows: as in `schema.label_schema`.
        certain: whether every observation matches.
    """

    partition: npt.NDArray[np.int32]
    sequence: npt.NDArray[np.int64]
    row: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    certain: _Mask

    @classmethod
    def of(cls, labels: pa.RecordBatch, query: Query) -> _Found:
        columns: dict[str, Any] = {name: labels.column(name) for name in query.features}
        columns["cell"] = labels.column("cell").to_numpy()
        columns["bucket"] = column_micros(labels.column("bucket"))
        partition, sequence, row, rows = (
            labels.column(name).to_numpy() for name in PARTS_SCHEMA.names
        )
        return cls(partition, sequence, row, rows, query.certain_paths(columns))

    @classmethod
    def joined(cls, parts: Sequence[_Found]) -> _Found:
        """All of them in the order of partition, sequence and row."""
        if len(parts) == 1:
            whole = parts[0]
        else:
            whole = cls(*map(np.concatenate, zip(*map(_arrays, parts), strict=True)))
        return whole.take(np.lexsort((whole.row, whole.sequence, whole.partition)))

    @property
    def size(self) -> int:
        """Observations behind the labels."""
        return int(self.rows.sum(dtype=np.int64))

    def take(self, at: npt.NDArray[np.intp]) -> _Found:
        return _Found(*(array.take(at) for array in _arrays(self)))

    def groups(self) -> Iterator[_Found]:
        """Whole commits together, as many as `ROWS_PER_TABLE` allows; none is empty."""
        starts = self._starts()
        if len(starts) == 1 or self.size <= ROWS_PER_TABLE:
            yield self
            return
        before = np.append(0, np.cumsum(self.rows, dtype=np.int64))[starts]
        firsts = starts[np.diff(before // ROWS_PER_TABLE, prepend=-1) > 0]
        for start, stop in zip(firsts, [*firsts[1:], len(self.row)], strict=True):
            yield self.take(np.arange(start, stop))

    def row_numbers(self) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int, int]]]:
        """Which row of its commit each observation is, those of all labels behind each other.

        Also partition, sequence, start and stop among these numbers, of each commit.
        """
        rows = self.rows.astype(np.int64)
        ends = np.cumsum(rows)
        numbers = np.repeat(self.row - (ends - rows), rows)
        numbers += np.arange(len(numbers))
        starts = self._starts()
        stops = ends[np.append(starts[1:], len(rows)) - 1]
        places = (self.partition[starts], self.sequence[starts], np.append(0, stops[:-1]), stops)
        return numbers, list(zip(*(place.tolist() for place in places), strict=True))

    def _starts(self) -> npt.NDArray[np.intp]:
        """Where each commit begins; there is at least one."""
        first = np.ones(len(self.row), dtype=np.bool_)
        np.not_equal(self.sequence[1:], self.sequence[:-1], out=first[1:])
        first[1:] |= self.partition[1:] != self.partition[:-1]
        return np.flatnonzero(first)


def _arrays(found: _Found) -> tuple[npt.NDArray[Any], ...]:
    return found.partition, found.sequence, found.row, found.rows, found.certain
