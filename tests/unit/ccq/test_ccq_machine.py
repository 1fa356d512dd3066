"""These events, hence these instructions: submission, appointment, endings, gossip."""

from __future__ import annotations

from dataclasses import replace

from ccq_driver import BUSY, CCQ, IDLE, NODES, WALL, Driver, only, path

from galileo.ccq.events import (
    AnswerCancel,
    CancelRequested,
    CommitsObserved,
    DatasetDropped,
    FetchRequested,
    RedirectFetch,
    RefuseCancel,
    RefuseFetch,
    SubmitRequested,
)
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Record
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import PeerDied
from galileo.election.events import (
    AnswerSubmit,
    MessageArrived,
    PurgeRecord,
    RecordsLoaded,
    RefuseSubmit,
    SaveRecord,
    Send,
    Ticked,
    UsageMeasured,
)
from galileo.election.messages import (
    UNASKED,
    AssignCoordinator,
    AssignmentAccepted,
    AssignmentRefused,
    Poll,
    PollAnswer,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    UsageStatistics,
)
from galileo.election.model import NODES_MAX

# --- submission ------------------------------------------------------------------------------


def test_submit_polls_live_nodes():
    driver = Driver()
    polls = driver.feed(SubmitRequested(1, CCQ, EMPTY_CURSOR))
    assert polls == [Send(peer, Poll("q/1")) for peer in "bc"]
    driver = Driver()
    driver.feed(PeerDied("c"))
    polls = driver.feed(SubmitRequested(2, replace(CCQ, id="r"), EMPTY_CURSOR))
    assert polls == [Send("b", Poll("r/1"))]


def test_submit_while_a_poll_is_under_way_shares_its_answer():
    driver = Driver()
    driver.feed(UsageMeasured(replace(BUSY, cpu_share=0.85)))
    driver.feed(SubmitRequested(1, CCQ, EMPTY_CURSOR))
    assert driver.feed(SubmitRequested(2, replace(CCQ, id="r"), EMPTY_CURSOR)) == []
    driver.hear("b", PollAnswer("q/1", BUSY))
    effects = driver.hear("c", PollAnswer("q/1", IDLE))
    offers = [one.message for one in effects if isinstance(one, Send)]
    assert [offer.record.ccq.id for offer in offers] == ["q", "r"]


def test_submit_soon_after_another_polls_no_node_again():
    driver = Driver()
    submitted_to(driver, BUSY, IDLE)
    effects = driver.feed(SubmitRequested(2, replace(CCQ, id="r"), EMPTY_CURSOR))
    record = Record(replace(CCQ, id="r"), NODES_MAX, "c")
    assert effects == [SaveRecord(record, durable=True), Send("c", AssignCoordinator(record, 0))]


def test_submit_after_a_refusal_polls_that_node_again():
    driver = Driver()
    submitted_to(driver, BUSY, IDLE)
    driver.hear("c", AssignmentRefused("q", NODES_MAX, None))
    effects = driver.feed(SubmitRequested(2, replace(CCQ, id="r"), EMPTY_CURSOR))
    assert effects == [Send("c", Poll("r/2"))]


def submitted_to(driver: Driver, *usages: UsageStatistics) -> list:
    """Submits at a, whose own usage is busy; b and c answer the poll."""
    driver.feed(UsageMeasured(replace(BUSY, cpu_share=0.85)))
    (poll, _) = driver.feed(SubmitRequested(1, CCQ, Cursor({0: 3})))
    for node, usage in zip("bc", usages, strict=True):
        effects = driver.hear(node, PollAnswer(poll.message.election, usage))
    return effects


def test_submit_saves_record_before_assignment():
    effects = submitted_to(Driver(), BUSY, IDLE)
    record = Record(CCQ, NODES_MAX, "c", Cursor({0: 3}))
    assert effects == [SaveRecord(record, durable=True), Send("c", AssignCoordinator(record, 0))]


def test_submit_is_answered_after_acceptance():
    driver = Driver()
    submitted_to(driver, BUSY, IDLE)
    effects = driver.hear("c", AssignmentAccepted("q", NODES_MAX))
    assert effects == [AnswerSubmit(1, "q", "c", NODES_MAX)]
    assert driver.hear("c", AssignmentAccepted("q", NODES_MAX)) == []
    driver.feed(SubmitRequested(2, CCQ, EMPTY_CURSOR))
    assert driver.hear("b", RecordAck((("q", NODES_MAX),))) == [
        AnswerSubmit(2, "q", "c", NODES_MAX)
    ]


