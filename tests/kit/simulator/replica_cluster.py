"""Nodes that replicate partitions, their driver and disks, and the judge of what they publish."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from galileo.replication.machine import Replica
from galileo.replication.messages import (
    Append,
    Fetched,
    FrameAppended,
    HandOverRequested,
    LogSynced,
    MembersWanted,
    Message,
    MessageArrived,
    NewerSet,
    PublishFrames,
    ReplicaEffect,
    ReplicaEvent,
    ReplicaTicked,
    SaveReplicaState,
    SendMessage,
    StateSaved,
    TruncateLog,
    Vote,
    WriteFrames,
    WrittenAlone,
)
from galileo.replication.values import (
    Epochs,
    Member,
    ReplicaSet,
    ReplicaState,
    ReplicationOptions,
)
from simulator.loop import Loop, demand

LOGS = ("a", "b")
Batch: TypeAlias = tuple[int, int] | tuple[str, int]
"""Its producer and its number."""
Held: TypeAlias = "tuple[ReplicaEvent, tuple[Frame, ...]]"
"""An event, with the frames of its message."""
TICK_S = 0.08
WANTED_S = 0.3
"""Between two looks at which members a partition should have."""


@dataclass(frozen=True, slots=True)
class ReplicaConduct:
    """Mistakes of a driver; production has none."""

    acknowledges_appended: bool = False
    acknowledges_known: bool = False
    stores_batches_again: bool = False
    forgets_batches: bool = False
    reports_sync_early: bool = False
    reports_save_early: bool = False
    keeps_identity: bool = False
    takes_rot_for_torn: bool = False
    forgets_support: bool = False
    tells_nothing_written_alone: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """One commit: its epoch, its batch, and what its leader knew to be committed."""

    epoch: int
    batch: Batch
    committed: int


def epochs_of(frames: list[Frame]) -> Epochs:
    epochs = Epochs()
    for sequence, frame in enumerate(frames, 1):
        epochs = epochs.extend(frame.epoch, sequence)
    return epochs


class DiskLog:
    """The frames of a log; `durable` is what a crash leaves at least."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.durable: list[Frame] = []
        self.cuts = 0
        self.is_syncing = False

    def crash(self, loop: Loop) -> None:
        """Keep the synced frames and some of those after them; a truncation may be undone."""
        kept = 0
        for mine, synced in zip(self.frames, self.durable, strict=False):
            if mine != synced:
                break
            kept += 1
        if kept < len(self.durable) and loop.chance(0.5):
            self.frames = list(self.durable)
        else:
            self.frames = self.frames[: loop.random.randint(kept, len(self.frames))]
            if kept < len(self.durable):
                loop.counters["truncations kept"] += 1
        self.durable = list(self.frames)
        self.is_syncing = False


class PartitionDisk:
    """What one node has on its disk of one partition."""

    def __init__(self, state: ReplicaState) -> None:
        self.state = state
        self.pending: list[ReplicaState] = []
        self.busy_until = 0.0
        self.logs = {name: DiskLog() for name in LOGS}


