"""Known-wrong replicas and drivers; the judge of the replicated worlds must convict each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from galileo.replication.election import choose_logs, rank
from galileo.replication.machine import (
    Replica,
    _Campaign,
    _Following,
    _Leadership,
    _Peer,
)
from galileo.replication.messages import Append, Vote
from galileo.replication.values import Epochs, Log, Member, ReplicaSet
from simulator.replica_cluster import ReplicaConduct


class _AcknowledgesUnsynced(Replica):
    """Acknowledges frames that are still being written."""

    def _durable_match(self, following: _Following, name: str) -> int:
        return following.matches.get(name, 0)


class _CountsOneLess(Replica):
    """Takes one voter less than a majority for commits."""

    def _majority(self) -> int:
        return max(1, super()._majority() - 1)


class _ElectsWithOneLess(Replica):
    """Takes one vote less than a majority."""

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        voters = campaign.voters
        if len(campaign.votes) < max(1, voters.majority - 1):
            return None
        return choose_logs(
            campaign.votes, replace(voters, voters=frozenset(campaign.votes)), me=self.me
        )


class _TakesOwnLog(Replica):
    """Leads with its own logs, whichever member has more."""

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        chosen = super()._choose_logs(campaign)
        return chosen and dict.fromkeys(chosen, self.me)


class _TakesLongest(Replica):
    """Takes the longest log, whatever term its member has joined."""

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        return _chosen_as(self, campaign, lambda vote: replace(vote, joined=0))


class _TakesLastEpoch(Replica):
    """Takes the log whose last frame has the highest epoch, as Raft without empty frames."""

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        chosen = super()._choose_logs(campaign)
        if chosen is None:
            return None

        def last(member: Member, name: str) -> tuple[int, int]:
            log = campaign.votes[member].logs.get(name, Epochs())
            return log.at(log.end), log.end

        return {name: max(campaign.votes, key=lambda m: last(m, name)) for name in chosen}


class _IgnoresSuspects(Replica):
    """Takes a vote of a damaged member for a proof."""

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        return _chosen_as(self, campaign, lambda vote: replace(vote, suspect={}))


class _TakesDamaged(Replica):
    """Takes the log of the latest joined term, though all members that joined it are damaged."""

    def _choose_logs(self, campaign: _Campaign) -> dict[str, Member] | None:
        chosen, votes = super()._choose_logs(campaign), campaign.votes
        return chosen and {
            name: max(votes, key=lambda member: rank(votes[member], name)) for name in chosen
        }


class _IgnoresPromises(Replica):
    """Votes in terms at or below its promise, and follows their leaders."""

    def _is_above(self, term: int) -> bool:
        return True

    def _is_current(self, sender: Member, term: int) -> bool:
        return True

    def check(self) -> None:
        pass


class _IgnoresPredecessor(Replica):
    """Appends whatever it has before, and does not cut what the leader lacks."""

    def _agreement(self, log: Log, leaders: Epochs, term: int) -> int:
        return log.end

    def _agrees(self, log: Log, message: Append, known: int) -> bool:
        return message.after <= log.end


class _CutsToOldStart(Replica):
    """Cuts frames of the leader's own epoch that an older message does not have."""

    def _agreement(self, log: Log, leaders: Epochs, term: int) -> int:
        return log.epochs.common(leaders, committed=log.committed)


class _SendsOldStart(_CutsToOldStart):
    """Tells members the logs as they were at the start of the term."""

    def _start_term(self, lead: _Leadership, member: Member, peer: _Peer, now: float) -> None:
        ends = {name: log.epochs for name, log in self.logs.items()}
        for name, log in self.logs.items():
            log.epochs = log.epochs.cut(max(lead.starts.get(name, 0), 0))
        super()._start_term(lead, member, peer, now)
        for name, epochs in ends.items():
            self.logs[name].epochs = epochs


class _JoinsEarly(Replica):
    """Joins a term without all that its leader began with."""

    def _may_join(self, following: _Following) -> bool:
        return self.state.joined != following.term


class _JoinsUnsaved(Replica):
    """Says that it has joined before that is durable."""

    def _has_joined(self, following: _Following) -> bool:
        return self.state.joined == following.term


class _CountsUnjoined(Replica):
    """Counts frames of members that have not joined the term."""

    def _counted(self, lead: _Leadership) -> set[Member]:
        answered = {member for member, peer in lead.peers.items() if peer.matches is not None}
        return (answered | {self.me}) & self._set().voters


