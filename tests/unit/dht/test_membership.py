import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.dht.membership import (
    HeartbeatArrived,
    Membership,
    MembershipOptions,
    PeerDied,
    PeerRevived,
    SendHeartbeat,
    Ticked,
)

OPTIONS = MembershipOptions(heartbeat_interval_s=0.25, failure_timeout_s=2.0, lag_max_s=1.0)


def started(*peers: str) -> Membership:
    membership = Membership("a", ["a", *peers], options=OPTIONS)
    membership.step(Ticked(), 0.0)
    return membership


def tick(membership: Membership, *, until: float, since: float, step_s: float = 0.25) -> list:
    effects, now = [], since
    while now < until:
        now = min(until, now + step_s)
        effects += membership.step(Ticked(), now)
        membership.check()
    return [effect for effect in effects if not isinstance(effect, SendHeartbeat)]


def test_membership_tick_sends_heartbeat_to_each_peer_per_interval():
    membership = Membership("a", ["c", "b"], options=OPTIONS)
    assert membership.step(Ticked(), 0.0) == [SendHeartbeat("b"), SendHeartbeat("c")]
    assert membership.step(Ticked(), 0.1) == []
    assert membership.step(Ticked(), 0.25) == [SendHeartbeat("b"), SendHeartbeat("c")]


def test_membership_silent_peer_dies_once_and_heartbeat_revives_it():
    membership = started("b")
    assert tick(membership, since=0.0, until=1.75) == []
    assert tick(membership, since=1.75, until=5.0) == [PeerDied("b")]
    assert membership.dead == ("b",)
    assert membership.step(HeartbeatArrived("b", 2), 5.0) == [PeerRevived("b")]
    assert membership.alive == ("b",)


def test_membership_heartbeat_extends_deadline():
    membership = started("b")
    tick(membership, since=0.0, until=1.5)
    assert membership.step(HeartbeatArrived("b", 1), 1.5) == []
    assert tick(membership, since=1.5, until=3.25) == []
    assert tick(membership, since=3.25, until=3.5) == [PeerDied("b")]


def test_membership_own_lag_extends_all_deadlines():
    membership = started("b", "c")
    tick(membership, since=0.0, until=1.0)
    assert tick(membership, since=60.0, until=61.75) == []
    assert tick(membership, since=61.75, until=63.0) == [PeerDied("b"), PeerDied("c")]


def test_membership_heartbeat_of_earlier_epoch_is_ignored():
    membership = started("b")
    membership.step(HeartbeatArrived("b", 5), 0.5)
    tick(membership, since=0.5, until=2.0)
    membership.step(HeartbeatArrived("b", 4), 2.0)
    assert tick(membership, since=2.0, until=2.5) == [PeerDied("b")]


def test_membership_heartbeat_of_unknown_node_is_ignored():
    assert started("b").step(HeartbeatArrived("x", 1), 1.0) == []


def test_membership_options_interval_above_timeout_raises():
    with pytest.raises(ValueError, match="heartbeat_interval_s"):
        MembershipOptions(heartbeat_interval_s=3.0)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from("tbc"), st.integers(1, 3))))
def test_membership_random_events_alternate_death_and_revival(steps):
    membership, now = started("b", "c"), 0.0
    dead: set[str] = set()
    for pause_s, kind, epoch in steps:
        now += pause_s
        event = Ticked() if kind == "t" else HeartbeatArrived(kind, epoch)
        for effect in membership.step(event, now):
            if isinstance(effect, PeerDied):
                assert effect.node not in dead
                dead.add(effect.node)
            elif isinstance(effect, PeerRevived):
                dead.remove(effect.node)
        membership.check()
        assert set(membership.dead) == dead
