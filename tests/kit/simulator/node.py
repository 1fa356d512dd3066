"""One simulated process: the production machines, and a driver that executes their effects."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, assert_never

from galileo.ccq import events
from galileo.ccq.events import (
    AbandonCycle,
    AnswerBatch,
    AnswerCacheRead,
    Backfill,
    BatchSubmitted,
    CacheReadAnswered,
    CacheReadFailed,
    CacheReadRequested,
    CancelRequested,
    CommitsObserved,
    CompactPacks,
    ConfirmSequences,
    ContinuousEffect,
    ContinuousEvent,
    DatasetDropped,
    DropSpills,
    FetchRequested,
    LoadPacks,
    PacksCompacted,
    PacksLoaded,
    PacksSpilled,
    ReadHandedOffCache,
    SequencesConfirmed,
    SpillPacks,
    StartCycle,
    SubmitRequested,
)
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import membership
from galileo.dht.node_states import RUN_BITS
from galileo.dht.topology import Move
from galileo.election.events import (
    AnswerSubmit,
    DrainRequested,
    MembersChanged,
    MessageArrived,
    PurgeRecord,
    RecordsLoaded,
    SaveRecord,
    Send,
    Ticked,
    UsageMeasured,
)
from galileo.election.messages import (
    AssignCoordinator,
    AssignMany,
    AssignmentAccepted,
    AssignmentsAnswered,
    Message,
    RecordAck,
    RecordUpdate,
    UsageStatistics,
)
from galileo.model.windows import ClockStep
from galileo.packing import Compression
from simulator.checker import Checker
from simulator.disk import RecordDisk, SpillDisk
from simulator.evaluator import Evaluator, Labour, Trouble
from simulator.logs import Commit, Log
from simulator.loop import Loop, demand
from simulator.network import Network
from simulator.variants import Variant

TICK_S = 0.1
SYNC_MEAN_S = 0.06
GATHER_S = 0.05
SPILL_MEAN_S = 0.05
EPOCH_WALL = 1_700_000_000.0
MEMBERSHIP = membership.MembershipOptions(
    heartbeat_interval_s=0.4, failure_timeout_s=1.6, lag_max_s=0.8
)

Reply = Callable[[ContinuousEffect], None]


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a node, one entry that gossip spreads."""

    sequences: Cursor
    clock: tuple[ClockStep, ...]
    dropped: tuple[tuple[str, int], ...] = ()
    moves: tuple[Move, ...] = ()


class Cluster(Protocol):
    """The interface of the world for a node."""

    loop: Loop
    network: Network
    checker: Checker
    variant: Variant
    trouble: Trouble
    logs: dict[int, Log]
    mid_step_crashes: float
    labour: Labour
    datasets: tuple[str, ...]
    disks_lost: int

    def next_request(self) -> int: ...

    def node(self, name: str) -> Node: ...

    def owner(self, partition: int) -> Node: ...

    def options(self, name: str) -> ContinuousOptions: ...


