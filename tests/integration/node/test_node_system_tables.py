"""System tables at three real nodes: their leader, its successors, and followers.

A random history is compared with a dict.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from expected_errors import raises
from replica_nodes import (
    NAMES,
    Host,
    Network,
    World,
    await_whole,
    expect_crash,
    play_history,
    until,
)

from galileo.ccq.model import CcqDefinition, Record
from galileo.ccq.placement import EndCcq, ForgetCcq, PlaceCcq, move, moved_to
from galileo.ccq.records import CCQ_ROWS, topic_of
from galileo.ccq.records import NOTHING as NO_RECORD
from galileo.cursor import Cursor
from galileo.dht.topology import SYSTEM
from galileo.errors import (
    Conflict,
    DatasetExists,
    GalileoError,
    InvalidSchema,
    Overloaded,
    PartitionMoved,
    PartitionReadOnly,
    TransientError,
    Unavailable,
    UnknownCcq,
    UnknownDataset,
)
from galileo.model import system_rows
from galileo.model.channel import Channel
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema
from galileo.model.system import DATASETS
from galileo.model.system_rows import LookUp, Outcome, Position, Row, RowChange, RowKind, RowPage
from galileo.model.table import Table, index_versions, versions_of
from galileo.node import system_tables
from galileo.node.definitions import NOTHING, CreateDataset, Definition, encode
from galileo.node.storage_node import StorageNode
from galileo.node.system_tables import SystemTable
from galileo.storage.commits import Commit

DEPTH, GUST = Feature("depth", "m"), Feature("gust", "m/s")
DAY, WEEK = Retention("1d"), Retention("7d")


def sea(name: str = "sea", **options: Any) -> Schema:
    return Schema(name, [DEPTH], **options)


class LossyNetwork(Network):
    """Loses requests and answers of calls about definitions.

    Attributes:
        loss: the chance that a call gets lost, and the chance that its answer does.
        lost_answers: so many answers about changes get lost next.
        on_lost: called when one of these is lost.
        pages: how many were read.
        changes: the numbers of changes of calls that brought several.
    """

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.loss = 0.0
        self.lost_answers = self.pages = 0
        self.changes: list[int] = []
        self.on_lost: Callable[[], Any] | None = None
        self._chance = chance

    def reach(self, node: str, method: str) -> StorageNode:
        if self._chance.random() < self.loss:
            raise Unavailable(f"the line to node {node} broke", node=node)
        return super().reach(node, method)

    async def change_row(self, node: str, table: str, change: RowChange) -> Row:
        row = await super().change_row(node, table, change)
        await self._lose_answer(node, is_change=not isinstance(change, LookUp))
        return row

    async def change_rows(
        self, node: str, table: str, changes: Sequence[RowChange]
    ) -> Sequence[Outcome]:
        outcomes = await super().change_rows(node, table, changes)
        self.changes.append(len(changes))
        await self._lose_answer(node, is_change=True)
        return outcomes

    async def _lose_answer(self, node: str, *, is_change: bool) -> None:
        is_lost = self._chance.random() < self.loss
        if self.lost_answers and is_change:
            self.lost_answers -= 1
            if self.on_lost is not None:
                await self.on_lost()
            is_lost = True
        if is_lost:
            raise Unavailable(f"the answer of node {node} is lost", node=node)

    async def rows_after(self, node: str, table: str, position: Position, topic: str) -> RowPage:
        self.pages += 1
        return await super().rows_after(node, table, position, topic)


class SystemWorld(World):
    """Three nodes without datasets, each of which has a copy of the system partition."""

    network: LossyNetwork

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.network = LossyNetwork(random.Random(seed))

    @property
    def leader(self) -> Host:
        leader = self.leader_of(SYSTEM)
        assert leader is not None, "no node leads the system partition"
        return leader

    @property
    def followers(self) -> list[Host]:
        return [host for host in self.hosts.values() if host is not self.leader]

    def __getitem__(self, name: str) -> StorageNode:
        return self.hosts[name].node

    @property
    def nodes(self) -> list[StorageNode]:
        return [host.node for host in self.hosts.values()]

    async def await_leader(self, *, other_than: str = "") -> None:
        """Waits until another node leads, as all that hear of it know."""

        def is_led() -> bool:
            led = self.leader_of(SYSTEM)
            return led is not None and led.name != other_than

        await until(self, is_led)
        self.spread_leaders()

    async def hand_over(self) -> None:
        """Has another node lead, as when the leader stops."""
        before = self.leader
        await before.replicas.hand_over(30.0)
        await self.await_leader(other_than=before.name)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SystemWorld]:
    world = SystemWorld(tmp_path, 0)
    world.is_calm = True
    await world.begin(datasets=False)
    await await_whole(world)
    yield world
    await world.close()


async def look_up_everywhere(world: SystemWorld, name: str) -> Definition:
    """The definition by any node's look-up; they are the same."""
    [first, *others] = [await node.system.look_up(name) for node in world.nodes]
    assert others == [first] * len(others)
    return first


