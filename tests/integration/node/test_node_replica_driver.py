"""What the replicas of one node take in, refuse and answer, when other nodes act."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lone_nodes import NoLine, founded

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import Group, Move, NodeInfo, Topology, even_ranges
from galileo.errors import PartitionMoved
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.node.replication.protocol import Envelope
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
TIMEOUT_S = 60.0

MakeCommit = Callable[[int], Commit]


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

    def __init__(self, directory: Path) -> None:
        store = Store.open(directory, RELAXED, wall=lambda: 0.0)
        self.gate = threading.Event()
        self.node = StorageNode(
            NAME,
            founded(TOPOLOGY, NAME, store),
            store=store,
            peers=None,  # type: ignore[arg-type]
            options=NodeOptions(),
            make_executor=partial(GatedExecutor, self.gate),
        )
        self.replicas = self.node.connect_replicas(
            NoLine(), identity_of=lambda _: "", is_alive=lambda _: False
        )
        self._running = asyncio.create_task(self.replicas.run())

    async def close(self) -> None:
        self.gate.set()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.node.close()

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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
def commit_of(schema: Schema, make_observations: Callable[..., pa.Table]) -> MakeCommit:
    return lambda batch: Commit("p", batch, *paths.index(schema, make_observations(5, seed=batch)))


@pytest.fixture
async def start(tmp_path: Path, schema: Schema) -> AsyncIterator[Callable[[], Awaitable[Bench]]]:
    """Starts the node, after it has stopped if it runs; its threads begin nothing yet."""
    benches: list[Bench] = []

    async def start() -> Bench:
        for bench in benches:
            await bench.close()
        benches[:] = [Bench(tmp_path)]
        benches[0].node.catalog.adopt(schema)
        return benches[0]

    yield start
    for bench in benches:
        await bench.close()


async def test_message_to_a_lost_directory_of_the_node_changes_nothing(
    start: Callable[[], Awaitable[Bench]],
) -> None:
    bench = await start()
    bench.gate.set()
    later, latest = bench.set_of_both(5), bench.set_of_both(6)
    await bench.receive(NewerSet(latest), to=Member(NAME, "lost-disk"))
    await bench.receive(NewerSet(later))
    await until(lambda: bench.machine.saved.set == later)
    await bench.receive(NewerSet(latest))
    await until(lambda: bench.machine.saved.set == latest)


async def test_batch_of_an_earlier_term_of_this_leader_is_not_stored(
    start: Callable[[], Awaitable[Bench]], commit_of: MakeCommit
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
    start: Callable[[], Awaitable[Bench]], commit_of: MakeCommit
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
    start: Callable[[], Awaitable[Bench]], commit_of: MakeCommit
) -> None:
    bench = await start()
    bench.gate.set()
    await bench.store(commit_of(1))
    journal = bench.node.catalog.shard("nam").journal(0)
    with journal.appending([commit_of(2)], epoch=1, is_pending=True) as appending:
        write_directly([appending], executor=None)
    bench = await start()
    shard = bench.node.catalog.shard("nam")
    assert bench.machine.is_open
    assert shard.published_sequence(0) == 1
    assert 0 not in bench.replicas.led
    bench.gate.set()
    await until(lambda: 0 in bench.replicas.led)
    assert shard.published_sequence(0) == 2
