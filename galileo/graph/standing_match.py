"""Matches very many continuous queries against the new paths of a graph in one pass.

A request is a query and a cursor past which its matches are requested. Many requests share the
query or the cursor: cursors are rows of a matrix, so that one comparison serves all pairs.

The paths of each run past the oldest cursor go through the index of the queries, a portion at a
time; the cursor of each request then selects its pairs. If few requests concern a large run, each
scans it separately, since zone maps and sorting then save more than a shared pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import within
from galileo.cursor import Cursor
from galileo.cycle import NOT_REQUESTED, MatchBatch
from galileo.graph.columns import StringDictionary, to_labels
from galileo.graph.filter_pipeline import PORTION_PATHS, chunks
from galileo.graph.row_ranges import Positions, Rows, count_rows, to_positions
from galileo.graph.run_scan import BoundQuery, CommitWindow, Coverage, RunScan
from galileo.graph.snapshot import Snapshot
from galileo.graph.sorted_runs import SortedRun
from galileo.query.columns import Columns, Mask, TextColumn, take_rows
from galileo.query.index import CandidatePairs, StandingQueries
from galileo.query.index.prefixes import Places, Slots
from galileo.query.query import Query

FEW_PATHS = 3_000
"""New paths of a run per request; above it each request scans separately."""
SPARSE = 16
"""Distinct rows are found by sorting if they are fewer than one in so many."""


Sequences: TypeAlias = npt.NDArray[np.int64]
Partitions: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class MatchHits:
    """Pairs of a request and a matching row.

    Attributes:
        requests: number of the request, shape (k,).
        rows: shape (k,).
    """

    requests: npt.NDArray[np.int32]
    rows: Places

    def __len__(self) -> int:
        return len(self.requests)

    @classmethod
    def concat(cls, parts: Sequence[MatchHits]) -> MatchHits:
        requests = [np.empty(0, dtype=np.int32), *(part.requests for part in parts)]
        rows = [np.empty(0, dtype=np.intp), *(part.rows for part in parts)]
        return cls(np.concatenate(requests), np.concatenate(rows))


@dataclass(frozen=True, eq=False)
class MatchRequests:
    """n requests.

    Attributes:
        slots: of the query of each, shape (n,).
        cursors: row of `after` of each, shape (n,).
        partitions: requested ones, sorted, shape (p,).
        after: for each cursor and partition the last sequence that is not requested, or
            `NOT_REQUESTED`; shape (c, p).
    """

    slots: Slots
    cursors: npt.NDArray[np.int32]
    partitions: Partitions
    after: Sequences

    def __len__(self) -> int:
        return len(self.slots)

    def least_sequences(self) -> Sequences:
        """For each partition the least sequence after which commits are requested."""
        used = np.unique(self.cursors)
        if len(used) == 0:
            return np.full(len(self.partitions), NOT_REQUESTED, dtype=np.int64)
        least: Sequences = self.after[used].min(axis=0)
        return least

    def select(self, chosen: npt.NDArray[np.int32]) -> MatchRequests:
        """Some of the requests, by number."""
        return MatchRequests(self.slots[chosen], self.cursors[chosen], self.partitions, self.after)

    def resolve(
        self, pairs: CandidatePairs, *, partition: Partitions, sequence: Sequences
    ) -> MatchHits:
        """The requests to which the pairs belong.

        Args:
            pairs: of rows and of requested slots.
            partition: of every row.
            sequence: of every row.
        """
        asks, chosen = self._of_slots(pairs.slots)
        rows = pairs.rows if chosen is None else pairs.rows[chosen]
        column, known = self._columns(partition)
        at = column[rows]
        new = sequence[rows] > self.after[self.cursors[asks], at]
        if not known.all():
            new &= known[rows]
        if new.all():
            return MatchHits(asks, rows)
        return MatchHits(asks[new], rows[new])

    def _columns(self, partition: Partitions) -> tuple[Places, Mask]:
        """The column of each row's partition, and whether there is one."""
        at = np.minimum(np.searchsorted(self.partitions, partition), len(self.partitions) - 1)
        known: Mask = self.partitions[at] == partition
        return at, known

    @cached_property
    def _by_slot(self) -> tuple[npt.NDArray[np.int32], Places, Places]:
        """The requests in the order of slots; for each slot the first position and the count."""
        counts = np.bincount(self.slots)
        return np.argsort(self.slots, kind="stable").astype(np.int32), _starts(counts), counts

    def _of_slots(self, slots: Slots) -> tuple[npt.NDArray[np.int32], Places | None]:
        """The requests of each slot, and which of `slots` each belongs to; None: one of each."""
        order, first, counts = self._by_slot
        many = counts[slots]
        if (many == 1).all():
            return order[first[slots]], None
        chosen = np.repeat(np.arange(len(slots)), many)
        return order[np.repeat(first[slots], many) + within(many)], chosen


