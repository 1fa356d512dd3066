"""Channels of real nodes with one copy, judged from outside: restarts, moves, nodes away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shapely
from channel_audit import (
    BROKERS,
    LEVELS,
    LOOKED_UP,
    ROWS,
    TEMPLATES,
    Changes,
    ChannelAudit,
    Reader,
    Version,
    air,
    batch_of,
    numbers_of,
    rows_of,
)
from expected_errors import raises
from fault_injection.damage import flip
from parameters import keep_quick
from patches import patched
from retaining import runner_of
from simulator.channel_mutants import CHANNEL_MUTANTS

from galileo.cursor import Cursor
from galileo.errors import (
    CorruptData,
    InputError,
    PartitionMoved,
    PartitionReadOnly,
    Unavailable,
)
from galileo.model.channel import Channel
from galileo.model.deletions import STRETCHES_SCHEMA
from galileo.model.enrichment import Lookup, Nearest, Step
from galileo.model.table import Table
from galileo.node import channel_observations, query_limits, table_reader
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.channel_executor import ChannelExecutor
from galileo.node.channel_reader import LOOK_S
from galileo.node.compaction_runner import CompactionRunner, CompactionRunnerOptions
from galileo.node.peers import ExecutionsTask
from galileo.node.reference_tables import References, ReferenceTables
from galileo.node.retention_runner import RetentionRunnerOptions
from galileo.node.storage_node import StorageNode
from galileo.query import parse
from galileo.query.joins import Reference
from galileo.query.lookup_index import LookupIndex
from galileo.storage.commits import Commit
from galileo.storage.compaction import CompactionOptions

CHANNEL, DATASET = "hot", "air"
IDS = [f"s{number}" for number in range(12)]
AHEAD_S = 1e7
"""All executions are old for retention."""
RETENTION = RetentionRunnerOptions(check_s=3600.0, min_age_s=0.0, table_age_s=0.0)
CAUGHT_UP_MAX = 100
KEPT_DAYS = 8
EXECUTOR = "galileo.node.channel_executor"
OBSERVATIONS = "galileo.node.channel_observations"
REFERENCES = {
    "levels": LEVELS,
    "ratings": Table("ratings", {"number": "int", "stars": "int"}, "number"),
    "posts": Table("posts", {"id": "text", "place": "geometry"}, "id"),
}
Scenario: TypeAlias = "Callable[[Any], Awaitable[Hot]]"


class Hot:
    """A channel at the nodes, and its audit.

    Attributes:
        readers: one of each broker.
    """

    def __init__(self, cluster: Any, seed: int = 0) -> None:
        self.cluster, self.random = cluster, random.Random(seed)
        self.batches, self.changes = itertools.count(), itertools.count()
        self.readers = [Reader(CHANNEL, broker) for broker in BROKERS]

    async def begin(
        self,
        *,
        template: str = TEMPLATES[0],
        keep: str = "1s",
        enrich: Sequence[Step] = (),
        **more: Any,
    ) -> None:
        self.cluster.journals = replace(self.cluster.journals, segment_bytes_max=8_000)
        await self.cluster.reconfigure()
        await self.cluster["a"].create_dataset(air(DATASET))
        channel = Channel(CHANNEL, DATASET, template, keep=keep, enrich=enrich, **more)
        for step in channel.steps:
            await self.cluster["a"].create_dataset(REFERENCES[step.table])
        created = await self.cluster["b"].create_dataset(channel)
        self.audit = ChannelAudit(created)

    def any_node(self) -> StorageNode:
        return self.random.choice([n for n in self.cluster.nodes if n.name not in self.away])

    @property
    def away(self) -> set[str]:
        return self.cluster.network.away

    async def observe(self, batch: int | None = None) -> int:
        batch = next(self.batches) if batch is None else batch
        self.audit.observe(numbers_of(batch))
        await self._ingest(DATASET, batch_of(batch), producer="p", batch=batch)
        return batch

    async def subscribe(self, changes: Changes | None = None) -> None:
        if changes is None:
            names = self.random.sample(IDS, k=3)
            changes = {name: self.audit.random_change(name, self.random) for name in names}
        versions, batch = self.audit.change(changes), next(self.changes)
        rows = rows_of(self.audit.channel.subscriptions, changes)
        await self._ingest(self.audit.table, rows, producer="s", batch=batch)
        self.audit.settle(versions)

    async def _ingest(self, name: str, rows: pa.Table, *, producer: str, batch: int) -> Any:
        """Stores a batch, and repeats it as clients do.

        A leader that has waited for a processor too long leads no more for a moment.
        """
        while True:
            with contextlib.suppress(PartitionMoved):
                return await self.any_node().ingest.ingest(
                    name, rows, producer=producer, batch=batch
                )
            await asyncio.sleep(0.01)

    async def upsert(self, table: Table) -> None:
        """Changes some rows of a table that the channel reads."""
        chance, batch = self.random, next(self.changes)
        noted: list[Version] = []
        if table.name == "levels":
            levels = {
                float(level): None if chance.random() < 0.3 else float(chance.randrange(40))
                for level in chance.sample(self.audit.values, k=3)
            }
            noted = self.audit.change_levels(levels)
            rows = [{"level": level, "least": least} for level, least in levels.items()]
        elif table.name == "ratings":
            numbers = chance.sample(range(max(numbers_of(batch))), k=ROWS)
            rows = [{"number": number, "stars": chance.randrange(9)} for number in numbers]
        else:
            places = [(chance.uniform(-170, 170), chance.uniform(-80, 80)) for _ in range(4)]
            rows = [
                {"id": f"p{chance.randrange(8)}", "place": shapely.to_wkb(shapely.Point(place))}
                for place in places
            ]
        versions = pa.Table.from_pylist(
            [row | {"deleted": _is_deleted(row, chance)} for row in rows],
            schema=table.observation_schema,
        )
        answer = await self._ingest(table.key, versions, producer="r", batch=batch)
        self.audit.settle(noted)
        self.audit.upserted(table.name, answer.reached)

    def gossip(self) -> None:
        """Each node hears of what the others have published."""
        nodes = [node for node in self.cluster.nodes if node.name not in self.away]
        for teller, node in itertools.product(nodes, nodes):
            for key in (DATASET, self.audit.table, CHANNEL):
                known = teller.catalog.shards[key].own_published()
                node.view.update_sequences(key, known.sequences, deletions=known.deletions)

    async def execute(self, *names: str) -> None:
        """Executes the channel once at some nodes, or at all."""
        nodes = [node for node in self.cluster.nodes if node.name in names or not names]
        await asyncio.gather(*(node.channels.execute(CHANNEL) for node in nodes))
        self.remember()

    def remember(self) -> None:
        for node in self.cluster.nodes:
            self.audit.remember(node.catalog)

    def published(self, key: str) -> Cursor:
        shards = [node.catalog.shards[key] for node in self.cluster.nodes]
        return Cursor.joined(shard.own_published().sequences for shard in shards)

    def cuts(self, name: str) -> set[Cursor]:
        """Of the last executions of a node's partitions."""
        own = self.cluster[name].partitions
        return {Cursor(log[max(log)].until) for p, log in self.audit.log.items() if p in own}

    async def maintain(self, name: str, *, ahead_s: float = AHEAD_S) -> None:
        """Cleans the table and drops executions at a node, so long after the last ones."""
        node = self.cluster[name]
        clock = node.channels._clock
        options = replace(RETENTION, wall=lambda: clock.wall() + ahead_s)
        self.remember()
        runner = runner_of(node, options)
        try:
            for key in (self.audit.table, *(one.key for one in self.audit.channel.references)):
                await asyncio.to_thread(runner.clean, node.catalog.table_shard(key))
            await asyncio.to_thread(runner.drop_executions, node.catalog.channel_shard(CHANNEL))
        finally:
            await asyncio.to_thread(runner.stop)

    async def catch_up(self) -> None:
        """Executes until everything is matched, and reads everything."""
        self.away.clear()
        self.gossip()
        for _ in range(CAUGHT_UP_MAX):
            before = self.published(CHANNEL)
            await self.execute()
            if self.published(CHANNEL) == before:
                break
        for reader in self.readers:
            await reader.read(self.any_node())

    async def judge(self, **options: Any) -> None:
        await self.catch_up()
        keys = (DATASET, self.audit.table, CHANNEL)
        self.audit.check_complete({key: self.published(key) for key in keys})
        self.audit.judge(**options)
        for reader in self.readers:
            self.audit.check_reader(reader)


