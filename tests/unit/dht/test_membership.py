import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.dht.membership import (
    AnswerGossip,
    ExchangeFailed,
    Gossip,
    GossipArrived,
    Membership,
    MembershipEvent,
    MembershipOptions,
    MembershipTicked,
    PeerDied,
    PeerRevived,
    PeersChanged,
    ReplyArrived,
    SendGossip,
    SendHeartbeat,
    StateChanged,
)
from galileo.dht.node_states import Digest

OPTIONS = MembershipOptions(heartbeat_interval_s=0.25, failure_timeout_s=2.0, lag_max_s=1.0)


def started(*peers: str) -> Membership:
    membership = Membership("a", ["a", *peers], options=OPTIONS)
    membership.step(MembershipTicked(), 0.0)
    return membership


def heartbeat(
    node: str, *, beats: int, run: int = 1, sender: str = "", dead: tuple[str, ...] = ()
) -> GossipArrived:
    """A heartbeat of `sender` that shows beats of `node`."""
    digest = Digest(
        (node,),
        np.array([run], dtype=np.uint64),
        np.array([beats], dtype=np.uint32),
        np.zeros(1, dtype=np.uint32),
    )
    return GossipArrived(sender or node, Gossip(digest, dead=dead))


def tick(membership: Membership, *, until: float, since: float, step_s: float = 0.25) -> list:
    effects, now = [], since
    while now < until:
        now = min(now + step_s, until)
        effects += membership.step(MembershipTicked(), now)
        membership.check()
    return [effect for effect in effects if not isinstance(effect, SendHeartbeat)]


def exchange(a: Membership, b: Membership, now: float) -> int:
    """A whole exchange that `a` begins; returns the number of its calls."""
    answer = answered(b, GossipArrived(a.me, a.heartbeat(b.me)), now)
    effects = a.step(ReplyArrived(b.me, answer), now)
    rest = [effect for effect in effects if isinstance(effect, SendGossip)]
    for effect in rest:
        answer = answered(b, GossipArrived(a.me, effect.gossip), now)
        effects = a.step(ReplyArrived(b.me, answer, is_last=True), now)
        assert not any(isinstance(one, SendGossip) for one in effects)
    return 1 + len(rest)


def answered(membership: Membership, event: GossipArrived, now: float) -> Gossip:
    effects = membership.step(event, now)
    return next(effect.gossip for effect in effects if isinstance(effect, AnswerGossip))


def test_membership_few_peers_get_a_heartbeat_each_interval():
    membership = Membership("a", ["c", "b"], options=OPTIONS)
    assert membership.step(MembershipTicked(), 0.0) == [SendHeartbeat("b"), SendHeartbeat("c")]
    assert membership.step(MembershipTicked(), 0.1) == []
    assert membership.due_at == 0.25
    assert membership.step(MembershipTicked(), 0.25) == [SendHeartbeat("b"), SendHeartbeat("c")]


def test_membership_many_peers_get_heartbeats_in_turn():
    peers = [f"n{number}" for number in range(9)]
    patient = MembershipOptions(heartbeat_interval_s=0.25, failure_timeout_s=60.0)
    membership = Membership("a", peers, options=patient)
    rounds = [membership.step(MembershipTicked(), 0.25 * number) for number in range(18)]
    assert [len(effects) for effects in rounds] == [1] * 18
    targets = [effect.to for (effect,) in rounds]
    assert sorted(targets[:9]) == sorted(targets[9:]) == peers
    assert targets[:9] != targets[9:], "each round of the ring has an order of its own"


def test_membership_silent_peer_dies_then_revives():
    membership = started("b")
    membership.step(heartbeat("b", beats=1), 1.0)
    assert tick(membership, since=1.0, until=2.75) == []
    assert tick(membership, since=2.75, until=5.0) == [PeerDied("b")]
    assert (membership.dead, membership.alive) == (("b",), ())
    assert membership.is_unreachable("b", 5.0)
    assert PeerRevived("b") in membership.step(heartbeat("b", beats=2), 5.0)
    assert (membership.dead, membership.alive) == ((), ("b",))


