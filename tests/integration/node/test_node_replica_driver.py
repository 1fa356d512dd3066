"""What the replicas of one node take in, refuse and answer, when other nodes act."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_injection.damage import flip
from lone_nodes import NoLine, founded
from node_cluster import SCHEMA, make_observations
from waiting import until

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import Group, Move, NodeInfo, Topology, even_ranges
from galileo.errors import CorruptData, PartitionMoved, Unavailable
from galileo.model import paths
from galileo.node.replication.log_writer import WriteReport
from galileo.node.replication.protocol import Envelope
from galileo.node.replication.replicas import ReplicasOptions, load_states
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.replication.machine import Replica
from galileo.replication.messages import Message, NewerSet, StartTerm
from galileo.replication.values import ORDINALS, Member, ReplicaSet
from galileo.storage.commit_log import write_directly
from galileo.storage.commits import Commit, Committed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

TOPOLOGY = Topology(
    "test",
    (Group("one", tuple(NodeInfo(n, f"127.0.0.1:{p}") for p, n in enumerate("ab", start=1))),),
    even_ranges(1),
    1,
)
NAME = placement.owners(TOPOLOGY)[0]
OTHER = Member("b" if NAME == "a" else "a", "other-disk")
RELAXED = JournalOptions(durability="none")
OPTIONS = ReplicasOptions(tick_s=0.005, members_s=0.02, restart_s=0.01)
TIMEOUT_S = 60.0

SHORT_S = 0.1
"""Longer than a failed machine waits until it begins again."""

MakeCommit = Callable[[int], Commit]
Start = Callable[[], Awaitable["Bench"]]


class GatedExecutor(ThreadPoolExecutor):
    """Begins what is submitted when the gate is open."""

    def __init__(self, gate: threading.Event, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        def begin() -> Any:
            assert self._gate.wait(TIMEOUT_S), "the gate was not opened"
            return call(*args, **options)

        return super().submit(begin)


class Bench:
    """A node that owns the one partition, and hears of another node what the test says.

    Attributes:
        gate: while it is shut, the threads of the node begin nothing.
    """

    def __init__(self, directory: Path, topology: Topology = TOPOLOGY) -> None:
        store = Store.open(directory, RELAXED, wall=lambda: 0.0)
        self.gate = threading.Event()
        self.node = StorageNode(
            NAME,
            founded(topology, NAME, store),
            store=store,
            peers=None,  # type: ignore[arg-type]
            options=NodeOptions(replication=OPTIONS),
            make_executor=partial(GatedExecutor, self.gate),
        )
        self.replicas = self.node.replicas
        self._running: list[asyncio.Task[None]] = []
        self._is_closed = False

    def connect(self) -> None:
        self.node.connect_replicas(NoLine(), identity_of=lambda _: "", is_alive=lambda _: False)
        self._running.append(asyncio.create_task(self.replicas.run()))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.gate.set()
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.node.close()

    def fail(self) -> None:
        """Has the replicas hear that a write has failed."""
        error = Unavailable("the disk refuses")
        self.replicas.on_written([WriteReport(0, "nam", cuts=0, end=0, published=0, error=error)])

    @property
    def machine(self) -> Replica:
        return self.replicas._hosted[0].machine

    @property
    def is_readable(self) -> bool:
        """Whether this node answers about the first commit."""
        shard = self.node.catalog.shard("nam")
        return bool(shard.readable([0], after=EMPTY_CURSOR, until=Cursor({0: 1})))

    async def receive(self, message: Message, *, to: Member | None = None) -> None:
        """Hands a message of the other node over."""
        envelope = Envelope(0, OTHER, self.replicas.me if to is None else to, message)
        await self.replicas.receive([envelope])

    async def store(self, commit: Commit) -> None:
        results = await asyncio.wrap_future(self.node.catalog.commit("nam", {0: commit}))
        assert isinstance(results[0], Committed)

    def set_of_both(self, number: int) -> ReplicaSet:
        """A later set, of which both nodes are members."""
        return ReplicaSet(self.machine.state.promised, number, frozenset({self.replicas.me, OTHER}))


def files(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


def append_pending(bench: Bench, commit: Commit) -> None:
    """Leaves a frame in the log of which it is not known that it is committed."""
    journal = bench.node.catalog.shard("nam").journal(0)
    with journal.appending([commit], epoch=1, is_pending=True) as appending:
        write_directly([appending], executor=None)


@pytest.fixture
def commit_of() -> MakeCommit:
    return lambda batch: Commit("p", batch, *paths.index(SCHEMA, make_observations(5, seed=batch)))


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the node, after it has stopped if it runs; its threads begin nothing yet."""
    benches: list[Bench] = []

    async def start() -> Bench:
        while benches:
            await benches.pop().close()
        benches.append(Bench(tmp_path))
        benches[0].connect()
        benches[0].node.catalog.adopt(SCHEMA)
        return benches[0]

    yield start
    while benches:
        await benches.pop().close()


