"""One simulated process that runs the machines of continuous queries and those of replicas.

`ReplicatedNode` is the process as the world of continuous queries knows it, `ProcessReplicas` its
part in the world of replicas. Each is driven as there. Both crash, pause and start together, have
one clock and one network. As in production (`galileo/node/replication/replicas.py`), a leader that
is open announces itself as owner by a move with its term as number, moves spread by gossip, and a
node answers scans about a partition while it is announced and has its lease, from frames that its
machine has published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from galileo.ccq.events import (
    ContinuousEffect,
    ContinuousEvent,
    CycleFailed,
    CycleFinished,
    StartCycle,
)
from galileo.dht import membership, placement
from galileo.dht.topology import Move, Topology
from galileo.dht.topology_state import TopologyState
from galileo.replication.messages import ReplicaEvent
from simulator.logs import Commit, Log
from simulator.node import Cluster, Node, Report
from simulator.replica_cluster import LOGS, Batch, Frame, ReplicaCluster, ReplicaNode

LOG = LOGS[0]
"""The log of each partition that continuous queries read; others have commits for no query."""
RESTART_MAX_S = 4.0
ELSEWHERE = 0.3
"""How often the replica of another node is asked for a named range."""


@dataclass(frozen=True, slots=True)
class ScanConduct:
    """Mistakes of nodes that answer scans; production has none.

    Attributes:
        reads_uncommitted: scans read frames that are not published.
        reaches_end: scans report the end of the log in place of what is published.
        ignores_lease: a node answers without a lease.
        completes_answers: likewise, and its answers count up to what others have published.
        reads_other_epochs: likewise, up to there, with the frames that it has.
        announces_early: a leader announces itself before it knows what is committed.
        follows_uncommitted: a replica that does not lead reads all of its frames.
        completes_ranges: it answers when it has published less, and counts up to what is asked.
    """

    reads_uncommitted: bool = False
    reaches_end: bool = False
    ignores_lease: bool = False
    completes_answers: bool = False
    reads_other_epochs: bool = False
    announces_early: bool = False
    follows_uncommitted: bool = False
    completes_ranges: bool = False


class Replication(Protocol):
    """The interface of the replicas' side of the world."""

    scans: ScanConduct
    terms: dict[int, int]

    def commit(self, partition: int, sequence: int, batch: Batch) -> Commit: ...

    def judge_scan(self, node: str, log: Log) -> None: ...

    def judge_acknowledged(self, key: tuple[int, str], batch: Batch, sequence: int) -> None: ...

    def note_values(self, partition: int, batch: Batch, values: tuple[int, ...]) -> None: ...


class ReplicatedCluster(Cluster, Protocol):
    """The interface of the world for a node whose partitions are replicated."""

    topology: Topology
    nodes: list[Node]
    is_calm: bool

    @property
    def replication(self) -> Replication: ...


class ProcessReplicas(ReplicaNode):
    """The replicas of a process.

    Attributes:
        process: set before the first start.
        announced: the term in which this node was announced as owner, by partition.
        has_led: the partitions that it has announced since it started.
        published_logs: what readers see of `LOG`, by partition.
    """

    process: ReplicatedNode

    def __init__(self, name: str, ordinal: int, world: ReplicaCluster) -> None:
        super().__init__(name, ordinal, world)
        self.announced: dict[int, int] = {}
        self.has_led: set[int] = set()
        self.published_logs: dict[int, Log] = {}

    # --- life ----------------------------------------------------------------------------------

    def boot(self) -> None:
        if not self.process.is_up:
            self.process.boot()

    def boot_replicas(self) -> None:
        """Start the machines, when the process has started."""
        self.announced, self.has_led, self.published_logs = {}, set(), {}
        super().boot()

    def crash(self) -> None:
        if self.is_up:
            super().crash()
            self.process.crash()

    def pause(self) -> None:
        if self.is_up and not self.is_paused:
            super().pause()
            self.process.pause()

    def wake(self) -> None:
        super().wake()
        self.process.wake()

    def lose_disk(self) -> None:
        super().lose_disk()
        self.process.lose_files()

    # --- the driver ----------------------------------------------------------------------------

    def step(self, partition: int, event: ReplicaEvent, frames: tuple[Frame, ...] = ()) -> None:
        super().step(partition, event, frames)
        machine = self.replicas[partition]
        lead, announced = machine.leadership, self.announced.get(partition)
        if announced is not None and (lead is None or lead.term != announced):
            del self.announced[partition]
        if lead is None or announced == lead.term:
            return
        conduct = self.process.replication.scans
        if (lead.is_open and self._shows_all(partition)) or conduct.announces_early:
            self.announced[partition] = lead.term
            self.has_led.add(partition)
            self.process.announce(Move(partition, lead.term, self.name))

    def _shows_all(self, partition: int) -> bool:
        """Whether readers see all that the leader knows to be committed."""
        logs = self.replicas[partition].logs.items()
        return all(self.published.get((partition, name), 0) >= log.committed for name, log in logs)

    def holds_lease(self, partition: int) -> bool:
        """Whether this node is announced, and no other can have committed since."""
        if partition not in self.announced:
            return False
        machine, conduct = self.replicas[partition], self.process.replication.scans
        return conduct.announces_early or machine.has_lease(self.now)

    def follows(self, partition: int, term: int) -> bool:
        """Whether this node has joined this term of a partition, or a later one."""
        machine = self.replicas.get(partition)
        return machine is not None and machine.saved.joined >= term > 0

    def frames(self, partition: int) -> list[Frame]:
        """All frames of `LOG` on the disk, committed or not."""
        return self._log(partition, LOG).frames

    def _publish(self, partition: int, name: str, until: int) -> None:
        super()._publish(partition, name, until)
        if name != LOG:
            return
        log = self.published_logs.setdefault(partition, Log(partition))
        for sequence in range(log.end, until):
            batch = self.frames(partition)[sequence].batch
            commit = self.process.replication.commit(partition, sequence + 1, batch)
            log.commits.append(commit)
        if partition in self.announced:
            self.process.note_news()

    def _truncate(self, partition: int, name: str, end: int) -> None:
        if name == LOG and partition in self.has_led:
            cut = len(self.frames(partition)) - end
            self.world.loop.counters["frames truncated where scans were answered"] += cut
        super()._truncate(partition, name, end)