@dataclass(frozen=True, slots=True, eq=False)
class MatchQuery:
    """A match request to a graph.

    Attributes:
        standing: the index of the queries.
        requests: the requests.
        until: the last commit of each partition.
        query_of: the query of a request, by number.
        label_schema: of the matches.
        pairs_max: above so many pairs there is no answer; None: no bound.
    """

    standing: StandingQueries
    requests: MatchRequests
    until: Cursor
    query_of: Callable[[int], Query]
    label_schema: pa.Schema
    pairs_max: int | None = None


@dataclass(slots=True, eq=False)
class MatchPass:
    """One pass over the runs of a graph; `matches` has the results of `visit`.

    Args:
        match_query: the match request.
        snapshot: of the graph.
        texts: of the graph.
    """

    match_query: MatchQuery
    snapshot: Snapshot
    texts: StringDictionary
    features: tuple[str, ...] = ()
    _pairs: int = 0
    _rows: int = 0
    _items: list[npt.NDArray[np.int32]] = field(default_factory=list)
    _places: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    _labels: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.features = tuple(sorted(self.match_query.standing.features()))

    @property
    def is_over(self) -> bool:
        """Whether there are more pairs than `pairs_max`."""
        most = self.match_query.pairs_max
        return most is not None and self._pairs > most

    def matches(self) -> MatchBatch:
        if not self._items:
            return MatchBatch.none(self.match_query.label_schema)
        rows = pa.Table.from_batches(self._labels, schema=self.match_query.label_schema)
        return MatchBatch.of(np.concatenate(self._items), np.concatenate(self._places), rows)

    def visit(self, run: SortedRun) -> None:
        """Match the new paths of a run, while `pairs_max` is not exceeded."""
        requests = self.match_query.requests
        selected = _requests_for_run(run, requests)
        if len(selected) == 0:
            return
        window = self._window(requests.select(selected).least_sequences())
        rows = _new_rows(self.snapshot, run, window)
        hits: Iterator[MatchHits]
        if run.zone_map is not None and count_rows(rows) > FEW_PATHS * len(selected):
            hits = map(partial(self._match_one_by_one, run), selected.tolist())
        else:
            selected_requests = (
                requests if len(selected) == len(requests) else requests.select(selected)
            )
            hits = self._match_all(run, rows, selected_requests, numbers=selected)
        parts: list[MatchHits] = []
        for part in hits:
            parts.append(part)
            self._pairs += len(part)
            if self.is_over:
                return
        self._take(run, MatchHits.concat(parts))

    def _window(self, after: npt.NDArray[np.int64]) -> CommitWindow:
        """The commits past these sequences, one for each partition of the requests."""
        requested = after != NOT_REQUESTED
        partitions = self.match_query.requests.partitions[requested].tolist()
        cursor = Cursor(dict(zip(partitions, after[requested].tolist(), strict=True)))
        return CommitWindow(
            self.snapshot.since(cursor), self.match_query.until, frozenset(partitions)
        )

    def _match_one_by_one(self, run: SortedRun, number: int) -> MatchHits:
        requests, match_query = self.match_query.requests, self.match_query
        window = self._window(requests.after[requests.cursors[number]])
        if window.coverage(run) is Coverage.NONE:
            rows: Positions = np.empty(0, dtype=np.intp)
        else:
            search = BoundQuery.of(match_query.query_of(number), self.texts)
            inside, counting = self.snapshot.in_window(run, window)
            rows = RunScan.of(run, search, commits=inside, versions=counting).matches()
        return MatchHits(np.full(len(rows), number, dtype=np.int32), rows)

    def _match_all(
        self, run: SortedRun, rows: Rows, requests: MatchRequests, *, numbers: npt.NDArray[np.int32]
    ) -> Iterator[MatchHits]:
        """Match requests `numbers` together."""
        standing = self.match_query.standing
        for part in chunks(rows, PORTION_PATHS):
            commit = take_rows(run.paths.commit, part)
            partition, sequence = run.commits.partition[commit], run.commits.sequence[commit]
            place = to_positions(part)
            for pairs in standing.match(self._columns(run, part), slots=requests.slots):
                hits = requests.resolve(pairs, partition=partition, sequence=sequence)
                yield MatchHits(numbers[hits.requests], place[hits.rows])

    def _columns(self, run: SortedRun, rows: Rows) -> Columns:
        """The columns that the queries read, with texts."""
        columns = run.paths.columns
        features = {name: columns.features[name].take(rows) for name in self.features}
        bound = {
            name: self.texts.bound(column) if isinstance(column, TextColumn) else column
            for name, column in features.items()
        }
        return Columns(take_rows(columns.cell, rows), take_rows(columns.bucket, rows), bound)

    def _take(self, run: SortedRun, hits: MatchHits) -> None:
        if len(hits) == 0:
            return
        rows, places = _distinct(hits.rows)
        paths = run.paths.take(rows)
        labels = to_labels(
            self.match_query.label_schema, paths, commits=run.commits, texts=self.texts
        )
        self._items.append(hits.requests)
        self._places.append((places + self._rows).astype(np.uint32))
        self._labels.append(labels)
        self._rows += len(rows)


