"""Membership: a failure detector and the states of all nodes, by gossip with bounded fan-out.

Theory of operation. Every `heartbeat_interval_s` a node exchanges with `fanout` other nodes, the
next of a shuffled ring, or with all in a cluster of at most `DIRECT_MAX` others. Both send their
digest and what the other lacks (`galileo.dht.node_states`). A digest has a count of beats for each
node, which only that node increases. A node of which no new beat arrived for the timeout is dead; a
new beat revives it. A beat may come through third nodes: what one node cannot reach another one
may, so a lost message or a cut between two nodes is no death. The work of a node does not depend on
the number of nodes, but for sixteen bytes and the name of each in a digest.

The timeout is `failure_timeout_s` where all nodes exchange directly. There a third node passes a
beat on up to an interval later than it received it, so such a beat counts from an interval ago:
relays do not prolong the life of a killed node. Else a beat takes about log2(nodes) exchanges to
reach everybody, and the timeout is longer by the time of these.

A node that has just started cannot know how old a beat is that others pass on. So each digest names
the nodes that are dead to its sender. A peer is dead here, too, if it is dead to another node at
the last beat that is known here, and exchanges of this node with it fail.

Only beats count: TCP notices a stopped process after a minute, if ever. A node checks itself first.
If its own ticks are more than `lag_max_s` apart (it was stopped, swapped out, or its loop was
busy), beats of that time may still be in its sockets, so all deadlines are extended; else every
peer would be declared dead.

A node that is dead, or with which exchanges fail, is no target of the ring; one of them is tried
in each interval besides, so that both sides of a healed cut find each other. `unreachable` has
those, too, that others hear and this node does not: calls to them would only wait.

Membership is a suspicion: two nodes may disagree for long. Correctness never depends on it; see
`galileo.ccq.machine`.

Invariant: a peer is dead exactly when `PeerDied` was its last effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

import numpy as np

from galileo.dht.node_states import Digest, Mask, NodeStates, StateDelta, StateEntry
from galileo.hashing import text64

DIRECT_MAX = 4
"""Peers up to which a round exchanges with all of them."""
DELTAS_BYTES_MAX = 1 << 20
"""Size of the entries in one message; the last one may exceed it."""


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    """Times of membership, and exchanges of a round.

    Attributes:
        heartbeat_interval_s: between two rounds of exchanges.
        failure_timeout_s: without a new beat after which a peer is dead, if all exchange directly.
        lag_max_s: between two ticks; a longer pause extends all deadlines.
        fanout: exchanges of a round.
    """

    heartbeat_interval_s: float = 0.5
    failure_timeout_s: float = 2.0
    lag_max_s: float = 1.0
    fanout: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_s < self.failure_timeout_s:
            raise ValueError(
                "expected 0 < heartbeat_interval_s < failure_timeout_s, "
                f"got {self.heartbeat_interval_s} and {self.failure_timeout_s}"
            )

    def timeout_s(self, peers: int) -> float:
        """The time without a new beat after which one of so many peers is dead."""
        if peers <= DIRECT_MAX:
            return self.failure_timeout_s
        spread_s = self.heartbeat_interval_s / self.fanout * log2(peers + 1)
        return self.failure_timeout_s + spread_s


@dataclass(frozen=True, slots=True, eq=False)
class Gossip:
    """One direction of an exchange.

    Attributes:
        digest: of the sender; None where entries follow that the peer was seen to lack.
        deltas: entries that the receiver may lack.
        dead: nodes that are dead to the sender at the beats of the digest.
    """

    digest: Digest | None
    deltas: tuple[StateDelta, ...] = ()
    dead: tuple[str, ...] = ()


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MembershipTicked:
    """Time has passed; due at `Membership.due_at` at the latest."""


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """The other nodes of the cluster are these from now on; new ones count as alive."""

    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GossipArrived:
    """A peer began an exchange; `AnswerGossip` is the reply."""

    node: str
    gossip: Gossip


@dataclass(frozen=True, slots=True)
class ReplyArrived:
    """A peer replied to an exchange of this node; `is_last`: to its `SendGossip`."""

    node: str
    gossip: Gossip
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """A peer did not reply."""

    node: str


MembershipEvent = MembershipTicked | PeersChanged | GossipArrived | ReplyArrived | ExchangeFailed


# --- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Begin an exchange, with the gossip of `Membership.heartbeat`."""

    to: str


@dataclass(frozen=True, slots=True)
class AnswerGossip:
    """Reply to the exchange that has just arrived."""

    gossip: Gossip


@dataclass(frozen=True, slots=True)
class SendGossip:
    """Send what the reply showed to be missing; the reply has the digest after that."""

    to: str
    gossip: Gossip


@dataclass(frozen=True, slots=True)
class NodesHeard:
    """New beats of these nodes have arrived, directly or through others."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Entries of a node that are new here; in another run than before, they replace all others."""

    node: str
    run: int
    entries: tuple[StateEntry, ...]