def known(world: SystemWorld) -> dict[str, list[str]]:
    return {name: world[name].catalog.keys for name in sorted(world.hosts)}


def everywhere(*keys: str) -> dict[str, list[str]]:
    return {name: [*keys] for name in NAMES}


# --- changes and look-ups ------------------------------------------------------------------------


async def test_each_change_at_any_node_is_seen_by_the_next_look_up_at_any_other(
    world: SystemWorld,
) -> None:
    a, b, c = (world[name] for name in NAMES)
    assert await look_up_everywhere(world, "sea") == NOTHING
    await a.create_dataset(sea())
    assert (await look_up_everywhere(world, "sea")).schema == sea()
    wider = await b.add_features("sea", [GUST])
    assert (await look_up_everywhere(world, "sea")).schema == wider == sea().with_features([GUST])
    policy = await c.set_retention("sea", DAY)
    assert (await look_up_everywhere(world, "sea")).retention == policy
    assert policy == VersionedRetention(1, DAY)
    await a.drop_dataset("sea")
    assert await look_up_everywhere(world, "sea") == Definition(1)
    assert known(world) == everywhere()
    again = await b.create_dataset(sea())
    assert again == sea().of_generation(1)
    assert known(world) == everywhere("sea@1")


@pytest.mark.parametrize("is_next", [False, True], ids=["same leader", "next leader"])
async def test_change_whose_answer_was_lost_has_its_effect_once(
    world: SystemWorld, is_next: bool
) -> None:
    asked = world.followers[0].name

    async def lose() -> None:
        world.network.lost_answers = 1

    if is_next:
        world.network.on_lost = world.hand_over
    for change in (
        lambda node: node.create_dataset(sea()),
        lambda node: node.add_features("sea", [GUST]),
        lambda node: node.set_retention("sea", DAY),
        lambda node: node.drop_dataset("sea"),
        lambda node: node.create_dataset(sea()),
    ):
        if world.leader.name == asked:
            asked = world.followers[0].name
        await lose()
        await change(world[asked])
        assert world.network.lost_answers == 0, "the answer was not lost"
    last = await look_up_everywhere(world, "sea")
    assert (last.generations, last.schema) == (1, sea().of_generation(1))