def _requests_for_run(run: SortedRun, requests: MatchRequests) -> npt.NDArray[np.int32]:
    """Numbers of the requests with unread commits in the run."""
    if run.spans is None or len(requests.partitions) == 0:
        return np.arange(len(requests), dtype=np.int32)
    at = np.minimum(
        np.searchsorted(requests.partitions, run.spans.partition), len(requests.partitions) - 1
    )
    known = requests.partitions[at] == run.spans.partition
    news = (run.spans.hi[known] > requests.after[:, at[known]]).any(axis=1)
    return np.flatnonzero(news[requests.cursors]).astype(np.int32)


def _new_rows(snapshot: Snapshot, run: SortedRun, window: CommitWindow) -> Rows:
    if snapshot.has_versions(run):
        inside, counting = snapshot.in_window(run, window)
        rows = np.flatnonzero(inside.take(run.paths.commit))
        return rows if counting is None else rows[counting.mask(run.paths, rows)]
    coverage = window.coverage(run)
    if coverage is Coverage.NONE:
        return slice(0, 0)
    if coverage is Coverage.ALL:
        return slice(0, len(run))
    held = window.holds(run.commits)
    return np.flatnonzero(held.take(run.paths.commit))


def _distinct(rows: Positions) -> tuple[Positions, Positions]:
    """The distinct rows, ascending, and the position of each row among them; not empty."""
    first, last = int(rows.min()), int(rows.max())
    if last - first > SPARSE * len(rows):
        distinct, places = np.unique(rows, return_inverse=True)
        return distinct, places
    there = np.zeros(last - first + 1, dtype=np.bool_)
    there[rows - first] = True
    return np.flatnonzero(there) + first, (np.cumsum(there) - 1)[rows - first]


def _starts(counts: Places) -> Places:
    starts: Places = np.cumsum(counts) - counts
    return starts
