"""Members that come, go and come back, and logs whose beginning was dropped."""

from __future__ import annotations

from collections import deque
from math import inf

from simulator.instant_replicas import LOG, TICK_S, InstantReplicas

from galileo.node.replication.replicas import ReplicasOptions, _Hosted
from galileo.replication.machine import Replica
from galileo.replication.messages import (
    Acknowledged,
    Append,
    Beat,
    DropFrames,
    FrameAppended,
    LogDropped,
    LogForgotten,
    LogSynced,
    MembersWanted,
    MessageArrived,
    ReplicaEvent,
    ReplicaTicked,
    ResetLog,
    SaveReplicaState,
    SendMessage,
    StateSaved,
)
from galileo.replication.values import Epochs, Member, ReplicaSet, ReplicaState

A, B, C = (Member(name, f"{name}-0") for name in "abc")


class Cluster(InstantReplicas):
    def found(self, log: Epochs | None = None) -> None:
        """A cluster of A alone, whose partition B and C do not know."""
        end = 0 if log is None else log.end
        self.start(A, 0, ReplicaState(ReplicaSet(0, 1, frozenset({A})), 0, 0), log, committed=end)
        self.start(B, 1, ReplicaState())
        self.start(C, 2, ReplicaState())
        self.run()

    def run(self, seconds: float = 5.0) -> None:
        super().run(seconds)

    def append(self, frames: int) -> None:
        for _ in range(frames):
            end = self.end(A) + 1
            self.step(A, FrameAppended(LOG, end))
            self.step(A, LogSynced(LOG, end))

    def want(self, *members: Member) -> None:
        self.step(A, MembersWanted(frozenset(members)))
        self.run()

    def end(self, member: Member) -> int:
        return self.machines[member].logs[LOG].end if LOG in self.machines[member].logs else 0

    def voters(self) -> frozenset[Member]:
        current = self.machines[A].state.set
        assert current is not None
        return current.voters


