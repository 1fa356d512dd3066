"""One simulated process: the production machines, and a driver that executes their effects."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

from galileo.ccq import events
from galileo.ccq.events import (
    AbandonCycle,
    AnswerCacheRead,
    Backfill,
    CacheReadAnswered,
    CacheReadFailed,
    CacheReadRequested,
    ChangeRecords,
    CommitsObserved,
    CompactPacks,
    ConfirmSequences,
    ContinuousEffect,
    ContinuousEvent,
    DatasetDropped,
    DrainRequested,
    DropSpills,
    ElectNodes,
    FetchRequested,
    LoadPacks,
    MembersChanged,
    NodesElected,
    PacksCompacted,
    PacksLoaded,
    PacksSpilled,
    ReadHandedOffCache,
    RecordsChanged,
    RecordsLearned,
    RedirectFetch,
    RefuseFetch,
    SequencesConfirmed,
    SpillPacks,
    StartCycle,
    Ticked,
    UsageMeasured,
)
from galileo.ccq.model import (
    CcqDefinition,
    Ending,
    Record,
    dropped_failure,
    end_reason,
    unknown_failure,
)
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.placement import EndCcq, PlaceCcq, moved_to
from galileo.ccq.records import NODES_MAX, NOTHING, encode, merged
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import membership
from galileo.dht.node_states import RUN_BITS
from galileo.dht.topology import Move
from galileo.election.election import Candidacy, choose, is_decided, rounds
from galileo.election.ranking import Candidate, UsageStatistics
from galileo.errors import Failure, GalileoError, Unavailable
from galileo.model.system_rows import LookUp, RowChange
from galileo.model.windows import ClockStep
from galileo.packing import Compression
from simulator.checker import Checker
from simulator.disk import SpillDisk
from simulator.evaluator import Evaluator, Labour, Trouble
from simulator.logs import EPOCH_WALL, Commit, Log
from simulator.loop import Loop
from simulator.network import Network
from simulator.system_leader import (
    ATTEMPT_S,
    PATIENCE_S,
    Follower,
    Outcomes,
    SystemLeader,
)
from simulator.variants import Variant

TICK_S = 0.1
SYNC_MEAN_S = 0.06
GATHER_S = 0.05
SPILL_MEAN_S = 0.05
MEMBERSHIP = membership.MembershipOptions(
    heartbeat_interval_s=0.4, failure_timeout_s=1.6, lag_max_s=0.8
)

POLL_MEAN_S = 0.03
NEED_BYTES = 1 << 20
HINTED = 0.3
"""How often what other nodes know of a CCQ is asked for before the leader."""

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
    limits: tuple[int, int]
    system: SystemLeader

    @property
    def members(self) -> list[Node]: ...

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
        self._spills = SpillDisk(self._loop)
        self._dropped: dict[str, int] = {}
        self._inbox: list[Callable[[], None]] = []
        self._replies: dict[int, Reply] = {}
        self.follower = Follower(self, world.system, self._loop)
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
        self.machine = self._world.variant.machine(self.name, options, wall=self.wall)
        self.follower.reset()
        self._loop.note(f"{self.name} boots")
        self._world.checker.restart(self.name)
        self._spills.clear()
        for name, generations in self._dropped.items():
            self.feed(DatasetDropped(name, generations))
        free = self._loop.random.choice((1, 4, 8)) << 30
        self.feed(UsageMeasured(UsageStatistics(self._loop.random.random(), free)))
        self._see_own_sequences()
        self.later(self._loop.random.uniform(0.0, TICK_S), self._tick)
        self.later(self._loop.random.uniform(0.0, TICK_S), self.follower.look)

    def crash(self) -> None:
        if not self.is_up:
            return
        self._loop.note(f"{self.name} crashes")
        self._loop.counters["crashes"] += 1
        self.is_up = self.is_paused = False
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

    def suspect(self, peer: str) -> bool:
        """Count a living node as dead, wrongly; returns whether it does now."""
        is_trusted = self.serves and peer not in self.machine.state.dead
        if is_trusted:
            self.feed(membership.PeerDied(peer))
        return is_trusted

    def trust(self, peer: str) -> None:
        """Count a node as living again, unless it is dead."""

        def act() -> None:
            if peer in self.machine.state.dead and peer not in self._membership.dead:
                self.feed(membership.PeerRevived(peer))

        self.receive(act)

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
        self._world.checker.observe(self.name, self.epoch, self.machine.coordinated)
        self._carry_out(effects[:count])
        if is_crash:
            self.crash()

    # --- the system partition -----------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether it offers nothing to a new leader, which is a mistake."""
        return self._world.variant.conduct.offers_nothing

    def known(self) -> dict[str, Record]:
        """The records of its machine."""
        return {record.id: record for record in self.machine.records}

    def learn(self, values: Mapping[str, Record]) -> None:
        """Have the machine learn the records that concern it."""
        known = self.machine.state.records
        records = [record for record in values.values() if record != NOTHING]
        mine = [one for one in records if self.name in one.participants or one.id in known]
        if mine:
            self.feed(RecordsLearned(tuple(mine)))

    def change(self, changes: Sequence[RowChange], done: Callable[[Outcomes | None], None]) -> None:
        """Have the leader make changes, again until it answers; None: it does not in time."""
        deadline, answered = self._loop.now + PATIENCE_S, list[bool]()
        epoch = self.epoch

        def hear(outcomes: Outcomes) -> None:
            if self.epoch == epoch:
                self.later(0.0, lambda: take(outcomes))

        def take(outcomes: Outcomes | None) -> None:
            if not answered:
                answered.append(True)
                done(outcomes)

        def attempt() -> None:
            if answered:
                return
            if self._loop.now > deadline:
                take(None)
                return
            self._world.system.ask(self, changes, hear)
            self.later(ATTEMPT_S, attempt)

        attempt()

    def _change_records(self, effect: ChangeRecords) -> None:
        """As the server does."""
        names = tuple(change.name for change in effect.changes)

        def done(outcomes: Outcomes | None) -> None:
            if outcomes is None:
                self._loop.counters["changes without an answer"] += 1
                self.feed(RecordsChanged(names))
                return
            records = tuple(one for one in outcomes if isinstance(one, Record) and one != NOTHING)
            unknown = tuple(
                name
                for name, one in zip(names, outcomes, strict=True)
                if one == NOTHING or getattr(one, "kind", "") == "unknown_ccq"
            )
            self.feed(RecordsChanged(names, records, unknown))

        self.change(effect.changes, done)

    def elect(
        self,
        candidacies: Sequence[Candidacy],
        done: Callable[[Mapping[str, tuple[str, ...]]], None],
    ) -> None:
        """Elect nodes by the usage of those that are reachable, one election after the other."""
        elected: dict[str, tuple[str, ...]] = {}
        left = list(candidacies)

        def go_on() -> None:
            if not left:
                done(elected)
                return
            candidacy, state = left.pop(0), self.machine.state
            out = [node for node in state.nodes if state.is_gone(node)]
            polls = rounds(candidacy, state.options.groups, out)

            def take(nodes: tuple[str, ...]) -> None:
                elected[candidacy.key] = nodes
                go_on()

            self._poll(candidacy, polls, {}, take)

        go_on()

    def _poll(
        self,
        candidacy: Candidacy,
        polls: Iterator[tuple[str, ...]],
        candidates: dict[str, Candidate],
        take: Callable[[tuple[str, ...]], None],
    ) -> None:
        polled = () if is_decided(candidacy, candidates) else next(polls, ())
        if not polled:
            take(choose(candidacy, candidates, self.machine.state.options.racks))
            return

        def ask() -> None:
            for name in polled:
                node = self._world.node(name)
                if node.serves and self._world.network.connects(self.name, name):
                    candidates[name] = Candidate(node.machine.usage, self._loop.delay(0.005))
            self._poll(candidacy, polls, candidates, take)

        self.later(self._loop.delay(POLL_MEAN_S), ask)

    # --- what clients ask ---------------------------------------------------------------

    def place(
        self, items: Sequence[tuple[CcqDefinition, Cursor]], reply: Callable[[Outcomes], None]
    ) -> None:
        """Elect nodes for CCQs whose initial results go up to cursors, and add their records."""

        def go_on(elected: Mapping[str, tuple[str, ...]]) -> None:
            changes, outcomes = dict[int, RowChange](), list[Record | GalileoError]()
            for number, (ccq, reached) in enumerate(items):
                nodes = elected[ccq.id]
                outcomes.append(Unavailable("no node takes it", after_s=0.3))
                if self.machine.state.is_dropped(ccq.dataset):
                    outcomes[-1] = dropped_failure(ccq).to_error()
                elif nodes:
                    record = moved_to(Record(ccq, retrieved=reached), nodes)
                    changes[number] = PlaceCcq(ccq.id, encode(record), *self._world.limits)

            def done(made: Outcomes | None) -> None:
                if made is None:
                    made = [Unavailable("no node leads", after_s=0.3)] * len(changes)
                for number, outcome in zip(changes, made, strict=True):
                    outcomes[number] = outcome
                self.learn({one.id: one for one in outcomes if isinstance(one, Record)})
                reply(outcomes)

            self.change([*changes.values()], done)

        self.elect([Candidacy(ccq.id, NODES_MAX, need_bytes=NEED_BYTES) for ccq, _ in items], go_on)

    def end(
        self, ccq_id: str, ending: Ending, reply: Callable[[Record | GalileoError], None]
    ) -> None:
        """End a CCQ, and tell its nodes."""

        def done(outcomes: Outcomes | None) -> None:
            outcome = outcomes[0] if outcomes else Unavailable("no node leads", after_s=0.3)
            if isinstance(outcome, Record):
                self._tell(outcome)
            reply(outcome)

        self.change([EndCcq(ccq_id, ending, self.wall)], done)

    def _tell(self, record: Record) -> None:
        self.learn({record.id: record})
        for name in record.nodes:
            node = self._world.node(name)
            learn = partial(node.learn, {record.id: record})
            self._world.network.send(self.name, name, partial(node.receive, learn))

    def fetch(self, event: FetchRequested, reply: Reply) -> None:
        """Answer as the coordinator, or look up which node is."""
        if event.ccq_id in self.machine.state.records:
            self.ask(event, reply)
            return
        if self._world.variant.conduct.denies_unasked:
            reply(RefuseFetch(event.request, unknown_failure(event.ccq_id)))
            return

        def answer(record: Record) -> None:
            self.learn({record.id: record} if record != NOTHING else {})
            acting = record.acting(self.machine.state.is_gone)
            if record.id in self.machine.state.records:
                self.ask(event, reply)
            elif record == NOTHING:
                reply(RefuseFetch(event.request, unknown_failure(event.ccq_id)))
            elif record.ended is not None:
                reply(RefuseFetch(event.request, end_reason(record)))
            elif not acting:
                reply(RefuseFetch(event.request, _unavailable("is getting a coordinator")))
            else:
                reply(RedirectFetch(event.request, acting))

        def done(outcomes: Outcomes | None) -> None:
            hint = self._hint(event.ccq_id)
            if outcomes is not None and isinstance(outcomes[0], Record):
                answer(outcomes[0])
            elif hint != NOTHING:
                self._loop.counters["hints without a leader"] += 1
                answer(hint)
            else:
                reply(RefuseFetch(event.request, _unavailable("cannot be looked up")))

        hint = self._hint(event.ccq_id) if self._loop.chance(HINTED) else NOTHING
        if hint != NOTHING:
            answer(hint)
        else:
            self.change([LookUp(event.ccq_id)], done)

    def _hint(self, ccq_id: str) -> Record:
        """What the other nodes know of a CCQ."""
        record = NOTHING
        for node in self._world.members:
            if node.serves and self._world.network.connects(self.name, node.name):
                record = merged(record, node.known().get(ccq_id, NOTHING))
        return record

    def ask(self, event: FetchRequested | CacheReadRequested, reply: Reply) -> None:
        self._replies[event.request] = reply
        self.feed(event)

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
        self.later(self._loop.delay(SYNC_MEAN_S), lambda: self._sync(log, found, reply))

    # --- inside -------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._loop.now - self._born

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Schedule an action of this run: a timer, or the result of a thread."""
        epoch = self.epoch

        def act() -> None:
            if self.epoch == epoch and self.is_up:
                action()

        self._loop.after(delay_s, lambda: self.receive(act))

    def _tick(self) -> None:
        self._step_membership(membership.MembershipTicked())
        self.feed(Ticked(self.wall))
        self.later(TICK_S, self._tick)

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
            if self.name in peer.machine.state.nodes:
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
        self.later(0.0, lambda: self.feed(event))

    def _carry_out(self, effects: list[ContinuousEffect]) -> None:
        for effect in effects:
            self._act(effect)

    def _act(self, effect: ContinuousEffect) -> None:
        if isinstance(effect, events.Reply):
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
            case ChangeRecords():
                self._change_records(effect)
            case ElectNodes(candidacies):
                self.elect(candidacies, lambda nodes: self.feed(NodesElected(nodes)))
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

    def _confirm(self, effect: ConfirmSequences) -> SequencesConfirmed:
        found = {p: self.reachable(p) for p in effect.partitions}
        sequences = Cursor({p: log.end for p, log in found.items() if log is not None})
        unreachable = tuple(p for p, log in found.items() if log is None)
        return SequencesConfirmed(effect.request, sequences, unreachable)

    def _note(self, event: ContinuousEvent, effects: list[ContinuousEffect]) -> None:
        if not effects and isinstance(event, (Ticked, CommitsObserved)):
            return
        self._loop.note(f"{self.name} {event} => {effects}")


def _unavailable(what: str) -> Failure:
    return Failure("unavailable", f"the continuous query {what}", (("after_s", 0.3),))
