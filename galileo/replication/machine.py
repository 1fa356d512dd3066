"""One replica of a partition: elections, replication of its logs, and changes of its members.

Theory of operation. A partition has a replica set and one log for each dataset. One election
serves all logs (Liskov & Cowling, "Viewstamped Replication Revisited", 2012). A candidate asks
whether it would be voted for (pre-vote), then for votes. A vote promises the term and tells what
the voter has. From a majority of votes the candidate takes each log from the member that joined
the latest term and has most of it (`galileo.replication.election`), makes it durable, and leads.
It tells its members the epochs of its logs (`StartTerm`). They remove what the leader does not
have, get what they lack, and *join* the term once they durably have all that the leader began
with. The rest is as in Raft (Ongaro 2014): frames are named by (sequence, epoch), each message
names the frame before it, and a frame is committed when a majority of the voters that joined the
term has it durably. Because a member joins only with all that the leader began with, frames of
earlier terms are committed by counting too, and a term needs no empty frame at its start.

The machine knows positions, never bytes. Its driver appends frames, syncs, saves, sends, and
reports. It does the effects of a step in their order, and those of one log or of the state in the
order of the steps. It may join messages for many partitions to one node, and their saves.

Roles: *follower* (also learners, and members out of the set), *candidate* (pre-vote, vote, taking
over logs), *leader*; a leader is *open* when all that it began with is committed.

Invariants:

- A term has one leader. (sequence, epoch) names one frame; logs equal at one frame are equal
  before.
- `joined <= promised`; neither falls on a disk. Both are sent only when they are durable.
- Who has joined a term holds what its leader began with, and nothing that the leader lacks.
- A member truncates nothing up to `committed`, so what was published stays. A later history may
  lack some of it: the member then drops its log and copies the leader's.
- A leader acknowledges what is committed in its term, and takes frames only when it is open.
- Neighbouring sets differ by one voter. A set is changed after a majority of it has installed it
  and has what was committed before it. A member never returns to an earlier set.
- Voters are changed after a majority of the next set has installed the current one: a learner
  that was lost as it became a voter replaces none.
- A leader that is alone in its set, durably, and that no member is about to join, has committed
  what it has durably. No event but those of its own writer changes it; so its writer may commit
  frames without asking it (`is_alone`).
- A leader appends in the history of its term. A member that has promised a term of a later history
  refuses leaders of an earlier one, and never leads in that itself.
- A voter that supports a leader votes for no other, nor campaigns, within `dead_after_s`, unless
  that leader resigned. Therefore a leader that a majority has supported within `lease_s` has no
  successor, and its answers contain all acknowledged frames. Only this depends on clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from galileo.model.forks import history_of
from galileo.replication.election import choose_logs
from galileo.replication.messages import (
    Acknowledged,
    Append,
    Beat,
    DropFrames,
    Fetch,
    Fetched,
    FrameAppended,
    HandOverRequested,
    LogDropped,
    LogForgotten,
    LogSynced,
    MembersWanted,
    Message,
    MessageArrived,
    NewerSet,
    NotFollowing,
    PreVote,
    PublishFrames,
    Refused,
    ReplicaEffect,
    ReplicaEvent,
    RequestPreVote,
    RequestVote,
    ResetLog,
    Resigned,
    SaveReplicaState,
    SendMessage,
    StartTerm,
    StateSaved,
    Support,
    TruncateLog,
    Vote,
    WriteFrames,
    WrittenAlone,
)
from galileo.replication.reconfiguration import next_set
from galileo.replication.values import (
    ORDINALS,
    Epochs,
    Log,
    Member,
    ReplicaSet,
    ReplicaState,
    ReplicationOptions,
)


@dataclass(slots=True)
class _Campaign:
    """A candidate's election. `sources` is set once the logs are chosen."""

    term: int
    voters: ReplicaSet
    until: float
    resigned: int
    pre_votes: set[Member]
    votes: dict[Member, Vote] = field(default_factory=dict)
    sources: dict[str, Member] | None = None
    fetched_at: dict[str, float] = field(default_factory=dict)
    has_requested: bool = False


@dataclass(slots=True)
class _Peer:
    """A member as its leader sees it.

    Attributes:
        installed: the version of its replica set.
        matches: what it has acknowledged, None before it answered `StartTerm`.
        sent, sent_at: up to where frames are under way, and since when the oldest of them.
        timed: a log, the last of some frames that were sent once, and when.
        patience_s: after how long frames are sent again, if that is longer than for others. It is
            doubled each time, and halved when the answer to frames that were sent once takes less
            than half of it. Otherwise a member whose answers take longer would get all frames
            several times, and take longer still.
        announced, sent_commits: how far it knows, and was sent, that logs are committed.
        supported_at: when the newest beat was sent that it has answered.
    """

    has_joined: bool = False
    installed: tuple[int, int] = (-1, 0)
    matches: dict[str, int] | None = None
    sent: dict[str, int] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)
    timed: tuple[str, int, float] | None = None
    patience_s: float = 0.0
    sent_commits: dict[str, int] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    started_at: float = -inf
    heard_at: float = -inf
    supported_at: float = -inf


@dataclass(slots=True)
class _Leadership:
    """The term of a leader.

    Attributes:
        starts: the end of each log when the term began.
        floor: what was committed when the set was changed last.
        successor: who is to lead next; no frames are taken meanwhile.
    """

    term: int
    starts: dict[str, int]
    began_at: float
    peers: dict[Member, _Peer] = field(default_factory=dict)
    floor: dict[str, int] = field(default_factory=dict)
    beat_at: float = -inf
    is_open: bool = False
    successor: Member | None = None
    hand_over_until: float = inf