def _is_deleted(row: dict[str, Any], chance: random.Random) -> bool:
    return row["least"] is None if "least" in row else chance.random() < 0.3


async def history(
    cluster: Any, seed: int, steps: int, enrich: Sequence[Step] = (), **more: Any
) -> Hot:
    """Everything that users and nodes do, in any order, some of it at the same time."""
    bytes_max = 9_000 if enrich else 3_000
    limits = ({}, {f"{OBSERVATIONS}.ROWS_MAX": 8}, {f"{EXECUTOR}.BYTES_MAX": bytes_max})
    options = {"template": TEMPLATES[seed % 2], "enrich": enrich} | more
    with patched(limits[seed % 3]):
        return await _history(cluster, seed, steps, **options)


async def _history(cluster: Any, seed: int, steps: int, **options: Any) -> Hot:
    hot = Hot(cluster, seed)
    await hot.begin(**options)
    await hot.subscribe({name: (hot.random.choice(BROKERS), 5.0) for name in IDS})
    for step in range(steps):
        await hot.subscribe()
        await hot.observe()
        if hot.random.random() < 0.8:
            hot.gossip()
        await asyncio.gather(hot.execute(), users(hot))
        for reader in hot.readers:
            await reader.read(hot.any_node(), parts_max=hot.random.choice((1, 2, None)))
        await fault(hot, step)
    await hot.judge()
    return hot


