"""Histories by hand: production keeps its promises, and mutants break them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulator.replica_cluster import Stalled, expect_progress
from simulator.replica_mutants import REPLICA_MUTANTS
from simulator.replica_scenario import A, B, C, D, E, Scenario, X, Y

from galileo.replication.messages import (
    Acknowledged,
    Append,
    PreVote,
    StartTerm,
    Support,
)

# --- elections and joining ---------------------------------------------------------------------


def give_a_a_tail_and_let_c_join_alone(s: Scenario) -> None:
    """A has a frame in each log alone; C joins the next term alone, without them."""
    s.elect(A)
    s.isolate(A)
    s.write(A, X)
    s.write(A, Y)
    s.hold(C, B, StartTerm)
    s.elect(C)
    s.drop()
    s.isolate(C)
    s.connect(A, B)


def replace_by_c(s: Scenario) -> None:
    """C, which has joined a later term than B, leads after A, with a frame of its own."""
    s.isolate(A)
    s.drop()
    s.connect(B, C)
    s.elect(C)
    s.write(C, X)


def member_lacks_another_log(s: Scenario) -> None:
    """B acknowledges a frame of X and has not joined, because it lacks one of Y."""
    give_a_a_tail_and_let_c_join_alone(s)
    s.hold(A, B, Append, log=Y)
    s.elect(A)
    replace_by_c(s)


def member_joins_without_a_committed_frame(s: Scenario) -> None:
    """B follows a new term of A and gets none of its frames; C has one that was committed."""
    s.isolate(B)
    s.elect(A)
    s.write(A)
    s.isolate(C)
    s.connect(A, B)
    s.hold(A, B, Append)
    s.elect(A)
    s.isolate(A)
    s.drop()
    s.connect(B, C)
    s.elect(C)
    s.write(C)


def member_crashes_before_joining_is_durable(s: Scenario) -> None:
    give_a_a_tail_and_let_c_join_alone(s)
    b = s.nodes[B]
    b.holds_syncs = True
    s.elect(A)
    b.holds_syncs, b.holds_saves = False, True
    s.run()
    b.holds_saves = False
    s.isolate(A)
    s.nodes[B].crash()
    s.nodes[B].boot()
    replace_by_c(s)


def candidate_crashes_before_its_logs_are_durable(s: Scenario) -> None:
    """A copies a committed frame from B, campaigns, and loses it in a crash."""
    s.isolate(A)
    s.elect(B)
    s.write(B)
    s.isolate(B)
    s.depose(B)
    s.isolate(C)
    s.connect(A, B)
    s.nodes[A].holds_syncs = True
    s.campaign(A)
    s.nodes[A].holds_syncs = False
    s.restart(A)
    s.isolate(B)
    s.connect(A, C)
    s.elect(A)
    s.write(A)


def start_of_term_arrives_late(s: Scenario) -> None:
    """B restarts after it has acknowledged a frame, and gets an early `StartTerm` of its leader."""
    s.isolate(C)
    s.hold(B, A, Acknowledged)
    s.elect(A)
    s.hold(A, B, StartTerm)
    s.beat(A)
    s.held = [one for one in s.held if one.sender == A]
    s.run()
    s.write(A)
    s.isolate(A)
    s.restart(B)
    s.release()
    s.connect(B, C)
    s.elect(C)
    s.write(C)


def member_restarts_within_a_term(s: Scenario) -> None:
    """B restarts after it has acknowledged a frame, and gets `StartTerm` again."""
    s.isolate(C)
    s.elect(A)
    s.write(A)
    s.hold(A, B, Append)
    s.restart(B)
    s.beat(A)
    s.isolate(A)
    s.drop()
    s.connect(B, C)
    s.elect(C)
    s.write(C)


def deposed_leader_goes_on(s: Scenario) -> None:
    """B has voted for C when A, which does not know, sends it a frame."""
    s.elect(A)
    s.isolate(A)
    s.hold(C, B, StartTerm)
    s.elect(C)
    s.connect(A, B)
    s.write(A)
    s.isolate(A)
    s.release()
    s.beat(C)
    s.write(C)


def long_tail_of_an_earlier_term(s: Scenario) -> None:
    s.elect(A)
    s.isolate(A)
    for _ in range(3):
        s.write(A)
    s.elect(B)
    s.write(B)
    s.isolate(B)
    s.depose(B)
    s.isolate(C)
    s.connect(A, B)
    s.elect(A)


def tails_of_two_terms(s: Scenario) -> None:
    """A and B have a tail each; A leads again, and then B (figure 8 of the Raft paper)."""
    s.elect(A)
    s.isolate(A)
    s.write(A)
    s.elect(B)
    s.isolate(B)
    s.write(B)
    s.connect(A, C)
    s.elect(A)
    s.isolate(A)
    s.connect(B, C)
    s.elect(B)


# --- changes of the set ------------------------------------------------------------------------


def set_grows_unheard(s: Scenario) -> None:
    """D and E become members while B and C do not hear A; B leads under the set that it knows."""
    s.elect(A)
    s.cut(A, B)
    s.cut(A, C)
    s.want(A, B, C, D, E)
    s.write(A)
    for name in (A, D, E):
        s.isolate(name)
    s.connect(B, C)
    s.want(A, B, C)
    s.elect(B)
    s.write(B)


def set_changes_before_its_members_have_copied(s: Scenario) -> None:
    """C lacks a frame of A and B while B leaves and D, which also lacks it, becomes a voter."""
    s.elect(A)
    s.hold(A, C, Append)
    s.hold(A, D, Append)
    s.write(A)
    s.isolate(B)
    s.want(A, C, D)
    for _ in range(8):
        s.beat(A)
    s.isolate(A)
    s.drop()
    s.campaign(C)
    s.try_write(C)


def removed_voter_campaigns(s: Scenario) -> None:
    """C does not hear that D has replaced it, and asks B for its vote."""
    s.elect(A)
    s.isolate(C)
    s.want(A, B, D)
    for _ in range(6):
        s.beat(A)
    s.expect(s.voters(A) == s.voters(B) == s.voters(D) == {A, B, D}, "D has not replaced C")
    s.cut(A, B)
    s.write(A)
    s.isolate(A)
    s.isolate(D)
    s.connect(B, C)
    s.campaign(C)
    s.try_write(C)


def voter_fails_while_another_is_replaced(s: Scenario) -> None:
    """D is to replace C and has copied nothing yet when B is cut off; A and C go on."""
    s.elect(A)
    for _ in range(s.options.lag_max + 1):
        s.write(A)
    s.hold(A, D, Append)
    s.want(A, B, D)
    for _ in range(6):
        s.beat(A)
    s.isolate(B)
    s.write(A)
    s.expect_committed(A, s.options.lag_max + 2)


# --- leases ------------------------------------------------------------------------------------


def support_arrives_late(s: Scenario) -> None:
    """A hears of support when the supporter has almost stopped to support it."""
    s.elect(A)
    s.hold(B, A, Support)
    s.hold(C, A, Support)
    s.beat(A)
    s.elapse(1.9)
    s.release()
    s.isolate(A)
    s.elapse(0.7)
    s.tick(C)
    s.write(C)
    s.judge_reads()


def let_c_miss_beats(s: Scenario) -> None:
    """B supports A all the time, C has not heard A for long enough to campaign."""
    s.elect(A)
    s.cut(A, C)
    for _ in range(6):
        s.beat(A)
    s.expect(s.replica(A).has_lease(s.nodes[A].now), "A has no lease")
    s.isolate(A)


def supporter_is_asked_for_its_vote(s: Scenario) -> None:
    let_c_miss_beats(s)
    s.tick(C)
    s.try_write(C)
    s.judge_reads()


def supporter_restarts_and_is_asked_for_its_vote(s: Scenario) -> None:
    let_c_miss_beats(s)
    s.restart(B)
    s.tick(C)
    s.try_write(C)
    s.judge_reads()


def supporter_loses_its_promise(s: Scenario) -> None:
    """B hears A for the first time, and crashes before its promise to A is durable."""
    s.isolate(B)
    s.elect(A)
    s.cut(A, C)
    s.connect(A, B)
    s.nodes[B].holds_saves = True
    for _ in range(6):
        s.beat(A)
    s.isolate(A)
    s.nodes[B].holds_saves = False
    s.restart(B)
    s.connect(B, C)
    s.tick(C)
    s.try_write(C)
    s.judge_reads()


def candidate_hears_its_leader_again(s: Scenario) -> None:
    """B supports A while C's answer to its request for a pre-vote is under way."""
    s.elect(A)
    s.hold(B, A, Support)
    s.beat(A)
    s.cut(A, B)
    s.cut(A, C)
    s.elapse(2.6)
    s.hold(C, B, PreVote)
    s.cut(B, A)
    s.tick(B)
    s.held = s.held[-1:]
    s.run()
    s.connect(A, B)
    s.beat(A)
    s.expect(s.replica(A).has_lease(s.nodes[A].now), "A has no lease")
    s.isolate(A)
    s.release()
    s.try_write(B)
    s.judge_reads()


