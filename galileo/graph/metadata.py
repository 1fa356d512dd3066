"""The metadata graph: all paths of one dataset that a node holds (paper, III.B), in columns.

The paper's tree is logical. Physically a path is a row; rows live in immutable sorted runs and
an unsorted head. One writer at a time appends to the head under a lock; a full head becomes
a run, and `maintain` merges runs in tiers. A reader takes the current snapshot, a tuple of
runs and a view of the head that nobody changes, and neither waits nor makes wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from galileo.cursor import ORIGIN, Cursor
from galileo.graph.columns import Texts, columns_of, paths_of, to_labels
from galileo.graph.drill import children
from galileo.graph.head import Head
from galileo.graph.runs import BLOCK_PATHS, Run, merge, merge_start, seal
from galileo.graph.scan import Coverage, Search, Task, Window, delta
from galileo.graph.stretches import Rows
from galileo.model.schema import Schema
from galileo.query.columns import Mask
from galileo.query.query import Query

HEAD_PATHS_MAX = 65_536
"""Paths at which the head becomes a run."""
RUNS_MAX = 64
"""Runs above which an insert merges itself, where nobody calls `maintain`."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The graph at one moment: sealed runs, oldest first, and a view of the head."""

    runs: tuple[Run, ...]
    head: Run

    @property
    def parts(self) -> tuple[Run, ...]:
        """Runs and head, without an empty head."""
        return (*self.runs, self.head) if len(self.head) else self.runs


