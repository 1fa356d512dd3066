"""The replicas of a node: the machine of each replicated partition, and what its effects do.

Theory of operation. A machine (`galileo.replication.machine`) decides, and knows positions alone.
This driver steps the machines in the event loop, an event at a time, and carries out their effects:

- `WriteFrames`, `TruncateLog`, `PublishFrames` go to the writer of the dataset, which does all to
  one log in order and reports what is durable and published.
- `SaveReplicaState` waits for the record of all machines that wait, which have one sync together.
- `SendMessage` goes to the box of the other node. Its task attaches the frames, and sends what
  waits in one piece. Any message may be lost; machines repeat what matters.

A leader that is open, and whose readers see all that it began with, is announced as the owner of
the partition, as a `Move` with the number of its term. So all that routes by the topology finds it.

A leader that is alone in its set (`Replica.is_alone`) does not take part in writing: `alone` has
the writers of its logs commit by themselves. It gets no ticks, for it has no one to beat for. When
something else happens to it, such as a member that is wanted, that waits until all writers have
passed a barrier, and the machine has learned what was written (`WrittenAlone`).

A write that fails leaves the machine with frames that the disk does not have. The machine is thrown
away then, and another begins with what is on disk, as after a restart.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

from galileo.dht import placement, topology_changes
from galileo.dht.rack_spread import in_rounds
from galileo.dht.topology import SYSTEM, Founding
from galileo.dht.topology_state import TopologyState
from galileo.errors import CorruptData, GalileoError, PartitionMoved
from galileo.model.forks import first_of, history_of
from galileo.node.catalog import Catalog
from galileo.node.replication.comparison import Comparison
from galileo.node.replication.log_writer import LogWriter, WriteReport
from galileo.node.replication.protocol import Envelope, HeldPartitions, ReplicaLink
from galileo.node.shard import partition_moved
from galileo.replication.machine import Replica
from galileo.replication.messages import (
    Append,
    Beat,
    DropFrames,
    Fetched,
    FrameAppended,
    HandOverRequested,
    LogDropped,
    LogForgotten,
    LogSynced,
    MembersWanted,
    Message,
    MessageArrived,
    ReplicaEffect,
    ReplicaEvent,
    ReplicaTicked,
    ResetLog,
    SaveReplicaState,
    SendMessage,
    StartTerm,
    StateSaved,
    Support,
    TruncateLog,
    WriteFrames,
    WrittenAlone,
)
from galileo.replication.values import (
    Epochs,
    Log,
    Member,
    ReplicaSet,
    ReplicaState,
    ReplicationOptions,
)
from galileo.storage.commits import FrameGroup
from galileo.storage.frame import Buffer
from galileo.storage.journal import decode_frames
from galileo.storage.retention import LogStart
from galileo.storage.store import Store

KIND = "replicas"
"""Of the records of machines."""
IDLE_AFTER_S = 1.0
"""Time after which a machine is idle since its last event but beats and ticks."""
IDLE_TICK_S = 0.25
"""Pause between two ticks of an idle machine, unless its next beat or campaign is due."""
CHANGES_MAX = 4
"""Partitions of one leader that get members at the same time."""
MESSAGE_BYTES_MAX = 4 << 20
"""Size of the frames of one message; a single frame may exceed it."""
BOX_MAX = 20_000
"""Messages that wait for one node; beyond it the oldest are lost."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicasOptions:
    """Times of a node's replicas.

    Attributes:
        machine: those of each machine.
        tick_s: between two ticks of a machine that is not idle.
        members_s: between two looks at which members a partition should have.
        restart_s: after a failed write, a machine begins again.
        discard_s: what a node has of a partition is deleted so long after it left the set.
        heal_after_s: a member that was not heard for so long is replaced, if there is a node.
        return_after_s: a leader hands over to the node that should lead, when it has led so long.
        compare_s: between two comparisons of this leader's logs with those of the other members.
    """

    machine: ReplicationOptions = field(default_factory=ReplicationOptions)
    tick_s: float = 0.05
    members_s: float = 0.5
    restart_s: float = 1.0
    discard_s: float = 30.0
    heal_after_s: float = 600.0
    return_after_s: float = 10.0
    compare_s: float = 60.0


def _has_frames(message: Message) -> bool:
    return isinstance(message, Append | Fetched) and message.epochs.end > message.after


def _rest(message: Append | Fetched, last: int) -> Append | Fetched | None:
    """What is left of a message when its frames up to `last` are sent, None if that is all."""
    epochs = message.epochs
    if last >= epochs.end:
        return None
    rest = replace(message, after=last, epochs=epochs.range(last, epochs.end))
    return replace(rest, after_epoch=epochs.at(last)) if isinstance(rest, Append) else rest


def _is_complete(envelope: Envelope, machine: Replica) -> bool:
    """Whether a message has its frames, which a machine must not take for those on the disk, and
    the record of dropped commits, if this member has to begin with it.
    """
    message = envelope.message
    assert isinstance(message, Append | Fetched)
    if envelope.frames is None and _has_frames(message):
        return False
    known = machine.logs.get(message.log, Log())
    return bool(envelope.log_start) or message.start <= known.end


def load_states(store: Store) -> dict[int, ReplicaState]:
    """The states of this node's replicas by partition; errors as `Store.load_batches`."""
    return {int(name): decode_state(data) for name, data in store.load_batches(KIND).items()}


def encode_state(state: ReplicaState) -> bytes:
    current = state.set
    members = None
    if current is not None:
        kinds = sorted(current.voters), sorted(current.learners)
        members = [current.term, current.number, *kinds]
    return json.dumps([members, state.promised, state.joined, dict(state.suspect)]).encode()


def decode_state(data: bytes) -> ReplicaState:
    raw, promised, joined, suspect = json.loads(data)
    current = None
    if raw is not None:
        term, number, *members = raw
        voters, learners = (frozenset(Member(*one) for one in of_kind) for of_kind in members)
        current = ReplicaSet(term, number, voters, learners)
    return ReplicaState(current, promised, joined, MappingProxyType(suspect))


