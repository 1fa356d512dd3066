"""What a member takes in of other terms, and what it is sure of in its own."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from simulator.instant_replicas import LOG, InstantReplicas

from galileo.model.forks import first_of
from galileo.replication.machine import Replica
from galileo.replication.messages import (
    Acknowledged,
    Append,
    LogSynced,
    MessageArrived,
    PreVote,
    PublishFrames,
    ReplicaEffect,
    ReplicaEvent,
    ReplicaTicked,
    RequestVote,
    ResetLog,
    SaveReplicaState,
    SendMessage,
    StartTerm,
    StateSaved,
    Support,
    Vote,
)
from galileo.replication.values import ORDINALS, Epochs, Member, ReplicaSet, ReplicaState

A, B, C, D, E = (Member(name, f"{name}-0") for name in "abcde")
ABC = ReplicaSet(1, 1, frozenset({A, B, C}))
TERM = 2 * ORDINALS


def step(replica: Replica, event: ReplicaEvent, now: float) -> list[ReplicaEffect]:
    """The effects of an event, on a disk that saves states at once."""
    effects = replica.step(event, now)
    for effect in effects:  # Which grow meanwhile.
        if isinstance(effect, SaveReplicaState):
            effects += replica.step(StateSaved(effect.state), now)
    return effects


def elect(replica: Replica, now: float) -> int:
    """Has A be elected by B, which has nothing; returns the term."""
    step(replica, ReplicaTicked(), now)
    campaign = replica._campaign
    assert campaign is not None
    step(replica, MessageArrived(B, PreVote(campaign.term)), now)
    step(replica, MessageArrived(B, Vote(campaign.term, 0, {}, {})), now)
    assert replica.leadership is not None
    return campaign.term


def test_leader_takes_no_acknowledgement_of_its_earlier_term() -> None:
    """What a member had in that term, another leader may have had it remove since."""
    leader = Replica(
        A, 0, state=ReplicaState(set=ABC), logs={LOG: (Epochs(((1, 1),), 1), 0)}, now=0
    )
    earlier = elect(leader, 10.0)
    step(leader, ReplicaTicked(), 20.0)  # It has heard no other member, and resigns.
    term = elect(leader, 30.0)
    assert term > earlier
    for of_term, is_committed in ((earlier, False), (term, True)):
        assert leader.state.set is not None
        version = leader.state.set.version
        message = Acknowledged(of_term, version, True, True, matches={LOG: 1}, committed={LOG: 0})
        effects = step(leader, MessageArrived(B, message), 30.0)
        assert (PublishFrames(LOG, 1) in effects) == is_committed
        assert leader.is_open == is_committed


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_lease_lasts_as_long_as_a_majority_supports_the_leader(count: int) -> None:
    cluster, voters = InstantReplicas(), [A, B, C, D, E][:count]
    for ordinal, member in enumerate(voters):
        cluster.start(member, ordinal, ReplicaState(ReplicaSet(1, 1, frozenset(voters))))
    cluster.run(10.0)
    [leader] = [machine for machine in cluster.machines.values() if machine.is_open]
    others = [member for member in voters if member != leader.me]
    term = leader.state.promised
    ends = []
    for later_s, member in enumerate(others, 1):
        sent_at = cluster.now + later_s
        leader.step(MessageArrived(member, Support(term, sent_at)), sent_at)
        ends.append(sent_at + leader.options.lease_s)
    of_majority = [end for end in ends if 1 + sum(one >= end for one in ends) > count / 2]
    assert leader.lease_until == max(of_majority)


def test_damaged_member_that_joins_its_term_again_is_sound_when_it_has_what_it_lost() -> None:
    """The leader's log has grown since the term began, and the member had acknowledged that."""
    suspect = MappingProxyType({LOG: 2})
    state = ReplicaState(set=ABC, promised=TERM, joined=TERM, suspect=suspect)
    log = Epochs(((1, 1),), 1)
    member = Replica(A, 0, state=state, logs={LOG: (log, 1)}, now=0.0)
    start = StartTerm(TERM, ABC, starts={LOG: 1}, logs={LOG: log.extend(TERM, 2)})
    step(member, MessageArrived(B, start), 1.0)
    assert member.saved.suspect == suspect
    lost = Append(TERM, LOG, 1, 1, Epochs(((2, TERM),), 2), match=0, committed=1)
    step(member, MessageArrived(B, lost), 1.0)
    assert member.saved.suspect == suspect, "the frame is not durable yet"
    step(member, LogSynced(LOG, 2), 1.0)
    assert member.saved.suspect == {}


def test_damaged_member_whose_leader_fails_before_it_has_what_it_lost_says_so_in_its_vote() -> None:
    suspect = MappingProxyType({LOG: 2})
    state = ReplicaState(set=ABC, promised=TERM, joined=TERM, suspect=suspect)
    log = Epochs(((1, 1),), 1)
    member = Replica(A, 0, state=state, logs={LOG: (log, 1)}, now=0.0)
    start = StartTerm(TERM, ABC, starts={LOG: 1}, logs={LOG: log.extend(TERM, 2)})
    step(member, MessageArrived(B, start), 1.0)
    effects = step(member, MessageArrived(C, RequestVote(TERM + ORDINALS, ABC, 0)), 9.0)
    vote = Vote(TERM + ORDINALS, TERM, {LOG: log}, dict(suspect))
    assert SendMessage(C, vote) in effects


@pytest.mark.parametrize(("recovered", "is_lost"), [(2, True), (3, False)])
def test_member_begins_its_log_anew_where_a_recovery_lost_what_it_has_published(
    recovered: int, is_lost: bool
) -> None:
    """The member had no vote when a majority was lost, and the survivor had missed a commit."""
    log = Epochs(((1, TERM),), 3)
    state = ReplicaState(set=ABC, promised=TERM, joined=TERM)
    member = Replica(A, 0, state=state, logs={LOG: (log, 3)}, now=0.0)
    first = first_of(1)
    term = first + ORDINALS
    alone = ReplicaSet(term, 2, frozenset({B}), frozenset({A}))
    leaders = log.cut(recovered).extend(term, first)
    start = StartTerm(term, alone, starts={LOG: recovered}, logs={LOG: leaders})
    effects = step(member, MessageArrived(B, start), 1.0)
    assert (ResetLog(LOG, 0) in effects) == is_lost
    assert member.logs[LOG].committed == (0 if is_lost else 3)
