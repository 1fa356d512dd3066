"""The choice of logs by a new leader, and the steps of a change of members."""

from __future__ import annotations

import pytest
from simulator.replica_mutants import REPLICA_MUTANTS

from galileo.replication.election import choose_logs
from galileo.replication.machine import Replica, _Campaign
from galileo.replication.messages import (
    FrameAppended,
    LogSynced,
    MessageArrived,
    PreVote,
    ReplicaTicked,
    RequestPreVote,
    RequestVote,
    SaveReplicaState,
    SendMessage,
    StateSaved,
    Vote,
)
from galileo.replication.reconfiguration import next_set
from galileo.replication.values import Epochs, Member, ReplicaSet, ReplicaState

A, B, C, D = (Member(name, f"{name}-0") for name in "abcd")
ABC = ReplicaSet(1, 1, frozenset({A, B, C}))


def vote(joined: int, *epochs: int, suspect: int = 0) -> Vote:
    log = Epochs()
    for sequence, epoch in enumerate(epochs, 1):
        log = log.extend(epoch, sequence)
    return Vote(9, joined, {"log": log}, {"log": suspect} if suspect else {})


LONGER_IN_EARLIER_TERM = {A: vote(1, 1, 1, 1, 1), B: vote(3, 1, 1, 3)}
"""A kept a tail of term 1 that was not committed; B joined term 3, which committed its frame."""

OLD_FRAMES_JOINED_LATER = {A: vote(2, 1, 2), B: vote(3, 1, 1)}
"""The leader of term 3 took over (1, 1) and committed both by counting; A missed that."""

DAMAGED = {A: vote(3, 1, 3), B: vote(3, 1, suspect=3)}
"""B may have acknowledged a third frame; C, which has not voted, may have it."""


@pytest.mark.parametrize("votes", [LONGER_IN_EARLIER_TERM, OLD_FRAMES_JOINED_LATER])
def test_choose_logs_member_of_latest_joined_term_is_chosen(votes: dict[Member, Vote]) -> None:
    assert choose_logs(votes, ABC, me=A) == {"log": B}


def test_choose_logs_equal_logs_prefer_the_candidate() -> None:
    assert choose_logs({A: vote(1, 1), B: vote(1, 1)}, ABC, me=B) == {"log": B}
    assert choose_logs({A: vote(1, 1), B: vote(1, 1)}, ABC, me=A) == {"log": A}


def test_choose_logs_without_majority_waits() -> None:
    assert choose_logs({A: vote(1, 1)}, ABC, me=A) is None


def test_choose_logs_suspect_beyond_the_best_waits_for_one_more_denial() -> None:
    assert choose_logs(DAMAGED, ABC, me=A) is None
    assert choose_logs({**DAMAGED, C: vote(3, 1, 3)}, ABC, me=A) == {"log": A}
    assert choose_logs({**DAMAGED, C: vote(3, 1, 3, 3)}, ABC, me=A) == {"log": C}


def test_choose_logs_latest_term_damaged_takes_the_log_of_a_majority_before_it() -> None:
    damaged = {A: vote(2, suspect=1), B: vote(1, 1)}
    assert choose_logs(damaged, ABC, me=B) is None
    assert choose_logs({**damaged, C: vote(1, 1)}, ABC, me=C) == {"log": C}
    assert choose_logs({**damaged, C: vote(2)}, ABC, me=C) == {"log": C}


@pytest.mark.parametrize(
    ("mutant", "votes", "right"),
    [
        ("takes_longest", LONGER_IN_EARLIER_TERM, {"log": B}),
        ("takes_last_epoch", OLD_FRAMES_JOINED_LATER, {"log": B}),
        ("ignores_suspects", DAMAGED, None),
    ],
)
def test_choose_logs_mutant_is_convicted_by_hand(
    mutant: str, votes: dict[Member, Vote], right: dict[str, Member] | None
) -> None:
    wrong = REPLICA_MUTANTS[mutant][0](A, 0, state=ReplicaState(set=ABC), logs={}, now=0.0)
    campaign = _Campaign(9, ABC, 1.0, 0, {A}, votes=dict(votes))
    assert wrong._choose_logs(campaign) != right
    honest = Replica(A, 0, state=ReplicaState(set=ABC), logs={}, now=0.0)
    assert honest._choose_logs(campaign) == right


def test_replica_vote_is_sent_after_the_promise_is_durable() -> None:
    voter = Replica(A, 0, state=ReplicaState(set=ABC), logs={}, now=0.0)
    effects = voter.step(MessageArrived(B, RequestVote(4097, ABC, 0)), 5.0)
    assert effects == [SaveReplicaState(ReplicaState(set=ABC, promised=4097))]
    (sent,) = voter.step(StateSaved(ReplicaState(set=ABC, promised=4097)), 5.0)
    assert sent == SendMessage(B, Vote(4097, 0, {}, {}))


def test_replica_recently_started_refuses_to_vote() -> None:
    state = ReplicaState(set=ABC, promised=8192)
    voter = Replica(A, 0, state=state, logs={}, now=4.0)
    (sent,) = voter.step(MessageArrived(B, RequestPreVote(9000, ABC, 0)), 5.0)
    assert not isinstance(sent.message, PreVote)  # type: ignore[union-attr]