def test_submit_each_offer_has_own_term():
    driver = Driver()
    submitted_to(driver, BUSY, IDLE)
    saved, sent = driver.tick(1.0)
    assert sent == Send("b", AssignCoordinator(saved.record, 0))
    assert saved.record.term == 2 * NODES_MAX
    assert driver.hear("c", AssignmentAccepted("q", NODES_MAX)) == []
    effects = driver.hear("b", AssignmentRefused("q", 2 * NODES_MAX, None))
    assert only(effects, SaveRecord)[0].record.coordinator == "a"


def test_submit_unreplicated_record_is_not_answered():
    driver = Driver()
    driver.feed(SubmitRequested(1, CCQ, EMPTY_CURSOR))
    effects = driver.tick(0.5)
    assert only(effects, AnswerSubmit) == []
    assert "q" in driver.machine.coordinated
    record = Record(CCQ, NODES_MAX, "a")
    asked = [effect for effect in effects if isinstance(effect, Send)]
    assert asked == [Send(peer, RecordUpdate((record,), note=True)) for peer in "bc"]
    assert driver.hear("b", RecordAck((("q", NODES_MAX),))) == [
        AnswerSubmit(1, "q", "a", NODES_MAX)
    ]


def test_submit_taken_id_is_refused_unless_equal():
    driver = Driver(nodes=("a",))
    driver.feed(SubmitRequested(1, CCQ, EMPTY_CURSOR))
    (refused,) = driver.feed(SubmitRequested(2, replace(CCQ, query="other"), EMPTY_CURSOR))
    assert (type(refused), refused.failure.kind) == (RefuseSubmit, "invalid_input")
    again = driver.feed(SubmitRequested(3, replace(CCQ, expires_at=WALL + 2000.0), EMPTY_CURSOR))
    assert again == [AnswerSubmit(3, "q", "a", NODES_MAX)]


def test_submit_single_node_answers():
    driver = Driver(nodes=("a",))
    effects = driver.feed(SubmitRequested(1, CCQ, EMPTY_CURSOR))
    assert only(effects, AnswerSubmit) == [AnswerSubmit(1, "q", "a", NODES_MAX)]


def test_submit_refused_by_all_may_be_repeated():
    driver = Driver()
    driver.feed(SubmitRequested(1, CCQ, EMPTY_CURSOR))
    effects = []
    for tenth in range(1, 120):
        effects += driver.tick(tenth / 10)
    (refused,) = only(effects, RefuseSubmit)
    assert (refused.failure.kind, dict(refused.failure.details)["ccq_id"]) == ("unavailable", "q")
    assert only(driver.feed(SubmitRequested(2, CCQ, EMPTY_CURSOR)), AnswerSubmit) == []
    assert driver.hear("c", RecordAck((("q", NODES_MAX),))) == [
        AnswerSubmit(2, "q", "a", NODES_MAX)
    ]


def test_poll_is_answered_with_usage():
    driver = Driver()
    driver.lead()
    (sent,) = driver.hear("b", Poll("x"))
    assert sent == Send("b", PollAnswer("x", replace(IDLE, ccq_count=1)))


# --- appointment and terms -------------------------------------------------------------------


def test_assignment_is_saved_and_accepted():
    driver = Driver()
    effects = driver.lead()
    record = Record(CCQ, NODES_MAX, "a")
    usage = UsageStatistics(memory_free_bytes=8 << 30, ccq_count=1)
    accepted = [
        Send("b", PollAnswer(UNASKED, usage)),
        Send("b", AssignmentAccepted("q", NODES_MAX)),
    ]
    assert effects == [
        SaveRecord(record, durable=True),
        *accepted,
    ]
    assert driver.lead() == accepted


def test_assignment_stale_is_refused_with_newer_record():
    driver = Driver()
    newer = Record(CCQ, 5 * NODES_MAX, "c")
    driver.hear("c", RecordUpdate((newer,)))
    assert driver.lead() == [Send("b", AssignmentRefused("q", NODES_MAX, newer))]