@dataclass(slots=True)
class _Following:
    """The term that a follower takes part in.

    Attributes:
        starts: the end of each log when the term began.
        matches: how far each log is known to be the leader's.
        acknowledged: the match and the commit that were sent to the leader last.
        dropped: up to where the leader has dropped each log, as far as that was done here.
        is_asked: whether `StartTerm` has to be answered.
    """

    term: int
    leader: Member
    starts: dict[str, int]
    matches: dict[str, int]
    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    is_asked: bool = True
    has_told_joined: bool = False


class Replica:
    """The machine of one member of one partition.

    Args:
        me: the node and disk.
        ordinal: of the node, below `ORDINALS`. Nodes with equal ordinals split votes, as in Raft; a
            term has one leader also then.
        state: as read from the disk; logs shorter than they were must be `suspect` in it.
        logs: the epochs of each log as found, all durable, and how far it is known to be committed.
        now: monotonic seconds of this node, as in `step`.
        is_forgotten: whether a log is no more; see `LogForgotten`.
    """

    def __init__(
        self,
        me: Member,
        ordinal: int,
        *,
        state: ReplicaState,
        logs: Mapping[str, tuple[Epochs, int]],
        now: float,
        options: ReplicationOptions | None = None,
        is_forgotten: Callable[[str], bool] = lambda _: False,
    ) -> None:
        if not 0 <= ordinal < ORDINALS:
            raise ValueError(f"expected an ordinal from 0 to {ORDINALS - 1}, got {ordinal}")
        self.me = me
        self.options = options or ReplicationOptions()
        self.state = state
        self.saved = state
        self.logs = {
            name: Log(epochs, epochs.end, min(committed, epochs.end))
            for name, (epochs, committed) in logs.items()
        }
        self.wanted: frozenset[Member] | None = None
        self.leadership: _Leadership | None = None
        self.leader: Member | None = None
        self._ordinal = ordinal
        self._is_forgotten = is_forgotten
        self._round = 0
        self._campaign: _Campaign | None = None
        self._following: _Following | None = None
        self._vote_for: tuple[Member, int] | None = None
        self._heard_at = now
        self._heard_term = state.promised
        self._yields_until = -inf
        self._asked_at = now
        self._effects: list[ReplicaEffect] = []

    # --- what the driver asks ------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it leads and takes frames, with epoch `state.promised`."""
        lead = self.leadership
        return lead is not None and lead.is_open and lead.successor is None

    @property
    def is_alone(self) -> bool:
        """Whether it leads a set of itself alone, durably, which no other member is about to join.

        What its writer makes durable is committed then.
        """
        me = frozenset([self.me])
        return (
            self.is_open
            # A set counts only when it is saved, as in `_counted`.
            and self.saved == self.state
            and self._set().members == me
            # A wanted member becomes a learner next; the machine has to send it every frame.
            and self.wanted in (None, me)
        )

    @property
    def lease_until(self) -> float:
        """Until when no other member can have committed anything; -inf if it does not lead."""
        lead, current = self.leadership, self.state.set
        # Before it is open, it may not know yet what an earlier leader has acknowledged.
        if lead is None or current is None or not lead.is_open:
            return -inf
        until = {member: self._support_until(peer) for member, peer in lead.peers.items()}
        until[self.me] = inf
        ends = sorted((until.get(voter, -inf) for voter in current.voters), reverse=True)
        return ends[current.majority - 1]

    @property
    def is_whole(self) -> bool:
        """Whether it leads, and all voters of its set follow it and lack few frames."""
        lead = self.leadership
        if lead is None or not self._is_settled(lead):
            return False
        others = self._set().voters - {self.me}
        return all(self._has_caught_up(lead, member) for member in others)

    @property
    def lag(self) -> int:
        """Frames that the member which is furthest behind this leader lacks of one log."""
        lead = self.leadership
        if lead is None:
            return 0
        return max(
            (
                log.lacking(self._match(lead, member, name))
                for member in lead.peers
                for name, log in self.logs.items()
            ),
            default=0,
        )

    @property
    def due_at(self) -> float:
        """When the next beat or campaign is due; for all else a tick may come a little later."""
        if self.leadership is not None:
            return self.leadership.beat_at + self.options.beat_s
        if self._campaign is not None:
            return self._campaign.until
        return self._campaign_at() if self._is_voter() else self._asks_at()

    def knows_leader(self, now: float) -> bool:
        """Whether it leads, or has heard a leader within `dead_after_s`."""
        is_heard = now < self._heard_at + self.options.dead_after_s
        return self.leadership is not None or (self.leader is not None and is_heard)

    def heard_at(self, member: Member) -> float:
        """When this leader heard a member last, or began to listen to it."""
        lead = self.leadership
        if lead is None or member not in lead.peers:
            return inf if member == self.me else -inf
        return lead.peers[member].heard_at

    def successors(self, now: float) -> list[Member]:
        """The other voters that live and could lead at once; none if this leader is not open."""
        lead = self.leadership
        if lead is None or not self.is_open:
            return []
        alive = self._alive(lead, now, within_s=self.options.dead_after_s)
        others = self._set().voters & alive - {self.me}
        return sorted(member for member in others if self._has_caught_up(lead, member))

    def has_lease(self, now: float) -> bool:
        """Whether it leads and no other member can have committed anything since."""
        return now < self.lease_until

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaEffect]:
        """Take in an event; `now` does not fall."""
        if isinstance(event, MessageArrived):
            self._on_message(event.sender, event.message, now)
        elif isinstance(event, FrameAppended):
            self._extend(event.log, event.end, now)
        elif isinstance(event, LogSynced):
            self._on_synced(event, now)
        elif isinstance(event, WrittenAlone):
            self._on_written_alone(event)
        elif isinstance(event, LogDropped):
            log = self._log(event.log)
            log.epochs = log.epochs.drop(event.until)
        elif isinstance(event, LogForgotten):
            self._forget(event.log)
        elif isinstance(event, StateSaved):
            self.saved = event.state
        elif isinstance(event, MembersWanted):
            self.wanted = event.members
        elif isinstance(event, HandOverRequested):
            self._on_hand_over(event.successor, now)
        else:
            self._on_tick(now)
        self._advance(now)
        effects, self._effects = self._effects, []
        return effects

    def check(self) -> None:
        state = self.state
        assert state.joined <= state.promised, "joined a term that was not promised"
        assert self.saved.promised <= state.promised
        assert self.saved.joined <= state.joined
        for log in self.logs.values():
            assert log.start <= log.committed <= log.end, "dropped or committed more than there is"
            assert log.durable <= log.end, "synced more than there is"
        lead = self.leadership
        if lead is not None:
            assert lead.term == state.promised == state.joined == self.saved.joined
            assert lead.is_open or self.saved.set == state.set, "changed its set before it was open"
            assert self._following is None
            assert self._campaign is None
        campaign = self._campaign
        if campaign is not None and not campaign.has_requested:
            assert campaign.term > state.promised, "campaigns for a term that it cannot promise"
            assert campaign.voters == state.set, "campaigns in a set that it does not have"
        if self._following is not None:
            for name, match in self._following.matches.items():
                assert match <= self._log(name).end, "matches more than there is"

    # --- events --------------------------------------------------------------------------------

    def _on_message(self, sender: Member, message: Message, now: float) -> None:
        handlers: dict[type, Callable[..., None]] = {
            RequestPreVote: self._on_request_pre_vote,
            PreVote: self._on_pre_vote,
            RequestVote: self._on_request_vote,
            Vote: self._on_vote,
            Refused: self._on_refused,
            NewerSet: self._on_newer_set,
            Fetch: self._on_fetch,
            Fetched: self._on_fetched,
            StartTerm: self._on_start_term,
            Append: self._on_append,
            Acknowledged: self._on_acknowledged,
            NotFollowing: self._on_not_following,
            Beat: self._on_beat,
            Support: self._on_support,
            Resigned: self._on_resigned,
        }
        if isinstance(message, Append | Fetch | Fetched) and self._is_forgotten(message.log):
            return
        handlers[type(message)](sender, message, now)

    def _on_synced(self, event: LogSynced, now: float) -> None:
        log = self._log(event.log)
        # A writer that is alone may be further than what this machine has learned.
        log.durable = max(log.durable, min(event.end, log.end))
        log.is_cut_durable = True
        log.unsynced_since = None if log.is_synced else now

    def _on_written_alone(self, event: WrittenAlone) -> None:
        assert self.is_alone, f"{event.log} was written alone by a member of a larger set"
        log = self._log(event.log)
        if event.end > log.end:
            log.epochs = log.epochs.extend(self._term(), event.end)
        log.durable = log.committed = max(log.durable, event.end)
        log.unsynced_since = None

    def _forget(self, name: str) -> None:
        self.logs.pop(name, None)
        tables: list[dict[str, Any]] = []
        if self._following is not None:
            one = self._following
            tables += [one.starts, one.matches, one.acknowledged, one.dropped]
        if self.leadership is not None:
            tables += [self.leadership.starts, self.leadership.floor]
        if self._campaign is not None and self._campaign.sources is not None:
            tables.append(self._campaign.sources)
        for table in tables:
            table.pop(name, None)

    def _on_tick(self, now: float) -> None:
        if self.leadership is not None:
            self._tick_leader(self.leadership, now)
        elif self._campaign is not None:
            if now >= self._campaign.until:
                self._campaign = None
                # Its turn comes again, counted from now, so that other voters can campaign first.
                self._heard_at = now - self.options.dead_after_s
        elif self._is_voter() and now >= self._campaign_at():
            self._campaign_for(now, resigned=0)
        elif now >= self._asks_at():
            self._ask_for_set(now)

    def _tick_leader(self, lead: _Leadership, now: float) -> None:
        current = self._set()
        stalled = min((log.unsynced_since or inf for log in self.logs.values()), default=inf)
        alive = self._alive(lead, now, within_s=self.options.dead_after_s)
        # A leader whose disk hangs, or that no majority answers, commits nothing; another may.
        if now - stalled > self.options.stall_s or not current.is_majority(alive):
            self._resign(lead, None, now)
            return
        # The successor may never get everything, and this leader takes no frames meanwhile.
        if now >= lead.hand_over_until:
            lead.successor = None
        if now >= lead.beat_at + self.options.beat_s:
            lead.beat_at = now
            for member in sorted(current.members - {self.me}):
                self._send(member, Beat(lead.term, now))

    def _on_hand_over(self, successor: Member, now: float) -> None:
        lead = self.leadership
        if lead is not None and successor in self._set().voters - {self.me}:
            lead.successor = successor
            lead.hand_over_until = now + self.options.campaign_s

    # --- elections -----------------------------------------------------------------------------

    def _campaign_at(self) -> float:
        """When this voter campaigns: in its turn, and after a candidate it voted for had time."""
        voters = sorted(self._set().voters)
        # No other voter can lead, so there is no leader to wait for.
        if len(voters) == 1:
            return self._heard_at
        # Turns rotate with the rounds: a voter that cannot win must not be the first each time.
        turn = (voters.index(self.me) + self.state.promised // ORDINALS) % len(voters)
        begin = max(self._heard_at + self.options.dead_after_s, self._yields_until)
        return begin + turn * self.options.stagger_s

    def _asks_at(self) -> float:
        """When a learner asks for the newest set; never for others."""
        if self.state.set is None or self.me not in self.state.set.learners:
            return inf
        return max(self._heard_at, self._asked_at) + self.options.dead_after_s

    def _ask_for_set(self, now: float) -> None:
        """Ask the voters that this learner knows whether there is a newer set.

        A learner that was dropped while it was away hears no leader, and does not campaign, by
        which a voter would get the answer `NewerSet`. No member votes in term 0.
        """
        self._asked_at = now
        for member in sorted(self._set().voters):
            self._send(member, RequestPreVote(0, self._set(), 0))

    def _campaign_for(self, now: float, *, resigned: int) -> None:
        # Rounds in which no voter promised anything do not count: they would use up the history of
        # a voter that is cut off for weeks.
        term = (max(self._round, self.state.promised // ORDINALS) + 1) * ORDINALS + self._ordinal
        current = self._set()
        until = now + self.options.campaign_s
        self._campaign = _Campaign(term, current, until, resigned, {self.me})
        for member in sorted(current.voters - {self.me}):
            self._send(member, RequestPreVote(term, current, resigned))

    def _on_request_pre_vote(self, sender: Member, message: RequestPreVote, now: float) -> None:
        if self._may_vote(sender, message, now):
            self._send(sender, PreVote(message.term))

    def _may_vote(self, sender: Member, message: RequestPreVote | RequestVote, now: float) -> bool:
        """Whether a vote can be given; otherwise the candidate gets the reason."""
        # A voter that was removed while it was away hears no leader, and learns it here.
        if self._has_newer_set(message.set):
            self._send(sender, NewerSet(self._set()))
            return False
        if not self._is_above(message.term) or not self._is_free(message.resigned, now):
            self._send(sender, Refused(self.state.promised))
            return False
        return True

    def _is_above(self, term: int) -> bool:
        return term > self.state.promised

    def _is_free(self, resigned: int, now: float) -> bool:
        """Whether this voter supports no leader, except one that has resigned."""
        # Its lease counts a leader as its own supporter.
        if self.leadership is not None:
            return False
        is_silent = now >= self._heard_at + self.options.dead_after_s
        return is_silent or self._heard_term <= resigned

    def _on_pre_vote(self, sender: Member, message: PreVote, now: float) -> None:
        campaign = self._campaign
        if campaign is not None and campaign.term == message.term:
            campaign.pre_votes.add(sender)

    def _on_request_vote(self, sender: Member, message: RequestVote, now: float) -> None:
        if self._may_vote(sender, message, now):
            # The vote lacks what this member would join or acknowledge in an earlier term from here
            # on. A member that has not heard yet that it is a voter learns it here.
            self._leave_term()
            self._save(set=message.set, promised=message.term)
            self._vote_for = (sender, message.term)
            self._yields_until = now + self.options.campaign_s

    def _on_vote(self, sender: Member, message: Vote, now: float) -> None:
        campaign = self._campaign
        if campaign is not None and campaign.term == message.term:
            campaign.votes[sender] = message

    def _on_refused(self, sender: Member, message: Refused, now: float) -> None:
        self._round = max(self._round, message.promised // ORDINALS)
        if self.leadership is not None and message.promised > self.leadership.term:
            self._resign(self.leadership, None, now)

    def _on_newer_set(self, sender: Member, message: NewerSet, now: float) -> None:
        if self._is_newer(message.set):
            # It campaigned in, or led, an earlier set, whose majority may be none any more.
            self._leave_term()
            self._save(set=message.set)

    def _on_resigned(self, sender: Member, message: Resigned, now: float) -> None:
        # A message that comes late must not end the support of a later leader.
        if self.leadership is not None or self._heard_term > message.term:
            return
        self._heard_at = min(self._heard_at, now - self.options.dead_after_s)
        self.leader = None
        # A message that is repeated must not begin the campaign anew.
        if message.successor == self.me and self._is_voter() and self._campaign is None:
            self._campaign_for(now, resigned=message.term)

    def _advance_vote(self) -> None:
        """Send the vote when the promise and all frames are durable."""
        if self._vote_for is None:
            return
        candidate, term = self._vote_for
        # It has promised a later term since, whose leader may have cut the logs.
        if self.state.promised != term:
            self._vote_for = None
        elif self.saved.promised == term and self._is_drained():
            self._vote_for = None
            self._send(candidate, self._own_vote(term))

    def _is_drained(self) -> bool:
        """Whether nothing is being written: what a vote tells stays true."""
        return all(log.is_synced for log in self.logs.values())

    def _own_vote(self, term: int) -> Vote:
        logs = {name: log.epochs.cut(log.durable) for name, log in self.logs.items()}
        return Vote(term, self.saved.joined, logs, dict(self.saved.suspect))

    def _advance_campaign(self, now: float) -> None:
        campaign = self._campaign
        if campaign is None:
            return
        if not campaign.has_requested:
            self._request_votes(campaign)
        # If a crash undid the promise, this voter could follow an earlier leader again, whose
        # frames its vote would lack.
        if not campaign.has_requested or self.saved.promised != campaign.term:
            return
        if self.me not in campaign.votes and self._is_drained():
            campaign.votes[self.me] = self._own_vote(campaign.term)
            for member in sorted(campaign.voters.voters - {self.me}):
                self._send(member, RequestVote(campaign.term, campaign.voters, campaign.resigned))
        if campaign.sources is None:
            campaign.sources = self._choose_logs(campaign)
        if campaign.sources is not None:
            self._take_over_logs(campaign, campaign.sources, now)

    def _request_votes(self, campaign: _Campaign) -> None:
        if campaign.voters.is_majority(campaign.pre_votes):
            campaign.has_requested = True
            # Its own vote lacks what it would join or acknowledge in an earlier term from here on.
            self._following = None
            self._save(promised=campaign.term)

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        sources = choose_logs(campaign.votes, campaign.voters, me=self.me)
        if sources is None:
            return None
        return {name: one for name, one in sources.items() if not self._is_forgotten(name)}

    def _take_over_logs(
        self, campaign: _Campaign, sources: Mapping[str, Member], now: float
    ) -> None:
        """Fetch what is missing; lead when all logs and the joined term are durable."""
        is_complete = True
        for name, source in sources.items():
            best = campaign.votes[source].logs.get(name, Epochs())
            log = self._log(name)
            if not log.epochs.equals(best, committed=log.committed):
                is_complete = False
                self._fetch(campaign, name, best, now)
        if not is_complete or not self._is_drained():
            return
        # The term makes this version higher than that of any set which an earlier leader has made
        # and no majority knows.
        new = replace(campaign.voters, term=campaign.term)
        self._save(set=new, joined=campaign.term, suspect={})
        if self.saved.joined == campaign.term:
            self._campaign = None
            self._lead(campaign.term, now)

    def _fetch(self, campaign: _Campaign, name: str, best: Epochs, now: float) -> None:
        log = self._log(name)
        self._truncate(name, log.epochs.common(best, committed=log.committed))
        asked_at = campaign.fetched_at.get(name, -inf)
        if log.end < best.end and now >= asked_at + self.options.resend_s:
            campaign.fetched_at[name] = now
            assert campaign.sources is not None
            source = campaign.sources[name]
            self._send(source, Fetch(campaign.term, name, log.end, best.end))

    def _on_fetch(self, sender: Member, message: Fetch, now: float) -> None:
        log = self._log(message.log)
        # Since its vote it may have promised another term, or lost frames to damage.
        if message.term == self.state.promised and log.durable >= message.until:
            after, start = max(message.after, log.start), log.start
            part = log.epochs.range(after, message.until)
            self._send(sender, Fetched(message.term, message.log, after, part, start))

    def _on_fetched(self, sender: Member, message: Fetched, now: float) -> None:
        campaign = self._campaign
        if campaign is None or campaign.term != message.term:
            return
        log = self._log(message.log)
        # The source has dropped what comes next in this log, so it is committed.
        if message.after == message.start > log.end:
            self._reset(message.log, message.start, now)
        # The frames before these may be lost on the way; `_fetch` asks again.
        if message.after <= log.end:
            self._append_frames(message.log, message.epochs, now)

    # --- the leader ----------------------------------------------------------------------------

    def _lead(self, term: int, now: float) -> None:
        starts = {name: log.end for name, log in self.logs.items()}
        self.leadership = _Leadership(term, starts, now)
        self.leader = self.me
        # What was wanted when it led before may not be wanted any more. Two members that both want
        # the other one alone would hand over to each other without end.
        self.wanted = None

    def _advance_leader(self, now: float) -> None:
        lead = self.leadership
        if lead is None:
            return
        current = self._set()
        for member in lead.peers.keys() - current.members:
            del lead.peers[member]  # It may delete its files, and come back.
        for member in sorted(current.members - {self.me}):
            peer = lead.peers.setdefault(member, _Peer(heard_at=now))
            self._start_term(lead, member, peer, now)
        self._commit(lead)
        for member in sorted(current.members - {self.me}):
            self._replicate(lead, member, lead.peers[member], now)
        self._change_set(lead, now)
        self._hand_over(lead, now)

    def _start_term(self, lead: _Leadership, member: Member, peer: _Peer, now: float) -> None:
        """Tell a member of the term and the set until it has installed them."""
        is_told = peer.has_joined and peer.installed == self._set().version
        if is_told or self.saved.set != self.state.set:
            return
        if now >= peer.started_at + self.options.resend_s:
            peer.started_at = now
            logs = {name: log.epochs for name, log in self.logs.items()}
            self._send(member, StartTerm(lead.term, self._set(), dict(lead.starts), logs))

    def _on_acknowledged(self, sender: Member, message: Acknowledged, now: float) -> None:
        peer = self._peer(sender, message.term, now)
        if peer is None:
            return
        peer.installed = max(peer.installed, message.set_version)
        if peer.matches is None:
            # An answer to an earlier `Append` names one log; the others would count as empty.
            if not message.is_complete:
                return
            peer.matches = {}
        # Answers may arrive in another order.
        peer.has_joined = peer.has_joined or message.has_joined
        for name, match in message.matches.items():
            if match > peer.matches.get(name, 0):
                peer.matches[name] = match
                peer.sent_at[name] = now
            peer.sent[name] = max(peer.sent.get(name, 0), match)
            # Not the highest: a member that restarted may have to learn of a commit again.
            peer.sent_commits[name] = message.committed[name]
        if peer.timed is not None and peer.matches.get(peer.timed[0], 0) >= peer.timed[1]:
            if 2 * (now - peer.timed[2]) <= peer.patience_s:
                peer.patience_s /= 2
            peer.timed = None

    def _on_not_following(self, sender: Member, message: NotFollowing, now: float) -> None:
        """The member has restarted: forget what it had, and tell it of the term."""
        peer = self._peer(sender, message.term, now)
        # Several messages may get this answer; one `StartTerm` is enough. What the member has
        # supported counts on, since a member waits for `dead_after_s` after a start, too.
        if peer is not None and peer.matches is not None and self.leadership is not None:
            self.leadership.peers[sender] = _Peer(heard_at=now, supported_at=peer.supported_at)

    def _on_support(self, sender: Member, message: Support, now: float) -> None:
        peer = self._peer(sender, message.term, now)
        if peer is not None:
            peer.supported_at = max(peer.supported_at, message.sent_at)

    def _support_until(self, peer: _Peer) -> float:
        """Until when a member votes for no other member, by the leader's clock."""
        return peer.supported_at + self.options.lease_s

    def _peer(self, member: Member, term: int, now: float) -> _Peer | None:
        """The member that answers the leader of this term."""
        lead = self.leadership
        if lead is None or lead.term != term or member not in lead.peers:
            return None
        peer = lead.peers[member]
        # It was away, so its patience says nothing about the connection that it has now.
        if now >= peer.heard_at + self.options.dead_after_s:
            peer.patience_s = 0.0
        peer.heard_at = now
        return peer

    def _commit(self, lead: _Leadership) -> None:
        """Advance what is committed to what a majority of voters has durably."""
        for name in self.logs:
            self._set_committed(name, self._majority_match(lead, name))
        if not lead.is_open:
            # Also where nothing is left to commit: it is announced when a majority follows it.
            counted = self._counted(lead)
            lead.is_open = self._set().is_majority(counted) and all(
                log.committed >= lead.starts.get(name, 0) for name, log in self.logs.items()
            )

    def _counted(self, lead: _Leadership) -> set[Member]:
        """The voters whose frames count: those that joined the term, and have installed the set.

        Otherwise a member could lose to damage what a smaller set committed, and vote in the larger
        set before it, by whose majority that frame cannot have been committed.
        """
        version = self._set().version
        members = {m for m, peer in lead.peers.items() if self._counts(peer, version)}
        if self.saved.set == self.state.set:
            members.add(self.me)
        return members & self._set().voters

    def _counts(self, peer: _Peer, version: tuple[int, int]) -> bool:
        return peer.has_joined and peer.installed >= version

    def _majority_match(self, lead: _Leadership, name: str) -> int:
        counted = self._counted(lead)
        if len(counted) < self._majority():
            return 0
        matches = sorted((self._match(lead, member, name) for member in counted), reverse=True)
        return matches[self._majority() - 1]

    def _majority(self) -> int:
        return self._set().majority

    def _match(self, lead: _Leadership, member: Member, name: str) -> int:
        if member == self.me:
            return self._log(name).durable
        return (lead.peers[member].matches or {}).get(name, 0)

    def _replicate(self, lead: _Leadership, member: Member, peer: _Peer, now: float) -> None:
        """Send a member what it lacks, and how far the logs are committed."""
        if peer.matches is None:
            return
        patience_s = max(self.options.resend_s, peer.patience_s)
        for name, log in self.logs.items():
            match, sent = peer.matches.get(name, 0), peer.sent.get(name, 0)
            is_late = now >= peer.sent_at.get(name, -inf) + patience_s
            is_waiting = sent > match
            is_again = is_late and is_waiting
            if is_again:
                # An answer could be to either sending, so it would not say how long it took.
                sent, peer.timed = match, None
                peer.patience_s = min(2 * patience_s, self.options.dead_after_s)
            is_reset = sent < log.start
            sent = max(sent, log.start)
            until = log.epochs.limit(max(match, log.start), self.options.frames_max)
            has_frames = is_reset or sent < until
            # The message with the last commit may be lost, and no further frame may follow.
            is_committed_late = is_late and peer.sent_commits.get(name, 0) < log.committed
            is_committed_news = peer.announced.get(name, 0) < self._announceable(log)
            if not (has_frames or is_committed_late or is_committed_news):
                continue
            message = Append(
                lead.term,
                name,
                after=sent,
                after_epoch=log.epochs.at(sent),
                epochs=log.epochs.range(sent, until),
                match=match,
                committed=self._announceable(log),
                start=log.start,
            )
            self._send(member, message)
            if peer.timed is None and not is_again and until > sent:
                peer.timed = name, until, now
            if is_again or not is_waiting:
                peer.sent_at[name] = now
            peer.sent[name] = until
            peer.announced[name] = message.committed

    def _announceable(self, log: Log) -> int:
        """What members learn to be committed."""
        return log.committed

    def _alive(self, lead: _Leadership, now: float, *, within_s: float) -> set[Member]:
        """The members that were heard, or had no time yet to be heard."""
        recent = {m for m, peer in lead.peers.items() if now < peer.heard_at + within_s}
        return recent | {self.me}

    def _present(self, lead: _Leadership) -> set[Member]:
        """The members that joined this term, and have answered since the set was changed last."""
        joined = {m for m, peer in lead.peers.items() if peer.has_joined}
        return joined & self._installed(lead) | {self.me}

    def _installed(self, lead: _Leadership) -> set[Member]:
        """The members that have the set of this leader, or a later one."""
        version = self._set().version
        return {m for m, peer in lead.peers.items() if peer.installed >= version} | {self.me}

    def _resign(self, lead: _Leadership, successor: Member | None, now: float) -> None:
        self._leave_term()
        # It gives way: the others campaign at once, and it waits as for a leader that has failed.
        self._heard_at = now
        for member in sorted(self._set().voters - {self.me}):
            self._send(member, Resigned(lead.term, successor))

    def _hand_over(self, lead: _Leadership, now: float) -> None:
        """Resign for a successor that has everything."""
        successor = lead.successor
        # The set may have changed since the request.
        if successor is None or successor not in lead.peers:
            return
        peer = lead.peers[successor]
        has_all = all(
            self._match(lead, successor, name) >= log.end for name, log in self.logs.items()
        )
        # A member that has not joined may not know yet that it votes, and would not campaign.
        if peer.has_joined and has_all:
            self._resign(lead, successor, now)

    # --- changes of the set --------------------------------------------------------------------

    def _change_set(self, lead: _Leadership, now: float) -> None:
        """Install the next set on the way to the wanted members."""
        if not lead.is_open or self.wanted is None or not self._is_settled(lead):
            return
        current = self._set()
        alive = self._alive(lead, now, within_s=self.options.dead_after_s)
        new = self._next_set(lead, current, alive, now)
        if new is None:
            self._leave(lead, self.wanted, now)
            return
        new = replace(new, term=lead.term)
        if new.voters != current.voters and not new.is_majority(self._present(lead) & alive):
            return  # A member that has not answered since the last change may be lost for good.
        lead.floor = {name: log.committed for name, log in self.logs.items()}
        # They hear of the set at once, not when `resend_s` is over.
        for peer in lead.peers.values():
            peer.started_at = -inf
        self._save(set=new)

    def _next_set(
        self, lead: _Leadership, current: ReplicaSet, alive: set[Member], now: float
    ) -> ReplicaSet | None:
        caught_up = {member for member in current.learners if self._has_caught_up(lead, member)}
        if current.voters == {self.me}:
            # The lease of an only voter needs no support; with a second one that does not support
            # it yet, it would be without a lease for a moment.
            caught_up = {m for m in caught_up if self._support_until(lead.peers[m]) > now}
        assert self.wanted is not None
        return next_set(current, self.wanted, leader=self.me, alive=alive, caught_up=caught_up)

    def _has_caught_up(self, lead: _Leadership, member: Member) -> bool:
        peer = lead.peers.get(member)
        return (
            peer is not None
            and peer.has_joined
            and all(
                log.lacking(self._match(lead, member, name)) <= self.options.lag_max
                for name, log in self.logs.items()
            )
        )

    def _is_settled(self, lead: _Leadership) -> bool:
        """Whether a majority of the set has it, and what was committed before it."""
        current = self._set()
        # `_installed` counts this leader, which has the set when it is saved.
        if self.saved.set != current:
            return False
        ready = {
            member
            for member in self._counted(lead)
            if all(self._match(lead, member, log) >= end for log, end in lead.floor.items())
        }
        return current.is_majority(ready) and current.is_majority(self._installed(lead))

    def _leave(self, lead: _Leadership, wanted: frozenset[Member], now: float) -> None:
        """Hand over when nothing but the leader itself is to go."""
        is_last = self.me not in wanted and self._set().voters - {self.me} == wanted
        ready = wanted & self._alive(lead, now, within_s=self.options.dead_after_s)
        # A hand-over that is repeated in each step would never end, if the successor fails.
        if is_last and ready and lead.successor is None:
            self._on_hand_over(min(ready), now)

    # --- the follower --------------------------------------------------------------------------

    def _on_start_term(self, sender: Member, message: StartTerm, now: float) -> None:
        # A leader of an earlier term resigns when a member refuses it, and gets this message again.
        if not self._is_current(sender, message.term) or self.leadership is not None:
            return
        # A message that comes late may have an earlier set.
        if self._has_newer_set(message.set):
            return
        self._hear(sender, message.term, now)
        self._save(set=message.set, promised=message.term)
        following = self._following
        if following is not None and following.term == message.term:
            # Logs of an older message may lack frames that this member has got since.
            following.is_asked = True
            return
        known = {name for name in message.logs if not self._is_forgotten(name)}
        names = sorted(self.logs.keys() | known)
        matches = {name: self._follow(name, message, now) for name in names}
        starts = {name: end for name, end in message.starts.items() if name in matches}
        self._following = _Following(message.term, sender, starts, matches)

    def _follow(self, name: str, message: StartTerm, now: float) -> int:
        """Cut what the leader does not have; return how far the log agrees with the leader's.

        A member that has joined the term holds nothing but the leader's frames, and so do those of
        the leader's own epoch: the message may be older than they are.
        """
        log = self._log(name)
        match = self._agreement(log, message.logs.get(name, Epochs()), message.term)
        last = log.epochs.at(log.committed)
        if match < log.committed and history_of(message.term) > history_of(last):
            # The partition was recovered from members without all that this one has published,
            # which a log loses only as a whole.
            self._reset(name, 0, now)
            return 0
        self._truncate(name, match)
        return match

    def _agreement(self, log: Log, leaders: Epochs, term: int) -> int:
        own = log.epochs
        if self.state.joined == term:
            return own.end
        match = own.common(leaders, committed=log.committed)
        if match == leaders.end and own.at(own.forks.following(match)) == term:
            return own.end
        return match

    def _on_append(self, sender: Member, message: Append, now: float) -> None:
        if not self._is_current(sender, message.term):
            return
        following = self._following
        if following is None or following.term != message.term:
            self._send(sender, NotFollowing(message.term))
            return
        self._hear(sender, message.term, now)
        log = self._log(message.log)
        # The leader has dropped what comes next in this log.
        if message.after == message.start > log.end:
            self._reset(message.log, message.start, now)
            following.matches[message.log] = message.start
        match = following.matches.get(message.log, 0)
        # After a restart, a `StartTerm` that comes late can name less than the leader counts on.
        if message.match > match:
            self._send(sender, NotFollowing(message.term))
        if not self._agrees(log, message, max(log.committed, match)):
            return
        self._append_frames(message.log, message.epochs, now)
        match = max(match, message.epochs.end)
        following.matches[message.log] = match
        # A message that is repeated is answered again: its answer may be lost.
        following.acknowledged.pop(message.log, None)
        self._set_committed(message.log, self._known_committed(message, match))
        self._drop(following, log, message)

    def _drop(self, following: _Following, log: Log, message: Append) -> None:
        """Drop what the leader has dropped; a member may be able to drop less."""
        until = min(message.start, log.committed)
        if until > max(log.start, following.dropped.get(message.log, 0)):
            following.dropped[message.log] = until
            self._effects.append(DropFrames(message.log, until))

    def _agrees(self, log: Log, message: Append, known: int) -> bool:
        """Whether the log has the frame before those of the message.

        It surely has those up to `known`; the leader may have dropped them, and their epochs.
        """
        if message.after <= known:
            return True
        return message.after <= log.end and log.epochs.at(message.after) == message.after_epoch

    def _known_committed(self, message: Append, match: int) -> int:
        """How far this log, which may lack frames, is committed."""
        return min(message.committed, match)

    def _on_beat(self, sender: Member, message: Beat, now: float) -> None:
        if not self._is_current(sender, message.term):
            return
        if self._following is None or self._following.term != message.term:
            self._send(sender, NotFollowing(message.term))
            return
        self._hear(sender, message.term, now)
        self._acknowledge_uncommitted(self._following)
        if self._has_promised(message.term):
            self._send(sender, Support(message.term, message.sent_at))

    def _acknowledge_uncommitted(self, following: _Following) -> None:
        """Have the leader learn again which frames of this member are not known to be committed.

        What a member says before a restart may arrive after it, and claim more.
        """
        for name, log in self.logs.items():
            if self._durable_match(following, name) > log.committed:
                following.acknowledged.pop(name, None)

    def _has_promised(self, term: int) -> bool:
        """Whether a crash leaves the promise, so that this voter waits after it."""
        return self.saved.promised >= term

    def _hear(self, leader: Member, term: int, now: float) -> None:
        """Note that a leader is there, and campaign no more against it."""
        self._campaign = None
        self.leader = leader
        self._heard_at = now
        self._heard_term = term

    def _is_current(self, sender: Member, term: int) -> bool:
        """Whether a term is not below what was promised; if it is, the sender learns that."""
        if term >= self.state.promised:
            return True
        self._send(sender, Refused(self.state.promised))
        return False

    def _advance_follower(self) -> None:
        """Join the term, and acknowledge, as soon as what has to be durable is."""
        following = self._following
        # If a crash undid the promise, an earlier leader could cut what is acknowledged here.
        if following is None or self.saved.promised < following.term:
            return
        if self._may_join(following):
            self._save(joined=following.term, suspect={})
        has_joined = self._has_joined(following)
        is_complete = following.is_asked or (has_joined and not following.has_told_joined)
        # The answer says which set it has, and that its logs have nothing that the leader lacks.
        # A crash must undo neither.
        if self.saved.set != self.state.set or not all(
            log.is_cut_durable for log in self.logs.values()
        ):
            return
        reached = {
            name: (self._durable_match(following, name), self._log(name).committed)
            for name in following.matches
        }
        if not is_complete:
            sent = following.acknowledged
            reached = {name: now for name, now in reached.items() if sent.get(name) != now}
        if not is_complete and not reached:
            return
        following.acknowledged.update(reached)
        following.is_asked, following.has_told_joined = False, has_joined
        message = Acknowledged(
            following.term,
            self._set().version,
            has_joined,
            is_complete,
            matches={name: match for name, (match, _) in reached.items()},
            committed={name: committed for name, (_, committed) in reached.items()},
        )
        self._send(following.leader, message)

    def _may_join(self, following: _Following) -> bool:
        """Whether all that the leader began with is durable, and nothing else is there."""
        if self.state.joined == following.term and not self.state.suspect:
            return False
        needs = dict(following.starts)
        if self.state.joined == following.term:
            # It was damaged after it had joined: it is sound again with what it may have lost.
            for name, end in self.state.suspect.items():
                needs[name] = max(needs.get(name, 0), end)
        is_all_there = all(
            self._durable_match(following, name) >= end for name, end in needs.items()
        )
        return is_all_there and all(log.is_cut_durable for log in self.logs.values())

    def _has_joined(self, following: _Following) -> bool:
        return self.saved.joined == following.term

    def _durable_match(self, following: _Following, name: str) -> int:
        """What is acknowledged of a log."""
        return min(following.matches.get(name, 0), self._log(name).durable)

    # --- state and logs ------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._advance_vote()
        self._advance_campaign(now)
        self._advance_leader(now)
        self._advance_follower()

    def _leave_term(self) -> None:
        """Lead, follow and campaign no more."""
        if self.leadership is not None:
            self.leader = None
        self.leadership = None
        self._campaign = None
        self._following = None

    def _term(self) -> int:
        assert self.leadership is not None, "frames are appended by leaders alone"
        return self.leadership.term

    def _set(self) -> ReplicaSet:
        assert self.state.set is not None
        return self.state.set

    def _is_voter(self) -> bool:
        return self.state.set is not None and self.me in self.state.set.voters

    def _has_newer_set(self, other: ReplicaSet) -> bool:
        return self.state.set is not None and self.state.set.version > other.version

    def _is_newer(self, other: ReplicaSet) -> bool:
        return self.state.set is None or other.version > self.state.set.version

    def _save(self, **changes: object) -> None:
        new = replace(self.state, **changes)  # type: ignore[arg-type]
        if new != self.state:
            self.state = new
            self._effects.append(SaveReplicaState(new))

    def _send(self, to: Member, message: Message) -> None:
        self._effects.append(SendMessage(to, message))

    def _log(self, name: str) -> Log:
        return self.logs.setdefault(name, Log())

    def _truncate(self, name: str, end: int) -> None:
        log = self._log(name)
        if end >= log.end:
            return
        assert end >= log.committed, f"truncates {name} to {end}, committed is {log.committed}"
        log.epochs = log.epochs.cut(end)
        log.durable = min(log.durable, end)
        log.is_cut_durable = False
        self._effects.append(TruncateLog(name, end))

    def _reset(self, name: str, start: int, now: float) -> None:
        """Begin a log anew behind what its leader has dropped; all that it has is dropped, too."""
        log = self._log(name)
        log.epochs = Epochs((), start, start)
        log.durable = log.committed = start
        log.is_cut_durable = False
        log.unsynced_since = now
        self._effects.append(ResetLog(name, start))

    def _extend(self, name: str, end: int, now: float) -> None:
        """Take in frames of this leader, which its writer has."""
        log = self._log(name)
        if end > log.end:
            log.epochs = log.epochs.extend(self._term(), end)
            log.note_written(now)

    def _append_frames(self, name: str, part: Epochs, now: float) -> None:
        log = self._log(name)
        after = log.end
        log.epochs = log.epochs.append(part)
        if log.end > after:
            log.note_written(now)
            self._effects.append(WriteFrames(name, after))

    def _set_committed(self, name: str, committed: int) -> None:
        log = self._log(name)
        if committed > log.committed:
            log.committed = committed
            self._effects.append(PublishFrames(name, committed))
