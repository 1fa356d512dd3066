from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.graph.drill_down import page
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros

SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=6)


def _levels(world, row):
    cell = geohash.to_text([row["cell"]], world.schema.geohash_precision)[0].as_py()
    return (cell, row["bucket"], *(row[feature.name] for feature in world.schema.indexed))


def _graph(world, store, sizes, *, seed):
    graph = MetadataGraph(world.schema, memtable_paths_max=100)
    for number, size in enumerate(sizes):
        for target in (graph, store):
            target.insert(
                world.batch(seed + number, size, hours=2), partition=0, sequence=number + 1
            )
    return graph


LEVELS = ("geohash", "datetime", "temperature", "humidity", "gusts", "station", "raining")
ORDERS = st.none() | st.lists(st.sampled_from(LEVELS), min_size=1, unique=True)


@given(
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    depth=st.integers(0, 6),
    pick=st.integers(0, 10**6),
    order=ORDERS,
    dropped=st.integers(0, 3),
)
@examples(200)
def test_children_random_history_equals_tree_in_python(
    world, dumb_store, sizes, seed, depth, pick, order, dropped
):
    """Of the tree with its levels in any order, and without the commits that were dropped."""
    store = dumb_store(world.schema)
    graph = _graph(world, store, sizes, seed=seed)
    graph.drop_before(0, dropped + 1)
    at = [LEVELS.index(level) for level in order or LEVELS]
    depth = min(depth, len(at) - 1)
    rows = [
        (tuple(_levels(world, row)[level] for level in at), row["rows"])
        for row in store.rows()
        if row["sequence"] > dropped
    ]
    prefix = rows[pick % len(rows)][0][:depth] if rows else ()
    below = [(levels, count) for levels, count in rows if levels[: len(prefix)] == prefix]
    paths = Counter(levels[len(prefix)] for levels, _ in below)
    observations: Counter[object] = Counter()
    for levels, count in below:
        observations[levels[len(prefix)]] += count

    table = graph.children(prefix, order=order).to_pydict()
    values = table["value"]
    assert dict(zip(values, table["paths"], strict=True)) == paths
    assert dict(zip(values, table["observations"], strict=True)) == observations
    known = [value for value in values if value is not None]
    assert values == sorted(known) + [None] * (len(values) - len(known))


def test_children_unknown_vertex_is_empty(world, dumb_store):
    graph = _graph(world, dumb_store(world.schema), [50], seed=1)
    assert graph.children(["zzzz"]).num_rows == 0
    cell = graph.children().column("value")[0].as_py()
    moment = graph.children([cell]).column("value")[0].as_py()
    assert graph.children([cell, moment, 290.0, 5.0, 2, "nowhere"]).num_rows == 0


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (["9x"], "geohash"),
        ([7], "geohash"),
        (["9xj5", "noon"], "time"),
        (["9xj5", "2012-03-01", "hot"], "float"),
        (["9xj5", "2012-03-01", 1.0, 1.0, 1, 5], "text"),
        (["9xj5", "2012-03-01", 1.0, 1.0, 1, "a", True], "prefix"),
    ],
)
def test_children_invalid_prefix_raises(world, prefix, expected):
    with raises(InputError, expected=expected):
        MetadataGraph(world.schema).children(prefix)


def test_children_other_order_of_levels_has_same_paths(world, dumb_store):
    graph = _graph(world, dumb_store(world.schema), [60, 60], seed=1)
    for row in graph.children(order=["gusts", "geohash"]).to_pylist():
        below = graph.children([row["value"]], order=["gusts", "geohash"])
        assert sum(below.column("paths").to_pylist()) == row["paths"]
        assert sum(below.column("observations").to_pylist()) == row["observations"]


@pytest.mark.parametrize("order", [[], ["gusts", "gusts"], ["gust"], ["note"], ["geometry"]])
def test_children_invalid_order_raises(world, order):
    with raises(InputError, expected="levels", dataset="obs"):
        MetadataGraph(world.schema).children(order=order)


def test_children_signed_zeros_are_one_child():
    """A page that ended with one of them left the other out."""
    schema = Schema("zeros", [Feature("t"), Feature("n", type="int")])
    graph = MetadataGraph(schema)
    for sequence, zero in enumerate([0.0, -0.0], 1):
        table = pa.table(
            {
                "latitude": [1.0],
                "longitude": [1.0],
                "time": times_from_micros(np.zeros(1, dtype=np.int64)),
                "t": [zero],
                "n": [sequence],
            }
        )
        _, batch = paths.index(schema, table.cast(schema.observation_schema))
        graph.insert(batch, partition=0, sequence=sequence)
    children = graph.children([], order=("t", "n"))
    assert children.to_pylist() == [{"value": 0.0, "paths": 2, "observations": 2}]
    for zero in (0.0, -0.0):
        assert graph.children([zero], order=("t", "n")).column("value").to_pylist() == [1, 2]
    first, more = page(children, after=None, limit=1)
    assert (first.num_rows, more) == (1, False)


def test_pages_together_have_every_child():
    children = pa.table({"value": [1, 2, None], "paths": [1, 1, 1], "observations": [3, 2, 1]})
    first, more = page(children, after=None, limit=2)
    assert (first.column("value").to_pylist(), more) == ([1, 2], True)
    rest, more = page(children, after=2, limit=2)
    assert (rest.column("value").to_pylist(), more) == ([None], False)