class ReplicatedNode(Node):
    """A process whose logs are replicas.

    Attributes:
        replicas: set before the first start.
    """

    _world: ReplicatedCluster
    replicas: ProcessReplicas

    def __init__(self, name: str, world: ReplicatedCluster) -> None:
        super().__init__(name, world)
        self._world = world
        self._has_news = False
        self._cycles: dict[int, dict[int, int]] = {}

    @property
    def replication(self) -> Replication:
        return self._world.replication

    # --- life ----------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self.replicas.now - self._born

    def boot(self) -> None:
        self._live = TopologyState(self._world.topology)
        self._owners = placement.owners(self._live.current), self._live.current
        self._has_news, self._cycles = False, {}
        super().boot()
        if self.is_up:
            self.replicas.boot_replicas()

    def crash(self) -> None:
        if not self.is_up:
            return
        is_both = bool(self.machine.coordinated) and bool(self.replicas.announced)
        self._loop.counters["leaders that coordinate crash"] += is_both
        super().crash()
        self.replicas.crash()
        if not self._world.is_calm:
            self._loop.after(self._loop.random.uniform(0.2, RESTART_MAX_S), self.replicas.boot)

    def pause(self) -> None:
        super().pause()
        if self.is_paused:
            self.replicas.pause()

    def wake(self) -> None:
        super().wake()
        if self.replicas.is_up and self.replicas.is_paused:
            self.replicas.wake()

    def lose_files(self) -> None:
        """Lose the disk; a drop that no other node knows is begun again."""
        others = self._others()
        self._dropped = {
            name: generations
            for name, generations in self._dropped.items()
            if all(other.knows_drop(name) < generations for other in others)
        }
        self.version = 0

    def _others(self) -> list[Node]:
        names = (name for group in self._world.options(self.name).groups for name in group)
        return [self._world.node(name) for name in names if name != self.name]

    # --- who owns a partition ------------------------------------------------------------------

    def owner(self, partition: int) -> Node:
        """The owner by the topology that this node knows."""
        if self._owners[1] is not self._live.current:
            self._owners = placement.owners(self._live.current), self._live.current
        return self._world.node(self._owners[0][partition])

    def announce(self, move: Move) -> None:
        """Announce this node as the owner of a partition."""
        self._loop.note(f"{self.name} leads {move.partition} in term {move.number}")
        terms = self.replication.terms
        self._loop.counters["owners changed"] += move.partition in terms
        terms[move.partition] = max(move.number, terms.get(move.partition, 0))
        self._live.adopt([move])
        self.note_news()
        for peer in self._membership.peers:
            self._handle(membership.SendHeartbeat(peer))

    def _report(self) -> Report:
        return replace(super()._report(), moves=self._live.current.moved)

    def _take_report(self, report: Report) -> None:
        if self._live.moves(report.moves):
            self._live.adopt(report.moves)
        super()._take_report(report)

    # --- what is written and read --------------------------------------------------------------

    def own_logs(self) -> Iterable[Log]:
        """The published logs of the partitions that this node leads."""
        replicas = self.replicas
        return [replicas.published_logs.get(p, Log(p)) for p in sorted(replicas.announced)]

    def note_news(self) -> None:
        """Have the machine see own commits, soon."""
        if not self._has_news:
            self._has_news = True
            self.later(0.0, self._see_news)

    def _see_news(self) -> None:
        self._has_news = False
        self._see_own_sequences()

    def write(
        self,
        partition: int,
        values: tuple[int, ...],
        batch: tuple[str, int],
        reply: Callable[[int], None],
    ) -> None:
        """Have the leader write a batch once; reply with its sequence when it is committed."""
        key = partition, LOG
        self.replication.note_values(partition, batch, values)

        def acknowledged(sequence: int) -> None:
            self.replication.judge_acknowledged(key, batch, sequence)
            reply(sequence)

        self.replicas.ingest(key, batch, acknowledged)

    def reachable(self, partition: int) -> Log | None:
        """The log of a partition as the node reads it that leads as far as this one knows."""
        owner = self.owner(partition)
        assert isinstance(owner, ReplicatedNode)
        if not (owner.serves and self._world.network.connects(self.name, owner.name)):
            return None
        return owner.read(partition)

    def read(self, partition: int) -> Log | None:
        """What this node's readers see of a partition; None if it may not answer."""
        replicas, scans = self.replicas, self.replication.scans
        if replicas.holds_lease(partition):
            self._loop.counters["scans under a lease"] += 1
        else:
            who = "leaders without a lease" if partition in replicas.announced else "others"
            self._loop.counters[f"scans refused by {who}"] += 1
            if not (scans.ignores_lease or scans.completes_answers or scans.reads_other_epochs):
                return None
        log = self._spoiled(replicas.published_logs.get(partition, Log(partition)), scans)
        if not scans.reads_other_epochs:
            self.replication.judge_scan(self.name, log)
        return log

    def readable(self, partition: int, committed: int) -> Log | None:
        """The log as this node reads it, or any other replica that has the commit, or the leader.

        Production asks its own replica. Others are asked here, because they could be.
        """
        replica: Node = self
        if self._loop.chance(ELSEWHERE):
            replica = self._loop.random.choice(self._world.nodes)
        assert isinstance(replica, ReplicatedNode)
        is_near = replica is self or self._world.network.connects(self.name, replica.name)
        log = replica.read_committed(partition, committed) if is_near and replica.serves else None
        return self.reachable(partition) if log is None else log

    def read_committed(self, partition: int, committed: int) -> Log | None:
        """What readers see here of a partition, if that goes up to a commit.

        No more than that, unless this node leads: its leader could deny a token that is ahead.
        """
        replicas, scans = self.replicas, self.replication.scans
        if replicas.holds_lease(partition):
            return self.read(partition)
        move = self._live.move_of(partition)
        if not committed or move is None or not replicas.follows(partition, move.number):
            return None
        log = replicas.published_logs.get(partition, Log(partition))
        if scans.follows_uncommitted:
            return self._read_frames(log, replicas.frames(partition))
        if log.end < committed:
            self._loop.counters["replicas too far behind"] += 1
            return _padded(log, committed) if scans.completes_ranges else None
        self._loop.counters["scans at other replicas"] += 1
        return Log(partition, log.commits[:committed])

    def _spoiled(self, log: Log, scans: ScanConduct) -> Log:
        """The log as mistaken nodes read it."""
        frames = self.replicas.frames(log.partition)
        known = self._world.logs[log.partition].end
        if scans.reads_uncommitted:
            return self._read_frames(log, frames)
        if scans.reads_other_epochs:
            return self._read_frames(log, frames[: max(known, log.end)])
        if scans.reaches_end:
            return _padded(log, len(frames))
        return _padded(log, known) if scans.completes_answers else log

    def _read_frames(self, log: Log, frames: list[Frame]) -> Log:
        commits = [
            self.replication.commit(log.partition, sequence, frame.batch)
            for sequence, frame in enumerate(frames, 1)
        ]
        return Log(log.partition, commits)

    # --- what is counted -----------------------------------------------------------------------

    def feed(self, event: ContinuousEvent) -> None:
        if isinstance(event, CycleFinished | CycleFailed):
            began_with = self._cycles.pop(event.cycle_id, self.replication.terms)
            is_changed = began_with != self.replication.terms
            self._loop.counters["leader changes amid a cycle"] += is_changed
        super().feed(event)

    def _act(self, effect: ContinuousEffect) -> None:
        if isinstance(effect, StartCycle):
            self._cycles[effect.cycle_id] = dict(self.replication.terms)
        super()._act(effect)


def _padded(log: Log, end: int) -> Log:
    """A log that claims to end at `end`."""
    missing = range(log.end + 1, end + 1)
    empty = [Commit(log.partition, sequence, (), ("", 0), 0.0) for sequence in missing]
    return Log(log.partition, log.commits + empty)