class MetadataGraph:
    """All paths of one dataset on one node.

    Args:
        schema: of the dataset.
        head_paths_max: paths at which the head becomes a run.
        block_paths: paths under one entry of a zone map.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        head_paths_max: int = HEAD_PATHS_MAX,
        block_paths: int = BLOCK_PATHS,
    ) -> None:
        self.schema = schema
        self._label_schema = schema.label_schema
        self._block_paths = block_paths
        self._head_paths_max = head_paths_max
        self._texts = Texts()
        self._head = Head(schema)
        self._snapshot = Snapshot((), self._head.view())
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    def insert(self, batch: pa.RecordBatch, *, partition: int, sequence: int) -> None:
        """Adds the paths of one commit, all visible at once; from any thread.

        Args:
            batch: of `schema.path_schema`; copied.
            partition: of the commit.
            sequence: of the commit.

        Raises:
            Bug: the batch has other columns.
        """
        columns = columns_of(self.schema, batch)
        if len(columns) == 0:
            return
        with self._writing:
            paths = paths_of(columns, batch, commit=self._head.commits, texts=self._texts)
            self._head.append(paths, partition=partition, sequence=sequence)
            self._publish(seal_head=len(self._head) >= self._head_paths_max)
        if len(self._snapshot.runs) > RUNS_MAX:
            self.maintain()

    def _publish(self, *, seal_head: bool) -> None:
        runs, view = self._snapshot.runs, self._head.view()
        if seal_head:
            runs = (*runs, seal(view.paths, view.commits, block_paths=self._block_paths))
            self._head = Head(self.schema)
            view = self._head.view()
        self._snapshot = Snapshot(runs, view)

    def maintain(self) -> bool:
        """Merges runs until each is large against the newer ones; call it in a thread.

        Returns:
            Whether anything was merged. False at once where nothing is to be done, or
            another thread is at it.
        """
        if not self._merging.acquire(blocking=False):
            return False
        try:
            merged = False
            while (start := merge_start([len(run) for run in self._snapshot.runs])) is not None:
                self._merge_from(start)
                merged = True
            return merged
        finally:
            self._merging.release()

    def _merge_from(self, start: int) -> None:
        """Inserts only append to the runs meanwhile, so positions keep their meaning."""
        members = self._snapshot.runs[start:]
        run = merge(self.schema, members, block_paths=self._block_paths)
        with self._writing:
            now = self._snapshot
            runs = (*now.runs[:start], run, *now.runs[start + len(members) :])
            self._snapshot = Snapshot(runs, now.head)

    def scan(
        self,
        query: Query,
        *,
        after: Cursor = ORIGIN,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
    ) -> pa.Table:
        """The labels of all paths that match, in no particular order.

        Args:
            query: of this dataset.
            after: commits up to here are left out.
            until: so are commits past this, and partitions that it does not name; None: none.
            partitions: the only ones looked at; None: all.

        Returns:
            A table of `schema.label_schema`; of one moment of the graph.
        """
        tasks = self._tasks(query, Window(after, until, partitions))
        return self._table(tasks)

    def _tasks(self, query: Query, window: Window) -> list[Task]:
        """What is left to be looked at, run by run, of one snapshot."""
        snapshot, search = self._snapshot, Search.of(query, self._texts)
        covered = [(run, window.coverage(run)) for run in snapshot.parts]
        return [
            Task.of(run, search, commits=None if c is Coverage.ALL else window.holds(run.commits))
            for run, c in covered
            if c is not Coverage.NONE
        ]

    def scan_many(
        self,
        queries: Sequence[tuple[Query, Cursor]],
        *,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
    ) -> list[pa.Table]:
        """The labels that match each query and lie past its cursor, in the order of `queries`.

        Sealed runs that lie past a cursor entirely are scanned as they are. Of the head and the
        run that a cursor falls into, what is new is gathered and sorted once, for all queries.

        Args:
            queries: each with the cursor up to which it is done.
            until: as in `scan`.
            partitions: as in `scan`.

        Returns:
            Tables of `schema.label_schema`, all of one moment of the graph.
        """
        tasks: list[list[Task]] = [[] for _ in queries]
        cursors: dict[Cursor, list[int]] = {}
        for number, (_, cursor) in enumerate(queries):
            cursors.setdefault(cursor, []).append(number)
        parts = self._snapshot.parts
        searches = [Search.of(query, self._texts) for query, _ in queries]
        windows = {cursor: Window(cursor, until, partitions) for cursor in cursors}
        for run in parts:
            for part, held, cursor in _shared(run, windows):
                for number in cursors[cursor]:
                    tasks[number].append(Task.of(part, searches[number], commits=held))
        return [self._table(each) for each in tasks]

    def _table(self, tasks: Sequence[Task]) -> pa.Table:
        batches = [self._labels(task.run, rows) for task in tasks for rows in task.portions()]
        return pa.Table.from_batches(batches, schema=self._label_schema)

    def _labels(self, run: Run, rows: Rows) -> pa.RecordBatch:
        paths = run.paths.take(rows)
        return to_labels(self._label_schema, paths, commits=run.commits, texts=self._texts)

    def children(self, prefix: Sequence[Any] = ()) -> pa.Table:
        """The vertices below one, for drilling down; see `galileo.graph.drill.children`."""
        parts = self._snapshot.parts
        return children(self.schema, parts, prefix=prefix, texts=self._texts)

    def count(self) -> int:
        """Number of paths."""
        return sum(len(run) for run in self._snapshot.parts)

    @property
    def runs(self) -> int:
        """Number of sealed runs."""
        return len(self._snapshot.runs)

    def memory_bytes(self) -> int:
        """What the graph holds: runs with their zone maps, head, texts."""
        runs = sum(run.nbytes for run in self._snapshot.runs)
        return runs + self._head.nbytes + self._texts.nbytes


def _shared(run: Run, windows: dict[Cursor, Window]) -> list[tuple[Run, Mask | None, Cursor]]:
    """What to scan of a run for each cursor that it has news for, and which commits count."""
    coverages = {cursor: window.coverage(run) for cursor, window in windows.items()}
    whole = [cursor for cursor, coverage in coverages.items() if coverage is Coverage.ALL]
    partly = [cursor for cursor, coverage in coverages.items() if coverage is Coverage.SOME]
    if run.zone_map is None:
        whole, partly = [], whole + partly
    plans: list[tuple[Run, Mask | None, Cursor]] = [(run, None, cursor) for cursor in whole]
    if partly:
        since = reduce(Cursor.meet, partly)
        window = windows[partly[0]]
        gathered = delta(run, Window(since, window.until, window.partitions).holds(run.commits))
        if gathered is not None:
            plans += [(gathered, windows[c].holds(gathered.commits), c) for c in partly]
    return plans
