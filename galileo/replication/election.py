"""Which member's log a new leader takes, for each log of a partition.

Members that joined the same term hold prefixes of one leader's log. Whatever was committed is on a
majority of members that joined that term or a later one, so among the votes of a majority the
longest log of the latest joined term has it (Viewstamped Replication Revisited, 4.2). The choice is
made for each log: no member needs to be the best in all of them.

Damage breaks that argument: a member may have acknowledged frames that it does not have any more.
It says so (`suspect`), and its vote is no proof that they were not committed. Frames count as
uncommitted only after so many members deny them that no majority can have had them (Alagappan et
al., "Protocol-Aware Recovery for Consensus-Based Storage", 2018). Where all that joined the latest
term are damaged, their frames may include some of earlier terms, which members of those terms have:
they are passed over as if they had not voted.
"""

from __future__ import annotations

from collections.abc import Mapping

from galileo.replication.messages import Vote
from galileo.replication.values import Epochs, Member, ReplicaSet

_EMPTY = Epochs()


def choose_logs(
    votes: Mapping[Member, Vote], voters: ReplicaSet, *, me: Member
) -> dict[str, Member] | None:
    """The member from which each log is taken, `me` where no other has more.

    Returns:
        None while more votes are needed.
    """
    if not voters.is_majority(votes):
        return None
    chosen = {}
    for log in sorted({name for vote in votes.values() for name in (*vote.logs, *vote.suspect)}):
        source = _choose_log(votes, voters, log=log, me=me)
        if source is None:
            return None
        chosen[log] = source
    return chosen


def _choose_log(
    votes: Mapping[Member, Vote], voters: ReplicaSet, *, log: str, me: Member
) -> Member | None:
    if not voters.is_majority(votes):
        return None
    best = max(votes, key=lambda member: (*rank(votes[member], log), member == me, member))
    joined, _ = rank(votes[best], log)
    if all(_is_damaged(vote, log) for vote in votes.values() if vote.joined == joined):
        others = {member: vote for member, vote in votes.items() if vote.joined < joined}
        return _choose_log(others, voters, log=log, me=me)
    return best if _is_certain(votes, voters, log=log, best=votes[best]) else None


def _is_damaged(vote: Vote, log: str) -> bool:
    return vote.suspect.get(log, 0) > vote.logs.get(log, _EMPTY).end


def rank(vote: Vote, log: str) -> tuple[int, int]:
    return vote.joined, vote.logs.get(log, _EMPTY).end


def _is_certain(votes: Mapping[Member, Vote], voters: ReplicaSet, *, log: str, best: Vote) -> bool:
    """Whether nothing beyond the best log can have been committed."""
    joined, end = rank(best, log)
    unsure = sum(
        vote.joined == joined and vote.suspect.get(log, 0) > end for vote in votes.values()
    )
    silent = len(voters.voters - votes.keys())
    return not unsure or unsure + silent < voters.majority