def test_record_of_higher_term_deposes_and_redirects_fetches():
    driver = Driver()
    driver.lead()
    assert driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=9.0)) == []
    newer = Record(CCQ, 2 * NODES_MAX, "c")
    effects = driver.hear("c", RecordUpdate((newer,)))
    assert effects == [SaveRecord(newer, durable=True), RedirectFetch(1, "c")]
    assert driver.machine.coordinated == {}
    assert driver.feed(FetchRequested(2, "q", EMPTY_CURSOR)) == [RedirectFetch(2, "c")]


def test_record_of_old_term_is_answered_with_newer():
    driver = Driver()
    newer = Record(CCQ, 2 * NODES_MAX, "c")
    driver.hear("c", RecordUpdate((newer,)))
    effects = driver.hear("b", RecordUpdate((Record(CCQ, NODES_MAX, "b"),)))
    assert effects == [Send("b", RecordUpdate((newer,)))]


def test_takeover_dead_coordinator_is_staggered():
    turns = {}
    for me in ("a", "b"):
        driver = Driver(me, takeover_stagger_s=2.0)
        driver.hear("c", RecordUpdate((Record(CCQ, NODES_MAX, "c"),)))
        driver.feed(PeerDied("c"), now=10.0)
        now = 10.0
        while not (polls := only(driver.tick(now), Send)):
            now += 0.5
        assert isinstance(polls[0].message, Poll)
        turns[me] = now
        assert driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))[0].failure.kind == "unavailable"
    assert sorted(turns.values()) == [10.0, 12.0]


def test_takeover_resumes_from_retrieved_cursor():
    driver = Driver()
    driver.lead(retrieved=Cursor({0: 4}))
    driver.feed(CommitsObserved("d", Cursor({0: 6, 1: 2})))
    (start,) = driver.tick(1.0)
    item = start.items[0]
    assert (item.after, item.partitions) == (Cursor({0: 4}), (0, 1))


def test_restart_coordinator_waits_then_resumes_in_new_term():
    record = Record(CCQ, NODES_MAX + 1, "a", Cursor({0: 4}))
    driver = Driver(kept=(record,))
    assert driver.restored == [Send(peer, RecordRequest(("q",))) for peer in "bc"]
    assert driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))[0].failure.kind == "unavailable"
    assert driver.lead(term=NODES_MAX + 1) == []
    effects = driver.tick(1.0)
    assert effects[0] == SaveRecord(replace(record, term=2 * NODES_MAX), durable=True)
    assert driver.machine.coordinated["q"].evaluated == Cursor({0: 4})


def test_restart_succeeded_coordinator_does_not_resume():
    driver = Driver(kept=(Record(CCQ, NODES_MAX, "a"),))
    driver.hear("c", RecordUpdate((Record(CCQ, 2 * NODES_MAX, "c"),)))
    assert only(driver.tick(1.0), SaveRecord) == []
    assert driver.machine.coordinated == {}


def test_machine_before_records_loaded_refuses_requests():
    machine = Continuous("a", ContinuousOptions(ordinal=0, groups=(NODES,)))
    for event, kind in (
        (SubmitRequested(1, CCQ, EMPTY_CURSOR), RefuseSubmit),
        (FetchRequested(2, "q", EMPTY_CURSOR), RefuseFetch),
        (CancelRequested(3, "q"), RefuseCancel),
    ):
        (refused,) = machine.step(event, 0.0)
        assert isinstance(refused, kind)
        assert refused.failure.kind == "unavailable"
    assert machine.step(MessageArrived("b", AssignCoordinator(Record(CCQ, 9, "a"), 0)), 0.0) == []
    assert machine.step(Ticked(WALL), 0.0) == []
    machine.step(RecordsLoaded((), WALL), 0.0)
    assert machine.step(FetchRequested(4, "q", EMPTY_CURSOR), 0.0) != []


# --- unknown, ended ----------------------------------------------------------------------------


def test_fetch_unknown_ccq_asks_all_peers_first():
    driver = Driver()
    asked = driver.feed(FetchRequested(1, "x", EMPTY_CURSOR))
    assert asked == [Send(peer, RecordRequest(("x",))) for peer in "cb"]
    assert driver.hear("b", RecordNotFound(("x",))) == []
    (refused,) = driver.hear("c", RecordNotFound(("x",)))
    assert refused.failure.kind == "unknown_ccq"


