"""These events, hence these instructions."""

from hypothesis import given
from hypothesis import strategies as st

from galileo.election.machine import Election, ElectionOptions
from galileo.election.messages import (
    Decided,
    ElectionTicked,
    Failed,
    OfferAccepted,
    OfferAssignment,
    OfferRefused,
    PollAnswered,
    SendPoll,
    Started,
    UsageStatistics,
)

OPTIONS = ElectionOptions(poll_timeout_s=0.5, appoint_timeout_s=1.0)
IDLE = UsageStatistics(cpu_share=0.1, memory_free_bytes=8 << 30)
BUSY = UsageStatistics(cpu_share=0.6, memory_free_bytes=8 << 30)
FULL = UsageStatistics(cpu_share=0.1, memory_free_bytes=1 << 20)


def started(*rounds: tuple[str, ...], need_bytes: int = 1 << 20) -> Election:
    election = Election(options=OPTIONS)
    election.step(Started(need_bytes, rounds), 0.0)
    return election


def test_election_first_round_appoints_best():
    election = Election(options=OPTIONS)
    polls = election.step(Started(0, (("a", "b"), ("c",))), 0.0)
    assert polls == [SendPoll("a"), SendPoll("b")]
    assert election.step(PollAnswered("a", BUSY), 0.1) == []
    assert election.step(PollAnswered("b", IDLE), 0.1) == [OfferAssignment("b")]
    assert election.step(OfferAccepted("b"), 0.2) == [Decided("b")]
    assert election.is_over


def test_election_only_suitable_without_room_fails():
    election = Election(options=OPTIONS)
    election.step(Started(1 << 20, (("a",), ("b",)), only_suitable=True), 0.0)
    assert election.step(PollAnswered("a", FULL), 0.1) == [SendPoll("b")]
    (failed,) = election.step(PollAnswered("b", FULL), 0.2)
    assert isinstance(failed, Failed)
    assert election.is_over


def test_election_silent_node_times_out():
    election = started(("a", "b"))
    election.step(PollAnswered("a", BUSY), 0.1)
    assert election.step(ElectionTicked(), 0.4) == []
    assert election.step(ElectionTicked(), 0.5) == [OfferAssignment("a")]


def test_election_refusal_or_silence_offers_to_next():
    election = started(("a", "b", "c"))
    for node, usage in (("a", IDLE), ("b", BUSY), ("c", BUSY)):
        effects = election.step(PollAnswered(node, usage), 0.1)
    assert effects == [OfferAssignment("a")]
    assert election.step(OfferRefused("a"), 0.2) == [OfferAssignment("b")]
    assert election.step(ElectionTicked(), 1.1) == []
    assert election.step(ElectionTicked(), 1.2) == [OfferAssignment("c")]
    assert election.step(OfferRefused("b"), 1.3) == [], "the offer to it is over"
    assert election.step(OfferAccepted("a"), 1.3) == []
    assert election.step(OfferAccepted("c"), 1.3) == [Decided("c")]


def test_election_assigned_since_answer_counts():
    assigned = {"a": 0, "b": 0}
    elections = [Election(options=OPTIONS, assigned=assigned.__getitem__) for _ in range(4)]
    for election in elections:
        election.step(Started(0, (("a", "b"),)), 0.0)
        election.step(PollAnswered("a", IDLE), 0.1)
    for election in elections:
        (offer,) = election.step(PollAnswered("b", IDLE), 0.1)
        assigned[offer.node] += 1
    assert assigned == {"a": 2, "b": 2}


def test_election_no_suitable_node_polls_next_round():
    election = started(("a",), ("b",))
    assert election.step(PollAnswered("a", FULL), 0.1) == [SendPoll("b")]
    assert election.step(PollAnswered("b", IDLE), 0.2) == [OfferAssignment("b")]


def test_election_no_suitable_node_at_all_takes_least_loaded():
    election = started(("a",), ("b",), need_bytes=1 << 40)
    election.step(PollAnswered("a", IDLE), 0.1)
    assert election.step(PollAnswered("b", BUSY), 0.2) == [OfferAssignment("a")]


def test_election_no_answer_fails():
    election = started(("a",), ("b",))
    assert election.step(ElectionTicked(), 0.5) == [SendPoll("b")]
    (failed,) = election.step(ElectionTicked(), 1.0)
    assert isinstance(failed, Failed)
    assert "2 were asked" in failed.reason
    assert election.step(PollAnswered("a", IDLE), 1.1) == []


def test_election_offers_are_bounded():
    nodes = tuple(f"n{i:02}" for i in range(20))
    election = started(nodes)
    for node in nodes:
        election.step(PollAnswered(node, IDLE), 0.1)
    offers = 1
    while not election.is_over:
        effects = election.step(OfferRefused(election.offered_to or ""), 0.2)
        offers += any(isinstance(effect, OfferAssignment) for effect in effects)
    assert offers == OPTIONS.offers_max


@given(
    st.lists(
        st.tuples(st.sampled_from("parxt"), st.sampled_from("abcde"), st.floats(0.0, 1.5)),
        max_size=30,
    )
)
def test_election_random_events_keep_invariants(steps):
    election, now = started(("a", "b"), ("c", "d")), 0.0
    for kind, node, pause_s in steps:
        now += pause_s
        event = {
            "p": PollAnswered(node, IDLE),
            "x": PollAnswered(node, FULL),
            "a": OfferAccepted(node),
            "r": OfferRefused(node),
            "t": ElectionTicked(),
        }[kind]
        election.step(event, now)
        election.check()
    for _ in range(40):
        now += 2.0
        election.step(ElectionTicked(), now)
        election.check()
    assert election.is_over
