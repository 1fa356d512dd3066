from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import InputError, InternalError
from galileo.graph.columns import columns_from_batch
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.synopsis import Synopsis, SynopsisDelta, SynopsisVersion
from galileo.graph.synopsis_entries import Entries, EntryGrid, grids, log_bucket_ends, log_buckets
from galileo.model.schema import Feature, Schema
from galileo.query.query import parse

SEEDS = st.integers(0, 2**32)
LIMITS = st.integers(1, 40)


def _same(one: Entries, other: Entries) -> bool:
    """Whether they say the same; numbers of paths need only lie in the same brackets."""
    mine = (one.key, *one.bounds[:-1], log_buckets(one.paths))
    theirs = (other.key, *other.bounds[:-1], log_buckets(other.paths))
    return all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))


def _through_the_wire(world, delta):
    return SynopsisDelta.from_bytes(world.schema, delta.to_bytes(world.schema))


@given(
    seed=SEEDS,
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=10),
    limit=LIMITS,
    text=st.integers(0, 20),
    days=st.sampled_from([1, 40, 400]),
    delivered=st.lists(st.integers(0, 2), min_size=10, max_size=10),
)
@examples(150)
def test_candidates_random_deltas_prune_no_match(
    world, dumb_store, query_texts, seed, sizes, limit, text, days, delivered
):
    """Whatever of the deltas arrives: what is pruned up to a sequence has no match up to it."""
    store, graph = dumb_store(world.schema), FeatureGraph(world.schema)
    synopses = {p: Synopsis(world.schema, partition=p, epoch=1, entries_max=limit) for p in (0, 1)}
    query = parse(query_texts[text], world.schema)
    for number, size in enumerate(sizes):
        partition, sequence = number % 2, number // 2 + 1
        batch = world.batch(seed + number, size, hours=24 * days)
        store.insert(batch, partition=partition, sequence=sequence)
        synopses[partition].add(batch, sequence)
        synopses[partition].check()
        if delivered[number]:
            delta = synopses[partition].changes_since(graph.version(partition))
            graph.apply(_through_the_wire(world, delta))
        found = graph.candidates(query, [0, 1, 2])
        assert found.maybe | found.pruned.keys() == {0, 1, 2}
        assert not found.maybe & found.pruned.keys()
        assert 2 in found.maybe
        covered = Cursor(found.pruned)
        assert store.scan(query, until=covered, partitions=found.pruned.keys()) == []
        for pruned, stamp in found.pruned.items():
            assert stamp == graph.version(pruned).sequence


def test_candidates_distant_query_prunes_partitions(world):
    graph = FeatureGraph(world.schema)
    for partition in range(4):
        synopsis = Synopsis(world.schema, partition=partition, epoch=1)
        synopsis.add(world.batch(partition + 1, 50), 7)
        graph.apply(synopsis.changes_since(None))
    for text in (
        "temperature > 400",
        "geohash LIKE 's%'",
        "T_AFTER(datetime, TIMESTAMP('2013-01-01T00:00:00Z'))",
        "S_INTERSECTS(geometry, BBOX(10, -40, 12, -38))",
        "gusts = 77 AND temperature > 280",
    ):
        found = graph.candidates(parse(text, world.schema), range(5))
        assert found.pruned == {0: 7, 1: 7, 2: 7, 3: 7}, text
        assert found.maybe == {4}


def test_synopsis_changes_since_sends_changed_entries_only(world):
    synopsis = Synopsis(world.schema, partition=0, epoch=1)
    batch = world.batch(5, 200)
    sent, last = [], None
    for sequence in range(1, 42):
        synopsis.add(batch, sequence)
        delta = synopsis.changes_since(last)
        sent.append(len(delta.state.entries))
        last = delta.state.version
        assert (delta.base, last) == (sequence - 1, SynopsisVersion(1, sequence))
    assert sent[0] == sent[1] > 10, "all is new, then all is twice as much"
    assert sum(sent[31:]) < 0.4 * 10 * sent[0], "the same a fortieth time is little news"
    synopsis.add(world.batch(6, 0), 42)
    empty = synopsis.changes_since(SynopsisVersion(1, 41))
    assert (len(empty.state.entries), empty.state.version) == (0, SynopsisVersion(1, 42))
    assert synopsis.version == SynopsisVersion(1, 42)
    synopsis.add(world.batch(7, 1), 43)
    assert len(synopsis.changes_since(SynopsisVersion(1, 42)).state.entries) <= 1


