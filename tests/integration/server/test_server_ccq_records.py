"""The records of continuous queries at three nodes, of which a leads the system partition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from internal_network import InternalNetwork
from lone_nodes import lone_node
from set_record import SetRecord

from galileo.ccq import events as ccq
from galileo.ccq.machine import Continuous
from galileo.ccq.model import HOLD_PARTS, HOLD_S, CcqDefinition, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.placement import EXPIRED_S, FORGOTTEN_S, CcqChange, EndCcq, SaveProgress
from galileo.ccq.records import encode
from galileo.cursor import Cursor
from galileo.dht.membership import PeerDied
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.election.election import Candidacy
from galileo.election.ranking import UsageStatistics
from galileo.errors import (
    CcqCancelled,
    GalileoError,
    InputError,
    Overloaded,
    QuotaExceeded,
    Unavailable,
    UnknownCcq,
)
from galileo.model.system_rows import Row
from galileo.node import system_tables
from galileo.node.retention_plan import Hold
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.rpc.continuous import CcqDescription
from galileo.server import ccq_records
from galileo.server.ccq_records import CcqRecords
from galileo.server.elections import Elections
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

WALL = 1_000_000.0
CCQ = CcqDefinition("q", "nam", "true", 1.0, WALL + 100.0, owner="ann")
NAMES = ("a", "b", "c")
IDLE = UsageStatistics(memory_free_bytes=8 << 30)
USUAL = (100, 100)
"""CCQs that may live, and of one owner."""


@dataclass
class Peers(InternalNetwork):
    """The other nodes of one; `away` are those that do not answer."""

    nodes: dict[str, StorageNode]
    away: set[str]
    hanging: bool = False

    def reach(self, node: str, method: str) -> StorageNode:
        if node in self.away:
            raise Unavailable(f"node {node} is away", node=node)
        return self.nodes[node]

    def address(self, node: str) -> str:
        if node not in self.nodes:
            raise Unavailable(f"node {node} is not known", node=node)
        return f"{node}:7701"

    async def learn_row(self, node: str, table: str, row: Row) -> None:
        if self.hanging:
            await asyncio.Event().wait()
        await super().learn_row(node, table, row)


@dataclass
class Member:
    """A node with its machine, which is stepped at once."""

    machine: Continuous
    records: CcqRecords

    def feed(self, event: Any) -> list[Any]:
        effects = self.machine.step(event, 0.0)
        self.machine.check()
        return effects


@dataclass
class Cluster:
    away: set[str] = field(default_factory=set)
    nodes: dict[str, StorageNode] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    wall_s: float = WALL

    def __post_init__(self) -> None:
        self.peers = Peers(self.nodes, self.away)

    def __getitem__(self, name: str) -> CcqRecords:
        return self.members[name].records

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.wall_s

    def add(self, node: StorageNode) -> None:
        name = node.name
        machine = Continuous(name, ContinuousOptions(groups=(NAMES,)), wall=WALL)
        machine.step(ccq.UsageMeasured(IDLE), 0.0)
        elections = Elections(
            name,
            node.live,
            ask=self.usage,
            own=lambda: machine.usage,
            dead=lambda: machine.state.dead,
            counts=machine.state.counts,
            clock=self,
        )
        records = CcqRecords(
            node,
            self.peers,  # type: ignore[arg-type]
            elections=elections,
            feed=lambda event: self.members[name].feed(event),
            known=lambda: machine.state.records,
            is_gone=machine.state.is_gone,
            clock=self,
        )
        self.nodes[name], self.members[name] = node, Member(machine, records)

    async def usage(self, node: str) -> UsageStatistics:
        self.peers.reach(node, "usage")
        return self.members[node].machine.usage

    async def follow(self) -> None:
        for name in NAMES:
            await self[name].table._follow()

    def bury(self, node: str) -> None:
        """Has all others count a node as dead."""
        self.away.add(node)
        for name in NAMES:
            if name != node:
                self.members[name].feed(PeerDied(node))

    def running(self, ccq_id: str) -> list[str]:
        return [name for name in NAMES if ccq_id in self.members[name].machine.coordinated]

    async def place(
        self,
        *records: Record,
        at: str = "b",
        bounds: tuple[int, int] = USUAL,
        count: int = 2,
    ) -> list[Record | GalileoError]:
        candidacies = [Candidacy(one.id, count) for one in records]
        return await self[at].place(candidacies, records, bounds=[bounds] * len(records))

    async def put(self, *records: Record) -> None:
        """Adds records that name nodes already."""
        await self["a"].table.change_all([SetRecord(one.id, encode(one)) for one in records])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster()
    infos = tuple(NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate(NAMES, start=1))
    topology = Topology("test", (Group("g", infos),), even_ranges(1), 8)
    options = JournalOptions(durability="none")
    for name in NAMES:
        store = Store.open(tmp_path / name, options, wall=lambda: 0.0)
        node = lone_node(name, topology, store=store, peers=made.peers, options=NodeOptions())
        made.add(node)
        topology = node.topology  # Of which the first leads the system partition.
    yield made
    for node in made.nodes.values():
        await node.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes look for a leader once."""
    monkeypatch.setattr(system_tables, "PATIENCE_S", 0.0)