class _CountsUninstalled(Replica):
    """Counts frames of members that have not installed the set."""

    def _counts(self, peer: _Peer, version: tuple[int, int]) -> bool:
        return peer.has_joined


class _CountsLearners(Replica):
    """Counts learners for commits."""

    def _counted(self, lead: _Leadership) -> set[Member]:
        joined = {member for member, peer in lead.peers.items() if peer.has_joined}
        return joined | {self.me}


class _AnnouncesAppended(Replica):
    """Tells members that all frames are committed."""

    def _announceable(self, log: Log) -> int:
        return log.end


class _PublishesAppended(Replica):
    """Publishes frames as soon as it has them."""

    def _known_committed(self, message: Append, match: int) -> int:
        return match


class _VotesBeforeDrain(Replica):
    """Tells its logs while frames are being written."""

    def _is_drained(self) -> bool:
        return True


class _TakesOlderSets(Replica):
    """Votes for candidates with an older set."""

    def _has_newer_set(self, other: ReplicaSet) -> bool:
        return False


class _ChangesUninstalled(Replica):
    """Changes the set before a majority has installed the last one."""

    def _is_settled(self, lead: _Leadership) -> bool:
        peers, version = lead.peers, self._set().version
        lead.peers = {one: replace(peer, installed=version) for one, peer in peers.items()}
        is_settled = super()._is_settled(lead)
        lead.peers = peers
        return is_settled

    def _installed(self, lead: _Leadership) -> set[Member]:
        return {*lead.peers, self.me}


class _ChangesUncopied(Replica):
    """Changes the set before a majority has what was committed before the last one."""

    def _is_settled(self, lead: _Leadership) -> bool:
        lead.floor = {}
        return super()._is_settled(lead)


class _ReplacesByUnheard(Replica):
    """Removes a voter for one that has not answered since it became a voter."""

    def _present(self, lead: _Leadership) -> set[Member]:
        return {member for member, peer in lead.peers.items() if peer.has_joined} | {self.me}


class _SwapsVoters(Replica):
    """Changes all voters at once."""

    def _next_set(
        self, lead: _Leadership, current: ReplicaSet, alive: AbstractSet[Member], now: float
    ) -> ReplicaSet | None:
        assert self.wanted is not None
        voters = self.wanted | {self.me}
        if current.voters == voters:
            return None
        return replace(current, number=current.number + 1, voters=voters, learners=frozenset())


class _DropsAtOnce(Replica):
    """Drops all members that are to go at once, before the others have what these committed."""

    def _next_set(
        self, lead: _Leadership, current: ReplicaSet, alive: set[Member], now: float
    ) -> ReplicaSet | None:
        assert self.wanted is not None
        staying = current.voters & (self.wanted | {self.me})
        if staying != current.voters:
            return replace(current, number=current.number + 1, voters=staying)
        return super()._next_set(lead, current, alive, now)


class _DropsItself(Replica):
    """Drops itself when it is to go, and leads on."""

    def _next_set(
        self, lead: _Leadership, current: ReplicaSet, alive: set[Member], now: float
    ) -> ReplicaSet | None:
        assert self.wanted is not None
        if self.me in current.voters - self.wanted and len(current.voters) > 1:
            voters = current.voters - {self.me}
            return replace(current, number=current.number + 1, voters=voters)
        return super()._next_set(lead, current, alive, now)


class _PromotesAtOnce(Replica):
    """Makes learners voters before they have anything, and drops voters for them."""

    def _has_caught_up(self, lead: _Leadership, member: Member) -> bool:
        return True


class _LeasesFromReply(Replica):
    """Counts its lease from the reply to a beat."""

    def _support_until(self, peer: _Peer) -> float:
        return peer.heard_at + self.options.lease_s


class _TrustsLateAcknowledgements(Replica):
    """Does not repeat to its leader which commits it lacks."""

    def _acknowledge_uncommitted(self, following: _Following) -> None:
        pass


class _IgnoresSupport(Replica):
    """Votes although it supports a leader."""

    def _is_free(self, resigned: int, now: float) -> bool:
        return self.leadership is None


class _SupportsUnsaved(Replica):
    """Supports a leader before the promise is durable."""

    def _has_promised(self, term: int) -> bool:
        return True


class _AloneWithOthers(Replica):
    """Has its writer commit alone in any set."""

    @property
    def is_alone(self) -> bool:
        return self.is_open


class _AloneWithLearners(Replica):
    """Has its writer commit alone while members copy what it has."""

    @property
    def is_alone(self) -> bool:
        current = self.state.set
        is_only_voter = current is not None and current.voters == {self.me}
        return self.is_open and self.saved == self.state and is_only_voter


