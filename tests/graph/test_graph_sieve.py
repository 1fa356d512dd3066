from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.graph import scan, sieve
from galileo.graph.columns import Commits, Paths, Texts, columns_of, paths_of
from galileo.graph.runs import Run, seal
from galileo.graph.scan import Search, Task
from galileo.graph.sieve import Sieve, Tally
from galileo.graph.stretches import joined, positions, size_of
from galileo.query.query import parse

PIECES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=12)


@pytest.fixture(scope="module", autouse=True)
def _small_chunks():
    """Chunks, samples and portions so small that a test's paths make many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sieve, "CHUNK_PATHS", 16)
        patch.setattr(sieve, "SAMPLE_PATHS", 8)
        patch.setattr(scan, "PORTION_PATHS", 24)
        yield


def _run(world, batches, *, texts, sealed):
    parts = [
        paths_of(columns_of(world.schema, batch), batch, commit=number, texts=texts)
        for number, batch in enumerate(batches)
    ]
    commits = Commits(np.zeros(len(parts), np.int32), np.arange(1, len(parts) + 1))
    paths = Paths.concat(world.schema, parts)
    return seal(paths, commits, block_paths=8) if sealed else Run(paths, commits)


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    sealed=st.booleans(),
    text=st.integers(0, 20),
    more=st.none() | st.integers(0, 20),
    held=st.none() | st.lists(st.booleans(), min_size=4, max_size=4),
)
@examples(200)
def test_what_is_sifted_is_what_the_query_matches(
    world, query_texts, seed, sizes, sealed, text, more, held
):
    texts = Texts()
    batches = [world.batch(seed + number, size) for number, size in enumerate(sizes)]
    run = _run(world, batches, texts=texts, sealed=sealed)
    asked = query_texts[text] if more is None else f"({query_texts[text]}) AND {query_texts[more]}"
    query = parse(asked, world.schema)
    commits = None if held is None else np.array(held[: len(sizes)])
    task = Task.of(run, Search.of(query, texts), commits=commits)
    expected = query.match_paths(texts.bind(run.paths.columns))
    if commits is not None:
        expected = expected & commits[run.paths.commit]
    portions = list(task.portions())
    assert task.matches().tolist() == np.flatnonzero(expected).tolist()
    assert all(size_of(portion) >= 24 for portion in portions[:-1])
    assert all(size_of(portion) > 0 for portion in portions)


def test_the_condition_that_rules_out_most_comes_first(world):
    texts = Texts()
    run = _run(world, [world.batch(seed, 60) for seed in range(1, 9)], texts=texts, sealed=False)
    query = parse(
        "temperature IS NOT NULL AND gusts >= 0 AND temperature > 293.5 AND gusts >= 0.5",
        world.schema,
    )
    search = Search.of(query, texts)
    ordered = Sieve.of(run.paths, search.conditions, rows=slice(0, len(run)))
    assert ordered.conditions[0] is search.conditions[2]
    tally, starts = Tally(), range(0, len(run), 16)
    found = [ordered.sift(slice(start, start + 16), tally=tally) for start in starts]
    first, *others = ordered.conditions
    assert tally.tested[first] == len(run)
    assert all(tally.tested.get(other, 0) < len(run) for other in others)
    assert tally.passed[first] >= sum(map(size_of, found))


def test_each_text_is_judged_once_for_many_paths(world, monkeypatch):
    texts, judged = Texts(), []
    run = _run(world, [world.batch(seed, 80) for seed in range(1, 9)], texts=texts, sealed=False)
    query = parse("station LIKE 'b%'", world.schema)
    plain = type(query.tree).match
    monkeypatch.setattr(
        type(query.tree), "match", lambda leaf, c: judged.append(len(c)) or plain(leaf, c)
    )
    found = Task.of(run, Search.of(query, texts), commits=None).matches()
    assert judged == [len(texts)]
    column = texts.bind(run.paths.columns).features["station"].to_arrow().to_pylist()
    assert found.tolist() == [n for n, text in enumerate(column) if (text or "").startswith("b")]


def test_few_paths_beside_many_texts_are_judged_themselves(world):
    texts = Texts()
    batch = world.batch(1, 500)
    names = pa.array([f"s{number}" for number in range(500)])
    batch = batch.set_column(batch.schema.get_field_index("station"), "station", names)
    run = _run(world, [batch], texts=texts, sealed=False)
    search = Search.of(parse("station LIKE '%7'", world.schema), texts)
    few = Task.of(run, search, commits=None).sieve.sift(np.array([7, 8, 97, 499]))
    assert positions(few).tolist() == [7, 97]


@given(pieces=PIECES, least=st.integers(1, 12))
def test_joined_pieces_are_the_same_rows(pieces, least):
    rows, expected, at = [], [], 0
    for gap, length, sliced in pieces:
        start, at = at + gap, at + gap + length
        rows.append(slice(start, at) if sliced else np.arange(start, at))
        expected += range(start, at)
    found = list(joined(rows, least=least))
    assert [int(row) for piece in found for row in positions(piece)] == expected
    assert all(size_of(piece) >= least for piece in found[:-1])


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    sealed=st.booleans(),
    text=st.none() | st.integers(0, 20),
    most=st.integers(1, 60),
)
@examples(200)
def test_pieces_are_bounded_and_hold_what_matches(
    world, query_texts, seed, sizes, sealed, text, most
):
    texts = Texts()
    batches = [world.batch(seed + number, size) for number, size in enumerate(sizes)]
    run = _run(world, batches, texts=texts, sealed=sealed)
    query = parse("" if text is None else query_texts[text], world.schema)
    task = Task.of(run, Search.of(query, texts), commits=None)
    looks = list(task.pieces(most))
    pieces = [piece for piece in looks if piece is not None]
    assert all(0 < size_of(piece) <= most for piece in pieces)
    together = [row for piece in pieces for row in positions(piece).tolist()]
    assert together == task.matches().tolist()
    chunk = min(most, sieve.CHUNK_PATHS)
    looked = sum(piece is None for piece in looks)
    assert looked == -(-size_of(task.rows) // chunk), "one for each chunk looked at"
