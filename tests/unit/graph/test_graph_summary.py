from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.summary import CELLS_SCHEMA, Summary, equal_edges, merge_summaries
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.query.query import parse

EDGES = st.lists(st.integers(-2, 12).map(float), min_size=2, max_size=6, unique=True).map(sorted)


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    text=st.integers(0, 20),
    feature=st.sampled_from(["temperature", "humidity", "gusts", "raining"]),
    bins=st.none() | st.integers(1, 9) | EDGES,
    after=st.integers(0, 3),
)
@examples(200)
def test_summarise_random_history_equals_observations(
    world, dumb_store, query_texts, sizes, seed, text, feature, bins, after
):
    store, graph = dumb_store(world.schema), MetadataGraph(world.schema, memtable_paths_max=80)
    for number, size in enumerate(sizes):
        for target in (graph, store):
            target.insert(world.batch(seed + number, size), partition=0, sequence=number + 1)
    query, cursor = parse(query_texts[text], world.schema), Cursor({0: after})
    rows = store.scan(query, after=cursor)
    values = [row[feature] for row in rows for _ in range(row["rows"])]
    known = np.array([value for value in values if value is not None], dtype=np.float64)

    found = graph.summarise(query, feature, bins=bins, after=cursor)
    assert (found.paths, found.observations) == (len(rows), len(values))
    assert found.missing == len(values) - len(known)
    assert found.total == pytest.approx(known.sum())
    if len(known) == 0:
        assert (found.minimum, found.maximum, found.mean) == (None, None, None)
    else:
        assert (found.minimum, found.maximum) == (known.min(), known.max())
        assert found.mean == pytest.approx(known.mean())
    if bins is None or (isinstance(bins, int) and len(known) == 0):
        assert found.histogram is None
    else:
        edges = np.histogram_bin_edges(known, bins)
        expected = [
            int(((known >= low) & ((known < high) | (high == edges[-1]) & (known == high))).sum())
            for low, high in itertools.pairwise(edges)
        ]
        assert found.histogram.edges.tolist() == edges.tolist()
        assert found.histogram.counts.tolist() == expected


@pytest.mark.parametrize("feature", ["station", "note", "tempo", "datetime"])
def test_summarise_other_feature_raises(world, feature):
    graph = MetadataGraph(world.schema)
    with raises(InputError, expected="numeric_feature", feature=feature):
        graph.summarise(parse("", world.schema), feature)


@pytest.mark.parametrize(
    ("bins", "expected"),
    [
        *[(bins, "bin_count") for bins in (0, 20_000, [], [1.0])],
        *[(bins, "edges") for bins in ([2.0, 1.0], [1.0, 1.0], [0.0, np.inf])],
    ],
)
def test_summarise_invalid_bins_raises(world, bins, expected):
    graph = MetadataGraph(world.schema)
    with raises(InputError, expected=expected):
        graph.summarise(parse("", world.schema), "gusts", bins=bins)


@pytest.mark.parametrize("bins", [[4.7, 5.3, 6.1], 2])
def test_summarise_puts_a_float32_into_the_bin_that_begins_with_its_short_text(bins):
    schema = Schema("sea", [Feature("t", type="float32")])
    graph, values = MetadataGraph(schema), [4.7, 5.3, 6.1]
    columns = {
        "cell": pa.array(range(3), pa.uint64()),
        "bucket": times_from_micros(np.zeros(3, dtype=np.int64)),
        "t": pa.array(values, pa.float32()),
        "row": pa.array(range(3), pa.int32()),
        "rows": pa.array([1] * 3, pa.int32()),
    }
    batch = pa.RecordBatch.from_pydict(
        {name: columns[name] for name in schema.graph_schema.names}, schema=schema.graph_schema
    )
    graph.insert(batch, partition=0, sequence=1)
    found = graph.summarise(parse("", schema), "t", bins=bins).histogram
    assert found.counts.sum() == 3
    if isinstance(bins, list):
        assert (found.edges.tolist(), found.counts.tolist()) == (bins, [1, 2])


