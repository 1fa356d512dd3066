"""Cursors against plain dictionaries."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor

partitions = st.integers(0, 6)
positions = st.dictionaries(partitions, st.integers(0, 5), max_size=6)
cursors = positions.map(Cursor)
commits = st.lists(st.tuples(partitions, st.integers(0, 6)), max_size=20)


def everywhere(cursor: Cursor) -> list[int]:
    return [cursor[partition] for partition in range(8)]


@given(positions)
def test_cursor_absent_partition_is_zero(raw: dict[int, int]) -> None:
    cursor = Cursor(raw)
    assert everywhere(cursor) == [raw.get(partition, 0) for partition in range(8)]
    assert dict(cursor) == {p: s for p, s in raw.items() if s > 0}
    assert list(cursor) == sorted(cursor)
    assert all(partition in cursor for partition in cursor)
    assert 7 not in cursor
    assert len(cursor) == len(dict(cursor))


@given(positions, positions)
def test_cursor_equality_and_hash_are_of_positions(
    one: dict[int, int], other: dict[int, int]
) -> None:
    same = all(one.get(p, 0) == other.get(p, 0) for p in range(8))
    assert (Cursor(one) == Cursor(other)) == same
    assert not same or hash(Cursor(one)) == hash(Cursor(other))
    assert Cursor(one) != dict(Cursor(one))


@given(positions)
def test_cursor_order_of_positions_is_irrelevant(raw: dict[int, int]) -> None:
    backwards = dict(reversed(raw.items()))
    assert Cursor(backwards) == Cursor(raw)
    assert hash(Cursor(backwards)) == hash(Cursor(raw))
    assert repr(Cursor(backwards)) == repr(Cursor(raw))


@given(st.lists(cursors, max_size=4))
def test_cursor_joined_is_the_join_of_all(many: list[Cursor]) -> None:
    one_by_one = EMPTY_CURSOR
    for cursor in many:
        one_by_one = one_by_one.join(cursor)
    assert Cursor.joined(many) == one_by_one


@given(cursors)
def test_cursor_pickle_and_numpy_round_trip(cursor: Cursor) -> None:
    assert pickle.loads(pickle.dumps(cursor)) == cursor
    numpy = Cursor({np.int32(p): np.int64(s) for p, s in cursor.items()})
    assert numpy == cursor
    assert all(type(p) is int and type(s) is int for p, s in numpy.items())


@given(cursors, cursors)
def test_cursor_join_meet_and_covers_are_pointwise(one: Cursor, other: Cursor) -> None:
    assert everywhere(one.join(other)) == [max(one[p], other[p]) for p in range(8)]
    assert everywhere(one.meet(other)) == [min(one[p], other[p]) for p in range(8)]
    assert one.covers(other) == all(one[p] >= other[p] for p in range(8))
    for plain in (dict(other), dict(other) | {7: 0}):
        assert one.join(plain) == one.join(other)
        assert one.meet(plain) == one.meet(other)
        assert one.covers(plain) == one.covers(other)


@given(cursors, cursors, cursors)
def test_cursor_join_and_meet_are_lattice(a: Cursor, b: Cursor, c: Cursor) -> None:
    assert a.join(b) == b.join(a)
    assert a.meet(b) == b.meet(a)
    assert a.join(b.join(c)) == a.join(b).join(c)
    assert a.meet(b.meet(c)) == a.meet(b).meet(c)
    assert a.join(a.meet(b)) == a == a.meet(a.join(b))
    assert a.join(b).covers(a)
    assert a.covers(a.meet(b))
    assert a.covers(b) == (a.join(b) == a) == (a.meet(b) == b)


@given(cursors)
def test_cursor_empty_is_covered_by_all(cursor: Cursor) -> None:
    assert cursor.covers(EMPTY_CURSOR)
    assert cursor.join(EMPTY_CURSOR) == cursor
    assert cursor.meet(EMPTY_CURSOR) == EMPTY_CURSOR
    assert not EMPTY_CURSOR


@given(cursors, commits)
@example(Cursor({6: 1}), [(0, 1)])
@example(Cursor({0: 1}), [(6, 1)])
def test_cursor_past_random_commits_equals_comparison(
    cursor: Cursor, each: list[tuple[int, int]]
) -> None:
    mask = cursor.past(
        np.array([p for p, _ in each], dtype=np.int32),
        np.array([s for _, s in each], dtype=np.int64),
    )
    assert mask.dtype == np.bool_
    assert mask.tolist() == [sequence > cursor[partition] for partition, sequence in each]


def test_cursor_negative_sequence_raises_value_error() -> None:
    with pytest.raises(ValueError, match=r"expected sequences of at least 0, got \{1: -1\}"):
        Cursor({1: -1})


@given(st.lists(cursors, min_size=2, max_size=4), st.lists(st.tuples(*[st.integers(0, 3)] * 2)))
def test_cursor_cached_joins_change_no_answer(
    some: list[Cursor], steps: list[tuple[int, int]]
) -> None:
    """The same objects are joined and compared again and again, in any order."""
    for at, with_ in steps:
        one, other = some[at % len(some)], some[with_ % len(some)]
        expected = [max(one[p], other[p]) for p in range(8)]
        assert everywhere(one.join(other)) == expected
        assert everywhere(one.join(dict(other))) == expected
        assert one.covers(other) == (expected == everywhere(one))
        assert one.join(other) is one.join(other)


def test_cursor_cache_keeps_no_later_cursor_alive() -> None:
    first = last = Cursor({1: 1})
    seen = weakref.WeakSet[Cursor]()
    for sequence in range(2, 50):
        last = last.join(Cursor({1: sequence, 2: 1}))
        seen.add(last)
    assert first == Cursor({1: 1})
    gc.collect()
    assert list(seen) == [last]


@given(cursors, cursors)
def test_cursor_news_are_partitions_further_on(one: Cursor, other: Cursor) -> None:
    expected = tuple(p for p in other if other[p] > one[p])
    assert one.news(other) == expected
    assert one.news(other) is one.news(other), "remembered"
    assert one.news(Cursor({})) == ()