class ReplicaNode:
    """A node: a production machine for each partition, its driver, its disk."""

    def __init__(self, name: str, ordinal: int, world: ReplicaCluster) -> None:
        self.name, self.ordinal, self.world = name, ordinal, world
        self.disk_number = 0
        self.life = 0
        self.is_up = self.is_paused = False
        self.rate = world.loop.random.uniform(0.9, 1.1)
        self.disks: dict[int, PartitionDisk] = {}
        self.replicas: dict[int, Replica] = {}
        self.published: dict[tuple[int, str], int] = {}
        self.waiting: dict[tuple[int, str], list[tuple[Batch, int, Callable[[int], None]]]]
        self.waiting = {}
        self.alone: dict[int, list[Held]] = {}
        self.inbox: list[Callable[[], None]] = []
        self.rot_next = self.fails_sync = False
        self.slow_syncs_until = self.full_until = 0.0
        self._ahead_s = 0.0
        self._stopped_at: float | None = None

    @property
    def me(self) -> Member:
        return Member(self.name, f"{self.name}-{self.disk_number}")

    @property
    def now(self) -> float:
        """The clock of the node, which runs faster or slower than others."""
        running = self.world.loop.now * self.rate + self._ahead_s
        return running if self._stopped_at is None else self._stopped_at

    def stop_clock(self) -> None:
        self._stopped_at = self.now

    def start_clock(self) -> None:
        stopped_at, self._stopped_at = self._stopped_at, None
        if stopped_at is not None:
            self._ahead_s -= self.now - stopped_at

    def advance_clock(self, seconds: float) -> None:
        self._ahead_s += seconds

    @property
    def is_full(self) -> bool:
        return self.world.loop.now < self.full_until

    def boot(self) -> None:
        if self.is_up:
            return
        self.life += 1
        self.is_up, self.is_paused, self.inbox = True, False, []
        self.replicas, self.published, self.waiting, self.alone = {}, {}, {}, {}
        for partition, disk in self.disks.items():
            if self.rot_next:
                self._rot(disk)
            logs = {
                name: (
                    epochs_of(log.frames),
                    max([0, *(f.committed for f in log.frames)]),
                )
                for name, log in disk.logs.items()
                if log.frames
            }
            self.replicas[partition] = self.world.machine(
                self.me,
                self.ordinal,
                state=disk.state,
                logs=logs,
                now=-99.0 if self.world.conduct.forgets_support else self.now,
                options=self.world.options,
            )
            for name in logs:
                self._publish(partition, name, self.replicas[partition].logs[name].committed)
            self.step(partition, self.world.wanted_members(partition))
        self.rot_next = self.fails_sync = False
        self.later(self.world.loop.random.uniform(0, TICK_S), self._tick)

    def crash(self) -> None:
        if not self.is_up:
            return
        loop = self.world.loop
        self.is_up = False
        for disk in self.disks.values():
            for state in disk.pending[: loop.random.randint(0, len(disk.pending))]:
                disk.state = state
            disk.pending = []
            for log in disk.logs.values():
                log.crash(loop)

    def lose_disk(self) -> None:
        self.crash()
        conduct = self.world.conduct
        self.disk_number += not conduct.keeps_identity
        for partition, disk in self.disks.items():
            state = replace(ReplicaState(), set=disk.state.set if conduct.keeps_identity else None)
            self.disks[partition] = PartitionDisk(state)

    def _rot(self, disk: PartitionDisk) -> None:
        """The last frames of logs are found damaged."""
        for name, log in disk.logs.items():
            if log.frames and self.world.loop.chance(0.7):
                end = len(log.frames)
                self.damage(disk, name, self.world.loop.random.randint(max(0, end - 2), end - 1))

    def damage(self, disk: PartitionDisk, name: str, sound: int) -> None:
        """Find no more than `sound` frames of a log at the start."""
        self.world.loop.counters["logs damaged"] += 1
        log = disk.logs[name]
        end = len(log.frames)
        log.frames = log.frames[:sound]
        log.durable = list(log.frames)
        if not self.world.conduct.takes_rot_for_torn:
            suspect = dict(disk.state.suspect)
            suspect[name] = max(end, suspect.get(name, 0))
            promised = disk.state.promised + self.world.loop.chance(0.5)
            disk.state = replace(disk.state, suspect=suspect, promised=promised)

    def pause(self) -> None:
        self.is_paused = True

    def wake(self) -> None:
        if self.is_up and self.is_paused:
            self.is_paused = False
            inbox, self.inbox = self.inbox, []
            for action in inbox:
                self.receive(action)

    def receive(self, action: Callable[[], None]) -> None:
        if self.is_up and self.is_paused:
            self.inbox.append(action)
        elif self.is_up:
            action()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in this life of the process."""
        life = self.life

        def act() -> None:
            if self.life == life:
                action()

        self.world.loop.after(delay_s, lambda: self.receive(act))

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        for partition, replica in self.replicas.items():
            if replica.state.set is not None and partition not in self.alone:
                self.step(partition, ReplicaTicked())

    # --- the driver ----------------------------------------------------------------------------

    def step(self, partition: int, event: ReplicaEvent, frames: tuple[Frame, ...] = ()) -> None:
        replica = self.replicas[partition]
        if partition in self.alone and not isinstance(event, WrittenAlone):
            self.alone[partition].append((event, frames))
            self._end_alone(partition)
            return
        led = replica.leadership
        effects = replica.step(event, self.now)
        replica.check()
        for effect in effects:
            if isinstance(effect, SaveReplicaState):
                self._save(partition, effect.state)
            elif isinstance(effect, SendMessage):
                self._send(partition, effect.to, effect.message)
            elif isinstance(effect, TruncateLog):
                self._truncate(partition, effect.log, effect.end)
            elif isinstance(effect, WriteFrames):
                assert isinstance(event, MessageArrived)
                assert isinstance(event.message, Append | Fetched)
                self._append(partition, effect.log, frames[effect.after - event.message.after :])
            elif isinstance(effect, PublishFrames):
                self._publish(partition, effect.log, effect.until)
        self.world.observe(self, partition, event, effects)
        if replica.leadership is not led:
            self.world.loop.counters["leaders deposed"] += led is not None
            for name in LOGS:
                self.waiting.pop((partition, name), None)
            if replica.leadership is not None:
                self.world.note_leader(partition, replica.leadership.term, self)
                self.later(
                    self.world.loop.random.uniform(0.0, WANTED_S),
                    lambda: self.step(partition, self.world.wanted_members(partition)),
                )
        if replica.is_alone and partition not in self.alone:
            self.world.loop.counters["terms alone"] += 1
            self.alone[partition] = []
        if not isinstance(event, ReplicaTicked | WrittenAlone):
            for name, log in replica.logs.items():
                frames_there = self._log(partition, name).frames
                last = frames_there[-1].epoch if frames_there else 0
                is_same = log.end == len(frames_there) and log.epochs.at(log.end) == last
                demand(is_same, "the machine and the disk differ")

    # --- alone: the writer commits without the machine -------------------------------------------

    def _end_alone(self, partition: int) -> None:
        """Steps the machine with what waits, once the writer has finished what it does."""
        logs, conduct = self.disks[partition].logs, self.world.conduct
        if any(log.is_syncing for log in logs.values()):
            return
        for name, log in logs.items() if not conduct.tells_nothing_written_alone else ():
            if log.frames:
                self.step(partition, WrittenAlone(name, len(log.frames)))
        for event, frames in self.alone.pop(partition):
            self.step(partition, event, frames)

    def _commit_alone(self, key: tuple[int, str], batch: Batch) -> None:
        partition, name = key
        log = self._log(partition, name)
        sequence = len(log.frames) + 1
        log.frames.append(Frame(self.replicas[partition].state.promised, batch, sequence))
        self.world.loop.counters["commits alone"] += 1
        self._sync(partition, name)

    def _synced_alone(self, partition: int, name: str, end: int) -> None:
        self._publish(partition, name, end)
        if self.alone[partition]:
            self._end_alone(partition)

    def _log(self, partition: int, name: str) -> DiskLog:
        return self.disks[partition].logs[name]

    def _save(self, partition: int, state: ReplicaState) -> None:
        disk = self.disks[partition]
        disk.pending.append(state)

        def saved() -> None:
            if state in disk.pending:
                disk.state = state
                del disk.pending[: disk.pending.index(state) + 1]
            self.step(partition, StateSaved(state))

        if self.world.conduct.reports_save_early:
            disk.pending.remove(state)
            self.later(0.0, lambda: self.step(partition, StateSaved(state)))
            if self.world.loop.chance(0.5):
                self.later(0.5, lambda: setattr(disk, "state", state))
            return
        self.when_saved(disk, saved)

    def when_saved(self, disk: PartitionDisk, saved: Callable[[], None]) -> None:
        """Have a save end, after those before it."""
        loop = self.world.loop
        disk.busy_until = max(disk.busy_until, loop.now + loop.delay(0.004))
        self.later(disk.busy_until - loop.now, saved)

    def _send(self, partition: int, to: Member, message: Message) -> None:
        frames: tuple[Frame, ...] = ()
        if isinstance(message, Append | Fetched):
            log = self._log(partition, message.log).frames
            frames = tuple(log[message.after : message.epochs.end])
        me = self.me
        target = self.world.nodes[to.node]

        def arrive() -> None:
            if target.me == to and partition in target.replicas:
                if frames and target.is_full:
                    target.world.loop.counters["frames refused by full disks"] += len(frames)
                    return
                target.step(partition, MessageArrived(me, message), frames)

        self.world.send(self, target, message, arrive)

    def _truncate(self, partition: int, name: str, end: int) -> None:
        log = self._log(partition, name)
        self.world.loop.counters["frames truncated"] += len(log.frames) - end
        demand(end >= self.published.get((partition, name), 0), "truncates what was published")
        log.frames = log.frames[:end]
        log.cuts += 1
        self._sync(partition, name)

    def _append(self, partition: int, name: str, frames: tuple[Frame, ...]) -> None:
        self._log(partition, name).frames.extend(frames)
        self._sync(partition, name)

    def _sync(self, partition: int, name: str) -> None:
        log = self._log(partition, name)
        if self.world.conduct.reports_sync_early:
            end = len(log.frames)
            self.later(0.0, lambda: self.step(partition, LogSynced(name, end)))
        if log.is_syncing:
            return
        log.is_syncing = True
        snapshot, cuts = list(log.frames), log.cuts

        def synced() -> None:
            if self.fails_sync:
                self.world.loop.counters["syncs failed"] += 1
                self.crash()
                return
            log.is_syncing = False
            if log.cuts == cuts:
                log.durable = snapshot
                if partition in self.alone:
                    self._synced_alone(partition, name, len(snapshot))
                else:
                    self.step(partition, LogSynced(name, len(snapshot)))
            if log.cuts != cuts or log.durable != log.frames:
                self._sync(partition, name)

        self.when_synced(synced)

    def when_synced(self, synced: Callable[[], None]) -> None:
        loop = self.world.loop
        is_slow = loop.now < self.slow_syncs_until
        self.later(loop.random.uniform(1.0, 3.5) if is_slow else loop.delay(0.006), synced)

    def _publish(self, partition: int, name: str, until: int) -> None:
        key = (partition, name)
        first = self.published.get(key, 0)
        self.published[key] = max(first, until)
        frames = self._log(partition, name).frames
        self.world.judge_published(key, frames, first=first, until=until, node=self)
        waiting, self.waiting[key] = self.waiting.get(key, []), []
        for batch, sequence, answer in waiting:
            if sequence <= until:
                demand(frames[sequence - 1].batch == batch, "the frame of a waiting batch changed")
                answer(sequence)
            else:
                self.waiting[key].append((batch, sequence, answer))

    def ingest(self, key: tuple[int, str], batch: Batch, answer: Callable[[int], None]) -> None:
        """Write a batch if this node leads; answer when it is committed."""
        partition, name = key
        replica = self.replicas[partition]
        if not replica.is_open or self.alone.get(partition):
            return  # The producer repeats it.
        frames, conduct = self._log(partition, name).frames, self.world.conduct
        for sequence, frame in enumerate(frames, 1):
            is_forgotten = conduct.forgets_batches and frame.epoch != replica.state.promised
            if frame.batch == batch and not (conduct.stores_batches_again or is_forgotten):
                self.world.loop.counters["batches repeated"] += 1
                if sequence <= self.published.get(key, 0) or conduct.acknowledges_known:
                    answer(sequence)
                else:
                    self.waiting.setdefault(key, []).append((batch, sequence, answer))
                return
        if self.is_full:
            self._give_up_lead(partition)
            return
        if partition in self.alone:
            self.waiting.setdefault(key, []).append((batch, len(frames) + 1, answer))
            self._commit_alone(key, batch)
            return
        committed = replica.logs[name].committed if name in replica.logs else 0
        frames.append(Frame(replica.state.promised, batch, committed))
        if conduct.acknowledges_appended:
            answer(len(frames))
        self.waiting.setdefault(key, []).append((batch, len(frames), answer))
        self.step(partition, FrameAppended(name, len(frames)))
        self._sync(partition, name)

    def _give_up_lead(self, partition: int) -> None:
        """Let another voter lead, because the disk is full."""
        current = self.replicas[partition].state.set
        assert current is not None
        others = sorted(current.voters - {self.me})
        if others:
            self.world.loop.counters["full leaders that hand over"] += 1
            self.step(partition, HandOverRequested(self.world.loop.random.choice(others)))


class Stalled(AssertionError):
    """No promise about data was broken, but no progress was made."""


def expect_progress(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Stalled(otherwise)


class ReplicaCluster:
    """Nodes that replicate partitions, and the judge of what they publish and answer.

    Args:
        count: of the nodes.
    """

    node_type: type[ReplicaNode] = ReplicaNode

    def __init__(
        self,
        loop: Loop,
        machine: type[Replica],
        conduct: ReplicaConduct | None,
        *,
        options: ReplicationOptions,
        count: int,
    ) -> None:
        self.loop, self.options = loop, options
        self.machine, self.conduct = machine, conduct or ReplicaConduct()
        self.nodes = {f"n{i}": self.node_type(f"n{i}", i, self) for i in range(count)}
        self.truth: dict[tuple[int, str], list[Batch]] = {}
        self.acknowledged: dict[tuple[int, str], dict[Batch, int]] = {}
        self.leaders: dict[tuple[int, int], Member] = {}
        self.wanted: dict[int, set[str]] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.last_voters: dict[int, frozenset[Member]] = {}

    def found(self, partition: int, names: Collection[str]) -> None:
        """Give a partition its first voters."""
        self.wanted[partition] = set(names)
        first = ReplicaSet(0, 1, frozenset(self.nodes[name].me for name in names))
        for node in self.nodes.values():
            state = ReplicaState(set=first if node.name in names else None)
            node.disks[partition] = PartitionDisk(state)
        for name in LOGS:
            self.truth[partition, name] = []
            self.acknowledged[partition, name] = {}

    def send(
        self, sender: ReplicaNode, target: ReplicaNode, message: Message, arrive: Callable[[], None]
    ) -> None:
        raise NotImplementedError

    def observe(
        self,
        node: ReplicaNode,
        partition: int,
        event: ReplicaEvent,
        effects: Collection[ReplicaEffect],
    ) -> None:
        """Count what a history has to contain to be worth something."""
        replica, counters = node.replicas[partition], self.loop.counters
        message = event.message if isinstance(event, MessageArrived) else None
        for effect in effects:
            if isinstance(effect, SendMessage):
                counters["older sets refused"] += isinstance(effect.message, NewerSet)
            elif isinstance(effect, WriteFrames):
                counters["logs adopted"] += isinstance(message, Fetched)
        campaign = replica._campaign
        if isinstance(message, Vote) and campaign is not None and campaign.sources is None:
            counters["suspects waited for"] += campaign.voters.is_majority(campaign.votes)
        if isinstance(event, StateSaved) and replica.leadership is not None:
            before, now = self.last_voters.get(partition, frozenset()), replica.state.set
            self.last_voters[partition] = now.voters if now is not None else before
            counters["learners promoted"] += bool(before and self.last_voters[partition] - before)

    def wanted_members(self, partition: int) -> MembersWanted:
        names = sorted(self.wanted[partition])
        return MembersWanted(frozenset(self.nodes[name].me for name in names))

    # --- the judge -----------------------------------------------------------------------------

    def note_leader(self, partition: int, term: int, node: ReplicaNode) -> None:
        self.loop.counters["terms led"] += 1
        other = self.leaders.setdefault((partition, term), node.me)
        demand(other == node.me, f"two leaders of term {term}: {other} and {node.me}")

    def judge_published(
        self,
        key: tuple[int, str],
        frames: list[Frame],
        *,
        first: int,
        until: int,
        node: ReplicaNode,
    ) -> None:
        truth = self.truth[key]
        for sequence in range(first, until):
            batch = frames[sequence].batch
            if sequence < len(truth):
                demand(truth[sequence] == batch, f"{node.name} published {batch} at {sequence + 1}")
            else:
                demand(batch not in truth, f"{batch} is twice in {key}")
                truth.append(batch)
                self.loop.counters["commits"] += 1

    def judge_acknowledged(self, key: tuple[int, str], batch: Batch, sequence: int) -> None:
        before = self.acknowledged[key].setdefault(batch, sequence)
        demand(before == sequence, f"{batch} was acknowledged at {before} and {sequence}")

    def judge_reads(self) -> None:
        """One-shot reads at every leader that believes to have a lease."""
        for (partition, name), sent in self.acknowledged.items():
            for node in self.nodes.values():
                if not node.is_up or node.is_paused:
                    continue
                if not node.replicas[partition].has_lease(node.now):
                    continue
                self.loop.counters["reads under a lease"] += 1
                answer = node.published.get((partition, name), 0)
                demand(answer >= max(sent.values(), default=0), f"{node.name} read a stale log")

    def judge_end(self) -> None:
        """Everything acknowledged is there, at all members, when all is calm again."""
        for key, sent in self.acknowledged.items():
            truth = self.truth[key]
            for batch, sequence in sent.items():
                is_there = sequence <= len(truth) and truth[sequence - 1] == batch
                demand(is_there, f"{batch}, acknowledged at {sequence} of {key}, is lost")
        expect_progress(sum(map(len, self.truth.values())) > 0, "nothing was committed")
        for partition in self.wanted:
            self._judge_leader(partition)
            for member in self.wanted_members(partition).members:
                for name in LOGS:
                    published = self.nodes[member.node].published.get((partition, name), 0)
                    every = len(self.truth[partition, name])
                    expect_progress(published == every, f"{member} shows {published} of {every}")

    def _judge_leader(self, partition: int) -> None:
        wanted = self.wanted_members(partition).members
        up = [node for node in self.nodes.values() if node.is_up]
        replicas = {node.me: node.replicas[partition] for node in up}
        leaders = [one for one in replicas.values() if one.leadership is not None]
        about = {me: (r.state, r.wanted) for me, r in replicas.items()}
        is_led = len(leaders) == 1 and leaders[0].is_open
        expect_progress(is_led, f"{len(leaders)} leaders: {about}")
        (leader,) = leaders
        for name in LOGS:
            end = len(self.nodes[leader.me.node]._log(partition, name).frames)
            every = len(self.truth[partition, name])
            demand(end >= every, f"the leader has {end} of {every} frames of {name}")
        assert leader.state.set is not None
        expect_progress(leader.state.set.voters == wanted, f"set is not {wanted}: {about}")
        has_lease = leader.has_lease(self.nodes[leader.me.node].now)
        expect_progress(has_lease, "no lease when calm")
