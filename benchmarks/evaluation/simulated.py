"""Clusters of the simulator without faults: what happens when, by the number of nodes.

The machines, the elections and the messages are production's. The simulator knows no processors;
it is given how long storage nodes look at what is new: the one with the most of it decides, and a
new observation costs what was measured of real ones. One that is simulated stands for so many that
a single node would be busy with them for a given share of its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulator.checker import Checker
from simulator.clients import Producer, Reader
from simulator.evaluator import NO_TROUBLE, Labour
from simulator.logs import EPOCH_WALL, Log, query
from simulator.loop import Loop, demand
from simulator.named_nodes import NamedNodes
from simulator.network import Network
from simulator.node import MEMBERSHIP, Node
from simulator.system_leader import SystemLeader
from simulator.variants import Variant

from galileo.ccq.events import StartCycle
from galileo.ccq.model import CcqDefinition
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR, Cursor

PARTITIONS = 32
PRODUCERS = 16
INTERVAL_S = 1.0
BUSY_SHARE = 0.6
"""Of its time that a single node would look at what is new."""
ROWS_PER_S = 73.0
"""Simulated observations that the producers make, about."""
QUIET_S, CRASH_AT_S, SETTLE_S = 2.0, 22.0, 5.0
PATIENCE_S = 60.0
STEP_S = 0.01
NEVER = EPOCH_WALL + 1e6


@dataclass(frozen=True, slots=True)
class Times:
    """Simulated seconds in all worlds with so many nodes.

    Attributes:
        submitted_s: from a submission to its answer, an election between them.
        cached_s: of each commit, until a coordinator has its labels in the cache.
        failover_s: from the crash of a coordinator until a commit that came later is in another
            one's cache; none with a single node.
        messages_per_s: between nodes, of each world before the crash.
    """

    nodes: int
    submitted_s: tuple[float, ...]
    cached_s: tuple[float, ...]
    failover_s: tuple[float, ...]
    messages_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Simulated:
    """Attributes:
    failure_timeout_s: what the simulator's failure detector waits.
    row_s: seconds of a storage node for each new observation.
    busy_share: of its time that a single node would look at what is new.
    rows_per_s: observations that come in, on average.
    """

    interval_s: float
    failure_timeout_s: float
    row_s: float
    busy_share: float
    rows_per_s: float
    points: tuple[Times, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """What one world amounted to; `failover_s` is None with a single node."""

    submitted_s: float
    cached_s: tuple[float, ...]
    failover_s: float | None
    messages_per_s: float
    rows_per_s: float


def simulate(nodes: Sequence[int], *, worlds: int, row_s: float) -> Simulated:
    points, rates = [], []
    for count in nodes:
        played = [Quiet(count, seed=seed).play() for seed in range(worlds)]
        rates += [one.rows_per_s for one in played]
        points.append(
            Times(
                count,
                tuple(one.submitted_s for one in played),
                tuple(lag_s for one in played for lag_s in one.cached_s),
                tuple(one.failover_s for one in played if one.failover_s is not None),
                tuple(one.messages_per_s for one in played),
            )
        )
    stands_for = BUSY_SHARE / (ROWS_PER_S * row_s)
    rows_per_s = stands_for * sum(rates) / len(rates)
    return Simulated(
        INTERVAL_S, MEMBERSHIP.failure_timeout_s, row_s, BUSY_SHARE, rows_per_s, tuple(points)
    )


@dataclass(slots=True)
class _CountedNetwork(Network):
    """Counts the messages between nodes."""

    sent: int = 0

    def send(self, sender: str, to: str, deliver: Callable[[], None]) -> None:
        self.sent += sender.startswith("n") and to.startswith("n") and sender != to
        Network.send(self, sender, to, deliver)


class Quiet(NamedNodes):
    """A world without faults, but for one crash, with a continuous query that finds everything."""

    def __init__(self, nodes: int, *, seed: int) -> None:
        self.loop = Loop(seed)
        self.loop.stragglers = 0.0
        self._counted = _CountedNetwork(self.loop)
        self.network: Network = self._counted
        self.labour: Labour = self._busiest_s
        self.variant = Variant()
        self.trouble = NO_TROUBLE
        self.mid_step_crashes = 0.0
        self.is_calm = True
        self.cancelled: set[str] = set()
        self.dropped: set[str] = set()
        self.logs = {partition: Log(partition) for partition in range(PARTITIONS)}
        self.checker = Checker(self.logs, self.loop.counters, has_cursors=True)
        self._names = tuple(f"n{number}" for number in range(nodes))
        self.founders = nodes
        self.limits = 1, 1
        self.system = SystemLeader(self, seed)
        self.nodes = [Node(name, self) for name in self._names]
        self._producers = [Producer(f"p{number}", self) for number in range(PRODUCERS)]
        ccq = CcqDefinition("q", "sim", query(1, 0), INTERVAL_S, NEVER)
        self._reader = Reader("reader", self, ccq)

    # --- what nodes and clients see -----------------------------------------------------

    def options(self, name: str) -> ContinuousOptions:
        return ContinuousOptions(groups=(self._names,))

    def end_again(self, ccq_id: str) -> None:
        """No end is lost."""

    def _busiest_s(self, effect: StartCycle) -> float:
        """What the node with most that is new needs; the others are done by then."""
        rows = Counter[str]()
        for item in effect.items:
            for partition in item.partitions:
                commits = self.logs[partition].commits[item.after[partition] :]
                rows[self.owner(partition).name] += sum(len(one.values) for one in commits)
        return max(rows.values(), default=0) * BUSY_SHARE / ROWS_PER_S

    # --- the run ------------------------------------------------------------------------

    def play(self) -> Played:
        self.system.start()
        for node in self.nodes:
            node.boot()
        self.loop.run_until(QUIET_S)
        self._reader.submit()
        self._until(lambda: self._reader.token is not None, "the query is answered")
        submitted_s = self.loop.now - QUIET_S
        for producer in self._producers:
            producer.start()
        cached_s = list(self._lags(until=CRASH_AT_S))
        messages_per_s = self._counted.sent / self.loop.now
        failover_s = None if len(self.nodes) == 1 else self._fail_over()
        self._end_well()
        rows = sum(len(one.values) for log in self.logs.values() for one in log.commits)
        return Played(
            submitted_s, tuple(cached_s), failover_s, messages_per_s, rows / self.loop.now
        )

    def _lags(self, *, until: float) -> Iterator[float]:
        """Of every commit, from when it was made until it is in the cache."""
        seen = dict.fromkeys(self.logs, 0)
        while self.loop.now < until:
            self.loop.run_until(self.loop.now + STEP_S)
            evaluated = self._leader()[1]
            for partition, first in seen.items():
                for commit in self.logs[partition].commits[first : evaluated[partition]]:
                    yield self.loop.now - (commit.wall - EPOCH_WALL)
                seen[partition] = max(first, evaluated[partition])

    def _leader(self) -> tuple[str, Cursor]:
        """The coordinator of the query that has evaluated most, and how far; "" for none."""
        led = [
            (node.name, one.evaluated)
            for node in self.nodes
            if node.serves
            for one in node.machine.coordinated.values()
        ]
        return max(led, key=lambda one: sum(one[1].values()), default=("", EMPTY_CURSOR))

    def _fail_over(self) -> float:
        """Seconds until a commit that is made after the crash is cached by another node."""
        name, _ = self._leader()
        crashed = self.node(name)
        crashed.crash()
        started = self.loop.now
        partition = next(p for p in self.logs if self.owner(p) is not crashed)
        end = self.logs[partition].end
        acknowledged: list[float] = []
        self._producers[0].write(
            partition, batch=("after", 0), then=lambda: acknowledged.append(self.loop.now)
        )
        self._until(lambda: bool(acknowledged), "a live node commits")
        batch = self.logs[partition].find(("after", 0))
        assert batch is not None
        self._until(
            lambda: self._leader()[1][partition] >= max(batch.sequence, end + 1),
            "another coordinator evaluates",
        )
        demand(self._leader()[0] != name, "expected another coordinator")
        taken_s = self.loop.now - started
        crashed.boot()
        return taken_s

    def _end_well(self) -> None:
        """Everything that was acknowledged has come once: the reader sees to the latter."""
        for producer in self._producers:
            producer.is_stopped = True
        self.loop.run_until(self.loop.now + SETTLE_S)
        ccq, delivered = self._reader.ccq, self._reader.delivered
        self._until(lambda: set(delivered) == self.checker.truth(ccq), "everything is delivered")
        self.checker.verify_ingest()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = self.loop.now + PATIENCE_S
        while not holds():
            demand(self.loop.now < deadline, f"expected within {PATIENCE_S:g} s that {what}")
            self.loop.run_until(self.loop.now + STEP_S)