async def test_message_to_a_lost_directory_of_the_node_changes_nothing(start: Start) -> None:
    bench = await start()
    bench.gate.set()
    later, latest = bench.set_of_both(5), bench.set_of_both(6)
    await bench.receive(NewerSet(latest), to=Member(NAME, "lost-disk"))
    await bench.receive(NewerSet(later))
    await until(lambda: bench.machine.saved.set == later)
    await bench.receive(NewerSet(latest))
    await until(lambda: bench.machine.saved.set == latest)


async def test_batch_of_an_earlier_term_of_this_leader_is_not_stored(
    start: Start, commit_of: MakeCommit
) -> None:
    """Its term ended, and another one began, when the batch was about to be written."""
    bench = await start()
    bench.gate.set()
    await bench.store(commit_of(1))
    shard, term = bench.node.catalog.shard("nam"), bench.replicas.terms[0]
    for of_term, is_stored in ((term - ORDINALS, False), (term, True)):
        appendings = shard.append(
            {0: [commit_of(2)]},
            terms={0: of_term},
            begin=partial(bench.replicas.begin, "nam"),
        )
        [result] = appendings[0].results
        assert isinstance(result, Committed if is_stored else PartitionMoved)
        assert shard.journal(0).end_sequence == 1 + is_stored


async def test_member_that_has_not_joined_the_term_of_a_later_leader_answers_no_reader(
    start: Start, commit_of: MakeCommit
) -> None:
    """As where others went on without it: they may not have what it has published."""
    bench = await start()
    bench.gate.set()
    await bench.store(commit_of(1))
    later = bench.machine.state.promised + ORDINALS
    both = bench.set_of_both(5)
    await bench.receive(NewerSet(both))
    await until(lambda: bench.machine.saved.set == both)
    assert 0 not in bench.replicas.led
    assert bench.is_readable, "it was the last leader"
    bench.node.live.adopt([Move(0, later, OTHER.node)])
    assert not bench.is_readable
    logs = {"nam": bench.machine.logs["nam"].epochs}
    await bench.receive(StartTerm(later, both, {"nam": 1}, logs))
    await until(lambda: bench.is_readable)
    assert bench.machine.saved.joined == later


async def test_new_leader_answers_when_readers_see_what_its_term_began_with(
    start: Start, commit_of: MakeCommit
) -> None:
    bench = await start()
    bench.gate.set()
    await bench.store(commit_of(1))
    append_pending(bench, commit_of(2))
    bench = await start()
    shard = bench.node.catalog.shard("nam")
    assert bench.machine.is_open
    assert shard.published_sequence(0) == 1
    assert 0 not in bench.replicas.led
    bench.gate.set()
    await until(lambda: 0 in bench.replicas.led)
    assert shard.published_sequence(0) == 2


