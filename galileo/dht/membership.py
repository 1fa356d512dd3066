"""Membership: a failure detector by heartbeats.

Theory of operation. A node sends a heartbeat to every peer each `heartbeat_interval_s`. A peer that
was silent for `failure_timeout_s` is dead; its next heartbeat revives it. Only heartbeats count:
TCP notices a stopped process after a minute, if ever.

A node checks itself first. If its own ticks are more than `lag_max_s` apart (it was stopped,
swapped out, or its loop was busy), heartbeats of that time may still be in its sockets, so all
deadlines are extended; else every peer would be declared dead.

Membership is a suspicion: two nodes may disagree for long. Correctness never depends on it; see
`galileo.ccq.machine`.

Per peer: `alive` or dead, the epoch of its present run, and the deadline of its next heartbeat.
Invariant: a peer is dead exactly when `PeerDied` was its last effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    heartbeat_interval_s: float = 0.5
    failure_timeout_s: float = 2.0
    lag_max_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_s < self.failure_timeout_s:
            raise ValueError(
                "expected 0 < heartbeat_interval_s < failure_timeout_s, "
                f"got {self.heartbeat_interval_s} and {self.failure_timeout_s}"
            )


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeartbeatArrived:
    """A heartbeat of `node`; `epoch` grows with every start of its process."""

    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due several times per `heartbeat_interval_s`."""


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """The other nodes of the cluster are these from now on; new ones count as alive."""

    peers: tuple[str, ...]


MembershipEvent = HeartbeatArrived | Ticked | PeersChanged


# --- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    to: str


@dataclass(frozen=True, slots=True)
class PeerDied:
    node: str


@dataclass(frozen=True, slots=True)
class PeerRevived:
    node: str


MembershipEffect = SendHeartbeat | PeerDied | PeerRevived


# --- the machine -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Peer:
    deadline: float
    epoch: int = 0
    alive: bool = True


class Membership:
    """The failure detector of one node.

    Peers count as alive at the start, so that a node that starts first does not declare all others
    dead.
    """

    def __init__(
        self, me: str, peers: Iterable[str], *, options: MembershipOptions | None = None
    ) -> None:
        self.me = me
        self.options = options or MembershipOptions()
        self._peers = {node: _Peer(deadline=float("inf")) for node in sorted(peers) if node != me}
        self._ticked_at: float | None = None
        self._heartbeat_at = float("-inf")

    @property
    def alive(self) -> tuple[str, ...]:
        """The peers that count as alive, sorted, without this node."""
        return tuple(node for node, peer in self._peers.items() if peer.alive)

    @property
    def dead(self) -> tuple[str, ...]:
        return tuple(node for node, peer in self._peers.items() if not peer.alive)

    @property
    def never_heard(self) -> tuple[str, ...]:
        """Peers that never sent a heartbeat and do not count as dead yet."""
        return tuple(n for n, peer in self._peers.items() if peer.alive and peer.epoch == 0)

    def step(self, event: MembershipEvent, now: float) -> list[MembershipEffect]:
        if isinstance(event, HeartbeatArrived):
            return self._on_heartbeat(event, now)
        if isinstance(event, PeersChanged):
            return self._on_peers(event, now)
        self._discount_own_lag(now)
        self._ticked_at = now
        return [*self._heartbeats(now), *self._deaths(now)]

    def check(self) -> None:
        assert self.me not in self._peers, "a node is no peer of itself"
        if self._ticked_at is None:
            return
        for node, peer in self._peers.items():
            assert not peer.alive or peer.deadline > self._ticked_at, f"{node} overdue but alive"

    def _on_heartbeat(self, event: HeartbeatArrived, now: float) -> list[MembershipEffect]:
        peer = self._peers.get(event.node)
        if peer is None or (peer.alive and event.epoch < peer.epoch):
            return []  # A stranger, or a late packet of an earlier life.
        revived = not peer.alive
        peer.alive, peer.epoch = True, event.epoch
        peer.deadline = now + self.options.failure_timeout_s
        return [PeerRevived(event.node)] if revived else []

    def _on_peers(self, event: PeersChanged, now: float) -> list[MembershipEffect]:
        deadline = now + self.options.failure_timeout_s
        self._peers = {
            node: self._peers.get(node) or _Peer(deadline)
            for node in sorted(event.peers)
            if node != self.me
        }
        return []

    def _discount_own_lag(self, now: float) -> None:
        first = self._ticked_at is None
        if not first and now - (self._ticked_at or 0.0) <= self.options.lag_max_s:
            return
        for peer in self._peers.values():
            if peer.alive:
                peer.deadline = now + self.options.failure_timeout_s

    def _heartbeats(self, now: float) -> list[MembershipEffect]:
        if now - self._heartbeat_at < self.options.heartbeat_interval_s:
            return []
        self._heartbeat_at = now
        return [SendHeartbeat(node) for node in self._peers]

    def _deaths(self, now: float) -> list[MembershipEffect]:
        late = [n for n, peer in self._peers.items() if peer.alive and peer.deadline <= now]
        for node in late:
            self._peers[node].alive = False
        return [PeerDied(node) for node in late]
