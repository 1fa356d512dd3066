from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.graph.columns import (
    Commits,
    StringDictionary,
    columns_from_batch,
    paths_from_batch,
    to_labels,
)
from galileo.graph.memtable import Memtable
from galileo.graph.run_scan import BoundQuery, RunScan
from galileo.graph.sorted_runs import (
    BLOCK_PATHS,
    COMPACTION_GROWTH,
    RUN_PATHS_MAX,
    SequenceBounds,
    compact,
    compaction_start,
    seal,
)
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.query.query import parse


def _head(world, sizes, *, seed=0, texts=None):
    head, texts = Memtable(world.schema), StringDictionary() if texts is None else texts
    for number, size in enumerate(sizes):
        batch = world.batch(seed + number, size)
        paths = paths_from_batch(
            columns_from_batch(world.schema, batch), batch, commit=head.commits, texts=texts
        )
        head.append(paths, Commits.of(number % 3, [number + 1]))
    return head


def _identities(run):
    """(partition, sequence, row) of each path, in the order of the run."""
    commits, paths = run.commits, run.paths
    place = zip(commits.partition[paths.commit], commits.sequence[paths.commit], strict=True)
    return [(int(p), int(s), int(r)) for (p, s), r in zip(place, paths.row, strict=True)]


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8), seed=st.integers(0, 999))
def test_seal_random_head_is_sorted(world, sizes, seed):
    view = _head(world, sizes, seed=seed).view()
    run = seal(view.paths, view.commits)
    keys = list(
        zip(run.paths.columns.cell.tolist(), run.paths.columns.bucket.tolist(), strict=True)
    )
    assert keys == sorted(keys)
    assert sorted(_identities(run)) == sorted(_identities(view))


@given(
    groups=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=4)
)
def test_compact_random_runs_holds_all_paths(world, groups):
    texts = StringDictionary()
    views = [_head(world, g, seed=10 * n, texts=texts).view() for n, g in enumerate(groups)]
    runs = [seal(view.paths, view.commits) for view in views]
    merged, _ = compact(runs)
    assert sorted(_identities(merged)) == sorted(i for run in runs for i in _identities(run))
    assert (np.diff(merged.paths.columns.cell.astype(np.int64)) >= 0).all()


def test_memtable_view_later_inserts_do_not_change_it(world):
    head = _head(world, [40, 10])
    view = head.view()
    before = [array.copy() for array in view.paths.arrays()]
    texts = StringDictionary()
    for number in range(20):
        batch = world.batch(100 + number, 30)
        paths = paths_from_batch(
            columns_from_batch(world.schema, batch), batch, commit=head.commits, texts=texts
        )
        head.append(paths, Commits.of(0, [10 + number]))
    assert len(view) == 50
    assert len(head) == 650
    for old, now in zip(before, view.paths.arrays(), strict=True):
        np.testing.assert_array_equal(old, now)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50)), max_size=30))
def test_sequence_bounds_random_commits_hold_ends(pairs):
    commits = Commits(
        np.array([p for p, _ in pairs], dtype=np.int32),
        np.array([s for _, s in pairs], dtype=np.int64),
    )
    spans = SequenceBounds.of(commits)
    found = dict(
        zip(
            spans.partition.tolist(),
            zip(spans.lo.tolist(), spans.hi.tolist(), strict=True),
            strict=True,
        )
    )
    expected = {
        partition: (
            min(s for p, s in pairs if p == partition),
            max(s for p, s in pairs if p == partition),
        )
        for partition, _ in pairs
    }
    assert found == expected


@pytest.mark.slow
@given(seed=st.integers(0, 99), chosen=st.sets(st.integers(0, 39)))
def test_zone_map_may_hold_random_commits_misses_none(world, seed, chosen):
    view = _head(world, [250] * 40, seed=seed).view()
    run = seal(view.paths, view.commits)
    mask = np.isin(np.arange(40), sorted(chosen))
    held = mask[run.paths.commit]
    blocks = [held[s : s + BLOCK_PATHS].any() for s in range(0, len(run), BLOCK_PATHS)]
    assert (~np.array(blocks) | run.zone_map.may_hold(mask)).all()
    assert not run.zone_map.may_hold(np.zeros(40, dtype=np.bool_)).any()


@given(st.lists(st.integers(1, 4_000_000), max_size=300))
def test_compaction_start_random_sizes_keeps_runs_few_and_cheap(arriving):
    sizes: list[int] = []
    rewritten = 0
    for size in arriving:
        sizes.append(size)
        while (start := compaction_start(sizes)) is not None:
            merged = sum(sizes[start:])
            assert merged >= COMPACTION_GROWTH * sizes[start]
            rewritten += merged
            sizes = [*sizes[:start], merged]
    total = sum(arriving)
    full = sum(size >= RUN_PATHS_MAX for size in sizes)
    assert sum(sizes) == total
    assert len(sizes) - full <= 1 + math.log(max(total, 1), 4 / 3)
    assert rewritten <= total * (1 + math.log(max(total, 1), 4 / 3))


def test_compaction_start_equal_runs_merge_by_four():
    sizes: list[int] = []
    for _ in range(64):
        sizes.append(10)
        while (start := compaction_start(sizes)) is not None:
            sizes = [*sizes[:start], sum(sizes[start:])]
    assert sizes == [640]
    assert compaction_start([RUN_PATHS_MAX, 5, 5, 5]) is None
    assert compaction_start([RUN_PATHS_MAX, 5, 5, 5, 5]) == 1
    assert compaction_start([]) is None


@pytest.mark.parametrize("missing", [False, True])
def test_memtable_whole_integers_take_bytes_of_floats(missing):
    names = ("a", "b", "c", "d")
    schema = Schema("whole", [Feature(name, type="int") for name in names], geohash_precision=5)
    rng, texts = np.random.default_rng(1), StringDictionary()
    head = Memtable(schema)
    for commit in range(2):
        columns = [pa.array(rng.integers(0, 99, 500, dtype=np.uint64))]
        columns += [times_from_micros(rng.integers(0, 9, 500) * schema.time_bucket_us)]
        columns += [
            pa.array(rng.integers(0, 9, 500), mask=(rng.random(500) < 0.5) & missing) for _ in names
        ]
        columns += [pa.array(np.arange(500, dtype=np.int32)), pa.array(np.ones(500, np.int32))]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema.path_schema)
        paths = paths_from_batch(
            columns_from_batch(schema, batch), batch, commit=commit, texts=texts
        )
        head.append(paths, Commits.of(0, [commit + 1]))
    view = head.view()
    run, _ = compact([seal(view.paths, view.commits), seal(view.paths, view.commits)])
    assert run.paths.nbytes == 2000 * (64 if missing else 60)
    query = parse("a >= 3 AND b IS NOT NULL AND NOT (c = 2)", schema)
    found = RunScan.of(run, BoundQuery.of(query, texts), commits=None).matches()
    a, b, c = (run.paths.columns.features[name] for name in "abc")
    wanted = (a.values >= 3) & a.valid & b.valid & (c.values != 2) & c.valid
    assert found.tolist() == np.flatnonzero(wanted).tolist()
    labels = to_labels(
        schema.label_schema, run.paths.take(found), commits=run.commits, texts=texts
    ).to_pydict()
    assert labels["a"] == a.values[wanted].tolist()
    assert (None in labels["d"]) == missing
