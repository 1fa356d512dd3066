"""Bounded scans, against a scan of everything that is cut afterwards."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph import commit_windows, metadata_graph
from galileo.graph.filter_pipeline import FilterPipeline
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.row_ranges import count_rows
from galileo.labels import LabelSet, first_commits
from galileo.query.query import parse

PARTITIONS = range(3)
CURSORS = st.builds(Cursor, st.fixed_dictionaries({p: st.integers(0, 12) for p in PARTITIONS}))
SIZES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=20)


def filled(world, sizes, *, memtable_paths_max, compacts=True):
    graph, last = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max), Counter()
    for seed, (partition, size) in enumerate(sizes):
        last[partition] += 1
        batch = world.batch(seed, size)
        graph.insert(batch, partition=partition, sequence=last[partition])
        if compacts:
            graph.maintain()
    return graph


def scan_first(graph, query, **task):
    """The labels of a bounded scan, their frontier, and the sizes of its pieces."""
    pieces, scan = [], graph.scan_first(query, **task)
    while True:
        try:
            piece = next(scan)
        except StopIteration as end:
            table = pa.Table.from_batches(pieces, schema=query.schema.label_schema)
            return table, end.value, [piece.num_rows for piece in pieces]
        if piece is not None:
            pieces.append(piece)


def record_windows(monkeypatch):
    """The ends of all windows that bounded scans look at."""
    ends, plain = [], metadata_graph.first_matches

    def recorded(parts, plan, **options):
        def plan_recorded(window):
            ends.append(window.until)
            return plan(window)

        return plain(parts, plan_recorded, **options)

    monkeypatch.setattr(metadata_graph, "first_matches", recorded)
    return ends


@given(
    sizes=SIZES,
    memtable_paths_max=st.integers(1, 120),
    text=st.integers(0, 21),
    after=CURSORS,
    until=CURSORS,
    labels_max=st.integers(1, 60),
    piece_labels_max=st.integers(1, 50),
    window_paths=st.tuples(st.integers(1, 60), st.integers(1, 200)),
    dropped=st.integers(0, 3),
)
@examples(150)
def test_scan_first_random_range_equals_scan_cut_afterwards(
    world,
    rows_of,
    query_texts,
    sizes,
    memtable_paths_max,
    text,
    after,
    until,
    labels_max,
    piece_labels_max,
    window_paths,
    dropped,
):
    graph = filled(world, sizes, memtable_paths_max=memtable_paths_max)
    graph.drop_before(0, dropped)
    query = parse(("", *query_texts)[text], world.schema)
    bounds = {"labels_max": labels_max, "piece_labels_max": piece_labels_max}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_windows, "WINDOW_PATHS_MIN", window_paths[0])
        patch.setattr(commit_windows, "WINDOW_PATHS_MAX", window_paths[1])
        ends = record_windows(patch)
        table, reached, pieces = scan_first(graph, query, after=after, until=until, **bounds)
    scanned = LabelSet(world.schema, graph.scan(query, after=after, until=ends[-1]))
    expected, cut = first_commits(scanned, reached=ends[-1], labels_max=labels_max)
    assert reached == cut
    assert rows_of(table) == rows_of(expected.table)
    assert rows_of(table) == rows_of(graph.scan(query, after=after, until=reached))
    assert all(0 < piece <= piece_labels_max for piece in pieces)
    if not text:  # Where every path matches, windows change nothing.
        whole = LabelSet(world.schema, graph.scan(query, after=after, until=until))
        assert cut == first_commits(whole, reached=until, labels_max=labels_max)[1]


@given(
    sizes=SIZES,
    memtable_paths_max=st.integers(1, 120),
    text=st.integers(0, 21),
    labels_max=st.integers(1, 60),
    window_paths=st.tuples(st.integers(1, 60), st.integers(1, 200)),
)
@examples(100)
def test_scan_first_repeated_from_its_frontier_gives_all_labels_once(
    world, rows_of, query_texts, sizes, memtable_paths_max, text, labels_max, window_paths
):
    graph = filled(world, sizes, memtable_paths_max=memtable_paths_max)
    query = parse(("", *query_texts)[text], world.schema)
    until, cursor, tables = Cursor(dict.fromkeys(PARTITIONS, 20)), EMPTY_CURSOR, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_windows, "WINDOW_PATHS_MIN", window_paths[0])
        patch.setattr(commit_windows, "WINDOW_PATHS_MAX", window_paths[1])
        while cursor != until:
            table, reached, _ = scan_first(
                graph, query, labels_max=labels_max, piece_labels_max=7, after=cursor, until=until
            )
            assert reached.covers(cursor)
            assert reached != cursor
            commits = set(zip(*(table.column(n).to_pylist() for n in COMMIT), strict=True))
            assert table.num_rows <= labels_max or len(commits) == 1
            tables.append(table)
            cursor = reached
    assert rows_of(pa.concat_tables(tables)) == rows_of(graph.scan(query))


COMMIT = ("partition", "sequence")


@pytest.fixture
def work(monkeypatch):
    """Counts the labels that graphs make, and the rows that they test."""
    counts: Counter[str] = Counter()
    plain, apply = metadata_graph.to_labels, FilterPipeline.apply

    def to_labels(schema, paths, **options):
        counts["labels"] += len(paths)
        return plain(schema, paths, **options)

    def counted(pipeline, rows, **options):
        counts["rows"] += count_rows(rows)
        return apply(pipeline, rows, **options)

    monkeypatch.setattr(metadata_graph, "to_labels", to_labels)
    monkeypatch.setattr(FilterPipeline, "apply", counted)
    return counts


@pytest.mark.parametrize("text", ["", "station IS NULL OR station <> 'none'"])
@pytest.mark.parametrize("compacts", [False, True], ids=["many runs", "one run"])
def test_scan_first_of_an_old_token_makes_each_label_once(world, work, monkeypatch, text, compacts):
    monkeypatch.setattr(commit_windows, "WINDOW_PATHS_MIN", 100)
    sizes = [(number % 3, 20) for number in range(90)]
    graph = filled(world, sizes, memtable_paths_max=200, compacts=compacts)
    query, until = parse(text, world.schema), Cursor(dict.fromkeys(PARTITIONS, 30))
    reached, calls = EMPTY_CURSOR, 0
    while reached != until:
        before = work["labels"]
        _, reached, _ = scan_first(
            graph, query, labels_max=100, piece_labels_max=50, after=reached, until=until
        )
        assert work["labels"] - before <= 100
        calls += 1
    assert work["labels"] == 1_800
    assert calls == 18
    if not compacts:  # Each call looks at two runs or three, and at samples of all of them.
        samples = 0 if text == "" else 9 * 200
        assert work["rows"] <= 18 * (3 * 200 + samples)


def test_scan_first_of_few_matches_looks_at_each_row_once(world, work, monkeypatch):
    """It has one window, however many rows there are in which nothing matches."""
    monkeypatch.setattr(commit_windows, "WINDOW_PATHS_MIN", 100)
    graph = filled(world, [(number % 3, 20) for number in range(90)], memtable_paths_max=10_000)
    until = Cursor(dict.fromkeys(PARTITIONS, 30))
    query = parse("gusts > 4 AND temperature > 293 AND humidity > 9", world.schema)
    expected = graph.scan(query).num_rows
    work.clear()
    ends = record_windows(monkeypatch)
    table, reached, _ = scan_first(
        graph, query, labels_max=10_000, piece_labels_max=50, after=EMPTY_CURSOR, until=until
    )
    assert (table.num_rows, reached) == (expected, until)
    assert set(ends) == {until}
    assert work["rows"] <= 1_800 + 512
    assert work["labels"] == expected


def test_scan_first_finds_matches_behind_many_rows_without(world, monkeypatch):
    """Windows grow while little is found, so that their number is small."""
    monkeypatch.setattr(commit_windows, "WINDOW_PATHS_MIN", 40)
    graph = MetadataGraph(world.schema, memtable_paths_max=10_000)
    for sequence in range(1, 101):
        batch = world.batch(sequence, 20)
        number = batch.schema.get_field_index("gusts")
        gusts = pa.array([int(sequence > 50)] * 20, batch.schema.field(number).type)
        batch = batch.set_column(number, batch.schema.field(number), gusts)
        graph.insert(batch, partition=0, sequence=sequence)
    query, ends = parse("gusts = 1", world.schema), record_windows(monkeypatch)
    table, reached, _ = scan_first(
        graph,
        query,
        labels_max=100,
        piece_labels_max=1_000,
        after=EMPTY_CURSOR,
        until=Cursor({0: 100}),
    )
    assert sorted(set(table.column("sequence").to_pylist())) == [51, 52, 53, 54, 55]
    assert reached == Cursor({0: 55})
    assert len(ends) <= 5
