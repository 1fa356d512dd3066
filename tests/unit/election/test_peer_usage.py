"""What a node knows of its peers' usage between two polls."""

from galileo.election.messages import PollAnswered, UsageStatistics
from galileo.election.peer_usage import PeerUsage

USAGE = UsageStatistics(cpu_share=0.1, ccq_count=5)


def peers() -> PeerUsage:
    return PeerUsage(ttl_s=1.0, poll_timeout_s=0.5)


def answered() -> PeerUsage:
    """b was polled and has answered after 0.2 s."""
    known = peers()
    assert known.begin_poll("b", 0.0)
    assert known.record_answer("b", USAGE, 0.2) == PollAnswered("b", USAGE, 0.2)
    return known


def test_peer_usage_answer_serves_until_it_is_old() -> None:
    known = answered()
    assert known.answer("b", 1.1) == PollAnswered("b", USAGE, 0.2)
    assert known.answer("b", 1.2) is None
    assert known.answer("c", 0.3) is None


def test_peer_usage_poll_under_way_is_not_sent_again() -> None:
    known = peers()
    assert known.begin_poll("b", 0.0)
    assert not known.begin_poll("b", 0.4)
    assert known.begin_poll("b", 0.5)


def test_peer_usage_offers_count_until_they_are_accepted() -> None:
    known = answered()
    known.record_offer("b", 3)
    assert known.ccq_count("b") == 8
    known.record_answer("b", UsageStatistics(ccq_count=7), 0.3)
    known.record_accepted("b", 2)
    assert known.ccq_count("b") == 8


def test_peer_usage_unasked_answer_keeps_the_round_trip() -> None:
    known = answered()
    assert known.record_answer("b", USAGE, 9.0).round_trip_s == 0.2


def test_peer_usage_of_a_forgotten_node_is_unknown() -> None:
    known = answered()
    known.record_offer("b", 1)
    known.forget("b")
    assert known.answer("b", 0.3) is None
    assert known.ccq_count("b") == 0