def test_fetch_unknown_ccq_silent_peer_is_unavailable():
    driver = Driver(locate_timeout_s=2.0)
    driver.feed(FetchRequested(1, "x", EMPTY_CURSOR))
    driver.hear("b", RecordNotFound(("x",)))
    (refused,) = only(driver.tick(2.0), RefuseFetch)
    assert refused.failure.kind == "unavailable"
    assert "c" in refused.failure.message


def test_fetch_ccq_known_to_peer_is_redirected():
    driver = Driver()
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    effects = driver.hear("b", RecordUpdate((Record(CCQ, NODES_MAX, "b"),)))
    assert only(effects, RedirectFetch) == [RedirectFetch(1, "b")]


def test_cancel_at_any_node_ends_ccq_everywhere():
    driver = Driver("b")
    record = Record(CCQ, NODES_MAX, "c")
    driver.hear("c", RecordUpdate((record,)))
    effects = driver.feed(CancelRequested(5, "q"))
    ended = replace(record, ended="cancelled", ended_at=WALL)
    assert effects == [
        SaveRecord(ended, durable=True),
        Send("a", RecordUpdate((ended,))),
        Send("c", RecordUpdate((ended,))),
        AnswerCancel(5, "q"),
    ]
    assert driver.feed(CancelRequested(6, "q")) == [AnswerCancel(6, "q")]
    assert driver.feed(FetchRequested(7, "q", EMPTY_CURSOR))[0].failure.kind == "ccq_cancelled"
    assert driver.feed(SubmitRequested(8, CCQ, EMPTY_CURSOR))[0].failure.kind == "ccq_cancelled"


def test_expired_ccq_is_ended_and_purged_later():
    driver = Driver(tombstone_slack_s=10.0)
    driver.lead(replace(CCQ, expires_at=WALL + 5.0))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    effects = driver.tick(5.0)
    assert [e.failure.kind for e in only(effects, RefuseFetch)] == ["ccq_expired"]
    assert len(only(effects, Send)) == 2
    assert only(driver.tick(14.9), PurgeRecord) == []
    assert only(driver.tick(15.0), PurgeRecord) == [PurgeRecord("q")]
    assert driver.machine.records == ()


def test_wall_clock_jump_ends_no_ccq():
    driver = Driver()
    driver.lead()
    driver.feed(Ticked(WALL + 1e9), now=1.0)
    assert list(driver.machine.coordinated) == ["q"]


def test_expired_ccq_without_coordinator_ends_after_grace():
    driver = Driver(expiry_grace_s=30.0)
    record = Record(replace(CCQ, expires_at=WALL + 5.0), NODES_MAX, "c")
    driver.hear("c", RecordUpdate((record,)))
    assert only(driver.tick(5.0), SaveRecord) == []
    (saved,) = only(driver.tick(35.0), SaveRecord)
    assert saved.record.ended == "expired"


# --- records reach all nodes -------------------------------------------------------------------


def exchange(one: Driver, other: Driver) -> int:
    """Carries messages to and fro until there are none; gives their number."""
    queue = [("a", e) for e in one.tick(one.now + 2)] + [
        ("b", e) for e in other.tick(other.now + 2)
    ]
    drivers, count = {"a": one, "b": other}, 0
    while queue:
        sender, effect = queue.pop(0)
        if isinstance(effect, Send) and effect.to in drivers:
            count += 1
            assert count < 100, "the nodes never stop talking"
            queue += [(effect.to, e) for e in drivers[effect.to].hear(sender, effect.message)]
    return count


def test_sync_nodes_with_different_records_catch_up():
    one, other = (Driver(me, nodes=("a", "b"), sync_interval_s=1.0) for me in "ab")
    for i in range(5):
        one.lead(replace(CCQ, id=f"q{i}"))
        other.lead(replace(CCQ, id=f"r{i}"))
    one.feed(CancelRequested(1, "q3"))
    other.feed(CancelRequested(1, "r1"))
    exchange(one, other)
    exchange(one, other)
    live = [
        {(r.ccq.id, r.term, r.coordinator) for r in d.machine.records if not r.ended}
        for d in (one, other)
    ]
    assert live[0] == live[1]
    assert len(live[0]) == 8
    assert exchange(one, other) == 2


