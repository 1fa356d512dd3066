from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.cycle import (
    CycleAnswer,
    ItemFailure,
    MatchBatch,
    MatchedPartitions,
    Matches,
    joined,
)
from galileo.errors import InputError, UnknownProperty
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.packing import Compression
from galileo.packs import PackColumns, pack_labels, pack_many
from galileo.spark.owners import OWNER, MatchReader, in_messages
from galileo.wire.codec import LABELS_PER_MESSAGE
from galileo.wire.messages import Forms, MessageCodec

MATCH = OWNER.calls["match"]
ANSWER = MessageCodec(Forms().of(CycleAnswer), digest=bytes(8), name="answer")
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
def test_matches_random_parts_round_trip(one, other, unknown):
    parts = (
        MatchedPartitions(np.arange(6, dtype=np.uint32), Cursor({1: 2}), matches(one)),
        MatchedPartitions(
            np.array([9], dtype=np.uint32), Cursor({3: 4}), matches(other), Cursor({3: 1})
        ),
    )
    wrong = ItemFailure(
        np.array([7, 8], dtype=np.uint32), UnknownProperty("no", property="x", nearest="y")
    )
    sent = Matches(parts, np.array(sorted(unknown), dtype=np.uint32), (wrong,))
    came = received(sent)
    for before, after in zip(parts, came.parts, strict=True):
        assert before.items.tolist() == after.items.tolist()
        assert (before.reached, before.dropped) == (after.reached, after.dropped)
        assert said(before.matches) == said(after.matches)
    assert came.unknown.tolist() == sorted(unknown)
    (failure,) = came.failures
    assert failure.items.tolist() == [7, 8]
    assert isinstance(failure.error, UnknownProperty)


def received(sent: Matches) -> Matches:
    """What arrives of it, over the codec."""
    reader = MatchReader(SCHEMA)
    for message in in_messages(sent):
        reader.take(MATCH.decode_answer(MATCH.encode_answer(message)))
    return reader.matches


def test_matches_with_many_labels_are_sent_in_pieces():
    count = 2 * LABELS_PER_MESSAGE + 1
    numbers = np.arange(count, dtype=np.uint32)
    items = np.concatenate([np.zeros(count), np.ones(count)]).astype(np.uint32)
    found = MatchBatch.of(items, np.concatenate([numbers, numbers[::-1]]), rows(count))
    part = MatchedPartitions(np.arange(3, dtype=np.uint32), Cursor({1: 2}), found)
    sent = Matches((part,))
    assert [len(one.parts[0].items) for one in in_messages(sent)] == [0, 0, 3]
    (came,) = received(sent).parts
    assert came.items.tolist() == [0, 1, 2]
    assert said(came.matches) == {0: numbers.tolist(), 1: numbers.tolist()}


def test_matches_cut_off_keep_complete_parts():
    pair = matches([(0, 0)])
    whole = MatchedPartitions(np.array([0], dtype=np.uint32), Cursor({1: 2}), pair)
    reader = MatchReader(SCHEMA)
    first, second = in_messages(Matches((whole, replace(whole, items=whole.items + np.uint32(1)))))
    reader.take(MATCH.decode_answer(MATCH.encode_answer(first)))
    beginning = replace(second.parts[0], items=whole.items[:0])
    reader.take(MATCH.decode_answer(MATCH.encode_answer(Matches((beginning,)))))
    assert [part.items.tolist() for part in reader.matches.parts] == [[0]]


@pytest.mark.parametrize(
    "damaged",
    [
        MatchBatch(np.zeros(0, np.uint32), np.zeros(1, np.uint32), rows(1)),
        MatchBatch(np.zeros(1, np.uint32), np.ones(1, np.uint32), rows(1)),
        MatchBatch(np.array([1, 0], np.uint32), np.zeros(2, np.uint32), rows(1)),
        MatchBatch(np.zeros(0, np.uint32), np.zeros(0, np.uint32), rows(1).select(["cell"])),
    ],
)
def test_matches_damaged_are_refused(damaged):
    part = MatchedPartitions(np.zeros(1, np.uint32), Cursor(), damaged)
    message = MATCH.decode_answer(MATCH.encode_answer(Matches((part,))))
    with pytest.raises(InputError):
        MatchReader(SCHEMA).take(message)


# --- packs ---------------------------------------------------------------------------------------


@given(PAIRS, st.booleans())
def test_pack_columns_random_labels_round_trip(pairs, is_alone):
    schema = Schema("air", [Feature("t", "K")])
    found = matches(pairs)
    labels = {}
    for number, (item, table) in enumerate(found.split()):
        own = LabelSet(schema, table).in_commit_order()
        if is_alone or number == 0:
            labels[item] = pack_labels(own, Compression.NONE)
    answer = CycleAnswer((), PackColumns.of(labels), np.zeros(0, np.uint32), ())
    came = ANSWER.decode(ANSWER.encode(answer)).packs.labels(schema)
    assert {item: some.labels().table for item, some in came.items()} == {
        item: some.labels().table for item, some in labels.items()
    }
    assert sum(some.size for some in came.values()) == sum(some.size for some in labels.values())


def test_pack_columns_share_data_again():
    schema = Schema("air", [Feature("t", "K")])
    made = pack_many(schema, rows(10), np.array([0, 4, 7]), compression=Compression.LZ4)
    came = PackColumns.of(dict(enumerate(made))).labels(schema)
    assert len({id(pack.data) for some in came.values() for pack in some.packs}) == 1
    for before, after in zip(made, came.values(), strict=True):
        assert before.labels().table == after.labels().table


@pytest.mark.parametrize(
    "changes", [{"sources": 3}, {"sizes": 9}, {"commits": None}, {"rows": None}, {"shares": None}]
)
def test_pack_columns_damaged_are_refused(changes):
    schema = Schema("air", [Feature("t", "K")])
    made = pack_many(schema, rows(4), np.array([0, 2]), compression=Compression.NONE)
    columns = PackColumns.of(dict(enumerate(made)))
    ((name, value),) = changes.items()
    column = getattr(columns, name)
    damaged = column[:-1] if value is None else np.full_like(column, value)
    with pytest.raises(InputError):
        replace(columns, **{name: damaged}).labels(schema)
