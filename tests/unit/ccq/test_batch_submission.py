"""These events, hence these instructions: submissions of many CCQs at once."""

from __future__ import annotations

from dataclasses import replace

from ccq_driver import BUSY, CCQ, IDLE, WALL, Driver, only

from galileo.ccq.events import (
    AnswerBatch,
    BatchItem,
    BatchSubmitted,
    DatasetDropped,
    Outcome,
    SubmitRequested,
)
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Record
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import PeerDied
from galileo.election.events import (
    DrainRequested,
    RecordsLoaded,
    RefuseSubmit,
    SaveRecord,
    Send,
    UsageMeasured,
)
from galileo.election.messages import (
    UNASKED,
    AssignMany,
    AssignmentsAnswered,
    Poll,
    PollAnswer,
    RecordAck,
    RecordUpdate,
    UsageStatistics,
)
from galileo.election.model import NODES_MAX
from galileo.election.state import RECORDS_PER_MESSAGE


def items(*ids: str) -> tuple[BatchItem, ...]:
    return tuple(BatchItem(replace(CCQ, id=ccq_id)) for ccq_id in ids)


def offered(driver: Driver, *ids: str, request: int = 1) -> list:
    """Submits at a, which is busy; c is idle and is offered all."""
    driver.feed(UsageMeasured(replace(BUSY, cpu_share=0.85)))
    polls = driver.feed(BatchSubmitted(request, items(*ids)))
    name = polls[0].message.election
    assert polls == [Send(peer, Poll(name)) for peer in "bc"]
    driver.hear("b", PollAnswer(name, BUSY))
    return driver.hear("c", PollAnswer(name, IDLE))


def test_submit_batch_saves_all_records_before_offer():
    effects = offered(Driver(), "q", "r")
    records = tuple(Record(replace(CCQ, id=i), NODES_MAX, "c") for i in "qr")
    assert effects == [
        *(SaveRecord(record, durable=True) for record in records),
        Send("c", AssignMany(records)),
    ]


def test_submit_batch_all_accepted_answers_in_order():
    driver = Driver()
    offered(driver, "q", "r")
    assert driver.hear("c", AssignmentsAnswered((("r", NODES_MAX),), ())) == []
    effects = driver.hear("c", AssignmentsAnswered((("q", NODES_MAX),), ()))
    outcomes = tuple(Outcome(i, "c", NODES_MAX) for i in "qr")
    assert effects == [AnswerBatch(1, outcomes)]


def test_submit_batch_evaluated_items_begin_at_their_frontiers():
    driver = Driver()
    driver.feed(UsageMeasured(BUSY))
    evaluated = BatchItem(CCQ, reached=Cursor({0: 3}), need_bytes=1 << 20)
    polls = driver.feed(BatchSubmitted(1, (evaluated, *items("r"))))
    for peer in "bc":
        effects = driver.hear(peer, PollAnswer(polls[0].message.election, IDLE))
    offered_records = effects[-1].message.records
    assert [record.retrieved for record in offered_records] == [Cursor({0: 3}), EMPTY_CURSOR]


def test_submit_batch_caches_of_all_have_to_fit():
    driver = Driver()
    driver.feed(UsageMeasured(BUSY))
    small = replace(IDLE, memory_free_bytes=3 << 30)
    batch = tuple(BatchItem(replace(CCQ, id=i), need_bytes=2 << 30) for i in "qr")
    polls = driver.feed(BatchSubmitted(1, batch))
    name = polls[0].message.election
    driver.hear("b", PollAnswer(name, small))
    effects = driver.hear("c", PollAnswer(name, replace(small, memory_free_bytes=16 << 30)))
    assert {send.to for send in only(effects, Send)} == {"c"}


def test_assign_many_saves_then_accepts():
    driver = Driver("c")
    records = tuple(Record(replace(CCQ, id=i), NODES_MAX, "c") for i in "qr")
    effects = driver.hear("a", AssignMany(records))
    accepted = [
        Send("a", PollAnswer(UNASKED, UsageStatistics(memory_free_bytes=8 << 30, ccq_count=2))),
        Send("a", AssignmentsAnswered((("q", NODES_MAX), ("r", NODES_MAX)), ())),
    ]
    assert effects == [
        *(SaveRecord(record, durable=True) for record in records),
        *accepted,
    ]
    assert driver.hear("a", AssignMany(records)) == accepted


def test_assign_many_large_batch_is_sent_in_pages():
    count = RECORDS_PER_MESSAGE + 1
    effects = offered(Driver(batch_share_min=10**6), *(f"q{number}" for number in range(count)))
    sent = [len(effect.message.records) for effect in only(effects, Send)]
    assert sent == [RECORDS_PER_MESSAGE, 1]


def test_submit_batch_refused_item_is_offered_to_next_node():
    driver = Driver()
    offered(driver, "q", "r")
    effects = driver.hear("c", AssignmentsAnswered((("q", NODES_MAX),), (("r", NODES_MAX),)))
    (saved,) = only(effects, SaveRecord)
    (sent,) = only(effects, Send)
    assert (saved.record.ccq.id, saved.record.term, sent.to) == ("r", 2 * NODES_MAX, "b")
    late = driver.hear("c", AssignmentsAnswered((("r", NODES_MAX),), ()))
    assert late == []
    (answer,) = driver.hear("b", AssignmentsAnswered((("r", 2 * NODES_MAX),), ()))
    assert [one.coordinator for one in answer.outcomes] == ["c", "b"]