# --- disks -------------------------------------------------------------------------------------


def acknowledge_on_a_and_b(s: Scenario) -> None:
    s.elect(A)
    s.isolate(C)
    s.write(A)
    s.isolate(A)


def disk_is_lost(s: Scenario) -> None:
    """B acknowledges a frame and loses its disk; C, which lacks the frame, asks it for a vote."""
    acknowledge_on_a_and_b(s)
    s.nodes[B].lose_disk()
    s.nodes[B].boot()
    s.connect(B, C)
    s.campaign(C)
    s.try_write(C)


def log_is_damaged(s: Scenario) -> None:
    """B acknowledges a frame and finds it damaged; C, which lacks the frame, asks it for a vote."""
    acknowledge_on_a_and_b(s)
    s.rot(B, X, 0)
    s.connect(B, C)
    s.campaign(C)
    s.try_write(C)


def log_of_the_latest_term_is_damaged(s: Scenario) -> None:
    """Only A joins the latest term, and finds damaged what B and C have."""
    s.isolate(A)
    s.elect(B)
    s.write(B)
    s.isolate(B)
    s.depose(B)
    s.connect(A, B)
    s.hold(A, B, StartTerm)
    s.hold(A, C, StartTerm)
    s.elect(A)
    s.drop()
    for name in (B, C):
        s.restart(name)
    s.rot(A, X, 0)
    s.connect(A, B, C)
    s.elect(C)
    s.write(C)


