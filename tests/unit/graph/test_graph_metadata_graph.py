from __future__ import annotations

import threading
from collections import Counter
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.graph import metadata_graph
from galileo.graph.metadata_graph import RUNS_MAX, MetadataGraph
from galileo.graph.run_scan import RunScan
from galileo.graph.sorted_runs import compact
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.query.query import parse

CURSORS = st.builds(Cursor, st.dictionaries(st.integers(0, 2), st.integers(0, 9), min_size=2))
PARTITIONS = st.none() | st.frozensets(st.integers(0, 3), min_size=1)


@st.composite
def histories(draw):
    """Commits (partition, sequence, size, seed), with `None` where runs are merged."""
    last: Counter[int] = Counter()
    steps = []
    for _ in range(draw(st.integers(0, 20))):
        if draw(st.integers(0, 4)) == 0:
            steps.append(None)
            continue
        partition = draw(st.integers(0, 2))
        last[partition] += draw(st.integers(1, 2))
        size, seed = draw(st.integers(0, 50)), draw(st.integers(0, 2**32))
        steps.append((partition, last[partition], size, seed))
    return steps


def _play(world, store, *, history, memtable_paths_max):
    graph = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max, block_paths=7)
    for step in history:
        if step is None:
            graph.maintain()
            continue
        partition, sequence, size, seed = step
        for target in (graph, store):
            target.insert(world.batch(seed, size), partition=partition, sequence=sequence)
    return graph


@given(
    history=histories(),
    memtable_paths_max=st.integers(1, 120),
    text=st.integers(0, 20),
    after=CURSORS,
    until=st.none() | CURSORS,
    partitions=PARTITIONS,
)
@examples(150)
def test_scan_random_history_equals_list_of_rows(
    world,
    dumb_store,
    rows_of,
    query_texts,
    history,
    memtable_paths_max,
    text,
    after,
    until,
    partitions,
):
    store = dumb_store(world.schema)
    graph = _play(world, store, history=history, memtable_paths_max=memtable_paths_max)
    query = parse(query_texts[text], world.schema)
    window = {"after": after, "until": until, "partitions": partitions}
    table = graph.scan(query, **window)
    assert table.schema == world.schema.label_schema
    assert rows_of(table) == store.scan(query, **window)
    assert graph.count() == len(store.rows())


@pytest.mark.parametrize("text", range(21))
def test_scan_query_of_world_matches_some_paths(world, query_texts, text):
    """The comparisons above prove little for a query that matches all or nothing."""
    graph = MetadataGraph(world.schema, memtable_paths_max=500)
    for seed in range(1, 20):
        graph.insert(world.batch(seed, 100), partition=0, sequence=seed)
    found = graph.scan(parse(query_texts[text], world.schema)).num_rows
    assert 0 < found < graph.count()


NULL_QUERIES = [
    ("temperature > 290", lambda row: (row["temperature"] or 0) > 290),
    ("NOT (temperature > 290)", lambda row: (row["temperature"] or 999) <= 290),
    ("temperature IS NULL", lambda row: row["temperature"] is None),
    ("gusts <> 3", lambda row: row["gusts"] not in (None, 3)),
    ("station <> 'alpha'", lambda row: row["station"] not in (None, "alpha")),
    (
        "NOT (station LIKE 'b%')",
        lambda row: row["station"] is not None and not row["station"].startswith("b"),
    ),
    ("raining = false", lambda row: row["raining"] is False),
    ("raining IS NULL OR gusts IS NULL", lambda row: None in (row["raining"], row["gusts"])),
]


@pytest.mark.parametrize(("text", "wanted"), NULL_QUERIES, ids=[text for text, _ in NULL_QUERIES])
def test_scan_nulls_match_as_in_sql(world, dumb_store, rows_of, text, wanted):
    store = dumb_store(world.schema)
    history = [(0, n + 1, 60, n) if n % 5 else None for n in range(30)]
    graph = _play(world, store, history=history, memtable_paths_max=150)
    expected = [row for row in store.rows() if wanted(row)]
    found = rows_of(graph.scan(parse(text, world.schema)))
    assert 0 < len(found) == len(expected)
    assert [(r["sequence"], r["row"]) for r in found] == [
        (r["sequence"], r["row"]) for r in expected
    ]


