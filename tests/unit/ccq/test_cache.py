"""The cache against a dumb one: a set of paths and two cursors."""

from unittest import mock

import numpy as np
import pytest
from cache_log import PARTITIONS, cursors, logs, paths_of
from hypothesis import given
from hypothesis import strategies as st
from simulator.logs import to_labels, to_paths

from galileo.ccq import cache as module
from galileo.ccq.cache import LabelCache
from galileo.ccq.fetches import compose
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.packing import Compression
from galileo.packs import PackedLabels, pack_many

operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "drop", "advance", "shrink", "gather", "rest", "gathered"]
        ),
        cursors,
    ),
    max_size=14,
)


@given(logs, cursors, operations, cursors, st.integers(1, 3), st.integers(1, 30), st.integers(1, 8))
def test_cache_random_operations_equal_log_between_cursors(
    log, base, steps, after, gathered, labels_max, chunk_labels
):
    with mock.patch.multiple(
        module, CHUNK_LABELS=chunk_labels, LABELS_FEW=1, CHUNKS_COMPACTED=gathered
    ):
        cache = LabelCache(base)
        out: list[PackedLabels] = []
        for kind, cursor in steps:
            apply(cache, kind, cursor, log, out)
            cache.check()
        judge(cache, log, after, labels_max)


def everything(cache: LabelCache) -> PackedLabels | None:
    return cache.select(cache.base, labels_max=10_000).labels


def apply(cache: LabelCache, kind: str, cursor: Cursor, log, out: list[PackedLabels]) -> None:
    base, until = cache.base, cache.until
    if kind == "append":
        labels = to_labels(paths_of(log, until.meet(Cursor({0: 2})), cursor))
        cache.append(labels, reached=cursor)
        assert (cache.base, cache.until) == (base, until.join(cursor))
    elif kind == "drop":
        cache.drop(cursor)
        assert (cache.base, cache.until) == (base.join(cursor.meet(until)), until)
    elif kind == "advance":
        cache.advance(cursor)
        assert (cache.base, cache.until) == (base.join(cursor), until.join(cursor))
    elif kind in ("gather", "rest"):
        held = list(cache._chunks)
        crowd = cache.compact() if kind == "gather" else cache.compact_at_rest()
        out.extend([] if crowd is None else [crowd])
        assert cache._chunks == held
    elif kind == "gathered":
        held = sorted(to_paths(everything(cache)))
        for crowd in out:
            cache.apply_compacted(crowd.compact(Compression.LZ4))
        out.clear()
        assert sorted(to_paths(everything(cache))) == held
    else:
        held = len(cache)
        assert cache.shrink() == (held > 0)
        assert cache.until == until
        assert cache.base.covers(base)
        assert len(cache) < held or held == 0


def judge(cache: LabelCache, log, after: Cursor, labels_max: int) -> None:
    selection = cache.select(after, labels_max=labels_max)
    assert selection.covered.covers(after)
    got = sorted(to_paths(selection.labels))
    assert got == paths_of(log, after, selection.covered)
    whole = cache.select(after, labels_max=10_000)
    assert whole.whole
    assert whole.covered == after.join(
        {p: s for p, s in cache.until.items() if after[p] >= cache.base[p]}
    )
    assert selection.whole or len(got) >= labels_max


@given(logs, cursors, st.integers(1, 40))
def test_cache_select_random_limit_cuts_between_commits(log, after, labels_max):
    until = Cursor(dict.fromkeys(PARTITIONS, 12))
    cache = LabelCache(after)
    cache.append(to_labels(paths_of(log, after, until)), reached=until)
    delivered, cursor, rounds = [], after, 0
    while True:
        answer = compose(None, cache.select(cursor, labels_max=labels_max), labels_max=labels_max)
        got = to_paths(answer.labels)
        assert got == paths_of(log, cursor, answer.cursor)
        assert len(got) <= labels_max or len({(p, s) for p, s, _, _ in got}) == 1
        delivered += got
        cursor, rounds = answer.cursor, rounds + 1
        if not answer.is_cut:
            break
    assert cursor == until.join(after)
    assert sorted(delivered) == paths_of(log, after, until)
    assert rounds <= len(delivered) + 1


