"""Channels of real nodes that join observations or subscriptions with tables, and limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
import shapely
from channel_audit import START_US, air, pairs_of, read_rows
from expected_errors import raises
from parameters import keep_quick
from retaining import runner_of

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InputError, Unavailable, UnknownDataset
from galileo.model.channel import Channel
from galileo.model.enrichment import Lookup, Near, Step, Within
from galileo.model.table import Table
from galileo.model.times import TIME_TYPE
from galileo.node import reference_tables
from galileo.node.peers import ExecutionsTask, TablePart, TableTask
from galileo.node.reference_tables import ReferenceTables
from galileo.node.retention_runner import RetentionRunnerOptions

CHANNEL, DATASET = "hot", "air"
RATINGS = Table("ratings", {"number": "int", "stars": "int"}, "number")
ZONES = Table("zones", {"name": "text", "area": "geometry"}, "name")
POSTS = Table("posts", {"name": "text", "at": "geometry"}, "name")
LOOKUP, WITHIN, NEAR = Lookup("ratings", "number"), Within("zones"), Near("posts", within="20km")
Row = dict[str, Any]


class World:
    """A channel that everything matches, and what its broker gets.

    Attributes:
        left: as `matched` returns it, of what has matched before and does not any more.
    """

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.batches, self.cursor = cluster, 0, EMPTY_CURSOR
        self.left: dict[str, set[int]] = {}

    async def begin(
        self, *steps: Step, name: str = CHANNEL, columns: list[str] | None = None
    ) -> None:
        channel = Channel(
            name, DATASET, "temperature >= :least", columns=columns or [], enrich=steps
        )
        await self.cluster["b"].create_dataset(channel)
        await self.store(f"{name}.subscriptions", [{"id": "s", "broker": "me", "least": 0.0}])

    async def begin_lookup(self, template: str, lookup: Any, **options: Any) -> None:
        channel = Channel(CHANNEL, DATASET, template, lookup=lookup, **options)
        await self.cluster["b"].create_dataset(channel)

    async def store(self, table: str, rows: list[Row]) -> None:
        self.batches += 1
        node = self.cluster["c"]
        schema = (await node.stored_named(table)).observation_schema
        whole = pa.Table.from_pylist([{"deleted": False} | row for row in rows], schema=schema)
        await node.ingest.ingest(table, whole, producer="p", batch=self.batches)

    async def matched(self, *numbers: int, **place: float) -> dict[str, set[int]]:
        """Observes, executes, and returns the numbers that each subscription gets."""
        if numbers:
            await self.observe(*numbers, **place)
        assert await self.execute() == set()
        found: dict[str, set[int]] = {}
        self.left = {}
        task = ExecutionsTask(CHANNEL, "me", self.cursor)
        async for part in self.cluster["a"].channel_reader.read(task):
            self.cursor = self.cursor.join(part.reached)
            if part.execution is None:
                continue
            for pair in pairs_of(part.execution.observations, part.execution.matches):
                outcome = self.left if pair.left else found
                outcome.setdefault(pair.subscription, set()).add(pair.observation.number)
        return found

    async def observe(self, *numbers: int, latitude: float = 10.0, longitude: float = 10.0) -> None:
        self.batches += 1
        columns = [
            pa.array([latitude] * len(numbers)),
            pa.array([longitude] * len(numbers)),
            pa.array([START_US] * len(numbers), pa.int64()).cast(TIME_TYPE),
            pa.array(numbers, pa.int64()),
            pa.array([9.0] * len(numbers)),
        ]
        table = pa.table(columns, schema=air(DATASET).observation_schema)
        await self.cluster["a"].ingest.ingest(DATASET, table, producer="o", batch=self.batches)

    async def execute(self, channel: str = CHANNEL) -> set[str]:
        """Executes until all is done; the failures."""
        for node in self.cluster.nodes:
            for other in self.cluster.nodes:
                for key, shard in other.catalog.shards.items():
                    node.view.update_sequences(key, shard.own_published().sequences)
        for node in self.cluster.nodes:
            while await node.channels.execute(channel):
                pass
        nodes = self.cluster.nodes
        every = [one for node in nodes for one in node.channels.progress(channel).values()]
        return {one.failure for one in every if one.failure}

    async def delivered(self) -> list[Row]:
        """What is new for the broker, by number."""
        rows: list[Row] = []
        task = ExecutionsTask(CHANNEL, "me", self.cursor)
        async for part in self.cluster["a"].channel_reader.read(task):
            self.cursor = self.cursor.join(part.reached)
            if part.execution is not None:
                rows += read_rows(part.execution.observations)
        return sorted(rows, key=lambda row: int(row["number"]))

    async def restart(self) -> None:
        """Nodes have nothing in memory."""
        for name in "abc":
            await self.cluster.restart(name)

    async def clean(self, table: Table, *, compared: Any = None) -> int:
        """Cleans a table at all nodes; up to which commits it is cleaned then, in all."""
        options, cleaned = RetentionRunnerOptions(3600.0, min_age_s=0.0, table_age_s=0.0), 0
        for node in self.cluster.nodes:
            runner = runner_of(node, options, compared=compared)
            shard = node.catalog.table_shard(table.key)
            for journal in shard.own.values():
                journal.seal()
            await asyncio.to_thread(runner.clean, shard)
            await asyncio.to_thread(runner.stop)
            cleaned += sum(journal.dropped for journal in shard.own.values())
        return cleaned

    def replicas(self, table: Table) -> list[int]:
        """The rows that nodes keep of a table."""
        tables = [node.channels._references._replicas for node in self.cluster.nodes]
        return [
            len(replicas[table.key].reference)
            for replicas in tables
            if table.key in replicas and replicas[table.key].reference is not None
        ]


@pytest.fixture
async def world(cluster: Any) -> World:
    await cluster["a"].create_dataset(air(DATASET))
    for table in (RATINGS, ZONES, POSTS):
        await cluster["a"].create_dataset(table)
    return World(cluster)


def wkb(shape: shapely.Geometry) -> bytes:
    return bytes(shapely.to_wkb(shape))


async def test_columns_that_are_not_delivered_can_be_joined(world: World) -> None:
    await world.begin(LOOKUP, WITHIN, NEAR, columns=["time"])
    channel = await world.cluster["a"].stored_named(CHANNEL)
    assert channel.delivered_schema.names == ["time", "ratings.stars", "zones", "posts"]
    await world.store("ratings", [{"number": 1, "stars": 5}])
    await world.store("zones", [{"name": "z", "area": wkb(shapely.box(9, 9, 11, 11))}])
    await world.store("posts", [{"name": "p", "at": wkb(shapely.Point(10.1, 10.0))}])
    await world.observe(1)
    assert await world.execute() == set()
    parts = world.cluster["a"].channel_reader.read(ExecutionsTask(CHANNEL, "me", EMPTY_CURSOR))
    [execution] = [part.execution async for part in parts if part.execution is not None]
    [row] = read_rows(execution.observations)
    assert list(row) == channel.delivered_schema.names
    assert (row["ratings.stars"], row["zones"]) == (5, [{"name": "z"}])
    [post] = row["posts"]
    assert (post["name"], round(post["distance"])) == ("p", 10951)


async def test_a_channel_with_steps_that_do_not_fit_is_not_created(world: World) -> None:
    wrong: list[tuple[Step, Any]] = [
        (Lookup("stars", "number"), UnknownDataset),
        (Lookup(DATASET, "number"), InputError),
        (Lookup("ratings", "temperature"), InputError),
        (Within("ratings"), InputError),
    ]
    for step, kind in wrong:
        with pytest.raises(kind):
            await world.begin(step)
    assert world.cluster["a"].catalog.channels == {}


@pytest.mark.parametrize("new", ["observations", "either"])
@pytest.mark.parametrize("template", ["temperature >= :least", "temperature = :least OR TRUE"])
async def test_subscriptions_that_were_not_checked_are_left_out_alone_and_named(
    world: World, caplog: pytest.LogCaptureFixture, template: str, new: Any
) -> None:
    channel = Channel(CHANNEL, DATASET, template, new=new)
    await world.cluster["b"].create_dataset(channel)
    # As rows that were stored before the channel was created.
    good = {"id": "good", "broker": "me", "least": 1.0}
    unnamed, unbounded = good | {"id": "unnamed", "broker": ""}, good | {"id": "unbounded"}
    wrong = [unnamed, unbounded | {"least": None}]
    await world.store(f"{CHANNEL}.subscriptions", [good, *wrong])
    assert await world.matched(1) == {"good": {1}}
    assert "unnamed" in caplog.text
    assert "unbounded" in caplog.text
    await world.store(f"{CHANNEL}.subscriptions", [good | {"least": None}, unbounded])
    assert await world.matched(2) == {"unbounded": {2} if new == "observations" else {1, 2}}
    await world.restart()
    assert await world.matched(3) == {"unbounded": {3}}


async def test_a_table_that_a_channel_joins_cannot_be_dropped(world: World) -> None:
    await world.begin(LOOKUP)
    with raises(InputError, channel=CHANNEL):
        await world.cluster["c"].drop_dataset(RATINGS.key)
    await world.cluster["c"].drop_dataset(CHANNEL)
    await world.cluster["c"].drop_dataset(RATINGS.key)


async def test_an_execution_waits_for_the_owner_of_a_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin(LOOKUP)
    await world.store("ratings", [{"number": number, "stars": number} for number in range(40)])
    await world.observe(1)
    await world.execute()
    assert [row["ratings.stars"] for row in await world.delivered()] == [1]
    await world.observe(2, 3)
    network = world.cluster.network

    async def fail(node: str, task: TableTask, table: Table) -> AsyncIterator[TablePart]:
        raise Unavailable(f"node {node} is away")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(network, "read_table", fail)
        [failure] = await world.execute()
    assert "is away" in failure
    assert await world.delivered() == []
    await world.store("ratings", [{"number": 3, "stars": 9}])
    assert await world.execute() == set()
    assert [row["ratings.stars"] for row in await world.delivered()] == [2, 9]


def posts(first: int, count: int, *, deleted: bool = False) -> list[Row]:
    place = None if deleted else wkb(shapely.Point(10, 10))
    names = range(first, first + count)
    return [{"name": f"p{number}", "at": place, "deleted": deleted} for number in names]


async def test_channels_share_a_replica_which_follows_changes_and_cleaning(world: World) -> None:
    await world.begin(NEAR)
    await world.begin(NEAR, name="warm")
    for number in range(4):
        await world.store("posts", posts(4 * number, 8))
        await world.observe(number)
        assert await world.execute() | await world.execute("warm") == set()
    assert world.replicas(POSTS) == [20]
    await world.store("posts", posts(0, 15, deleted=True))
    cleaned = await world.clean(POSTS)
    assert cleaned, "the cursor of the replica is too old"
    await world.observe(6, 7)
    assert await world.execute() == set()
    assert world.replicas(POSTS) == [5]
    assert [len(row["posts"]) for row in await world.delivered()] == [8, 12, 16, 20, 5, 5]


async def test_a_replica_that_is_not_used_is_freed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin(NEAR)
    await world.observe(1)
    await world.execute()
    tables = [node.channels._references for node in world.cluster.nodes]
    for one in tables:
        one.forget_idle()
    assert world.replicas(POSTS) == [0]
    monkeypatch.setattr(reference_tables, "IDLE_S", -1.0)
    for one in tables:
        one.forget_idle()
    assert world.replicas(POSTS) == []


@pytest.mark.parametrize(("limit", "value"), [("ROWS_MAX", 3), ("BYTES_MAX", 50)])
async def test_large_tables_can_be_looked_up_but_not_joined_by_places(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(reference_tables, limit, value)
    await world.store("ratings", [{"number": n, "stars": n} for n in range(9)])
    await world.store("posts", posts(0, 9))
    await world.begin(LOOKUP)
    await world.begin(NEAR, name="near")
    await world.observe(5, 20)
    assert await world.execute() == set()
    assert [row["ratings.stars"] for row in await world.delivered()] == [5, None]
    assert world.replicas(RATINGS) == []
    [failure] = await world.execute("near")
    assert "'posts' is too large to be joined by places" in failure


async def test_rows_of_many_observations_are_joined_in_several_executions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin(NEAR)
    monkeypatch.setattr("galileo.query.joins.PAIRS_MAX", 20)
    await world.store("posts", posts(0, 9))
    for number in range(5):
        await world.observe(number)
    assert await world.execute() == set()
    assert [len(row["posts"]) for row in await world.delivered()] == [9] * 5
    await world.observe(5, 6, 7)  # One commit cannot be divided.
    [failure] = await world.execute()
    assert "expected at most 20 rows of table 'posts'" in failure


# --- rows of subscriptions -----------------------------------------------------------------------

NEAR_POST, POST = "S_DWITHIN(geometry, posts.at, 500)", {"posts": ":post"}


def post(name: str, x: float | None, *, deleted: bool = False) -> Row:
    at = None if x is None else wkb(shapely.Point(x, 10))
    return {"name": name, "at": at, "deleted": deleted}


def subscribed(**names: str) -> list[Row]:
    return [{"id": name, "broker": "me", "post": of} for name, of in names.items()]


async def test_subscriptions_follow_their_rows(world: World) -> None:
    await world.begin_lookup(NEAR_POST, POST)
    await world.store("hot.subscriptions", subscribed(anna="p", bert="p", cleo="q", dora="r"))
    assert await world.matched(1) == {}
    await world.store("posts", [post("p", 10), post("q", 20)])
    assert await world.matched(2) == {"anna": {2}, "bert": {2}}
    await world.store("posts", [post("p", 20), post("r", 10)])
    assert await world.matched(3) == {"dora": {3}}
    assert await world.matched(4, longitude=20.0) == {"anna": {4}, "bert": {4}, "cleo": {4}}
    await world.store("hot.subscriptions", subscribed(anna="r"))
    assert await world.matched(5) == {"anna": {5}, "dora": {5}}
    await world.store("posts", [post("r", None), post("q", 10), post("p", None, deleted=True)])
    assert await world.matched(6) == {"cleo": {6}}
    for name in "abc":
        await world.cluster.restart(name)
    assert await world.matched(7) == {"cleo": {7}}
    await world.store("posts", [post("p", 10)])
    assert await world.matched(8) == {"bert": {8}, "cleo": {8}}
    nodes = world.cluster.nodes
    progress = [one for node in nodes for one in node.channels.progress(CHANNEL).values()]
    assert sum(len(one.index) for one in progress) == 4
    assert sum(one.index.nbytes for one in progress) > 0


async def test_rows_are_found_by_keys_of_several_columns(world: World) -> None:
    limits = {"level": "int", "since": "time", "least": "int"}
    await world.cluster["a"].create_dataset(Table("limits", limits, ["level", "since"]))
    await world.begin_lookup(
        "temperature >= limits.least AND temperature < :most",
        {"limits": {":since": "since", ":level": "level"}},
    )
    channel = await world.cluster["a"].stored_named(CHANNEL)
    assert dict(channel.parameters) == {"most": "float", "level": "int", "since": "time"}
    common = {"broker": "me", "most": 50.0, "since": START_US}
    rows = [{"id": "anna", "level": 1} | common, {"id": "bert", "level": 2} | common]
    await world.store("hot.subscriptions", rows)
    await world.store("limits", [{"level": n, "since": START_US, "least": 8 + n} for n in (1, 2)])
    assert await world.matched(5) == {"anna": {5}}


async def test_an_execution_waits_for_the_rows_of_subscriptions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin_lookup(NEAR_POST, POST)
    await world.store("hot.subscriptions", subscribed(anna="p"))
    await world.store("posts", [post("p", 20)])
    await world.observe(1)

    async def fail(node: str, task: TableTask, table: Table) -> AsyncIterator[TablePart]:
        raise Unavailable(f"node {node} is away")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(world.cluster.network, "read_table", fail)
        failures = await world.execute()
    assert failures
    assert all("is away" in failure for failure in failures)
    await world.store("posts", [post("p", 10)])
    assert await world.matched(2) == {"anna": {1, 2}}


async def test_rows_of_a_replica_that_is_read_again_are_joined(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin_lookup(NEAR_POST, POST)
    await world.store("hot.subscriptions", subscribed(anna="p", bert="q"))
    await world.store("posts", [post("p", 10), post("q", 10)])
    assert await world.matched(1) == {"anna": {1}, "bert": {1}}
    monkeypatch.setattr(reference_tables, "IDLE_S", -1.0)
    for node in world.cluster.nodes:
        node.channels._references.forget_idle()
    assert world.replicas(POSTS) == []
    await world.store("posts", [post("q", None, deleted=True)])
    assert await world.matched(2) == {"anna": {2}}


async def test_a_channel_whose_lookup_does_not_fit_is_not_created(world: World) -> None:
    wrong: list[tuple[str, Any, Any]] = [
        ("temperature > stars.least", {"stars": ":of"}, UnknownDataset),
        ("temperature > air.temperature", {"air": ":of"}, InputError),
        ("temperature > posts.size", POST, InputError),
        ("temperature > posts.at", POST, InputError),
        ("temperature > :least", POST, InputError),
        ("temperature > ratings.stars AND S_DWITHIN(geometry, posts.at, 5)", POST, InputError),
        (f":query AND {NEAR_POST}", POST, InputError),
    ]
    for template, lookup, kind in wrong:
        with pytest.raises(kind):
            await world.begin_lookup(template, lookup)
    assert world.cluster["a"].catalog.channels == {}


async def test_a_table_that_subscriptions_have_rows_of_cannot_be_dropped(world: World) -> None:
    await world.begin_lookup(NEAR_POST, POST)
    with raises(InputError, channel=CHANNEL):
        await world.cluster["c"].drop_dataset(POSTS.key)
    await world.cluster["c"].drop_dataset(CHANNEL)
    await world.cluster["c"].drop_dataset(POSTS.key)


async def test_a_table_that_is_too_large_for_subscriptions_fails_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_tables, "ROWS_MAX", 3)
    await world.begin_lookup(NEAR_POST, POST)
    await world.store("posts", posts(0, 9))
    await world.observe(1)
    [failure] = await world.execute()
    assert "'posts' is too large" in failure
    assert "at most 3 rows" in failure


async def test_repetitive_executions_have_the_rows_of_their_time(world: World) -> None:
    clock = world.cluster.clock
    for node in world.cluster.nodes:
        node.channels._clock = clock
    await world.begin_lookup(NEAR_POST, POST, new="none")
    await world.store("hot.subscriptions", subscribed(anna="p", bert="q"))
    await world.store("posts", [post("p", 10)])
    assert await world.matched(1) == {"anna": {1}}
    clock.now += 10.0
    await world.store("posts", [post("p", 20), post("q", 10)])
    assert await world.matched() == {"bert": {1}}
    clock.now += 10.0
    await world.store("posts", [post("p", 10), post("q", None, deleted=True)])
    assert await world.matched(2) == {"anna": {1, 2}}


# --- rows of subscriptions that are compared -----------------------------------------------------


async def forget_replicas(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes free what they have of tables."""
    with monkeypatch.context() as patched:
        patched.setattr(reference_tables, "IDLE_S", -1.0)
        for node in world.cluster.nodes:
            node.channels._references.forget_idle()
    assert world.replicas(POSTS) == []