def record(ccq_id: str = "q", *nodes: str, **more: Any) -> Record:
    made = {one: more.pop(one) for one in [*more] if one in ("dataset", "owner", "expires_at")}
    return Record(replace(CCQ, id=ccq_id, **made), int(bool(nodes)), nodes, **more)


def ids(described: Iterable[CcqDescription]) -> list[str]:
    return [one.record.id for one in described]


# --- finding ------------------------------------------------------------------------------------


async def test_find_knows_own_records_and_asks_the_leader_for_others(cluster: Cluster) -> None:
    one = record("q", "b")
    await cluster.put(one)
    await cluster.follow()
    assert await cluster["c"].find("q") == one
    cluster.away.add("a")
    for name in "bc":
        assert await cluster[name].find("q") == one, "what was heard serves as a hint"
    cluster["c"].forget_hint("q")
    cluster.away.clear()
    assert await cluster["c"].find("q") == one
    assert cluster.running("q") == ["b"]


async def test_find_without_a_leader_asks_the_others(cluster: Cluster) -> None:
    await cluster.put(record("q", "b"))
    await cluster["b"].look_up("q")
    cluster.bury("a")
    assert await cluster["c"].find("q") == record("q", "b")


@pytest.mark.usefixtures("hasty")
async def test_find_of_an_unknown_query_says_so_only_if_the_leader_does(cluster: Cluster) -> None:
    with raises(UnknownCcq):
        await cluster["c"].find("q")
    cluster.bury("a")
    with raises(Unavailable):
        await cluster["c"].find("q")


async def test_hints_are_bounded_and_the_newest_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ccq_records, "HINTS_MAX", 2)
    await cluster.put(*(record(name, "b") for name in "qrs"))
    for name in "qrqs":
        await cluster["c"].look_up(name)
    assert [*cluster["c"]._hints] == ["q", "s"]


# --- placing and ending -------------------------------------------------------------------------


async def test_place_has_the_elected_nodes_run_the_query(cluster: Cluster) -> None:
    [placed] = await cluster.place(record())
    assert isinstance(placed, Record)
    assert (placed.revision, len(placed.nodes)) == (1, 2)
    await cluster.follow()
    assert cluster.running("q") == [placed.coordinator]
    assert {name for name in NAMES if cluster.members[name].machine.records} == {*placed.nodes}


async def test_place_again_finds_the_first_record(cluster: Cluster) -> None:
    [placed] = await cluster.place(record())
    assert await cluster.place(record(), at="c", bounds=(1, 1)) == [placed]
    other = Record(replace(CCQ, query="false"))
    [refused] = await cluster.place(other)
    assert isinstance(refused, InputError)
    await cluster["c"].end("q", "cancelled")
    [ended] = await cluster.place(record())
    assert isinstance(ended, CcqCancelled)