def test_membership_beats_that_are_known_do_not_revive():
    membership = started("b", "c")
    membership.step(heartbeat("b", beats=7, run=5), 0.5)
    assert PeerDied("b") in tick(membership, since=0.5, until=3.0)
    for late in (heartbeat("b", beats=7, run=5, sender="c"), heartbeat("b", beats=9, run=4)):
        effects = membership.step(late, 3.0)
        assert PeerRevived("b") not in effects
    assert "b" in membership.dead
    assert PeerRevived("b") in membership.step(heartbeat("b", beats=1, run=6), 3.0)


def test_membership_beats_through_a_third_node_keep_a_peer_alive():
    membership = started("b", "c")
    for step in range(1, 9):
        membership.step(ExchangeFailed("c"), step / 2)
        membership.step(heartbeat("c", beats=step, sender="b"), step / 2)
        assert PeerDied("c") not in tick(membership, since=step / 2, until=step / 2 + 0.5)
    assert "c" in membership.alive
    assert membership.is_unreachable("c", 4.5), "calls to it fail all the same"
    membership.step(heartbeat("c", beats=9), 4.5)
    assert not membership.is_unreachable("c", 9.0)


def test_membership_relayed_beat_of_few_nodes_counts_from_an_interval_ago():
    membership = started("b", "c")
    tick(membership, since=0.0, until=1.0)
    membership.step(heartbeat("b", beats=1), 1.0)
    membership.step(heartbeat("b", beats=2, sender="c"), 1.25)
    membership.step(heartbeat("c", beats=3), 1.25)
    assert tick(membership, since=1.25, until=2.99) == []
    assert tick(membership, since=2.99, until=3.0) == [PeerDied("b")]


def test_membership_peer_that_is_dead_to_another_one_and_fails_here_is_dead():
    membership = started("b", "c")
    membership.step(ExchangeFailed("b"), 0.1)
    late = heartbeat("b", beats=7, sender="c", dead=("b",))
    assert PeerDied("b") in membership.step(late, 0.2)
    assert PeerDied("b") not in membership.step(late, 0.3)
    assert (membership.dead, membership.alive) == (("b",), ("c",))
    assert PeerRevived("b") in membership.step(heartbeat("b", beats=8), 0.4)


def test_membership_peer_that_is_dead_to_another_one_lives_while_its_exchanges_end():
    membership = started("b", "c")
    late = heartbeat("b", beats=7, sender="c", dead=("b",))
    assert PeerDied("b") not in membership.step(late, 0.2)
    assert tick(membership, since=0.2, until=1.9) == []
    died = [PeerDied("b"), PeerDied("c")]
    assert tick(membership, since=1.9, until=2.0) == died, "the beat of c is no sign of b"


@pytest.mark.parametrize(("run", "beats"), [(1, 8), (2, 1)])
def test_membership_later_beat_refutes_the_death_that_another_node_reports(run, beats):
    membership = started("b", "c")
    membership.step(heartbeat("b", beats=beats, run=run, sender="c"), 0.1)
    membership.step(ExchangeFailed("b"), 0.1)
    membership.step(heartbeat("b", beats=7, sender="c", dead=("b", "a", "x")), 0.2)
    assert membership.alive == ("b", "c")


def test_membership_digest_names_the_dead():
    a, b = (Membership(name, "abc", run=1 << 32, options=OPTIONS) for name in "ab")
    for member in (a, b):
        member.step(MembershipTicked(), 0.0)
    tick(a, since=0.0, until=2.0)
    assert a.heartbeat("b").dead == ("b", "c")
    exchange(a, b, 2.0)
    assert a.heartbeat("b").dead == ("c",)
    assert answered(a, GossipArrived("b", b.heartbeat("a")), 2.0).dead == ("c",)


