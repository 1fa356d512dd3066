"""One pass for many standing queries finds what as many scans find."""

from __future__ import annotations

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from patches import patched

from galileo.cursor import Cursor
from galileo.cycle import NOT_REQUESTED
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.standing_match import MatchQuery, MatchRequests
from galileo.query import parse
from galileo.query.index import StandingQueries

PARTITIONS = (0, 1, 2)
FEW_PATHS = "galileo.graph.standing_match.FEW_PATHS"
COMMITS = st.lists(
    st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 40), st.booleans()), max_size=12
)
SEQUENCES = st.one_of(st.integers(0, 12), st.just(NOT_REQUESTED))
CURSORS = st.lists(st.tuples(*[SEQUENCES] * 3), min_size=1, max_size=4)


def question(graph, texts, asks, *, cursors, until, pairs_max=None):
    standing = StandingQueries(graph.schema)
    for number, text in enumerate(texts):
        standing.add(number, parse(text, graph.schema))
    made = MatchRequests(
        standing.slots([query for query, _ in asks]),
        np.array([cursor for _, cursor in asks], dtype=np.int32),
        np.array(PARTITIONS, dtype=np.int32),
        np.array(cursors, dtype=np.int64),
    )
    queries = {number: parse(texts[query], graph.schema) for number, (query, _) in enumerate(asks)}
    schema = graph.schema.label_schema
    return MatchQuery(standing, made, until, queries.__getitem__, schema, pairs_max)


@examples(120)
@given(
    commits=COMMITS,
    asks=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=10),
    cursors=CURSORS,
    until=st.tuples(*[st.integers(0, 12)] * 3),
    memtable_paths_max=st.sampled_from([1, 30, 1_000]),
    dropped=st.integers(0, 3),
    few_paths=st.sampled_from([1, 3_000]),
)
def test_match_random_queries_equals_single_scans(
    world,
    query_texts,
    rows_of,
    commits,
    asks,
    cursors,
    until,
    memtable_paths_max,
    dropped,
    few_paths,
):
    graph = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max, block_paths=8)
    last = dict.fromkeys(PARTITIONS, 0)
    for seed, (partition, size, merges) in enumerate(commits):
        last[partition] += 1
        graph.insert(world.batch(seed, size), partition=partition, sequence=last[partition])
        if merges:
            graph.maintain()
    graph.drop_before(0, dropped)
    asks = [(query, cursor % len(cursors)) for query, cursor in asks]
    until = Cursor(dict(enumerate(until)))
    asked = question(graph, query_texts, asks, cursors=cursors, until=until)
    with patched({FEW_PATHS: few_paths}):
        found = graph.match(asked).check()
    assert found.rows.num_rows == len(np.unique(found.places))
    identities = list(
        zip(
            *(found.rows.column(n).to_pylist() for n in ("partition", "sequence", "row")),
            strict=True,
        )
    )
    assert len(set(identities)) == len(identities)
    tables = dict(found.split())
    for number, (query, cursor) in enumerate(asks):
        after = cursors[cursor]
        wanted = frozenset(p for p in PARTITIONS if after[p] != NOT_REQUESTED)
        expected = graph.scan(
            parse(query_texts[query], world.schema),
            after=Cursor({p: after[p] for p in wanted}),
            until=until,
            partitions=wanted,
        )
        mine = tables.get(number, world.schema.label_schema.empty_table())
        assert rows_of(mine) == rows_of(expected)


@pytest.mark.parametrize("few_paths", [1, 3_000])
def test_match_too_many_pairs_is_none(world, few_paths, monkeypatch):
    monkeypatch.setattr(FEW_PATHS, few_paths)
    graph = MetadataGraph(world.schema, memtable_paths_max=50)
    for sequence in range(1, 5):
        graph.insert(world.batch(sequence, 40), partition=0, sequence=sequence)
    asks, until = [(0, 0)] * 3, Cursor({0: 4})
    enough, short = (
        question(
            graph,
            ["true"],
            asks,
            cursors=[(0, 0, 0)],
            until=until,
            pairs_max=pairs_max,
        )
        for pairs_max in (480, 479)
    )
    assert len(graph.match(enough)) == 480
    assert graph.match(short) is None


def test_match_no_queries_is_empty(world):
    graph = MetadataGraph(world.schema)
    graph.insert(world.batch(1, 10), partition=0, sequence=1)
    nothing = question(graph, [], [], cursors=[(0, 0, 0)], until=Cursor({0: 1}))
    assert len(graph.match(nothing)) == 0


@pytest.mark.parametrize("few_paths", [1, 3_000])
@pytest.mark.parametrize("memtable_paths_max", [1, 1_000])
def test_match_dropped_commits_are_excluded(world, memtable_paths_max, few_paths, monkeypatch):
    monkeypatch.setattr(FEW_PATHS, few_paths)
    graph = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max)
    for sequence in range(1, 6):
        for partition in (0, 1):
            batch = world.batch(sequence, 10)
            graph.insert(batch, partition=partition, sequence=sequence)
    graph.drop_before(0, 4)
    asks = [(0, cursor) for cursor in range(3)]
    cursors = [(0, 0, 0), (4, NOT_REQUESTED, 0), (NOT_REQUESTED, 3, 0)]
    until = Cursor({0: 5, 1: 4})
    asked = question(graph, ["true"], asks, cursors=cursors, until=until)
    found = {
        number: sorted(
            set(zip(table["partition"].to_pylist(), table["sequence"].to_pylist(), strict=True))
        )
        for number, table in graph.match(asked).split()
    }
    assert found == {0: [(0, 4), (0, 5), (1, 1), (1, 2), (1, 3), (1, 4)], 1: [(0, 5)], 2: [(1, 4)]}