async def test_report_from_before_a_truncation_does_not_count_after_it(
    start: Start, commit_of: MakeCommit
) -> None:
    """What was durable then is not what the log has now, and its end may be cut off still."""
    bench = await start()
    bench.gate.set()
    await bench.store(commit_of(1))
    both = bench.set_of_both(5)
    await bench.receive(NewerSet(both))
    await until(lambda: bench.machine.saved.set == both)
    append_pending(bench, commit_of(2))
    bench = await start()
    log, later = bench.machine.logs["nam"], bench.machine.state.promised + ORDINALS
    assert (log.committed, log.end) == (1, 2)
    await bench.receive(StartTerm(later, both, {"nam": 1}, {"nam": log.epochs.cut(1)}))
    assert log.end == 1
    bench.replicas.on_written([WriteReport(0, "nam", cuts=0, end=2, published=1)])
    assert not log.is_cut_durable
    bench.gate.set()
    await until(lambda: log.is_cut_durable)
    assert bench.node.catalog.shard("nam").journal(0).end_sequence == 1


async def test_failed_machine_begins_again_when_its_last_state_is_saved(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an earlier state, it would promise to others what it has promised already."""
    bench, is_saving = await start(), threading.Event()
    bench.gate.set()
    both = bench.set_of_both(5)
    await bench.receive(NewerSet(both))
    await until(lambda: bench.machine.saved.set == both)
    failed, save_batch = bench.machine, bench.node.store.save_batch

    def save(*state: Any) -> None:
        assert is_saving.wait(TIMEOUT_S), "the disk was not released"
        save_batch(*state)

    monkeypatch.setattr(bench.node.store, "save_batch", save)
    later = failed.state.promised + ORDINALS
    try:
        await bench.receive(StartTerm(later, both, {}, {}))
        assert failed.state.promised == later
        bench.fail()
        await asyncio.sleep(SHORT_S)
        assert bench.machine is failed
    finally:
        is_saving.set()
    await until(lambda: bench.machine is not failed)
    assert bench.machine.saved.promised == later


async def test_failed_machine_begins_again_when_nothing_of_its_logs_is_being_written(
    start: Start, commit_of: MakeCommit
) -> None:
    bench = await start()
    bench.gate.set()
    await bench.store(commit_of(1))
    failed = bench.machine
    bench.gate.clear()
    done = bench.node.catalog.commit("nam", {0: commit_of(2)})
    bench.fail()
    await asyncio.sleep(SHORT_S)
    assert bench.machine is failed
    bench.gate.set()
    results = await asyncio.wrap_future(done)
    assert isinstance(results[0], PartitionMoved)
    await until(lambda: bench.machine is not failed and 0 in bench.replicas.led)
    await bench.store(commit_of(3))
    assert bench.node.catalog.shard("nam").published_sequence(0) == 2


@pytest.mark.parametrize("has_copies", [False, True])
async def test_damaged_log_is_set_aside_where_other_members_have_copies(
    start: Start, commit_of: MakeCommit, tmp_path: Path, has_copies: bool
) -> None:
    """The state says what may be lost; its term is over, so that the next one gets all again."""
    bench = await start()
    bench.gate.set()
    for batch in (1, 2):
        await bench.store(commit_of(batch))
    if has_copies:
        both = bench.set_of_both(5)
        await bench.receive(NewerSet(both))
        await until(lambda: bench.machine.saved.set == both)
    promised = bench.machine.saved.promised
    await bench.close()
    [segment] = files(tmp_path, "**/*.segment")
    flip(segment, 20)
    bench = Bench(tmp_path)
    try:
        if has_copies:
            bench.connect()
        else:
            with pytest.raises(CorruptData):
                bench.connect()
        assert (files(tmp_path, "journals/**/*.segment") == []) == has_copies
        assert len(files(tmp_path, "damaged/*")) == has_copies
        state = load_states(bench.node.store)[0]
        assert state.promised == promised + has_copies
        assert (state.suspect.get("nam", 0) >= 2) == has_copies
    finally:
        await bench.close()


async def test_partition_that_is_founded_anew_begins_with_a_later_term(tmp_path: Path) -> None:
    """The leader in the lost directory may have been heard of, and still counts elsewhere."""
    lost = Move(0, 7 * ORDINALS, NAME)
    bench = Bench(tmp_path, replace(TOPOLOGY, moved=(lost,)))
    try:
        bench.connect()
        await until(lambda: 0 in bench.replicas.led)
        assert bench.replicas.terms[0] > lost.number
    finally:
        await bench.close()
