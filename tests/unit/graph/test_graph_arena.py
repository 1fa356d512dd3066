from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from galileo.graph import arena
from galileo.graph.metadata_graph import MetadataGraph
from galileo.query import parse


@given(
    st.lists(st.sampled_from(["u8", "i8", "i4", "f8", "i1", "?"]), max_size=6), st.integers(0, 300)
)
def test_allocate_random_kinds_do_not_overlap(kinds, length):
    arrays = arena.allocate([np.dtype(kind) for kind in kinds], length)
    assert [(a.dtype.str.lstrip("<|"), len(a)) for a in arrays] == [
        (np.dtype(kind).str.lstrip("<|"), length) for kind in kinds
    ]
    for number, array in enumerate(arrays):
        array[:] = number % 2 if array.dtype == np.bool_ else number
    for number, array in enumerate(arrays):
        assert (array == (number % 2 if array.dtype == np.bool_ else number)).all()


@given(st.integers(1, 50), st.integers(0, 2**32 - 1), st.sampled_from([np.intp, np.int32]))
def test_gather_random_rows_equals_take(length, seed, kind):
    random = np.random.default_rng(seed)
    rows = random.integers(0, length, random.integers(0, 80)).astype(kind)
    arrays = [random.random(length), np.broadcast_to(np.True_, length), np.arange(length)]
    for found, array in zip(arena.gather(arrays, rows), arrays, strict=True):
        assert found.dtype == array.dtype
        assert found.tolist() == array[rows].tolist()


def test_scan_large_result_equals_small_result(world, query_texts):
    graphs = [
        MetadataGraph(world.schema, memtable_paths_max=200, heap_bytes=heap_bytes)
        for heap_bytes in (arena.HEAP_BYTES, -1)
    ]
    for graph in graphs:
        for number in range(9):
            graph.insert(world.batch(number, 70), partition=number % 3, sequence=number // 3 + 1)
        graph.maintain()
    queries = [parse(text, world.schema) for text in ("", *query_texts)]
    small, large = ([graph.scan(query) for query in queries] for graph in graphs)
    assert all(one.equals(other) for one, other in zip(small, large, strict=True))
    assert sum(found.num_rows for found in small) > 1000
