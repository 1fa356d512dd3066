"""Records as rows: how they merge, how they are stored, and who follows them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ccq_driver import CCQ
from expected_errors import raises
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.ccq.model import Holder, Record
from galileo.ccq.records import ALL, CCQ_ROWS, NOTHING, decode, encode, merged, owned, topic_of
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import CorruptData
from galileo.model.windows import Window
from galileo.packing import Compression
from galileo.samplers import SamplerSpec

small = st.dictionaries(st.integers(0, 1), st.integers(0, 3), max_size=2).map(Cursor)
WHOLE = replace(
    CCQ,
    sampler=SamplerSpec("thin", {"share": 0.5}, 3),
    compression=Compression.LZ4,
    window=Window.tumbling("4h"),
    owner="ann",
    added=2,
)


@st.composite
def records(draw) -> Record:
    """As they occur: what a revision begins with is the same everywhere, and holders only leave."""
    revision = draw(st.integers(0, 3))
    if not revision:
        return NOTHING
    all_of_revision = [Holder("a", n, EMPTY_CURSOR, Cursor({0: n})) for n in range(1, 1 + revision)]
    named = tuple(one for one in all_of_revision if draw(st.booleans()))
    over = draw(st.sampled_from([(None, 0.0), ("cancelled", 5.0), ("expired", 7.0)]))
    nodes = draw(st.sampled_from([("a", "b"), ("b", "c", "a"), ("c",)]))
    ccq = replace(CCQ, expires_at=draw(st.sampled_from([CCQ.expires_at, CCQ.expires_at + 1.0])))
    fetched_at = draw(st.sampled_from([0.0, 3.0]))
    return Record(ccq, revision, nodes, draw(small), *over, holders=named, fetched_at=fetched_at)


AGAIN = Record(replace(CCQ, expires_at=CCQ.expires_at + 1.0), 1, ("c",))


@given(records(), records(), records())
@example(Record(CCQ, 1, ("c",)), AGAIN, NOTHING)
def test_merged_random_records_are_a_semilattice(a: Record, b: Record, c: Record) -> None:
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, a) == a
    assert merged(merged(a, b), b) == merged(a, b)
    assert merged(a, NOTHING) == a


@given(records(), records())
def test_merged_random_records_have_what_is_newest(a: Record, b: Record) -> None:
    both = merged(a, b)
    assert both.revision == max(a.revision, b.revision)
    assert (both.ended is not None) == (a.ended is not None or b.ended is not None)
    assert both.retrieved == a.retrieved.join(b.retrieved)
    assert both.fetched_at == max(a.fetched_at, b.fetched_at)
    newest = [{*one.holders} for one in (a, b) if one.revision == both.revision]
    assert {*both.holders} <= set.intersection(*newest)
    assert not any(both.retrieved.covers(one.until) for one in both.holders)
    assert both.ended is None or not both.holders


def test_merged_ends_keep_the_first() -> None:
    first, later = (
        Record(CCQ, 1, ("a",), ended=ending, ended_at=at)
        for ending, at in (("cancelled", 5.0), ("expired", 7.0))
    )
    assert merged(first, later) == merged(later, first) == first


@given(records())
def test_record_of_a_row_is_what_was_encoded(record: Record) -> None:
    assert decode(encode(record)) == record
    assert CCQ_ROWS.value(CCQ_ROWS.row("q", record).data) == record


def test_record_of_a_row_has_all_that_was_submitted() -> None:
    record = Record(WHOLE, 1, ("a", "b"), Cursor({3: 1 << 40}))
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "data", ["", "{", "[]", "1", encode(Record(CCQ))[:-1], '{"$":"Record"}', '{"$":"Window"}']
)
def test_row_that_has_no_record_is_corrupt(data: str) -> None:
    with raises(CorruptData):
        decode(data)


def test_topics_are_the_nodes_the_dataset_and_the_owner() -> None:
    holder = Holder("c", 1, EMPTY_CURSOR, Cursor({0: 1}))
    record = Record(replace(CCQ, owner="ann"), 1, ("a", "b"), holders=(holder,))
    assert CCQ_ROWS.topics is not None
    topics = {*CCQ_ROWS.topics(record)}
    named = {topic_of(node=node) for node in "abc"}
    assert topics == {*named, topic_of(dataset="d"), topic_of(owner="ann")}
    assert CCQ_ROWS.topics(NOTHING) == ()
    assert topic_of() == ""
    assert topic_of(node="x") != topic_of(owner="x") != topic_of(dataset="x")


def test_totals_count_what_lives() -> None:
    record = Record(replace(CCQ, owner="ann"), 1, ("a",))
    assert CCQ_ROWS.totals(record) == {ALL: 1, owned("ann"): 1}
    assert CCQ_ROWS.totals(replace(record, ended="expired", ended_at=1.0)) == {}
    assert CCQ_ROWS.totals(NOTHING) == {}