class _CampaignsOn(Replica):
    """Goes on with its campaign when it hears a leader, and supports it."""

    def _hear(self, leader: Member, term: int, now: float) -> None:
        campaign = self._campaign
        super()._hear(leader, term, now)
        self._campaign = campaign


def _chosen_as(
    replica: Replica, campaign: _Campaign, change: Callable[[Vote], Vote]
) -> dict[str, Member] | None:
    votes: dict[Member, Vote] = {m: change(vote) for m, vote in campaign.votes.items()}
    return choose_logs(votes, campaign.voters, me=replica.me)


REPLICA_MUTANTS: dict[str, tuple[type[Replica], ReplicaConduct]] = {
    "acknowledges_unsynced": (_AcknowledgesUnsynced, ReplicaConduct()),
    "counts_one_less": (_CountsOneLess, ReplicaConduct()),
    "elects_with_one_less": (_ElectsWithOneLess, ReplicaConduct()),
    "takes_own_log": (_TakesOwnLog, ReplicaConduct()),
    "takes_longest": (_TakesLongest, ReplicaConduct()),
    "takes_last_epoch": (_TakesLastEpoch, ReplicaConduct()),
    "ignores_suspects": (_IgnoresSuspects, ReplicaConduct()),
    "takes_damaged": (_TakesDamaged, ReplicaConduct()),
    "ignores_promises": (_IgnoresPromises, ReplicaConduct()),
    "ignores_predecessor": (_IgnoresPredecessor, ReplicaConduct()),
    "cuts_to_old_start": (_CutsToOldStart, ReplicaConduct()),
    "sends_old_start": (_SendsOldStart, ReplicaConduct()),
    "joins_early": (_JoinsEarly, ReplicaConduct()),
    "joins_unsaved": (_JoinsUnsaved, ReplicaConduct()),
    "counts_unjoined": (_CountsUnjoined, ReplicaConduct()),
    "counts_uninstalled": (_CountsUninstalled, ReplicaConduct()),
    "counts_learners": (_CountsLearners, ReplicaConduct()),
    "announces_appended": (_AnnouncesAppended, ReplicaConduct()),
    "publishes_appended": (_PublishesAppended, ReplicaConduct()),
    "votes_before_drain": (_VotesBeforeDrain, ReplicaConduct()),
    "takes_older_sets": (_TakesOlderSets, ReplicaConduct()),
    "changes_uninstalled": (_ChangesUninstalled, ReplicaConduct()),
    "changes_uncopied": (_ChangesUncopied, ReplicaConduct()),
    "replaces_by_unheard": (_ReplacesByUnheard, ReplicaConduct()),
    "swaps_voters": (_SwapsVoters, ReplicaConduct()),
    "drops_at_once": (_DropsAtOnce, ReplicaConduct()),
    "drops_itself": (_DropsItself, ReplicaConduct()),
    "alone_with_learners": (_AloneWithLearners, ReplicaConduct()),
    "promotes_at_once": (_PromotesAtOnce, ReplicaConduct()),
    "leases_from_reply": (_LeasesFromReply, ReplicaConduct()),
    "ignores_support": (_IgnoresSupport, ReplicaConduct()),
    "supports_unsaved": (_SupportsUnsaved, ReplicaConduct()),
    "trusts_late_acknowledgements": (_TrustsLateAcknowledgements, ReplicaConduct()),
    "campaigns_on": (_CampaignsOn, ReplicaConduct()),
    "acknowledges_appended": (Replica, ReplicaConduct(acknowledges_appended=True)),
    "acknowledges_known": (Replica, ReplicaConduct(acknowledges_known=True)),
    "stores_batches_again": (Replica, ReplicaConduct(stores_batches_again=True)),
    "reports_sync_early": (Replica, ReplicaConduct(reports_sync_early=True)),
    "reports_save_early": (Replica, ReplicaConduct(reports_save_early=True)),
    "keeps_identity": (Replica, ReplicaConduct(keeps_identity=True)),
    "takes_rot_for_torn": (Replica, ReplicaConduct(takes_rot_for_torn=True)),
    "forgets_support": (Replica, ReplicaConduct(forgets_support=True)),
    "alone_with_others": (_AloneWithOthers, ReplicaConduct()),
    "tells_nothing_written_alone": (Replica, ReplicaConduct(tells_nothing_written_alone=True)),
}
"""By name: the machine, and the driver's mistakes."""