@pytest.mark.parametrize(
    ("bounds", "error", "owners"),
    [((3, 100), Overloaded, ("", "")), ((100, 3), QuotaExceeded, ("ann", "ann"))],
)
async def test_place_at_all_nodes_at_once_keeps_limits_exactly(
    cluster: Cluster, bounds: tuple[int, int], error: type, owners: tuple[str, str]
) -> None:
    calls = [
        cluster.place(
            *(record(f"{at}{n}", owner=owners[n % 2]) for n in range(3)), at=at, bounds=bounds
        )
        for at in NAMES
    ]
    outcomes = [one for some in await asyncio.gather(*calls) for one in some]
    placed = [one for one in outcomes if isinstance(one, Record)]
    refused = [one for one in outcomes if not isinstance(one, Record)]
    assert (len(placed), {type(one) for one in refused}) == (3, {error})
    await cluster["b"].end(placed[0].id, "cancelled")
    [again] = await cluster.place(record("again", owner="ann"), bounds=bounds)
    assert isinstance(again, Record), "an end makes room"


async def test_owner_gets_no_more_than_is_free(cluster: Cluster) -> None:
    outcomes = await cluster.place(*(record(f"q{n}") for n in range(6)), bounds=(6, 100))
    assert [isinstance(one, Record) for one in outcomes] == [True] * 3 + [False] * 3
    [other] = await cluster.place(record("r", owner="bob"), bounds=(6, 100))
    assert isinstance(other, Record)


async def test_place_without_a_node_that_takes_it_is_unavailable(cluster: Cluster) -> None:
    for member in cluster.members.values():
        member.feed(ccq.DrainRequested())
    [refused] = await cluster.place(record())
    assert isinstance(refused, Unavailable)
    assert refused.details["ccq_id"] == "q"
    assert await cluster["b"].all() == []


@pytest.mark.usefixtures("hasty")
async def test_changes_without_a_leader_are_unavailable(cluster: Cluster) -> None:
    await cluster.put(record("q", "b"))
    cluster.away.add("a")
    for call in (cluster.place(record("r")), cluster["b"].end("q", "cancelled")):
        with raises(Unavailable):
            await call


@pytest.mark.parametrize("at", NAMES)
async def test_end_is_known_to_the_nodes_that_run_it_when_it_returns(
    cluster: Cluster, at: str
) -> None:
    await cluster.put(record("q", "c", "b"))
    await cluster.follow()
    assert cluster.running("q") == ["c"]
    for _ in range(2):
        await cluster[at].end("q", "cancelled")
        assert cluster.running("q") == []
    for name in NAMES:
        assert (await cluster[name].find("q")).ended == "cancelled"


async def test_end_of_an_unknown_query_says_so(cluster: Cluster) -> None:
    with raises(UnknownCcq):
        await cluster["b"].end("q", "cancelled")


async def test_end_does_not_wait_long_for_a_silent_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ccq_records, "TELL_TIMEOUT_S", 0.01)
    await cluster.put(record("q", "c", "b"))
    await cluster.follow()
    cluster.peers.hanging = True
    before = time.monotonic()
    await cluster["b"].end("q", "cancelled")
    assert time.monotonic() < before + 2.0
    await cluster.follow()
    assert cluster.running("q") == [], "it follows"


# --- changes of the machine ---------------------------------------------------------------------


async def carry_out(cluster: Cluster, *changes: CcqChange) -> ccq.RecordsChanged:
    return await cluster["b"].carry_out(ccq.ChangeRecords(changes))


async def test_carry_out_says_what_became_of_each_change(cluster: Cluster) -> None:
    known = record("q", "b", retrieved=Cursor({0: 3}))
    await cluster.put(record("q", "b"), record("s", "c"))
    outcome = await carry_out(
        cluster,
        SaveProgress("q", encode(known)),
        EndCcq("gone", "expired", WALL),
        SaveProgress("lost", encode(record("lost", "b"))),
        SaveProgress("s", "damaged"),
    )
    names = ("q", "gone", "lost", "s")
    assert outcome == ccq.RecordsChanged(names, (known,), ("gone", "lost"))


@pytest.mark.usefixtures("hasty")
async def test_carry_out_without_a_leader_knows_nothing(cluster: Cluster) -> None:
    cluster.away.add("a")
    outcome = await carry_out(cluster, EndCcq("q", "expired", WALL))
    assert outcome == ccq.RecordsChanged(("q",))


# --- lists and counts ---------------------------------------------------------------------------