class Node:
    """A process that can crash, pause and restart; its disks stay.

    Attributes:
        epoch: number of its present run.
        skew_s: of its wall clock.
        version: of the topology that it knows, on its disk.
        is_member: whether it may run; false before it has joined and after it has left.
    """

    def __init__(self, name: str, world: Cluster) -> None:
        self.name = name
        self.epoch = 0
        self.skew_s = 0.0
        self.version = 0
        self.is_member = True
        self.is_up = False
        self.is_paused = False
        self._world = world
        self._loop = world.loop
        self._disk = RecordDisk()
        self._spills = SpillDisk(self._loop)
        self._dropped: dict[str, int] = {}
        self._inbox: list[Callable[[], None]] = []
        self._replies: dict[int, Reply] = {}
        self._evaluator = Evaluator(
            self._loop,
            readable=self.readable,
            known=lambda dataset: self.machine.state.known.get(dataset, EMPTY_CURSOR),
            evaluate=world.variant.evaluate,
            conceals=world.variant.conduct.conceals_what_is_gone,
            labour=world.labour,
        )

    @property
    def serves(self) -> bool:
        return self.is_up and not self.is_paused

    @property
    def wall(self) -> float:
        return EPOCH_WALL + self._loop.now + self.skew_s

    def own_logs(self) -> Iterable[Log]:
        return (log for p, log in self._world.logs.items() if self._world.owner(p) is self)

    # --- life ---------------------------------------------------------------------------

    def boot(self) -> None:
        if not self.is_member:
            return
        self.epoch += 1
        self.is_up, self.is_paused = True, False
        self._inbox, self._replies = [], {}
        options = self._world.options(self.name)
        self._born = self._loop.now - self._loop.random.uniform(0.0, 1000.0)
        peers = [name for group in options.groups for name in group]
        run = self.epoch << RUN_BITS
        self._membership = membership.Membership(self.name, peers, run=run, options=MEMBERSHIP)
        self.machine = self._world.variant.machine(self.name, options)
        self._loop.note(f"{self.name} boots")
        self._world.checker.restart(self.name)
        self._spills.clear()
        for name, generations in self._dropped.items():
            self.feed(DatasetDropped(name, generations))
        self.feed(RecordsLoaded(self._disk.restore(), self.wall))
        free = self._loop.random.choice((1, 4, 8)) << 30
        self.feed(UsageMeasured(UsageStatistics(self._loop.random.random(), free)))
        self._see_own_sequences()
        self._later(self._loop.random.uniform(0.0, TICK_S), self._tick)

    def crash(self) -> None:
        if not self.is_up:
            return
        self._loop.note(f"{self.name} crashes")
        self._loop.counters["crashes"] += 1
        self.is_up = self.is_paused = False
        self._disk.crash(self._loop)
        for log in self.own_logs():
            log.crash(self._loop)

    def pause(self) -> None:
        if self.serves:
            self._loop.note(f"{self.name} pauses")
            self._loop.counters["pauses"] += 1
            self.is_paused = True

    def wake(self) -> None:
        if self.is_up and self.is_paused:
            self._loop.note(f"{self.name} wakes")
            self.is_paused = False
            inbox, self._inbox = self._inbox, []
            for action in inbox:
                self.receive(action)

    def drain(self, *, is_on: bool) -> None:
        if self.serves:
            self.feed(DrainRequested(is_on))

    def drop(self, name: str, generations: int) -> None:
        """Drop datasets, durably before the machine gets the event; idempotent."""
        if generations > self._dropped.get(name, 0):
            self._loop.note(f"{self.name} drops {name}")
            self._dropped[name] = generations
            self.feed(DatasetDropped(name, generations))

    def learn_topology(self, version: int) -> None:
        """Adopt a later version of the topology."""
        if version <= self.version:
            return
        self.version = version
        groups = self._world.options(self.name).groups
        self._loop.note(f"{self.name} learns that the nodes are {groups}")
        peers = tuple(name for group in groups for name in group)
        self._membership.step(membership.PeersChanged(peers), self._now)
        self.feed(MembersChanged(groups))

    def receive(self, action: Callable[[], None]) -> None:
        """Process an input now, after the pause, or never."""
        if self.serves:
            action()
        elif self.is_up:
            self._inbox.append(action)

    def feed(self, event: ContinuousEvent) -> None:
        effects = self.machine.step(event, self._now)
        self.machine.check()
        self._note(event, effects)
        count = len(effects)
        is_crash = count > 1 and self._loop.chance(self._world.mid_step_crashes)
        if is_crash:
            self._loop.counters["crashes within a step"] += 1
            count = self._loop.random.randrange(1, count)
        # A term whose record is not saved does not begin: a later term may have its number.
        unsaved = {one.record.id for one in effects[count:] if isinstance(one, SaveRecord)}
        coordinated = self.machine.coordinated.items()
        led = {ccq_id: one for ccq_id, one in coordinated if ccq_id not in unsaved}
        self._world.checker.observe(self.name, led)
        self._carry_out(effects[:count])
        if is_crash:
            self.crash()

    # --- what clients ask ---------------------------------------------------------------

    def ask(
        self,
        event: SubmitRequested
        | BatchSubmitted
        | FetchRequested
        | CancelRequested
        | CacheReadRequested,
        reply: Reply,
    ) -> None:
        self._replies[event.request] = reply
        self.feed(event)

    def kept_term(self, ccq_id: str) -> int:
        """The term of a record after a restart, 0 for none."""
        return self._disk.synced_term(ccq_id)

    def knows_drop(self, name: str) -> int:
        """How many datasets of a name are dropped here."""
        return self._dropped.get(name, 0)

    def now_plus(self, seconds: float) -> float:
        """A time on this process's monotonic clock."""
        return self._now + seconds

    def write(
        self,
        partition: int,
        values: tuple[int, ...],
        batch: tuple[str, int],
        reply: Callable[[int], None],
    ) -> None:
        """Commit a batch once; reply with its sequence when it is durable."""
        log, conduct = self._world.logs[partition], self._world.variant.conduct
        found = None if conduct.stores_batches_again else log.find(batch)
        if found is None:
            found = log.append(values, batch, self.wall)
        elif found.sequence <= log.end:
            self._loop.counters["batches answered from the log"] += 1
            reply(found.sequence)
            return
        if conduct.replies_before_sync:
            reply(found.sequence)
        self._later(self._loop.delay(SYNC_MEAN_S), lambda: self._sync(log, found, reply))

    # --- inside -------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._loop.now - self._born

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Schedule an action of this run: a timer, or the result of a thread."""
        epoch = self.epoch

        def act() -> None:
            if self.epoch == epoch and self.is_up:
                action()

        self._loop.after(delay_s, lambda: self.receive(act))

    def _tick(self) -> None:
        self._step_membership(membership.Ticked())
        self.feed(Ticked(self.wall))
        self._later(TICK_S, self._tick)

    def _handle(self, effect: membership.MembershipEffect) -> None:
        match effect:
            case membership.SendHeartbeat(to):
                self._membership.states.write("report", pickle.dumps(self._report()))
                self._gossip(to, self._membership.heartbeat(to), is_last=False)
            case membership.SendGossip(to, gossip):
                self._gossip(to, gossip, is_last=True)
            case membership.StateChanged(_, _, entries):
                self._take_report(pickle.loads(entries[-1].value))
            case membership.PeerDied() | membership.PeerRevived():
                self._loop.counters["deaths suspected"] += isinstance(effect, membership.PeerDied)
                self.feed(effect)

    def _gossip(self, to: str, gossip: membership.Gossip, *, is_last: bool) -> None:
        """Begin an exchange; the reply comes to this run of the process, or never."""
        peer, epoch = self._world.node(to), self.epoch

        def reply(answer: membership.Gossip) -> None:
            if self.epoch == epoch:
                self._step_membership(membership.ReplyArrived(to, answer, is_last))

        def arrive() -> None:
            effects = peer._step_membership(membership.GossipArrived(self.name, gossip))
            answers = [one.gossip for one in effects if isinstance(one, membership.AnswerGossip)]
            if answers:
                peer._post(self.name, lambda: reply(answers[0]))

        self._post(to, arrive)

    def _step_membership(
        self, event: membership.MembershipEvent
    ) -> list[membership.MembershipEffect]:
        effects = self._membership.step(event, self._now)
        self._membership.check()
        for effect in effects:
            self._handle(effect)
        return effects

    def _report(self) -> Report:
        sequences = Cursor({log.partition: log.end for log in self.own_logs()})
        return Report(sequences, self._own_clock(), tuple(self._dropped.items()))

    def _take_report(self, report: Report) -> None:
        for dropped in report.dropped:
            self.drop(*dropped)
        for dataset in self._world.datasets:
            self.feed(CommitsObserved(dataset, report.sequences, report.clock))

    def _sync(self, log: Log, commit: Commit, reply: Callable[[int], None]) -> None:
        log.sync()
        self._see_own_sequences()
        reply(commit.sequence)

    def _see_own_sequences(self) -> None:
        sequences = Cursor({log.partition: log.end for log in self.own_logs()})
        for dataset in self._world.datasets:
            self.feed(CommitsObserved(dataset, sequences, self._own_clock()))

    def _own_clock(self) -> tuple[ClockStep, ...]:
        return tuple(step for log in self.own_logs() for step in log.clock_steps())

    def _post(self, to: str, deliver: Callable[[], None]) -> None:
        """Send something, with the topology of this node; removed senders are ignored."""
        peer, version = self._world.node(to), self.version

        def arrive() -> None:
            peer.learn_topology(version)
            if self.name in peer.machine.state.peers:
                deliver()

        self._world.network.send(self.name, to, lambda: peer.receive(arrive))

    def reachable(self, partition: int) -> Log | None:
        """The log of a partition as its owner reads it; None if the owner does not answer."""
        owner = self._world.owner(partition)
        connected = self._world.network.connects(self.name, owner.name)
        if not connected or not owner.serves:
            return None
        log = self._world.logs[partition]
        if self._world.variant.conduct.evaluates_unsynced:
            return Log(partition, log.commits + log.pending, dropped=log.dropped)
        return log

    def readable(self, partition: int, committed: int) -> Log | None:
        """The log of a partition up to a commit at least; None if no node answers that has it."""
        return self.reachable(partition)

    def _answer(self, event: ContinuousEvent) -> None:
        self._later(0.0, lambda: self.feed(event))

    def _carry_out(self, effects: list[ContinuousEffect]) -> None:
        for effect in effects:
            self._act(effect)

    def _act(self, effect: ContinuousEffect) -> None:
        if isinstance(effect, events.Reply):
            self._verify_kept(effect)
            reply = self._replies.pop(effect.request, None)
            if reply is not None:
                reply(effect)
            return
        trouble = self._world.trouble
        epoch = self.epoch

        def answer(event: ContinuousEvent) -> None:
            if self.epoch == epoch:
                self._answer(event)

        match effect:
            case Send(to, message):
                self._verify_saved(message)
                self._send(to, message)
            case SaveRecord(record, durable):
                self._disk.save(record, durable=durable)
            case PurgeRecord(ccq_id):
                self._verify_forgotten(ccq_id)
                self._disk.purge(ccq_id)
            case StartCycle():
                self._evaluator.cycle(effect, trouble=trouble, wall=self.wall, answer=answer)
            case Backfill():
                self._evaluator.backfill(effect, trouble=trouble, answer=answer)
            case ConfirmSequences():
                self._loop.counters["tokens ahead"] += 1
                self._loop.after(self._loop.delay(0.02), lambda: answer(self._confirm(effect)))
            case CompactPacks(ccq, term, labels):
                self._loop.counters["packs gathered"] += 1
                done = PacksCompacted(ccq.id, term, labels.compact(Compression.NONE))
                self._loop.after(GATHER_S, lambda: answer(done))
            case SpillPacks():
                size = self._spills.write(effect.number, effect.labels, trouble.spoils)
                written = PacksSpilled(effect.number, size)
                self._loop.after(self._loop.delay(SPILL_MEAN_S), lambda: answer(written))
            case LoadPacks():
                found = self._spills.read(effect.number, trouble.spoils)
                loaded = PacksLoaded(effect.number, effect.ccq.id, found)
                self._loop.after(self._loop.delay(SPILL_MEAN_S), lambda: answer(loaded))
            case DropSpills(numbers):
                self._spills.drop(numbers)
            case ReadHandedOffCache():
                self._ask_holder(effect, answer)
            case AbandonCycle():
                self._loop.counters["cycles abandoned"] += 1
            case _:
                assert_never(effect)

    def _ask_holder(
        self, effect: ReadHandedOffCache, answer: Callable[[ContinuousEvent], None]
    ) -> None:
        """A call over the network; the machine times out if it is lost."""
        holder, network = self._world.node(effect.node), self._world.network
        request = self._world.next_request()
        wanted = effect.ccq.id, effect.term, effect.after, effect.labels_max

        def take(reply: ContinuousEffect) -> None:
            if isinstance(reply, AnswerCacheRead):
                self._loop.counters["stretches from holders"] += 1
                response = reply.labels, reply.reached, reply.gone
                answer(CacheReadAnswered(effect.request, *response))
            else:
                self._loop.counters["holders lost"] += 1
                answer(CacheReadFailed(effect.request))

        def back(reply: ContinuousEffect) -> None:
            network.send(effect.node, self.name, lambda: take(reply))

        def ask() -> None:
            holder.ask(CacheReadRequested(request, *wanted), back)

        network.send(self.name, effect.node, lambda: holder.receive(ask))

    def _verify_kept(self, answer: ContinuousEffect) -> None:
        """Check that an answered CCQ is on the disks of three nodes, or of all that share it and
        are alive, except for disks that were lost.
        """
        accepted = [answer.ccq_id] if isinstance(answer, AnswerSubmit) else []
        if isinstance(answer, AnswerBatch):
            accepted = [one.ccq_id for one in answer.outcomes if one.failure is None]
        state = self.machine.state
        for ccq_id in accepted:
            nodes = [self._world.node(name) for name in (self.name, *state.peers)]
            kept = sum(node.kept_term(ccq_id) > 0 for node in nodes)
            replicas = state.record_table.replicas(ccq_id)
            alive = {self.name, *(name for name in replicas if not state.is_gone(name))}
            enough = min(state.options.copies_min, len(alive)) - self._world.disks_lost
            demand(kept >= enough, f"{self.name} answered for {ccq_id}, kept {kept} times")

    def _verify_forgotten(self, ccq_id: str) -> None:
        """Check that a live record which leaves this disk is on as many others as it should be."""
        record = self._disk.synced(ccq_id)
        if record is None or record.ended is not None:
            return
        self._loop.counters["records forgotten"] += 1
        state = self.machine.state
        others = [self._world.node(name) for name in state.peers]
        kept = sum(node.kept_term(ccq_id) >= record.term for node in others)
        enough = len(state.record_table.replicas(ccq_id)) - self._world.disks_lost
        demand(kept >= enough, f"{self.name} forgets {ccq_id}, {kept} others have it")

    def _verify_saved(self, message: Message) -> None:
        """Check that the record behind a message is on disk."""
        promised: list[tuple[str, int]] = []
        if isinstance(message, AssignCoordinator):
            promised = [(message.record.ccq.id, message.record.term)]
        elif isinstance(message, AssignmentAccepted):
            promised = [(message.ccq_id, message.term)]
        elif isinstance(message, RecordAck):
            promised = list(message.entries)
        elif isinstance(message, AssignmentsAnswered):
            promised = list(message.accepted)
        elif isinstance(message, RecordUpdate | AssignMany):
            promised = [(record.ccq.id, record.term) for record in message.records]
        for ccq_id, term in promised:
            saved = self._disk.synced_term(ccq_id)
            demand(saved >= term, f"{self.name} sent {ccq_id} {term}, saved is {saved}")

    def _send(self, to: str, message: Message) -> None:
        peer = self._world.node(to)
        self._post(to, lambda: peer.feed(MessageArrived(self.name, message)))

    def _confirm(self, effect: ConfirmSequences) -> SequencesConfirmed:
        found = {p: self.reachable(p) for p in effect.partitions}
        sequences = Cursor({p: log.end for p, log in found.items() if log is not None})
        unreachable = tuple(p for p, log in found.items() if log is None)
        return SequencesConfirmed(effect.request, sequences, unreachable)

    def _note(self, event: ContinuousEvent, effects: list[ContinuousEffect]) -> None:
        if not effects and isinstance(event, (Ticked, CommitsObserved)):
            return
        what = f"{event.sender}'s {event.message}" if isinstance(event, MessageArrived) else event
        self._loop.note(f"{self.name} {what} => {effects}")