def test_summarise_infinite_value_without_edges_raises(world):
    graph, batch = MetadataGraph(world.schema), world.batch(1, 3)
    at = batch.schema.get_field_index("temperature")
    batch = batch.set_column(at, batch.schema.field(at), pa.array([1.0, np.inf, 2.0]))
    graph.insert(batch, partition=0, sequence=1)
    everything = parse("", world.schema)
    with raises(InputError, expected="finite_values"):
        graph.summarise(everything, "temperature", bins=3)
    found = graph.summarise(everything, "temperature", bins=[0.0, 1.5])
    assert found.maximum == np.inf
    assert found.histogram.counts.tolist() == [batch.column("rows")[0].as_py()]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    text=st.integers(0, 20),
    feature=st.sampled_from(["temperature", "gusts", "raining"]),
    bins=st.none() | EDGES,
)
@examples(60)
def test_merge_summaries_random_parts_equals_whole(
    world, query_texts, sizes, seed, text, feature, bins
):
    query, whole, parts = parse(query_texts[text], world.schema), MetadataGraph(world.schema), []
    for number, size in enumerate(sizes):
        part, batch = MetadataGraph(world.schema), world.batch(seed + number, size)
        for graph in (part, whole):
            graph.insert(batch, partition=number, sequence=1)
        parts.append(part.summarise(query, feature, bins=bins))
    one, other = merge_summaries(parts), whole.summarise(query, feature, bins=bins)
    same = ("paths", "observations", "missing", "minimum", "maximum")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    assert (one.total, one.mean) == (pytest.approx(other.total), pytest.approx(other.mean))
    if bins is not None:
        assert one.histogram.edges.tolist() == bins
        assert one.histogram.counts.tolist() == other.histogram.counts.tolist()


def test_merge_summaries_none_is_empty():
    found = merge_summaries([])
    assert (found.paths, found.observations, found.minimum, found.mean) == (0, 0, None, None)
    assert found.histogram is None


@pytest.mark.parametrize(
    ("minimum", "maximum"),
    [
        (1.0, np.nextafter(1.0, 2.0)),
        (1e300, 1e300),
        (-1.7976931348623157e308, -1.7976931348623157e308),
        (-3.0, -3.0),
        (0.0, 5e-324),
    ],
)
def test_equal_edges_close_values_ascend(minimum, maximum):
    edges = equal_edges(minimum, maximum, bins=10)
    assert 2 <= len(edges) <= 11
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= minimum <= maximum <= edges[-1]


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ([[1.7e308], [1.7e308]], np.inf),
        ([[-1.7e308, 1.7e308], [-1.7e308], [1.7e308]], 0.0),
        ([[1.7e308], [1.7e308], [-1.7e308]], 1.7e308),
        ([[np.inf], [-np.inf]], np.nan),
        ([[np.inf, 1.0], [2.0]], np.inf),
    ],
)
def test_summarise_total_beyond_double_is_infinite(parts, total):
    schema = Schema("far", [Feature("t")])
    summaries = []
    whole = MetadataGraph(schema, memtable_paths_max=1)
    for sequence, values in enumerate(parts, 1):
        table = pa.table(
            {
                "latitude": np.zeros(len(values)),
                "longitude": np.zeros(len(values)),
                "time": times_from_micros(np.zeros(len(values), dtype=np.int64)),
                "t": np.array(values),
            }
        )
        batch = paths.index(schema, table.cast(schema.observation_schema))[1]
        alone = MetadataGraph(schema)
        for graph in (alone, whole):
            graph.insert(batch, partition=0, sequence=sequence)
        summaries.append(alone.summarise(parse("", schema), "t"))
    found = whole.summarise(parse("", schema), "t"), merge_summaries(summaries)
    flat = [value for values in parts for value in values]
    for summary in found:
        assert summary.total == pytest.approx(total, nan_ok=True)
        assert (summary.minimum, summary.maximum) == (min(flat), max(flat))
        assert summary.observations == len(flat)


@pytest.mark.parametrize("parts", [[[2**53 + 1, 3], [2**53 + 3]], [[-(2**63), 2**63 - 1], [0]]])
def test_extremes_of_integers_are_exact(parts):
    schema = Schema("d", [Feature("n", type="int")], geohash_precision=1, time_bucket="1h")
    graphs, whole = [], MetadataGraph(schema)
    for sequence, values in enumerate(parts, start=1):
        where = np.zeros(len(values), dtype=np.int64)
        columns = [where, where, times_from_micros(where), pa.array(values)]
        table = pa.table(columns, names=["latitude", "longitude", "time", "n"])
        batch = paths.index(schema, table.cast(schema.observation_schema))[1]
        graphs.append(MetadataGraph(schema))
        for graph in (graphs[-1], whole):
            graph.insert(batch, partition=0, sequence=sequence)
    query = parse("", schema)
    merged = merge_summaries([graph.summarise(query, "n") for graph in graphs])
    flat = [value for values in parts for value in values]
    described = whole.describe(frozenset([0])).numbers["n"]
    for summary in (whole.summarise(query, "n", bins=3), merged, described):
        assert (summary.minimum, summary.maximum) == (min(flat), max(flat))
        assert type(summary.minimum) is int
        sent = Summary.of(json.loads(json.dumps(summary.facts())))
        assert (sent.minimum, sent.maximum) == (min(flat), max(flat))
        assert type(sent.minimum) is int
        assert sent.facts() == summary.facts()


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    text=st.integers(0, 20),
    after=st.integers(0, 2),
    until=st.none() | st.integers(0, 6),
)
@examples(100)
def test_count_cells_random_history_equals_observations(
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