@pytest.mark.slow
async def test_both_are_new_where_a_row_was_stored_since_the_last_execution(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin_lookup(NEAR_POST, POST, new="both")
    await world.store("hot.subscriptions", subscribed(anna="p", bert="q"))
    await world.store("posts", [post("p", 10), post("q", 10)])
    assert await world.matched(1) == {"anna": {1}, "bert": {1}}
    assert await world.matched(2) == {}
    await world.store("posts", [post("p", 10)])
    assert await world.matched(3) == {"anna": {3}}
    await world.store("posts", [post("q", 10)])
    assert await world.matched() == {}
    assert await world.matched(4) == {}
    await forget_replicas(world, monkeypatch)
    assert await world.matched(5) == {}
    await world.restart()
    assert await world.matched(6) == {}
    await world.store("posts", [post("p", 10)])
    await world.restart()
    assert await world.matched(7) == {"anna": {7}}
    await world.store("posts", [post("p", 10, deleted=True), post("q", 20)])
    assert await world.matched(8) == {}
    await world.store("hot.subscriptions", subscribed(anna="q", bert="p"))
    await world.store("posts", [post("p", 10)])
    await forget_replicas(world, monkeypatch)
    assert await world.matched(9) == {"bert": {9}}


@pytest.mark.parametrize("leave", keep_quick([False, True], True))
async def test_observations_enter_and_leave_when_a_row_changes(
    world: World, leave: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin_lookup(NEAR_POST, POST, new="either", leave=leave)
    await world.observe(1)
    await world.observe(2, longitude=20.0)
    await world.store("hot.subscriptions", subscribed(anna="p", bert="p", cleo="q"))
    assert await world.matched() == {}

    async def move(x: float | None, *, deleted: bool = False) -> tuple[set[int], set[int]]:
        """Moves `p`; what has entered and left those who have it."""
        await world.store("posts", [post("p", x, deleted=deleted)])
        entered = await world.matched()
        sets = [found.pop("anna", set()) for found in (entered, world.left)]
        assert [entered.pop("bert", set()), world.left.pop("bert", set())] == sets
        assert {**entered, **world.left} == {}
        return sets[0], sets[1]

    assert await move(10.0) == ({1}, set())
    assert await move(10.0) == (set(), set())
    assert await move(20.0) == ({2}, {1} if leave else set())
    await world.restart()
    assert await world.matched() == {}
    assert await move(10.0) == ({1}, {2} if leave else set())
    await forget_replicas(world, monkeypatch)
    assert await world.matched(3) == {"anna": {3}, "bert": {3}}
    assert await move(None) == (set(), {1, 3} if leave else set())
    await world.restart()
    assert await move(10.0) == ({1, 3}, set())
    await world.store("posts", [post("q", 20)])
    await world.store("hot.subscriptions", subscribed(bert="q"))
    assert await world.matched() == {"bert": {2}, "cleo": {2}}
    assert world.left == ({"bert": {1, 3}} if leave else {})
    await world.store("posts", [post("p", 10.0, deleted=True)])
    assert await world.matched() == {}
    assert world.left == ({"anna": {1, 3}} if leave else {})


async def test_tables_are_not_cleaned_past_what_channels_compare_with(world: World) -> None:
    await world.begin_lookup(NEAR_POST, POST, new="either")
    await world.store("hot.subscriptions", subscribed(anna="p"))
    await world.store("posts", posts(0, 20))
    await world.store("posts", posts(0, 20, deleted=True))
    assert await world.clean(POSTS) == 0, "no partition was executed"
    await world.store("posts", [post("p", 10)])
    assert await world.matched(1) == {"anna": {1}}
    world.cluster.network.away = {"b"}
    await world.clean(POSTS)
    assert not [n for n in "ac" if world.cluster[n].catalog.table_shard(POSTS.key).dropped()]
    world.cluster.network.away = set()
    cleaned = await world.clean(POSTS)
    assert cleaned
    await world.store("posts", [post("p", 20)])
    await world.store("posts", [post("p", 10), *posts(0, 20)])
    await world.store("posts", [post("p", 20), *posts(0, 20)])
    assert await world.clean(POSTS) == cleaned, "the last execution has p at 10"
    await world.restart()
    assert await world.matched() == {}
    await world.observe(2, longitude=20.0)
    assert await world.matched() == {"anna": {2}}
    assert await world.clean(POSTS) > cleaned


async def test_a_view_ahead_of_the_owner_of_a_table_makes_no_executions(world: World) -> None:
    await world.begin_lookup(NEAR_POST, POST, new="either")
    await world.store("hot.subscriptions", subscribed(anna="p"))
    await world.store("posts", [post("p", 10)])
    assert await world.matched(1) == {"anna": {1}}
    logs = [node.catalog.shards[CHANNEL] for node in world.cluster.nodes]
    for node in world.cluster.nodes:
        node.view.update_sequences(POSTS.key, Cursor({0: 1000}))
    before = [log.own_published().sequences for log in logs]
    assert await world.matched() == {}
    assert [log.own_published().sequences for log in logs] == before
    assert await world.matched(2) == {"anna": {2}}


async def test_rows_of_the_last_execution_that_are_lost_are_not_passed(world: World) -> None:
    await world.begin_lookup(NEAR_POST, POST, new="either")
    await world.store("hot.subscriptions", subscribed(anna="p"))
    await world.store("posts", [post("p", 10), *posts(0, 20)])
    assert await world.matched(1) == {"anna": {1}}
    for _ in range(2):
        await world.store("posts", [post("p", 20), *posts(0, 20)])
    assert await world.clean(POSTS, compared=lambda _: ())
    await world.restart()
    await world.observe(2)
    [failure] = await world.execute()
    assert "as they were at its last execution" in failure
    assert "drop the channel, and create it again" in failure


async def test_keys_that_changed_between_two_cursors_are_read_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world.cluster["a"]
    table = node.catalog.table_shard(POSTS.key).schema
    read, cursors = ReferenceTables.read_whole, list[Cursor]()
    references = node.channels._references
    await world.store("posts", posts(0, 40))
    for number in range(5):
        cursors.append((await read(references, [table])).cursors["posts"])
        await world.store("posts", posts(10 * number, 2, deleted=number % 2 == 1))
    tasks: list[TableTask] = []
    ask = references._tables.read

    def count(task: TableTask) -> Any:
        tasks.append(task)
        return ask(task)

    monkeypatch.setattr(references._tables, "read", count)

    async def changed(first: int, last: int) -> tuple[list[str], int]:
        """The keys that changed between two of the cursors, and how often owners are asked."""
        after, until = cursors[first], cursors[last]
        before = len(tasks)
        keys = await references.changed_keys(table, after=after, until=until)
        assert keys.schema == table.key_schema
        return sorted(keys.column("name").to_pylist()), len(tasks) - before

    def names(first: int, last: int) -> list[str]:
        return sorted(f"p{10 * number + n}" for number in range(first, last) for n in (0, 1))

    for first, last in itertools.combinations_with_replacement(range(5), 2):
        assert await changed(first, last) == (names(first, last), 0)
    for _ in range(2):
        monkeypatch.setattr(reference_tables, "CHANGES_MAX", 2)
        cursors.append((await read(references, [table])).cursors["posts"])
        await world.store("posts", posts(10 * (len(cursors) - 1), 2))
    monkeypatch.setattr(reference_tables, "CHANGES_MAX", 64)
    assert await changed(5, 6) == (names(5, 6), 0)
    assert await changed(1, 6) == (names(1, 6), 1)
    assert await changed(1, 6) == (names(1, 6), 0)
    assert await changed(2, 4) == (names(2, 4), 1)
    assert len(await references.read_at(table, cursors[2])) == 38
    whole = (await read(references, [table])).rows["posts"]
    assert len(await references.read_at(table, cursors[6])) == len(whole) - 2
