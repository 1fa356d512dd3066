"""What of a node's answer counts, and what of it fits."""

from __future__ import annotations

import numpy as np
import pytest
from cycle_requests import cycle_request
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.cycle import NOT_REQUESTED, CycleRequest, MatchBatch, MatchedPartitions
from galileo.labels import LabelSet
from galileo.spark.task import fair_share, fit_to_budget, select_new

sizes = st.lists(st.integers(0, 200), max_size=8)


def naive_share(sizes: list[int], room: int) -> int:
    """The largest bound, found by trying them all."""
    return max(b for b in range(room + 1) if sum(min(s, b) for s in sizes) <= room)


@given(sizes, st.integers(0, 500))
def test_fair_share_is_the_largest_bound(sizes, room):
    assert fair_share(sizes, room=room) == naive_share(sizes, room)


# --- what counts -----------------------------------------------------------------------------


@given(
    after=st.lists(
        st.tuples(*[st.one_of(st.integers(0, 5), st.just(NOT_REQUESTED))] * 2),
        min_size=1,
        max_size=3,
    ),
    claims=st.dictionaries(st.sampled_from([0, 1, 5]), st.integers(0, 5)),
    dropped=st.dictionaries(st.sampled_from([0, 1, 5]), st.integers(0, 5)),
    columns=st.sampled_from([[0], [1], [0, 1]]),
)
def test_select_new_keeps_requested_new_commits(
    make_labels, schema, after, claims, dropped, columns
):
    labels = LabelSet.concat(schema, [make_labels(p, range(1, 5), rows=2) for p in (0, 1, 5)])
    items = np.repeat(np.arange(len(after)), len(labels)).astype(np.uint32)
    places = np.tile(np.arange(len(labels)), len(after)).astype(np.uint32)
    part = MatchedPartitions(
        np.arange(len(after), dtype=np.uint32),
        Cursor(claims),
        MatchBatch(items, places, labels.table),
        Cursor(dropped),
    )
    found = select_new(part, request_of(schema, after, columns))
    asked = [(0, 1)[column] for column in columns]
    assert found.reached == Cursor({p: s for p, s in claims.items() if p in asked})
    assert found.dropped == Cursor({p: s for p, s in dropped.items() if p in asked})
    expected = {
        (item, p, sequence, row)
        for item, cursor in enumerate(after)
        for p in asked
        for sequence in range(1, 5)
        for row in range(2)
        if max(cursor[p], dropped.get(p, 0)) < sequence <= claims.get(p, 0)
    }
    assert said(found, schema) == expected


def test_select_new_keeps_no_label_that_the_node_names_as_dropped(make_group, make_labels):
    labels = make_labels(0, range(5, 8), rows=2)
    items = np.zeros(len(labels), dtype=np.uint32)
    matches = MatchBatch(items, np.arange(len(labels)), labels.table)
    part = MatchedPartitions(items[:1], Cursor({0: 7}), matches, Cursor({0: 5}))
    kept = select_new(part, make_group("a"))
    [(_, table)] = kept.matches.split()
    assert table.column("sequence").unique().to_pylist() == [6, 7]


def request_of(schema, after, columns) -> CycleRequest:
    return cycle_request(
        schema,
        [""] * len(after),
        after=np.array(after)[:, columns],
        partitions=columns,
        cursors=range(len(after)),
    )


def said(part: MatchedPartitions, schema) -> set[tuple[int, int, int, int]]:
    return {
        (item, *identity)
        for item, table in part.matches.split()
        for identity in identities(LabelSet(schema, table))
    }


def identities(labels: LabelSet) -> list[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# --- what fits -------------------------------------------------------------------------------


def part_of(make_labels, schema, sizes, *, rows=3) -> MatchedPartitions:
    """`sizes[i]` commits for item i, in two partitions; another item has none."""
    parts = [
        make_labels(p, range(1, size + 1), rows=rows) for size in sizes for p in (0, 1) if size
    ]
    labels = LabelSet.concat(schema, parts)
    items = np.repeat(np.arange(len(sizes)), [2 * rows * size for size in sizes])
    matches = MatchBatch(
        items.astype(np.uint32), np.arange(len(labels), dtype=np.uint32), labels.table
    )
    answered = np.arange(len(sizes) + 1, dtype=np.uint32)
    reached = Cursor(dict.fromkeys((0, 1), max(sizes, default=0) + 1))
    return MatchedPartitions(answered, reached, matches)


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=3),
    st.integers(1, 3_000),
    st.integers(0, 5),
)
def test_fit_to_budget_cuts_between_commits(make_labels, schema, parts, bytes_max, turn):
    made = [(part_of(make_labels, schema, sizes), schema) for sizes in parts]
    whole = sum(part.matches.nbytes for part, _ in made)
    fits = list(fit_to_budget(made, bytes_max=bytes_max, turn=turn))
    assert len(fits) == len(made)
    for (part, _), kept in zip(made, fits, strict=True):
        items = [item for one in kept for item in one.items.tolist()]
        assert len(items) == len(set(items))
        for one in kept:
            for item in one.items.tolist():
                mine = {key for key in said(part, schema) if key[0] == item}
                assert {key for key in said(one, schema) if key[0] == item} == {
                    key for key in mine if key[2] <= one.reached[key[1]]
                }
    left = sum(one.matches.nbytes for kept in fits for one in kept)
    if whole <= bytes_max:
        assert left == whole
    else:
        heads = sum(
            one.matches.nbytes for kept in fits for one in kept[1:] if len(one.matches) <= 3
        )
        assert left <= bytes_max + heads
        assert any(len(one.matches) for kept in fits for one in kept)


def test_fit_to_budget_repeated_returns_each_label_once(make_labels, schema):
    whole = part_of(make_labels, schema, [3, 40, 40, 1])
    wanted = said(whole, schema)
    found: set[tuple[int, int, int, int]] = set()
    cursors = {item: Cursor() for item in whole.items.tolist()}
    ticks = 0
    while found != wanted:
        commits = LabelSet(schema, whole.matches.rows)
        columns = (
            commits.partitions[whole.matches.places],
            commits.sequences[whole.matches.places],
        )
        new = np.array(
            [
                sequence > cursors[item][partition]
                for item, partition, sequence in zip(
                    whole.matches.items.tolist(), *(c.tolist() for c in columns), strict=True
                )
            ]
        )
        rest = MatchedPartitions(whole.items, whole.reached, whole.matches.where(new))
        (kept,) = fit_to_budget([(rest, schema)], bytes_max=4_000, turn=ticks)
        for one in kept:
            assert found.isdisjoint(said(one, schema))
            found |= said(one, schema)
            for item in one.items.tolist():
                cursors[item] = cursors[item].join(one.reached)
        ticks += 1
        assert ticks < 30
    assert ticks > 1


@pytest.mark.parametrize("turn", range(4))
def test_fit_to_budget_rotates_cut_items(make_labels, schema, turn):
    part = part_of(make_labels, schema, [20] * 4)
    (kept,) = fit_to_budget([(part, schema)], bytes_max=2_000, turn=turn, cuts_max=1)
    assert [one.items.tolist() for one in kept] == [[4], [turn]]