def test_compose_backfill_and_cache_are_joined():
    cache = LabelCache(Cursor({0: 5, 1: 5}))
    cache.append(to_labels([(0, 6, 0, 1), (1, 6, 0, 1)]), reached=Cursor({0: 6, 1: 6}))
    found = to_labels([(0, 5, 0, 1), (1, 2, 0, 1)])
    reached = Cursor({0: 5, 1: 3})
    answer = compose(found, cache.select(reached, labels_max=9), labels_max=9)
    assert [path[:2] for path in to_paths(answer.labels)] == [(0, 5), (1, 2), (0, 6)]
    assert answer.cursor == Cursor({0: 6, 1: 3})


def test_cache_select_empty_gives_position():
    cache = LabelCache(EMPTY_CURSOR)
    cache.append(None, reached=Cursor({2: 9}))
    selection = cache.select(EMPTY_CURSOR, labels_max=5)
    assert (selection.labels, selection.covered) == (None, Cursor({2: 9}))


def rested(cache: LabelCache) -> list[int]:
    """The cache after it was tidied: labels of each chunk."""
    crowd = cache.compact_at_rest()
    if crowd is not None:
        cache.apply_compacted(crowd.compact(Compression.NONE))
    cache.check()
    return [chunk.labels for chunk in cache._chunks]


@pytest.fixture
def _few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten labels are few."""
    monkeypatch.setattr(module, "LABELS_FEW", 10)


def grown(*sizes: int) -> LabelCache:
    cache = LabelCache(EMPTY_CURSOR)
    for number, size in enumerate(sizes, 1):
        found = to_labels([(0, number, row, 1) for row in range(size)])
        cache.append(found, reached=Cursor({0: number}))
    return cache


@pytest.mark.usefixtures("_few_labels")
def test_cache_compact_at_rest_gives_one_pack():
    cache = grown(12, 40, 38)
    assert cache.compact() is None
    before = to_paths(everything(cache))
    assert rested(cache) == [90]
    assert len(everything(cache).packs) == 1
    assert sorted(to_paths(everything(cache))) == sorted(before)
    assert cache.compact_at_rest() is None, "there is nothing left to do"


@pytest.mark.usefixtures("_few_labels")
def test_cache_compact_at_rest_large_chunk_is_kept():
    assert rested(grown(400, 20)) == [400, 20]
    assert rested(grown(300, 20)) == [320]
    assert rested(grown(4, 3, 3)) == [4, 3, 3], "few labels are left alone"
    assert rested(grown(11)) == [11]


@pytest.mark.usefixtures("_few_labels")
def test_cache_compact_at_rest_shared_pack_is_left():
    rows = [(0, sequence, row, 1) for sequence in (1, 2) for row in range(20)]
    together = to_labels(rows)
    mine, _ = pack_many(
        together.schema, together.labels().table, np.array([0, 20]), compression=Compression.NONE
    )
    cache = LabelCache(EMPTY_CURSOR)
    cache.append(mine, reached=Cursor({0: 1}))
    assert not everything(cache).is_whole
    assert rested(cache) == [20]
    assert everything(cache).is_whole
    assert to_paths(everything(cache)) == rows[:20]


def test_cache_gone_past_reached_is_reported_later():
    """A scan learns what is gone after it has begun, so that may lie further on."""
    cache = LabelCache(Cursor({0: 2}))
    cache.append(None, reached=Cursor({0: 5}), gone=Cursor({0: 9}))
    cache.check()
    assert cache.gone.between(EMPTY_CURSOR, cache.until) == (CommitRange(0, 3, 5),)
    cache.append(None, reached=Cursor({0: 12}), gone=Cursor({0: 9}))
    cache.check()
    assert cache.gone.between(EMPTY_CURSOR, cache.until) == (CommitRange(0, 3, 9),)
