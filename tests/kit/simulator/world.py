"""One run: a cluster, its clients, a time of faults, then repair and the demand for progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random

from patches import patched

from galileo.ccq.model import CcqDefinition
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.records import NODES_MAX
from galileo.packing import Compression
from galileo.samplers import SamplerSpec
from simulator.batches import BatchClient
from simulator.checker import Checker, is_over
from simulator.clients import FETCH_WAIT_MAX_S, Producer, Reader
from simulator.crowding import CCQS_MAX, OWNED_MAX, Crowding
from simulator.dropping import DROPPED, Dropping
from simulator.evaluator import NO_TROUBLE, Labour, no_labour
from simulator.faults import Faults
from simulator.joining import Joining
from simulator.logs import EPOCH_WALL, Log, query
from simulator.loop import Loop, demand
from simulator.mutants import VARIANTS
from simulator.named_nodes import NamedNodes
from simulator.network import Network
from simulator.node import Node
from simulator.retention import AGREEMENT_S, Retention
from simulator.system_leader import SystemLeader
from simulator.windows import window_of

FAULTS_UNTIL_S = 18.0
DRAIN_MAX_S = 25.0
DRAIN_STEP_S = 0.5
FRESH_BOUND_S = 2.0
"""Time for commit, heartbeat, tick, cycle and pauses of clients, besides the update interval."""
SHORT = {
    "galileo.model.system_rows.PAGE_BYTES_MAX": 600,  # One or two records.
    "galileo.ccq.placement.EXPIRED_S": 5.0,
    "galileo.ccq.placement.FORGOTTEN_S": 9.0,
    "galileo.ccq.machine.SAVE_INTERVAL_S": 0.6,
    "galileo.ccq.machine.EXPIRY_GRACE_S": 4.0,
    "galileo.ccq.state.TOMBSTONE_S": 6.0,
    "galileo.ccq.moves.REPAIR_AFTER_S": 2.0,
    "galileo.ccq.moves.CHANGE_TIMEOUT_S": 4.0,
    "galileo.ccq.moves.SUCCESSION_PAUSE_S": 1.5,
    "galileo.ccq.cycles.RETRY_MAX_S": 2.0,
    "galileo.ccq.cache.CHUNKS_COMPACTED": 3,
    "galileo.ccq.cache_memory.CHECK_S": 0.2,
    "galileo.ccq.cache_memory.SPILL_RETRY_S": 1.0,
    "galileo.ccq.cache_memory.LOAD_AHEAD_S": 0.5,
    "galileo.ccq.handed_off_cache.TTL_S": 8.0,
    "galileo.ccq.fetches.HOLDER_TIMEOUT_S": 0.6,
    "galileo.ccq.fetches.CONFIRM_TIMEOUT_S": 0.5,
    "galileo.ccq.fetches.BACKFILL_TIMEOUT_S": 2.0,
}
"""Constants of production that are too long for a world."""
PIECES_MAX = 8
NEVER = EPOCH_WALL + 1e6
DRAINED_S = 7.0
DRAINED_SHARE = 0.3
"""Share of the worlds in which a node is drained in the end."""
BATCHED_SHARE = 0.3
"""Share of the worlds whose CCQs are submitted as a batch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    seconds: float
    delivered: int
    trace_hash: int
    counters: Counter[str]


