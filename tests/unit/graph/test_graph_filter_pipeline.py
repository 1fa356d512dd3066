from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.graph import filter_pipeline, run_scan
from galileo.graph.columns import (
    Commits,
    Paths,
    StringDictionary,
    columns_from_batch,
    paths_from_batch,
)
from galileo.graph.filter_pipeline import FilterPipeline, FilterStats
from galileo.graph.row_ranges import concat_small, count_rows, to_positions
from galileo.graph.run_scan import BoundQuery, RunScan
from galileo.graph.sorted_runs import SortedRun, seal
from galileo.query.query import parse

PIECES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    """The paths of a test make many chunks, samples and portions."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (filter_pipeline, run_scan):
            patch.setattr(module, "CHUNK_PATHS", 16)
            patch.setattr(module, "SAMPLE_PATHS", 8)
        patch.setattr(run_scan, "PORTION_PATHS", 24)
        yield


def _run(world, batches, *, texts, sealed):
    parts = [
        paths_from_batch(columns_from_batch(world.schema, batch), batch, commit=number, texts=texts)
        for number, batch in enumerate(batches)
    ]
    commits = Commits(np.zeros(len(parts), np.int32), np.arange(1, len(parts) + 1))
    paths = Paths.concat(parts)
    return seal(paths, commits, block_paths=8) if sealed else SortedRun(paths, commits)


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    sealed=st.booleans(),
    text=st.integers(0, 20),
    more=st.none() | st.integers(0, 20),
    held=st.none() | st.lists(st.booleans(), min_size=4, max_size=4),
)
@examples(200)
def test_filter_pipeline_random_paths_equals_query(
    world, query_texts, seed, sizes, sealed, text, more, held
):
    texts = StringDictionary()
    batches = [world.batch(seed + number, size) for number, size in enumerate(sizes)]
    run = _run(world, batches, texts=texts, sealed=sealed)
    asked = query_texts[text] if more is None else f"({query_texts[text]}) AND {query_texts[more]}"
    query = parse(asked, world.schema)
    commits = None if held is None else np.array(held[: len(sizes)])
    task = RunScan.of(run, BoundQuery.of(query, texts), commits=commits)
    expected = query.match_paths(texts.bind(run.paths.columns))
    if commits is not None:
        expected = expected & commits[run.paths.commit]
    portions = list(task.portions())
    assert task.matches().tolist() == np.flatnonzero(expected).tolist()
    assert all(count_rows(portion) >= 24 for portion in portions[:-1])
    assert all(count_rows(portion) > 0 for portion in portions)


def test_filter_pipeline_most_selective_filter_comes_first(world):
    texts = StringDictionary()
    run = _run(world, [world.batch(seed, 60) for seed in range(1, 9)], texts=texts, sealed=False)
    query = parse(
        "temperature IS NOT NULL AND gusts >= 0 AND temperature > 293.5 AND gusts >= 0.5",
        world.schema,
    )
    search = BoundQuery.of(query, texts)
    ordered = FilterPipeline.of(run.paths, search.filters, rows=slice(0, len(run)))
    assert ordered.filters[0] is search.filters[2]
    tally, starts = FilterStats(), range(0, len(run), 16)
    found = [ordered.apply(slice(start, start + 16), tally=tally) for start in starts]
    first, *others = ordered.filters
    assert tally.tested[first] == len(run)
    assert all(tally.tested.get(other, 0) < len(run) for other in others)
    assert tally.passed[first] >= sum(map(count_rows, found))


def test_filter_pipeline_many_paths_tests_each_text_once(world, monkeypatch):
    texts, judged = StringDictionary(), []
    run = _run(world, [world.batch(seed, 80) for seed in range(1, 9)], texts=texts, sealed=False)
    query = parse("station LIKE 'b%'", world.schema)
    plain = type(query.tree).match
    monkeypatch.setattr(
        type(query.tree), "match", lambda leaf, c: judged.append(len(c)) or plain(leaf, c)
    )
    found = RunScan.of(run, BoundQuery.of(query, texts), commits=None).matches()
    assert judged == [len(texts)]
    column = texts.bind(run.paths.columns).features["station"].to_arrow().to_pylist()
    assert found.tolist() == [n for n, text in enumerate(column) if (text or "").startswith("b")]


def test_filter_pipeline_few_paths_tests_them_directly(world):
    texts = StringDictionary()
    batch = world.batch(1, 500)
    names = pa.array([f"s{number}" for number in range(500)])
    batch = batch.set_column(batch.schema.get_field_index("station"), "station", names)
    run = _run(world, [batch], texts=texts, sealed=False)
    search = BoundQuery.of(parse("station LIKE '%7'", world.schema), texts)
    few = RunScan.of(run, search, commits=None).pipeline.apply(np.array([7, 8, 97, 499]))
    assert to_positions(few).tolist() == [7, 97]


@given(pieces=PIECES, least=st.integers(1, 12))
def test_concat_small_random_pieces_keeps_rows(pieces, least):
    rows, expected, at = [], [], 0
    for gap, length, sliced in pieces:
        start, at = at + gap, at + gap + length
        rows.append(slice(start, at) if sliced else np.arange(start, at))
        expected += range(start, at)
    found = list(concat_small(rows, least=least))
    assert [int(row) for piece in found for row in to_positions(piece)] == expected
    assert all(count_rows(piece) >= least for piece in found[:-1])


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    sealed=st.booleans(),
    text=st.none() | st.integers(0, 20),
    most=st.integers(1, 60),
)
@examples(200)
def test_run_scan_pieces_are_bounded_and_equal_query(
    world, query_texts, seed, sizes, sealed, text, most
):
    texts = StringDictionary()
    batches = [world.batch(seed + number, size) for number, size in enumerate(sizes)]
    run = _run(world, batches, texts=texts, sealed=sealed)
    query = parse("" if text is None else query_texts[text], world.schema)
    task = RunScan.of(run, BoundQuery.of(query, texts), commits=None)
    looks = list(task.pieces(most))
    pieces = [piece for piece in looks if piece is not None]
    assert all(0 < count_rows(piece) <= most for piece in pieces)
    together = [row for piece in pieces for row in to_positions(piece).tolist()]
    assert together == task.matches().tolist()
    looked = sum(piece is None for piece in looks)
    chunks = -(-count_rows(task.rows) // run_scan.CHUNK_PATHS)
    assert looked == chunks, "one for each chunk looked at"