def damaged_voter_does_not_know_its_set(s: Scenario) -> None:
    """A removes C from four voters, and D, which has not heard of that, loses a frame."""
    s.elect(A)
    s.want(A, B, C, D)
    for _ in range(6):
        s.beat(A)
    s.expect(s.voters(A) == s.voters(D) == {A, B, C, D}, "D is no voter")
    s.hold(A, D, StartTerm)
    s.cut(A, B)
    s.cut(A, C)
    s.want(A, B, D)
    s.expect(s.voters(A) == {A, B, D}, "C is still a voter")
    s.write(A)
    s.isolate(A)
    s.drop()
    s.rot(D, X, 0)
    s.want(A, B, C, D)
    s.campaign(B)
    s.try_write(B)


def voter_is_lost_before_the_leader_is_elected(s: Scenario) -> None:
    """A has never heard C when it is to remove B: it waits, since A and C might be A alone."""
    s.elect(B)
    s.nodes[C].crash()
    s.hand_over(B, A)
    s.want(A, C)
    s.expect(s.voters(A) == {A, B, C}, "B has been removed")
    s.write(A)


def learner_is_lost_as_it_becomes_a_voter(s: Scenario) -> None:
    """C says that it has joined, and loses its disk before A makes it a voter in place of B."""
    s.elect(A)
    s.hold(C, A, Acknowledged)
    s.want(A, C)
    s.nodes[C].lose_disk()
    s.release()
    s.expect(s.replica(A).is_open, "A takes no batches")
    s.try_write(A)
    s.nodes[C].boot()
    s.want(A, C)


def acknowledgement_arrives_after_a_restart(s: Scenario) -> None:
    """A hears that B knows of a commit, which B has forgotten by a restart meanwhile."""
    s.elect(A)
    s.hold(B, A, Acknowledged)
    s.write(A, Y)
    late = list(s.flights)
    s.drop()
    s.hold(A, B, Append)
    s.restart(B)
    s.beat(A)
    s.drop()
    s.flights += late
    s.run()
    s.expect(s.nodes[B].published.get((0, Y), 0) == 0, "B knows of the commit")