@given(
    seed=SEEDS,
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    limit=LIMITS,
    text=st.integers(-1, 20),
    days=st.sampled_from([1, 40]),
    delivered=st.lists(st.booleans(), min_size=12, max_size=12),
)
@examples(300)
def test_estimate_random_deltas_bound_number_of_matches(
    world, dumb_store, query_texts, seed, sizes, limit, text, days, delivered
):
    store, graph = dumb_store(world.schema), FeatureGraph(world.schema)
    synopses = {p: Synopsis(world.schema, partition=p, epoch=1, entries_max=limit) for p in (0, 1)}
    query = parse("" if text < 0 else query_texts[text], world.schema)
    for number, size in enumerate(sizes):
        partition, sequence = number % 2, number // 2 + 1
        batch = world.batch(seed + number, size, hours=24 * days)
        store.insert(batch, partition=partition, sequence=sequence)
        synopses[partition].add(batch, sequence)
        if delivered[number]:
            graph.apply(synopses[partition].changes_since(graph.version(partition)))
        assert graph.entries == sum(len(state.entries) for state in graph._states.values())
        found = graph.estimate(query)
        matching = len(store.scan(query, until=found.covered, partitions=found.covered.keys()))
        assert found.low <= matching <= found.high
        assert all(graph.version(p).sequence == s for p, s in found.covered.items())
        if text < 0:
            assert matching * 8 <= found.low * 9
            assert found.high * 8 <= matching * 9


def test_estimate_decided_by_bounds_has_lower_bound(world, dumb_store):
    store, graph = dumb_store(world.schema), FeatureGraph(world.schema)
    synopsis = Synopsis(world.schema, partition=0, epoch=1)
    for sequence in range(1, 9):
        batch = world.batch(sequence, 300)
        store.insert(batch, partition=0, sequence=sequence)
        synopsis.add(batch, sequence)
    graph.apply(synopsis.changes_since(None))
    for text in ("geohash LIKE '9x%'", "NOT (geohash LIKE 'd%')", "datetime < DATE('2012-02-28')"):
        query = parse(text, world.schema)
        matching, found = len(store.scan(query)), graph.estimate(query)
        assert 0 < found.low == matching <= found.high <= 1.125 * matching, text
    nowhere = graph.estimate(parse("temperature > 400", world.schema))
    assert (nowhere.low, nowhere.high, nowhere.covered) == (0, 0, Cursor({0: 8}))
    assert FeatureGraph(world.schema).estimate(parse("", world.schema)).high == 0


@given(st.lists(st.integers(0, 2**50), min_size=1))
def test_log_buckets_random_counts_are_narrow_and_ordered(counts):
    counts = np.array(sorted(counts), dtype=np.int64)
    ends = log_bucket_ends(counts)
    assert (np.diff(log_buckets(counts)) >= 0).all()
    assert (log_buckets(ends) == log_buckets(counts)).all()
    assert (log_buckets(ends + 1) == log_buckets(counts) + 1).all()
    assert (counts <= ends).all()
    assert (8 * (ends - counts) <= counts).all()


@given(
    seed=SEEDS,
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    limit=LIMITS,
    days=st.sampled_from([1, 90]),
    luck=st.randoms(use_true_random=False),
)
def test_feature_graph_lost_repeated_or_late_delta_keeps_acknowledged_state(
    world, seed, sizes, limit, days, luck: random.Random
):
    """The receiver's state is at all times the owner's at the version that it acknowledges."""
    synopsis = Synopsis(world.schema, partition=3, epoch=1, entries_max=limit)
    graph, sent, history = FeatureGraph(world.schema), [], {0: None}
    acknowledged = None
    for number, size in enumerate(sizes):
        synopsis.add(world.batch(seed + number, size, hours=24 * days), number + 1)
        history[number + 1] = synopsis.changes_since(None).state
        sent.append(synopsis.changes_since(acknowledged))
        for delta in luck.choices(sent, k=luck.randrange(3)):
            answer = graph.apply(_through_the_wire(world, delta))
            acknowledged = answer if luck.random() < 0.5 else acknowledged
            if answer.sequence:
                assert _same(graph._states[3].entries, history[answer.sequence].entries)
                assert graph.entries == len(history[answer.sequence].entries)
    final = graph.apply(synopsis.changes_since(graph.version(3)))
    assert final == synopsis.version
    assert _same(graph._states[3].entries, synopsis.changes_since(None).state.entries)


