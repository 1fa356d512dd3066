"""Keyed datasets at nodes with copies, which are cleaned all the time while nodes fail and move."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from replica_nodes import (
    PARTITIONS,
    SETTLED_S,
    START_US,
    BusyWorld,
    expect_crash,
)
from retaining import DAY_S, Days, runner_of

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Conflict, DataExpired, GalileoError, Unavailable
from galileo.graph.versions import NEVER, Marks
from galileo.model.observations import normalise
from galileo.model.retention import Retention
from galileo.model.schema import DELETED, Feature, Schema
from galileo.model.times import MICROS, TIME_TYPE
from galileo.node import keyed_index
from galileo.node.cluster_scan import ScanEnd
from galileo.node.keyed_shard import KeyedShard
from galileo.node.peers import PARTS_SCHEMA, ReadTask, TableTask
from galileo.node.retention_runner import RetentionRunnerOptions
from galileo.node.row_reader import read_parts
from galileo.node.select import CursorRange
from galileo.node.storage_node import StorageNode
from galileo.node.stored_versions import rows_of
from galileo.node.table_index import Versions
from galileo.query import parse
from galileo.storage.commits import Commit

SCHEMA = Schema(
    "nam",
    [Feature("station", type="text"), Feature("value", type="int")],
    geohash_precision=2,
    time_bucket="6h",
    key="station",
)
COUNTERS = ("a", "b", "c", "d")
COUNTING, CHURNING = 3, 2
"""Producers that count, and that replace and delete keys of their own."""
CHURNED = 4
"""Keys of each of these."""
ACKNOWLEDGED = 20
"""Increments between two faults, and at the end."""
AGES_S = {"a": 0.05, "b": 0.3, "c": 0.8}
"""How old commits are that each node cleans."""
Rows: TypeAlias = dict[str, int]
Way: TypeAlias = Callable[[StorageNode], Awaitable[tuple[Rows, Cursor]]]


def table_of(
    rows: Sequence[tuple[str, int | None]],
    *,
    moments_us: Sequence[int] | int = START_US,
    schema: Schema = SCHEMA,
) -> pa.Table:
    """Observations by their stations, each at a place of its own; of a value None: deletions."""
    spots = [zlib.crc32(station.encode()) for station, _ in rows]
    moments = [moments_us] * len(rows) if isinstance(moments_us, int) else list(moments_us)
    table = pa.table(
        {
            "latitude": [-80.0 + spot % 160 for spot in spots],
            "longitude": [-170.0 + spot // 160 % 340 for spot in spots],
            "time": pa.array(moments, pa.int64()).cast(TIME_TYPE),
            "station": [station for station, _ in rows],
            "value": pa.array([value for _, value in rows], pa.int64()),
        }
    )
    deleted = pa.array([value is None for _, value in rows])
    return normalise(schema, table.append_column(DELETED, deleted))


def values_of(rows: Sequence[dict[str, Any]]) -> Rows:
    """The value of each station."""
    values = {row["station"]: row["value"] for row in rows}
    assert len(values) == len(rows), "a key is there twice"
    return values


def batch_of(number: int) -> list[tuple[str, int | None]]:
    """The versions of a batch that churns."""
    chance = random.Random(number)
    return [
        (f"{number % 10}-{chance.randrange(CHURNED)}", None if chance.random() < 0.3 else number)
        for _ in range(3)
    ]


# --- ways to read, each up to a cursor ------------------------------------------------------------


async def read_versions(node: StorageNode, at: Cursor | None = None) -> tuple[Rows, Cursor]:
    """By the index of the versions of keys."""
    rows, reached = [], EMPTY_CURSOR
    async for part in node.tables.read(TableTask("nam", until=at)):
        rows += part.rows.to_pylist()
        reached = reached.join(part.reached)
    return values_of(rows), reached


async def read_selected(node: StorageNode, at: Cursor | None = None) -> tuple[Rows, Cursor]:
    """By the metadata graph, at the frontier of an answer."""
    at = (await _labels(node))[1] if at is None else at
    commits = CursorRange(frozenset(at), EMPTY_CURSOR, at)
    rows = list[dict[str, Any]]()
    async with aclosing(node.selection.select(parse("", SCHEMA), commits=commits)) as tables:
        async for table in tables:
            rows += table.to_pylist()
    return values_of(rows), at


async def read_labels(node: StorageNode) -> tuple[Rows, Cursor]:
    """By the metadata graph, first the labels and then what is behind them."""
    parts, frontier = await _labels(node)
    task, rows = ReadTask("nam", parts, parse("", SCHEMA).to_json()), list[dict[str, Any]]()
    async with aclosing(node.reading.read(task)) as tables:
        async for table in tables:
            rows += table.to_pylist()
    return values_of(rows), frontier


async def _labels(node: StorageNode) -> tuple[pa.Table, Cursor]:
    parts, frontier = [PARTS_SCHEMA.empty_table()], EMPTY_CURSOR
    async with aclosing(node.scans.run(parse("", SCHEMA))) as answers:
        async for answer in answers:
            if isinstance(answer, ScanEnd):
                assert not frontier, "an answer has one end"
                frontier = answer.frontier
                if answer.missing:
                    raise Unavailable("partitions are missing")
            else:
                parts.append(answer.select(PARTS_SCHEMA.names).cast(PARTS_SCHEMA))
    whole = pa.concat_tables(parts)
    past = frontier.past(*(whole.column(n).to_numpy() for n in ("partition", "sequence")))
    return whole.filter(pa.array(~past)), frontier


class KeyedWorld(BusyWorld):
    """Producers that count and that churn, and readers that compare.

    Attributes:
        values: of counters that were acknowledged.
        unanswered: values that may be stored, by counter.
        conflicts: writes that were refused.
        begun, finished: of producers that churn, the last batch that was sent and acknowledged.
        read_at: what was read at cursors, and how.
        compared: how often the same was read there again.
        expired: how often it was cleaned by then.
        dropped: up to where some node has dropped commits.
    """

    segment_bytes_max = 4_000
    faults, steps = ("crash", "crash", "cut", "all"), ACKNOWLEDGED

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed, schema=SCHEMA)
        self.values = defaultdict[str, list[int]](list)
        self.unanswered = defaultdict[str, set[int]](set)
        self.conflicts = self.compared = self.expired = 0
        churning = range(COUNTING, COUNTING + CHURNING)
        self.begun, self.finished = dict.fromkeys(churning, -1), dict.fromkeys(churning, -1)
        self.read_at: list[tuple[Cursor, Rows, str]] = []
        self.dropped = EMPTY_CURSOR

    def start(self, name: str) -> None:
        super().start(name)
        options = RetentionRunnerOptions(check_s=0.05, table_age_s=AGES_S[name])
        self.hosts[name].node.retain(lambda _: (), options)

    @property
    def progress(self) -> int:
        """The increments that were acknowledged."""
        return sum(map(len, self.values.values()))

    def any_node(self) -> StorageNode:
        return self.random.choice(list(self.hosts.values())).node

    # --- who writes --------------------------------------------------------------------------

    async def send(self, number: int) -> None:
        await (self.count(number) if number % 10 < COUNTING else self.churn(number))

    async def churn(self, number: int) -> None:
        self.begun[number % 10] = number
        table = table_of(batch_of(number), moments_us=START_US + number)
        await self.send_until_stored("nam", lambda _: table, producer="p", batch=number)
        self.finished[number % 10] = number

    async def count(self, number: int) -> None:
        """One attempt to increase a counter; the same batch until it is answered."""
        key, sent = self.random.choice(COUNTERS), None
        while not self.is_over:
            try:
                async with asyncio.timeout(5.0):
                    node = self.any_node()
                    sent = sent or await self._next(node, key)
                    value, seen = sent
                    self.unanswered[key].add(value)
                    await node.ingest.ingest(
                        "nam",
                        table_of([(key, value)], moments_us=START_US + number),
                        producer="p",
                        batch=number,
                        unchanged_since=seen,
                    )
                self.values[key].append(value)
                return
            except Conflict:
                self.conflicts += 1
                return
            except DataExpired:
                return
            except (GalileoError, TimeoutError, IndexError):
                await asyncio.sleep(0.01)
            except RuntimeError as error:
                expect_crash(error)

    async def _next(self, node: StorageNode, key: str) -> tuple[int, Cursor]:
        """The next value of a counter, and up to where the last one was read."""
        way = self.random.choice((read_versions, read_selected, read_labels))
        rows, seen = await way(node)
        return rows.get(key, 0) + 1, seen

    # --- who reads ---------------------------------------------------------------------------

    async def ask(self, node: StorageNode, due: int) -> None:
        """An answer has what was acknowledged; at a cursor it is the same at all nodes."""
        least = {key: max(values) for key, values in self.values.items()}
        finished = dict(self.finished)
        try:
            way = self.random.choice((read_versions, read_selected, read_labels))
            rows, at = await way(node)
            self.read_at.append((at, rows, f"{way.__name__} at {node.name}"))
            for key, value in least.items():
                assert rows.get(key, 0) >= value, (
                    f"{key}: {value} was acknowledged, {rows} is there"
                )
            self.check_churned(rows, finished)
            await self.ask_again(self.any_node())
        except DataExpired:
            self.expired += 1
        except (GalileoError, IndexError):
            return
        except RuntimeError as error:
            expect_crash(error)

    async def ask_again(self, node: StorageNode) -> None:
        at, expected, before = self.random.choice(self.read_at[-20:])
        way = self.random.choice((read_versions, read_selected))
        rows, _ = await way(node, at)
        assert rows == expected, (
            f"at {at}: {way.__name__} at {node.name} differs from {before} in "
            f"{rows.items() ^ expected.items()}"
        )
        self.compared += 1

    def check_churned(self, rows: Rows, finished: dict[int, int]) -> None:
        for producer, first in finished.items():
            for key in (f"{producer}-{k}" for k in range(CHURNED)):
                possible = states(key, first, self.begun[producer])
                assert rows.get(key) in possible, f"{key}: {rows.get(key)} not in {possible}"

    # --- the end -----------------------------------------------------------------------------

    def judge(self) -> None:
        """Replicas have the same commits, and the same rows at each cursor that all have."""
        chance = random.Random(len(self.read_at))
        for p in range(PARTITIONS):
            hosts = self.members_of(p)
            assert len(hosts) == self.topology.replicas
            shards = [host.node.catalog.versioned_shard("nam") for host in hosts]
            journals = [shard.journals[p] for shard in shards]
            first, last = max(shard.dropped()[p] for shard in shards), journals[0].last_sequence
            self.dropped = self.dropped.join({p: first})
            kept = range(1 + max(journal.dropped for journal in journals), last + 1)
            logs = [[journal.read(n).to_pylist() for n in kept] for journal in journals]
            assert all(log == logs[0] for log in logs), "replicas differ"
            cursors = {first, last, *(chance.randint(first, last) for _ in range(8))}
            for at in cursors:
                scans = [scanned(shard, p, at) for shard in shards]
                assert all(rows == scans[0] for rows in scans), f"the graphs differ at {p}: {at}"
                for shard in shards:
                    newest = shard.version_index.newest(p, until=at)
                    rows = rows_of(shard, p, newest.take(~newest.deleted))
                    assert in_order(rows.drop_columns([DELETED])) == scans[0], "indexes differ"
        assert all(host.replicas.comparison.diverged == {} for host in self.hosts.values())

    async def judge_answers(self) -> None:
        """The counters have what was acknowledged, and no more than was sent."""
        for host in self.hosts.values():
            for way in (read_versions, read_selected, read_labels):
                rows, at = await read_patiently(way, host.node)
                assert at.covers(self.dropped)
                self.check_churned(rows, self.finished)
                for key in COUNTERS:
                    values, last = self.values[key], rows.get(key, 0)
                    assert len({*values}) == len(values), f"{key}: a value was acknowledged twice"
                    assert max(values, default=0) <= last, f"{key}: an increment is lost"
                    foreign = {*range(1, last + 1)} - {*values} - self.unanswered[key]
                    assert not foreign, f"{key}: {foreign} was not sent"


async def read_patiently(way: Way, node: StorageNode) -> tuple[Rows, Cursor]:
    """What is read once nothing of it is cleaned meanwhile."""
    async with asyncio.timeout(SETTLED_S):
        while True:
            try:
                return await way(node)
            except (DataExpired, Unavailable):
                await asyncio.sleep(0.1)


def states(key: str, first: int, last: int) -> set[int | None]:
    """The values of a key of a producer that churns, from one batch to another."""
    state: int | None = None
    producer = int(key[0])
    found = {state} if first < 0 else set()
    for number in range(producer, last + 1, 10):
        for other, value in batch_of(number):
            state = value if other == key else state
        if number >= first:
            found.add(state)
    return found


def scanned(shard: KeyedShard, partition: int, at: int) -> list[dict[str, Any]]:
    """The rows of a partition of a replica at a commit, by its graph."""
    until, partitions = Cursor({partition: at}), frozenset([partition])
    labels = shard.graph.scan(parse("", SCHEMA), until=until, partitions=partitions)
    if at == 0:
        labels = labels.slice(0, 0)
    parts = labels.select(PARTS_SCHEMA.names).cast(PARTS_SCHEMA)
    return in_order(read_parts(shard, parts.sort_by([("sequence", "ascending")]), SCHEMA))


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: (row["station"], row["latitude"]))


async def run(directory: Path, seed: int, *, faults: int) -> KeyedWorld:
    world = KeyedWorld(directory, seed)
    producers = (world.produce(n) for n in range(COUNTING + CHURNING))
    await world.play([*producers, *(world.read() for _ in range(2))], faults=faults)
    return world


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
async def test_counters_lose_no_increment_and_all_replicas_agree(tmp_path: Path, seed: int) -> None:
    world = await run(tmp_path, seed, faults=10)
    assert world.conflicts
    assert world.compared > 5, "readers compare cursors"
    assert len(world.dropped) == PARTITIONS, "partitions are cleaned meanwhile"


def _refuses_nothing(
    self: KeyedShard, commits: Mapping[int, Sequence[Commit]]
) -> Mapping[int, Sequence[Commit]]:
    return commits


def _without_marks(stored: Versions) -> Marks:
    """Every version counts for good."""
    marks = keyed_index_marks(stored)
    return replace(marks, superseded=np.full_like(marks.superseded, NEVER))


def _without_origins(stored: Versions) -> Any:
    """Copies count beside what they are copies of."""
    return np.zeros(len(stored), dtype=np.int64)


keyed_index_marks = keyed_index.marks_of


@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        pytest.param(
            "galileo.node.keyed_shard.KeyedShard.refuse_stale",
            _refuses_nothing,
            marks=pytest.mark.slow,
        ),
        ("galileo.node.keyed_index.marks_of", _without_marks),
        pytest.param("galileo.node.keyed_index._origins", _without_origins, marks=pytest.mark.slow),
    ],
)
async def test_a_world_convicts_a_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mutant: object
) -> None:
    monkeypatch.setattr(place, mutant)
    for seed in range(5):
        try:
            await run(tmp_path / str(seed), seed, faults=0)
        except AssertionError:
            return
    pytest.fail(f"a mutant of {place} survived")


# --- retention -----------------------------------------------------------------------------------

AGING = Schema("aging", SCHEMA.features, geohash_precision=2, time_bucket="6h", key="station")
AGE_DAYS = 10
STATIONS = 8


class Aging:
    """A keyed dataset whose old observations are dropped, and a dict of all of them.

    Attributes:
        rows: value and day of each key, which has the day.
    """

    def __init__(self, cluster: Any, seed: int) -> None:
        self.cluster, self.chance, self.clock = cluster, random.Random(seed), Days()
        self.first_us, self.day, self.batches = round(self.clock.now_s * MICROS), 0, 0
        self.rows: dict[tuple[str, int], int] = {}
        self.gone: set[tuple[str, int]] = set()
        options = RetentionRunnerOptions(
            check_s=3600.0,
            min_age_s=0.0,
            table_age_s=0.0,
            wall=self.clock.wall,
            monotonic=self.clock.monotonic,
        )
        self.runners = [(node, runner_of(node, options)) for node in cluster.nodes]

    async def write(self, batches: int) -> None:
        """Observations of the last days, of which many were there before."""
        for _ in range(batches):
            days = [max(0, self.day - self.chance.randrange(AGE_DAYS - 2)) for _ in range(6)]
            rows = [
                (f"s{self.chance.randrange(STATIONS)}", None if self.chance.random() < 0.2 else n)
                for n in range(100 * self.batches, 100 * self.batches + len(days))
            ]
            moments = [self.first_us + round(day * DAY_S * MICROS) for day in days]
            table = table_of(rows, moments_us=moments, schema=AGING)
            self.batches += 1
            node = self.chance.choice(self.cluster.nodes)
            await node.ingest.ingest("aging", table, producer="p", batch=self.batches)
            for (station, value), day in zip(rows, days, strict=True):
                self.rows.pop((station, day), None)
                self.rows |= {} if value is None else {(station, day): value}

    async def pass_a_day(self, *, cleans: bool) -> None:
        """Some nodes clean, and all apply the policy."""
        self.day += 1
        self.clock.now_s += DAY_S
        for node, runner in self.runners:
            if cleans and self.chance.random() < 0.7:
                await asyncio.to_thread(runner.clean, node.catalog.versioned_shard("aging"))
            outcome = await asyncio.to_thread(runner.apply, "aging")
            assert not outcome.failures

    async def check(self) -> None:
        """What is there is as it was written last; what is young is there."""
        rows = await self.read(self.chance.choice(self.cluster.nodes))
        found = {(row["station"], self.day_of(row)): row["value"] for row in rows}
        assert len(found) == len(rows), "a key is there twice"
        assert found.items() <= self.rows.items(), "an older version counts again"
        gone = self.rows.keys() - found.keys()
        assert all(day < self.day - AGE_DAYS for _, day in gone), "a young one is gone"
        assert self.gone <= gone, "an observation came back"
        self.gone = gone

    async def read(self, node: StorageNode) -> list[dict[str, Any]]:
        """Selected, and the same in pages."""
        async with aclosing(node.selection.select(parse("", AGING))) as tables:
            rows = [row async for table in tables for row in table.to_pylist()]
        paged, start = list[dict[str, Any]](), None
        while True:
            page = await node.paging.page(parse("", AGING), limit=20, start=start)
            paged += page.observations.select(AGING.observation_schema.names).to_pylist()
            if page.following is None:
                break
            start = page.following
        assert sorted(map(str, paged)) == sorted(map(str, rows)), "pages have other rows"
        return rows

    def day_of(self, row: dict[str, Any]) -> int:
        return round((row["time"].timestamp() - self.first_us / MICROS) / DAY_S)

    async def stop(self) -> None:
        for _, runner in self.runners:
            await asyncio.to_thread(runner.stop)


@pytest.mark.parametrize("cleans", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("seed", "days"), [(0, 4), *(pytest.param(n, 25, marks=pytest.mark.slow) for n in range(3))]
)
async def test_retention_drops_old_observations_and_none_comes_back(
    cluster: Any, seed: int, days: int, cleans: bool
) -> None:
    cluster.journals = replace(cluster.journals, segment_bytes_max=4_000)
    for name in ("a", "b", "c"):
        await cluster.restart(name)
    await cluster["b"].create_dataset(AGING)
    await cluster["b"].set_retention("aging", Retention(f"{AGE_DAYS}d"))
    aging = Aging(cluster, seed)
    try:
        for _ in range(days):
            await aging.write(8)
            await aging.pass_a_day(cleans=cleans)
            await aging.check()
        # The cleaner stores old observations once more, in files with young ones.
        assert aging.gone or cleans, "what is old is dropped"
        for _ in range(AGE_DAYS + 5):
            await aging.pass_a_day(cleans=cleans)
            await aging.check()
        assert aging.gone == aging.rows.keys(), "all is old by now"
    finally:
        await aging.stop()