def test_replica_resigned_term_frees_supporters_of_that_term_alone() -> None:
    state = ReplicaState(set=ABC, promised=8192)
    for resigned, is_granted in ((8191, False), (8192, True)):
        voter = Replica(A, 0, state=state, logs={}, now=4.0)
        (sent,) = voter.step(MessageArrived(B, RequestPreVote(9000, ABC, resigned)), 5.0)
        assert isinstance(sent.message, PreVote) == is_granted  # type: ignore[union-attr]


def test_replica_that_voted_lets_the_candidate_finish_before_it_campaigns() -> None:
    voter = Replica(A, 0, state=ReplicaState(set=ABC), logs={}, now=0.0)
    voter.step(MessageArrived(B, RequestVote(4097, ABC, 0)), 5.0)
    assert not _campaigns(voter, 5.0 + voter.options.campaign_s / 2)
    assert _campaigns(voter, 6.0 + voter.options.campaign_s)


def _campaigns(replica: Replica, now: float) -> bool:
    sent = [one for one in replica.step(ReplicaTicked(), now) if isinstance(one, SendMessage)]
    return any(isinstance(one.message, RequestPreVote) for one in sent)


def test_replica_campaigns_at_the_tick_that_is_due_and_not_before() -> None:
    voter = Replica(B, 1, state=ReplicaState(set=ABC), logs={}, now=0.0)
    due = voter.due_at
    assert not _campaigns(voter, due - 1e-6)
    assert voter.due_at == due
    assert _campaigns(voter, due)
    assert voter.due_at == due + voter.options.campaign_s


def test_replica_alone_in_its_set_leads_at_once() -> None:
    alone = Replica(
        A, 0, state=ReplicaState(set=ReplicaSet(0, 1, frozenset({A}))), logs={}, now=0.0
    )
    effects = alone.step(ReplicaTicked(), 0.0)
    while saves := [one for one in effects if isinstance(one, SaveReplicaState)]:
        effects = alone.step(StateSaved(saves[-1].state), 0.0)
    assert alone.is_open
    assert alone.has_lease(0.0)


def test_replica_whose_writes_overlap_without_pause_is_not_stalled() -> None:
    alone = Replica(
        A, 0, state=ReplicaState(set=ReplicaSet(0, 1, frozenset({A}))), logs={}, now=0.0
    )
    effects = alone.step(ReplicaTicked(), 0.0)
    while saves := [one for one in effects if isinstance(one, SaveReplicaState)]:
        effects = alone.step(StateSaved(saves[-1].state), 0.0)
    alone.step(FrameAppended("log", 1), 0.0)
    for end in range(2, 10):
        alone.step(FrameAppended("log", end), float(end))
        alone.step(LogSynced("log", end - 1), float(end))
        alone.step(ReplicaTicked(), float(end))
        assert alone.is_open
    alone.step(ReplicaTicked(), 10.0 + alone.options.stall_s)
    assert not alone.is_open


def test_next_set_live_voter_stays_until_its_successor_votes() -> None:
    alive, wanted = {A, B, C, D}, {A, B, D}
    learning = next_set(ABC, wanted, leader=A, alive=alive, caught_up=set())
    assert learning is not None
    assert learning.learners == {D}
    assert next_set(learning, wanted, leader=A, alive=alive, caught_up=set()) is None
    grown = next_set(learning, wanted, leader=A, alive=alive, caught_up={D})
    assert grown is not None
    assert grown.voters == {A, B, C, D}
    done = next_set(grown, wanted, leader=A, alive=alive, caught_up=set())
    assert done is not None
    assert done.voters == wanted
    assert next_set(done, wanted, leader=A, alive=alive, caught_up=set()) is None


def test_next_set_dead_voter_goes_once_a_learner_has_caught_up() -> None:
    alive, wanted = {A, B, D}, {A, B, D}
    learning = ReplicaSet(1, 2, ABC.voters, frozenset({D}))
    assert next_set(learning, wanted, leader=A, alive=alive, caught_up=set()) is None
    smaller = next_set(learning, wanted, leader=A, alive=alive, caught_up={D})
    assert smaller is not None
    assert smaller.voters == {A, B}


def test_next_set_learner_that_is_not_heard_neither_becomes_a_voter_nor_replaces_one() -> None:
    wanted, caught_up = {A, B, D}, {D}
    for voters, alive in (({A, B}, {A, B}), ({A, B, C}, {A, B})):
        learning = ReplicaSet(1, 2, frozenset(voters), frozenset({D}))
        new = next_set(learning, wanted, leader=A, alive=alive, caught_up=caught_up)
        assert new is None
        heard = next_set(learning, wanted, leader=A, alive={*alive, D}, caught_up=caught_up)
        assert heard is not None


def test_next_set_never_removes_the_leader() -> None:
    grown = ReplicaSet(1, 2, frozenset({A, B, C, D}))
    new = next_set(grown, {B, C, D}, leader=A, alive={A, B, C, D}, caught_up=set())
    assert new is None
