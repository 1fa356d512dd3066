from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq.model import Ccq, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.state import NodeState
from galileo.cursor import Cursor
from galileo.election.records import SUMMARY_ENTRIES_MAX, RecordTable
from galileo.errors import CcqExpired, Failure, InternalError, InvalidToken, Unavailable

OPTIONS = ContinuousOptions(ordinal=0, groups=(("a", "b"),))
WALL = 1000.0


def ccq(ccq_id: str = "q", *, lives_s: float = 100.0) -> Ccq:
    return Ccq(ccq_id, "d", "", 1.0, WALL + lives_s)


endings = st.sampled_from([(None, 0.0), ("cancelled", 5.0), ("expired", 6.0), ("cancelled", 7.0)])
records = st.builds(
    lambda ccq_id, term, retrieved, ending: Record(
        ccq(ccq_id), term, f"n{term}", Cursor({0: retrieved}), *ending
    ),
    st.sampled_from("pq"),
    st.integers(1, 5),
    st.integers(0, 3),
    endings,
)
same_ccq = records.map(lambda record: replace(record, ccq=ccq()))


@given(same_ccq, same_ccq, same_ccq)
def test_record_merge_random_records_is_semilattice_by_term(a, b, c):
    assert a.merge(a) == a
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))


@given(st.lists(records, max_size=8), st.randoms(use_true_random=False))
def test_record_table_random_order_gives_same_digest(heard, random):
    trackers = [RecordTable("a", OPTIONS), RecordTable("b", OPTIONS)]
    for tracker in trackers:
        for record in random.sample(heard + heard, 2 * len(heard)):
            tracker.merge(record, now=0.0, wall=WALL)
            tracker.check()
    first, second = trackers
    assert first.records == second.records
    assert first.digest("b") == second.digest("a")
    live = Counter(r.coordinator for r in first.records.values() if r.ended is None)
    assert {node: first.coordinated_count(node) for node in live} == live
    assert first.coordinated_count("another") == 0
    difference = first.compare("b", second.summary("a", after=""))
    assert (difference.newer_here, difference.newer_there) == ((), ())


@given(st.lists(records, max_size=8), st.lists(records, max_size=8))
def test_record_table_compare_random_tables_become_equal(one, other):
    a, b = RecordTable("a", OPTIONS), RecordTable("b", OPTIONS)
    for tracker, heard in ((a, one), (b, other)):
        for record in heard:
            tracker.merge(record, now=0.0, wall=WALL)
    difference = a.compare("b", b.summary("a", after=""))
    for ccq_id in difference.newer_here:
        b.merge(a.records[ccq_id], now=0.0, wall=WALL)
    for ccq_id in difference.newer_there:
        a.merge(b.records[ccq_id], now=0.0, wall=WALL)
    assert a.digest("b") == b.digest("a")


def test_record_table_merge_tells_new_known_and_stale():
    tracker = RecordTable("a", OPTIONS)
    first = Record(ccq(), 5, "a")
    assert tracker.merge(first, now=0.0, wall=WALL).is_news
    merged = tracker.merge(first, now=0.0, wall=WALL)
    assert not merged.is_news
    merged = tracker.merge(replace(first, term=4, coordinator="b"), now=0.0, wall=WALL)
    assert not merged.is_news
    tracker.merge(replace(first, retrieved=Cursor({1: 1})), now=0.0, wall=WALL)
    assert [record.retrieved for record in tracker.pop_dirty(9)] == [Cursor({1: 1})]
    assert tracker.pop_dirty(9) == []


def test_record_table_pop_dirty_takes_longest_waiting_first():
    tracker = RecordTable("a", OPTIONS)
    for ccq_id in "pqr":
        tracker.merge(Record(replace(ccq(), id=ccq_id), 5, "a"), now=0.0, wall=WALL)
        tracker.update(replace(tracker.records[ccq_id], retrieved=Cursor({1: 1})))
    assert [record.ccq.id for record in tracker.pop_dirty(2)] == ["p", "q"]
    tracker.update(replace(tracker.records["p"], retrieved=Cursor({1: 2})))
    assert [record.ccq.id for record in tracker.pop_dirty(2)] == ["r", "p"]


def test_record_table_due_expiration_comes_once():
    tracker = RecordTable("a", OPTIONS)
    tracker.merge(Record(ccq(lives_s=10.0), 1, "a"), now=50.0, wall=WALL)
    assert tracker.due(59.9) == []
    assert tracker.due(60.0) == ["q"]
    assert tracker.due(70.0) == []


def test_record_table_ended_record_is_kept_past_expiration():
    tracker = RecordTable("a", OPTIONS)
    ended = Record(ccq(lives_s=10.0), 1, "a", ended="cancelled", ended_at=WALL)
    tracker.merge(ended, now=0.0, wall=WALL)
    purge_at = 10.0 + OPTIONS.tombstone_slack_s
    assert tracker.due(purge_at - 1.0) == []
    assert tracker.due(purge_at) == ["q"]
    tracker.purge("q")
    merged = tracker.merge(ended, now=purge_at, wall=WALL + purge_at + 1.0)
    assert merged.record is None
    assert tracker.records == {}


def test_record_table_summary_is_paged():
    tracker, other = RecordTable("a", OPTIONS), RecordTable("b", OPTIONS)
    ids = [f"q{i:04}" for i in range(2 * SUMMARY_ENTRIES_MAX + 1)]
    for ccq_id in ids:
        tracker.merge(Record(ccq(ccq_id), 1, "a"), now=0.0, wall=WALL)
    found, after = [], ""
    while True:
        page = tracker.summary("b", after=after)
        found += other.compare("a", page).newer_there
        if page.until is None:
            break
        after = page.until
    assert found == ids
    page = other.summary("a", after="")
    assert tracker.compare("b", page).newer_here == tuple(found)


@pytest.mark.parametrize(
    ("kind", "cls"),
    [("invalid_token", InvalidToken), ("ccq_expired", CcqExpired), ("unavailable", Unavailable)],
)
def test_failure_to_error_has_class_and_details(kind, cls):
    error = Failure(kind, "why", (("after_s", 0.5),)).to_error()
    assert type(error) is cls
    assert error.details == {"after_s": 0.5}
    assert type(Failure("no such kind", "why").to_error()) is InternalError


def test_acknowledged_cursors_are_joined_to_the_record():
    state = NodeState("a", OPTIONS)
    state.record_table.merge(Record(ccq(), 5, "a"), now=0.0, wall=WALL)
    for cursor in (Cursor({1: 5, 2: 1}), Cursor({1: 2, 2: 4}), Cursor({3: 1})):
        state.acknowledge("q", cursor)
    assert state.record_table.records["q"].retrieved == Cursor({1: 5, 2: 4, 3: 1})
