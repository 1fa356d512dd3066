"""Scans of the first commits of a range, for an answer that has room for some labels only.

A run is sorted by place: the paths of its oldest commits lie anywhere in it. To stop early, a scan
goes through the range in windows of whole commits, in turns from all partitions, each from its
oldest on. Every run knows how many paths each commit has, and a sample of its rows tells how many
of them match, so that most often the first window has the labels that are wanted. A query that
matches few rows of the range has one window, and costs no more than a scan without a bound.

Matches are held as positions of rows, eight bytes each, until it is certain which commits are in
the answer; only these become labels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.cursor import Cursor
from galileo.graph.columns import Commits
from galileo.graph.row_ranges import Rows, concat_rows, count_rows, select_rows
from galileo.graph.run_scan import CommitWindow, Coverage, RunScan
from galileo.graph.snapshot import Snapshot
from galileo.graph.sorted_runs import SortedRun
from galileo.labels import CommitSizes
from galileo.query.columns import take_rows

WINDOW_PATHS_MIN = 1 << 17
"""Paths of a window at least: about as many as are tested in one step of a scan."""
WINDOW_PATHS_MAX = 1 << 22
"""Paths of a window, unless few of the range match: 32 MiB of positions, if all in it match."""

_EVERY = 2**62

Match: TypeAlias = tuple[SortedRun, Rows]
Plan: TypeAlias = Callable[[CommitWindow], Iterable[RunScan]]


def first_matches(
    snapshot: Snapshot, plan: Plan, *, window: CommitWindow, until: Cursor, labels_max: int
) -> Generator[None, None, tuple[list[Match], Cursor]]:
    """The matches of the first commits of a window, up to a number of labels.

    They are those of `galileo.labels.first_commits`, applied to the labels of all windows that were
    scanned.

    Args:
        snapshot: of the graph.
        plan: the scans of the runs of the snapshot for some of the commits.
        window: all commits of the range.
        until: the end of the range.
        labels_max: at least 1; one commit may have more.

    Yields:
        None, so that the caller can stop.

    Returns:
        Rows that match, and the commits up to which they are complete.
    """
    expected = sum(task.estimate() for task in plan(window))
    yield None
    if expected <= max(labels_max, WINDOW_PATHS_MIN):
        found, end = (yield from _matches(plan(window))), until
    else:
        left = _path_counts(snapshot.parts, window)
        paths = _window_paths(int(left.sizes.sum()), matches=expected, wanted=labels_max)
        scanned, begin = 0, window.after
        found = []
        while True:
            end = left.cut(reached=until, labels_max=paths)
            found += yield from _matches(plan(replace(window, after=begin, until=end)))
            begin, left = end, left.past(end)
            wanted = labels_max - _count(found)
            if wanted <= 0 or not len(left):
                break
            scanned += paths
            paths = _window_paths(scanned, matches=labels_max - wanted, wanted=wanted)
    if _count(found) <= labels_max:
        return found, end
    found = _by_run(found)
    cut = _label_counts(snapshot, found).cut(reached=end, labels_max=labels_max)
    yield None
    return [(run, _until(snapshot, run, rows, cut)) for run, rows in found], cut


def _matches(tasks: Iterable[RunScan]) -> Generator[None, None, list[Match]]:
    found: list[Match] = []
    for task in tasks:
        for rows in task.pieces(_EVERY):
            if rows is not None:
                found.append((task.run, rows))
            yield None
    return found


def _count(found: Sequence[Match]) -> int:
    return sum(count_rows(rows) for _, rows in found)


def _window_paths(scanned: int, *, matches: int, wanted: int) -> int:
    """Paths that have twice the labels wanted, if they match as often as those scanned."""
    expected = scanned * wanted // max(matches, 1)
    return min(max(2 * expected, WINDOW_PATHS_MIN), max(wanted, WINDOW_PATHS_MAX))


def _path_counts(parts: Sequence[SortedRun], window: CommitWindow) -> CommitSizes:
    """How many paths each commit of a window has."""
    held = [
        (run, window.holds(run.commits))
        for run in parts
        if window.coverage(run) is not Coverage.NONE
    ]
    return _sizes([(run.commits.take(mask), run.commit_paths()[mask]) for run, mask in held])


def _label_counts(snapshot: Snapshot, found: Sequence[Match]) -> CommitSizes:
    """How many labels each commit has; in a keyed dataset, since each commit."""
    if snapshot.versions is not None:
        sources = [snapshot.sources(run, rows) for run, rows in found]
        return _sizes([(each, np.ones(len(each), dtype=np.int64)) for each in sources])
    counts = [
        (run.commits, np.bincount(take_rows(run.paths.commit, rows), minlength=len(run.commits)))
        for run, rows in found
    ]
    return _sizes([(commits.take(count > 0), count[count > 0]) for commits, count in counts])


def _sizes(parts: Sequence[tuple[Commits, npt.NDArray[np.int64]]]) -> CommitSizes:
    return CommitSizes.of(
        np.concatenate([np.empty(0, dtype=np.int32), *(c.partition for c, _ in parts)]),
        np.concatenate([np.empty(0, dtype=np.int64), *(c.sequence for c, _ in parts)]),
        np.concatenate([np.empty(0, dtype=np.int64), *(sizes for _, sizes in parts)]),
    )


def _by_run(found: Sequence[Match]) -> list[Match]:
    """The same matches, those of a run together."""
    runs: dict[int, tuple[SortedRun, list[Rows]]] = {}
    for run, rows in found:
        runs.setdefault(id(run), (run, []))[1].append(rows)
    return [(run, concat_rows(pieces)) for run, pieces in runs.values()]


def _until(snapshot: Snapshot, run: SortedRun, rows: Rows, cut: Cursor) -> Rows:
    """The rows of commits up to a cursor; in a keyed dataset, since commits up to there."""
    if snapshot.versions is not None:
        sources = snapshot.sources(run, rows)
        return select_rows(rows, ~cut.past(sources.partition, sources.sequence))
    kept = ~cut.past(run.commits.partition, run.commits.sequence)
    return rows if kept.all() else select_rows(rows, kept.take(take_rows(run.paths.commit, rows)))
