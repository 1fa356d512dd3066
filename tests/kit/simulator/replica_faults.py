"""Replicated partitions whose nodes, disks, clocks and network fail at random."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from galileo.replication.machine import Replica
from galileo.replication.messages import (
    Acknowledged,
    Fetched,
    FrameAppended,
    HandOverRequested,
    LogSynced,
    Message,
    PublishFrames,
    ReplicaEffect,
    ReplicaEvent,
    RequestVote,
    SaveReplicaState,
    SendMessage,
    StartTerm,
    StateSaved,
    TruncateLog,
    Vote,
    WriteFrames,
)
from galileo.replication.values import Member, ReplicaSet, ReplicationOptions
from simulator.loop import Loop
from simulator.replica_cluster import ReplicaCluster, ReplicaConduct, ReplicaNode

FAULT_MEAN_S = 0.45
LATE = 0.005
"""Share of the messages that arrive again, up to 3 s later."""
FAULTS = (
    "ambush",
    "ambush",
    "ambush",
    "crash",
    "crash_leader",
    "crash_all",
    "pause",
    "cut",
    "isolate",
    "isolate_leader",
    "isolate_leader",
    "bridge",
    "relay",
    "relay",
    "storm",
    "storm",
    "slow_link",
    "slow_sync",
    "sync_fails",
    "disk_full",
    "stop_clock",
    "loss",
    "disk_lost",
    "rot",
    "move",
    "move",
    "move",
    "copies",
    "hand_over",
)
WATCHED = (
    Acknowledged,
    Fetched,
    FrameAppended,
    LogSynced,
    PublishFrames,
    RequestVote,
    SaveReplicaState,
    StartTerm,
    StateSaved,
    TruncateLog,
    Vote,
    WriteFrames,
)
"""After these an ambush strikes."""


class FaultyReplicas(ReplicaCluster):
    """A cluster with partitions, and what happens to it. All random choices come from the loop.

    Args:
        count: of the nodes.
        partitions: None for a random number.
        has_true_clocks: whether clocks neither jump nor stop; None for a random choice.
        is_beyond: whether more copies may be lost than the others can make good; likewise.
        without: kinds of faults to leave out, of `FAULTS`.

    Attributes:
        hosts: the nodes that the operator may choose as members.
        is_over: whether producers and readers have ended.
    """

    fault_mean_s = FAULT_MEAN_S

    def __init__(
        self,
        loop: Loop,
        machine: type[Replica] = Replica,
        conduct: ReplicaConduct | None = None,
        *,
        count: int,
        partitions: Collection[int] | None = None,
        has_true_clocks: bool | None = None,
        is_beyond: bool | None = None,
        without: Collection[str] = (),
    ) -> None:
        dead_after = loop.random.choice((0.3, 0.5, 1.0, 2.0))
        options = ReplicationOptions(
            dead_after_s=dead_after,
            lease_s=dead_after * 0.75,
            beat_s=dead_after / 4,
            stagger_s=0.15,
            campaign_s=dead_after,
            resend_s=0.2,
            stall_s=max(0.5, dead_after),
            frames_max=8,
            lag_max=4,
        )
        super().__init__(loop, machine, conduct, options=options, count=count)
        self.hosts = sorted(self.nodes)
        few = (1, 1, 2, 3)
        self.partitions = list(partitions or range(loop.random.choice(few)))
        self.slow: dict[tuple[str, str], float] = {}
        self.loss = 0.0
        self.watched: tuple[type, int] | None = None
        self.is_calm = self.is_over = False
        self._without = frozenset(without)
        self.has_true_clocks = loop.chance(0.7) if has_true_clocks is None else has_true_clocks
        self.is_beyond = loop.chance(0.05) if is_beyond is None else is_beyond

    def found_all(self, size: int) -> None:
        """Give all partitions their first voters."""
        for partition in self.partitions:
            self.found(partition, self.loop.random.sample(self.hosts, size))

    def send(
        self, sender: ReplicaNode, target: ReplicaNode, message: Message, arrive: Callable[[], None]
    ) -> None:
        way = (sender.name, target.name)
        if way in self.cuts or self.loop.chance(self.loss):
            return
        delay = self.loop.delay(0.008) + self.slow.get(way, 0.0)
        self.loop.after(delay, lambda: target.receive(arrive))
        if self.loop.chance(max(self.loss, LATE)):
            self.loop.after(self.loop.random.uniform(0, 3.0), lambda: target.receive(arrive))

    def read(self) -> None:
        """Judge reads now, and again and again until all is over."""
        if not self.is_over:
            self.loop.after(self.loop.random.uniform(0.02, 0.2), self.read)
            if self.has_true_clocks:
                self.judge_reads()

    # --- faults --------------------------------------------------------------------------------

    def _leader(self) -> ReplicaNode:
        leading = [
            node
            for node in self.nodes.values()
            if node.is_up and any(one.leadership for one in node.replicas.values())
        ]
        return self.loop.random.choice(leading or list(self.nodes.values()))

    def break_something(self) -> None:
        if self.is_calm:
            return
        self.loop.after(self.loop.random.expovariate(1 / self.fault_mean_s), self.break_something)
        kind = self.loop.random.choice(FAULTS)
        if kind in self._without:
            return
        node = self.loop.random.choice(list(self.nodes.values()))
        self.loop.note(f"{kind} {node.name}")
        self.loop.counters[kind] += 1
        getattr(self, f"_{kind}")(node)

    def _again(self, action: Callable[[], None], low: float, high: float) -> None:
        self.loop.after(self.loop.random.uniform(low, high), action)

    def _crash(self, node: ReplicaNode) -> None:
        node.crash()
        self._again(node.boot, 0.2, 4.0)

    def _crash_leader(self, _: ReplicaNode) -> None:
        self._crash(self._leader())

    def _crash_all(self, _: ReplicaNode) -> None:
        for node in self.nodes.values():
            node.crash()
            self._again(node.boot, 0.2, 2.0)

    def _pause(self, node: ReplicaNode) -> None:
        node.pause()
        self._again(node.wake, 0.2, 4.0)

    def _cut(self, node: ReplicaNode) -> None:
        other = self.loop.random.choice(sorted(self.nodes.keys() - {node.name}))
        self._separate({(node.name, other)}, 4.0)

    def _separate(self, ways: set[tuple[str, str]], longest_s: float) -> None:
        self.cuts |= ways
        self._again(lambda: self.cuts.difference_update(ways), 0.3, longest_s)

    def _isolate(self, node: ReplicaNode, *, friend: str = "") -> None:
        others = self.nodes.keys() - {node.name, friend}
        ways = {(node.name, other) for other in others} | {(other, node.name) for other in others}
        self._separate(ways, 4.0)

    def _isolate_leader(self, _: ReplicaNode) -> None:
        self._isolate(self._leader())

    def _bridge(self, node: ReplicaNode) -> None:
        self._isolate(self._leader(), friend=node.name)

    def _relay(self, _: ReplicaNode) -> None:
        """Leaders that are not heard go on for a while and die, one after the other."""

        def leg() -> None:
            leader = self._leader()
            ways = {(leader.name, other) for other in self.nodes}
            self.cuts |= ways
            if not self.has_true_clocks:
                for other in self.nodes.values():
                    other.advance_clock(2 * self.options.dead_after_s if other != leader else 0.0)

            def die() -> None:
                self.cuts -= ways
                if not self.is_calm:
                    leader.crash()
                    self._again(leader.boot, 0.3, 1.0)

            self._again(die, 0.05, 0.5)

        for index in range(self.loop.random.randint(2, 5)):
            self.loop.after(0.8 * index, lambda: None if self.is_calm else leg())

    def _storm(self, _: ReplicaNode) -> None:
        """Leaders hand over, or all that have waited long enough campaign, again and again."""

        def strike() -> None:
            if self.is_calm:
                return
            if self.has_true_clocks or self.loop.chance(0.3):
                self._hand_over(self._leader())
                return
            if self.loop.chance(0.3):
                leader = self._leader()
                leader.crash()
                self._again(leader.boot, 0.02, 0.4)
            for node in self.nodes.values():
                if self.loop.chance(0.6):
                    node.advance_clock(2 * self.options.dead_after_s)

        for index in range(self.loop.random.randint(3, 8)):
            self.loop.after(0.12 * index, strike)

    def _stop_clock(self, node: ReplicaNode) -> None:
        if not self.has_true_clocks:
            node.stop_clock()
            self._again(node.start_clock, 0.2, 4.0)

    def _ambush(self, _: ReplicaNode) -> None:
        """Let a node fail right after it has begun, ended or sent something."""
        self.watched = self.loop.random.choice(WATCHED), self.loop.random.randint(0, 4)

    def observe(
        self,
        node: ReplicaNode,
        partition: int,
        event: ReplicaEvent,
        effects: Collection[ReplicaEffect],
    ) -> None:
        super().observe(node, partition, event, effects)
        if self.watched is None or self.is_calm:
            return
        kind, others = self.watched
        moments = (event, *effects, *(e.message for e in effects if isinstance(e, SendMessage)))
        if any(isinstance(moment, kind) for moment in moments):
            self.watched = (kind, others - 1) if others else None
            if not others:
                self.loop.counters["ambushes"] += 1
                fault = self.loop.random.choice((self._blink, self._disk_lost, self._isolate))
                self.loop.after(0.0, lambda: fault(node))

    def _blink(self, node: ReplicaNode) -> None:
        node.crash()
        self._again(node.boot, 0.02, 1.0)

    def _hand_over(self, node: ReplicaNode) -> None:
        for partition, replica in node.replicas.items():
            if node.is_up and not node.is_paused and replica.leadership and replica.state.set:
                others = sorted(replica.state.set.voters - {node.me})
                if others:
                    successor = self.loop.random.choice(others)
                    node.step(partition, HandOverRequested(successor))

    def _slow_link(self, node: ReplicaNode) -> None:
        for _ in range(2):
            first, second = self.loop.random.sample(sorted(self.nodes), 2)
            self.slow[first, second] = self.loop.random.uniform(0.1, 0.8)
        self._again(self.slow.clear, 0.5, 4.0)

    def _slow_sync(self, node: ReplicaNode) -> None:
        node.slow_syncs_until = self.loop.now + self.loop.random.uniform(0.1, 2.0)

    def _sync_fails(self, node: ReplicaNode) -> None:
        """The next sync of the node fails, at which it stops: what it wrote is not known."""
        node.fails_sync = True
        self._again(node.boot, 0.5, 4.0)

    def _disk_full(self, node: ReplicaNode) -> None:
        node.full_until = self.loop.now + self.loop.random.uniform(0.5, 4.0)

    def _loss(self, _: ReplicaNode) -> None:
        self.loss = self.loop.random.choice((0.05, 0.2))
        self._again(lambda: setattr(self, "loss", 0.0), 0.5, 3.0)

    def _move(self, _: ReplicaNode) -> None:
        """The operator replaces members of a whole partition, adds one, or removes one."""
        partition = self.loop.random.choice(self.partitions)
        if any(self._damaged(one, partition) for one in self._sets(partition)):
            return
        wanted = self.wanted[partition]
        outside = sorted(set(self.hosts) - wanted)
        kind = self.loop.random.choice(("replace", "replace", "replace many", "add", "remove"))
        if kind in ("replace", "remove") and (outside or len(wanted) > 2):
            wanted.remove(self.loop.random.choice(sorted(wanted)))
        if kind in ("replace", "add") and outside:
            wanted.add(self.loop.random.choice(outside))
        if kind == "replace many":
            wanted = set(self.loop.random.sample(self.hosts, len(wanted)))
        self.wanted[partition] = wanted or {outside[0]}
        self._tell_wanted()

    def _copies(self, _: ReplicaNode) -> None:
        """The operator changes the number of copies of a partition, also to one and back."""
        partition = self.loop.random.choice(self.partitions)
        if any(self._damaged(one, partition) for one in self._sets(partition)):
            return
        wanted, count = sorted(self.wanted[partition]), self.loop.random.choice((1, 1, 2, 3))
        outside = sorted(set(self.hosts) - set(wanted))
        kept = self.loop.random.sample(wanted, min(count, len(wanted)))
        added = self.loop.random.sample(outside, min(count - len(kept), len(outside)))
        self.loop.counters["copies given up"] += len(wanted) - len(kept)
        self.wanted[partition] = {*kept, *added}
        self._tell_wanted()

    def _tell_wanted(self) -> None:
        for node in self.nodes.values():
            for partition in self.partitions:
                node.receive(
                    lambda n=node, p=partition: n.step(p, self.wanted_members(p))  # type: ignore[misc]
                )

    def _disk_lost(self, node: ReplicaNode) -> None:
        if self._may_lose(node):
            self.loop.counters["disks lost"] += 1
            node.lose_disk()
            self._again(node.boot, 0.5, 3.0)
            self.loop.after(3.1, self._tell_wanted)

    def _rot(self, node: ReplicaNode) -> None:
        if self._may_lose(node):
            node.rot_next = True
            self._crash(node)

    def _may_lose(self, node: ReplicaNode) -> bool:
        """Whether no set that may be in force loses more than its minority."""
        return self.is_beyond or all(
            len(self._damaged(one, partition) | {node.me}) <= len(one.voters) - one.majority
            for partition in self.partitions
            for one in self._sets(partition)
            if node.me in one.voters
        )

    def _sets(self, partition: int) -> set[ReplicaSet]:
        """The newest set, those that its members still have, and those that may be next."""
        held: dict[Member, list[ReplicaSet]] = {}
        for node in self.nodes.values():
            disk = node.disks[partition]
            states = [disk.state, *disk.pending]
            if node.is_up:
                states.append(node.replicas[partition].state)
            held[node.me] = [state.set for state in states if state.set is not None]
        every = [one for sets in held.values() for one in sets]
        if not every:
            return set()
        newest = max(every, key=lambda one: one.version)
        outgoing = newest.voters - self.wanted_members(partition).members
        smaller = [replace(newest, voters=newest.voters - {member}) for member in outgoing]
        larger = [replace(newest, voters=newest.voters | {member}) for member in newest.learners]
        present = [one for member in newest.members for one in held.get(member, ())]
        return {newest, *smaller, *larger, *present}

    def _damaged(self, one: ReplicaSet, partition: int) -> set[Member]:
        """The voters that have lost something and have not got it back."""
        sound = {
            node.me
            for node in self.nodes.values()
            if not node.rot_next and not node.disks[partition].state.suspect
        }
        return set(one.voters - sound)

    def heal(self) -> None:
        self.is_calm = True
        self.loop.stragglers = 0.0
        self.cuts.clear()
        self.slow.clear()
        self.loss = 0.0
        for node in self.nodes.values():
            node.slow_syncs_until = node.full_until = 0.0
            node.fails_sync = False
            node.start_clock()
            node.wake()
            node.boot()
        self.loop.after(0.5, self._finish_healing)

    def _finish_healing(self) -> None:
        self.cuts.clear()
        self.loss = 0.0
        self._tell_wanted()
