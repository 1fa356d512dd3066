"""Seeded worlds of membership and gossip, their judge, and mutants that the judge must convict."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from galileo.dht.membership import (
    DIRECT_MAX,
    AnswerGossip,
    ExchangeFailed,
    Gossip,
    GossipArrived,
    Membership,
    MembershipEffect,
    MembershipEvent,
    MembershipOptions,
    MembershipTicked,
    PeerDied,
    PeerRevived,
    PeersChanged,
    ReplyArrived,
    SendGossip,
    SendHeartbeat,
    StateChanged,
)
from galileo.dht.node_states import RUN_BITS, Digest, Mask, NodeStates, StateDelta, StateEntry
from galileo.rpc.gossip import GossipRequest
from galileo.rpc.peers import GOSSIP
from simulator.loop import Loop, demand
from simulator.network import Network

FAULTS_UNTIL_S = 15.0
CALM_S = 16.0
CALL_S = 1.0
"""The deadline of an exchange."""
TICK_S = 0.25
SETTLED_S = 6.0
"""After the last fault and the timeout, everything is known everywhere."""


@dataclass(frozen=True, slots=True)
class GossipOutcome:
    """The result of a run."""

    nodes: int
    trace_hash: int
    counters: Counter[str]


class GossipNode:
    """One process with a production membership; its disk keeps how often it was started."""

    def __init__(self, name: str, world: GossipWorld) -> None:
        self.name = name
        self.world = world
        self.life = 0
        self.starts = 0
        self.writes = 0
        self.values: dict[str, str] = {}
        self.seen: dict[tuple[str, str], tuple[int, int]] = {}
        self.membership: Membership | None = None
        self.is_paused = False
        self.stays_down = False
        self.has_lost_disk = False
        self.disturbed_at = 0.0
        self._inbox: list[Callable[[], None]] = []
        self._calls: dict[str, int] = {}
        self._due: set[str] = set()
        self._call = 0

    @property
    def is_up(self) -> bool:
        return self.membership is not None

    def boot(self) -> None:
        if self.is_up or self.stays_down or self.name not in self.world.members:
            return
        world = self.world
        self.life += 1
        self.starts += 1
        self.values, self.seen, self._inbox, self._calls = {}, {}, [], {}
        self._due.clear()
        self.is_paused, self.disturbed_at = False, world.loop.now
        run = self.starts << RUN_BITS | world.loop.random.getrandbits(RUN_BITS)
        peers = [name for name in world.members if name != self.name]
        self.membership = world.mutant.membership(self.name, peers, run=run, options=world.options)
        self.membership.states.__class__ = world.mutant.states
        world.loop.note(f"{self.name} boots in run {run}")
        self.write()
        self._tick(self.life)

    def crash(self, *, loses_disk: bool = False) -> None:
        self.world.loop.note(f"{self.name} crashes")
        self.membership, self.is_paused = None, False
        self.disturbed_at = self.world.loop.now
        if loses_disk:
            self.starts, self.has_lost_disk = 0, True

    def pause(self, seconds: float) -> None:
        if self.membership is not None and not self.is_paused:
            life, self.is_paused = self.life, True
            self.world.loop.note(f"{self.name} pauses")
            self.world.loop.after(seconds, lambda: self._wake(life))

    def _wake(self, life: int) -> None:
        if self.life == life and self.is_up:
            self.is_paused, self.disturbed_at = False, self.world.loop.now
            inbox, self._inbox = self._inbox, []
            for action in inbox:
                self.receive(action, life)

    def receive(self, action: Callable[[], None], life: int) -> None:
        """Do something now, after the pause, or never."""
        if self.life != life or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append(action)
        else:
            action()

    def write(self) -> None:
        """Set an entry of the own state, or empty it."""
        if self.membership is None or self.is_paused:
            return
        self.writes += 1
        key, is_emptied = f"k{self.world.loop.random.randrange(3)}", self.world.loop.chance(0.2)
        value = f"{self.life}:{self.writes}{':' if is_emptied else ''}"
        self.values[key] = value
        self.membership.states.write(key, value.encode())

    def forget(self, members: set[str]) -> None:
        """Forget what was seen of nodes that were removed."""
        self.seen = {key: at for key, at in self.seen.items() if key[0] in members}

    def feed(self, event: MembershipEvent) -> None:
        assert self.membership is not None
        effects = self.membership.step(event, self.world.loop.now)
        self.world.check(self.membership)
        sent = sum(isinstance(effect, SendHeartbeat) for effect in effects)
        self.world.judge_fan_out(self, sent)
        for effect in effects:
            self._handle(effect)

    def _handle(self, effect: MembershipEffect) -> None:
        if isinstance(effect, SendHeartbeat):
            self._exchange(effect.to)
        elif isinstance(effect, SendGossip):
            self._complete(effect)
        elif isinstance(effect, StateChanged):
            self.world.judge_entries(self, effect)
        elif isinstance(effect, PeerDied):
            self.world.judge_death(self, effect.node)
        elif isinstance(effect, PeerRevived):
            self.world.loop.note(f"{self.name} has {effect.node} back")

    def _exchange(self, to: str) -> None:
        """One exchange with each peer at a time, as of the peer messenger."""
        world, life = self.world, self.life
        if to in self._calls:
            self._due.add(to)
            return
        self._call += 1
        call = self._calls[to] = self._call
        world.loop.counters["exchanges"] += 1

        def end(event: MembershipEvent) -> None:
            if self._calls.get(to) != call:
                return
            del self._calls[to]
            if to in world.members and self.name in world.members:
                self.feed(event)
            if to in self._due and self.is_up:
                self._due.discard(to)
                self._exchange(to)

        def reply(gossip: Gossip) -> None:
            self.receive(lambda: end(ReplyArrived(to, gossip)), life)

        assert self.membership is not None
        gossip = self.membership.heartbeat(to)
        world.count(gossip)

        def deliver(peer: GossipNode) -> None:
            answer = peer.answer(self.name, gossip)
            if answer is not None:
                world.count(answer)
                world.network.send(to, self.name, lambda: reply(answer))

        self._send(to, deliver)
        failed = ExchangeFailed(to)
        world.loop.after(CALL_S, lambda: self.receive(lambda: end(failed), life))

    def _complete(self, effect: SendGossip) -> None:
        world, life = self.world, self.life

        def reply(gossip: Gossip) -> None:
            last = ReplyArrived(effect.to, gossip, is_last=True)
            if effect.to in world.members and self.name in world.members:
                self.receive(lambda: self.feed(last), life)

        def deliver(peer: GossipNode) -> None:
            answer = peer.answer(self.name, effect.gossip)
            if answer is not None:
                world.count(answer)
                world.network.send(effect.to, self.name, lambda: reply(answer))

        world.count(effect.gossip)
        self._send(effect.to, deliver)

    def answer(self, sender: str, gossip: Gossip) -> Gossip | None:
        assert self.membership is not None
        effects = self.membership.step(GossipArrived(sender, gossip), self.world.loop.now)
        self.world.check(self.membership)
        for effect in effects:
            self._handle(effect)
        return next((one.gossip for one in effects if isinstance(one, AnswerGossip)), None)

    def _send(self, to: str, deliver: Callable[[GossipNode], None]) -> None:
        peer = self.world.nodes[to]

        def arrive() -> None:
            peer.receive(lambda: deliver(peer), peer.life)

        self.world.network.send(self.name, to, arrive)

    def _tick(self, life: int) -> None:
        if self.life != life or self.membership is None:
            return
        loop = self.world.loop
        pause_s = 0.0
        if not self.is_paused:
            self.feed(MembershipTicked())
            pause_s = min(max(self.membership.due_at - loop.now, 0.0), TICK_S)
        lag_s = loop.random.uniform(0.0, self.world.lag_s)
        loop.after(
            max(pause_s, 0.001) + lag_s, lambda: self.receive(lambda: self._tick(life), life)
        )


class GossipWorld:
    """Two to twenty-four nodes that write entries, amid faults, and then in peace."""

    def __init__(
        self,
        seed: int,
        mutant: GossipMutant,
        *,
        nodes: int = 0,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.loop = loop = Loop(seed, trace=trace)
        self.network = Network(loop)
        self.mutant = mutant
        count = nodes or loop.random.choice((2, 3, 3, 4, 5, 5, 8, 8, 12, 24))
        self.options = MembershipOptions(fanout=loop.random.choice((1, 2, 2)))
        names = [f"n{number:03}" for number in range(count)]
        self.members = set(names)
        self.lag_s = loop.random.choice((0.0, 0.02, 0.2))
        self.is_judging_deaths = False
        self.nodes = {name: GossipNode(name, self) for name in names}

    @property
    def timeout_s(self) -> float:
        """The time in which a death is noticed everywhere."""
        return self.options.timeout_s(len(self.nodes) - 1) + SETTLED_S

    def play(self) -> GossipOutcome:
        loop = self.loop
        for node in self.nodes.values():
            loop.after(loop.random.uniform(0.0, 1.0), node.boot)
        loop.after(0.5, self._write)
        loop.after(2.0, self._fault)
        loop.run_until(FAULTS_UNTIL_S)
        self._heal()
        loop.run_until(loop.now + self.timeout_s)
        self._judge_settled()
        self.is_judging_deaths = True
        if sum(node.is_up for node in self.nodes.values()) > DIRECT_MAX + 1:
            self.network.loss = loop.random.choice((0.0, 0.05))
        loop.after(1.0, self._pause_one)
        loop.run_until(loop.now + CALM_S)
        self.network.loss = 0.0
        self._write_all()
        loop.run_until(loop.now + SETTLED_S)
        self._judge_settled()
        return GossipOutcome(len(self.nodes), loop.trace_hash, loop.counters)

    def count(self, gossip: Gossip) -> None:
        """Counts what goes over the wire."""

    def check(self, membership: Membership) -> None:
        """Checks the invariants after a step."""
        membership.check()

    # --- what happens ----------------------------------------------------------------------------

    def _write(self) -> None:
        self.loop.random.choice(list(self.nodes.values())).write()
        if self.loop.now < FAULTS_UNTIL_S:
            self.loop.after(self.loop.random.expovariate(5.0), self._write)

    def _write_all(self) -> None:
        for node in self.nodes.values():
            node.write()

    def _pause_one(self) -> None:
        """A process that is stopped for a while must not take the others for dead afterwards."""
        node = self.loop.random.choice(list(self.nodes.values()))
        node.pause(self.loop.random.uniform(1.2, 8.0))

    def _fault(self) -> None:
        loop = self.loop
        if loop.now > FAULTS_UNTIL_S - 1.0:
            return
        kinds = (
            "crash",
            "crash",
            "disk",
            "pause",
            "cut",
            "cut",
            "isolate",
            "loss",
            "heal",
            "leave",
        )
        kind = loop.random.choice(kinds)
        loop.counters[kind] += 1
        node = loop.random.choice(list(self.nodes.values()))
        if kind in ("crash", "disk"):
            node.crash(loses_disk=kind == "disk")
            loop.after(loop.random.uniform(0.1, 8.0), node.boot)
        elif kind == "pause":
            node.pause(loop.random.uniform(0.2, 6.0))
        elif kind == "cut" and len(self.nodes) > 1:
            for _ in range(loop.random.randint(1, 2 * len(self.nodes))):
                self.network.cut(*loop.random.sample(list(self.nodes), 2))
        elif kind == "isolate":
            self._split()
        elif kind == "loss":
            self.network.loss, self.network.repetition = loop.random.choice((0.05, 0.4)), 0.2
        elif kind == "leave" and len(self.members) > 2:
            self._leave(node)
        else:
            self.network.heal()
        loop.after(loop.random.expovariate(0.8), self._fault)

    def _split(self) -> None:
        side = set(self.loop.random.sample(list(self.nodes), len(self.nodes) // 2))
        for a in self.nodes:
            for b in self.nodes:
                if (a in side) != (b in side):
                    self.network.cut(a, b)

    def _leave(self, node: GossipNode) -> None:
        """Remove a node; it joins again, with its name, later."""
        if node.name not in self.members:
            return
        node.crash()
        self._change(self.members - {node.name})
        self.loop.after(self.loop.random.uniform(0.5, 5.0), lambda: self._join(node))

    def _join(self, node: GossipNode) -> None:
        self._change(self.members | {node.name})
        node.boot()

    def _change(self, members: set[str]) -> None:
        """Every node learns of it, each at its time."""
        self.members = members
        for node in self.nodes.values():
            self._follow(node)

    def _follow(self, node: GossipNode) -> None:
        life = node.life

        def follow() -> None:
            if node.name in self.members:
                node.forget(self.members)
                node.feed(PeersChanged(tuple(sorted(self.members - {node.name}))))

        self.loop.after(self.loop.random.uniform(0.0, 1.0), lambda: node.receive(follow, life))

    def _heal(self) -> None:
        """All is well again; a third of the worlds have dead nodes that stay dead."""
        self.network.heal()
        self.lag_s = min(self.lag_s, 0.05)
        self.loop.stragglers = 0.0
        self.members = set(self.nodes)
        names = list(self.nodes)
        count = self.loop.random.choice((0, 0, 1 + len(names) // 4))
        staying = set(self.loop.random.sample(names, min(count, len(names) - 1)))
        for node in self.nodes.values():
            node._wake(node.life)
            if node.name in staying:
                node.crash()
                node.stays_down = True
            node.boot()
            self._follow(node)

    # --- the judge -------------------------------------------------------------------------------

    def judge_fan_out(self, node: GossipNode, sent: int) -> None:
        bound = max(self.options.fanout + 1, DIRECT_MAX)
        demand(sent <= bound, f"{node.name} began {sent} exchanges in one round")

    def judge_entries(self, node: GossipNode, effect: StateChanged) -> None:
        """What is known of a key never goes back, whichever way it came.

        A life with a lost disk may begin in a lower run, until the node has outrun the last one.
        """
        for entry in effect.entries:
            life, write, *_ = entry.value.decode().split(":")
            at = int(life), int(write)
            before = node.seen.get((effect.node, entry.key), (0, 0))
            self.loop.note(f"{node.name} has {effect.node}.{entry.key} {entry.value.decode()}")
            is_ordered = at >= before or self.nodes[effect.node].has_lost_disk
            demand(is_ordered, f"{node.name} took {at} of {effect.node} after {before}")
            node.seen[effect.node, entry.key] = at

    def judge_death(self, node: GossipNode, dead: str) -> None:
        other = self.nodes[dead]
        self.loop.note(f"{node.name} takes {dead} for dead")
        is_false = other.is_up and not other.is_paused
        self.loop.counters["false deaths" if is_false else "deaths"] += 1
        since = self.loop.now - other.disturbed_at
        is_well = is_false and since > self.timeout_s
        demand(not (self.is_judging_deaths and is_well), f"{node.name} took {dead} for dead")

    def _judge_settled(self) -> None:
        live = [node for node in self.nodes.values() if node.is_up and not node.is_paused]
        dead = {node.name for node in self.nodes.values() if not node.is_up}
        for node in live:
            assert node.membership is not None
            taken = set(node.membership.dead)
            demand(dead <= taken, f"{node.name} does not know that {dead - taken} are dead")
            wrong = taken & {other.name for other in live}
            demand(not wrong, f"{node.name} takes {wrong} for dead for ever")
            for other in live:
                self._judge_state(node, other)

    def _judge_state(self, node: GossipNode, of: GossipNode) -> None:
        assert node.membership is not None
        entries = node.membership.states._entries[of.name]
        known = {key: entry.value.decode() for key, entry in entries.items()}
        demand(known == of.values, f"{node.name} knows {known} of {of.name}, not {of.values}")


@dataclass(frozen=True, slots=True)
class GossipMeasurement:
    """What gossip costs and how quick it is.

    Attributes:
        nodes: their number.
        exchanges_s: begun and answered by a node in a second.
        bytes_s: sent by a node in a second, without the overhead of gRPC.
        spread_s: until another node has a new entry; ascending, one for each.
        noticed_s: until another node takes a killed one for dead; ascending, one for each.
        false_deaths: live nodes that another one took for dead.
    """

    nodes: int
    exchanges_s: float
    bytes_s: float
    spread_s: tuple[float, ...]
    noticed_s: tuple[float, ...]
    false_deaths: int


class _MeasuredWorld(GossipWorld):
    """A cluster in peace, in which one node writes an entry and is killed later."""

    def __init__(self, seed: int, nodes: int, *, loss: float) -> None:
        super().__init__(seed, GOSSIP_MUTANTS[""], nodes=nodes)
        self.options, self.lag_s = MembershipOptions(), 0.05
        self.network.loss, self.loop.stragglers = loss, 0.0
        self.bytes_sent = 0
        self._since, self._times = 0.0, list[float]()

    def check(self, membership: Membership) -> None:
        """The random worlds check; here it would take most of the time of large clusters."""

    def count(self, gossip: Gossip) -> None:
        self.bytes_sent += len(GOSSIP.encode(GossipRequest("", 0, 0, 1, states=gossip)))

    def measure(self, seconds: float) -> GossipMeasurement:
        loop, (first, *others) = self.loop, list(self.nodes.values())
        for node in (first, *others):
            loop.after(loop.random.uniform(0.0, 1.0), node.boot)
        loop.run_until(15.0)
        loop.counters.clear()
        self.bytes_sent = 0
        loop.run_until(15.0 + seconds)
        exchanges, sent = loop.counters["exchanges"], self.bytes_sent
        self._since, self._times = loop.now, []
        first.write()
        loop.run_until(loop.now + seconds)
        spread, self._since, self._times = sorted(self._times), loop.now, []
        first.crash()
        loop.run_until(loop.now + seconds)
        demand(len(spread) == len(self._times) == len(others), "not all nodes know it in time")
        node_seconds = len(self.nodes) * seconds
        return GossipMeasurement(
            len(self.nodes),
            2 * exchanges / node_seconds,
            sent / node_seconds,
            tuple(spread),
            tuple(sorted(self._times)),
            loop.counters["false deaths"],
        )

    def judge_entries(self, node: GossipNode, effect: StateChanged) -> None:
        self._times.append(self.loop.now - self._since)

    def judge_death(self, node: GossipNode, dead: str) -> None:
        if self.nodes[dead].is_up:
            self.loop.counters["false deaths"] += 1
        else:
            self._times.append(self.loop.now - self._since)


def measure_gossip(
    nodes: int, *, loss: float, seed: int = 0, seconds: float = 15.0
) -> GossipMeasurement:
    """Measure a cluster of many nodes, in simulated seconds."""
    return _MeasuredWorld(seed, nodes, loss=loss).measure(seconds)


# --- mutants -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GossipMutant:
    """The classes of a world; those of production unless it is a mutant."""

    membership: type[Membership] = Membership
    states: type[NodeStates] = NodeStates


def run_gossip(
    seed: int, mutant: str = "", *, nodes: int = 0, trace: Callable[[str], None] | None = None
) -> GossipOutcome:
    """Play one world; raises Violation.

    Args:
        seed: of the world.
        mutant: a name of `GOSSIP_MUTANTS`; empty for production.
        nodes: 0 for a number by chance.
        trace: called with each event.
    """
    return GossipWorld(seed, GOSSIP_MUTANTS[mutant], nodes=nodes, trace=trace).play()


class _NeverDead(Membership):
    """Suspects without a time limit."""

    def _deaths(self, now: float) -> list[MembershipEffect]:
        return []

    def check(self) -> None:
        pass


class _ShortTimeout(Membership):
    """Waits no longer where beats come through others."""

    @property
    def timeout_s(self) -> float:
        return self.options.failure_timeout_s


class _IgnoresOwnLag(Membership):
    """Takes the others for dead after it was stopped itself."""

    def _discount_own_lag(self, now: float) -> None:
        if self._ticked_at is None:
            super()._discount_own_lag(now)


class _LeavesTheDead(Membership):
    """Never exchanges with nodes that are dead or fail."""

    def _targets(self) -> list[str]:
        return [node for node in super()._targets() if not self.is_unreachable(node, 1e9)]


class _AnswersWithoutDeltas(Membership):
    """Answers with its digest alone."""

    def _reconcile(
        self, event: GossipArrived | ReplyArrived, digest: Digest
    ) -> list[MembershipEffect]:
        effects = super()._reconcile(event, digest)
        return [
            AnswerGossip(Gossip(effect.gossip.digest))
            if isinstance(effect, AnswerGossip)
            else effect
            for effect in effects
            if not isinstance(effect, SendGossip)
        ]

    def heartbeat(self, to: str) -> Gossip:
        return Gossip(super().heartbeat(to).digest)


class _NoRelay(NodeStates):
    """Sends its own state alone, and no relayed one."""

    def digest(self) -> Digest:
        digest = super().digest()
        own = np.array([name == self.me for name in self.names])
        return replace(
            digest,
            runs=np.where(own, digest.runs, 0).astype(np.uint64),
            beats=np.where(own, digest.beats, 0).astype(np.uint32),
            versions=np.where(own, digest.versions, 0).astype(np.uint32),
        )


class _NeverOutruns(NodeStates):
    """Goes on in a run that others take for an earlier one."""

    def _outrun(self, known: int) -> None:
        pass


class _TakesOlderRuns(NodeStates):
    """Adopts the state of an earlier run."""

    def apply(self, delta: StateDelta) -> tuple[StateEntry, ...]:
        row = self.index(delta.node)
        if row is not None and delta.node != self.me and 0 < delta.run < self.runs[row]:
            delta = replace(delta, run=int(self.runs[row]))
        return super().apply(delta)


class _IgnoresRuns(NodeStates):
    """Keeps the versions of the last run when another begins."""

    def _begin_run(self, row: int, run: int) -> None:
        self.runs[row] = run


class _IgnoresGaps(NodeStates):
    """Applies deltas that do not continue what it has."""

    def apply(self, delta: StateDelta) -> tuple[StateEntry, ...]:
        return super().apply(replace(delta, base=0))


class _TakesVersionsOfDigests(NodeStates):
    """Adopts the versions of digests, without their entries."""

    def merge(self, digest: Digest) -> Mask:
        signs = super().merge(digest)
        theirs = self._aligned(digest)
        same = theirs.runs == self.runs
        self.versions[same] = np.maximum(self.versions, theirs.versions)[same]
        return signs


class _RepeatsRevive(NodeStates):
    """Takes beats that it knows already for a sign of life."""

    def merge(self, digest: Digest) -> Mask:
        signs = super().merge(digest)
        theirs = self._aligned(digest)
        again: Mask = signs | ((theirs.runs == self.runs) & (theirs.runs > 0))
        again[self.names.index(self.me)] = False
        return again


class _DropsEntries(NodeStates):
    """Loses an entry of a delta with several."""

    def apply(self, delta: StateDelta) -> tuple[StateEntry, ...]:
        return super().apply(replace(delta, entries=delta.entries[-1:]))


class _SharesNoBeats(NodeStates):
    """Makes a digest without another beat."""

    def digest(self) -> Digest:
        digest = super().digest()
        digest.beats[self.names.index(self.me)] = 1
        return digest


GOSSIP_MUTANTS: dict[str, GossipMutant] = {
    "": GossipMutant(),
    "never_dead": GossipMutant(_NeverDead),
    "short_timeout": GossipMutant(_ShortTimeout),
    "ignores_own_lag": GossipMutant(_IgnoresOwnLag),
    "leaves_the_dead": GossipMutant(_LeavesTheDead),
    "answers_without_deltas": GossipMutant(_AnswersWithoutDeltas),
    "no_relay": GossipMutant(states=_NoRelay),
    "never_outruns": GossipMutant(states=_NeverOutruns),
    "takes_older_runs": GossipMutant(states=_TakesOlderRuns),
    "ignores_runs": GossipMutant(states=_IgnoresRuns),
    "ignores_gaps": GossipMutant(states=_IgnoresGaps),
    "takes_versions_of_digests": GossipMutant(states=_TakesVersionsOfDigests),
    "repeats_revive": GossipMutant(states=_RepeatsRevive),
    "drops_entries": GossipMutant(states=_DropsEntries),
    "shares_no_beats": GossipMutant(states=_SharesNoBeats),
}


def _main() -> None:
    for nodes in map(int, sys.argv[1:]):
        for loss in (0.0, 0.05):
            measured = measure_gossip(nodes, loss=loss)
            middle, last = (nodes - 1) // 2, -1
            print(
                f"{nodes} nodes, {loss:.0%} lost: {measured.exchanges_s:.1f} exchanges and "
                f"{measured.bytes_s:,.0f} B a second and node; an entry is everywhere after "
                f"{measured.spread_s[middle]:.1f} s (median), {measured.spread_s[last]:.1f} s "
                f"(last); a death is noticed after {measured.noticed_s[middle]:.1f} s (median), "
                f"{measured.noticed_s[last]:.1f} s (last); {measured.false_deaths} false deaths"
            )


if __name__ == "__main__":
    _main()