@dataclass(frozen=True, slots=True)
class PeerDied:
    node: str


@dataclass(frozen=True, slots=True)
class PeerRevived:
    node: str


MembershipEffect = (
    SendHeartbeat | AnswerGossip | SendGossip | NodesHeard | StateChanged | PeerDied | PeerRevived
)


_ALL = 1 << 62
"""A version past all others, of a peer of which it is not known what it lacks."""


# --- the machine -------------------------------------------------------------------------------


class Membership:
    """The failure detector of one node, and what it knows of the states of all nodes.

    Peers count as alive at the start, so that a node that starts first does not declare all others
    dead.

    Args:
        me: this node.
        peers: the other nodes.
        run: of this process, above 0; see `NodeStates`.
        options: times and bounds.

    Attributes:
        states: of all nodes; this node writes its own.
    """

    def __init__(
        self,
        me: str,
        peers: Iterable[str],
        *,
        run: int = 1,
        options: MembershipOptions | None = None,
    ) -> None:
        self.me = me
        self.options = options or MembershipOptions()
        self.states = NodeStates(me, peers, run=run)
        size = len(self.states.names)
        self._is_alive = np.ones(size, dtype=np.bool_)
        self._deadlines = np.full(size, np.inf)
        self._failing_since: dict[str, float] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        self._ring: list[str] = []
        self._rounds = 0
        self._retries = 0
        self._ticked_at: float | None = None
        self._heartbeat_at = float("-inf")

    @property
    def peers(self) -> tuple[str, ...]:
        """The other nodes, sorted."""
        return tuple(name for name in self.states.names if name != self.me)

    @property
    def alive(self) -> tuple[str, ...]:
        """The peers that count as alive, sorted."""
        return tuple(node for node in self._of(self._is_alive) if node != self.me)

    @property
    def dead(self) -> tuple[str, ...]:
        return self._of(~self._is_alive)

    @property
    def never_heard(self) -> tuple[str, ...]:
        """Peers without any beat that do not count as dead yet."""
        return self._of(self._is_alive & (self.states.runs == 0))

    @property
    def timeout_s(self) -> float:
        """The time without a new beat after which a peer is dead."""
        return self.options.timeout_s(len(self.states.names) - 1)

    @property
    def due_at(self) -> float:
        """The time of the next round, or of the next death if that is earlier."""
        first = self._deadlines[self._is_alive].min(initial=np.inf)
        return min(self._heartbeat_at + self.options.heartbeat_interval_s, float(first))

    def is_unreachable(self, node: str, now: float) -> bool:
        """Whether a node is dead, or exchanges of this node with it have failed for as long."""
        row = self.states.index(node)
        if row is not None and not self._is_alive[row]:
            return True
        return now - self._failing_since.get(node, now) >= self.options.failure_timeout_s

    def heartbeat(self, to: str) -> Gossip:
        """What begins an exchange: the digest, and own entries that the peer is known to lack."""
        digest, own = self.states.digest(), self.states.run
        run, version = self._acknowledged.get(to, (own, _ALL))
        base, bytes_max = version if run == own else 0, DELTAS_BYTES_MAX
        delta = self.states.delta(self.me, base=base, bytes_max=bytes_max)
        return Gossip(digest, (delta,) if delta.entries else (), self.dead)

    def step(self, event: MembershipEvent, now: float) -> list[MembershipEffect]:
        if isinstance(event, MembershipTicked):
            return self._on_tick(now)
        if isinstance(event, PeersChanged):
            return self._on_peers(event, now)
        if self.states.index(event.node) is None or event.node == self.me:
            return []
        if isinstance(event, ExchangeFailed):
            self._failing_since.setdefault(event.node, now)
            return []
        self._failing_since.pop(event.node, None)
        effects = self._take(event.gossip, event.node, now)
        if event.gossip.digest is not None:
            effects += self._reconcile(event, event.gossip.digest)
        elif isinstance(event, GossipArrived):
            effects.append(AnswerGossip(Gossip(self.states.digest(), dead=self.dead)))
        return effects

    def check(self) -> None:
        self.states.check()
        assert self.me not in self.dead, "a node is no peer of itself"
        if self._ticked_at is not None:
            late = self._is_alive & (self._deadlines <= self._ticked_at)
            assert not late.any(), f"{self._of(late)} overdue but alive"

    # --- exchanges -------------------------------------------------------------------------------

    def _take(self, gossip: Gossip, sender: str, now: float) -> list[MembershipEffect]:
        effects: list[MembershipEffect] = []
        signs = np.zeros(len(self._is_alive), dtype=np.bool_)
        if gossip.digest is not None:
            signs = self.states.merge(gossip.digest)
            # A beat at which a peer is dead to the sender is no sign of life.
            silent = self._rows_of(gossip.dead) & ~self.states.is_past(gossip.digest)
            signs &= ~silent
            self._extend_deadlines(signs, sender, now)
            effects += [PeerRevived(node) for node in self._of(signs & ~self._is_alive)]
            self._is_alive |= signs
            effects += self._bury(silent & self._rows_of(self._failing_since))
        for delta in gossip.deltas:
            entries = self.states.apply(delta)
            if entries:
                effects.append(StateChanged(delta.node, delta.run, entries))
        return [*effects, NodesHeard(self._of(signs))] if signs.any() else effects

    def _extend_deadlines(self, signs: Mask, sender: str, now: float) -> None:
        """A beat of the sender counts from now, a relayed one from when it was made at latest."""
        is_direct = len(self.states.names) - 1 <= DIRECT_MAX
        relay_s = self.options.heartbeat_interval_s if is_direct else 0.0
        deadlines = np.full(len(signs), now + self.timeout_s - relay_s)
        row = self.states.index(sender)
        assert row is not None, "gossip of unknown nodes is dropped"
        deadlines[row] += relay_s
        self._deadlines[signs] = np.maximum(self._deadlines, deadlines)[signs]

    def _reconcile(
        self, event: GossipArrived | ReplyArrived, digest: Digest
    ) -> list[MembershipEffect]:
        """Answers with what the peer lacks; records what it has of this node."""
        if self.me in digest.names:
            row = digest.names.index(self.me)
            self._acknowledged[event.node] = int(digest.runs[row]), int(digest.versions[row])
        missing = tuple(self.states.deltas(digest, bytes_max=DELTAS_BYTES_MAX))
        if isinstance(event, GossipArrived):
            return [AnswerGossip(Gossip(self.states.digest(), missing, self.dead))]
        is_over = event.is_last or not missing
        return [] if is_over else [SendGossip(event.node, Gossip(None, missing))]

    # --- time ------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[MembershipEffect]:
        self._discount_own_lag(now)
        self._ticked_at = now
        return [*self._heartbeats(now), *self._deaths(now)]

    def _on_peers(self, event: PeersChanged, now: float) -> list[MembershipEffect]:
        before = dict(
            zip(self.states.names, zip(self._is_alive, self._deadlines, strict=True), strict=True)
        )
        self.states.set_nodes(event.peers)
        fresh = True, now + self.timeout_s
        rows = [before.get(name, fresh) for name in self.states.names]
        self._is_alive = np.array([is_alive for is_alive, _ in rows], dtype=np.bool_)
        self._deadlines = np.array([deadline for _, deadline in rows], dtype=np.float64)
        for known in (self._failing_since, self._acknowledged):
            for node in known.keys() - set(self.states.names):
                del known[node]
        return []

    def _discount_own_lag(self, now: float) -> None:
        first = self._ticked_at is None
        if not first and now - (self._ticked_at or 0.0) <= self.options.lag_max_s:
            return
        is_peer = np.array([name != self.me for name in self.states.names])
        self._deadlines[self._is_alive & is_peer] = now + self.timeout_s

    def _heartbeats(self, now: float) -> list[MembershipEffect]:
        if now < self._heartbeat_at + self.options.heartbeat_interval_s:
            return []
        self._heartbeat_at = now
        return [SendHeartbeat(node) for node in self._targets()]

    def _targets(self) -> list[str]:
        """The peers of this round: the next of the ring, and one that is away."""
        peers = len(self.states.names) - 1
        if peers <= DIRECT_MAX:
            return list(self.peers)
        away = {*self.dead, *self._failing_since}
        targets: list[str] = []
        while len(targets) < min(self.options.fanout, peers - len(away)):
            node = self._next_of_ring()
            if node not in away and node not in targets and self.states.index(node) is not None:
                targets.append(node)
        self._retries += 1
        return [*targets, sorted(away)[self._retries % len(away)]] if away else targets

    def _next_of_ring(self) -> str:
        """The next peer in an order that a hash shuffles anew for each round of the ring."""
        if not self._ring:
            self._rounds += 1
            self._ring = sorted(self.peers, key=lambda node: text64(self.me, self._rounds, node))
        return self._ring.pop()

    def _deaths(self, now: float) -> list[MembershipEffect]:
        return self._bury(self._deadlines <= now)

    def _bury(self, mask: Mask) -> list[MembershipEffect]:
        """Declares the peers of a mask dead, except those that are dead already."""
        died = self._of(self._is_alive & mask)
        self._is_alive &= ~mask
        return [PeerDied(node) for node in died]

    def _rows_of(self, nodes: Iterable[str]) -> Mask:
        """The mask of some nodes, without those that the cluster does not have."""
        mask = np.zeros(len(self._is_alive), dtype=np.bool_)
        mask[[row for node in nodes if (row := self.states.index(node)) is not None]] = True
        return mask

    def _of(self, mask: Mask) -> tuple[str, ...]:
        return tuple(map(self.states.names.__getitem__, mask.nonzero()[0].tolist()))