def test_membership_own_pause_extends_deadlines():
    membership = started("b", "c")
    assert tick(membership, since=0.0, until=1.75) == []
    assert tick(membership, since=61.0, until=61.75) == []
    assert tick(membership, since=61.75, until=63.25) == [PeerDied("b"), PeerDied("c")]


def test_membership_timeout_grows_with_the_logarithm_of_the_nodes():
    assert [OPTIONS.timeout_s(peers) for peers in (1, 4)] == [2.0, 2.0]
    assert [OPTIONS.timeout_s(peers) for peers in (7, 15, 1023)] == [2.75, 3.0, 4.5]


def test_membership_tries_one_that_is_away_besides_the_ring():
    peers = [f"n{number}" for number in range(6)]
    membership = started(*peers)
    membership.step(ExchangeFailed("n1"), 0.1)
    membership.step(ExchangeFailed("n4"), 0.1)
    rounds = []
    for number in range(1, 9):
        effects = membership.step(MembershipTicked(), 0.25 * number)
        rounds.append([one.to for one in effects if isinstance(one, SendHeartbeat)])
    assert [len(targets) for targets in rounds] == [2] * 8
    assert {targets[1] for targets in rounds[:2]} == {"n1", "n4"}
    assert {targets[0] for targets in rounds} == {"n0", "n2", "n3", "n5"}


def test_membership_heartbeat_of_unknown_node_is_ignored():
    assert started("b").step(heartbeat("x", beats=1), 1.0) == []


def test_membership_entries_reach_a_third_node_through_the_second():
    members = [Membership(name, "abc", run=1 << 32, options=OPTIONS) for name in "abc"]
    a, b, c = members
    a.states.write("address", b"host:1")
    assert exchange(a, b, 0.0) == 2
    effects = c.step(ReplyArrived("b", answered(b, GossipArrived("c", c.heartbeat("b")), 0.1)), 0.1)
    (change,) = (effect for effect in effects if isinstance(effect, StateChanged))
    assert (change.node, [entry.value for entry in change.entries]) == ("a", [b"host:1"])
    assert c.never_heard == ()


def test_membership_own_news_take_one_call_once_the_peer_is_known():
    a, b = (Membership(name, "ab", run=1 << 32, options=OPTIONS) for name in "ab")
    a.states.write("address", b"host:1")
    assert [exchange(a, b, now) for now in (0.0, 0.1)] == [2, 1]
    a.states.write("address", b"host:2")
    assert exchange(a, b, 0.2) == 1
    assert b.states.delta("a", base=0).entries == a.states.delta("a", base=0).entries


def test_membership_removed_peers_are_forgotten():
    membership = started("b", "c")
    membership.step(heartbeat("b", beats=3), 0.5)
    membership.step(PeersChanged(("c", "d")), 1.0)
    assert membership.alive == ("c", "d")
    membership.step(PeersChanged(("b", "c", "d")), 1.0)
    assert membership.never_heard == ("b", "c", "d")
    assert tick(membership, since=1.0, until=1.9) == []


def test_membership_options_interval_above_timeout_raises():
    with pytest.raises(ValueError, match="heartbeat_interval_s"):
        MembershipOptions(heartbeat_interval_s=3.0)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from("tbcfd"), st.integers(1, 3))))
def test_membership_random_events_alternate_death_and_revival(steps):
    membership, now = started("b", "c"), 0.0
    dead: set[str] = set()
    for beats, (pause_s, kind, run) in enumerate(steps):
        now += pause_s
        event: MembershipEvent = MembershipTicked()
        if kind == "f":
            event = ExchangeFailed("b")
        elif kind == "d":
            event = heartbeat("b", beats=beats, run=run, sender="c", dead=("b",))
        elif kind != "t":
            event = heartbeat(kind, beats=beats, run=run)
        for effect in membership.step(event, now):
            if isinstance(effect, PeerDied):
                assert effect.node not in dead
                dead.add(effect.node)
            elif isinstance(effect, PeerRevived):
                dead.remove(effect.node)
        membership.check()
        assert set(membership.dead) == dead
