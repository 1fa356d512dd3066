"""Where records are kept, how they move with the topology, and how other nodes find them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from ccq_driver import BUSY, CCQ, IDLE, Driver, only

from galileo.ccq.events import (
    AnswerBatch,
    AnswerCancel,
    BatchItem,
    BatchSubmitted,
    CancelRequested,
    FetchRequested,
    FindRequested,
    RedirectFetch,
    RefuseFind,
    SubmitRequested,
)
from galileo.ccq.model import Ccq, Record
from galileo.cursor import EMPTY_CURSOR
from galileo.dht.membership import PeerDied
from galileo.election.duties import COORDINATING_S
from galileo.election.events import (
    AnswerSubmit,
    MembersChanged,
    PurgeRecord,
    RefuseSubmit,
    SaveRecord,
    Send,
    UsageMeasured,
)
from galileo.election.messages import (
    AssignCoordinator,
    AssignmentAccepted,
    Digest,
    Poll,
    PollAnswer,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    Summary,
)
from galileo.election.model import NODES_MAX
from galileo.election.records import replicas_of

NODES = tuple("abcdefg")
SURPLUS_S = 5.0


def driver(me: str = "a", **options) -> Driver:
    return Driver(
        me,
        nodes=NODES,
        **{"copies_min": 3, "sync_interval_s": 1.0, "surplus_s": SURPLUS_S} | options,
    )


def ccq_of(*, on: str = "", off: str = "") -> Ccq:
    """A CCQ whose record is kept by the nodes of `on`, and not by those of `off`."""
    for number in range(10_000):
        replicas = replicas_of(f"q{number}", NODES, 3)
        if set(on) <= set(replicas) and not set(off) & set(replicas):
            return replace(CCQ, id=f"q{number}")
    raise AssertionError("no id fits")


def others_of(ccq: Ccq, *, but: str) -> list[str]:
    return [node for node in replicas_of(ccq.id, NODES, 3) if node not in but]


def sent(effects: list, kind: type) -> list[tuple[str, object]]:
    sends = only(effects, Send)
    return [(one.to, one.message) for one in sends if isinstance(one.message, kind)]


# --- which nodes -------------------------------------------------------------------------------


def test_replicas_change_little_with_the_nodes() -> None:
    ids = [f"q{number}" for number in range(1_000)]
    before = {ccq_id: replicas_of(ccq_id, NODES, 3) for ccq_id in ids}
    after = {ccq_id: replicas_of(ccq_id, (*NODES, "h"), 3) for ccq_id in ids}
    assert all(len(set(before[i]) - set(after[i])) <= 1 for i in ids)
    counts = Counter(node for replicas in after.values() for node in replicas)
    assert min(counts.values()) > 0.75 * max(counts.values())


def test_replicas_of_few_nodes_are_all() -> None:
    assert set(replicas_of("q", ("a", "b"), 3)) == {"a", "b"}


def test_replicas_are_in_as_many_racks_as_there_are() -> None:
    rng = random.Random(7)
    for number in range(500):
        racks = tuple(rng.choice("xyzw") for _ in NODES)
        count = rng.randint(1, len(NODES))
        chosen = replicas_of(f"q{number}", NODES, count, racks)
        rack_of = dict(zip(NODES, racks, strict=True))
        used = Counter(rack_of[node] for node in chosen)
        assert len(set(chosen)) == count
        spare = [rack for rack, nodes in Counter(racks).items() if used[rack] < nodes]
        assert all(used[rack] >= max(used.values()) - 1 for rack in spare)


def test_replicas_of_racks_of_their_own_are_those_without_racks() -> None:
    for number in range(100):
        assert replicas_of(f"q{number}", NODES, 3, NODES) == replicas_of(f"q{number}", NODES, 3)


def test_record_moves_to_another_rack() -> None:
    """A node that gets a rack changes which nodes keep a record."""
    racks = dict.fromkeys(NODES, "x") | {"g": "y"}
    in_racks = tuple(racks.values())
    ccq = next(
        replace(CCQ, id=f"q{n}")
        for n in range(10_000)
        if "a" in replicas_of(f"q{n}", NODES, 3)
        and "a" not in replicas_of(f"q{n}", NODES, 3, in_racks)
    )
    made = driver()
    coordinator = others_of(ccq, but="a")[0]
    made.hear(coordinator, RecordUpdate((Record(ccq, NODES_MAX, coordinator),)))
    made.feed(MembersChanged((NODES,), racks))
    assert "g" in {peer for peer, _ in sent(made.tick(1.0), RecordUpdate)}


# --- submissions -------------------------------------------------------------------------------


def test_submit_is_answered_when_three_nodes_have_the_record() -> None:
    made = driver()
    made.feed(UsageMeasured(BUSY))
    ccq = ccq_of(on="abc")
    polls = sent(made.feed(SubmitRequested(1, ccq, EMPTY_CURSOR)), Poll)
    made.feed(SubmitRequested(2, ccq, EMPTY_CURSOR))
    answers = [made.hear(peer, PollAnswer("", IDLE)) for peer, _ in polls]
    effects = answers[-1]
    ((to, offer),) = sent(effects, AssignCoordinator)
    accepted = made.hear(to, AssignmentAccepted(ccq.id, offer.record.term))
    assert only(accepted, AnswerSubmit) == []
    asked = sent(accepted, RecordUpdate)
    assert {peer for peer, _ in asked} == set("bc") - {to}
    assert all(message.note for _, message in asked)
    third = "b" if to != "b" else "c"
    answers = made.hear(third, RecordAck(((ccq.id, offer.record.term),)))
    assert len(only(answers, AnswerSubmit)) == 2


def test_submit_elsewhere_looks_for_the_record_first() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    effects = made.feed(SubmitRequested(1, ccq, EMPTY_CURSOR))
    replicas = others_of(ccq, but="a")
    assert {peer for peer, _ in sent(effects, RecordRequest)} == set(replicas)
    assert sent(effects, Poll) == []
    for peer in replicas[:-1]:
        assert made.hear(peer, RecordNotFound((ccq.id,))) == []
    assert sent(made.hear(replicas[-1], RecordNotFound((ccq.id,))), Poll) != []


def test_submit_elsewhere_does_not_wait_for_dead_replicas() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    first, *others = others_of(ccq, but="a")
    made.feed(PeerDied(first))
    effects = made.feed(SubmitRequested(1, ccq, EMPTY_CURSOR))
    assert {peer for peer, _ in sent(effects, RecordRequest)} == set(others)


def test_submit_elsewhere_under_a_taken_id_is_refused() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    made.feed(SubmitRequested(1, replace(ccq, query="other"), EMPTY_CURSOR))
    record = Record(ccq, NODES_MAX, "b")
    (refused,) = only(made.hear(others_of(ccq, but="a")[0], RecordUpdate((record,))), RefuseSubmit)
    assert refused.failure.kind == "invalid_input"


def test_submit_batch_looks_for_records_together() -> None:
    made = driver()
    known = ccq_of(off="a")
    taken = replicas_of(known.id, NODES, 3)
    new = next(
        replace(CCQ, id=f"r{number}")
        for number in range(10_000)
        if replicas_of(f"r{number}", NODES, 3) == taken
    )
    effects = made.feed(BatchSubmitted(1, (BatchItem(known), BatchItem(new))))
    requests = sent(effects, RecordRequest)
    assert [(peer, set(message.ccq_ids)) for peer, message in requests] == [
        (peer, {known.id, new.id}) for peer in taken
    ]
    rival = Record(replace(known, query="other"), NODES_MAX, "b")
    made.hear(taken[0], RecordUpdate((rival,)))
    polls: list = []
    for peer in taken:
        polls += sent(made.hear(peer, RecordNotFound((new.id,))), Poll)
    assert polls != []
    (answer,) = only(made.tick(60.0), AnswerBatch)
    assert [one.failure.kind for one in answer.outcomes] == ["invalid_input", "unavailable"]


# --- requests at nodes without the record --------------------------------------------------------


def test_fetch_elsewhere_is_redirected_and_nothing_is_stored() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    made.feed(FetchRequested(1, ccq.id, EMPTY_CURSOR))
    record = Record(ccq, NODES_MAX, "b")
    effects = made.hear(others_of(ccq, but="a")[0], RecordUpdate((record,)))
    assert effects == [RedirectFetch(1, "b")]
    assert made.machine.records == ()


def test_find_is_unknown_only_when_all_nodes_deny_it() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    made.feed(FindRequested(1, ccq.id))
    replicas = others_of(ccq, but="a")
    for peer in replicas[:-1]:
        assert made.hear(peer, RecordNotFound((ccq.id,))) == []
    asked = {
        peer for peer, _ in sent(made.hear(replicas[-1], RecordNotFound((ccq.id,))), RecordRequest)
    }
    assert asked == set(NODES[1:]) - set(replicas)
    for peer in sorted(asked)[:-1]:
        assert made.hear(peer, RecordNotFound((ccq.id,))) == []
    (refused,) = made.hear(max(asked), RecordNotFound((ccq.id,)))
    assert refused.failure.kind == "unknown_ccq"


def test_find_with_a_silent_node_is_unavailable() -> None:
    made = driver(locate_timeout_s=2.0)
    ccq = ccq_of(off="a")
    made.feed(FindRequested(1, ccq.id))
    for peer in NODES[1:-1]:
        made.hear(peer, RecordNotFound((ccq.id,)))
    (refused,) = only(made.tick(2.0), RefuseFind)
    assert refused.failure.kind == "unavailable"
    assert "g" in refused.failure.message


def test_cancel_elsewhere_saves_the_end_and_announces_it() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    made.feed(CancelRequested(1, ccq.id))
    coordinator = others_of(ccq, but="a")[0]
    record = Record(ccq, NODES_MAX, coordinator)
    effects = made.hear(coordinator, RecordUpdate((record,)))
    assert [one.record.ended for one in only(effects, SaveRecord)] == ["cancelled"]
    announced = {peer for peer, _ in sent(effects, RecordUpdate)}
    assert announced == set(others_of(ccq, but="a"))
    assert only(effects, AnswerCancel) == [AnswerCancel(1, ccq.id)]


# --- surplus records ---------------------------------------------------------------------------


def surplus(made: Driver) -> Record:
    """Has node a keep a record that it need not have."""
    ccq = ccq_of(off="a")
    record = Record(ccq, NODES_MAX, others_of(ccq, but="a")[0])
    effects = made.hear("b", RecordUpdate((record,), note=True))
    assert [one.record for one in only(effects, SaveRecord)] == [record]
    return record


def test_record_of_others_is_ignored_unless_a_copy_is_wanted() -> None:
    made = driver()
    ccq = ccq_of(off="a")
    record = Record(ccq, NODES_MAX, others_of(ccq, but="a")[0])
    assert made.hear("b", RecordUpdate((record,))) == []
    assert made.machine.records == ()


def test_surplus_record_is_sent_to_replicas_until_all_have_it() -> None:
    made = driver()
    record = surplus(made)
    replicas = others_of(record.ccq, but="a")
    pushed = sent(made.tick(1.0), RecordUpdate)
    assert {peer for peer, message in pushed if message.note} == set(replicas)
    ack = RecordAck(((record.ccq.id, record.term),))
    for peer in replicas[:-1]:
        made.hear(peer, ack)
    later = made.tick(1.0 + SURPLUS_S)
    assert only(later, PurgeRecord) == []
    assert [peer for peer, _ in sent(later, RecordUpdate)] == replicas[-1:]
    made.hear(replicas[-1], ack)
    assert only(made.tick(2.0 + SURPLUS_S), PurgeRecord) == [PurgeRecord(record.ccq.id)]
    assert made.machine.records == ()


def test_surplus_record_stays_while_messages_may_be_under_way() -> None:
    made = driver()
    record = surplus(made)
    made.tick(1.0)
    for peer in others_of(record.ccq, but="a"):
        made.hear(peer, RecordAck(((record.ccq.id, record.term),)))
    assert only(made.tick(0.9 + SURPLUS_S), PurgeRecord) == []
    assert only(made.tick(2.0 + SURPLUS_S), PurgeRecord) == [PurgeRecord(record.ccq.id)]


def test_surplus_record_that_ended_needs_acknowledgements_of_its_end() -> None:
    made = driver()
    record = surplus(made)
    replicas = others_of(record.ccq, but="a")
    made.tick(1.0)
    made.feed(CancelRequested(1, record.ccq.id))
    for peer in replicas:
        made.hear(peer, RecordAck(((record.ccq.id, record.term),)))
    made.tick(2.0)
    assert only(made.tick(3.0 + SURPLUS_S), PurgeRecord) == []
    for peer in replicas:
        made.hear(peer, RecordAck(((record.ccq.id, -record.term),)))
    assert only(made.tick(4.0 + SURPLUS_S), PurgeRecord) == [PurgeRecord(record.ccq.id)]


def test_end_at_a_coordinator_that_is_no_replica_is_sent_until_all_replicas_have_it() -> None:
    """Its announcement may be lost while another node takes the CCQ over."""
    ccq = ccq_of(off="a")
    replicas = others_of(ccq, but="a")
    made = driver(kept=(Record(ccq, NODES_MAX, "a"),))
    made.tick(1.0)
    made.feed(CancelRequested(1, ccq.id))
    pushed = sent(made.tick(2.0), RecordUpdate)
    assert {peer for peer, message in pushed if message.note} == set(replicas)
    (record,) = made.machine.records
    for peer in replicas:
        made.hear(peer, RecordAck(((ccq.id, -record.term),)))
    assert only(made.tick(3.0 + SURPLUS_S), PurgeRecord) == [PurgeRecord(ccq.id)]


def test_stored_records_of_all_nodes_are_handed_to_their_replicas() -> None:
    """As after a change of the topology that gives them other replicas."""
    kept = tuple(Record(replace(CCQ, id=f"q{n}"), NODES_MAX, "b") for n in range(30))
    made = driver(kept=kept)
    for number in range(1, 20):
        for peer, message in sent(made.tick(float(number)), RecordUpdate):
            if message.note:
                entries = tuple((record.ccq.id, record.term) for record in message.records)
                made.hear(peer, RecordAck(entries))
    left = {record.ccq.id for record in made.machine.records}
    assert left == {one.ccq.id for one in kept if "a" in replicas_of(one.ccq.id, NODES, 3)}


def test_record_moves_to_a_node_that_joins() -> None:
    made = driver()
    ccq = next(
        replace(CCQ, id=f"q{n}")
        for n in range(10_000)
        if "a" in replicas_of(f"q{n}", NODES, 3)
        and "a" not in replicas_of(f"q{n}", (*NODES, "h"), 3)
    )
    coordinator = others_of(ccq, but="a")[0]
    record = Record(ccq, NODES_MAX, coordinator)
    made.hear(coordinator, RecordUpdate((record,)))
    made.feed(MembersChanged(((*NODES, "h"),)))
    assert "h" in {peer for peer, _ in sent(made.tick(1.0), RecordUpdate)}
    assert [one.ccq.id for one in made.machine.records] == [ccq.id]


# --- anti-entropy and take-overs -----------------------------------------------------------------


def test_digests_are_of_shared_records_only() -> None:
    made = driver()
    ccq = ccq_of(on="ab", off="g")
    coordinator = others_of(ccq, but="ab")[0]
    made.hear("b", RecordUpdate((Record(ccq, NODES_MAX, coordinator),)))
    digests = dict(sent(made.tick(1.0), Digest))
    assert set(digests) == {"b", coordinator}
    assert digests["b"].count == 1
    page = sent(made.hear("g", Digest(7, 1)), Summary)
    assert page == [("g", Summary("", None, ()))]


def test_coordinator_reports_to_all_nodes_that_it_coordinates() -> None:
    made = driver()
    made.lead()
    assert {peer for peer, _ in sent(made.tick(1.0), Digest)} == set(NODES[1:])
    other = driver("b")
    assert not other.machine.is_coordinator("a")
    other.hear("a", Digest(0, 0))
    assert other.machine.is_coordinator("a")
    other.tick(COORDINATING_S - 0.1)
    assert other.machine.is_coordinator("a")
    other.tick(COORDINATING_S + 0.1)
    assert not other.machine.is_coordinator("a")


def test_record_of_a_forgotten_term_begins_a_new_one() -> None:
    """This node may have coordinated in that term already, and must not do so again."""
    made = driver(resume_check_s=1.0)
    ccq = ccq_of(off="a")
    record = Record(ccq, NODES_MAX, "a")
    effects = made.hear("b", RecordUpdate((record,)))
    assert {peer for peer, _ in sent(effects, RecordRequest)} == set(others_of(ccq, but="a"))
    assert made.machine.coordinated == {}
    made.tick(1.0)
    assert made.machine.coordinated[ccq.id].term > record.term


def test_failover_begins_at_a_live_replica() -> None:
    ccq = ccq_of(on="ab", off="g")
    record = Record(ccq, NODES_MAX, "g")
    begun: Counter[str] = Counter()
    for me in others_of(ccq, but=""):
        made = driver(me, takeover_stagger_s=10.0)
        made.hear("f" if me != "f" else "e", RecordUpdate((record,), note=True))
        made.feed(PeerDied("g"))
        effects = made.tick(0.5)
        begun[me] = bool(sent(effects, Poll))
    assert begun.total() == 1
