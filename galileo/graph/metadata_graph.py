"""The metadata graph: all paths of one dataset on a node (paper, III.B), in columns.

The tree of the paper is logical. Physically a path is a row; rows are in immutable sorted runs and
an unsorted memtable. One writer at a time appends to the memtable under a lock; a full memtable
becomes a run, and `maintain` compacts runs in tiers. A reader takes the current snapshot, a tuple
of runs and an immutable view of the memtable; readers and the writer do not block each other.

Features that are added to the dataset are null in the paths that are there. A reader's labels have
the features of the schema that its query is bound to, so one that has begun goes on with that.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import MatchBatch
from galileo.graph.arena import HEAP_BYTES
from galileo.graph.columns import (
    Commits,
    Paths,
    StringDictionary,
    columns_from_batch,
    paths_from_batch,
    to_labels,
)
from galileo.graph.commit_windows import first_matches
from galileo.graph.deletion_vectors import Deletion, DeletionVector, Part, deletions_of
from galileo.graph.deletion_vectors import apply as apply_deletions
from galileo.graph.description import Description, Descriptions
from galileo.graph.drill_down import children, default_order
from galileo.graph.explain import Explanation, build_explanation
from galileo.graph.filter_pipeline import chunks
from galileo.graph.groups import Groups, groups_of_paths
from galileo.graph.memtable import Memtable
from galileo.graph.row_ranges import Rows, count_rows, to_positions
from galileo.graph.run_scan import (
    BoundQuery,
    Check,
    CommitWindow,
    Coverage,
    RunScan,
    never_cancelled,
)
from galileo.graph.snapshot import Snapshot
from galileo.graph.sorted_runs import (
    BLOCK_PATHS,
    SortedRun,
    compact,
    compaction_start,
    seal,
    with_deletions,
)
from galileo.graph.standing_match import MatchPass, MatchQuery
from galileo.graph.summary import Summary, check_summary, rows_by_cell, summarise
from galileo.graph.versions import Choice, Marks, NewVersions, VersionArrays, Versions
from galileo.model.deletions import Stretches, deletes, observed
from galileo.model.grouping import Grouping
from galileo.model.schema import Schema
from galileo.query.columns import take_rows
from galileo.query.predicates import leaves
from galileo.query.query import Query

Counts: TypeAlias = npt.NDArray[np.integer[Any]]

MEMTABLE_PATHS_MAX = 65_536
"""Paths at which the memtable becomes a run."""
GROUPED_PATHS = 1 << 17
"""Paths that are grouped together: a megabyte of a column."""
_EVERY = 2**62
"""A sequence past every commit."""
VERSIONS_MIN = 65_536
"""Versions of a keyed dataset above which those that no run has any more are forgotten."""
RUNS_MAX = 64
"""Runs above which an insert compacts them itself, if `maintain` is not called."""


class MetadataGraph:
    """All paths of one dataset on one node.

    Args:
        schema: of the dataset.
        memtable_paths_max: paths at which the memtable becomes a run.
        block_paths: paths under one entry of a zone map.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        memtable_paths_max: int = MEMTABLE_PATHS_MAX,
        block_paths: int = BLOCK_PATHS,
        heap_bytes: int = HEAP_BYTES,
    ) -> None:
        self.schema = schema
        self._heap_bytes = heap_bytes
        self._block_paths = block_paths
        self._memtable_paths_max = memtable_paths_max
        self._texts = StringDictionary()
        self._descriptions = Descriptions(schema, self._texts)
        self._memtable = Memtable(schema)
        self._versions = Versions() if schema.is_keyed else None
        self._snapshot = Snapshot((), self._memtable.view(), versions=self._version_arrays())
        self._shed_up_to = EMPTY_CURSOR, EMPTY_CURSOR
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    def insert(self, batch: pa.RecordBatch, *, partition: int, sequence: int) -> None:
        """Add the paths of one commit; as `insert_many`."""
        self.insert_many(batch, Commits.of(partition, [sequence]), np.array([batch.num_rows]))

    def insert_many(
        self,
        batch: pa.RecordBatch,
        commits: Commits,
        counts: Counts,
        *,
        versions: NewVersions | None = None,
        marks: Mapping[int, Marks] | None = None,
    ) -> None:
        """Add the paths of some commits, all visible at once; thread-safe.

        Args:
            batch: of `schema.graph_schema`, the paths of one commit after those of another; copied.
                Those of a deletion (`galileo.model.deletions`) remove rows of paths that are there.
            commits: ascending within each partition.
            counts: paths of each commit.
            versions: of these paths, in a keyed dataset.
            marks: by partition what these versions supersede, and which of them do not count.

        Raises:
            InternalError: the batch has other columns.
        """
        deletions = list[Deletion]()
        if not self.schema.is_keyed and (kept := observed(batch)) is not None:
            of_path = np.repeat(np.arange(len(counts)), counts)
            if (mask := deletes(batch)) is not None:
                stretches = Stretches.from_paths(batch.filter(pa.array(mask)))
                deletions += deletions_of(stretches, of_path[mask], commits)
            batch = batch.filter(pa.array(kept))
            counts = np.bincount(of_path[kept], minlength=len(counts))
        schema, held = self.schema, np.flatnonzero(counts)
        if len(held) == 0 and not deletions:
            return
        columns = columns_from_batch(schema, batch)
        with self._writing:
            if schema is not self.schema:  # Features have been added meanwhile.
                columns = columns_from_batch(self.schema, batch)
            numbers = np.arange(len(held), dtype=np.int32) + np.int32(self._memtable.commits)
            commit = numbers.repeat(counts[held])
            paths = paths_from_batch(columns, batch, commit=commit, texts=self._texts)
            commits, reached = commits.take(held), self._snapshot.reached
            if self._versions is not None:
                assert versions is not None, "versions of a keyed dataset"
                commits = self._versions.append(commits, counts[held], versions)
                for partition, of_partition in (marks or {}).items():
                    self._versions.mark(partition, of_partition)
                last = dict(zip(commits.partition.tolist(), commits.sequence.tolist(), strict=True))
                reached = reached.join(last)
            self._memtable.append(paths, commits)
            runs = self._delete(deletions) if deletions else None
            is_full = len(self._memtable) >= self._memtable_paths_max
            self._publish(seal_memtable=is_full, reached=reached, runs=runs)
        if len(self._snapshot.runs) > RUNS_MAX:
            self.maintain()

    def _delete(self, deletions: Sequence[Deletion]) -> tuple[SortedRun, ...]:
        """Removes rows from the paths that are there; the runs with their new deletions."""
        runs, memtable = self._snapshot.runs, self._memtable
        every = (*runs, memtable.view())
        parts = [Part(run.paths, run.commits, run.deletions) for run in every]
        (*vectors, of_memtable), left = apply_deletions(parts, deletions)
        if of_memtable is not None:
            memtable.deletions = DeletionVector.joined(memtable.deletions, of_memtable)
        for part in left:
            position = len(memtable) + np.arange(len(part.paths))
            paths = replace(part.paths, commit=part.paths.commit + np.int32(memtable.commits))
            memtable.append(paths, part.commits)
            changed = DeletionVector(position, part.since, part.superseded)
            memtable.deletions = DeletionVector.joined(memtable.deletions, changed)
        return tuple(
            run
            if vector is None
            else replace(run, deletions=DeletionVector.joined(run.deletions, vector))
            for run, vector in zip(runs, vectors, strict=True)
        )

    def add_features(self, schema: Schema) -> None:
        """Take the schema of a dataset to which features were added; again is harmless.

        The cost does not depend on the number of paths, except for the blocks of zone maps. Waits
        for a running compaction.
        """
        with self._merging, self._writing:
            if self.schema.extends(schema):
                return
            features = schema.indexed[len(self.schema.indexed) :]
            self._publish(seal_memtable=len(self._memtable) > 0)
            self._memtable = Memtable(schema)
            self._snapshot = replace(
                self._snapshot,
                runs=tuple(run.with_features(features) for run in self._snapshot.runs),
                memtable=self._memtable.view(),
            )
            # Behind the snapshot: who reads the schema, and then the snapshot, finds its features.
            self._descriptions = Descriptions(schema, self._texts)
            self.schema = schema

    def _publish(
        self,
        *,
        seal_memtable: bool,
        reached: Cursor | None = None,
        runs: tuple[SortedRun, ...] | None = None,
    ) -> None:
        runs, view = self._snapshot.runs if runs is None else runs, self._memtable.view()
        if seal_memtable:
            runs = (
                *runs,
                seal(
                    view.paths,
                    view.commits,
                    deletions=view.deletions,
                    block_paths=self._block_paths,
                ),
            )
            self._memtable = Memtable(self.schema)
            view = self._memtable.view()
        self._snapshot = replace(
            self._snapshot,
            runs=runs,
            memtable=view,
            versions=self._version_arrays(),
            reached=self._snapshot.reached if reached is None else reached,
        )

    def _version_arrays(self) -> VersionArrays | None:
        return None if self._versions is None else self._versions.view()

    def maintain(self) -> bool:
        """Compact runs until each is large compared with the newer ones; call it in a thread.

        The newest run is not compacted, so that new paths are in a small run. Deleted commits are
        not written.

        Returns:
            Whether anything was rewritten. False at once if nothing is due, or another thread
            compacts.
        """
        if not self._merging.acquire(blocking=False):
            return False
        try:
            rewritten = self._drop_dead_rows()
            while (
                start := compaction_start([len(r) for r in self._snapshot.runs[:-1]])
            ) is not None:
                self._rewrite(slice(start, len(self._snapshot.runs) - 1))
                rewritten = True
            self._forget_versions()
            self._find_current()
            return rewritten
        finally:
            self._merging.release()

    def _drop_dead_rows(self) -> bool:
        """Rewrite runs with many deleted paths, once after each drop."""
        if (self._snapshot.dropped, self._snapshot.erased) == self._shed_up_to:
            return False
        if self._versions is not None or self._snapshot.erased:  # It is often in the memtable.
            with self._writing:
                self._publish(seal_memtable=len(self._memtable) > 0)
        snapshot = self._snapshot
        wasteful = [at for at, run in enumerate(snapshot.runs) if snapshot.needs_rewrite(run)]
        for at in reversed(wasteful):
            self._rewrite(slice(at, at + 1))
        self._shed_up_to = snapshot.dropped, snapshot.erased
        return bool(wasteful)

    def _rewrite(self, place: slice) -> None:
        """Replace some runs by one; inserts only append meanwhile, so indexes stay valid."""
        snapshot = self._snapshot
        members = snapshot.runs[place]
        held = [snapshot.live_commits(run) for run in members]
        erased = [snapshot.erased_rows(run) for run in members]
        compacted = compact(members, held=held, erased=erased, block_paths=self._block_paths)
        with self._writing:
            now = self._snapshot
            made: list[SortedRun] = []
            if compacted is not None:  # Of the members as they are now: some may have lost rows.
                run, order = compacted
                made = [snapshot.without_erased(with_deletions(run, now.runs[place], order))]
            self._snapshot = replace(
                now, runs=(*now.runs[: place.start], *made, *now.runs[place.stop :])
            )

    def _find_current(self) -> None:
        """Has runs of a keyed dataset know their current paths, where most are superseded."""
        if self._versions is None:
            return
        snapshot = self._snapshot
        current = [snapshot.current_of(run) for run in snapshot.runs]
        with self._writing:
            now = self._snapshot
            runs = [
                run if known is None else replace(run, current=known)
                for run, known in zip(now.runs, current, strict=False)
            ]
            self._snapshot = replace(now, runs=(*runs, *now.runs[len(runs) :]))

    def _forget_versions(self) -> None:
        """Frees the memory of versions that no run has any more, once it is most of all."""
        if self._versions is None or len(self._versions) < VERSIONS_MIN:
            return
        if 2 * sum(map(len, self._snapshot.parts)) > len(self._versions):
            return
        with self._writing:
            self._publish(seal_memtable=len(self._memtable) > 0)
            runs = self._snapshot.runs
            self._versions, commits = self._versions.moved([run.commits for run in runs])
            moved = zip(runs, commits, strict=True)
            runs = tuple(replace(run, commits=placed) for run, placed in moved)
            self._snapshot = replace(self._snapshot, runs=runs, versions=self._version_arrays())

    def drop_before(self, partition: int, sequence: int) -> None:
        """Delete the commits of a partition before a sequence, for retention.

        Later scans, counts and drill-downs exclude them, also if such commits are inserted later.
        `maintain` frees their memory.

        Args:
            partition: of the commits.
            sequence: of the first commit that stays; it never moves back.
        """
        with self._writing:
            now = self._snapshot
            dropped = now.dropped.join({partition: max(sequence - 1, 0)})
            self._snapshot = replace(now, dropped=dropped)

    def erase(self, partition: int, until: int) -> None:
        """Leave out what deletions up to a commit have removed, whatever cursor is asked about.

        Readers that follow ask no more what changed before that commit. `maintain` frees memory.
        """
        with self._writing:
            now = self._snapshot
            self._snapshot = replace(now, erased=now.erased.join({partition: until}))

    def remove(self, partition: int) -> None:
        """Delete all commits of a partition and free their memory.

        Running scans still see them. The partition may be inserted again, with any commits. Takes
        as long as compacting all runs; call it in a thread.
        """
        with self._merging:
            with self._writing:
                dropped = self._snapshot.dropped.join({partition: _EVERY})
                self._snapshot = replace(self._snapshot, dropped=dropped)
                self._publish(seal_memtable=len(self._memtable) > 0)
            for at in reversed(range(len(self._snapshot.runs))):
                run = self._snapshot.runs[at]
                if self._snapshot.live_commits(run) is not None:
                    self._rewrite(slice(at, at + 1))
            with self._writing:
                if self._versions is not None:
                    self._versions.remove(partition)
                now = self._snapshot
                dropped, reached, erased = (
                    Cursor({p: last for p, last in cursor.items() if p != partition})
                    for cursor in (now.dropped, now.reached, now.erased)
                )
                self._snapshot = replace(now, dropped=dropped, reached=reached, erased=erased)

    def scan(
        self,
        query: Query,
        *,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
    ) -> pa.Table:
        """The labels of all matching paths, in no particular order.

        Args:
            query: of this dataset.
            after: commits up to here are excluded.
            until: commits past this are excluded, and partitions that it does not name; None: no
                bound.
            partitions: the only ones included; None: all.

        Returns:
            A table of the `label_schema` of the query's schema, from one snapshot of the graph.
        """
        tasks = self._tasks(query, CommitWindow(after, until, partitions))
        return self._table(tasks, query.schema.label_schema)

    def _tasks(
        self, query: Query, window: CommitWindow, *, snapshot: Snapshot | None = None
    ) -> list[RunScan]:
        """The scans of the runs of one snapshot; None: the current one."""
        return list(self._plans(query, window, snapshot=snapshot or self._snapshot))

    def _plans(
        self, query: Query, window: CommitWindow, *, snapshot: Snapshot
    ) -> Iterator[RunScan]:
        """`_tasks`, one run at a time."""
        search = BoundQuery.of(query, self._texts)
        live = replace(window, after=snapshot.since(window.after))
        for run in snapshot.parts:
            if snapshot.has_versions(run) or not window.is_stored:
                inside, counting = snapshot.in_window(run, window)
                if inside.any():
                    held = None if inside.all() else inside
                    yield RunScan.of(run, search, commits=held, versions=counting)
                continue
            coverage = live.coverage(run)
            if coverage is not Coverage.NONE:
                held = None if coverage is Coverage.ALL else live.holds(run.commits)
                yield RunScan.of(run, search, commits=held)

    def scan_pieces(
        self,
        query: Query,
        *,
        labels_max: int,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
        choice: Choice = Choice.CURRENT,
        at: Cursor | None = None,
    ) -> Iterator[pa.RecordBatch | None]:
        """The labels of `scan` a piece at a time, all from one snapshot.

        It holds the snapshot, one piece, and eight bytes for each path of one run that was not
        pruned. Matches of several runs share a piece. After each chunk of paths without a full
        piece it yields None, so that its caller can stop.

        Args:
            query: of this dataset.
            labels_max: most labels of a piece.
            after: as in `scan`.
            until: as in `scan`.
            partitions: as in `scan`.
            choice: of the versions of a keyed dataset, or of what deletions have changed.
            at: for the choice.

        Returns:
            Non-empty batches of the `label_schema` of the query's schema, and None.
        """
        window = CommitWindow(after, until, partitions, choice, at)
        plans = self._plans(query, window, snapshot=self._snapshot)
        matches = (
            None if rows is None else (task.run, rows)
            for task in plans
            for rows in task.pieces(labels_max)
        )
        return self._pieces(matches, labels_max, query.schema.label_schema)

    def scan_first(
        self,
        query: Query,
        *,
        labels_max: int,
        piece_labels_max: int,
        after: Cursor,
        until: Cursor,
    ) -> Generator[pa.RecordBatch | None, None, Cursor]:
        """The labels of the first commits of a range, a piece at a time, all from one snapshot.

        It looks at the commits that it needs, and makes no other labels; see
        `galileo.graph.commit_windows`. Besides what `scan_pieces` holds it holds eight bytes for
        each match.

        Args:
            query: of this dataset.
            labels_max: most labels, at least 1; one commit may have more.
            piece_labels_max: most labels of a piece.
            after: commits up to here are excluded.
            until: the end of the range; partitions that it does not name are excluded.

        Yields:
            As `scan_pieces`.

        Returns:
            The commits up to which the labels are complete.
        """
        snapshot = self._snapshot
        if snapshot.versions is None:  # Else copies count since deleted commits.
            after = snapshot.since(after)
        found, reached = yield from first_matches(
            snapshot,
            lambda window: self._plans(query, window, snapshot=snapshot),
            window=CommitWindow(after, until, at=until),
            until=until,
            labels_max=labels_max,
        )
        split = ((run, part) for run, rows in found for part in chunks(rows, piece_labels_max))
        yield from self._pieces(split, piece_labels_max, query.schema.label_schema)
        return reached

    def _pieces(
        self,
        matches: Iterable[tuple[SortedRun, Rows] | None],
        labels_max: int,
        label_schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch | None]:
        """The labels of matches, at most `labels_max` at a time, each of which has no more."""
        pending: list[tuple[SortedRun, Rows]] = []
        count = 0
        for match in matches:
            if match is None:
                yield None
                continue
            rows = count_rows(match[1])
            if count + rows > labels_max:
                yield self._labels_of(pending, label_schema)
                pending, count = [], 0
            pending.append(match)
            count += rows
        if pending:
            yield self._labels_of(pending, label_schema)

    def match(self, match_query: MatchQuery) -> MatchBatch | None:
        """Match very many continuous queries in one pass over new paths.

        Returns:
            The matches from one snapshot, with the numbers of requests as items. None if there are
            more pairs than the request allows.
        """
        snapshot = self._snapshot
        work = MatchPass(match_query, snapshot, self._texts)
        for run in snapshot.parts:
            work.visit(run)
            if work.is_over:
                return None
        return work.matches()

    def _table(self, tasks: Sequence[RunScan], label_schema: pa.Schema) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        size = 0
        for task in tasks:
            for rows in task.portions():
                large = size > self._heap_bytes
                batches.append(self._labels(task.run, rows, label_schema, large=large))
                size += batches[-1].nbytes
        return pa.Table.from_batches(batches, schema=label_schema)

    def _labels_of(
        self, parts: Sequence[tuple[SortedRun, Rows]], label_schema: pa.Schema
    ) -> pa.RecordBatch:
        """The labels of rows of some runs; few rows of many runs are converted together."""
        if len(parts) == 1:
            return self._labels(*parts[0], label_schema)
        taken = [run.paths.take(rows) for run, rows in parts]
        commits = [
            (run.commits, paths.commit) for (run, _), paths in zip(parts, taken, strict=True)
        ]
        of_path = Commits(
            np.concatenate([each.partition.take(numbers) for each, numbers in commits]),
            np.concatenate([each.sequence.take(numbers) for each, numbers in commits]),
        )
        paths = Paths.concat(taken)
        paths = replace(paths, commit=np.arange(len(paths), dtype=np.int32))
        return to_labels(label_schema, paths, commits=of_path, texts=self._texts)

    def _labels(
        self, run: SortedRun, rows: Rows, label_schema: pa.Schema, *, large: bool = False
    ) -> pa.RecordBatch:
        large = large and not isinstance(rows, slice)
        paths = run.paths.gather(to_positions(rows)) if large else run.paths.take(rows)
        return to_labels(label_schema, paths, commits=run.commits, texts=self._texts, large=large)

    def explain(
        self,
        query: Query,
        *,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
        check: Check = never_cancelled,
    ) -> Explanation:
        """Execute a scan and report its work; see `Explanation`.

        `check` is called between portions of work and raises to cancel it, here as below.
        """
        snapshot, window = self._snapshot, CommitWindow(after, until, partitions)
        return build_explanation(
            snapshot.parts,
            lambda: self._tasks(query, window, snapshot=snapshot),
            lambda run, rows: self._labels(run, rows, query.schema.label_schema),
            check=check,
        )

    def group_pieces(
        self,
        query: Query,
        grouping: Grouping,
        *,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
    ) -> Iterator[Groups | pa.RecordBatch | None]:
        """The groups of the matching paths a piece at a time, not merged, from one snapshot.

        Where a region or an interval cuts through blocks, paths do not say which of their
        observations match; their labels come in place of groups.

        Args:
            query: of this dataset.
            grouping: that `is_in_graph`.
            after: as in `scan`.
            until: as in `scan`.
            partitions: as in `scan`.

        Returns:
            Groups whose texts are of `texts`, batches of the `label_schema` of the query's schema,
            and None.
        """
        label_schema = query.schema.label_schema
        window = CommitWindow(after, until, partitions)
        is_certain = all(leaf.features for leaf in leaves(query.tree))
        read = {*grouping.features, *(() if is_certain else query.features)}
        for task in self._plans(query, window, snapshot=self._snapshot):
            for rows in task.pieces(GROUPED_PATHS):
                if rows is None:
                    yield None
                    continue
                if not is_certain:
                    columns = task.run.paths.columns.only(read).take(rows)
                    certain = query.must_match_paths(self._texts.bind(columns))
                    if not certain.all():
                        yield self._labels(task.run, to_positions(rows)[~certain], label_schema)
                        rows = to_positions(rows)[certain]
                        if not len(rows):
                            continue
                columns = task.run.paths.columns.only(read).take(rows)
                counts = take_rows(task.run.paths.rows, rows)
                yield groups_of_paths(columns, counts, grouping, self.schema)

    @property
    def dropped(self) -> Cursor:
        """The commits that a scan leaves out from now on."""
        return self._snapshot.dropped

    @property
    def erased(self) -> Cursor:
        """The deletions up to which a scan leaves out what they have removed."""
        return self._snapshot.erased

    @property
    def texts(self) -> StringDictionary:
        """The texts of all paths."""
        return self._texts

    def rows_by_cell(
        self,
        query: Query,
        *,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
        check: Check = never_cancelled,
    ) -> pa.Table:
        """Count the observations of matching paths by cell; see `summary.rows_by_cell`."""
        window = CommitWindow(after, until, partitions)
        return rows_by_cell(self._tasks(query, window), check=check)

    def summarise(
        self,
        query: Query,
        feature: str,
        *,
        bins: int | Sequence[float] | None = None,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: frozenset[int] | None = None,
        check: Check = never_cancelled,
    ) -> Summary:
        """Statistics of an indexed feature over the matching paths; see `Summary`.

        Args:
            query: of this dataset.
            feature: of type float, int or bool; a bool counts as 0 and 1.
            bins: of a histogram: so many of equal width between the extremes, or their edges,
                ascending. None: no histogram.
            after: as in `scan`.
            until: as in `scan`.
            partitions: as in `scan`.
            check: called between portions of work; raises to cancel it.

        Raises:
            InputError: the feature is not indexed or a text, the bins are invalid, or a number of
                bins is given and a value is infinite.
        """
        numeric = check_summary(self.schema, feature, bins)
        tasks = self._tasks(query, CommitWindow(after, until, partitions))
        return summarise(tasks, numeric, bins=bins, check=check)

    def describe(
        self, partitions: frozenset[int], *, check: Check = never_cancelled
    ) -> Description:
        """The contents of some partitions; see `galileo.graph.description` for the cost."""
        return self._descriptions.describe(self._snapshot, partitions, check=check)

    def children(
        self,
        prefix: Sequence[Any] = (),
        *,
        order: Sequence[str] | None = None,
        partitions: frozenset[int] | None = None,
        check: Check = never_cancelled,
    ) -> pa.Table:
        """The children of a vertex; see `galileo.graph.drill_down.children`.

        Of all partitions, or of some.
        """
        schema, snapshot = self.schema, self._snapshot
        parts = snapshot.parts_of(partitions)
        levels = default_order(schema) if order is None else order
        return children(schema, parts, prefix=prefix, order=levels, texts=self._texts, check=check)

    def count(self) -> int:
        """Number of paths."""
        return self._snapshot.count()

    @property
    def has_versions(self) -> bool:
        """Whether some paths may not count: the dataset has a key, or something is deleted."""
        snapshot = self._snapshot
        return bool(snapshot.erased) or any(
            map(snapshot.has_versions, (*snapshot.runs, snapshot.memtable))
        )

    @property
    def runs(self) -> int:
        """Number of sealed runs."""
        return len(self._snapshot.runs)

    def memory_bytes(self) -> int:
        """Size of runs with their zone maps, memtable, texts and versions."""
        runs = sum(run.nbytes for run in self._snapshot.runs)
        versions = 0 if self._versions is None else self._versions.nbytes
        return runs + self._memtable.nbytes + self._texts.nbytes + versions
