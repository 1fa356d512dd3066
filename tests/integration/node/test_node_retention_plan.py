"""Retention plans against a dumb rule."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.retention import BYTES_MIN, HeldBack, Retention
from galileo.model.times import MICROS
from galileo.node.retention_plan import Bounds, Hold, ReaderProgress, demanded, held_until, plan
from galileo.storage.retention import LogFile

AGE = Retention("10s")


def log(*files: tuple[int, int, int], writing: bool = True) -> list[LogFile]:
    """Pieces from (commits, bytes, newest in seconds); the last one is written to, or not."""
    pieces, first = [], 1
    for number, (commits, size, newest_s) in enumerate(files, start=1):
        sealed = number < len(files) or not writing
        pieces.append(LogFile(first, first + commits - 1, size, newest_s * MICROS, sealed))
        first += commits
    return pieces


def test_retention_plan_by_age_drops_a_prefix_and_seals_open_files() -> None:
    pieces = {1: log((2, 9, 5), (3, 9, 80), (1, 9, 5)), 2: log((4, 9, 50)), 3: []}
    settled = Bounds(Cursor({1: 9, 2: 9}), ())
    found = plan(pieces, AGE, bounds=settled, now_us=59 * MICROS)
    assert (found.drop, found.seal) == (Cursor({1: 2}), frozenset())
    found = plan(pieces, AGE, bounds=settled, now_us=60 * MICROS)
    assert (found.drop, found.seal) == (Cursor({1: 2, 2: 4}), frozenset({2}))


def test_retention_plan_by_bytes_drops_the_oldest_files() -> None:
    policy = Retention(bytes=BYTES_MIN)
    size = BYTES_MIN // 2
    pieces = {
        1: log((1, size, 30), (1, size, 10), (1, 1, 1)),
        2: log((1, size, 20), (1, size, 40), (1, 1, 1)),
    }
    settled = Bounds(Cursor({1: 9, 2: 9}), ())
    found = plan(pieces, policy, bounds=settled, now_us=0)
    # 2's first is older than 1's first, behind which something still older waits.
    assert found.drop == Cursor({1: 2, 2: 1})
    assert plan(pieces, Retention(bytes=8 * size), bounds=settled, now_us=0).drop == EMPTY_CURSOR
    alone = {1: log((1, 9 * size, 1))}
    assert plan(alone, policy, bounds=settled, now_us=0).drop == EMPTY_CURSOR, "it is written to"
    assert plan(alone, policy, bounds=settled, now_us=0).seal == frozenset({1})
    small = {1: log((1, BYTES_MIN // 9, 1))}
    assert plan(small, policy, bounds=settled, now_us=0).seal == frozenset()


def test_retention_plan_spares_readers_unless_past_readers() -> None:
    pieces = {1: log((2, 10, 1), (2, 20, 1), (2, 40, 1)), 2: log((1, 5, 1), (1, 5, 99))}
    readers = (ReaderProgress("b", Cursor({1: 3, 2: 9})), ReaderProgress("a", Cursor({1: 5, 2: 9})))
    settled = Cursor({1: 6, 2: 2})
    found = plan(pieces, AGE, bounds=Bounds(settled, readers), now_us=60 * MICROS)
    assert found.drop == Cursor({1: 2, 2: 1})
    assert found.held == (HeldBack(1, 60, ("a", "b"), 1 * MICROS),)
    assert found.seal == frozenset()
    found = plan(pieces, AGE, bounds=Bounds(settled, None), now_us=60 * MICROS)
    assert (found.drop, found.held) == (
        EMPTY_CURSOR,
        (HeldBack(1, 70, (), 1 * MICROS), HeldBack(2, 5, (), 1 * MICROS)),
    )
    found = plan(pieces, AGE, bounds=Bounds(Cursor({1: 4}), ()), now_us=60 * MICROS)
    assert (found.drop, found.held) == (Cursor({1: 4}), ()), "young commits name no reader"
    free = Retention("10s", past_readers=True)
    found = plan(pieces, free, bounds=Bounds(EMPTY_CURSOR, None), now_us=60 * MICROS)
    assert (found.drop, found.held) == (Cursor({1: 6, 2: 1}), ())


files = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 9)), max_size=5)


@given(
    st.dictionaries(st.integers(0, 3), files, max_size=3),
    st.integers(0, 12),
    st.none() | st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 12)), max_size=2),
    st.dictionaries(st.integers(0, 3), st.integers(0, 15)),
    st.booleans(),
)
def test_retention_plan_equals_a_simple_model(
    partitions: dict[int, list[tuple[int, int, int]]],
    now_s: int,
    cursors: list[dict[int, int]] | None,
    settled: dict[int, int],
    past_readers: bool,
) -> None:
    pieces = {
        p: log(*((n, size * BYTES_MIN, t) for n, size, t in found))
        for p, found in partitions.items()
    }
    policy = Retention(3.0, bytes=4 * BYTES_MIN, past_readers=past_readers)
    readers = None if cursors is None else [ReaderProgress(str(c), Cursor(c)) for c in cursors]
    bounds = Bounds(Cursor(settled), readers)
    found = plan(pieces, policy, bounds=bounds, now_us=now_s * MICROS)

    left = {p: list(ones) for p, ones in pieces.items()}
    for ones in left.values():
        while ones and ones[0].newest_us <= (now_s - 3) * MICROS:
            ones.pop(0)
    while sum(one.bytes for ones in left.values() for one in ones) > 4 * BYTES_MIN:
        first = [(ones[0].newest_us, p) for p, ones in left.items() if ones and ones[0].sealed]
        if not first:
            break
        left[min(first)[1]].pop(0)
    wanted = {p: len(ones) - len(left[p]) for p, ones in pieces.items()}
    ends = {p: pieces[p][n - 1].last for p, n in wanted.items() if n}
    assert demanded(pieces, policy, now_us=now_s * MICROS) == ends
    for p, ones in pieces.items():
        kept = 0
        for piece in ones[: wanted[p]]:
            passes = any(reader.retrieved[p] < piece.last for reader in readers or ())
            spared = readers is None or passes or piece.last > settled.get(p, 0)
            if spared and not past_readers:
                break
            kept = piece.last
        assert found.drop[p] == kept
        held = [one for one in found.held if one.partition == p]
        assert sum(one.bytes for one in held) in (
            0,
            sum(one.bytes for one in ones[: wanted[p]] if one.last > kept),
        )


def test_retention_plan_names_the_brokers_that_hold_executions() -> None:
    pieces = {1: log((2, 10, 1), (2, 20, 30), (2, 40, 45), (1, 9, 99))}
    ended = Hold("ended", EMPTY_CURSOR, 5.0)
    late = Hold("late", Cursor({1: 3}), 15.0)
    quick = Hold("quick", Cursor({1: 6}), 80.0)

    def planned(*holds: Hold) -> tuple[int, tuple[HeldBack, ...]]:
        readers = held_until(pieces, AGE, holds, now_us=60 * MICROS)
        found = plan(pieces, AGE, bounds=Bounds(Cursor({1: 7}), readers), now_us=60 * MICROS)
        return found.drop[1], found.held

    assert planned() == planned(quick) == (6, ())
    since_us = 45 * MICROS
    assert planned(ended, late, quick) == (4, (HeldBack(1, 40, ("late",), since_us),))
    since_us = 1 * MICROS
    unknown = Hold("", EMPTY_CURSOR, 80.0)
    assert planned(unknown, quick) == (0, (HeldBack(1, 70, (), since_us),))


def test_retention_plan_by_bytes_keeps_what_readers_hold() -> None:
    policy, size = Retention(bytes=BYTES_MIN), BYTES_MIN
    pieces = {1: log((2, size, 10), (2, size, 20), (2, size, 50), (1, 1, 60))}
    settled = Cursor({1: 7})

    def planned(*holds: Hold) -> tuple[int, tuple[HeldBack, ...]]:
        """At second 60: what goes, and what is held."""
        readers = held_until(pieces, policy, holds, now_us=60 * MICROS)
        found = plan(pieces, policy, bounds=Bounds(settled, readers), now_us=60 * MICROS)
        return found.drop[1], found.held

    assert planned() == (6, ())
    assert planned(Hold("nightly", Cursor({1: 3}), 99.0)) == (
        2,
        (HeldBack(1, 2 * size, ("nightly",), 20 * MICROS),),
    )
    # Without an age, a hold counts from the times of the observations.
    assert planned(Hold("nightly", EMPTY_CURSOR, 40.0))[0] == 4
    assert planned(Hold("nightly", EMPTY_CURSOR, 0.001)) == (6, ())


@given(
    st.dictionaries(st.integers(0, 3), files, max_size=3),
    st.integers(0, 12),
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 3), st.integers(0, 12)), st.integers(1, 5)),
        max_size=3,
    ),
)
def test_commits_stay_while_one_reader_holds_them(
    partitions: dict[int, list[tuple[int, int, int]]],
    now_s: int,
    readers_held: list[tuple[dict[int, int], int]],
) -> None:
    pieces = {p: log(*found) for p, found in partitions.items()}
    policy, now_us = Retention(3.0), now_s * MICROS
    holds = [Hold("", Cursor(position), float(hold_s)) for position, hold_s in readers_held]
    readers = held_until(pieces, policy, holds, now_us=now_us)
    settled = Cursor(dict.fromkeys(pieces, 99))
    found = plan(pieces, policy, bounds=Bounds(settled, readers), now_us=now_us)
    for p, ones in pieces.items():
        kept, ages = 0, itertools.accumulate((one.newest_us for one in ones), max)
        for one, newest_us in zip(ones, ages, strict=True):
            held_s = [hold_s for position, hold_s in readers_held if position.get(p, 0) < one.last]
            if newest_us > now_us - (3 + max(held_s, default=0)) * MICROS:
                break
            kept = one.last
        assert found.drop[p] == kept