async def users(hot: Hot) -> None:
    """What users do during an execution."""
    for _ in range(2):
        for table in hot.audit.channel.references:
            await hot.upsert(table)
        await hot.subscribe()
        await hot.observe()
        hot.gossip()


async def fault(hot: Hot, step: int) -> None:
    cluster = hot.cluster
    name = hot.random.choice("abc")
    kind = ("clean", "restart", "move", "away", "clean", "none")[step % 6]
    if kind == "restart":
        await cluster.restart(name)
    elif kind == "move":
        partition = hot.random.choice(sorted(cluster["a"].partitions | cluster["c"].partitions))
        to = "c" if partition in cluster["a"].partitions else "a"
        await cluster.move(partition, to=to)
    elif kind == "clean":
        await hot.maintain(name)
    elif kind == "away":
        hot.away.add(name)
        await hot.execute(*{"a", "b", "c"} - {name})
        hot.away.clear()


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 8), *(pytest.param(seed, 24, marks=pytest.mark.slow) for seed in range(1, 14))],
)
async def test_a_channel_is_executed_once_whatever_happens(
    cluster: Any, seed: int, steps: int
) -> None:
    hot = await history(cluster, seed, steps)
    assert hot.audit.certain > 20


ENRICH = [Lookup("ratings", on="number"), Nearest("posts", count=2, within="3000km")]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
async def test_an_execution_is_enriched_by_the_rows_of_its_cut_whatever_happens(
    cluster: Any, seed: int
) -> None:
    hot = await history(cluster, seed, 16, ENRICH)
    assert hot.audit.joined > 20
    assert hot.audit.certain > 20


LOOKUP: dict[str, Any] = {"template": LOOKED_UP, "lookup": {"levels": ":level"}}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
async def test_subscriptions_have_the_rows_of_the_cut_whatever_happens(
    cluster: Any, seed: int
) -> None:
    hot = await history(cluster, seed, 16, **LOOKUP)
    assert hot.audit.certain > 20


@pytest.mark.parametrize(
    ("seed", "steps", "mode"),
    [
        (0, 5, {"new": "both"}),
        pytest.param(1, 8, {"new": "either", "leave": True}, marks=pytest.mark.slow),
        *(pytest.param(n, 16, {"new": "both"}, marks=pytest.mark.slow) for n in range(2, 6)),
        *(pytest.param(n, 16, {"new": "either"}, marks=pytest.mark.slow) for n in range(6, 10)),
    ],
)
async def test_subscriptions_are_compared_with_their_rows_whatever_happens(
    cluster: Any, seed: int, steps: int, mode: dict[str, Any]
) -> None:
    hot = await history(cluster, seed, steps, **LOOKUP, **mode)
    assert hot.audit.certain > 20


# --- single faults -------------------------------------------------------------------------------


@pytest.fixture
async def hot(cluster: Any) -> Hot:
    """A channel with subscriptions in all partitions, which match everything."""
    made = Hot(cluster)
    await made.begin()
    await made.subscribe(dict.fromkeys(IDS, ("east", -1.0)))
    return made