def test_assign_many_full_or_draining_node_refuses():
    driver = Driver("c", coordinated_max=1)
    records = tuple(Record(replace(CCQ, id=i), NODES_MAX, "c") for i in "qr")
    (answer,) = [e for e in driver.hear("a", AssignMany(records)) if _is_answer(e)]
    assert answer.message == AssignmentsAnswered((("q", NODES_MAX),), (("r", NODES_MAX),))
    draining = Driver("c")
    draining.feed(DrainRequested())
    (answer,) = draining.hear("a", AssignMany(records))
    assert answer.message.accepted == ()


def _is_answer(effect: object) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, AssignmentsAnswered)


def test_assign_many_stale_record_is_refused_with_newer_one():
    driver = Driver("c")
    newer = Record(CCQ, 5 * NODES_MAX, "b")
    driver.hear("b", RecordUpdate((newer,)))
    messages, answer = driver.hear("a", AssignMany((Record(CCQ, NODES_MAX, "c"),)))
    assert messages == Send("a", RecordUpdate((newer,)))
    assert answer.message == AssignmentsAnswered((), (("q", NODES_MAX),))


def test_submit_batch_unreplicated_record_is_not_answered():
    driver = Driver()
    driver.feed(BatchSubmitted(1, items("q", "r")))
    effects = driver.tick(0.5)  # No one has answered the poll; this node takes them.
    assert only(effects, AnswerBatch) == []
    assert set(driver.machine.coordinated) == {"q", "r"}
    assert all(effect.message.note for effect in only(effects, Send))
    assert driver.hear("b", RecordAck((("q", NODES_MAX),))) == []
    repeated = [e for e in driver.tick(1.0) if isinstance(getattr(e, "message", 0), RecordUpdate)]
    assert [[r.ccq.id for r in e.message.records] for e in repeated] == [["r"], ["r"]]
    (answer,) = driver.hear("b", RecordAck((("r", NODES_MAX),)))
    assert [one.coordinator for one in answer.outcomes] == ["a", "a"]


def test_submit_batch_single_node_answers_and_repeats():
    driver = Driver(nodes=("a",))
    (first,) = only(driver.feed(BatchSubmitted(1, items("q", "r"))), AnswerBatch)
    (second,) = driver.feed(BatchSubmitted(2, items("q", "r")))
    assert first.outcomes == second.outcomes == tuple(Outcome(i, "a", NODES_MAX) for i in "qr")
    assert driver.machine.state.record_table.get("q").retrieved == EMPTY_CURSOR


def test_submit_batch_invalid_item_keeps_others():
    driver = Driver(nodes=("a",))
    driver.feed(BatchSubmitted(1, items("q")))
    rival = BatchItem(replace(CCQ, query="other"))
    (answer,) = only(driver.feed(BatchSubmitted(2, (rival, *items("r", "r")))), AnswerBatch)
    kinds = [one.failure and one.failure.kind for one in answer.outcomes]
    assert kinds == ["invalid_input", None, "unavailable"]


def test_submit_id_under_way_is_overloaded():
    driver = Driver()
    driver.feed(BatchSubmitted(1, items("q")))
    (refused,) = driver.feed(SubmitRequested(2, CCQ, EMPTY_CURSOR))
    assert (type(refused), refused.failure.kind) == (RefuseSubmit, "overloaded")
    driver.feed(SubmitRequested(3, replace(CCQ, id="r"), EMPTY_CURSOR))
    (answer,) = driver.feed(BatchSubmitted(4, items("r")))
    assert answer.outcomes[0].failure.kind == "unavailable"


def test_submit_batch_candidates_of_groups_have_own_elections():
    driver = Driver()
    driver.machine = Continuous("a", ContinuousOptions(ordinal=0, groups=(("a",), ("b",), ("c",))))
    driver.feed(RecordsLoaded((), WALL))
    batch = (BatchItem(CCQ, ("b",)), BatchItem(replace(CCQ, id="r"), ("c",)))
    batch += (BatchItem(replace(CCQ, id="s"), ("b",)),)
    polls = only(driver.feed(BatchSubmitted(1, batch)), Send)
    assert [poll.to for poll in polls] == ["b", "c"]
    answers = [driver.hear(p.to, PollAnswer(p.message.election, IDLE)) for p in polls]
    offers = [only(effects, Send)[0].message.records for effects in answers]
    assert [[record.ccq.id for record in offer] for offer in offers] == [["q", "s"], ["r"]]