def test_maintain_many_runs_leaves_few_with_all_paths(world):
    graph = MetadataGraph(world.schema, memtable_paths_max=50)
    for sequence in range(1, 41):
        graph.insert(world.batch(sequence, 50), partition=0, sequence=sequence)
    assert graph.runs == 40
    assert graph.maintain()
    assert graph.runs < 5
    assert not graph.maintain()
    assert graph.count() == 2000


def test_paths_inserted_during_a_compaction_stay(world, monkeypatch):
    graph, sequences = MetadataGraph(world.schema, memtable_paths_max=100), count(1)

    def insert(partition=0):
        sequence = next(sequences)
        graph.insert(world.batch(sequence, 100), partition=partition, sequence=sequence)
        return sequence

    def compacting(*runs, **options):
        if len(inserted) < 20:
            inserted.append(insert())
        return compact(*runs, **options)

    monkeypatch.setattr(metadata_graph, "compact", compacting)
    inserted = [insert() for _ in range(5)]
    insert(partition=1)
    assert graph.maintain()
    graph.remove(1)
    assert len(inserted) >= 7
    table = graph.scan(parse("", world.schema))
    assert sorted(table.column("sequence").unique().to_pylist()) == inserted
    assert graph.count() == 100 * len(inserted)


def test_insert_without_maintain_keeps_runs_few(world):
    graph = MetadataGraph(world.schema, memtable_paths_max=1)
    for sequence in range(1, 3 * RUNS_MAX):
        graph.insert(world.batch(sequence, 2), partition=0, sequence=sequence)
    assert graph.runs <= RUNS_MAX


def test_scan_after_cursor_skips_old_runs(world, monkeypatch):
    graph = MetadataGraph(world.schema, memtable_paths_max=100)
    for sequence in range(1, 31):
        graph.insert(world.batch(sequence, 100), partition=sequence % 2, sequence=sequence)
    looked_at = []
    plain = RunScan.of
    monkeypatch.setattr(
        RunScan, "of", lambda run, *a, **k: looked_at.append(len(run)) or plain(run, *a, **k)
    )
    query = parse("gusts >= 0", world.schema)
    graph.scan(query, after=Cursor({0: 28, 1: 27}))
    assert looked_at == [100, 100]
    looked_at.clear()
    graph.scan(query, after=Cursor({0: 30, 1: 29}))
    graph.scan(query, partitions=frozenset({5}))
    graph.scan(query, until=Cursor({3: 99}))
    assert looked_at == []


@pytest.mark.slow
def test_scan_during_inserts_sees_whole_commits(world):
    """Every answer is a prefix of the commits, and each commit is in it whole or not at all."""
    graph = MetadataGraph(world.schema, memtable_paths_max=256)
    batches = [world.batch(seed, 40) for seed in range(8)]
    everything = parse("gusts IS NULL OR gusts IS NOT NULL", world.schema)
    commits, failures, done = 400, [], threading.Event()

    def write() -> None:
        for sequence in range(1, commits + 1):
            graph.insert(batches[sequence % 8], partition=0, sequence=sequence)
            if sequence % 50 == 0:
                graph.maintain()
        done.set()

    def read() -> None:
        seen = 0
        while not failures and seen < commits:
            finished = done.is_set()
            table = graph.scan(everything)
            again = graph.scan(everything, after=Cursor({0: seen}))
            counts = Counter(table.column("sequence").to_pylist())
            latest = max(counts, default=0)
            whole = counts == dict.fromkeys(range(1, latest + 1), 40)
            fresh = Counter(again.column("sequence").to_pylist())
            contiguous = fresh == dict.fromkeys(range(seen + 1, seen + 1 + len(fresh)), 40)
            if not whole or latest < seen or not contiguous or (finished and latest < commits):
                failures.append((seen, counts, fresh))
            seen = latest

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert graph.count() == 40 * commits


