from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.graph.columns import Commits
from galileo.graph.metadata_graph import RUNS_MAX, MetadataGraph
from galileo.query.query import parse

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@given(
    groups=st.lists(st.tuples(st.integers(0, 1), SIZES), max_size=6),
    memtable_paths_max=st.integers(1, 120),
    text=st.integers(0, 20),
    after=st.builds(Cursor, st.dictionaries(st.integers(0, 1), st.integers(0, 20))),
)
@examples(80)
def test_insert_many_random_groups_equals_single_inserts(
    world: Any,
    rows_of: Any,
    query_texts: Any,
    groups: list[tuple[int, list[int]]],
    memtable_paths_max: int,
    text: int,
    after: Cursor,
) -> None:
    """Against the graph that got them one by one; empty commits among them."""
    single = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max, block_paths=7)
    many = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max, block_paths=7)
    last = {0: 0, 1: 0}
    for seed, (partition, sizes) in enumerate(groups):
        batches = [world.batch(100 * seed + n, size) for n, size in enumerate(sizes)]
        first = last[partition] + 1
        for sequence, batch in enumerate(batches, start=first):
            single.insert(batch, partition=partition, sequence=sequence)
        sequences = range(first, first + len(sizes))
        many.insert_many(
            pa.concat_batches(batches), Commits.of(partition, sequences), np.array(sizes)
        )
        last[partition] += len(sizes)
    query = parse(query_texts[text], world.schema)
    assert many.count() == single.count()
    assert rows_of(many.scan(query, after=after)) == rows_of(single.scan(query, after=after))


def test_insert_many_without_maintain_keeps_runs_few(world: Any) -> None:
    graph = MetadataGraph(world.schema, memtable_paths_max=1)
    for number in range(2 * RUNS_MAX):
        commits = Commits.of(0, [2 * number + 1, 2 * number + 2])
        graph.insert_many(world.batch(number, 4), commits, np.array([1, 3]))
    assert graph.runs <= RUNS_MAX
    assert graph.count() == 8 * RUNS_MAX