def last_member_lacks_a_commit(s: Scenario) -> None:
    """A alone is to stay, and crashes before it has durably what B and C have committed."""
    s.elect(A)
    s.nodes[A].holds_syncs = True
    s.write(A)
    s.expect_committed(A, 1)
    s.want(A)
    s.nodes[A].holds_syncs = False
    s.restart(A)
    s.elect(A)


def leader_is_to_go(s: Scenario) -> None:
    """B alone is to stay of three members, and A leads them."""
    s.elect(A)
    s.beat(A)
    s.want(B)
    s.want(B)
    s.expect(s.voters(B) == {B}, "A or C is still a voter")
    s.isolate(A)
    s.write(B)
    s.judge_reads()


def learner_misses_what_was_stored_alone(s: Scenario) -> None:
    """A is alone, and what it sends to B, which is to become a voter, is lost."""
    s.campaign(A)
    s.write(A)
    s.hold(A, B, Append)
    s.want(A, B)
    s.drop()
    s.write(A)
    for _ in range(4):
        s.beat(A)
    expect_progress(s.voters(A) == {A, B}, "B is no voter")


SCRIPTS: dict[Callable[[Scenario], None], tuple[str, ...]] = {
    member_lacks_another_log: ("counts_unjoined",),
    member_joins_without_a_committed_frame: ("joins_early",),
    member_crashes_before_joining_is_durable: ("joins_unsaved",),
    candidate_crashes_before_its_logs_are_durable: ("votes_before_drain",),
    start_of_term_arrives_late: ("cuts_to_old_start",),
    member_restarts_within_a_term: ("sends_old_start",),
    deposed_leader_goes_on: ("ignores_promises",),
    long_tail_of_an_earlier_term: ("takes_longest",),
    tails_of_two_terms: ("takes_last_epoch",),
    set_grows_unheard: ("changes_uninstalled", "counts_learners", "swaps_voters"),
    set_changes_before_its_members_have_copied: ("changes_uncopied",),
    removed_voter_campaigns: ("takes_older_sets",),
    voter_fails_while_another_is_replaced: ("promotes_at_once",),
    support_arrives_late: ("leases_from_reply",),
    supporter_is_asked_for_its_vote: ("ignores_support",),
    supporter_restarts_and_is_asked_for_its_vote: ("forgets_support",),
    supporter_loses_its_promise: ("supports_unsaved",),
    candidate_hears_its_leader_again: ("campaigns_on",),
    damaged_voter_does_not_know_its_set: ("counts_uninstalled",),
    voter_is_lost_before_the_leader_is_elected: (),
    learner_is_lost_as_it_becomes_a_voter: ("replaces_by_unheard",),
    acknowledgement_arrives_after_a_restart: ("trusts_late_acknowledgements",),
    last_member_lacks_a_commit: ("drops_at_once",),
    leader_is_to_go: (),
    learner_misses_what_was_stored_alone: ("alone_with_learners",),
    disk_is_lost: ("keeps_identity",),
    log_is_damaged: ("ignores_suspects", "takes_rot_for_torn"),
    log_of_the_latest_term_is_damaged: ("takes_damaged",),
}
"""The mutants that each history convicts."""
ONLY_STALL = {
    "alone_with_learners",
    "promotes_at_once",
    "replaces_by_unheard",
    "trusts_late_acknowledgements",
}
"""Mutants that break no promise about data, but commit nothing where production does."""


VOTERS = {learner_is_lost_as_it_becomes_a_voter: 2, learner_misses_what_was_stored_alone: 1}
"""The first voters of histories that do not begin with three."""


def play(script: Callable[[Scenario], None], scenario: Scenario) -> None:
    script(scenario)
    scenario.finish()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_replicas_scenario_keeps_all_promises(script: Callable[[Scenario], None]) -> None:
    play(script, Scenario(voters=VOTERS.get(script, 3)))


@pytest.mark.parametrize(
    ("script", "mutant"), [(script, name) for script, names in SCRIPTS.items() for name in names]
)
def test_replicas_scenario_convicts_the_mutant(
    script: Callable[[Scenario], None], mutant: str
) -> None:
    with pytest.raises(AssertionError) as violation:
        play(script, Scenario(*REPLICA_MUTANTS[mutant], voters=VOTERS.get(script, 3)))
    assert (violation.type is Stalled) == (mutant in ONLY_STALL), violation.value
