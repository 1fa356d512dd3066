"""Selects the observations that match a query exactly, in one call.

This node's partitions are scanned and read in the same step of a thread. Other nodes send labels
first, then their observations. Where a path's cell and bucket lie wholly within the query, its
observations match without a test.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.topology_state import TopologyState
from galileo.errors import NAMED_MAX, DataExpired, HistoryChanged, InputError, listed
from galileo.graph.versions import Choice
from galileo.model.rows import TIME, FirstRows, RowOptions
from galileo.node import query_limits
from galileo.node.catalog import Catalog
from galileo.node.cluster_scan import (
    ClusterScans,
    ScanEnd,
    at_partitions,
    incomplete_answer,
)
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import PARTS_SCHEMA, ReadTask
from galileo.node.row_reader import RowReader, first_rows, translate_dropped_to_retry
from galileo.query import Query
from galileo.storage.journal import PartitionJournal

_PLACE_AND_TIME = ("latitude", "longitude", "time")
ALL_ROWS = RowOptions()
_Mask: TypeAlias = npt.NDArray[np.bool_]
_T = TypeVar("_T")
Labels = TypeVar("Labels", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class CursorRange:
    """The commits past `after` and not past `until` of some partitions.

    Attributes:
        choice: of a keyed dataset, CURRENT: the versions since these commits that count at `until`;
            or WITHDRAWN: those that count at `after`, and at `until` no more.
        at: with CURRENT, a later cursor at which the observations count.
    """

    partitions: frozenset[int]
    after: Cursor
    until: Cursor
    choice: Choice = Choice.CURRENT
    at: Cursor | None = None

    @property
    def needed(self) -> Cursor:
        """Up to where a node has to know the commits."""
        return self.until if self.at is None else self.at


class Selection:
    """Answers from this node's partitions, and through scans and reads from those of others."""

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        scans: ClusterScans,
        reading: RowReader,
        executor: Executor,
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._scans = scans
        self._reading = reading
        self._executor = executor

    async def select(
        self,
        query: Query,
        options: RowOptions = ALL_ROWS,
        *,
        commits: CursorRange | None = None,
        on_missing: Callable[[frozenset[int]], None] | None = None,
    ) -> AsyncGenerator[pa.Table, None]:
        """The matching observations of all commits at the time of the call.

        Their order is undefined unless `options` has one. Reaching the limit ends the work of all
        nodes. With an order every node reads all its matches, except in paths that cannot
        contain a better one, and sends its own first observations. Unreachable nodes are reported
        even if the limit was reached without them.

        Args:
            query: bound to its dataset's schema.
            options: columns, limit and order.
            commits: restricts the answer to these commits, which makes it repeatable.
            on_missing: called with the partitions of unreachable nodes, in place of an error.

        Raises:
            InputError: the options do not fit the dataset, or there is no such commit.
            IncompleteAnswer: a node that may keep some of them cannot be reached.
            Unavailable: retention has dropped rows of this answer meanwhile.
            DataExpired: retention has dropped some of the commits that were named.
            HistoryChanged: commits up to `commits.after` or `commits.until` were lost.
        """
        options.check(query.schema)
        head = FirstRows(options, held_min=query_limits.ROWS_HELD_MIN)
        names = options.names(query.schema)
        work = _Work(query, options, head, commits, on_missing)
        try:
            async with aclosing(
                first_rows(self._select_all(work), head, executor=self._executor)
            ) as tables:
                async for table in tables:
                    yield table.select(names)
        except HistoryChanged:
            if commits is not None:
                asked = (commits.after, commits.until)
                cursors = (at_partitions(cursor, commits.partitions) for cursor in asked)
                await self._scans.check_history(query.schema.key, *cursors)
            raise
        if head.left == 0:
            # The limit was reached before every node had answered.
            _, others = self._shares(query, commits)
            _check_missing(await self._scans.unreachable(query, others), work)

    async def _select_all(self, work: _Work) -> AsyncGenerator[pa.Table, None]:
        """What may be among the wanted observations."""
        query, commits = work.query, work.commits
        shard = self._catalog.shard(query.schema.key)
        journals = shard.journals
        own, others = self._shares(query, commits)
        if own:
            if commits is not None:
                shard.check_history(own, commits.after, commits.until)
            _check_stored(shard, own, commits, journals)
            pieces = _Pieces(shard, work, own).tables()
            async for table in self._in_steps(pieces):
                yield table
            # Retention may have dropped commits before the scan reached them.
            _check_stored(shard, own, commits, journals)
        async with aclosing(self._select_from_others(work, others)) as tables:
            async for table in tables:
                yield table

    async def count(self, query: Query) -> int:
        """The number of matching observations; errors as `select`."""
        own, others = self._shares(query, None)
        # Only the number of rows of other nodes matters.
        options = RowOptions(columns=(TIME,))
        work = _Work(query, options, FirstRows(options))
        rows = 0
        if own:
            shard = self._catalog.shard(query.schema.key)
            pieces = _Pieces(shard, work, own).counts()
            async for count in self._in_steps(pieces):
                rows += count
        async with aclosing(self._select_from_others(work, others)) as tables:
            async for table in tables:
                rows += table.num_rows
        return rows

    def _shares(
        self, query: Query, commits: CursorRange | None
    ) -> tuple[frozenset[int], frozenset[int]]:
        """The partitions that may hold a match: this node's, and those of others.

        Those that this node led until lately are among the others, whose scans find the leader.
        """
        candidates = self._scans.candidates(query)
        if commits is not None:
            candidates &= commits.partitions
        shard = self._catalog.shard(query.schema.key)
        if commits is None:
            own = shard.surely_own(self._topology.partitions(self._name) & candidates)
        else:
            own = shard.readable(candidates, after=commits.after, until=commits.needed)
        return own, candidates - own

    async def _in_steps(self, pieces: Iterator[_T | None]) -> AsyncGenerator[_T, None]:
        """The items of an iterator, which a thread advances in steps of `STEP_S`."""
        loop, done = asyncio.get_running_loop(), False
        while not done:
            step = functools.partial(_step, pieces, query_limits.STEP_S)
            items, done = await loop.run_in_executor(self._executor, step)
            for item in items:
                yield item

    async def _select_from_others(
        self, work: _Work, partitions: frozenset[int]
    ) -> AsyncGenerator[pa.Table, None]:
        if not partitions:
            return
        query, commits = work.query, work.commits
        after, until = (EMPTY_CURSOR, None) if commits is None else (commits.after, commits.until)
        choice, at = work.versions
        parts = self._scans.between(
            query, partitions=partitions, after=after, until=until, choice=choice, at=at
        )
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, ScanEnd):
                    _check_missing(part.missing, work)
                    _check_reached(part, partitions - part.missing, commits)
                    continue
                named = work.wanted_labels(part).select(PARTS_SCHEMA.names).cast(PARTS_SCHEMA)
                if not named.num_rows:
                    continue
                task = ReadTask.of(query, named, work.rest())
                with translate_dropped_to_retry():
                    async with aclosing(self._reading.read(task)) as tables:
                        async for table in tables:
                            yield table


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A query, its options, and the rows found so far."""

    query: Query
    options: RowOptions
    wanted: FirstRows
    commits: CursorRange | None = None
    on_missing: Callable[[frozenset[int]], None] | None = None

    @property
    def versions(self) -> tuple[Choice, Cursor | None]:
        """Which versions of a keyed dataset are wanted, and the cursor of that choice."""
        if self.commits is None:
            return Choice.CURRENT, None
        is_current = self.commits.choice is Choice.CURRENT
        return self.commits.choice, self.commits.at if is_current else self.commits.after

    def rest(self) -> RowOptions:
        """The options for another node: the columns and number of rows that are still needed."""
        needed = self.options.needed(self.query.schema)
        return dataclasses.replace(self.options, columns=needed, limit=self.wanted.left)

    def wanted_labels(self, labels: Labels) -> Labels:
        """Those that may hold a wanted observation, by their time buckets or values."""
        width_us = self.query.schema.time_bucket_us
        mask = self.wanted.may_hold(labels, width_us)
        return labels if mask is None else labels.filter(mask)


def _check_missing(missing: frozenset[int], work: _Work) -> None:
    """Reports missing partitions by `on_missing`; without it raises `IncompleteAnswer`."""
    if not missing:
        return
    if work.on_missing is None:
        raise incomplete_answer(missing)
    work.on_missing(missing)


def _check_stored(
    shard: DatasetShard,
    own: frozenset[int],
    commits: CursorRange | None,
    journals: Mapping[int, PartitionJournal],
) -> None:
    """Raises where this node lacks or has dropped some of the commits.

    Raises:
        PartitionMoved: a partition has left this node since `journals` was read.
    """
    try:
        if commits is not None:
            gone = shard.lacks(commits.until, after=commits.after)
            gone = Cursor({p: last for p, last in gone.items() if p in own})
            _check_range(own, commits, reached=shard.published(), gone=gone)
    finally:
        shard.check_unchanged(journals, own)


def _check_reached(tail: ScanEnd, partitions: frozenset[int], commits: CursorRange | None) -> None:
    """As `_check_stored`, for the answers of other nodes."""
    if commits is not None:
        _check_range(partitions, commits, reached=tail.frontier, gone=tail.gone)


def _check_range(
    partitions: frozenset[int], commits: CursorRange, *, reached: Cursor, gone: Cursor
) -> None:
    """Raises InputError where commits are not there yet, DataExpired where they are gone."""
    ahead = sorted(p for p in partitions if commits.until[p] > reached[p])
    if ahead:
        named = listed(
            ahead, text_of=lambda p: f"{commits.until[p]} of partition {p} (of {reached[p]})"
        )
        raise InputError(
            f"expected commits of this cluster, got {named}; use its own cursors",
            partitions=ahead[:NAMED_MAX],
        )
    lost = {p: min(s, commits.until[p]) for p, s in gone.items() if p in partitions}
    lost = {p: s for p, s in lost.items() if s > commits.after[p]}
    if lost:
        named = listed(lost, text_of=lambda p: f"{p} up to commit {lost[p]}")
        raise DataExpired(
            "expected commits that are stored; retention or cleaning removed some of partitions "
            f"{named}",
            partitions=list(lost),
            until=list(lost.values()),
        )


def _step(pieces: Iterator[_T | None], step_s: float) -> tuple[list[_T], bool]:
    """What comes within a while, and whether it was the last; at least one where there is one."""
    items: list[_T] = []
    deadline = time.monotonic() + step_s
    for piece in pieces:
        if piece is not None:
            items.append(piece)
        if time.monotonic() > deadline:
            return items, False
    return items, True


def stored_rows(
    shard: DatasetShard,
    query: Query,
    *,
    columns: tuple[str, ...],
    commits: CursorRange,
    labels: Iterator[pa.RecordBatch | None] | None = None,
) -> Iterator[pa.Table | None]:
    """The matching observations of commits that this node keeps, piece by piece; for a thread.

    Args:
        shard: of the dataset.
        query: of the dataset.
        columns: of the observations.
        commits: whose observations are read.
        labels: of these commits that may match, in place of all; None comes where there was none.

    Raises:
        Unavailable: retention dropped some of them meanwhile; what is begun anew succeeds.
    """
    rows = RowOptions(columns)
    pieces = _Pieces(shard, _Work(query, rows, FirstRows(rows), commits), commits.partitions)
    return pieces.tables() if labels is None else pieces.tables_behind(labels)


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """What some partitions of a shard hold, piece by piece; None comes where there was nothing."""

    shard: DatasetShard
    work: _Work
    partitions: frozenset[int]

    @property
    def query(self) -> Query:
        return self.work.query

    @property
    def commits(self) -> CursorRange | None:
        return self.work.commits

    @property
    def columns(self) -> tuple[str, ...]:
        return self.work.options.needed(self.query.schema)

    def tables_behind(self, labels: Iterator[pa.RecordBatch | None]) -> Iterator[pa.Table | None]:
        """The matching observations behind labels of these partitions."""
        for batch in self._match_labels(labels):
            yield None if batch is None else self._read(batch)

    def tables(self) -> Iterator[pa.Table | None]:
        # With an order the graph rules out what lies behind what has been found.
        if self.query.everything and not self.work.options.is_top:
            bounds = self._bounds()  # Read first: the graph then has all deletions up to there.
            if not self.shard.graph.has_versions:
                yield from self._read_all_commits(*bounds)
                return
        yield from self.tables_behind(self._labels())

    def counts(self) -> Iterator[int | None]:
        for batch in self._match_labels(self._labels()):
            if batch is None:
                yield None
            else:
                rest = batch.take(np.flatnonzero(~batch.certain))
                known = int(batch.rows[batch.certain].sum(dtype=np.int64))
                yield known + (self._count(rest) if len(rest.row) else 0)

    def _bounds(self) -> tuple[Cursor, Cursor]:
        """Between which commits of its partitions to look."""
        # Published before the graph is read: all of that is in the journals.
        published = self.shard.published()
        until = Cursor({partition: published[partition] for partition in self.partitions})
        if self.commits is None:
            return EMPTY_CURSOR, until
        return self.commits.after, until.meet(self.commits.until)

    def _read_all_commits(self, after: Cursor, until: Cursor) -> Iterator[pa.Table | None]:
        """Everything: commits as they are stored, in their order, which no graph need name."""
        after = after.join(self.shard.dropped())
        waiting: list[pa.Table] = []
        rows = 0
        for partition, last in until.items():
            for sequence in self.shard.sequences(partition, after[partition], last):
                with translate_dropped_to_retry():
                    whole = self.shard.journal(partition).read(sequence)
                waiting.append(whole.select(self.columns))
                rows += whole.num_rows
                if rows >= query_limits.ROWS_PER_PIECE:
                    yield pa.concat_tables(waiting)
                    waiting, rows = [], 0
                else:
                    yield None
        if waiting:
            yield pa.concat_tables(waiting)

    def _labels(self) -> Iterator[pa.RecordBatch | None]:
        """Labels that match."""
        after, until = self._bounds()
        choice, at = self.work.versions
        return self.shard.graph.scan_pieces(
            self.query,
            labels_max=query_limits.LABELS_PER_PART,
            after=after,
            until=until,
            partitions=self.partitions,
            choice=choice,
            at=at,
        )

    def _match_labels(
        self, pieces: Iterator[pa.RecordBatch | None]
    ) -> Iterator[_MatchingLabels | None]:
        """The labels, as many together as have `ROWS_PER_PIECE` rows or more."""
        waiting: list[_MatchingLabels] = []
        rows = 0
        for piece in pieces:
            labels = None if piece is None else self.work.wanted_labels(piece)
            if labels is not None and labels.num_rows:
                waiting.append(_MatchingLabels.of(labels, self.query))
                rows += waiting[-1].size
            if rows >= query_limits.ROWS_PER_PIECE:
                yield from _MatchingLabels.joined(waiting).groups(query_limits.ROWS_PER_PIECE)
                waiting, rows = [], 0
            else:
                yield None
        if waiting:
            yield from _MatchingLabels.joined(waiting).groups(query_limits.ROWS_PER_PIECE)

    def _read(self, batch: _MatchingLabels) -> pa.Table:
        """The observations behind labels that match exactly."""
        near = self._near(batch, {*self.columns, *_PLACE_AND_TIME, *self.query.features})
        keep = self._matching(near, np.repeat(batch.certain, batch.rows))
        table = near if keep is None else near.filter(pa.array(keep))
        return table.select(self.columns)

    def _count(self, batch: _MatchingLabels) -> int:
        """How many observations behind labels match exactly."""
        near = self._near(batch, {*_PLACE_AND_TIME, *self.query.features})
        return int(np.count_nonzero(self.query.match_observations(near)))

    def _matching(self, near: pa.Table, certain: _Mask) -> _Mask | None:
        """Which of the observations match; None: all of them."""
        if certain.all():
            return None
        open_ = np.flatnonzero(~certain)
        tested = near if len(open_) == len(certain) else near.take(pa.array(open_))
        certain[open_] = self.query.match_observations(tested)
        return certain

    def _near(self, batch: _MatchingLabels, columns: Set[str]) -> pa.Table:
        """Some columns of all observations behind labels."""
        numbers, commits = batch.row_numbers()
        tables = []
        for partition, sequence, start, stop in commits:
            with translate_dropped_to_retry():
                journal = self.shard.journal(partition)
                rows = journal.stored(_rows(journal.read(sequence), numbers[start:stop]), sequence)
            names = rows.column_names
            if len(columns) < len(names):
                rows = rows.select([name for name in names if name in columns])
            tables.append(rows)
        return _concat(tables)


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """One table in one piece: testing, filtering and encoding would else do it for each column."""
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def _rows(table: pa.Table, numbers: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of ascending numbers; not copied where they are adjacent."""
    first, last = int(numbers[0]), int(numbers[-1])
    assert 0 <= first <= last < table.num_rows, "a path names rows that its commit has not"
    if last - first + 1 == len(numbers):
        return table.slice(first, len(numbers))
    return table.take(pa.array(numbers))


@dataclass(frozen=True, slots=True, eq=False)
class _MatchingLabels:
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
    def of(cls, labels: pa.RecordBatch, query: Query) -> _MatchingLabels:
        partition, sequence, row, rows = (
            labels.column(name).to_numpy() for name in PARTS_SCHEMA.names
        )
        return cls(partition, sequence, row, rows, query.must_match_labels(labels))

    @classmethod
    def joined(cls, parts: Sequence[_MatchingLabels]) -> _MatchingLabels:
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

    def take(self, at: npt.NDArray[np.intp]) -> _MatchingLabels:
        return _MatchingLabels(*(array.take(at) for array in _arrays(self)))

    def groups(self, rows_max: int) -> Iterator[_MatchingLabels]:
        """Whole commits together, as many as `rows_max` allows; none is empty."""
        starts = self._starts()
        if len(starts) == 1 or self.size <= rows_max:
            yield self
            return
        before = np.append(0, np.cumsum(self.rows, dtype=np.int64))[starts]
        firsts = starts[np.diff(before // rows_max, prepend=-1) > 0]
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


def _arrays(batch: _MatchingLabels) -> tuple[npt.NDArray[Any], ...]:
    return batch.partition, batch.sequence, batch.row, batch.rows, batch.certain
