from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import Cancelled
from galileo.graph.columns import (
    Commits,
    Paths,
    StringDictionary,
    columns_from_batch,
    paths_from_batch,
)
from galileo.graph.filter_pipeline import PredicateFilter
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.row_ranges import RowRanges, count_rows
from galileo.graph.run_scan import BoundQuery, CommitWindow, Coverage, RunScan
from galileo.graph.sorted_runs import SortedRun, seal
from galileo.query.query import parse

CURSORS = st.builds(
    Cursor, st.fixed_dictionaries({p: st.integers(0, 6) for p in (0, 1)} | {2: st.just(9)})
)
WINDOWS = st.builds(
    CommitWindow, CURSORS, st.none() | CURSORS, st.none() | st.frozensets(st.integers(0, 2))
)
PLACES = st.sets(st.tuples(st.integers(0, 1), st.integers(1, 6)), min_size=1, max_size=6)
STRETCHES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=8)


def _run(world, places, *, texts, sealed):
    """A run with one commit of some paths at each (partition, sequence)."""
    parts = []
    for number, (partition, sequence) in enumerate(places):
        batch = world.batch(10 * partition + sequence, 5)
        parts.append(
            paths_from_batch(
                columns_from_batch(world.schema, batch), batch, commit=number, texts=texts
            )
        )
    commits = Commits(
        np.array([p for p, _ in places], dtype=np.int32),
        np.array([s for _, s in places], dtype=np.int64),
    )
    paths = Paths.concat(parts)
    return seal(paths, commits, block_paths=4) if sealed else SortedRun(paths, commits)


def _holds(window, partition, sequence):
    named = window.partitions is None or partition in window.partitions
    begun = sequence > window.after[partition]
    return named and begun and (window.until is None or sequence <= window.until[partition])


@given(places=PLACES, window=WINDOWS, sealed=st.booleans())
@examples(400)
def test_window_coverage_random_commits_equals_test_of_each(world, places, window, sealed):
    run = _run(world, sorted(places), texts=StringDictionary(), sealed=sealed)
    held = [_holds(window, *place) for place in sorted(places)]
    assert window.holds(run.commits).tolist() == held
    coverage = window.coverage(run)
    if all(held):
        assert coverage is Coverage.ALL
    elif any(held) or not sealed:
        assert coverage is (Coverage.SOME if any(held) else Coverage.NONE)
    else:
        assert coverage is not Coverage.ALL


@given(
    sequences=st.sets(st.integers(1, 9), min_size=1),
    after=st.integers(0, 9),
    more=st.integers(0, 1000),
)
def test_window_coverage_run_outside_is_none(world, sequences, after, more):
    run = _run(world, [(0, s) for s in sorted(sequences)], texts=StringDictionary(), sealed=True)
    beyond = CommitWindow(Cursor({0: max(sequences) + more}))
    before = CommitWindow(until=Cursor({0: min(sequences) - 1}))
    assert beyond.coverage(run) is before.coverage(run) is Coverage.NONE
    if after < max(sequences):
        assert CommitWindow(Cursor({0: after})).coverage(run) is not Coverage.NONE


def _stretches(pieces):
    """Sorted, disjoint stretches of gaps and lengths, and the rows in them."""
    start, stop, at = [], [], 0
    for gap, length in pieces:
        start.append(at + gap)
        at += gap + length
        stop.append(at)
    rows = {row for a, b in zip(start, stop, strict=True) for row in range(a, b)}
    return RowRanges(np.array(start, dtype=np.intp), np.array(stop, dtype=np.intp)), rows


@given(STRETCHES, STRETCHES)
def test_stretches_intersection_random_equals_sets(one, other):
    (mine, my_rows), (theirs, their_rows) = _stretches(one), _stretches(other)
    both = mine.intersection(theirs)
    rows = [row for a, b in zip(both.start, both.stop, strict=True) for row in range(a, b)]
    assert rows == sorted(my_rows & their_rows)


@given(STRETCHES)
def test_stretches_rows_random_is_close_hull(pieces):
    stretches, expected = _stretches(pieces)
    found = np.arange(1000)[stretches.rows()]
    assert expected <= set(found.tolist())
    assert len(found) <= 2 * len(expected)


@pytest.mark.parametrize("text", ["geohash LIKE '9xj%'", "temperature > 400", "gusts = 3"])
def test_run_scan_selective_query_evaluates_candidates_only(world, text, monkeypatch):
    batch, texts = world.batch(3, 2000), StringDictionary()
    paths = paths_from_batch(columns_from_batch(world.schema, batch), batch, commit=0, texts=texts)
    commits = Commits(np.array([0], dtype=np.int32), np.array([1], dtype=np.int64))
    run = seal(paths, commits, block_paths=50)
    query, evaluated = parse(text, world.schema), []
    plain = PredicateFilter.mask
    monkeypatch.setattr(
        PredicateFilter, "mask", lambda c, p, rows: evaluated.append(rows) or plain(c, p, rows)
    )
    found = RunScan.of(run, BoundQuery.of(query, texts), commits=None).matches()
    if text.startswith("geohash"):
        assert [count_rows(rows) for rows in evaluated] == [len(found)]
        assert len(found) > 100
    elif text.startswith("temperature"):
        assert evaluated == []
    else:
        assert [count_rows(rows) for rows in evaluated] == [2000]


WORK = {
    "explain": lambda graph, everything, check: graph.explain(everything, check=check),
    "summarise": lambda graph, everything, check: graph.summarise(everything, "gusts", check=check),
    "children": lambda graph, _, check: graph.children(order=["gusts"], check=check),
    "rows_by_cell": lambda graph, everything, check: graph.rows_by_cell(everything, check=check),
}


@pytest.mark.parametrize("name", WORK)
def test_graph_work_check_raises_stops_work(world: Any, name: str) -> None:
    """The check is called for each run at least, and what it raises ends the work there."""
    graph, everything = MetadataGraph(world.schema, memtable_paths_max=50), parse("", world.schema)
    for number in range(6):
        graph.insert(world.batch(number, 60), partition=0, sequence=number + 1)
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Cancelled("enough")

    stop_at = 0
    WORK[name](graph, everything, counted)
    assert calls >= 6
    calls, stop_at = 0, 3
    with pytest.raises(Cancelled):
        WORK[name](graph, everything, counted)
    assert calls == 3