def test_feature_graph_delta_after_gap_is_ignored(world):
    synopsis, graph = Synopsis(world.schema, partition=0, epoch=1), FeatureGraph(world.schema)
    synopsis.add(world.batch(1, 10), 1)
    synopsis.add(world.batch(2, 10), 2)
    assert graph.apply(synopsis.changes_since(SynopsisVersion(1, 1))) == SynopsisVersion(1, 0)
    assert graph.version(0) is None
    assert graph.candidates(parse("gusts = 77", world.schema), [0]).maybe == {0}


def test_feature_graph_restarted_owner_replaces_state(world):
    graph = FeatureGraph(world.schema)
    batches = [world.batch(seed, 30, hours=24 * 60) for seed in range(4)]
    first = Synopsis(world.schema, partition=0, epoch=1)
    for number, batch in enumerate(batches[:3]):
        first.add(batch, number + 1)
    old = first.changes_since(None)
    known = graph.apply(old)

    second = Synopsis(world.schema, partition=0, epoch=2, entries_max=40)
    second.add(batches[0], 1)
    early = second.changes_since(known)
    assert early.base == 0
    assert graph.apply(early) == known, "an owner that still recovers knows less"
    for number, batch in enumerate(batches[1:]):
        second.add(batch, number + 2)
    assert graph.apply(second.changes_since(known)) == SynopsisVersion(2, 4)
    assert graph.apply(old) == SynopsisVersion(2, 4)
    assert _same(graph._states[0].entries, second.changes_since(None).state.entries)
    assert graph.entries == len(graph._states[0].entries)


@given(seed=SEEDS, limit=st.integers(32, 60))
def test_synopsis_many_entries_stays_within_limit(world, seed, limit):
    synopsis = Synopsis(world.schema, partition=0, epoch=1, since=7, entries_max=limit)
    rng = np.random.default_rng(seed)
    for sequence in range(8, 13):
        batch = world.batch(seed + sequence, 300, hours=24 * 3000)
        cells = rng.integers(0, 1 << 20, 300, dtype=np.uint64)
        synopsis.add(batch.set_column(0, batch.schema.field(0), pa.array(cells)), sequence)
        state = synopsis.changes_since(None).state
        assert len(state.entries) <= limit
        assert (state.since, state.version) == (7, SynopsisVersion(1, sequence))


@pytest.mark.parametrize("precision", [1, 2, 3, 9])
@pytest.mark.parametrize("bucket", ["1m", "3d"])
def test_grids_any_schema_nest_and_end(precision, bucket):
    schema = Schema("g", [Feature("a")], geohash_precision=precision, time_bucket=bucket)
    steps = grids(schema)
    assert steps[0] == EntryGrid(min(precision, 3), max(86_400_000_000, schema.time_bucket_us))
    assert steps[-1] == EntryGrid(1, None)
    assert len(set(steps)) == len(steps)
    for fine, coarse in itertools.pairwise(steps):
        assert coarse.precision <= fine.precision
        assert coarse.width_us is None or coarse.width_us % fine.width_us == 0


@given(seed=SEEDS, step=st.integers(1, 4))
def test_entries_coarsen_random_batch_equals_coarse_grouping(world, seed, step):
    columns = columns_from_batch(world.schema, world.batch(seed, 80, hours=24 * 90))
    steps = grids(world.schema)
    fine = Entries.of(world.schema, columns, grid=steps[step - 1], sequence=1)
    coarse = Entries.of(world.schema, columns, grid=steps[step], sequence=1)
    again = fine.coarsen(world.schema, grid=steps[step], sequence=1)
    assert _same(coarse, again)


def test_feature_graph_delta_of_other_dataset_raises(world):
    synopsis = Synopsis(world.schema, partition=0, epoch=1)
    synopsis.add(world.batch(1, 3), 1)
    raw = synopsis.changes_since(None).to_bytes(world.schema)
    other = Schema("other", world.schema.features, geohash_precision=4)
    wider = Schema("obs", [*world.schema.features, Feature("more")], geohash_precision=4)
    for schema, data in (
        (other, raw),
        (wider, raw),
        (world.schema, b"?"),
        (world.schema, raw[:99]),
    ):
        with raises(InputError, dataset="obs"):
            SynopsisDelta.from_bytes(schema, data)
    with raises(InputError, expected="same_dataset", dataset="obs"):
        FeatureGraph(other).apply(synopsis.changes_since(None))


def test_synopsis_add_earlier_commit_raises(world):
    synopsis = Synopsis(world.schema, partition=0, epoch=1)
    synopsis.add(world.batch(1, 3), 4)
    with raises(InternalError, expected="later_commit", sequence=4):
        synopsis.add(world.batch(1, 3), 4)