def test_submit_batch_timeout_is_unavailable_and_repeatable():
    driver = Driver(submit_timeout_s=3.0)
    offered(driver, "q", "r")
    driver.hear("c", AssignmentsAnswered((("q", NODES_MAX),), ()))
    (answer,) = only(driver.tick(3.0), AnswerBatch)
    taken, left = answer.outcomes
    assert (taken.coordinator, left.failure.kind) == ("c", "unavailable")
    again = driver.feed(BatchSubmitted(2, items("r")), now=3.1)
    assert again == [Send(p, RecordUpdate((again[0].message.records), note=True)) for p in "cb"]


def test_submit_batch_running_item_is_accepted_despite_others():
    driver = Driver()
    driver.feed(DrainRequested())
    driver.hear("c", RecordUpdate((Record(replace(CCQ, id="q"), NODES_MAX, "c"),)))
    polls = [e for e in driver.feed(BatchSubmitted(1, items("q", "r"))) if "poll" in str(e).lower()]
    name = polls[0].message.election
    driver.hear("b", PollAnswer(name, BUSY))
    (offer,) = only(driver.hear("c", PollAnswer(name, IDLE)), Send)
    (offer,) = only(driver.hear("c", AssignmentsAnswered((), (("r", NODES_MAX),))), Send)
    assert (offer.to, offer.message.records[0].ccq.id) == ("b", "r")
    refused = driver.hear("b", AssignmentsAnswered((), (("r", 2 * NODES_MAX),)))
    assert only(refused, AnswerBatch) == [], "q may still be noted"
    (answer,) = driver.hear("b", RecordAck((("q", NODES_MAX),)))
    first, second = answer.outcomes
    assert (first.coordinator, first.failure) == ("c", None)
    assert second.failure.kind == "unavailable"


def test_submit_batch_item_ended_or_moved_is_answered_so():
    driver = Driver()
    offered(driver, "q", "r")
    over = Record(CCQ, NODES_MAX, "c", ended="cancelled", ended_at=WALL)
    assert only(driver.hear("b", RecordUpdate((over,))), AnswerBatch) == []
    elsewhere = Record(replace(CCQ, id="r"), 3 * NODES_MAX + 1, "b")
    assert only(driver.hear("b", RecordUpdate((elsewhere,))), AnswerBatch) == []
    (answer,) = driver.hear("b", RecordAck((("r", 3 * NODES_MAX + 1),)))
    cancelled, moved = answer.outcomes
    assert cancelled.failure.kind == "ccq_cancelled"
    assert (moved.coordinator, moved.term) == ("b", 3 * NODES_MAX + 1)


def test_submit_batch_dead_coordinator_offers_to_next():
    driver = Driver(takeover_stagger_s=0.0, submit_timeout_s=9.0)
    offered(driver, "q")
    driver.feed(PeerDied("c"))
    polls = [e for e in driver.tick(0.2) if isinstance(getattr(e, "message", 0), Poll)]
    assert polls == []
    (sent,) = only(driver.tick(1.2), Send)
    assert isinstance(sent.message, AssignMany)
    assert sent.to == "b"


def test_machine_before_records_loaded_refuses_batches():
    machine = Continuous("a", ContinuousOptions(ordinal=0, groups=(("a",),)))
    (refused,) = machine.step(BatchSubmitted(1, items("q")), 0.0)
    assert (type(refused), refused.failure.kind) == (RefuseSubmit, "unavailable")


def test_election_own_usage_counts():
    driver = Driver()
    driver.feed(UsageMeasured(UsageStatistics(memory_free_bytes=8 << 30)))
    (poll, _) = driver.feed(BatchSubmitted(1, items("q")))
    driver.hear("b", PollAnswer(poll.message.election, BUSY))
    driver.hear("c", PollAnswer(poll.message.election, BUSY))
    assert set(driver.machine.coordinated) == {"q"}


def test_submit_batch_dataset_dropped_is_ccq_dropped():
    driver = Driver()
    driver.feed(UsageMeasured(replace(BUSY, cpu_share=0.85)))
    other = BatchItem(replace(CCQ, id="other", dataset="d2"))
    (poll, _) = driver.feed(BatchSubmitted(1, (*items("q", "r"), other)))
    assert only(driver.feed(DatasetDropped("d", 1)), AnswerBatch) == []
    driver.hear("b", PollAnswer(poll.message.election, BUSY))
    (offer,) = only(driver.hear("c", PollAnswer(poll.message.election, IDLE)), Send)
    assert [record.ccq.id for record in offer.message.records] == ["other"]
    (answer,) = driver.hear("c", AssignmentsAnswered((("other", NODES_MAX),), ()))
    assert [one.failure and one.failure.kind for one in answer.outcomes] == [
        "ccq_dropped",
        "ccq_dropped",
        None,
    ]
    (refused,) = driver.feed(BatchSubmitted(2, items("s")))
    assert refused.outcomes[0].failure.kind == "ccq_dropped"


def test_assign_many_dropped_dataset_is_refused_with_record():
    driver = Driver("b")
    driver.feed(DatasetDropped("d", 1))
    effects = driver.hear("a", AssignMany((Record(CCQ, NODES_MAX, "b"),)))
    messages = [effect.message for effect in only(effects, Send)]
    assert messages[0].records[0].ended == "dropped"
    assert messages[-1] == AssignmentsAnswered((), (("q", NODES_MAX),))
