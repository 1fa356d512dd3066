"""The cache against a dumb one: a set of paths and two cursors."""

from cache_log import PARTITIONS, cursors, logs, paths_of
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq import cache as module
from galileo.ccq.answer import compose
from galileo.ccq.cache import LabelCache
from galileo.ccq.packs import PackedLabels
from galileo.cursor import ORIGIN, Cursor
from galileo.testing.simulator.logs import to_labels, to_paths

operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "drop", "advance", "shrink", "gather", "gathered"]),
        cursors,
    ),
    max_size=14,
)


@given(logs, cursors, operations, cursors, st.integers(1, 3), st.integers(1, 30), st.integers(1, 8))
def test_the_cache_holds_what_the_log_has_between_its_cursors(
    log, base, steps, after, gathered, labels_max, chunk_labels
):
    original, module.CHUNK_LABELS = module.CHUNK_LABELS, chunk_labels
    try:
        cache = LabelCache(base, chunks_gathered=gathered)
        out: list[PackedLabels] = []
        for kind, cursor in steps:
            apply(cache, kind, cursor, log, out)
            cache.check()
        judge(cache, log, after, labels_max)
    finally:
        module.CHUNK_LABELS = original


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
    elif kind == "gather":
        held = list(cache._chunks)
        crowd = cache.gather()
        out.extend([] if crowd is None else [crowd])
        assert cache._chunks == held
    elif kind == "gathered":
        held = sorted(to_paths(everything(cache)))
        for crowd in out:
            cache.take_gathered(crowd.gathered(compressed=True))
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
def test_answers_are_cut_between_commits_and_starve_nobody(log, after, labels_max):
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


def test_a_backfill_is_joined_with_the_cache():
    cache = LabelCache(Cursor({0: 5, 1: 5}))
    cache.append(to_labels([(0, 6, 0, 1), (1, 6, 0, 1)]), reached=Cursor({0: 6, 1: 6}))
    found = to_labels([(0, 5, 0, 1), (1, 2, 0, 1)])
    reached = Cursor({0: 5, 1: 3})
    answer = compose(found, cache.select(reached, labels_max=9), labels_max=9)
    assert [path[:2] for path in to_paths(answer.labels)] == [(0, 5), (1, 2), (0, 6)]
    assert answer.cursor == Cursor({0: 6, 1: 3})


def test_an_empty_cache_answers_with_its_position():
    cache = LabelCache(ORIGIN)
    cache.append(None, reached=Cursor({2: 9}))
    selection = cache.select(ORIGIN, labels_max=5)
    assert (selection.labels, selection.covered) == (None, Cursor({2: 9}))