async def test_lists_have_the_queries_that_live(cluster: Cluster) -> None:
    at_3 = Cursor({0: 3})
    await cluster.put(
        record("s", "b", retrieved=at_3),
        record("q", "z", "c"),
        record("r", "b", dataset="gfs", owner="bob"),
        record("ended", "b", ended="expired", ended_at=WALL),
    )
    await cluster.follow()
    for name in NAMES:
        records = cluster[name]
        listed = await records.all()
        assert ids(listed) == ["q", "r", "s"]
        assert [one.coordinator for one in listed] == ["c", "b", "b"], "z is no node"
        assert [one.coordinator_address for one in listed] == ["c:7701", "b:7701", "b:7701"]
        assert ids(await records.all("nam")) == ["q", "s"]
        assert [await records.owned_by(owner) for owner in ("ann", "bob", "eve")] == [2, 1, 0]
        assert await records.total() == 3
        hold_s = HOLD_S * (1 + 1 / HOLD_PARTS)
        read = [Hold("q", Cursor(), hold_s, 0), Hold("s", at_3, hold_s, 0)]
        assert await records.holds("nam") == read
        assert records.holds_from_thread("nam") is None, "the event loop is not known"
        records.start()
        assert await asyncio.to_thread(records.holds_from_thread, "nam") == read
    assert cluster["a"].describe(record("q", "z")).coordinator_address == ""


@pytest.mark.usefixtures("hasty")
async def test_lists_without_a_leader_are_unavailable(cluster: Cluster) -> None:
    await cluster.put(record("q", "b"), record("r", "c"))
    await cluster.follow()
    cluster.away.add("a")
    for call in (cluster["b"].all(), cluster["b"].owned_by("ann")):
        with raises(Unavailable):
            await call
    assert await cluster["b"].holds("nam") is None
    assert await cluster["b"].total() == 1, "as many as it knows"


async def test_queries_of_dropped_datasets_are_not_listed(cluster: Cluster) -> None:
    await cluster.put(record("q", "b"), record("r", "b", dataset="gfs"))
    await cluster.nodes["c"].drop("gfs", 1)
    assert ids(await cluster["c"].all()) == ["q"]


# --- the leader ---------------------------------------------------------------------------------


async def test_sweep_gives_queries_other_nodes_when_all_of_theirs_are_dead(
    cluster: Cluster,
) -> None:
    held = Cursor({0: 3})
    await cluster.put(record("q", "b", "c", retrieved=held), record("r", "b", "a"))
    cluster.bury("b")
    await cluster["a"]._sweep()
    assert (await cluster["a"].look_up("q")).nodes == ("b", "c"), "c lives"
    cluster.bury("c")
    await cluster["a"]._sweep()
    moved = await cluster["a"].look_up("q")
    assert (moved.nodes, moved.revision, moved.retrieved) == (("a",), 2, held)
    assert (await cluster["a"].look_up("r")).revision == 1
    await cluster["a"].table._follow()
    assert cluster.running("q") == ["a"]


async def test_sweep_ends_expired_queries_and_forgets_ends(cluster: Cluster) -> None:
    later = CCQ.expires_at + FORGOTTEN_S
    await cluster.put(record("q", "b"), record("r", "b", expires_at=later))
    ends = []
    for past_s in (EXPIRED_S + 1, FORGOTTEN_S - 1, FORGOTTEN_S + 1):
        cluster.wall_s = CCQ.expires_at + past_s
        await cluster["a"]._sweep()
        found = await cluster["a"].table.read("")
        ends.append({name: one.ended for name, one in found.items()})
    assert ends == [{"q": "expired", "r": None}] * 2 + [{"r": None}]


async def test_sweep_is_the_leaders(cluster: Cluster) -> None:
    await cluster.put(record("q", "c"))
    cluster.bury("c")
    for name, nodes in {"b": ("c",), "a": ("a", "b")}.items():
        await cluster[name]._sweep()
        assert (await cluster["a"].look_up("q")).nodes == nodes


async def test_sweeps_go_on_after_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ccq_records, "SWEEP_S", 0.0)
    swept, failing = asyncio.Event(), [Unavailable("the disk is slow")]

    async def sweep() -> None:
        if failing:
            raise failing.pop()
        swept.set()

    monkeypatch.setattr(cluster["a"], "_sweep", sweep)
    sweeping = asyncio.create_task(cluster["a"].sweep())
    await asyncio.wait_for(swept.wait(), 60.0)
    sweeping.cancel()
    await asyncio.wait({sweeping})