@dataclass(slots=True)
class ReplicaCounts:
    """Since the node started.

    Attributes:
        terms_led: in which it began to lead a partition.
        logs_set_aside: that were damaged.
        frame_bytes_sent: to other replicas.
    """

    terms_led: int = 0
    logs_set_aside: int = 0
    frame_bytes_sent: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaGauges:
    """The replicas of a node at the moment.

    Attributes:
        leading, following, learning: partitions, by what this node is in their sets.
        lag: frames that the member which is furthest behind this node's leaders lacks of one log.
    """

    leading: int
    following: int
    learning: int
    lag: int


@dataclass(slots=True)
class _Hosted:
    """A machine, and what the driver keeps for it.

    Attributes:
        announced: the term in which it was announced as leader, 0 if it is not.
        announced_at: since when.
        lease_until: until when no other member can have committed anything.
        under_way: frames that this leader has begun to write, by log: after which sequence they
            come, the last one, and their bytes.
        failed_at: when a write failed; the machine gets no more events.
        left_at: since when this node is not a member.
        is_discarded: whether its files are deleted, once it is saved that it has left.
        ticked_at: when it had its last tick.
        idle_at: from when on it is idle.
        is_alone: whether writers may have committed what the machine does not know.
        barriers: the writers that have to pass one.
        held: events that wait until they have, with their envelopes.
    """

    machine: Replica
    announced: int = 0
    announced_at: float = -inf
    lease_until: float = -inf
    under_way: dict[str, deque[tuple[int, int, Buffer]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    failed_at: float | None = None
    left_at: float | None = None
    is_discarded: bool = False
    ticked_at: float = -inf
    idle_at: float = inf
    is_alone: bool = False
    barriers: int = 0
    held: deque[tuple[ReplicaEvent, Envelope | None]] = field(default_factory=deque)

    def tick_at(self, now: float, options: ReplicasOptions) -> float:
        """When the next tick may have something to do."""
        if self.is_alone:
            return inf
        if now < self.idle_at:
            return self.ticked_at + options.tick_s
        return min(self.ticked_at + IDLE_TICK_S, self.machine.due_at)


_OF_OWN_LOGS = (FrameAppended, LogSynced, WrittenAlone, LogForgotten)
"""The events that do not end that a machine is alone."""


def _is_routine(event: ReplicaEvent) -> bool:
    """Whether the event also happens where nothing is stored and no node fails."""
    if isinstance(event, MessageArrived):
        return isinstance(event.message, Beat | Support)
    return isinstance(event, ReplicaTicked)


@dataclass(slots=True)
class _Box:
    """What waits for one node."""

    messages: deque[tuple[int, Member, Message]]
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Replicas:
    """Drives the machines of one node.

    Args:
        name: of this node.
        live: the topology.
        store: keeps the states; its directory has the disk's identity.
        options: times.
        monotonic: seconds, of a clock that never jumps.

    Attributes:
        terms: the term of each partition in which this node takes commits.
        alone: the partitions whose writers commit without their machines.
        led: the partitions that this node leads, and whose frames readers see.
        lone: those of them in whose sets there is no other member.
        given_up: the partitions that were founded anew while this directory counted as lost.
        restored: the partitions that wait for `lead_restored`.
        counts: since the node started.
        comparison: of this leader's logs with those of the other members, once it is connected.
        is_alive: whether a node has been heard lately, once it is connected.
    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        store: Store,
        options: ReplicasOptions | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.me = Member(name, store.identity)
        self.options = options or ReplicasOptions()
        self.terms: Mapping[int, int] = {}
        self.alone = frozenset[int]()
        self.led: frozenset[int] = frozenset()
        self.lone: frozenset[int] = frozenset()
        self.given_up: frozenset[int] = frozenset()
        self.restored: frozenset[int] = frozenset()
        self.counts = ReplicaCounts()
        self._live = live
        self._store = store
        self._monotonic = monotonic
        self._hosted: dict[int, _Hosted] = {}
        self._boxes: dict[tuple[str, bool], _Box] = {}
        self._founding: Founding | None = None
        self._unsaved: dict[int, tuple[_Hosted, ReplicaState]] = {}
        self._saving: set[int] = set()
        self._has_unsaved = asyncio.Event()
        self._woken = asyncio.Event()
        self._answers: list[Envelope] | None = None
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(
        self,
        catalog: Catalog,
        link: ReplicaLink,
        *,
        identity_of: Callable[[str], str],
        is_alive: Callable[[str], bool],
        lead: Callable[[int, int], None],
        learn: Callable[[str, str, int], Awaitable[None]],
    ) -> None:
        """Starts the machines that have a state; in the event loop, before `run`.

        Args:
            catalog: of this node.
            link: sends to other nodes.
            identity_of: the identity of a node's directory, "" while it is not known.
            is_alive: whether a node has been heard lately.
            lead: announces this node as the owner of a partition in a term.
            learn: has this node learn a dataset with so many added features from another one.
        """
        self.loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._link = link
        self._identity_of = identity_of
        self.is_alive = is_alive
        self._lead = lead
        self._learn = learn
        self.comparison = Comparison(
            catalog, link, followers=self._followers, interval_s=self.options.compare_s
        )
        self._set_damaged_aside()
        self._host_all()
        self._found()
        self._elect_alone()

    def _host_all(self) -> None:
        """Starts the machines that have a state.

        Those of a directory that was restored begin a later history. Where the directory has the
        only copy, they wait: the partition may have moved since the backup was made.
        """
        lowest = first_of(self._store.history) - 1
        for partition, state in load_states(self._store).items():
            hosted, current = self._host(partition, state), state.set
            if current is None or self.me not in current.voters or state.promised >= lowest:
                continue
            if current.voters == {self.me}:
                hosted.failed_at = inf
                self.restored = self.restored | {partition}
            else:
                self._host(partition, replace(state, promised=lowest))

    def lead_restored(self) -> None:
        """Has the machines lead whose directory was restored, in a later history.

        The caller has heard the other nodes. If one of them leads a partition, this node has an old
        copy, which it does not serve.
        """
        for partition in self.restored:
            hosted, known = self._hosted[partition], self._live.move_of(partition)
            if partition in self.given_up or (known is not None and known.node != self.me.node):
                continue
            lowest = self._lowest_term(partition, self._store.history)
            self._host(partition, replace(hosted.machine.state, promised=lowest))
        self.restored = frozenset()

    def _elect_alone(self) -> None:
        """Lets machines that are alone in their sets lead; blocks on the disk.

        They need no other member, so this node serves their partitions at once.
        """
        for partition, hosted in self._hosted.items():
            current = hosted.machine.state.set
            if current is not None and current.members == {self.me}:
                self._step(partition, ReplicaTicked())
        while self._unsaved:
            unsaved, self._unsaved = self._unsaved, {}
            self._store.save_batch(
                KIND, {str(p): encode_state(state) for p, (_, state) in unsaved.items()}
            )
            for partition, (_, state) in unsaved.items():
                self._step(partition, StateSaved(state))
        self._has_unsaved.clear()

    def _set_damaged_aside(self) -> None:
        """Begins logs anew that the start has found damaged.

        Raises:
            CorruptData: no other node has what is committed.
        """
        states = load_states(self._store)
        for partition in {partition for _, partition in self._store.damaged}:
            self._begin_anew(partition, states.get(partition, ReplicaState()))

    def _begin_anew(self, partition: int, state: ReplicaState) -> ReplicaState:
        """Sets the damaged logs of a partition aside; blocks on the disk.

        The state says first what may be lost, so that this member's vote does not deny it. Where
        the end of a log is not known, it promises the next term, too, so that the leader begins
        one: who joins it is sound again.

        Raises:
            CorruptData: no other node has what is committed.
            OSError, GalileoError: the disk refuses.
        """
        damaged = {d: error for (d, p), error in self._store.damaged.items() if p == partition}
        if state.set is not None and not state.set.voters - {self.me}:
            raise next(iter(damaged.values()))
        suspect, promised = dict(state.suspect), state.promised
        for dataset in damaged:
            journal = self._catalog.shards[dataset].journals.get(partition)
            if journal is None:
                end, promised = self._store.sequence_bound(dataset, partition), state.promised + 1
            else:
                end = journal.end_sequence
            suspect[dataset] = max(end, suspect.get(dataset, 0))
        state = replace(state, suspect=MappingProxyType(suspect), promised=promised)
        self._store.save_batch(KIND, {str(partition): encode_state(state)})
        for dataset, error in damaged.items():
            place = self._catalog.set_aside(dataset, partition)
            self.counts.logs_set_aside += 1
            log.error(
                "partition %d of %s is damaged in %s at byte %s; its files are in %s now, and it "
                "is copied from other nodes",
                *(partition, dataset, error.details.get("file"), error.details.get("offset")),
                place,
            )
        return state

    # --- what the node asks --------------------------------------------------------------------

    def holds_lease(self, partition: int) -> bool:
        """Whether this node leads a partition, and no other can have committed since."""
        hosted = self._hosted.get(partition)
        return (
            hosted is not None and hosted.announced > 0 and (self._monotonic() < hosted.lease_until)
        )

    def follows(self, partition: int) -> bool:
        """Whether this node has joined the term of the leader that it knows, or a later one.

        What it has published is then a part of that leader's log. This matters where a majority was
        lost and the survivors went on without it: a former member that returns may have published
        commits which they do not have, until it joins a term of theirs.
        """
        hosted, known = self._hosted.get(partition), self._live.move_of(partition)
        if hosted is None or known is None or hosted.failed_at is not None:
            return False
        return hosted.machine.saved.joined >= known.number

    def is_lost(self, partition: int) -> bool:
        """Whether the only copy of a partition was in a directory that this node has lost."""
        topology, me = self._live.current, self.me
        is_hosted = partition in self._hosted.keys() - self.given_up
        if topology.replicas > 1 or is_hosted or topology.founding is None:
            return False
        node, disks = topology.by_name.get(me.node), topology.founding.disks
        is_another = node is not None and node.identity not in ("", me.disk)
        is_owner = partition in self._live.partitions(me.node)
        return is_another and is_owner and disks[partition] not in ("", me.disk)

    @property
    def may_found(self) -> frozenset[int]:
        """The partitions that begin in this directory if they have begun in none."""
        system = frozenset([SYSTEM]) - self._hosted.keys()
        return self._live.partitions(self.me.node) | system

    @property
    def member_of(self) -> list[int]:
        """The partitions of whose replica set this node is a member, as far as it knows."""
        sets = {p: hosted.machine.state.set for p, hosted in self._hosted.items()}
        return sorted(p for p, one in sets.items() if one is not None and self.me in one.members)

    def held(self) -> HeldPartitions:
        """What this directory has of partitions, without old copies, which it does not serve."""
        voting = frozenset(
            partition
            for partition, hosted in self._hosted.items()
            if (current := hosted.machine.saved.set) is not None
            and self.me in current.voters
            and (hosted.failed_at != inf or partition in self.restored - self.given_up)
        )
        return HeldPartitions(voting, frozenset(filter(self.holds_lease, self.led)))

    def gauges(self) -> ReplicaGauges:
        machines = [hosted.machine for hosted in self._hosted.values()]
        sets = [one.state.set for one in machines if one.state.set is not None]
        voting = sum(self.me in one.voters for one in sets)
        return ReplicaGauges(
            leading=len(self.led),
            following=voting - len(self.led),
            learning=sum(self.me in one.learners for one in sets),
            lag=max((one.lag for one in machines), default=0),
        )

    @property
    def under_replicated(self) -> list[int]:
        """The partitions of this node with too few voters that have all, or without a leader."""
        led = {p for p in self.led if p in self._hosted}
        lacking = {p for p in led if not self._is_whole(p, self._hosted[p].machine)}
        unled = self._live.partitions(self.me.node) - led
        return sorted(lacking | unled | set(self.leaderless))

    @property
    def leaderless(self) -> list[int]:
        """The partitions of which this node is a member and hears no leader."""
        now = self._monotonic()
        return [p for p in self.member_of if not self._hosted[p].machine.knows_leader(now)]

    def _followers(self) -> dict[int, list[Member]]:
        """The other voters of the partitions that this node leads."""
        sets = {p: self._hosted[p].machine.state.set for p in self.led if p in self._hosted}
        return {p: sorted(one.voters - {self.me}) for p, one in sets.items() if one is not None}

    def _is_whole(self, partition: int, machine: Replica) -> bool:
        """Whether enough voters live, in their nodes' present directories, and have everything."""
        current = machine.state.set
        if current is None or not machine.is_whole:
            return False
        heard_since = self._monotonic() - self.options.machine.dead_after_s
        is_present = all(
            self._identity_of(member.node) in ("", member.disk)
            and machine.heard_at(member) >= heard_since
            for member in current.voters
        )
        return is_present and len(current.voters) >= self._copies(partition)

    def _copies(self, partition: int) -> int:
        """How many copies a partition should have."""
        topology = self._live.current
        if partition == SYSTEM:
            return topology_changes.system_copies(topology)
        return topology.replicas

    # --- machines ------------------------------------------------------------------------------

    def _host(self, partition: int, state: ReplicaState) -> _Hosted:
        """Starts the machine of a partition with what is on disk."""
        logs = {}
        for dataset, shard in self._catalog.shards.items():
            journal = shard.journals.get(partition)
            if journal is not None:
                end, start = journal.end_sequence, journal.dropped
                epochs = Epochs(journal.epochs, end, start, journal.forks.between(start, end))
                logs[dataset] = epochs, journal.last_sequence
        machine = Replica(
            self.me,
            self._live.current.ordinals[self.me.node],
            state=state,
            logs=logs,
            now=self._monotonic(),
            options=self.options.machine,
            is_forgotten=self._catalog.is_dropped,
        )
        hosted = self._hosted[partition] = _Hosted(machine)
        self._woken.set()
        return hosted

    def _found(self) -> None:
        """Starts the machines of partitions that begin at this node's directory."""
        founding = self._live.current.founding
        if founding is None or founding is self._founding:
            return
        self._founding, histories = founding, dict(founding.histories)
        for partition, disk in (*enumerate(founding.disks), (SYSTEM, founding.system)):
            history = histories.get(partition, 0)
            self._end_earlier_history(partition, history)
            if disk == self.me.disk and partition not in self._hosted:
                lowest = self._lowest_term(partition, history)
                first = ReplicaSet(lowest, 1, frozenset([self.me]))
                self._host(partition, ReplicaState(set=first, promised=lowest))

    def _lowest_term(self, partition: int, history: int) -> int:
        """The lowest term of a history, or of one behind that of the last known leader.

        That leader had another directory, also if the clock says that it is of a later history.
        """
        known = self._live.move_of(partition)
        return (
            first_of(history if known is None else max(history, history_of(known.number) + 1)) - 1
        )

    def _end_earlier_history(self, partition: int, history: int) -> None:
        """Ends the machine of a partition that has begun anew in another directory since.

        This directory was given up for lost: what it has would hide what was stored since.
        """
        hosted = self._hosted.get(partition)
        current = None if hosted is None else hosted.machine.state.set
        if hosted is None or current is None or self.me not in current.members:
            return
        if current.history >= history:
            return
        error = PartitionMoved(
            "it has begun anew in another directory, as after galileo node forget; what this "
            "directory has of it is not served",
            partition=partition,
        )
        self._fail(partition, hosted, error)
        hosted.failed_at = inf
        self.given_up = self.given_up | {partition}

    def _step(self, partition: int, event: ReplicaEvent, envelope: Envelope | None = None) -> None:
        """Steps a machine; with the envelope that the event came in, if it is a message."""
        hosted = self._hosted[partition]
        if hosted.failed_at is not None:
            return
        if hosted.is_alone and not isinstance(event, _OF_OWN_LOGS):
            hosted.held.append((event, envelope))
            self._end_alone(partition, hosted)
            return
        now = self._monotonic()
        if isinstance(event, ReplicaTicked):
            hosted.ticked_at = now
        if hosted.idle_at == inf or not _is_routine(event):
            if now >= hosted.idle_at:
                self._woken.set()  # Its next tick is due earlier than it was.
            hosted.idle_at = now + IDLE_AFTER_S
        for effect in hosted.machine.step(event, now):
            self._carry_out(partition, hosted, effect, envelope)
        self._after_step(partition, hosted)

    def _end_alone(self, partition: int, hosted: _Hosted) -> None:
        """Has the machine learn what its writers have committed, before anything else happens."""
        if partition not in self.alone:
            return  # The writers are passing their barriers.
        # A writer reads it for each append, so what comes after its barrier is not written alone.
        self.alone -= {partition}
        writers = self._writers()
        hosted.barriers = len(writers) + 1  # The last one is that of this method.
        for dataset, writer in writers.items():
            writer.pass_barrier(partition, partial(self._on_barrier, partition, hosted, dataset))
        self._count_barrier(partition, hosted)

    def _on_barrier(self, partition: int, hosted: _Hosted, dataset: str, end: int) -> None:
        if self._hosted.get(partition) is not hosted:
            return  # It has begun anew, with what is on disk.
        if not self._catalog.is_dropped(dataset):
            self._note_written(partition, hosted, dataset, end)
        self._count_barrier(partition, hosted)

    def _note_written(self, partition: int, hosted: _Hosted, dataset: str, end: int) -> None:
        known = hosted.machine.logs.get(dataset, Log())
        if end > known.end:
            self._step(partition, WrittenAlone(dataset, end))

    def _count_barrier(self, partition: int, hosted: _Hosted) -> None:
        hosted.barriers -= 1
        if hosted.barriers:
            return
        hosted.is_alone = False
        held, hosted.held = hosted.held, deque()
        for event, envelope in held:
            self._step(partition, event, envelope)

    def _carry_out(
        self,
        partition: int,
        hosted: _Hosted,
        effect: ReplicaEffect,
        envelope: Envelope | None,
    ) -> None:
        if isinstance(effect, SendMessage):
            self._send(partition, effect.to, effect.message)
        elif isinstance(effect, SaveReplicaState):
            self._unsaved[partition] = hosted, effect.state
            self._has_unsaved.set()
        else:
            self._write(partition, hosted, effect, envelope)

    def _write(
        self,
        partition: int,
        hosted: _Hosted,
        effect: ReplicaEffect,
        envelope: Envelope | None,
    ) -> None:
        """Has the writer of a log do an effect; nothing if the dataset was dropped."""
        assert not isinstance(effect, SaveReplicaState | SendMessage)
        writer = self._catalog.log_writer(effect.log)
        if writer is None:
            return
        if isinstance(effect, WriteFrames):
            assert envelope is not None, "frames are written when they have come"
            assert isinstance(envelope.message, Append | Fetched)
            assert envelope.frames is not None, "a message with frames that came without"
            writer.write(partition, envelope.message.epochs, envelope.frames)
        elif isinstance(effect, TruncateLog):
            hosted.under_way.pop(effect.log, None)
            writer.truncate(partition, effect.end)
        elif isinstance(effect, ResetLog):
            assert envelope is not None, "a log begins anew with a leader's message"
            assert envelope.log_start or not effect.start, "a leader's record of what it dropped"
            writer.restart(partition, envelope.log_start or LogStart().to_bytes())
        elif isinstance(effect, DropFrames):
            writer.drop(partition, effect.until)
        else:
            writer.publish(partition, effect.until)

    def _after_step(self, partition: int, hosted: _Hosted) -> None:
        """Follows the machine: whether it takes commits, leads, and until when surely."""
        machine = hosted.machine
        term = machine.state.promised if machine.is_open else 0
        if self.terms.get(partition, 0) != term:
            others = {p: t for p, t in self.terms.items() if p != partition}
            self.terms = {**others, partition: term} if term else others
        lead = machine.leadership
        if hosted.announced and (lead is None or lead.term != hosted.announced):
            self._stop_leading(partition, hosted)
        if lead is not None:
            hosted.lease_until = machine.lease_until
            if lead.is_open and hosted.announced != lead.term and self._is_published(partition):
                self._announce(partition, hosted, lead.term)
        self._note_lone(partition, hosted)
        if hosted.announced and not hosted.is_alone and machine.is_alone:
            hosted.is_alone = True
            self.alone |= {partition}

    def _note_lone(self, partition: int, hosted: _Hosted) -> None:
        current = hosted.machine.saved.set
        is_lone = hosted.announced > 0 and current is not None and current.members == {self.me}
        if is_lone != (partition in self.lone):
            self.lone ^= {partition}

    def _is_published(self, partition: int) -> bool:
        """Whether readers see all that the leader knows to be committed."""
        shards = self._catalog.shards
        return all(
            shards[dataset].published_sequence(partition) >= one.committed
            for dataset, one in self._hosted[partition].machine.logs.items()
            if dataset in shards
        )

    def _announce(self, partition: int, hosted: _Hosted, term: int) -> None:
        hosted.announced, hosted.announced_at = term, self._monotonic()
        for shard in self._catalog.shards.values():
            shard.lead(partition, term)
        self.led = self.led | {partition}
        self.counts.terms_led += 1
        self._lead(partition, term)
        log.info("leads partition %d in term %d", partition, term)

    def _stop_leading(self, partition: int, hosted: _Hosted) -> None:
        hosted.announced, hosted.lease_until = 0, -inf
        hosted.under_way.clear()
        self.led = self.led - {partition}
        self.lone = self.lone - {partition}
        error = partition_moved([partition])
        for writer in self._writers().values():
            writer.refuse(partition, error)
        log.info("leads partition %d no more", partition)

    def _writers(self) -> dict[str, LogWriter]:
        """The writers of all datasets."""
        writers = {dataset: self._catalog.log_writer(dataset) for dataset in self._catalog.shards}
        return {dataset: writer for dataset, writer in writers.items() if writer is not None}

    # --- leaders write -------------------------------------------------------------------------

    def begin(self, dataset: str, groups: Mapping[int, FrameGroup]) -> frozenset[int]:
        """Steps the machines with commits that are about to be written.

        Returns:
            The partitions that this node does not lead any more, or not in the term of the frames.
        """
        refused = set()
        for partition, group in groups.items():
            hosted = self._hosted.get(partition)
            if hosted is not None and hosted.is_alone:  # The writer has not passed its barrier.
                self._note_written(partition, hosted, dataset, group.after)
            if hosted is None or not self._takes(hosted, dataset, group):
                refused.add(partition)
                continue
            last = group.next_sequence - 1
            frames = group.buffers[0] if len(group.buffers) == 1 else b"".join(group.buffers)
            hosted.under_way[dataset].append((group.after, last, frames))
            self._step(partition, FrameAppended(dataset, last))
        return frozenset(refused)

    def _takes(self, hosted: _Hosted, dataset: str, group: FrameGroup) -> bool:
        machine = hosted.machine
        known = machine.logs.get(dataset, Log())
        return (
            hosted.failed_at is None
            and machine.is_open
            and machine.state.promised == group.headers[0].epoch
            and known.end == group.after
        )

    def on_written(self, reports: Sequence[WriteReport]) -> None:
        """Steps the machines with what is durable; one whose write failed begins again."""
        for report in reports:
            hosted = self._hosted.get(report.partition)
            writer = self._catalog.log_writer(report.dataset)
            if hosted is None or writer is None:
                continue
            if report.error is not None:
                self._fail(report.partition, hosted, report.error)
                continue
            under_way = hosted.under_way.get(report.dataset)
            while under_way and under_way[0][1] <= report.published:
                under_way.popleft()
            if report.cuts == writer.cuts_asked(report.partition):
                self._step(report.partition, LogSynced(report.dataset, report.end))

    def _fail(self, partition: int, hosted: _Hosted, error: GalileoError) -> None:
        if hosted.failed_at is None:
            log.error("partition %d has failed: %s", partition, error)
            hosted.failed_at = self._monotonic()
            self.terms = {p: term for p, term in self.terms.items() if p != partition}
            self.alone -= {partition}
            self._stop_leading(partition, hosted)

    def has_others(self, partition: int) -> bool:
        """Whether other members vote, so that they have all that is committed; any thread."""
        hosted = self._hosted.get(partition)
        current = None if hosted is None else hosted.machine.saved.set
        return current is not None and bool(current.voters - {self.me})

    def on_damage(self, dataset: str, partition: int, error: CorruptData) -> None:
        """Notes that stored bytes of a log are damaged; `_repair_damaged` does the rest."""
        if not self._catalog.is_dropped(dataset):
            self._store.damaged.setdefault((dataset, partition), error)

    def _repair_damaged(self) -> None:
        """Begins damaged logs anew where this node follows; where it leads, it hands over first."""
        for (_, partition), error in list(self._store.damaged.items()):
            hosted = self._hosted[partition]
            if hosted.failed_at is not None or not self.has_others(partition):
                continue
            if hosted.machine.leadership is None:
                self._fail(partition, hosted, error)
            elif successors := hosted.machine.successors(self._monotonic()):
                self._step(partition, HandOverRequested(successors[0]))

    def _restart(self, partition: int, hosted: _Hosted) -> None:
        """Replaces a machine, when nothing of its partition is under way."""
        is_idle = all(writer.has_nothing_to_do(partition) for writer in self._writers().values())
        if not is_idle or partition in self._unsaved.keys() | self._saving:
            return
        is_damaged = any(damaged == partition for _, damaged in self._store.damaged)
        if is_damaged and self.has_others(partition):
            hosted.failed_at = inf  # It is not restarted otherwise meanwhile.
            self._spawn(self._repair(partition, hosted))
        else:
            self._host(partition, hosted.machine.saved)

    async def _repair(self, partition: int, hosted: _Hosted) -> None:
        """Replaces a machine of which a log is damaged by one that gets the log from others."""
        try:
            state = await asyncio.to_thread(self._begin_anew, partition, hosted.machine.saved)
        except (OSError, GalileoError) as error:
            log.error("partition %d cannot be copied again: %s", partition, error)
            hosted.failed_at = self._monotonic()
        else:
            self._host(partition, state)

    # --- messages ------------------------------------------------------------------------------

    async def receive(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Takes messages of another node; those to another directory are dropped.

        Returns:
            The answers to beats, which save a node that has nothing else to do calls of its own.
        """
        self._answers = answers = list[Envelope]()
        try:
            self._take_all(envelopes)
        finally:
            self._answers = None
        return answers

    def _take_all(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.to != self.me:
                continue
            hosted, message = self._hosted.get(envelope.partition), envelope.message
            if hosted is None:
                if not isinstance(message, StartTerm) or self.me not in message.set.members:
                    continue
                hosted = self._host(envelope.partition, ReplicaState())
            if isinstance(message, Append | Fetched) and not _is_complete(envelope, hosted.machine):
                continue
            missing = self._unknown_dataset(envelope)
            if missing is not None:
                self._learn_dataset(envelope.sender.node, missing, envelope.added)
                continue
            event = MessageArrived(envelope.sender, message)
            self._step(envelope.partition, event, envelope)

    def _unknown_dataset(self, envelope: Envelope) -> str | None:
        """A dataset of the message that this node has to learn first, or features of it."""
        named: Iterable[str] = ()
        message = envelope.message
        if isinstance(message, Append | Fetched):
            named = [message.log]
        elif isinstance(message, StartTerm):
            named = message.logs
        return next((one for one in named if self._catalog.lacks(one, envelope.added)), None)

    def _learn_dataset(self, node: str, dataset: str, added: int) -> None:
        if dataset in self._learning:
            return

        async def learn() -> None:
            try:
                await self._learn(node, dataset, added)
            except GalileoError as error:
                log.warning("cannot learn dataset %s from %s: %s", dataset, node, error)
            finally:
                del self._learning[dataset]

        self._learning[dataset] = asyncio.create_task(learn())

    def _send(self, partition: int, to: Member, message: Message) -> None:
        """Queues a message; those with frames do not delay the others."""
        if self._answers is not None and isinstance(message, Support):
            self._answers.append(Envelope(partition, self.me, to, message))
            return
        lane = to.node, _has_frames(message)
        box = self._boxes.get(lane)
        if box is None:
            box = self._boxes[lane] = _Box(deque(maxlen=BOX_MAX))
            self._spawn(self._deliver(to.node, box))
        box.messages.append((partition, to, message))
        box.wake.set()

    async def _deliver(self, node: str, box: _Box) -> None:
        while True:
            await box.wake.wait()
            box.wake.clear()
            while box.messages:
                try:
                    envelopes = await self._take(box.messages)
                    if envelopes:
                        self._take_all(await self._link.send(node, envelopes))
                        self.counts.frame_bytes_sent += sum(e.frames_bytes for e in envelopes)
                    continue
                except GalileoError as error:
                    log.debug("cannot send to %s: %s", node, error)
                except Exception:
                    log.exception("sending to %s failed", node)
                await asyncio.sleep(self.options.tick_s)

    async def _take(self, messages: deque[tuple[int, Member, Message]]) -> list[Envelope]:
        """The oldest messages that fit into one piece; those whose frames are gone are left out."""
        envelopes, size = [], 0
        while messages and size < MESSAGE_BYTES_MAX:
            partition, to, message = messages.popleft()
            frames: Buffer | None = None
            if _has_frames(message):
                assert isinstance(message, Append | Fetched)
                found = self._under_way(partition, message)
                if found is None:
                    found = await asyncio.to_thread(self._read_frames, partition, message)
                if found is None:
                    continue
                rest = _rest(message, found[0].epochs.end)
                if rest is not None:
                    messages.appendleft((partition, to, rest))
                message, frames = found
                size += len(frames)
            log_start = self._log_start_of(partition, message)
            added = 0 if frames is None else self._added_of(message)
            envelopes.append(Envelope(partition, self.me, to, message, frames, log_start, added))
        return envelopes

    def _added_of(self, message: Message) -> int:
        """The number of features added to the dataset of a message; 0 if it was dropped."""
        assert isinstance(message, Append | Fetched)
        shard = self._catalog.shards.get(message.log)
        return 0 if shard is None else shard.schema.added

    def _log_start_of(self, partition: int, message: Message) -> bytes:
        """The record of what was dropped, with a message from which a member may begin anew."""
        if not isinstance(message, Append | Fetched) or not 0 < message.start == message.after:
            return b""
        shard = self._catalog.shards.get(message.log)
        journal = None if shard is None else shard.journals.get(partition)
        if journal is None or journal.dropped != message.start:
            return b""
        return journal.log_start_record

    def _under_way(
        self, partition: int, message: Append | Fetched
    ) -> tuple[Append | Fetched, Buffer] | None:
        """The frames of a message from memory, if they are what is being written."""
        hosted = self._hosted.get(partition)
        if hosted is None or hosted.machine.state.promised != message.term:
            return None
        for after, last, frames in hosted.under_way.get(message.log, ()):
            if after == message.after and last <= message.epochs.end:
                return replace(message, epochs=message.epochs.cut(last)), frames
        return None

    def _read_frames(
        self, partition: int, message: Append | Fetched
    ) -> tuple[Append | Fetched, Buffer] | None:
        """The frames of a message from the disk, as many as fit into one; in a thread."""
        shard = self._catalog.shards.get(message.log)
        journal = None if shard is None else shard.journals.get(partition)
        if shard is None or journal is None or journal.end_sequence <= message.after:
            return None
        until = min(message.epochs.end, journal.end_sequence)
        try:
            last, frames = journal.frames(message.after, until, bytes_max=MESSAGE_BYTES_MAX)
            epochs = message.epochs.cut(last)
            decode_frames(
                frames,
                schema=shard.schema,
                partition=partition,
                after=message.after,
                epochs=epochs,
            )
        except GalileoError as error:
            log.warning("cannot read frames of partition %d: %s", partition, error)
            if isinstance(error, CorruptData):
                journal.report_damage(error)
            return None
        return replace(message, epochs=epochs), frames

    # --- states --------------------------------------------------------------------------------

    async def _save(self) -> None:
        while True:
            await self._has_unsaved.wait()
            self._has_unsaved.clear()
            unsaved, self._unsaved = self._unsaved, {}
            self._saving = set(unsaved)
            await self._save_states({p: state for p, (_, state) in unsaved.items()})
            self._saving = set()
            for partition, (hosted, state) in unsaved.items():
                if self._hosted.get(partition) is not hosted:
                    continue
                if hosted.is_discarded:
                    self._spawn(self._delete_files(partition, state))
                else:
                    hosted.machine.saved = state  # Also of one that has failed, and begins again.
                    self._step(partition, StateSaved(state))

    async def _save_states(self, states: Mapping[int, ReplicaState]) -> None:
        """Makes states durable; tries until the disk takes them.

        Only `_save` calls it, so that an earlier state of a partition never replaces a later one.
        """
        values = {str(partition): encode_state(state) for partition, state in states.items()}
        while True:
            try:
                await asyncio.to_thread(self._store.save_batch, KIND, values)
                return
            except GalileoError as error:
                log.error("states of replicas cannot be stored: %s", error)
                await asyncio.sleep(self.options.restart_s)

    # --- members -------------------------------------------------------------------------------

    def _wanted(self, partition: int, ranking: Sequence[str]) -> frozenset[Member]:
        """The members that a partition should have, in a cluster as it is now.

        They are the first nodes of its ranking that live, in as many racks as there are. A member
        that was not heard for `heal_after_s` counts as dead, unless there is no node to replace it.
        """
        hosted = self._hosted[partition]
        current = hosted.machine.state.set
        assert current is not None, "a leader has a set"
        members = {member.node: member for member in current.members}
        usable = [node for node in ranking if self._is_usable(node, hosted, members)]
        rest = [node for node in ranking if node in members and node not in usable]
        domains, copies = self._live.current.fault_domains, self._copies(partition)
        wanted = [*in_rounds(usable, domains), *rest][:copies]
        return frozenset(
            Member(node, self._identity_of(node) or members[node].disk) for node in wanted
        )

    def _is_usable(self, node: str, hosted: _Hosted, members: Mapping[str, Member]) -> bool:
        identity = self._identity_of(node)
        if node == self.me.node:
            return True
        if node not in members or identity not in ("", members[node].disk):
            return bool(identity) and self.is_alive(node)
        heard_at = hosted.machine.heard_at(members[node])
        return self._monotonic() < heard_at + self.options.heal_after_s

    def _note_dropped(self) -> None:
        """Steps the machines with what retention has dropped."""
        for dataset, shard in self._catalog.shards.items():
            for partition, journal in shard.journals.items():
                hosted = self._hosted.get(partition)
                if hosted is None or hosted.is_alone:
                    continue
                known = hosted.machine.logs.get(dataset)
                if known is not None and journal.dropped > known.start:
                    self._step(partition, LogDropped(dataset, journal.dropped))

    def forget(self, datasets: Iterable[str]) -> None:
        """Forgets the logs of dropped datasets."""
        for dataset in datasets:
            for partition in list(self._hosted):
                self._store.damaged.pop((dataset, partition), None)
                self._step(partition, LogForgotten(dataset))

    def _want_members(self, rankings: Mapping[int, Sequence[str]]) -> None:
        """Names the members that led partitions should have; few change at a time."""
        led = [(p, self._hosted[p]) for p in self.led if p in self._hosted]
        changing = sum(
            bool(one.machine.state.set and one.machine.state.set.learners) for _, one in led
        )
        for partition, hosted in led:
            machine = hosted.machine
            current = machine.state.set
            if current is None or machine.leadership is None:
                continue
            wanted = self._wanted(partition, rankings[partition])
            if wanted == machine.wanted or (hosted.is_alone and wanted == current.members):
                continue
            is_new = not wanted <= current.members
            if is_new and changing >= CHANGES_MAX and len(current.voters) > 1:
                continue
            changing += is_new
            self._step(partition, MembersWanted(wanted))

    def _yield_to_later_leaders(self) -> None:
        """Stops to lead, alone, what another node leads in a later term.

        The directory is then an old copy, as from a backup: the partition has moved since. If that
        node is this one, the others know commits that it has lost, and it leads in a later history.
        """
        for partition in sorted(self.led & self.alone):
            hosted, known = self._hosted[partition], self._live.move_of(partition)
            if known is None or known.number <= hosted.announced:
                continue
            if known.node == self.me.node:
                self._fail(partition, hosted, partition_moved([partition]))
                hosted.machine.saved = replace(hosted.machine.saved, promised=known.number)
                continue
            self._fail(
                partition,
                hosted,
                PartitionMoved(
                    f"node {known.node} leads partition {partition} in a later term; this "
                    "directory has an old copy of the partition",
                    partition=partition,
                ),
            )
            hosted.failed_at = inf

    def _return_leadership(self, rankings: Mapping[int, Sequence[str]]) -> None:
        """Hands one partition over to the node that should lead it, if that has all."""
        now = self._monotonic()
        for partition in sorted(self.led):
            hosted = self._hosted[partition]
            first = rankings[partition][0]
            if first == self.me.node or now < hosted.announced_at + self.options.return_after_s:
                continue
            for successor in hosted.machine.successors(now):
                if successor.node == first:
                    hosted.announced_at = now  # If it fails, it is tried again later.
                    self._step(partition, HandOverRequested(successor))
                    return

    def _discard(self) -> None:
        """Begins to delete the files of partitions that this node is no member of any more.

        The state stays, without the joined term: it says that the partition was founded, and that
        this node has none of its frames.
        """
        now = self._monotonic()
        for partition, hosted in list(self._hosted.items()):
            state = hosted.machine.saved
            if state.set is None or self.me in state.set.members:
                hosted.left_at = None
            elif hosted.left_at is None:
                hosted.left_at = now
            elif now < hosted.left_at + self.options.discard_s or hosted.failed_at is not None:
                continue
            elif hosted.machine.state != state:
                continue  # A later state is being saved.
            elif state.joined or any(log.end for log in hosted.machine.logs.values()):
                hosted.failed_at = inf  # It gets no more events, so it saves no other state.
                hosted.is_discarded = True
                self._unsaved[partition] = hosted, ReplicaState(state.set, state.promised)
                self._has_unsaved.set()

    async def _delete_files(self, partition: int, left: ReplicaState) -> None:
        await asyncio.to_thread(self._delete, partition)
        self._host(partition, left)

    def _delete(self, partition: int) -> None:
        self._catalog.close_partition(partition)
        try:
            self._store.delete_partition(partition)
            log.info("deleted the files of partition %d, which is at other nodes", partition)
        except (OSError, GalileoError) as error:
            log.error("what is left of partition %d cannot be deleted: %s", partition, error)

    async def hand_over(self, within_s: float) -> None:
        """Has other members lead what this node leads, before it stops.

        They lead at once then, and need not miss this node first. A partition of which no other
        member has all is kept.
        """
        deadline, waiting = self._monotonic() + within_s, set[int]()
        for partition in sorted(self.led):
            successors = self._hosted[partition].machine.successors(self._monotonic())
            if successors:
                waiting.add(partition)
                successor = successors[partition % len(successors)]
                self._step(partition, HandOverRequested(successor))
        while waiting & self.led and self._monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(self.options.tick_s)

    # --- running -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self._spawn(self._save())
        self._spawn(self.comparison.run())
        try:
            members_at = -inf
            while True:
                self._woken.clear()
                now = self._monotonic()
                self._found()
                for partition, hosted in list(self._hosted.items()):
                    if hosted.failed_at is None:
                        if now >= hosted.tick_at(now, self.options):
                            self._step(partition, ReplicaTicked())
                    elif now >= hosted.failed_at + self.options.restart_s:
                        self._restart(partition, hosted)
                if now >= members_at + self.options.members_s:
                    members_at = now
                    rankings = placement.rankings(self._live.current)
                    self._yield_to_later_leaders()
                    self._want_members(rankings)
                    self._note_dropped()
                    self._repair_damaged()
                    self._return_leadership(rankings)
                    self._discard()
                await self._until_woken(self._pause_s(now, members_at))
        finally:
            running = [*self._tasks, *self._learning.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _pause_s(self, now: float, members_at: float) -> float:
        """Until the next tick of a machine is due, or the next look at the members."""
        ticks = (hosted.tick_at(now, self.options) for hosted in self._hosted.values())
        due = min(ticks, default=now)
        return max(self.options.tick_s, min(due, members_at + self.options.members_s) - now)

    async def _until_woken(self, pause_s: float) -> None:
        """Waits, but not if a machine is idle no more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._woken.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