def test_retrieved_cursor_is_saved_lazily_and_announced():
    driver = Driver(sync_interval_s=1.0)
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    driver.feed(FetchRequested(1, "q", Cursor({0: 1})))
    record = Record(CCQ, NODES_MAX, "a", Cursor({0: 1}))
    effects = driver.tick(2.5)
    assert only(effects, SaveRecord) == [SaveRecord(record, durable=False)]
    assert Send("b", RecordUpdate((record,))) in effects
    assert only(driver.tick(4.0), SaveRecord) == []


# --- dropped datasets --------------------------------------------------------------------------


def test_dropped_dataset_ends_its_ccqs_only():
    driver = Driver()
    driver.lead()
    driver.lead(replace(CCQ, id="other", dataset="d2"))
    driver.feed(FetchRequested(1, "q", EMPTY_CURSOR, wait_until=50.0))
    effects = driver.feed(DatasetDropped("d", 1))
    ended = Record(CCQ, NODES_MAX, "a", ended="dropped", ended_at=WALL)
    assert only(effects, SaveRecord) == [SaveRecord(ended, durable=True)]
    assert [e.failure.kind for e in only(effects, RefuseFetch)] == ["ccq_dropped"]
    assert only(effects, Send) == [], "every node ends what it knows"
    assert list(driver.machine.coordinated) == ["other"]
    assert driver.feed(DatasetDropped("d", 1)) == []
    (refused,) = driver.feed(FetchRequested(2, "q", EMPTY_CURSOR))
    assert refused.failure.kind == "ccq_dropped"
    assert "dataset 'd' was dropped" in refused.failure.message


def test_dropped_dataset_late_record_is_ended():
    driver = Driver()
    driver.feed(DatasetDropped("d", 1))
    record = Record(CCQ, NODES_MAX, "a")
    ended = replace(record, ended="dropped", ended_at=WALL)
    effects = driver.hear("b", AssignCoordinator(record, 0))
    assert only(effects, Send) == [Send("b", AssignmentRefused("q", NODES_MAX, ended))]
    later = Record(replace(CCQ, id="r"), NODES_MAX, "c")
    driver.hear("b", RecordUpdate((later,)))
    assert {one.ended for one in driver.machine.records} == {"dropped"}
    (refused,) = driver.feed(SubmitRequested(1, replace(CCQ, id="s"), EMPTY_CURSOR))
    assert refused.failure.kind == "ccq_dropped"
    driver.feed(CommitsObserved("d", Cursor({0: 3})))
    assert driver.machine.state.known == {}


def test_dropped_dataset_created_again_is_another():
    driver = Driver()
    driver.feed(DatasetDropped("d", 1))
    driver.lead(replace(CCQ, id="new", dataset="d@1"))
    driver.feed(CommitsObserved("d@1", Cursor({0: 3})))
    assert list(driver.machine.coordinated) == ["new"]
    driver.feed(DatasetDropped("d", 2))
    assert (list(driver.machine.coordinated), driver.machine.state.known) == ([], {})


def test_submit_dataset_dropped_meanwhile_is_refused():
    driver = Driver()
    submitted_to(driver, BUSY, IDLE)
    driver.feed(SubmitRequested(2, replace(CCQ, id="polling"), EMPTY_CURSOR))
    refused = only(driver.feed(DatasetDropped("d", 1)), RefuseSubmit)
    assert [(one.request, one.failure.kind) for one in refused] == [
        (1, "ccq_dropped"),
        (2, "ccq_dropped"),
    ]
    assert driver.hear("c", AssignmentAccepted("q", NODES_MAX)) == []


def test_restart_after_drop_ends_records_of_dataset():
    machine = Continuous("a", ContinuousOptions(ordinal=0, groups=(("a", "b"),)))
    machine.step(DatasetDropped("d", 1), 0.0)
    kept = Record(CCQ, NODES_MAX, "a")
    effects = machine.step(RecordsLoaded((kept,), WALL), 0.0)
    ended = replace(kept, ended="dropped", ended_at=WALL)
    assert effects == [SaveRecord(ended, durable=True)]
    machine.step(Ticked(WALL), 60.0)
    machine.check()
    assert not machine.coordinated
