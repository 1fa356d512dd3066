from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import InputError, UnknownProperty
from galileo.match_batch import (
    MatchBatch,
    MatchedPartitions,
    MatchResponse,
    from_bytes,
    joined,
    to_bytes,
)
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.wire.codec import LABELS_PER_MESSAGE
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import (
    MatchReplies,
    cursors_from_bytes,
    replies_of,
    sequences_from_bytes,
    sequences_to_bytes,
)

SCHEMA = Schema("air", [Feature("t", "K")]).label_schema
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=20, unique=True)


def rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    arrays = [
        pa.array(numbers, pa.uint64()),
        times_from_micros(numbers),
        pa.array(numbers / 2),
        *(pa.array(numbers, kind) for kind in (pa.int32(), pa.int32(), pa.int32(), pa.int64())),
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def matches(pairs) -> MatchBatch:
    items, places = (np.array([pair[i] for pair in pairs], dtype=np.uint32) for i in (0, 1))
    return MatchBatch.of(items, places, rows(10))


def said(matches: MatchBatch) -> dict[int, list[int]]:
    return {item: sorted(table.column("row").to_pylist()) for item, table in matches.split()}


def naive(pairs) -> dict[int, list[int]]:
    return {i: sorted(row for item, row in pairs if item == i) for i in {i for i, _ in pairs}}


@given(PAIRS)
def test_match_batch_random_pairs_split_by_item(pairs):
    found = matches(pairs).check()
    assert said(found) == naive(pairs)
    assert found.counts(6).tolist() == [len(naive(pairs).get(item, [])) for item in range(6)]


@given(PAIRS, st.integers(0, 9))
def test_match_batch_where_random_pairs_keeps_needed_rows(pairs, least):
    whole = matches(pairs)
    some = whole.where(whole.places >= least).check()
    assert said(some) == naive([pair for pair in pairs if pair[1] >= least])
    if len(some) < len(whole):
        assert some.rows.num_rows == len({row for _, row in pairs if row >= least})


@given(PAIRS, PAIRS)
def test_joined_random_batches_equal_union(one, other):
    both = joined([matches(one), matches(other)], SCHEMA).check()
    expected = naive([*one, *other])
    found = {item: table.column("row").to_pylist() for item, table in both.split()}
    assert {item: sorted(rows) for item, rows in found.items()} == {
        item: sorted([*naive(one).get(item, []), *naive(other).get(item, [])]) for item in expected
    }
    assert len(joined([], SCHEMA)) == 0


@given(PAIRS, PAIRS, st.lists(st.integers(0, 2**32 - 1), max_size=5))
def test_match_response_random_parts_round_trip(one, other, unknown):
    parts = (
        MatchedPartitions(np.arange(6, dtype=np.uint32), Cursor({1: 2}), matches(one)),
        MatchedPartitions(
            np.array([9], dtype=np.uint32), Cursor({3: 4}), matches(other), Cursor({3: 1})
        ),
    )
    wrong = (np.array([7, 8], dtype=np.uint32), UnknownProperty("no", property="x", nearest="y"))
    answer = MatchResponse(parts, np.array(sorted(unknown), dtype=np.uint32), (wrong,))
    replies = MatchReplies(SCHEMA)
    sent = list(replies_of(answer))
    assert sum(map(replies.take, sent)) > 0
    came = replies.answer
    for before, after in zip(parts, came.parts, strict=True):
        assert before.items.tolist() == after.items.tolist()
        assert (before.reached, before.dropped) == (after.reached, after.dropped)
        assert said(before.matches) == said(after.matches)
    assert came.unknown.tolist() == sorted(unknown)
    ((items, error),) = came.errors
    assert items.tolist() == [7, 8]
    assert isinstance(error, UnknownProperty)


def test_match_response_many_labels_is_split():
    count = 2 * LABELS_PER_MESSAGE + 1
    numbers = np.arange(count, dtype=np.uint32)
    found = MatchBatch.of(np.zeros(count, dtype=np.uint32), numbers, rows(count))
    part = MatchedPartitions(np.arange(3, dtype=np.uint32), Cursor({1: 2}), found)
    kinds = [reply.WhichOneof("reply") for reply in replies_of(MatchResponse((part,)))]
    assert kinds == ["labels"] * 3 + ["part"]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=5))
def test_sequences_to_bytes_random_pairs_round_trip(pairs):
    after = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    assert sequences_from_bytes(sequences_to_bytes(after), partitions=2).tolist() == after.tolist()


@pytest.mark.parametrize(
    "damage",
    [
        lambda: from_bytes(b"abc"),
        lambda: sequences_from_bytes(b"x" * 12, partitions=1),
        lambda: sequences_from_bytes(b"", partitions=0),
        lambda: cursors_from_bytes(to_bytes(np.array([3])), rows=3),
        lambda: MatchBatch(from_bytes(b""), from_bytes(b"0000"), rows(1)).check(),
        lambda: MatchBatch(from_bytes(b"\0\0\0\0"), from_bytes(b"\1\0\0\0"), rows(1)).check(),
        lambda: MatchBatch(
            from_bytes(b"\1\0\0\0\0\0\0\0"), from_bytes(b"\0\0\0\0\0\0\0\0"), rows(1)
        ).check(),
        lambda: MatchReplies(SCHEMA).take(peers_pb2.MatchReply(unknown=b"abc")),
    ],
)
def test_match_columns_damaged_raises(damage):
    with pytest.raises(InputError):
        damage()
