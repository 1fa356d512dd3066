"""Streams of Spark that crash and are away while retention applies, at real nodes.

The streams are those of the data source; what Spark does with them is played, with its checkpoint.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from channel_audit import air, batch_of
from parameters import keep_quick
from retaining import DAY_S, Checked, Days, retention_of

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, Unavailable
from galileo.model.reader import POSITIONS, reader_key
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import DELETED, Schema
from galileo.model.times import MICROS, TIME_TYPE
from galileo.node import reader_positions, retention_runner
from galileo.node.retention_plan import Hold, ReaderProgress, held_until
from galileo.spark.source import cursor_stream
from galileo.spark.source.cursor_stream import CursorStream, SourceState
from galileo.spark.source.options import SourceOptions, cursor_of
from galileo.spark.source.plan import Split, StoredCommits
from galileo.wire import reader_rows

DATASET = "air"
AGE_S, BUCKET_S = 4 * DAY_S, 6 * 3600.0
HOLDS = ("3d", "9d", "30d")
HOLD_MAX_S = 90 * DAY_S


class Crash(Exception):
    """The process of a job ends."""


class Stream(CursorStream[Schema]):
    """A stream of the data source; of commits it reads that they are there."""

    def __init__(self, world: World, options: SourceOptions) -> None:
        self._world = world
        super().__init__(options, world.state())

    def _discover(self, addresses: tuple[str, ...]) -> SourceState[Schema]:
        return self._world.state()

    def _earliest(self, stored: StoredCommits) -> Cursor:
        return stored.dropped

    def _rows(self, split: Split) -> Iterator[Any]:
        dropped = self._world.state().stored.dropped
        for partition in split.partitions:
            for sequence in range(split.after[partition] + 1, split.until[partition] + 1):
                if sequence <= dropped[partition]:
                    raise DataExpired(f"p{partition} is dropped to {dropped[partition]}")
                yield partition, sequence


class Job:
    """A query of Spark over a stream: its checkpoint and its sink survive a crash.

    Attributes:
        offsets: that were planned, the first one is where the stream began.
        done: micro-batches that are in the sink and in the log of commits.
        sink: commits that are stored.
    """

    def __init__(self, world: World, name: str, hold: str) -> None:
        raw = {"address": "x:1", "dataset": DATASET, "reader": name, "hold": hold}
        self.options = SourceOptions.from_spark(raw | {"commits_per_batch": "9"})
        self._world, self.name = world, name
        self.offsets = list[dict[str, int]]()
        self.done = 0
        self.sink = set[tuple[int, int]]()

    @property
    def processed(self) -> Cursor:
        return cursor_of(self.offsets[self.done]) if self.offsets else EMPTY_CURSOR

    def run(self) -> None:
        """Until it has all, or crashes; called in a thread."""
        stream = Stream(self._world, self.options)
        try:
            if not self.offsets:
                self.offsets.append(stream.initialOffset())
            if len(self.offsets) > self.done + 1:
                self._process(stream)
            while True:
                end = stream.latestOffset(self.offsets[-1], stream.getDefaultReadLimit())
                if end == self.offsets[-1]:
                    return
                self._may_crash()
                self.offsets.append(end)
                self._process(stream)
        except Crash:
            self._world.counts["crashes"] += 1

    def _process(self, stream: Stream) -> None:
        rows = list[tuple[int, int]]()
        self._may_crash()
        for task in stream.partitions(*self.offsets[self.done : self.done + 2]):
            rows += stream.read(task)  # type: ignore[arg-type]
        self._may_crash()
        self.sink.update(rows)
        self.done += 1
        self._may_crash()

    def _may_crash(self) -> None:
        if self._world.random.random() < 0.15:
            raise Crash


class World:
    """A dataset, streams over it, and what nodes may drop by what was promised.

    Attributes:
        newest_s: the end of the time bucket of each commit, by partition and sequence.
        rows: that readers have stored.
        unreadable: keys of tables that nodes cannot read at present.
        is_away: whether no position can be stored at present.
        counts: what happened.
    """

    def __init__(self, cluster: Any, seed: int) -> None:
        self.cluster, self.random, self.clock = cluster, random.Random(seed), Days()
        self.numbers = itertools.count()
        self.newest_s: dict[tuple[int, int], float] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.unreadable = set[str]()
        self.is_away = False
        self.counts = Counter[str]()
        self.jobs = list[Job]()

    async def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster.journals = dataclasses.replace(self.cluster.journals, segment_bytes_max=3_000)
        for name in "abc":
            await self.cluster.restart(name)
        self.schema = await self.cluster["a"].create_dataset(air(DATASET))
        for node in self.cluster.nodes:
            node.catalog.adopt_retention(DATASET, VersionedRetention(1, Retention(AGE_S)))
        holds = self.random.sample(HOLDS, 2)
        self.jobs += [Job(self, f"job {number}", hold) for number, hold in enumerate(holds)]

    def state(self) -> SourceState[Schema]:
        """What nodes report about the dataset."""
        shards = [node.catalog.shard(DATASET) for node in self.cluster.nodes]
        published = Cursor.joined(shard.own_published().sequences for shard in shards)
        dropped = Cursor.joined(shard.dropped() for shard in shards)
        stored = StoredCommits(published, dropped, {}, frozenset())
        return SourceState(self.schema, self.cluster.topology, stored)

    async def observe(self) -> None:
        """New observations of this moment."""
        number = next(self.numbers)
        rows = batch_of(number)
        late_s = self.random.choice((0.0, 0.0, 0.0, 60.0)) * DAY_S
        at_s = self.clock.now_s - late_s
        times = pa.array([round(at_s * MICROS)] * rows.num_rows).cast(TIME_TYPE)
        rows = rows.set_column(rows.column_names.index("time"), rows.schema.field("time"), times)
        await self.cluster["b"].ingest.ingest(DATASET, rows, producer="p", batch=number)
        newest_s = (at_s // BUCKET_S + 1) * BUCKET_S
        for partition, last in self.state().stored.published.items():
            for sequence in range(1, last + 1):
                self.newest_s.setdefault((partition, sequence), newest_s)

    def advance(
        self, _: Any, options: SourceOptions, dataset: Schema, cursor: Cursor, *, patience_s: float
    ) -> None:
        """Stores a position, called in the thread of a job."""
        if self.is_away:
            raise Unavailable("the node of the row is away")
        reader = reader_key(dataset, options.reader)
        row = self.rows.get(reader, {"reader": reader})
        now = dt.datetime.fromtimestamp(self.clock.now_s, dt.UTC)
        token, hold_us = row.get("token"), options.hold_us
        row |= reader_rows.advance(reader, token, cursor, hold_us=hold_us, now=now)
        asyncio.run_coroutine_threadsafe(self.store(row), self.loop).result()

    async def store(self, row: dict[str, Any]) -> None:
        self.rows[row["reader"]] = row
        rows = pa.Table.from_pylist([row | {DELETED: False}], schema=POSITIONS.observation_schema)
        number = next(self.numbers)
        await self.cluster["a"].ingest.ingest(POSITIONS.name, rows, producer="w", batch=number)

    async def drop_reader(self, job: Job) -> None:
        row = self.rows.get(reader_key(self.schema, job.name))
        if row is not None and row["hold_us"]:
            await self.store(row | {"token": "", "hold_us": 0})
            self.counts["readers dropped"] += 1

    async def run(self, job: Job) -> None:
        """Runs a job; what it has not processed may be gone if its reader could not hold it."""
        try:
            await asyncio.to_thread(job.run)
        except Unavailable:
            self.counts["not registered"] += 1
        except DataExpired:
            self.counts["expired"] += 1
            position = self.jobs.index(job)
            self.jobs[position] = Job(self, job.name, self.random.choice(HOLDS))
            await self.drop_reader(job)

    # --- what nodes drop -----------------------------------------------------------------------

    async def retain(self, name: str) -> None:
        shard = self.cluster[name].catalog.shard(DATASET)
        files = {p: journal.log_files() for p, journal in shard.own.items()}
        before = shard.dropped()
        runner = retention_of(self.cluster[name], self.clock, self.unreadable)
        try:
            await asyncio.to_thread(runner.apply, DATASET)
        finally:
            await asyncio.to_thread(runner.stop)
        after = shard.dropped()
        for partition, of_partition in files.items():
            self.judge(Checked(partition, of_partition, before[partition], after[partition]))

    def judge(self, checked: Checked) -> None:
        """What is dropped was processed or too old, and all that was stored as processed is."""
        expected = checked.before
        for file in checked.files:
            sequences = range(file.first, file.last + 1)
            if any(self.is_wanted(checked.partition, n) for n in sequences):
                break
            expected = file.last
        self.counts["dropped"] += checked.after - checked.before
        assert checked.after == expected, f"p{checked.partition} is dropped to {checked.after}"

    def is_wanted(self, partition: int, sequence: int) -> bool:
        age_s = self.clock.now_s - self.newest_s[partition, sequence]
        if age_s < AGE_S:
            return True
        if POSITIONS.key in self.unreadable:
            self.counts["unknown"] += 1
            return age_s < AGE_S + HOLD_MAX_S
        for job in self.jobs:
            reader = reader_key(self.schema, job.name)
            row = self.rows.get(reader)
            assert row is not None or len(job.offsets) < 2, f"{job.name} is not registered"
            if row is None or not row["hold_us"]:
                continue
            hold_s = row["hold_us"] / MICROS
            still_s = self.clock.now_s - row["stored_at"].timestamp()
            if age_s >= AGE_S + hold_s and still_s > hold_s:
                continue
            self.counts["held though old"] += age_s >= AGE_S + hold_s
            position = reader_rows.position_of(reader, row["token"])
            assert job.processed.covers(position), f"{job.name} has not processed {position}"
            if position[partition] < sequence:
                self.counts["held"] += 1
                return True
        return False


async def history(cluster: Any, seed: int, steps: int = 24) -> World:
    """Streams run, crash and are away in any order; each deletion is judged."""
    world = World(cluster, seed)
    await world.begin()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cursor_stream, "POLL_S", 0.0)
        patched.setattr(cursor_stream, "advance_reader", world.advance)
        for step in range(steps):
            for _ in range(world.random.randint(1, 2)):
                await world.observe()
            world.clock.now_s += world.random.uniform(0.3, 2.5) * DAY_S
            world.is_away = world.random.random() < 0.15
            for job in world.jobs:
                if world.random.random() < 0.5:
                    await world.run(job)
            if world.random.random() < 0.05:
                await world.drop_reader(world.random.choice(world.jobs))
            world.unreadable = {POSITIONS.key} if step % 6 == 5 else set()
            await world.retain(world.random.choice("abc"))
    world.clock.now_s += 2 * HOLD_MAX_S
    for name in "abc":
        await world.retain(name)
    stored = world.state().stored
    assert stored.dropped == stored.published, "nothing is kept for ever"
    return world


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 24), *(pytest.param(seed, 60, marks=pytest.mark.slow) for seed in range(1, 12))],
)
async def test_streams_that_are_away_miss_nothing_that_is_held(
    cluster: Any, seed: int, steps: int
) -> None:
    world = await history(cluster, seed, steps)
    assert not [name for name in ("held", "unknown", "crashes") if not world.counts[name]]
    assert world.counts["dropped"] > 50


def _end_first(self: Stream, start: dict[str, int], limit: Any) -> dict[str, int]:
    """A position is stored when a micro-batch is done, not when it is planned."""
    end = _latest_offset(self, start, limit)
    self._advance_reader(self._cursor(end))
    return end


def _not_first(self: CursorStream[Any], start: Cursor) -> None:
    """A stream that has crashed in its first micro-batch holds what it began with."""
    if self._position is None:
        self._position = start
    _advance_reader(self, start)


def _age_alone(pieces: Any, policy: Any, holds: Any, *, now_us: int) -> list[ReaderProgress]:
    """A hold is beyond the age of the policy."""
    without = [dataclasses.replace(hold, hold_s=0.0) for hold in holds]
    return held_until(pieces, policy, without, now_us=now_us)


def _without_bound(pieces: Any, policy: Any, holds: Any, *, now_us: int) -> list[ReaderProgress]:
    """A forgotten reader does not hold for ever."""
    return [ReaderProgress(hold.reader, hold.position) for hold in holds]


def _of_dropped(dataset: Any, rows: pa.Table) -> list[Any]:
    """A reader that was dropped holds nothing."""
    held = [row | {"hold_us": row["hold_us"] or 10**12} for row in rows.to_pylist()]
    return _readers_of(dataset, pa.Table.from_pylist(held, schema=rows.schema))


_latest_offset = CursorStream.latestOffset
_advance_reader = CursorStream._advance_reader
_readers_of = reader_positions.readers_of

MUTANTS: dict[str, tuple[Any, str, Any, int]] = {
    "position before the batch is done": (CursorStream, "latestOffset", _end_first, 0),
    "registered when the first batch is done": (CursorStream, "_advance_reader", _not_first, 0),
    "hold ignored": (retention_runner, "held_until", _age_alone, 0),
    "hold over by ages alone": (Hold, "is_over", lambda *_: True, 1),
    "held without a bound": (retention_runner, "held_until", _without_bound, 0),
    "dropped readers hold": (reader_positions, "readers_of", _of_dropped, 0),
    "unreadable taken for none": (
        reader_positions,
        "UNKNOWN",
        Hold("", EMPTY_CURSOR, 0.0),
        0,
    ),
}
"""What is replaced, and the seed of a history that shows it early."""
VERDICTS = r"is dropped to|has not processed|is not registered|for ever"


@pytest.mark.parametrize(
    "name", keep_quick(MUTANTS, "position before the batch is done", "hold ignored")
)
async def test_the_rule_convicts(cluster: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    *mutant, seed = MUTANTS[name]
    monkeypatch.setattr(*mutant)
    with pytest.raises(AssertionError, match=VERDICTS):
        await history(cluster, seed)