@pytest.mark.slow
def test_maintain_during_inserts_loses_nothing(world):
    graph = MetadataGraph(world.schema, memtable_paths_max=64)
    batch, done = world.batch(1, 32), threading.Event()

    def maintain() -> None:
        while not done.is_set():
            graph.maintain()

    def write(partition: int) -> None:
        for sequence in range(1, 151):
            graph.insert(batch, partition=partition, sequence=sequence)

    merger = threading.Thread(target=maintain)
    writers = [threading.Thread(target=write, args=(partition,)) for partition in range(3)]
    merger.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    merger.join()
    table = graph.scan(parse("gusts IS NULL OR gusts IS NOT NULL", world.schema))
    identities = zip(
        *(table.column(n).to_pylist() for n in ("partition", "sequence", "row")), strict=True
    )
    assert table.num_rows == 3 * 150 * 32
    assert len(set(identities)) == table.num_rows


def test_metadata_graph_path_takes_at_most_64_bytes():
    features = [Feature(name) for name in ("temperature", "humidity", "pressure", "wind")]
    schema = Schema("nam", features, geohash_precision=5, time_bucket="1h")
    graph, size, rng = MetadataGraph(schema), 1000, np.random.default_rng(1)
    for sequence in range(1, 151):
        columns = [
            pa.array(rng.integers(0, 1 << 25, size, dtype=np.uint64)),
            pa.array(rng.integers(0, 1000, size) * schema.time_bucket_us).cast(
                schema.path_schema.field("bucket").type
            ),
            *(pa.array(rng.normal(size=size)) for _ in features),
            pa.array(np.arange(size, dtype=np.int32)),
            pa.array(np.ones(size, dtype=np.int32)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema.path_schema)
        graph.insert(batch, partition=0, sequence=sequence)
    per_path = graph.memory_bytes() / graph.count()
    assert graph.count() == 150_000
    assert 60 <= per_path <= 64


def test_scan_empty_graph_is_empty(world, rows_of):
    graph = MetadataGraph(world.schema)
    graph.insert(world.batch(1, 0), partition=0, sequence=1)
    query = parse("gusts > 1", world.schema)
    assert rows_of(graph.scan(query)) == []
    assert graph.count() == 0
    assert not graph.maintain()


def test_scan_result_is_valid_label_set(world):
    graph = MetadataGraph(world.schema, memtable_paths_max=30)
    for sequence in (1, 2, 3):
        graph.insert(world.batch(sequence, 20), partition=4, sequence=sequence)
    labels = LabelSet(world.schema, graph.scan(parse("gusts IS NOT NULL", world.schema)))
    assert len(set(labels.texts().to_pylist())) == len(labels) > 0


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    text=st.integers(0, 20),
    done=st.integers(0, 3),
    labels_max=st.integers(1, 50),
)
@examples(100)
def test_scan_pieces_random_history_equals_scan(
    world, query_texts, rows_of, seed, sizes, text, done, labels_max
):
    graph = MetadataGraph(world.schema, memtable_paths_max=40, block_paths=8)
    for number, size in enumerate(sizes):
        batch = world.batch(seed + number, size)
        graph.insert(batch, partition=number % 2, sequence=number // 2 + 1)
    query, after = parse(query_texts[text], world.schema), Cursor({0: done})
    pieces = [
        piece
        for piece in graph.scan_pieces(query, labels_max=labels_max, after=after)
        if piece is not None
    ]
    assert all(0 < piece.num_rows <= labels_max for piece in pieces)
    table = pa.Table.from_batches(pieces, schema=world.schema.label_schema)
    assert rows_of(table) == rows_of(graph.scan(query, after=after))


def test_scan_pieces_during_changes_is_snapshot(world):
    """Whatever is inserted, merged or dropped between two pieces."""
    graph = MetadataGraph(world.schema, memtable_paths_max=50, block_paths=8)
    for sequence in range(1, 9):
        graph.insert(world.batch(sequence, 30), partition=0, sequence=sequence)
    query = parse("", world.schema)
    asked = graph.scan(query).num_rows
    pieces = graph.scan_pieces(query, labels_max=7)
    found = next(pieces, None)
    graph.insert(world.batch(9, 100), partition=0, sequence=9)
    assert graph.maintain()
    graph.drop_before(0, 5)
    counted = sum(piece.num_rows for piece in [found, *pieces] if piece is not None)
    assert counted == asked != graph.scan(query).num_rows