async def test_creations_of_one_name_at_once_have_one_winner(world: SystemWorld) -> None:
    calls = [
        world[name].create_dataset(sea(geohash_precision=precision))
        for precision, name in enumerate(NAMES, start=2)
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    [winner] = [one for one in outcomes if isinstance(one, Schema)]
    assert sum(isinstance(one, DatasetExists) for one in outcomes) == 2
    assert (await look_up_everywhere(world, "sea")).schema == winner
    assert {node.catalog.schema("sea") for node in world.nodes} == {winner}


async def test_without_a_majority_nothing_is_answered(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_tables, "PATIENCE_S", 0.0)
    await world["a"].create_dataset(sea())
    alone, *others = world.leader.name, *(host.name for host in world.followers)
    for name in others:
        await world.crash(name, is_lost=False)
    replicas = world.hosts[alone].replicas
    await until(world, lambda: not replicas.holds_lease(SYSTEM))
    for call in (
        world[alone].system.look_up("sea"),
        world[alone].create_dataset(sea("lake")),
        world[alone].set_retention("sea", DAY),
    ):
        with raises(Unavailable):
            await call
    assert world[alone].catalog.keys == ["sea"], "and what is known is served"


async def test_leader_that_is_cut_off_answers_nothing_old(world: SystemWorld) -> None:
    old, others = world.leader, world.followers
    world.cut.add(old.name)
    await until(world, lambda: any(SYSTEM in one.replicas.led for one in others))
    world.spread_leaders()
    await others[0].node.create_dataset(sea())
    for change in (LookUp("sea"), create("lake")):
        with pytest.raises(PartitionMoved):
            await old.node.system.carry_out(change)
    with pytest.raises(PartitionMoved):
        await old.node.system.page(Position(), "")


async def test_new_leader_answers_with_all_that_was_agreed_on(world: SystemWorld) -> None:
    """Although it was cut off from the leader until that crashed."""
    late, other = (host.name for host in world.followers)
    world.cut.add(late)
    names = [f"sea-{number}" for number in range(5)]
    for name in names:
        await world[other].create_dataset(sea(name))
    world.cut.clear()
    await world.crash(world.leader.name, is_lost=False)
    await world.await_leader()
    for name in names:
        assert (await look_up_everywhere(world, name)).schema == sea(name)
    with raises(DatasetExists, same=True):
        await world[late].create_dataset(sea(names[-1]))


def create(name: str, creation: str = "1") -> CreateDataset:
    return CreateDataset(name, sea(name).to_json(), creation, generation=0)


async def test_change_that_waits_for_the_disk_leaves_the_next_one_alone(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world["a"].create_dataset(sea())
    leader = world.leader
    loop = asyncio.get_running_loop()
    with leader.disk.gate:
        monkeypatch.setattr(system_tables, "COMMIT_WAIT_S", 0.05)
        with raises(Unavailable):
            await leader.node.system.carry_out(create("lake"))
        monkeypatch.setattr(system_tables, "COMMIT_WAIT_S", 30.0)
        carried = loop.create_task(leader.node.system.carry_out(create("pond")))
        await asyncio.sleep(0.1)
    assert (await carried).schema == sea("pond")
    for name in ("sea", "lake", "pond"):
        assert (await look_up_everywhere(world, name)).schema == sea(name), "it was made later"


async def test_commit_behind_the_back_of_the_consumer_has_its_change_refused_and_repeated(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world["a"].create_dataset(sea())
    leader, theirs = world.leader.node, Definition(0, sea("lake", geohash_precision=3), "theirs")
    commit, refused = leader.catalog.commit, list[GalileoError]()

    def race(dataset: str, commits: dict[int, Commit]) -> Future[Any]:
        monkeypatch.setattr(leader.catalog, "commit", commit)
        rows = pa.table({"name": ["lake"], "definition": [encode(theirs)]})
        [(versions, keys)] = index_versions(DATASETS, versions_of(DATASETS, rows)).values()
        commit(dataset, {SYSTEM: Commit("other", 1, versions, keys)}).result()
        result = commit(dataset, commits)
        refused.append(result.result()[SYSTEM])
        return result

    monkeypatch.setattr(leader.catalog, "commit", race)
    with raises(DatasetExists, same=False):
        await world["b"].create_dataset(sea("lake"))
    assert [type(one) for one in refused] == [Conflict]
    assert await look_up_everywhere(world, "lake") == theirs


async def test_corrupt_change_fails_alone_in_its_group(world: SystemWorld) -> None:
    system = world.leader.node.system
    await world["a"].create_dataset(sea())
    calls = [create("sea", "2"), create("lake"), LookUp("lake"), create("lake", "2")]
    outcomes = await asyncio.gather(*map(system.carry_out, calls), return_exceptions=True)
    assert [type(one) for one in outcomes] == [DatasetExists, Definition, Definition, DatasetExists]
    assert outcomes[1] == outcomes[2]


# --- following -----------------------------------------------------------------------------------


async def create_while_away(world: SystemWorld, names: Sequence[str]) -> StorageNode:
    """Creates datasets while a follower cannot be called; returns that."""
    away, other = world.followers
    await other.node.system.look_up("")  # The leader has asked all nodes what they know.
    world.network.away = {away.name}
    for name in names:
        await other.node.create_dataset(sea(name))
    world.network.away.clear()
    assert away.node.catalog.keys == []
    return away.node


async def test_follower_that_was_away_catches_up_by_pages(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 1)
    names = [f"sea-{number}" for number in range(5)]
    away = await create_while_away(world, names)
    running = asyncio.create_task(away.system.run())
    try:
        await until(world, lambda: away.catalog.keys == names)
        assert world.network.pages >= len(names)
        world.network.away = {away.name}
        await world.leader.node.drop_dataset(names[0])
        world.network.away.clear()
        away.view.update_sequences(
            DATASETS.key, world.leader.node.catalog.shards[DATASETS.key].own_published().sequences
        )
        away.system.wake()
        await until(world, lambda: away.catalog.keys == names[1:])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_follower_with_a_part_of_the_last_commit_is_behind(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, leader, names = world.followers[0].node, world.leader.node, ["lake", "pond", "sea"]
    await follower.system._follow()
    changes = [CreateDataset(name, sea(name).to_json(), name, generation=0) for name in names]
    await leader.system.change_all(changes)
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 1)
    published = leader.catalog.shards[DATASETS.key].own_published().sequences
    follower.view.update_sequences(DATASETS.key, published)
    page = await follower.system._page_after(follower.system._position, "")
    assert (page.reached.name, page.reached.sequence) == ("lake", published[SYSTEM])
    follower.system._position = page.reached  # The call for the next page got lost.
    assert follower.system._is_behind
    await follower.system._follow()
    assert not follower.system._is_behind
    assert {"pond", "sea"} <= {*follower.catalog.keys}


async def test_follower_ends_when_it_is_cancelled_as_news_arrive(world: SystemWorld) -> None:
    node = world.followers[0].node
    running = asyncio.create_task(node.system.run())
    await until(world, lambda: node.system._listing is None)
    await asyncio.sleep(4 * system_tables.PAUSE_S)  # It waits for news.
    node.system.wake()
    running.cancel()
    await asyncio.wait([running], timeout=5.0)
    assert running.cancelled()


async def page_of_leader(world: SystemWorld, after: Position) -> RowPage:
    """The page after a position; asks again where a busy machine lets a lease run out."""
    while True:
        try:
            return await world.leader.node.system.page(after, "")
        except PartitionMoved:
            await asyncio.sleep(0.01)


async def test_follower_reads_all_pages_of_another_leader(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 1)
    names = ["sea", "lake", "pond"]
    for name in names:
        await world["a"].create_dataset(sea(name))
    first = await page_of_leader(world, Position())
    assert ([row.name for row in first.rows], first.is_last) == (["sea"], False)
    await world.hand_over()
    pages = [await page_of_leader(world, first.reached)]
    assert pages[0].is_anew
    while not pages[-1].is_last:
        pages.append(await page_of_leader(world, pages[-1].reached))
    assert sorted(row.name for page in pages for row in page.rows) == sorted(names)
    assert [page.is_anew for page in pages[1:]] == [False] * (len(pages) - 1)


@pytest.mark.parametrize("position", [Position(99, "~", 1), Position(1, "~", 99)])
async def test_follower_whose_position_is_not_of_the_log_reads_anew_and_offers_what_it_knows(
    world: SystemWorld, position: Position
) -> None:
    away = await create_while_away(world, ["sea"])
    away.catalog.adopt(sea("lake"))
    away.catalog.adopt_retention("lake", VersionedRetention(3, WEEK))
    away.system._position, away.system._listing = position, None
    await away.system._follow()
    assert away.catalog.keys == ["lake", "sea"]
    offered = await look_up_everywhere(world, "lake")
    assert (offered.schema, offered.retention) == (sea("lake"), VersionedRetention(3, WEEK))
    for host in world.hosts.values():
        await host.node.system._follow()
    assert known(world) == everywhere("lake", "sea")
    assert (await away.system._page_after(away.system._position, "")).is_anew is False


async def test_leader_without_rows_gathers_what_all_nodes_know_by_pages(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 1)
    for host, name in zip(world.followers, ("sea", "lake"), strict=True):
        host.node.catalog.adopt(sea(name))
        host.node.catalog.adopt(sea("both"))
    for name in ("sea", "lake", "both"):
        assert (await look_up_everywhere(world, name)).schema == sea(name)
        with raises(DatasetExists, same=False):
            await world.leader.node.create_dataset(sea(name, geohash_precision=3))


async def test_leader_without_rows_gathers_again_when_it_could_not_store_them(
    world: SystemWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_tables, "PATIENCE_S", 0.0)
    world.followers[0].node.catalog.adopt(sea())
    leader, error = world.leader.node, PartitionReadOnly("the disk is full", after_s=0.1)

    def refuse(dataset: str, commits: dict[int, Commit]) -> Future[Any]:
        refused: Future[Any] = Future()
        refused.set_result(dict.fromkeys(commits, error))
        return refused

    with monkeypatch.context() as patched:
        patched.setattr(leader.catalog, "commit", refuse)
        with pytest.raises(PartitionReadOnly):
            await leader.system.look_up("sea")
    assert (await look_up_everywhere(world, "sea")).schema == sea()


# --- rows of a topic -----------------------------------------------------------------------------


@dataclass
class Records:
    """The records of continuous queries at a node, which follows those that name it."""

    node: StorageNode
    kind: RowKind[Record] = CCQ_ROWS
    known: dict[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = SystemTable(
            self.kind,
            self.node.system_partition,
            learn=self.learn,
            known=lambda: self.known,
            topic=topic_of(node=self.node.name),
        )
        self.node.add_system_table(self.table)

    async def learn(self, values: Mapping[str, Record]) -> None:
        for name, record in values.items():
            merged = CCQ_ROWS.merged(self.known.get(name, NO_RECORD), record)
            if self.node.name in merged.participants:
                self.known[name] = merged
            else:
                self.known.pop(name, None)


@pytest.fixture
def records(world: SystemWorld) -> dict[str, Records]:
    return {name: Records(world[name]) for name in NAMES}


def record(name: str, *nodes: str, dataset: str = "sea", **options: Any) -> Record:
    return Record(CcqDefinition(name, dataset, "", 1.0, 9.0, owner="ann"), 1, nodes, **options)


def place(one: Record, most: int = 9) -> PlaceCcq:
    return PlaceCcq(one.id, CCQ_ROWS.encode(one), most, most)


async def test_changes_of_several_rows_have_an_outcome_each(
    world: SystemWorld, records: dict[str, Records]
) -> None:
    first, second = record("q", "a"), record("r", "b")
    changes = [place(first), place(second, most=1), EndCcq("z", "cancelled", 2.0), LookUp("q")]
    for host in (world.leader, *world.followers):
        outcomes = await records[host.name].table.change_all(changes)
        assert outcomes[::3] == [first, first]
        assert [type(one) for one in outcomes[1:3]] == [Overloaded, UnknownCcq]
        assert "limit of 1 continuous queries" in str(outcomes[1])
    assert await records["b"].table.change_all([]) == []


async def test_calls_have_as_many_changes_as_fit(
    world: SystemWorld, records: dict[str, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = records[world.followers[0].name].table
    changes = [place(record(f"q{number}", "a")) for number in range(5)]
    size = len(changes[0].data)
    for bytes_max, count_max, expected in (
        (9 * size, 9, [5]),
        (2 * size, 9, [2, 2, 1]),
        (9 * size, 3, [3, 2]),
        (1, 9, [1] * 5),
    ):
        monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", bytes_max)
        monkeypatch.setattr(system_rows, "CALL_CHANGES_MAX", count_max)
        world.network.changes.clear()
        assert len(await table.change_all(changes)) == len(changes)
        assert world.network.changes == expected


async def test_changes_of_several_rows_are_repeated_at_the_next_leader(
    world: SystemWorld, records: dict[str, Records]
) -> None:
    asked = world.followers[0].name
    world.network.lost_answers, world.network.on_lost = 1, world.hand_over
    made = [record(f"q{number}", "a") for number in range(5)]
    assert await records[asked].table.change_all([*map(place, made)]) == made
    assert not world.network.lost_answers
    assert await records[asked].table.read("") == {one.id: one for one in made}


async def test_topics_have_the_rows_that_name_them(
    world: SystemWorld, records: dict[str, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [record("q", "a", "b"), record("r", "b", dataset="lake"), record("s", "c")]
    table = records[world.followers[0].name].table
    await table.change_all([*map(place, made)])
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 1)
    for topic, names in {
        topic_of(node="b"): ["q", "r"],
        topic_of(dataset="sea"): ["q", "s"],
        topic_of(owner="ann"): ["q", "r", "s"],
        topic_of(owner="bob"): [],
        "": ["q", "r", "s"],
    }.items():
        assert sorted(await table.read(topic)) == names
    for one in records.values():
        await one.table._follow()
    assert {name: sorted(one.known) for name, one in records.items()} == {
        "a": ["q"],
        "b": ["q", "r"],
        "c": ["s"],
    }


async def follow(table: Any) -> None:
    """Has a table follow; again while the leader may have lost its lease on a busy machine."""
    async with asyncio.timeout(30.0):
        while True:
            with contextlib.suppress(TransientError, PartitionMoved):
                await table._follow()
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_next", [False, True], ids=["same leader", "next leader"])
async def test_node_that_a_row_names_no_more_hears_so(
    world: SystemWorld, records: dict[str, Records], is_next: bool
) -> None:
    await records["a"].table.change_all([place(record("q", "a", "b"))])
    for one in records.values():
        await follow(one.table)
    await records["c"].table.change_all([move(moved_to(record("q", "a", "b"), ("b", "c")))])
    if is_next:
        await world.hand_over()
    for one in records.values():
        await follow(one.table)
    assert [name for name, one in records.items() if one.known] == ["b", "c"]
    assert records["b"].known == records["c"].known


async def test_deleted_row_is_gone_for_the_next_leader_too(
    world: SystemWorld, records: dict[str, Records]
) -> None:
    await records["a"].table.change_all([*map(place, [record("q", "a"), record("r", "a")])])
    ends = [EndCcq("q", "cancelled", 2.0), ForgetCcq("q"), ForgetCcq("r")]
    outcomes = await records["b"].table.change_all(ends)
    assert [isinstance(one, Record) and one.ended for one in outcomes] == ["cancelled", None, None]
    for _ in range(2):
        leader = records[world.leader.name].table
        assert await leader.look_up("q") == NO_RECORD
        assert [*await records["c"].table.read("")] == ["r"]
        assert await leader.select(lambda one: one.ccq.owner) == {"r": "ann"}
        await world.hand_over()
    [again] = await records["b"].table.change_all([place(record("q", "b"))])
    assert again == record("q", "b"), "its id is free"


async def test_records_that_a_leader_lacks_are_offered_and_the_answers_learned(
    world: SystemWorld, records: dict[str, Records]
) -> None:
    """As after the commits of a few seconds were lost for good."""
    later = record("q", "a", retrieved=Cursor({0: 5}))
    moved = moved_to(record("r", "a"), ("b",))
    await records["a"].table.change_all([place(record("q", "a")), place(moved)])
    await records["c"].table.look_up("q")  # The leader has asked all nodes what they know.
    records["a"].known |= {"q": later, "r": record("r", "a"), "s": record("s", "a", "b")}
    await records["a"].table._follow()
    held = {"q": later, "r": moved, "s": record("s", "a", "b")}
    assert await records["c"].table.read("") == held
    assert sorted(records["a"].known) == ["q", "s"], "and r is b's"


async def test_what_a_node_knows_may_change_while_it_is_read(world: SystemWorld) -> None:
    def encode_late(one: Record) -> str:
        node.known.clear()
        return CCQ_ROWS.encode(one)

    node = Records(world["b"], replace(CCQ_ROWS, encode=encode_late))
    node.known |= {name: record(name, "b") for name in "qr"}
    assert [row.name for row in await node.table.known_after("")] == ["q", "r"]


# --- clients -------------------------------------------------------------------------------------


async def test_clients_do_not_find_the_table_of_definitions(world: SystemWorld) -> None:
    node, name = world["b"], DATASETS.name
    await node.create_dataset(sea())
    assert name not in node.catalog.names + node.catalog.keys
    assert name not in {fact.dataset for fact in node.facts()}
    rows = pa.table({"name": ["sea"], "definition": [encode(NOTHING)]})
    for call in (
        node.named(name),
        node.stored_named(name),
        node.schema(name),
        node.stored_schema(name),
        node.drop_dataset(name),
        node.add_features(name, [GUST]),
        node.set_retention(name, DAY),
        node.retention(name),
        node.apply_retention(name),
        node.ingest.ingest(name, rows, producer="p", batch=0),
        node.create_dataset(Channel("hot", name, template="depth > 1")),
    ):
        with raises(UnknownDataset, dataset=name):
            await call
    for read in (node.catalog.schema, node.catalog.table_shard):
        with raises(UnknownDataset, dataset=name):
            read(name)
    with raises(InvalidSchema):
        await node.create_dataset(Table(name, {"name": "text"}, key="name"))
    assert (await look_up_everywhere(world, name)) == NOTHING


# --- random histories ----------------------------------------------------------------------------


State: TypeAlias = tuple[int, tuple[str, ...] | None, int]
"""A name in the oracle: its generation, the features of its dataset, the version of its policy."""
Result: TypeAlias = str | State
Step: TypeAlias = Callable[[State], tuple[Result, State]]


@dataclass(frozen=True, slots=True)
class Call:
    """A client's call about a name, and what it does by the dumb rules."""

    ask: Callable[[StorageNode], Awaitable[object]]
    step: Step


def key_of(name: str, state: State) -> str:
    return sea(name).of_generation(state[0]).key


def random_call(chance: random.Random, name: str, state: State) -> Call:
    """A call of a client that takes the name to be in a state."""
    key, generation = key_of(name, state), state[0]
    gust = Feature(f"f{chance.randrange(3)}")

    def present(now: State) -> bool:
        return now[1] is not None and now[0] == generation

    def created(now: State) -> tuple[Result, State]:
        if now[1] is not None:
            return "DatasetExists", now
        return (after := (now[0], ("depth",), 0)), after

    def extended(now: State) -> tuple[Result, State]:
        if now[1] is None or not present(now):
            return "UnknownDataset", now
        if gust.name in now[1]:
            return "InvalidSchema", now
        return (after := (now[0], (*now[1], gust.name), now[2])), after

    def dropped(now: State) -> tuple[Result, State]:
        return ("dropped", (now[0] + 1, None, 0)) if present(now) else ("UnknownDataset", now)

    def retained(now: State) -> tuple[Result, State]:
        if not present(now):
            return "UnknownDataset", now
        return "retained", (now[0], now[1], now[2] + 1)

    return chance.choice(
        [
            Call(lambda node: node.create_dataset(sea(name)), created),
            Call(lambda node: node.add_features(key, [gust]), extended),
            Call(lambda node: node.drop_dataset(key), dropped),
            Call(lambda node: node.set_retention(key, DAY), retained),
            Call(lambda node: node.system.look_up(name), lambda now: (now, now)),
        ]
    )


def is_result(outcome: object, expected: Result) -> bool:
    """Whether a call gave what the dumb rules expect; policies and features may come with it."""
    if isinstance(outcome, GalileoError):
        return type(outcome).__name__ == expected
    if isinstance(outcome, Definition):
        return state_of(outcome) == expected
    if isinstance(outcome, Schema):
        features = tuple(feature.name for feature in outcome.features)
        return (outcome.generation, features) == expected[:2]
    return expected == ("dropped" if isinstance(outcome, dict) else "retained")


def state_of(one: Definition) -> State:
    if one.schema is None:
        return one.generations, None, 0
    assert isinstance(one.schema, Schema)
    features = tuple(feature.name for feature in one.schema.features)
    return one.generations, features, one.retention.version


@dataclass
class Client:
    """Calls about one name, one after the other, at any node.

    Attributes:
        states: in which the name may be, by the answers so far.
        late: what calls without an answer may still do.
        answers: how many calls were answered.
    """

    world: SystemWorld
    name: str
    chance: random.Random
    states: set[State] = field(default_factory=lambda: {(0, None, 0)})
    late: list[Step] = field(default_factory=list)
    answers: int = 0

    async def run(self) -> None:
        while not self.world.is_over:
            await self.call()
            await asyncio.sleep(0.01)

    async def call(self) -> None:
        hosts = list(self.world.hosts.values())
        call = random_call(
            self.chance, self.name, self.chance.choice(sorted(self.states, key=repr))
        )
        if not hosts:
            return
        try:
            async with asyncio.timeout(5.0):
                outcome = await call.ask(self.chance.choice(hosts).node)
        except (TransientError, TimeoutError):
            self.late.append(call.step)
            return
        except RuntimeError as error:
            expect_crash(error)
            self.late.append(call.step)
            return
        except GalileoError as error:
            outcome = error
        self.judge(call, outcome)

    def judge(self, call: Call, outcome: object) -> None:
        """Keeps the states that explain an answer: there has to be one."""
        steps = [call.step(state) for state in self.reachable()]
        fitting = {after for result, after in steps if is_result(outcome, result)}
        assert fitting, f"{outcome!r} is none of {steps}"
        self.states, self.answers = fitting, self.answers + 1
        if not isinstance(outcome, GalileoError | Definition):
            self.late.clear()  # What came before it and is not there now is refused for good.

    def reachable(self) -> set[State]:
        """The states, each with as many of the late calls done as there are."""
        states = set(self.states)
        for _ in self.late:
            states |= {step(state)[1] for state in states for step in self.late}
        return states


async def disturb(world: SystemWorld) -> None:
    fault = world.random.choice(("crash", "cut", "hand over", "hand over", "loss", "loss"))
    pause_s = world.random.uniform(0.1, 0.6)
    if fault == "crash":
        name = world.random.choice(world.names)
        await world.crash(name, is_lost=False)
        await asyncio.sleep(pause_s)
        world.start(name)
    elif fault == "cut":
        world.cut.add(world.random.choice(world.names))
        await asyncio.sleep(pause_s)
        world.cut.clear()
    elif fault == "loss":
        world.network.loss = 0.3
        await asyncio.sleep(pause_s)
        world.network.loss = 0.0
    elif (leader := world.leader_of(SYSTEM)) is not None:
        await leader.replicas.hand_over(pause_s)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 3), *(pytest.param(seed, 12, marks=pytest.mark.slow) for seed in range(40))],
)
async def test_random_history_of_definitions_is_that_of_a_dict(
    tmp_path: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_tables, "PATIENCE_S", 2.0)
    monkeypatch.setattr(system_tables, "COMMIT_WAIT_S", 1.0)
    world = SystemWorld(tmp_path, seed)
    await world.begin(datasets=False)
    clients = [Client(world, name, random.Random(f"{seed}{name}")) for name in ("x", "y", "z")]
    try:
        await await_whole(world)
        calls = [client.run() for client in clients]
        await play_history(world, steps, partial(disturb, world), calls)
        for node in world.nodes:
            await node.system._follow()
        for client in clients:
            last = await look_up_everywhere(world, client.name)
            assert state_of(last) in client.reachable()
            assert client.answers
            for node in world.nodes:
                assert state_of(node.catalog.definition(client.name)) == state_of(last)
    finally:
        await world.close()