@pytest.mark.slow
async def test_a_partition_that_is_away_does_not_hold_up_those_with_too_much(
    hot: Hot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more is new than fits, the first half must not be that which is away."""
    for _ in range(6):
        await hot.observe()
    monkeypatch.setattr(channel_observations, "ROWS_MAX", 1)
    air = hot.published(DATASET)
    owner = next(node for node in hot.cluster.nodes if min(air) in node.partitions)
    hot.away.add(owner.name)
    for _ in range(sum(air.values())):
        await hot.execute("b")
    here = Cursor({p: s for p, s in air.items() if p not in owner.partitions})
    assert hot.cuts("b") == {here}
    await hot.judge()


async def test_a_view_ahead_of_the_owner_holds_up_that_partition_alone(hot: Hot) -> None:
    """As after a restart of an owner that has lost its last commits."""
    await hot.observe()
    hot.gossip()
    air = hot.published(DATASET)
    lost = {min(node.partitions & air.keys(), default=0) for node in hot.cluster.nodes}
    hot.cluster["b"].view.update_sequences(DATASET, Cursor({p: air[p] + 3 for p in lost}))
    await hot.execute("b")
    assert hot.cuts("b") == {Cursor({p: s for p, s in air.items() if p not in lost})}
    for _ in range(6):
        await hot.observe()
    await hot.judge()


async def test_an_index_that_was_read_in_part_forgets_what_is_deleted_meanwhile(
    hot: Hot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is read in pieces, and the second piece fails."""
    monkeypatch.setattr(query_limits, "ROWS_PER_PIECE", 1)
    hot.gossip()
    await hot.observe()
    hot.gossip()
    read, begun = table_reader._read, set[int]()

    def fail_second(shard: Any, piece: Any) -> Any:
        if piece.partition in begun:
            raise Unavailable("the rows of a table were moved while they were read; try again")
        begun.add(piece.partition)
        return read(shard, piece)

    with monkeypatch.context() as patched:
        patched.setattr(table_reader, "_read", fail_second)
        await hot.execute()
    assert len(begun) > 1
    await hot.subscribe(dict.fromkeys(IDS, ("", None)))
    await hot.observe()
    hot.gossip()
    await hot.judge()


@pytest.mark.slow
async def test_an_execution_that_cannot_be_stored_is_not_repeated_at_once(
    hot: Hot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        await hot.observe()
    monkeypatch.setattr(channel_observations, "ROWS_MAX", 1)
    executor, catalog = hot.cluster["a"].channels, hot.cluster["a"].catalog
    assert await executor.execute(CHANNEL), "there is more to do"

    def refuse(_: str, commits: Any) -> Any:
        full = PartitionReadOnly("the disk is full", after_s=1.0)
        done: Future[Any] = Future()
        done.set_result(dict.fromkeys(commits, full))
        return done

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit", refuse)
        assert not await executor.execute(CHANNEL)
        assert {one.failure for one in executor.progress(CHANNEL).values()} == {"the disk is full"}
    await hot.judge()


async def test_partitions_whose_cuts_differ_fail_alone(
    hot: Hot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged observations that one partition has still to match do not stop the others."""
    await hot.observe()
    hot.gossip()
    executor, catalog = hot.cluster["b"].channels, hot.cluster["b"].catalog
    own = sorted(catalog.channel_shard(CHANNEL).surely_own(range(hot.audit.channel.partitions)))
    assert len(own) > 1
    commit = catalog.commit
    with monkeypatch.context() as patched:  # The first partition is left behind.
        patched.setattr(
            catalog,
            "commit",
            lambda key, commits: commit(key, {p: c for p, c in commits.items() if p != own[0]}),
        )
        await executor.execute(CHANNEL)
    select = executor._observations._selection.select

    def fail(*args: Any, commits: Any, **options: Any) -> Any:
        if commits.after == Cursor():
            raise CorruptData("damaged")
        return select(*args, commits=commits, **options)

    await hot.observe()
    hot.gossip()
    with monkeypatch.context() as patched:
        patched.setattr(executor._observations._selection, "select", fail)
        await hot.execute("b")
        assert executor._of(await executor._work(CHANNEL), own[0]).failure == "damaged"
    assert hot.cuts("b") == {hot.published(DATASET)}
    await hot.judge()


@pytest.mark.parametrize("heard", keep_quick([0, 4], 0))
async def test_commits_that_retention_dropped_before_they_were_matched_are_passed(
    hot: Hot, heard: int
) -> None:
    """Also where that is more than the nodes that execute have heard of."""
    for number in range(40):
        if number == heard:
            hot.gossip()
        await hot.observe()
    await hot.subscribe()
    hot.remember()
    dropped = 0
    for node in hot.cluster.nodes:
        shard = node.catalog.shard(DATASET)
        for partition, journal in shard.own.items():
            files = journal.log_files()
            if len(files) > 1:
                dropped += shard.drop(partition, files[0].last).commits
    assert dropped
    await hot.execute()
    assert len(hot.audit.log) == (hot.audit.channel.partitions if heard else 0)
    await hot.judge(may_skip=True)


async def test_a_partition_that_was_not_executed_holds_what_came_since_the_channel_began(
    hot: Hot,
) -> None:
    for _ in range(4):
        await hot.observe()
    hot.gossip()
    node = hot.cluster["a"]
    cuts = ChannelCuts(node.catalog, node.channel_reader, loop=asyncio.get_running_loop())
    dataset = node.catalog.shard(DATASET).schema
    start = Cursor(dict(hot.audit.channel.start))
    for executed, expected in (("a", start), ("bc", hot.published(DATASET))):
        await hot.execute(*executed)
        [hold] = await cuts.holds(dataset)
        assert hold.position == expected
    assert start != expected


@pytest.mark.slow
async def test_a_reader_whose_executions_are_dropped_while_it_reads_is_told(hot: Hot) -> None:
    for _ in range(30):
        await hot.observe()
        hot.gossip()
        await hot.execute()
    node, reader = hot.cluster["a"], hot.readers[0]
    own = node.catalog.channel_shard(CHANNEL).surely_own(range(hot.audit.channel.partitions))
    task = ExecutionsTask(CHANNEL, "east", Cursor(), own)
    async with contextlib.aclosing(node.channel_reader.read(task)) as parts:
        reader._take(await anext(parts))
        await hot.maintain("a")
        assert sum(node.catalog.channel_shard(CHANNEL).dropped().values())
        async for part in parts:
            reader._take(part)
    assert reader.gone
    await hot.judge()


async def test_a_reader_of_partitions_that_a_channel_lacks_is_refused(hot: Hot) -> None:
    last = hot.audit.channel.partitions - 1
    task = ExecutionsTask(CHANNEL, "east", Cursor(), frozenset([0, last + 1]))
    reader = hot.cluster["a"].channel_reader
    with raises(InputError, expected="partitions", bound=last):
        await anext(reader.read(task))
    with raises(InputError, expected="partitions", bound=last):
        await anext(reader.follow(task, wait_s=0.0))


@pytest.mark.slow
async def test_a_reader_of_beginnings_of_answers_gets_to_all_partitions(hot: Hot) -> None:
    """Although each partition has more whenever it asks."""
    await hot.subscribe(dict.fromkeys(IDS, ("east", -1.0)))
    await step(hot)
    with_matches = {p for p, log in hot.audit.log.items() if "east" in log[1].shares}
    by_node = [len(with_matches & node.partitions) for node in hot.cluster.nodes]
    assert max(by_node) > 1
    assert sum(count > 0 for count in by_node) > 1
    reader, rounds = Reader(CHANNEL, "east"), 0
    while {p for p, taken in reader.taken.items() if taken} != with_matches:
        assert (rounds := rounds + 1) < 100, sorted(reader.taken)
        await step(hot)
        await reader.read(hot.cluster["c"], parts_max=1)


async def test_a_reader_waits_where_the_view_is_ahead_of_the_owner(hot: Hot) -> None:
    await hot.observe()
    hot.gossip()
    await hot.execute()
    node, task = hot.cluster["a"], ExecutionsTask(CHANNEL, "none", Cursor())
    hot.gossip()
    node.view.update_sequences(CHANNEL, Cursor({0: 7}))
    hot.cluster.network.calls.clear()
    parts = [part async for part in node.channel_reader.follow(task, wait_s=0.5)]
    assert all(part.execution is None for part in parts)
    assert Cursor.joined(part.reached for part in parts) == hot.published(CHANNEL), "all are passed"
    assert len(hot.cluster.network.calls) < 4 * 0.5 / LOOK_S


@pytest.mark.slow
async def test_files_that_were_merged_are_dropped_when_they_are_old(cluster: Any) -> None:
    """A merged file has executions of a small part of the time for which they are kept."""
    hot = Hot(cluster)
    await hot.begin(keep=f"{KEPT_DAYS}d")
    await hot.subscribe(dict.fromkeys(IDS, ("east", -1.0)))
    for node in cluster.nodes:
        node.channels._clock = cluster.clock
    for _ in range(4 * KEPT_DAYS):
        await step(hot)
        cluster.clock.now += 86_400.0
    eager = CompactionRunnerOptions(
        CompactionOptions(bytes_min=1), bytes_per_s=1 << 30, interval_s=0.01
    )
    for node in cluster.nodes:
        runner = CompactionRunner(node.catalog, eager)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(runner.stop)
        await hot.maintain(node.name, ahead_s=0.0)
        for partition, journal in node.catalog.channel_shard(CHANNEL).own.items():
            young = len(hot.audit.log[partition]) - journal.dropped
            assert KEPT_DAYS <= young <= KEPT_DAYS + 8
    await hot.judge()


async def test_an_index_stays_while_a_lease_is_late(
    hot: Hot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading all subscriptions again takes much longer than the pause."""
    await step(hot)
    node = hot.cluster["b"]
    progress = node.channels.progress(CHANNEL)
    before = {p: one.index for p, one in progress.items() if len(one.index)}
    assert before
    with monkeypatch.context() as patched:
        patched.setattr(node.catalog.channel_shard(CHANNEL), "_may_serve", lambda _: False)
        await step(hot)
        assert len({log[max(log)].number for log in hot.audit.log.values()}) == 2
    await step(hot)
    after = {p: one.index for p, one in node.channels.progress(CHANNEL).items()}
    assert all(after[p] is index for p, index in before.items())
    await hot.judge()


async def test_a_follower_gets_what_is_there_while_a_node_is_away(hot: Hot) -> None:
    await step(hot)
    hot.gossip()
    for away in "abc":
        hot.away.add(away)
        here, reader = min({"a", "b", "c"} - {away}), Reader(CHANNEL, "east")
        others = {p for p, log in hot.audit.log.items() if "east" in log[1].shares}
        others -= hot.cluster[away].partitions
        assert others
        task = ExecutionsTask(CHANNEL, "east", Cursor())
        async for part in hot.cluster[here].channel_reader.follow(task, wait_s=0.1):
            reader._take(part)
        assert {p for p, taken in reader.taken.items() if taken} == others
        task = ExecutionsTask(CHANNEL, "east", reader.cursor)
        with raises(Unavailable, node=away):
            async for part in hot.cluster[here].channel_reader.follow(task, wait_s=0.1):
                assert part.execution is None
        hot.away.clear()


async def test_damaged_observations_hold_up_their_partition_alone(hot: Hot) -> None:
    """Wherever they are: at the node itself, or at others."""
    for _ in range(6):
        await hot.observe()
    hot.gossip()
    air, damaged = hot.published(DATASET), dict[int, Path]()
    for node in hot.cluster.nodes:
        partition = max(air.keys() & node.partitions, key=air.__getitem__)
        place = node.store.partition_directory(DATASET, partition)
        damaged[partition] = sorted(place.glob("*.segment"))[0]
    whole = {file: file.read_bytes() for file in damaged.values()}
    for file, data in whole.items():
        for at in range(len(data) // 2, len(data), 64):
            flip(file, at)
    await hot.execute()
    await hot.execute()
    rest = Cursor({p: s for p, s in air.items() if p not in damaged})
    assert rest
    for node in hot.cluster.nodes:
        assert hot.cuts(node.name) == {rest}
        assert all(one.failure for one in node.channels.progress(CHANNEL).values())
    for file, data in whole.items():
        file.write_bytes(data)
    await hot.judge()


@pytest.mark.slow
async def test_an_index_begins_anew_where_its_table_was_cleaned_past_it(hot: Hot) -> None:
    """Deletions that it has not seen are in no log any more."""
    await step(hot)
    await hot.execute()
    await delete_half(hot)
    await step(hot)
    await hot.judge()


async def delete_half(hot: Hot) -> None:
    """Deletes subscriptions, and cleans their table past the indices."""
    await hot.subscribe(dict.fromkeys(IDS[::2], ("", None)))
    for least in range(150):
        await hot.subscribe({name: ("west", float(least % 40)) for name in IDS[1::2]})
    cleaned = 0
    for node in hot.cluster.nodes:
        await hot.maintain(node.name)
        dropped = node.catalog.table_shard(hot.audit.table).dropped()
        for partition, one in node.channels.progress(CHANNEL).items():
            cleaned += 0 < one.subscriptions < dropped[partition]
    assert cleaned


# --- partitions that change their owners, and logs that are dropped ------------------------------


async def there_and_back(cluster: Any) -> Hot:
    """A partition is executed at another node, then again at the first one."""
    hot = await made(cluster)
    partition = min(cluster["a"].partitions)
    for to in ("c", "a"):
        await step(hot)
        await hot.execute()  # There is nothing new.
        await cluster.move(partition, to=to)
        await step(hot)
    await hot.judge()
    return hot


async def regained(cluster: Any) -> Hot:
    """An execution is committed after others have executed its partition, which came back since."""
    hot = await made(cluster)
    await step(hot)
    partition, executor = min(cluster["a"].partitions), cluster["a"].channels
    prepare, prepared, may_go_on = executor._prepare, asyncio.Event(), asyncio.Event()

    async def prepare_slowly(*args: Any) -> Any:
        commit = await prepare(*args)
        prepared.set()
        await may_go_on.wait()
        return commit

    executor._prepare = prepare_slowly
    await hot.observe()
    hot.gossip()
    late = asyncio.create_task(executor.execute(CHANNEL))
    await prepared.wait()
    executor._prepare = prepare
    for to in ("c", "a"):
        await cluster.move(partition, to=to)
        await hot.subscribe()
        if to == "c":
            await step(hot, "c")
            await step(hot, "c")
    may_go_on.set()
    await late
    await step(hot)
    await hot.judge()
    return hot


async def dropped(cluster: Any) -> Hot:
    """All executions are old; nodes restart without them, but with their cuts."""
    hot = await made(cluster)
    for _ in range(12):
        await step(hot)
    for node in cluster.nodes:
        await hot.maintain(node.name)
        log = node.catalog.channel_shard(CHANNEL)
        for partition, journal in log.own.items():
            assert journal.dropped
            assert journal.dropped < log.index.last(partition) == journal.last_sequence
        await cluster.restart(node.name)
    await step(hot)
    reader = Reader(CHANNEL, "east")
    await reader.read(cluster["a"])
    assert reader.gone
    hot.readers.append(reader)
    await hot.judge()
    return hot


async def enriched(cluster: Any) -> Hot:
    """Tables change while executions join them."""
    hot = Hot(cluster)
    await hot.begin(enrich=ENRICH)
    await hot.subscribe(dict.fromkeys(IDS, ("east", -1.0)))
    for _ in range(6):
        await hot.observe()
        hot.gossip()
        await asyncio.gather(hot.execute(), users(hot))
    await hot.judge()
    return hot


async def looked_up(cluster: Any) -> Hot:
    """Rows of subscriptions change while executions read them."""
    hot = Hot(cluster)
    await hot.begin(**LOOKUP)
    await hot.subscribe(dict(zip(IDS, itertools.cycle([("east", 1.0), ("west", 2.0)]))))
    for _ in range(4):
        await hot.upsert(LEVELS)
        await hot.observe()
        hot.gossip()
        await asyncio.gather(hot.execute(), users(hot))
    await hot.judge()
    return hot


async def compared_there_and_back(cluster: Any) -> Hot:
    """Rows of subscriptions change while a partition is executed at another node."""
    hot = Hot(cluster)
    await hot.begin(new="either", **LOOKUP)
    await hot.subscribe(dict(zip(IDS, itertools.cycle([("east", 1.0), ("west", 2.0)]))))
    partition = max(cluster["a"].partitions)  # It has subscriptions.
    for _ in range(3):
        await step(hot)
        await cluster.move(partition, to="c")
        await hot.upsert(LEVELS)
        await step(hot, "c")
        await cluster.move(partition, to="a")
    await step(hot)
    await hot.judge()
    return hot


async def made(cluster: Any) -> Hot:
    hot = Hot(cluster)
    await hot.begin()
    await hot.subscribe({name: (hot.random.choice(BROKERS), 5.0) for name in IDS})
    return hot


async def step(hot: Hot, *names: str) -> None:
    await hot.observe()
    hot.gossip()
    await hot.execute(*names)


@pytest.mark.parametrize(
    "scenario",
    keep_quick(
        [there_and_back, regained, dropped, enriched, looked_up, compared_there_and_back],
        *(there_and_back, regained),
    ),
)
async def test_a_channel_goes_on_where_its_log_ends(cluster: Any, scenario: Scenario) -> None:
    await scenario(cluster)


# --- deletions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
async def test_changed_subscriptions_match_no_deleted_observation(
    cluster: Any, template: str
) -> None:
    hot, deleted = Hot(cluster, 1), 0
    await hot.begin(new="either", template=template)
    node, everything = cluster["b"], parse("", air(DATASET))
    east = hot.readers[BROKERS.index("east")]

    async def current() -> tuple[pa.Table, set[int]]:
        """The labels of all observations, and their numbers."""
        async with aclosing(node.scans.run(everything)) as parts:
            labels = [part async for part in parts if isinstance(part, pa.Table)]
        async with aclosing(node.selection.select(everything)) as parts:
            rows = pa.concat_tables([part async for part in parts])
        return pa.concat_tables(labels), set(rows.column("number").to_pylist())

    for batch in range(6):
        await hot.subscribe({"s0": ("east", 100.0)})
        await step(hot)
        await east.read(node)
        seen = {partition: len(taken) for partition, taken in east.taken.items()}
        labels, before = await current()
        chosen = labels.select(STRETCHES_SCHEMA.names).slice(batch, 2).cast(STRETCHES_SCHEMA)
        await node.ingest.ingest(DATASET, chosen, producer="d", batch=batch, deletes=True)
        _, left = await current()
        deleted += len(before - left)
        hot.gossip()
        if batch % 2:
            await hot.execute()
        await hot.subscribe({"s0": ("east", -1.0)})
        await hot.execute()
        await east.read(node)
        new = [run for p, taken in east.taken.items() for run in taken[seen.get(p, 0) :]]
        assert {pair.observation.number for _, pairs in new for pair in pairs} == left
    assert deleted == 12


# --- mutants -------------------------------------------------------------------------------------


async def cleaned_past(cluster: Any) -> Hot:
    """Subscriptions are deleted, and no log has the deletions when an index is read on."""
    hot = await made(cluster)
    await step(hot)
    await hot.execute()
    await delete_half(hot)
    await step(hot)
    await hot.judge()
    return hot


def _newer_rows(read: Any) -> Any:
    """Newer rows are joined than the execution names, if there are any soon."""

    async def read_late(self: ReferenceTables, *needs: Any) -> References:
        named = rows = await read(self, *needs)
        for _ in range(20):
            if rows.cursors != named.cursors:
                break
            await asyncio.sleep(0.01)
            rows = await read(self, *needs)
        return replace(rows, cursors=named.cursors)

    return read_late


_execute, _read_whole = ChannelExecutor.execute, ReferenceTables.read_whole
_updated, _numbers = Reference.updated, LookupIndex._find_numbers


async def _rows_first(self: ChannelExecutor, channel: str) -> bool:
    """The tables are read before the frontier of the dataset is taken."""
    work = await self._work(channel)
    assert work is not None
    read = self._references
    rows, before = await _read_whole(read, work.channel.references), self._view.sequences(DATASET)
    for _ in range(20):
        if self._view.sequences(DATASET) != before:
            break
        await asyncio.sleep(0.01)

    async def read_before(_: Any) -> References:
        return rows

    with mock.patch.object(read, "read_whole", read_before):
        return await _execute(self, channel)


def _changes_ignored(self: LookupIndex, *table: Any) -> Any:
    """A row that is replaced is the same row."""
    return np.sign(_numbers(self, *table))


def _deletions_ignored(self: Reference, changes: pa.Table) -> Reference:
    """Deleted rows stay."""
    return _updated(self, changes.filter(pc.invert(changes.column("deleted"))))


TABLES = "galileo.node.reference_tables.ReferenceTables"
_attempts = itertools.count()


slow = partial(pytest.param, marks=pytest.mark.slow)


class _AnyNumber(Commit):
    """Of two commits with one number the first one counts."""

    def __init__(self, producer: str, *rest: Any) -> None:
        Commit.__init__(self, f"{producer}{next(_attempts)}", *rest)


@pytest.mark.parametrize(
    ("scenario", "mutants"),
    [
        slow(there_and_back, CHANNEL_MUTANTS["own_cut"]),
        slow(cleaned_past, CHANNEL_MUTANTS["unsubscribe_lost_in_take_over"]),
        slow(dropped, CHANNEL_MUTANTS["last_execution_dropped"]),
        (regained, {"galileo.node.channel_executor.Commit": _AnyNumber}),
        slow(enriched, {f"{TABLES}.read": _newer_rows(ReferenceTables.read)}),
        slow(compared_there_and_back, CHANNEL_MUTANTS["rows_ahead_of_log"]),
        slow(looked_up, {f"{TABLES}.read_whole": _newer_rows(_read_whole)}),
        slow(looked_up, {"galileo.node.channel_executor.ChannelExecutor.execute": _rows_first}),
        slow(looked_up, {"galileo.query.lookup_index.LookupIndex._find_numbers": _changes_ignored}),
        slow(looked_up, {"galileo.query.joins.Reference.updated": _deletions_ignored}),
    ],
)
async def test_a_judge_convicts_a_mutant(
    cluster: Any, scenario: Scenario, mutants: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `simulator.channel_mutants` that need a certain order of events, and more."""
    for place, mutant in mutants.items():
        monkeypatch.setattr(place, mutant)
    with pytest.raises(AssertionError):
        await scenario(cluster)
