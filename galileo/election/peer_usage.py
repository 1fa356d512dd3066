"""The usage statistics of other nodes, as elections of one node share them.

A node measures its usage once a second, so a second poll within that time has nearly the same
answer. What a node has answered to a poll, or sent when it accepted a CCQ, therefore serves all
elections for `ttl_s`.
CCQs that this node has offered to it and that it has not accepted yet are added. While an answer is
awaited, no second poll is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from galileo.election.messages import PollAnswered, UsageStatistics


@dataclass(slots=True)
class _Peer:
    """The last answer of a node; `offered` are the CCQs whose offer it has not answered."""

    usage: UsageStatistics = field(default_factory=UsageStatistics)
    round_trip_s: float = 0.0
    answered_at: float = -inf
    polled_at: float = -inf
    offered: int = 0


class PeerUsage:
    """What the peers of one node have answered to polls.

    Args:
        ttl_s: how long an answer serves.
        poll_timeout_s: after it an unanswered poll is repeated.
    """

    def __init__(self, *, ttl_s: float, poll_timeout_s: float) -> None:
        self._ttl_s = ttl_s
        self._poll_timeout_s = poll_timeout_s
        self._peers: dict[str, _Peer] = {}

    def answer(self, node: str, now: float) -> PollAnswered | None:
        """The answer of a node, if it is recent."""
        peer = self._peers.get(node)
        if peer is None or now >= peer.answered_at + self._ttl_s:
            return None
        return PollAnswered(node, peer.usage, peer.round_trip_s)

    def begin_poll(self, node: str, now: float) -> bool:
        """Whether a poll has to be sent; false while an earlier one may be answered."""
        peer = self._peers.setdefault(node, _Peer())
        is_awaited = peer.polled_at > peer.answered_at
        if is_awaited and now < peer.polled_at + self._poll_timeout_s:
            return False
        peer.polled_at = now
        return True

    def record_answer(self, node: str, usage: UsageStatistics, now: float) -> PollAnswered:
        """Note the answer to a poll, or what a node said without one."""
        peer = self._peers.setdefault(node, _Peer())
        if peer.polled_at > peer.answered_at:
            peer.round_trip_s = now - peer.polled_at
        peer.usage, peer.answered_at = usage, now
        return PollAnswered(node, usage, peer.round_trip_s)

    def record_offer(self, node: str, count: int) -> None:
        """Count CCQs that this node has offered to a peer."""
        self._peers.setdefault(node, _Peer()).offered += count

    def record_accepted(self, node: str, count: int) -> None:
        """Note that a node has accepted offers; its usage has come before."""
        peer = self._peers.get(node)
        if peer is not None:
            peer.offered = max(0, peer.offered - count)

    def forget(self, node: str) -> None:
        """Poll a node again: it has refused an offer, or has not answered one."""
        self._peers.pop(node, None)

    def ccq_count(self, node: str) -> int:
        """CCQs that a peer coordinated when it answered last, and those it was offered."""
        peer = self._peers.get(node)
        return peer.usage.ccq_count + peer.offered if peer is not None else 0