class LosesLearner(Cluster):
    """C is lost as soon as it has said that it has joined."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[Member] = set()

    def step(self, member: Member, event: ReplicaEvent) -> None:
        if member in self.lost:
            return
        super().step(member, event)
        sent = [one.message for one in self.effects[C] if isinstance(one, SendMessage)]
        if any(isinstance(one, Acknowledged) and one.has_joined for one in sent):
            self.lost.add(C)


class LossyLine(Cluster):
    """Some messages with frames do not reach C, or other members.

    Attributes:
        lost: how many of the next ones.
        deaf: the members.
    """

    lost = 0
    deaf = frozenset({C})

    def step(self, member: Member, event: ReplicaEvent) -> None:
        message = event.message if isinstance(event, MessageArrived) else None
        has_frames = isinstance(message, Append) and len(message.epochs.runs) > 0
        if has_frames and self.lost and member in self.deaf:
            self.lost -= 1
        else:
            super().step(member, event)


class SlowMember(Cluster):
    """What C acknowledges arrives late, or nothing of what it sends.

    Attributes:
        is_slow, is_silent: whether that is so now.
    """

    late_s = 1.4

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = self.is_silent = False
        self.late = deque[tuple[float, ReplicaEvent]]()

    def step(self, member: Member, event: ReplicaEvent) -> None:
        is_arrival = isinstance(event, MessageArrived) and event.sender == C
        if self.is_slow and is_arrival and isinstance(event.message, Acknowledged):
            self.late.append((self.now + self.late_s, event))
        elif not (self.is_silent and is_arrival):
            super().step(member, event)

    def run(self, seconds: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            super().run(TICK_S)
            while self.late and self.late[0][0] <= self.now:
                super().step(A, self.late.popleft()[1])

    def frames_sent(self) -> int:
        """To C, each as often as it was sent."""
        sent = [one for one in self.effects[A] if isinstance(one, SendMessage) and one.to == C]
        appends = [one.message for one in sent if isinstance(one.message, Append)]
        return sum(one.epochs.end - one.after for one in appends)


class CutOff(LossyLine):
    """C, which is cut off at times, neither gets nor sends messages then.

    Attributes:
        is_cut: whether that is so now.
    """

    is_cut = False

    def step(self, member: Member, event: ReplicaEvent) -> None:
        sender = event.sender if isinstance(event, MessageArrived) else None
        if not (self.is_cut and sender is not None and C in (member, sender)):
            super().step(member, event)


def test_learner_dropped_while_it_is_away_hears_so_when_it_returns() -> None:
    cluster = CutOff()
    cluster.found()
    cluster.append(2 * cluster.machines[A].options.lag_max)
    cluster.want(A, B)
    cluster.lost = 1_000_000  # C becomes a learner, and stays one.
    cluster.want(A, B, C)
    assert cluster.machines[C].state.set.learners == {C}  # type: ignore[union-attr]
    cluster.is_cut = True
    cluster.want(A, B)
    cluster.is_cut, set_of_others = False, cluster.machines[A].state.set
    assert cluster.machines[C].state.set != set_of_others
    term = cluster.machines[A].state.promised
    cluster.run()
    assert cluster.machines[C].state.set == set_of_others
    assert cluster.machines[A].state.promised == term, "the question disturbs no leader"
    cluster.lost = 0
    cluster.want(A, B, C)
    assert cluster.voters() == {A, B, C}


def test_founder_takes_frames_alone_and_grows() -> None:
    cluster = Cluster()
    cluster.found()
    assert cluster.machines[A].is_open
    cluster.append(3)
    cluster.want(A, B, C)
    assert cluster.voters() == {A, B, C}
    assert [cluster.end(member) for member in (A, B, C)] == [3, 3, 3]


def test_leader_that_has_removed_the_others_is_alone_when_that_is_durable() -> None:
    """Until then a crash brings a voter back that lacks what a writer would commit alone."""
    cluster = Cluster()
    cluster.found()
    cluster.want(A, B)
    leader = cluster.machines[A]
    effects = leader.step(MembersWanted(frozenset({A})), cluster.now)
    [save] = [one for one in effects if isinstance(one, SaveReplicaState)]
    assert save.state.set is not None
    assert save.state.set.members == {A}
    assert not leader.is_alone
    leader.step(StateSaved(save.state), cluster.now)
    assert leader.is_alone


def test_leader_with_a_learner_is_not_alone() -> None:
    """It sends the learner what it stores, and sends it again."""
    cluster = CutOff()
    cluster.found()
    leader = cluster.machines[A]
    assert leader.is_alone
    cluster.is_cut = True
    cluster.want(A, C)
    assert leader.state.set == leader.saved.set
    assert cluster.voters() == {A}
    assert not leader.is_alone
    cluster.want(A)
    assert leader.is_alone


def test_members_know_no_leader_when_they_have_not_heard_it() -> None:
    cluster = Cluster()
    cluster.found()
    assert [cluster.machines[one].knows_leader(cluster.now) for one in (A, B)] == [True, False]
    cluster.want(A, B, C)
    assert all(machine.knows_leader(cluster.now) for machine in cluster.machines.values())
    later = cluster.now + cluster.machines[B].options.dead_after_s
    assert [cluster.machines[one].knows_leader(later) for one in (A, B)] == [True, False]


def test_lost_frames_are_sent_again_while_others_follow() -> None:
    cluster = LossyLine()
    cluster.found()
    cluster.want(A, B, C)
    cluster.lost = 1
    for _ in range(200):
        cluster.append(1)
        cluster.run(TICK_S)
    assert cluster.lost == 0
    assert cluster.end(C) > 190


def test_set_is_changed_again_once_a_majority_has_what_was_committed_before() -> None:
    """Else B and C, which lack it, could elect a leader without A."""
    cluster = LossyLine()
    cluster.found()
    cluster.append(3)
    cluster.deaf, cluster.lost = frozenset({B, C}), 1_000_000
    cluster.want(A, B, C)
    assert cluster.voters() == {A, B}
    cluster.lost = 0
    cluster.run()
    assert cluster.voters() == {A, B, C}
    assert cluster.end(B) == cluster.end(C) == 3


def test_slow_member_gets_frames_little_more_than_once() -> None:
    cluster = SlowMember()
    cluster.found()
    cluster.want(A, B, C)
    cluster.is_slow = True
    cluster.effects[A].clear()
    frames = 20 * cluster.machines[A].options.frames_max
    cluster.append(frames)
    cluster.run(20 * 2 * cluster.late_s)
    leadership = cluster.machines[A].leadership
    assert leadership is not None
    assert leadership.peers[C].matches == {LOG: frames}
    assert cluster.frames_sent() < 1.2 * frames


def test_member_that_is_heard_again_gets_frames_at_once() -> None:
    cluster = SlowMember()
    cluster.found()
    cluster.want(A, B, C)
    cluster.is_silent = True
    cluster.append(1)
    cluster.run(20.0)
    assert cluster.frames_sent() < 15
    cluster.is_silent = False
    leader = cluster.machines[A]
    cluster.run(leader.options.beat_s + leader.options.resend_s)
    assert leader.leadership is not None
    assert leader.leadership.peers[C].matches == {LOG: 1}


def test_leader_beats_at_the_tick_that_is_due_and_not_before() -> None:
    cluster = Cluster()
    cluster.found()
    cluster.want(A, B, C)
    leader = cluster.machines[A]
    due = leader.due_at
    assert _beats(leader, due - 1e-6) == []
    assert _beats(leader, due) == [B, C]
    assert leader.due_at == due + leader.options.beat_s


def _beats(leader: Replica, now: float) -> list[Member]:
    """The members to which a tick sends a beat."""
    sent = [one for one in leader.step(ReplicaTicked(), now) if isinstance(one, SendMessage)]
    return [one.to for one in sent if isinstance(one.message, Beat)]


def test_idle_replica_is_ticked_when_due_and_now_and_then() -> None:
    cluster = Cluster()
    cluster.found()
    cluster.want(A, B, C)
    options, due = ReplicasOptions(), cluster.machines[B].due_at
    follower = _Hosted(cluster.machines[B], ticked_at=due - 0.2, idle_at=due - 1.0)
    assert follower.tick_at(due - 0.1, options) == due, "a campaign is due"
    follower.ticked_at = due - 0.4
    assert follower.tick_at(due - 0.1, options) < due - 0.1, "the last tick is long ago"
    follower.ticked_at, follower.idle_at = due - 0.2, due
    assert follower.tick_at(due - 0.1, options) < due - 0.1, "it is not idle yet"
    follower.is_alone = True
    assert follower.tick_at(due, options) == inf


def test_learner_that_is_lost_as_it_becomes_a_voter_replaces_none() -> None:
    """C says that it has joined, and its disk is lost before it can know that it votes."""
    cluster = LosesLearner()
    cluster.found()
    cluster.want(A, B)
    cluster.append(3)
    cluster.want(A, C)
    assert cluster.lost == {C}
    assert cluster.voters() == {A, B, C}
    cluster.append(1)
    cluster.run()
    assert cluster.machines[A].logs[LOG].committed == 4
    new = Member("c", "c-1")
    cluster.start(new, 2, ReplicaState())
    cluster.want(A, new)
    assert cluster.voters() == {A, new}
    assert [cluster.end(member) for member in (A, new)] == [4, 4]


def test_member_that_comes_back_without_files_gets_all_again() -> None:
    """Its leader once counted it with what it had before it left and deleted its files."""
    cluster = Cluster()
    cluster.found()
    cluster.append(100)
    cluster.want(A, B, C)
    cluster.want(A, B)
    assert cluster.voters() == {A, B}
    left = cluster.machines[A].state
    cluster.start(C, 2, ReplicaState(left.set, left.promised))
    cluster.want(A, B, C)
    assert cluster.voters() == {A, B, C}
    assert cluster.end(C) == 100


def test_learner_begins_behind_what_its_leader_has_dropped() -> None:
    cluster = Cluster()
    cluster.found(Epochs(((6, 0),), 8, 5))
    cluster.append(2)
    cluster.want(A, B)
    assert ResetLog(LOG, 5) in cluster.effects[B]
    log = cluster.machines[B].logs[LOG]
    assert (log.start, log.end, log.committed) == (5, 10, 10)


def test_member_drops_what_its_leader_has_dropped() -> None:
    cluster = Cluster()
    cluster.found()
    cluster.append(10)
    cluster.want(A, B, C)
    cluster.step(A, LogDropped(LOG, 4))
    cluster.append(1)
    cluster.run()
    assert DropFrames(LOG, 4) in cluster.effects[B]
    cluster.step(B, LogDropped(LOG, 3))
    cluster.append(1)
    cluster.run()
    assert [cluster.machines[m].logs[LOG].start for m in (A, B, C)] == [4, 3, 0]
    assert [cluster.machines[m].logs[LOG].committed for m in (A, B, C)] == [12, 12, 12]


def test_log_that_is_forgotten_hinders_no_member() -> None:
    forgotten: set[str] = set()
    cluster = Cluster()
    cluster.found()
    cluster.append(3)
    for machine in cluster.machines.values():
        machine._is_forgotten = forgotten.__contains__
    forgotten.add(LOG)
    cluster.step(A, LogForgotten(LOG))
    cluster.want(A, B, C)
    assert cluster.voters() == {A, B, C}
    assert [cluster.end(member) for member in (A, B, C)] == [0, 0, 0]


def test_epochs_common_passes_over_what_one_has_dropped() -> None:
    whole = Epochs(((1, 3), (5, 4), (8, 6)), 9)
    assert whole.drop(6).common(whole, committed=6) == 9
    assert whole.common(whole.drop(8), committed=0) == 9
    assert whole.drop(6).equals(whole, committed=6)
    assert whole.drop(6).common(Epochs(((1, 3), (5, 4)), 9), committed=6) == 7
    assert whole.cut(3).common(whole.drop(6), committed=3) == 3


def test_epochs_common_of_frames_that_the_other_has_dropped_needs_their_commit() -> None:
    whole = Epochs(((1, 3), (5, 4), (8, 6)), 9)
    for committed in (0, 4, 6):
        assert whole.cut(6).common(whole.drop(6), committed=committed) == committed
    assert not whole.cut(6).equals(whole.cut(6).drop(6), committed=5)
    assert whole.cut(6).equals(whole.cut(6).drop(6), committed=6)
    assert whole.drop(6).common(whole.drop(9), committed=6) == 6


def test_member_discards_frames_of_a_lost_leader_that_its_leader_has_dropped() -> None:
    """Its log ends where that of the leader begins, with frames that were never committed."""
    cluster = Cluster()
    voters = ReplicaSet(7, 1, frozenset({A, B, C}))
    leaders, stale = Epochs(((1, 3), (5, 7)), 8), Epochs(((1, 3), (5, 4)), 6)
    cluster.start(A, 0, ReplicaState(voters, 7, 7), leaders.drop(6), committed=8)
    cluster.start(B, 1, ReplicaState(voters, 7, 3), stale, committed=4)
    cluster.start(C, 2, ReplicaState(voters, 7, 7), leaders, committed=8)
    cluster.run(20.0)
    [leader] = {machine.leader for machine in cluster.machines.values()}
    log = cluster.machines[B].logs[LOG]
    assert leader in (A, C)
    assert (log.end, log.committed) == (8, 8)
    assert [log.epochs.at(sequence) for sequence in (7, 8)] == [7, 7]
    assert log.epochs.at(6) != 4


def test_member_goes_on_where_its_leader_has_dropped_all_that_it_has() -> None:
    """It had acknowledged the frames, and was cut off before it learned of their commit."""
    cluster = Cluster()
    cluster.found()
    cluster.want(A, B, C)
    cluster.append(3)
    cluster.run()
    away = cluster.machines.pop(C)
    log = away.logs[LOG]
    log.committed = 1
    cluster.step(A, LogDropped(LOG, 3))
    cluster.run(0.3)
    cluster.machines[C] = away
    cluster.append(2)
    cluster.run()
    assert (log.end, log.committed) == (5, 5)
