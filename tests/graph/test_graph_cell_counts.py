from __future__ import annotations

from collections import Counter

from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.summary import CELLS_SCHEMA
from galileo.query.query import parse


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    text=st.integers(0, 20),
    after=st.integers(0, 2),
    until=st.none() | st.integers(0, 6),
)
@examples(100)
def test_cells_have_the_observations_of_their_paths(
    world, dumb_store, query_texts, sizes, seed, text, after, until
):
    store, graph = dumb_store(world.schema), MetadataGraph(world.schema, memtable_paths_max=80)
    for number, size in enumerate(sizes):
        for target in (graph, store):
            target.insert(world.batch(seed + number, size), partition=0, sequence=number + 1)
    query = parse(query_texts[text], world.schema)
    window = {"after": Cursor({0: after}), "until": None if until is None else Cursor({0: until})}
    counts: Counter[int] = Counter()
    for row in store.scan(query, **window):
        counts[row["cell"]] += row["rows"]
    found = graph.rows_by_cell(query, **window)
    assert found.schema == CELLS_SCHEMA
    assert found.to_pylist() == [{"cell": c, "rows": n} for c, n in sorted(counts.items())]
