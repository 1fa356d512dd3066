"""Pages of the observations that match a query, in the order of their ids, of one snapshot.

An id is (partition, sequence, row). The first page fixes the frontier, and a later page begins
after the last id of the one before, so that all pages together are what was committed when the
first one was read, whatever is committed meanwhile.

A page looks at a window of the next commits, and at one four times as large while that had too few
matches. It keeps the labels that come first, and reads their rows until the page is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor, PageStart, lost_positions
from galileo.errors import NAMED_MAX, DataExpired, HistoryChanged, InputError, listed
from galileo.graph.versions import Choice
from galileo.model.rows import RowOptions
from galileo.node.cluster_scan import ClusterScans, ScanEnd, incomplete_answer
from galileo.node.peers import NUMBERED_PARTS_SCHEMA, PARTS_SCHEMA, ReadTask
from galileo.node.row_reader import RowReader, translate_dropped_to_retry
from galileo.query import Query, parse
from galileo.samplers import LABEL

PAGE_ROWS_MAX = 10_000
"""Observations of one page."""
LABELS_HELD = 32_768
"""Labels of a window that are kept, those with the least ids."""
ROWS_READ_MIN = 64
"""Rows that are read together at first, unless a page has more."""
ROWS_READ_MAX = 16_384
"""Rows that are read together where few match, unless a page has more."""
GROWTH = 4
"""Of windows of commits, and of rows that are read together, where those before had too few."""
INLINE_ROWS = 4_096
"""Labels or rows that are put in order without a thread, which would take longer."""

ID_SCHEMA = pa.schema([PARTS_SCHEMA.field(name) for name in ("partition", "sequence", "row")])
"""Columns of a page behind those of its observations."""


@dataclass(frozen=True, slots=True)
class ObservationPage:
    """Observations with their ids (`ID_SCHEMA`); where the next page begins, None for none."""

    observations: pa.Table
    following: PageStart | None
    missing: frozenset[int]


class Paging:
    """Answers pages from all nodes, by scans and reads."""

    def __init__(self, *, scans: ClusterScans, reading: RowReader, executor: Executor) -> None:
        self._scans = scans
        self._reading = reading
        self._executor = executor

    async def page(
        self,
        query: Query,
        *,
        limit: int,
        columns: tuple[str, ...] = (),
        start: PageStart | None = None,
        accepts_missing: bool = False,
    ) -> ObservationPage:
        """The next matching observations in the order of their ids.

        Args:
            query: the same for all pages.
            limit: observations at most, up to `PAGE_ROWS_MAX`.
            columns: of the observations; empty: all.
            start: of the page before; None for the first page.
            accepts_missing: whether the snapshot may lack partitions of unreachable nodes.

        Raises:
            InputError: the limit or a column is wrong, or `start` is of another cluster.
            IncompleteAnswer: a node cannot be reached.
            DataExpired: retention has dropped commits of the snapshot since the first page.
            HistoryChanged: commits of the snapshot were lost since the first page.
            Unavailable: likewise, while they were read.
        """
        if not 1 <= limit <= PAGE_ROWS_MAX:
            raise InputError(
                f"expected 1 to {PAGE_ROWS_MAX:,} observations in a page, got {limit:,}",
                parameter="limit",
                bound=PAGE_ROWS_MAX,
            )
        options = RowOptions(columns)
        options.check(query.schema)
        missing = frozenset[int]()
        if start is None:
            start, missing = await self._first(query)
            if missing and not accepts_missing:
                raise incomplete_answer(missing)
        # One more says whether another page follows.
        table = await self._read(query, start, rows=limit + 1)
        given = table.slice(0, limit)
        following = None
        if table.num_rows > limit:
            *_, last = given.select(ID_SCHEMA.names).slice(limit - 1).to_pylist()
            following = start.after(last["partition"], last["sequence"], last["row"])
        names = [*options.names(query.schema), *ID_SCHEMA.names]
        return ObservationPage(given.select(names), following, missing)

    async def _first(self, query: Query) -> tuple[PageStart, frozenset[int]]:
        """The snapshot of what is committed now; its scan looks at no path."""
        nothing, candidates = parse("false", query.schema), self._scans.candidates(query)
        end = await self._end_of(nothing, candidates)
        if not query.schema.is_keyed:
            return PageStart(end.frontier, end.gone), end.missing
        # The frontier is behind the copies of what was cleaned.
        gone, end = end.gone, await self._end_of(nothing, candidates)
        return PageStart(end.frontier, gone.meet(end.frontier)), end.missing

    async def _end_of(self, query: Query, partitions: frozenset[int]) -> ScanEnd:
        parts = self._scans.between(
            query,
            partitions=partitions,
            after=EMPTY_CURSOR,
            until=None,
            choice=Choice.STORED,
            at=EMPTY_CURSOR,
        )
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, ScanEnd):
                    return part
        raise AssertionError("a scan ends with its end")

    async def _read(self, query: Query, start: PageStart, *, rows: int) -> pa.Table:
        schema = query.schema.observation_schema
        found = [pa.schema([*schema, *ID_SCHEMA]).empty_table()]
        width, left = 1, rows
        while left > 0 and (remaining := start.remaining()):
            window = _window(remaining, width)
            try:
                labels, is_cut = await self._labels(query, window, start)
            except HistoryChanged as error:  # Or the window ends where a log jumps.
                await self._scans.check_history(query.schema.key, start.position, start.frontier)
                start, width = _past_jump(start, window, width, error)
                continue
            async with aclosing(self._rows_of(query, labels, start, left)) as tables:
                async for table in tables:
                    found.append(table)
                    left -= table.num_rows
            if is_cut:
                partition, sequence, row, count = (int(column[-1]) for column in _numbers(labels))
                start = start.after(partition, sequence, row + count - 1)
            else:
                last = max(window)
                start = start.after(last, window[last][1])
            width *= GROWTH
        return pa.concat_tables(found).slice(0, rows)

    async def _labels(
        self, query: Query, window: Mapping[int, tuple[int, int]], start: PageStart
    ) -> tuple[pa.Table, bool]:
        """The labels of a window in the order of ids; whether only the first ones are kept."""
        is_cut = False
        after = Cursor({partition: first for partition, (first, _) in window.items()})
        until = Cursor({partition: last for partition, (_, last) in window.items()})
        parts = self._scans.between(
            query,
            partitions=frozenset(window),
            after=after,
            until=until,
            choice=Choice.STORED,
            at=start.frontier,
        )
        held = [PARTS_SCHEMA.empty_table()]
        count = 0
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, ScanEnd):
                    _check_window(part, until)
                    continue
                held.append(_not_given(part, start))
                count += held[-1].num_rows
                if count > 2 * LABELS_HELD:
                    first = await self._run(count, _in_order, held)
                    held, count, is_cut = [first.slice(0, LABELS_HELD)], LABELS_HELD, True
        return await self._run(count, _in_order, held), is_cut

    async def _rows_of(self, query: Query, labels: pa.Table, start: PageStart, rows: int) -> Any:
        """The matching observations behind labels, with ids, until there are so many."""
        begun, end = _rows_before(labels, start), int(_numbers(labels)[3].sum(dtype=np.int64))
        together = ROWS_READ_MIN
        while begun < end and rows > 0:
            stop = min(end, begun + max(together, 2 * rows))
            work = labels.num_rows + stop - begun
            parts = await self._run(work, _single_rows, labels, begun, stop)
            task = ReadTask.of(query, parts)
            with translate_dropped_to_retry():
                async with aclosing(self._reading.read(task)) as tables:
                    async for table in tables:
                        rows -= table.num_rows
                        yield _with_ids(table, parts)
            begun, together = stop, min(GROWTH * together, ROWS_READ_MAX)

    async def _run(self, rows: int, function: Callable[..., pa.Table], *arguments: Any) -> pa.Table:
        """The result of a function that looks at some rows; in a thread if they are many."""
        if rows <= INLINE_ROWS:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)


def _window(remaining: Mapping[int, tuple[int, int]], width: int) -> dict[int, tuple[int, int]]:
    """The next `width` commits, in the order of partitions."""
    window: dict[int, tuple[int, int]] = {}
    for partition, (first, last) in remaining.items():
        if width == 0:
            break
        window[partition] = first, min(last, first + width)
        width -= window[partition][1] - first
    return window


def _past_jump(
    start: PageStart, window: Mapping[int, tuple[int, int]], width: int, error: HistoryChanged
) -> tuple[PageStart, int]:
    """Where and how wide the next window is, after one that ended where a log has no commits."""
    lost = lost_positions(error)[0]
    first, _ = window[lost.partition]
    if lost.common > first:  # The next window ends before the jump, the one after that behind it.
        earlier = (end - begun for p, (begun, end) in window.items() if p < lost.partition)
        return start, sum(earlier) + lost.common - first
    if lost.until <= first:
        raise error
    return replace(start, dropped=start.dropped.join({lost.partition: lost.until})), width


def _check_window(end: ScanEnd, until: Cursor) -> None:
    if end.missing:
        raise incomplete_answer(end.missing)
    ahead = sorted(p for p, sequence in until.items() if sequence > end.frontier[p])
    if ahead:
        raise InputError(
            f"expected commits of this cluster, got later ones of partitions {listed(ahead)}; "
            "begin with the first page",
            partitions=ahead[:NAMED_MAX],
        )
    lost = {p: min(s, until[p]) for p, s in end.gone.items() if p in until}
    if lost:
        raise DataExpired(
            "expected observations that are stored; some were removed of partitions "
            f"{listed(sorted(lost))} since the first page; begin with the first page",
            partitions=sorted(lost),
            until=[lost[partition] for partition in sorted(lost)],
        )


def _numbers(labels: pa.Table) -> tuple[npt.NDArray[Any], ...]:
    return tuple(labels.column(name).to_numpy() for name in PARTS_SCHEMA.names)


def _not_given(part: pa.Table, start: PageStart) -> pa.Table:
    """The labels of which earlier pages have not given all rows."""
    labels = part.select(PARTS_SCHEMA.names).cast(PARTS_SCHEMA)
    partition, sequence, row, rows = _numbers(labels)
    begun = (partition == start.partition) & (sequence == start.sequence)
    given = begun & (row.astype(np.int64) + rows <= start.row + 1)
    return labels.filter(pa.array(~given)) if given.any() else labels


def _in_order(tables: list[pa.Table]) -> pa.Table:
    labels = pa.concat_tables(tables)
    partition, sequence, row, _ = _numbers(labels)
    return labels.take(pa.array(np.lexsort((row, sequence, partition))))


def _rows_before(labels: pa.Table, start: PageStart) -> int:
    """The rows of labels in order that earlier pages have given: those of the commit begun."""
    partition, sequence, row, rows = _numbers(labels)
    begun = (partition == start.partition) & (sequence == start.sequence)
    before = np.clip(start.row + 1 - row.astype(np.int64), 0, rows)
    return int(before[begun].sum())


def _single_rows(labels: pa.Table, begun: int, stop: int) -> pa.Table:
    """The rows of labels from a number to another one, each a part of its own."""
    partition, sequence, row, rows = _numbers(labels)
    ends = np.cumsum(rows, dtype=np.int64)
    numbers = np.arange(begun, stop)
    at = np.searchsorted(ends, numbers, side="right")
    columns = [
        partition[at],
        sequence[at],
        (row[at] + numbers - (ends - rows)[at]).astype(np.int32),
        np.ones(len(at), dtype=np.int32),
        np.arange(len(at), dtype=np.int32),
    ]
    return pa.table([pa.array(column) for column in columns], schema=NUMBERED_PARTS_SCHEMA)


def _with_ids(table: pa.Table, parts: pa.Table) -> pa.Table:
    """Observations of single rows, with the ids of these in place of their numbers."""
    ids = parts.select(ID_SCHEMA.names).take(table.column(LABEL))
    plain = table.drop_columns([LABEL])
    columns = [*plain.columns, *ids.columns]
    return pa.table(columns, schema=pa.schema([*plain.schema, *ID_SCHEMA]))