class World(NamedNodes):
    """Three to seven nodes, two to four partitions, one to three CCQs, two readers of the first."""

    def __init__(
        self,
        seed: int,
        *,
        variant: str,
        without: Collection[str] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._seed = seed
        self.loop = Loop(seed, trace=trace)
        random = self.loop.random
        self.network = Network(self.loop)
        self.variant = VARIANTS[variant]
        self.trouble = NO_TROUBLE
        self.labour: Labour = no_labour
        self.mid_step_crashes = 0.0
        self.is_calm = False
        self.cancelled: set[str] = set()
        self.dropped: set[str] = set()
        self.limits = CCQS_MAX, OWNED_MAX
        self.dropping = Dropping(self, seed)
        self.logs = {p: Log(p) for p in range(random.randint(2, 4))}
        self.checker = Checker(self.logs, self.loop.counters, has_cursors=self.variant.has_cursors)
        self.system = SystemLeader(self, seed)
        names = [f"n{i}" for i in range(random.choice((3, 4, 5, 5, 6, 7)))]
        border = random.randint(1, len(names))
        groups = (tuple(names[:border]), tuple(names[border:]))
        self.joining = Joining(self, seed)
        self.joining.versions.append(tuple(group for group in groups if group))
        self.founders = len(names)
        self._cache_bytes_max = random.choice((400, 1 << 30, 1 << 30))
        self._fill_caches(seed)
        self.nodes = [self.make_node(name) for name in names]
        if self.joining.is_due:
            self.nodes.append(self.make_node(f"n{len(names)}"))
            self.nodes[-1].is_member = False
        self.producers = [Producer(f"p{i}", self) for i in range(2)]
        self.readers = self._make_readers()
        self.crowding = Crowding(self, seed)
        self.faults = Faults(self, without=without)
        self.retention = Retention(self, seed)
        if self.system.loses and self.retention.past_readers is False:
            self.retention.past_readers = None  # It would pass readers whose records are lost.
        self.checker.spares_readers = not self.retention.past_readers
        self.checker.agreement_s = AGREEMENT_S

    def _fill_caches(self, seed: int) -> None:
        """Configure small caches, files, or both in some worlds."""
        random = Random(f"caches {seed}")
        if self._cache_bytes_max == 1 << 30:
            self._cache_bytes_max = random.choice((700, 1200, 2500, 1 << 30))
        self._spill_bytes_max = random.choice((1, 1500, 1 << 30))
        self._spill_idle_s = random.choice((0.0, 0.0, 1e9))

    def make_node(self, name: str) -> Node:
        return Node(name, self)

    # --- what nodes and clients see -----------------------------------------------------

    def options(self, name: str) -> ContinuousOptions:
        return ContinuousOptions(
            groups=self.joining.versions[self.node(name).version],
            cycle_timeout_s=2.0,
            cache_bytes_max=self._cache_bytes_max,
            spill_bytes_max=self._spill_bytes_max,
        )

    def end_again(self, ccq_id: str) -> None:
        """Cancel a CCQ again whose end was lost."""
        for reader in self.readers:
            if reader.ccq.id == ccq_id and ccq_id in self.cancelled:
                reader.cancel()

    # --- the run ------------------------------------------------------------------------

    def play(self) -> Outcome:
        with patched({"galileo.ccq.cache_memory.SPILL_IDLE_S": self._spill_idle_s}):
            return self._play()

    def _play(self) -> Outcome:
        loop = self.loop
        self.system.start()
        for node in self.nodes:
            node.boot()
        for producer in self.producers:
            producer.start()
        self._submit_all()
        is_from_start = loop.chance(0.5)
        first, second = self.readers[0], self.readers[-1]
        if not self.variant.has_cursors:
            self.readers.pop()  # The paper knows one client for each CCQ.
        else:
            first.when_submitted(lambda: second.follow(first, is_from_start=is_from_start))
        if self._is_dropped:
            self.dropping.start()
        elif len(self.readers) > 3:
            loop.after(loop.random.uniform(4.0, 20.0), self.readers[2].cancel)
        loop.after(1.5, self.faults.start)
        self.retention.start()
        self.joining.start()
        self.crowding.start()
        loop.run_until(FAULTS_UNTIL_S)
        self._end_well()
        delivered = sum(len(reader.delivered) for reader in self.readers)
        return Outcome(0, loop.now, delivered, loop.trace_hash, loop.counters)

    def _submit_all(self) -> None:
        """Submit one after the other or, in some worlds, as a batch."""
        submitted = self.readers[:-1]
        if self.variant.has_cursors and Random(f"batches {self._seed}").random() < BATCHED_SHARE:
            self.loop.after(0.5, BatchClient(self, submitted).submit)
            return
        for number, reader in enumerate(submitted):
            self.loop.after(0.5 + number, reader.submit)

    def _end_well(self) -> None:
        """Repair, wait for quiescence, then demand one more commit of each partition in time."""
        self.faults.heal()
        for producer in self.producers:
            producer.is_stopped = True
        deadline = self.loop.now + DRAIN_MAX_S
        while not self._is_quiet() and self.loop.now < deadline:
            self.loop.run_until(self.loop.now + DRAIN_STEP_S)
        self._demand_all()
        self.loop.run_until(self.loop.now + 4.0)
        for partition in self.logs:
            for batch in range(3):
                name = (f"last {partition}", batch)
                self.producers[0].write(partition, batch=name, then=lambda: None)
        longest_s = max(reader.ccq.interval_s for reader in self.readers)
        self.loop.run_until(self.loop.now + longest_s + FRESH_BOUND_S)
        self._let_pieces_come()
        self._demand_all()
        self._demand_windows()
        if Random(f"drained {self._seed}").random() < DRAINED_SHARE:
            self._demand_drained()

    def _demand_windows(self) -> None:
        """Demand all labels and ends of windows now, the clock itself when open fetches end: a
        fetch waits for the next end of a window, and a clock before it is no news.
        """
        newest_us = self.checker.newest_us()
        windows = {reader: reader.windows for reader in self._live_readers() if reader.windows}
        for reader, of_reader in windows.items():
            of_reader.verify(reader.delivered, clock_us=newest_us)
        if any(of_reader.clock_us != newest_us for of_reader in windows.values()):
            self.loop.counters["clocks that came with the end of a fetch"] += 1
            self.loop.run_until(self.loop.now + FETCH_WAIT_MAX_S + FRESH_BOUND_S)
        clocks_us = {of_reader.clock_us for of_reader in windows.values()}
        demand(clocks_us <= {newest_us}, f"event clocks {clocks_us} instead of {newest_us}")

    def _demand_drained(self) -> None:
        """Drain a node that runs a CCQ, and demand that no record names it soon."""
        node = next(node for node in self.members if node.machine.coordinated)
        node.drain(is_on=True)
        self.loop.run_until(self.loop.now + DRAINED_S)
        rows = self.system.rows.values()
        named = [one.id for one in rows if one.ended is None and node.name in one.nodes]
        demand(not named, f"{node.name} drains, and these name it: {named}")
        demand(not node.machine.coordinated, f"{node.name} drains, and still coordinates")

    def _let_pieces_come(self) -> None:
        """Extend the deadline for readers of three labels at a time while pieces keep coming: a
        successor without a cache rescans the log for each piece.
        """
        for _ in range(PIECES_MAX):
            if self._is_read():
                return
            before = sum(len(reader.delivered) for reader in self.readers)
            self.loop.run_until(self.loop.now + DRAIN_STEP_S)
            if sum(len(reader.delivered) for reader in self.readers) == before:
                return
            self.loop.counters["pieces that came late"] += 1

    def _is_quiet(self) -> bool:
        return (
            self._is_read()
            and self._are_led_once()
            and self._ends_are_known()
            and not self._unplaced()
        )

    def _is_read(self) -> bool:
        live = self._live_readers()
        return all(set(r.delivered) >= self.checker.owed(r.ccq, r.gone) for r in live)

    def _are_led_once(self) -> bool:
        live = {r.ccq.id for r in self.readers if not r.ended} - self._expired()
        led = Counter(ccq_id for node in self.members for ccq_id in node.machine.coordinated)
        return all(led[ccq_id] == (ccq_id in live) for ccq_id in {*live, *led} - self._expired())

    def _expired(self) -> set[str]:
        """The CCQs that have expired, which their readers may not know yet."""
        return {one.ccq.id for one in self.readers if is_over(one.ccq, now=self.loop.now)}

    def _ends_are_known(self) -> bool:
        over = {r.ccq.id for r in self.readers if r.ended}
        records = [record for node in self.members for record in node.machine.records]
        records += self.system.rows.values()
        return all(record.ended for record in records if record.ccq.id in over)

    def _unplaced(self) -> list[str]:
        """The CCQs that live and do not have as many living nodes as they could."""
        names = {node.name for node in self.members}
        wanted = min(NODES_MAX, len(names))
        rows = self.system.rows
        live = {r.ccq.id for r in self.readers if not r.ended} - self._expired()
        return [i for i in live if i not in rows or len(names & {*rows[i].nodes}) < wanted]

    def _demand_all(self) -> None:
        """Check storage, invariants 1, 2 and 5, one coordinator each, and known ends."""
        self.checker.verify_ingest()
        self.system.verify_restored()
        for reader in self.readers:
            if not reader.ended:
                self.checker.verify_delivered(
                    reader.name, reader.ccq, answers=reader.answers, gone=reader.gone
                )
        demand(self._are_led_once(), f"not one coordinator each: {self._leaders()}")
        self._demand_ends()
        demand(not self._unplaced(), f"not on enough nodes: {self._unplaced()}")
        demand(bool(self._live_readers()), "no CCQ lived to the end")
        living = [reader.name for reader in self._live_readers() if self._is_over(reader)]
        demand(not living, f"the dataset is dropped, and these live on: {living}")

    def _demand_ends(self) -> None:
        """Demand that all ends are known soon: a CCQ may just have expired at its node."""
        deadline = self.loop.now + FRESH_BOUND_S
        while not self._ends_are_known() and self.loop.now < deadline:
            self.loop.run_until(self.loop.now + DRAIN_STEP_S)
        demand(self._ends_are_known(), "an ended CCQ lives on")

    def _is_over(self, reader: Reader) -> bool:
        """Whether its dataset is dropped."""
        return reader.ccq.dataset in self.dropped

    @property
    def _is_dropped(self) -> bool:
        """Whether a dataset of this world is dropped at some time."""
        return DROPPED in self.datasets

    def _live_readers(self) -> list[Reader]:
        return [reader for reader in self.readers if not reader.ended]

    def _leaders(self) -> dict[str, list[str]]:
        return {node.name: list(node.machine.coordinated) for node in self.members}

    def _make_readers(self) -> list[Reader]:
        """The first CCQ stays, the second may expire, the third is cancelled or dropped."""
        random = self.loop.random
        readers = []
        for number in range(random.randint(1, 3)):
            expires_at = EPOCH_WALL + random.uniform(12.0, 24.0)
            ccq = CcqDefinition(
                id=f"q{number}",
                dataset="sim",
                query=query(random.choice((1, 2, 3)), 0),
                interval_s=random.choice((0.3, 0.5, 1.0)),
                expires_at=expires_at if number == 1 else NEVER,
                sampler=SamplerSpec("thin", {}, number) if random.random() < 0.4 else None,
                compression=Compression.LZ4 if random.random() < 0.3 else Compression.NONE,
                window=window_of(self._seed, number) if self.variant.has_cursors else None,
            )
            readers.append(Reader(f"r{number}", self, ccq))
        if len(readers) > 2 and self.dropping.is_due:
            readers[2] = Reader("r2", self, replace(readers[2].ccq, dataset=DROPPED))
            self.datasets = (*self.datasets, DROPPED)
        return [*readers, Reader("second", self, readers[0].ccq)]


def run(
    seed: int,
    variant: str = "production",
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Play the world of this seed.

    Args:
        seed: of the random generators.
        variant: a name of `VARIANTS`.
        without: kinds of faults to leave out, names of `FAULTS`.
        trace: called with each event as a line.

    Raises:
        Violation: a guarantee was broken; other assertions are those of the machines.
    """
    with patched(SHORT):
        outcome = World(seed, variant=variant, without=without, trace=trace).play()
    return Outcome(seed, outcome.seconds, outcome.delivered, outcome.trace_hash, outcome.counters)
